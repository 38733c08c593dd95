"""Parameters of a call, from JSON, from bracketed form names, from the query string."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote_plus

Params = dict[str, Any]
_PAIR = re.compile(r"([^=\[]+(?:\[[^\]]*\])+)(=)(.*)$", re.DOTALL)


def parameters(query: str, body: bytes, content_type: str) -> Params:
    """All parameters of a request; the body wins over the query string.

    A body that cannot be read counts as no parameters, as it does at the real service, which then
    complains about the missing ones.
    """
    merged: Params = bracketed(query) if query else {}
    if not body:
        return merged
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return merged | _tree(_multipart(body, content_type))
    if kind == "application/x-www-form-urlencoded":
        return merged | bracketed(body.decode("utf-8", "replace"))
    try:
        parsed = json.loads(body, parse_constant=_refused)
    except (ValueError, RecursionError):
        return merged
    return merged | parsed if isinstance(parsed, dict) else merged


def bracketed(text: str) -> Params:
    """``filter[>=ID]=1&fields[PHONE][0][VALUE]=x`` as nested values."""
    pairs = []
    for piece in text.split("&"):
        # "filter[=originId]=x": an equals sign within brackets is part of the name.
        name, _, value = found.groups() if (found := _PAIR.match(piece)) else piece.partition("=")
        if name:
            pairs.append((unquote_plus(name), unquote_plus(value)))
    return _tree(pairs)


def _tree(pairs: list[tuple[str, str]]) -> Params:
    root: Params = {}
    for name, value in pairs:
        head, _, rest = name.partition("[")
        keys = [head] + (rest.rstrip("]").split("][") if rest else [])
        node = root
        for key in keys[:-1]:
            key = key or str(len(node))
            following = node.get(key)
            if not isinstance(following, dict):
                following = node[key] = {}
            node = following
        node[keys[-1] or str(len(node))] = value
    return {name: _lists(value) for name, value in root.items()}


def _lists(value: Any) -> Any:
    """Maps with the keys 0, 1, 2 ... are lists."""
    if not isinstance(value, dict):
        return value
    if value and all(key == str(number) for number, key in enumerate(value)):
        return [_lists(one) for one in value.values()]
    return {key: _lists(one) for key, one in value.items()}


def _multipart(body: bytes, content_type: str) -> list[tuple[str, str]]:
    marker = content_type.partition("boundary=")[2].strip('" ')
    pairs: list[tuple[str, str]] = []
    for part in body.split(b"--" + marker.encode()):
        head, found, content = part.partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0]
        if found and name:
            pairs.append((name.decode("utf-8", "replace"), content[:-2].decode("utf-8", "replace")))
    return pairs


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
