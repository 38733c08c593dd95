"""What is peculiar to ``batch``: results passed on to later commands, and PHP's idea of a map."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .fields import moment

_EARLIER = re.compile(r"\$result\[([^\]]+)\]((?:\[[^\]]*\])*)")


def resolved(value: Any, results: Mapping[str, Any]) -> Any:
    """Put earlier results in; a reference that leads nowhere stays as it is written."""
    if isinstance(value, Mapping):
        return {key: resolved(one, results) for key, one in value.items()}
    if isinstance(value, list):
        return [resolved(one, results) for one in value]
    if not isinstance(value, str) or "$result[" not in value:
        return value

    def lookup(found: re.Match[str]) -> str:
        node: Any = results.get(found.group(1))
        for key in re.findall(r"\[([^\]]*)\]", found.group(2)):
            try:
                node = node[int(key)] if isinstance(node, list) else node[key]
            except (KeyError, IndexError, TypeError, ValueError):
                return found.group(0)
        return found.group(0) if node is None or isinstance(node, dict | list) else str(node)

    return _EARLIER.sub(lookup, value)


def php_map(values: dict[str, Any]) -> Any:
    """A map as PHP encodes it: empty or numbered from 0 without a gap, it is a list."""
    if all(key == str(number) for number, key in enumerate(values)):
        return list(values.values())
    return values


def short_time(at: float) -> dict[str, Any]:
    """The time block of one command."""
    return {
        "start": at,
        "finish": at,
        "duration": 0.001,
        "processing": 0.001,
        "date_start": moment(at),
        "date_finish": moment(at),
        "operating_reset_at": int(at) + 600,
        "operating": 0.001,
    }
