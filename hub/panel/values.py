"""Values of fields as a person reads them: texts, and lists where JSON would have brackets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

LONGEST = 100
"""Entries of one list that are shown."""
DEEPEST = 5
"""Lists within lists; what lies deeper is shown as it is stored."""


def shown(value: Any, depth: int = 0) -> SafeString:
    """A JSON value as a person reads it; what is not there is a dash."""
    if value is None or value in ("", [], {}):
        return SafeString("–")
    if isinstance(value, bool):
        return conditional_escape(_("yes") if value else _("no"))
    if not isinstance(value, dict | list):
        return conditional_escape(value)
    if depth == DEEPEST:
        return conditional_escape(json.dumps(value, ensure_ascii=False))
    entries = (
        [format_html("{}: {}", name, shown(one, depth + 1)) for name, one in value.items()]
        if isinstance(value, dict)
        else [_entry(one, depth + 1) for one in value]
    )
    more = len(entries) - LONGEST
    if more > 0:
        entries[LONGEST:] = [conditional_escape(_("and %(count)d more") % {"count": more})]
    return format_html(
        '<ul class="hub-value">{}</ul>',
        format_html_join("", "<li>{}</li>", ((one,) for one in entries)),
    )


def _entry(value: Any, depth: int) -> SafeString:
    """One of a list: a row such as a phone is its value, with what kind of value it is behind."""
    if isinstance(value, dict) and _plain(value) and value.get("value") not in (None, ""):
        kinds = [str(one) for name, one in value.items() if name != "value" and one]
        return format_html("{}{}", value["value"], f" ({', '.join(kinds)})" if kinds else "")
    return shown(value, depth)


def _plain(value: Mapping[str, Any]) -> bool:
    return not any(isinstance(one, dict | list) for one in value.values())


def shown_json(text: str, *, values: bool) -> SafeString:
    """Stored JSON as a person reads it, masked unless `values`; any other text keeps its lines."""
    try:
        value = json.loads(text)
    except ValueError:
        if not values:
            return conditional_escape(masked(text))
        return format_html('<pre class="hub-pre">{}</pre>', text)
    return shown(value if values else masked(value))


TELLING = 6
"""From so many characters on, the last two tell values apart without giving one away."""


def masked(value: Any) -> Any:
    """A JSON value of the same shape and names, of whose values only is left that they are set and
    how they end.
    """
    if isinstance(value, dict):
        return {name: masked(one) for name, one in value.items()}
    if isinstance(value, list):
        return [masked(one) for one in value]
    if value is None or value == "":
        return value
    text = str(value)
    if isinstance(value, bool) or len(text) < TELLING:
        return _("set")
    return _("set, ends in %(end)s") % {"end": text[-2:]}
