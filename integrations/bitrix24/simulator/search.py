"""Filters, order and pages of ``crm.item.list``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .errors import RestError
from .fields import EntityType, Kind
from .store import Item, Table, value_of

PAGE = 50
_ID = {"ID": "id"}  # the vendor's own client pages by the classic spelling here too
_PREFIX = re.compile(r"^(!=%|!%|!@|!=|!|>=|<=|>|<|=%|%=|%|@|=)?(.*)$", re.DOTALL)
Test = Callable[[Item], bool]


class Page(NamedTuple):
    """One page. ``total`` is 0 and ``next`` None when counting is switched off."""

    items: list[Item]
    total: int
    next: int | None


def find(
    table: Table,
    *,
    filters: Any,
    order: Any,
    start: Any,
    now: float,
    hide_since: float | None = None,
) -> Page:
    """Search a table.

    Args:
        filters: the ``filter`` object; an unknown field raises 400 ``INVALID_ARG_VALUE``.
        order: ``{"id": "ASC"}`` and the like.
        start: offset of the page, -1 to switch counting off.
        now: records not visible yet at this moment are left out.
        hide_since: records created later than this are left out (index lag on the list).
    """
    test = compiled(table.kind, filters)
    begin = _offset(start)
    narrowed = _candidates(table, filters if isinstance(filters, Mapping) else {})

    def matches(item: Item) -> bool:
        return (
            item.visible_at <= now
            and (hide_since is None or item.created_at <= hide_since)
            and test(item)
        )

    keys = _order_keys(table.kind, order)
    ascending = not keys or keys == [("id", False)]
    if begin < 0 and ascending:
        found: list[Item] = []
        for item in narrowed:
            if matches(item):
                found.append(item)
                if len(found) == PAGE:
                    break
        return Page(found, 0, None)
    every = [item for item in narrowed if matches(item)]
    for name, descending in reversed(keys):
        every.sort(key=lambda item: _sortable(value_of(item, name)), reverse=descending)
    if begin < 0:
        return Page(every[:PAGE], 0, None)
    following = begin + PAGE if len(every) > begin + PAGE else None
    return Page(every[begin : begin + PAGE], len(every), following)


def compiled(kind: EntityType, filters: Any) -> Test:
    """A filter object as a function; conditions are ANDed, ``logic`` and nesting are allowed."""
    if filters in (None, [], {}, ""):
        return lambda item: True
    if not isinstance(filters, Mapping | list):
        raise RestError(
            400,
            "100",
            "Invalid value to match with parameter {filter}. Should be value of type array.",
        )
    pairs = filters.items() if isinstance(filters, Mapping) else enumerate(filters)
    tests: list[Test] = []
    either = False
    for key, value in pairs:
        if key == "logic":
            either = str(value).upper() == "OR"
        elif isinstance(key, int) or str(key).isdigit():
            tests.append(compiled(kind, value))
        else:
            tests.append(_condition(kind, str(key), value))
    if either:
        return lambda item: any(test(item) for test in tests)
    return lambda item: all(test(item) for test in tests)


def _condition(kind: EntityType, key: str, expected: Any) -> Test:
    prefix, name = _split(key)
    if name not in kind.fields or name == "fm":
        raise RestError(
            400, "INVALID_ARG_VALUE", f"Invalid filter: field '{name}' is not allowed in filter"
        )
    field = kind.fields[name]
    numeric = field.kind in (Kind.INTEGER, Kind.DOUBLE)
    like = "%" in prefix
    if like and numeric:
        raise RestError(
            400, "INVALID_ARG_VALUE", f"Invalid filter: LIKE is not allowed for '{name}'"
        )

    if like:
        pattern = _like(str(expected), own="=" in prefix)
        negated = prefix.startswith("!")
        return lambda item: bool(pattern.fullmatch(_text(value_of(item, name)))) is not negated
    if prefix in ("", "=", "!", "!=", "@", "!@"):
        wanted = expected if isinstance(expected, list) else [expected]
        accepted = {_comparable(one, numeric) for one in wanted}
        negated = prefix.startswith("!")
        if name in ("phone", "email"):
            typed = name.upper()
            return lambda item: (
                any(
                    _comparable(row["value"], numeric=False) in accepted
                    for row in item.rows.values()
                    if row["typeId"] == typed
                )
                is not negated
            )
        return lambda item: (_comparable(value_of(item, name), numeric) in accepted) is not negated
    bound = _comparable(expected, numeric)
    if numeric and not isinstance(bound, float):
        raise RestError(400, "INVALID_ARG_VALUE", f"Invalid filter: '{name}' must be a number")
    compare = {
        ">": lambda a: a > bound,
        ">=": lambda a: a >= bound,
        "<": lambda a: a < bound,
        "<=": lambda a: a <= bound,
    }[prefix]

    def ordered(item: Item) -> bool:
        actual = _comparable(value_of(item, name), numeric)
        return type(actual) is type(bound) and bool(compare(actual))

    return ordered


def _candidates(table: Table, filters: Mapping[Any, Any]) -> Iterable[Item]:
    """The records worth testing: by reference or id when the filter pins one, else in id order."""
    if str(filters.get("logic", "")).upper() == "OR":
        return list(table.items.values())
    last_id = 0
    for key, value in filters.items():
        prefix, name = _split(str(key))
        if (
            prefix in ("", "=")
            and name == table.kind.reference_field
            and isinstance(value, str)
            and value
        ):
            return _by_ids(table, sorted(table.by_reference.get(value.casefold(), ())))
        if prefix in ("", "=", "@") and name == "id":
            wanted = value if isinstance(value, list) else [value]
            return _by_ids(table, sorted({int(one) for one in wanted if str(one).isdigit()}))
        if prefix in (">", ">=") and name == "id" and str(value).lstrip("-").isdigit():
            last_id = max(last_id, int(value) - (prefix == ">="))
    return table.after(last_id)


def _by_ids(table: Table, ids: Iterable[int]) -> Iterator[Item]:
    return (table.items[item_id] for item_id in ids if item_id in table.items)


def _split(key: str) -> tuple[str, str]:
    found = _PREFIX.match(key)
    prefix, name = (found.group(1) or "", found.group(2)) if found else ("", key)
    return prefix, _ID.get(name, name)


def _like(text: str, *, own: bool) -> re.Pattern[str]:
    if own:
        body = ".*".join(re.escape(part) for part in text.split("%"))
    else:
        body = ".*" + re.escape(text) + ".*"
    return re.compile(body, re.IGNORECASE | re.DOTALL)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _comparable(value: Any, numeric: bool) -> Any:
    """Numbers as numbers; text without regard to case, as the usual database collation does."""
    if numeric:
        try:
            return float(value)
        except (TypeError, ValueError):
            return None
    return _text(value).casefold()


def _sortable(value: Any) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (2, 0.0, str(value).casefold())


def _order_keys(kind: EntityType, order: Any) -> list[tuple[str, bool]]:
    if not isinstance(order, Mapping):
        return []
    named = {_ID.get(str(name), str(name)): way for name, way in order.items()}
    for name in named:
        if name not in kind.fields or name == "fm":
            raise RestError(
                400, "INVALID_ARG_VALUE", f"Invalid order: field '{name}' is not allowed in order"
            )
    return [(name, str(way).upper() == "DESC") for name, way in named.items()]


def _offset(start: Any) -> int:
    try:
        return int(start or 0)
    except (TypeError, ValueError):
        return 0
