"""What came twice under one key, side by side: stored, and submitted again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from hub.cases import DRIFT
from hub.models import Operation
from hub.panel.values import shown


@dataclass(frozen=True, slots=True)
class Row:
    """One field that differs; the values are empty for those who may not see any."""

    field: str
    stored: SafeString | str = ""
    again: SafeString | str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """One payload that came again, the fields first in which it differs from the stored one."""

    at: datetime
    rows: tuple[Row, ...]
    equal: int
    """Fields that are the same in both."""


def came_again(operation: Operation, *, values: bool) -> list[Again]:
    """What was submitted again with other data, the newest first."""
    stored = _object(operation.payload)
    kept = operation.evidence_set.filter(kind=DRIFT).order_by("-at", "-id")
    return [_again(one.at, _object(one.data), stored, values=values) for one in kept]


def _again(at: datetime, data: dict[str, Any], stored: dict[str, Any], *, values: bool) -> Again:
    fields, left_out = data.get("fields"), data.get("left_out")
    fields = fields if isinstance(fields, dict) else {}
    left_out = left_out if isinstance(left_out, list) else []
    names = [*fields, *left_out, *(data.get("names") or [])]
    rows = []
    for name in names:
        if not values:
            rows.append(Row(str(name)))
            continue
        came: Any = fields.get(name)
        if name in left_out:
            came = _("not submitted")
        elif name not in fields:
            came = _("too long to be kept")
        known = shown(stored[name]) if name in stored else _("not submitted")
        rows.append(Row(str(name), known, shown(came)))
    return Again(at, tuple(rows), len([name for name in stored if name not in names]))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
