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


def shown_json(text: str) -> SafeString:
    """Stored JSON as a person reads it; any other text keeps its lines."""
    try:
        value = json.loads(text)
    except ValueError:
        return format_html('<pre class="hub-pre">{}</pre>', text)
    return shown(value)
