"""Our names and Bitrix24's, for contacts: what may be sent, and when two values are the same.

Known normalisation over there: texts are trimmed, empty becomes null, dates come back as local
midnight. Phones and e-mails live in one list `fm` of rows with ids; of those, only the rows we
wrote are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum, auto
from typing import Any, NamedTuple

from hub.contract import JSON, Difference

DEFAULT_TYPE = "WORK"
MAX_ROWS = 50
MAX_ROW_VALUE = 250
MAX_LINE = 255
MAX_TEXT = 60_000


class Kind(Enum):
    """How a field is checked and compared."""

    LINE = auto()
    TEXT = auto()
    DATE = auto()
    NUMBER = auto()
    ROWS = auto()


@dataclass(frozen=True, slots=True)
class Field:
    """One field: our name, theirs (for rows: the `typeId` within `fm`), and its kind."""

    ours: str
    theirs: str
    kind: Kind = Kind.LINE


FIELDS: tuple[Field, ...] = (
    Field("first_name", "name"),
    Field("last_name", "lastName"),
    Field("second_name", "secondName"),
    Field("honorific", "honorific"),
    Field("post", "post"),
    Field("birthdate", "birthdate", Kind.DATE),
    Field("comments", "comments", Kind.TEXT),
    Field("source", "sourceId"),
    Field("source_description", "sourceDescription", Kind.TEXT),
    Field("type", "typeId"),
    Field("company_id", "companyId", Kind.NUMBER),
    Field("responsible_id", "assignedById", Kind.NUMBER),
    Field("phone", "PHONE", Kind.ROWS),
    Field("email", "EMAIL", Kind.ROWS),
)
BY_NAME: dict[str, Field] = {field.ours: field for field in FIELDS}
NAMES = ("first_name", "last_name")
"""A contact needs at least one of these."""


class Row(NamedTuple):
    """One phone or e-mail as we mean it. Two rows are the same when both parts are."""

    value: str
    type: str


class TheirRow(NamedTuple):
    """A row of `fm` over there."""

    id: str
    row: Row


# --- checking what we are given ------------------------------------------------------------------


def problems(fields: Mapping[str, JSON], *, creating: bool) -> Iterable[str]:
    """Sentences about what is wrong with a contact's fields."""
    if not fields:
        yield "The payload is empty: name at least one field."
        return
    for name, value in fields.items():
        field = BY_NAME.get(name)
        if field is None:
            yield f"{name}: unknown field; a contact has {', '.join(BY_NAME)}."
        else:
            yield from _value_problems(field, value)
    if creating and not any(
        isinstance(fields.get(name), str) and fields[name].strip() for name in NAMES
    ):
        yield "first_name, last_name: a new contact needs at least one of them, and not empty."


def _value_problems(field: Field, value: JSON) -> Iterable[str]:
    name = field.ours
    match field.kind:
        case Kind.ROWS:
            yield from _row_problems(name, value)
        case Kind.NUMBER:
            whole = isinstance(value, int) and not isinstance(value, bool)
            digits = isinstance(value, str) and (not value or (value.isascii() and value.isdigit()))
            if value is not None and not (whole or digits):
                yield f"{name}: must be a whole number (an id in Bitrix24), or null to clear it."
        case Kind.DATE:
            if value not in (None, "") and not _is_date(value):
                yield f"{name}: must be a date written as 2026-09-30, or null to clear it."
        case _:
            limit = MAX_TEXT if field.kind is Kind.TEXT else MAX_LINE
            if value is None:
                return
            if not isinstance(value, str):
                yield f"{name}: must be a text, or null to clear it."
            elif len(value) > limit:
                yield f"{name}: {len(value)} characters, at most {limit} are taken; shorten it."


def _row_problems(name: str, value: JSON) -> Iterable[str]:
    if value is None or isinstance(value, str):
        given: list[Any] = [value] if value else []
    elif isinstance(value, list):
        given = value
    else:
        yield f'{name}: must be a text or a list of {{"value", "type"}}, or null to clear it.'
        return
    if len(given) > MAX_ROWS:
        yield f"{name}: {len(given)} entries, at most {MAX_ROWS} are taken."
        return
    for place, entry in enumerate(given):
        where = name if isinstance(value, str) else f"{name}[{place}]"
        if isinstance(entry, Mapping):
            unknown = sorted(str(key) for key in entry if key not in ("value", "type", "id"))
            if unknown:
                yield f"{where}: unknown key {', '.join(unknown)}; an entry has value and type."
            kind = entry.get("type")
            if kind is not None and not (isinstance(kind, str) and re.fullmatch(r"\w{1,32}", kind)):
                yield f"{where}: its type must be a word such as WORK, HOME or MOBILE."
            entry = entry.get("value")
        if not isinstance(entry, str) or not entry.strip():
            yield f"{where}: its value must be a text, not empty; leave the entry out to remove it."
        elif len(entry) > MAX_ROW_VALUE:
            yield f"{where}: {len(entry)} characters, at most {MAX_ROW_VALUE} are taken."
        elif name == "email" and not re.fullmatch(r"[^@\s]+@[^@\s]+", entry.strip()):
            yield f"{where}: {entry[:60]!r} is no e-mail address."


def _is_date(value: JSON) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


# --- the same after their normalisation ----------------------------------------------------------


def normal(field: Field, value: JSON) -> JSON:
    """A value of a plain field in the form in which ours and theirs can be compared."""
    if value is None or value == "":
        return None
    match field.kind:
        case Kind.DATE:
            return str(value)[:10]
        case Kind.NUMBER:
            text = str(value).strip()
            # 0 means "none" for a link to another item.
            return (int(text) or None) if text.isdecimal() else text or None
        case _:
            text = str(value).replace("\r\n", "\n").strip()
            return text or None


def wanted_rows(value: JSON) -> list[Row]:
    """Our phones or e-mails in their order, without repetitions."""
    if value is None or value == "":
        return []
    given = value if isinstance(value, list | tuple) else [value]
    rows: dict[Row, None] = {}
    for entry in given:
        kind: Any = DEFAULT_TYPE
        if isinstance(entry, Mapping):
            kind = entry.get("type") or DEFAULT_TYPE
            entry = entry.get("value")
        text = str(entry or "").strip()
        if text:
            rows[Row(text, str(kind).upper())] = None
    return list(rows)


def their_rows(item: Mapping[str, Any], type_id: str) -> list[TheirRow]:
    """The rows of one kind in an item's `fm`, which may be a list or an object keyed by id."""
    fm = item.get("fm") or []
    if isinstance(fm, Mapping):
        entries: list[Mapping[str, Any]] = [
            {"id": key, **row} for key, row in fm.items() if isinstance(row, Mapping)
        ]
    elif isinstance(fm, list):
        entries = [row for row in fm if isinstance(row, Mapping)]
    else:
        entries = []
    return [
        TheirRow(
            str(row.get("id", "")),
            Row(
                str(row.get("value") or "").strip(),
                str(row.get("valueType") or DEFAULT_TYPE).upper(),
            ),
        )
        for row in entries
        if str(row.get("typeId", "")).upper() == type_id
    ]


def our_rows(theirs: list[TheirRow], seen: JSON) -> list[TheirRow]:
    """Which of their rows we wrote: those with an id we noted, else equal to what we noted."""
    entries = seen if isinstance(seen, list) else []
    noted = [entry for entry in entries if isinstance(entry, Mapping)]
    ids = {str(entry["id"]) for entry in noted if entry.get("id")}
    here = {row.id for row in theirs}
    # A noted row whose id is gone may have been written anew by a copy of ours; its content tells.
    loose = wanted_rows([entry for entry in noted if str(entry.get("id") or "") not in here])
    return [row for row in theirs if row.id in ids or row.row in loose]


def compare(
    fields: Mapping[str, JSON], item: Mapping[str, Any], seen: Mapping[str, JSON]
) -> tuple[Difference, ...]:
    """Where an item is not as we meant it; other people's rows are no difference."""
    found: list[Difference] = []
    for name, value in fields.items():
        field = BY_NAME.get(name)
        if field is None:
            continue
        if field.kind is Kind.ROWS:
            theirs = their_rows(item, field.theirs)
            wanted = wanted_rows(value)
            present = {row.row for row in theirs}
            left = [row.row for row in our_rows(theirs, seen.get(name)) if row.row not in wanted]
            if left or any(row not in present for row in wanted):
                found.append(Difference(name, [_shown(row) for row in wanted], _all_shown(theirs)))
        elif normal(field, value) != normal(field, item.get(field.theirs)):
            found.append(Difference(name, value, item.get(field.theirs)))
    return tuple(found)


# --- what is sent --------------------------------------------------------------------------------


def to_create(fields: Mapping[str, JSON]) -> dict[str, Any]:
    """The `fields` object of a new contact; empty values are left out."""
    result: dict[str, Any] = {}
    rows: list[dict[str, str]] = []
    for field in FIELDS:
        if field.ours not in fields:
            continue
        value = fields[field.ours]
        if field.kind is Kind.ROWS:
            rows += [_their_row(field, row) for row in wanted_rows(value)]
        elif normal(field, value) is not None:
            result[field.theirs] = _sent(field, value)
    if rows:
        result["fm"] = rows
    return result


def to_update(
    fields: Mapping[str, JSON], item: Mapping[str, Any], seen: Mapping[str, JSON]
) -> dict[str, Any]:
    """Only what differs. A row of ours is changed or removed by its id; others stay untouched."""
    result: dict[str, Any] = {}
    rows: dict[str, dict[str, str]] = {}
    for field in FIELDS:
        if field.ours not in fields:
            continue
        value = fields[field.ours]
        if field.kind is Kind.ROWS:
            theirs = their_rows(item, field.theirs)
            _row_changes(field, wanted_rows(value), theirs, seen.get(field.ours), rows)
        elif normal(field, value) != normal(field, item.get(field.theirs)):
            result[field.theirs] = _sent(field, value)
    if rows:
        result["fm"] = rows
    return result


def _row_changes(
    field: Field,
    wanted: list[Row],
    theirs: list[TheirRow],
    seen: JSON,
    changes: dict[str, dict[str, str]],
) -> None:
    present = {row.row for row in theirs}
    free = [row for row in our_rows(theirs, seen) if row.row not in wanted and row.id]
    for row in wanted:
        if row in present:
            continue
        if free:
            changes[free.pop(0).id] = _their_row(field, row)
        else:
            new = sum(key.startswith("n") for key in changes)
            changes[f"n{new}"] = _their_row(field, row)
    for unwanted in free:
        changes[unwanted.id] = {"typeId": field.theirs, "value": ""}


def cleared(sent: Mapping[str, Any]) -> list[str]:
    """Our names of the plain fields that an update asks to empty."""
    return [
        field.ours
        for field in FIELDS
        if field.kind is not Kind.ROWS and field.theirs in sent and sent[field.theirs] in ("", 0)
    ]


def _sent(field: Field, value: JSON) -> Any:
    plain = normal(field, value)
    if field.kind is Kind.NUMBER:
        return 0 if plain is None else plain
    return "" if plain is None else plain


def _their_row(field: Field, row: Row) -> dict[str, str]:
    return {"typeId": field.theirs, "valueType": row.type, "value": row.value}


# --- what is seen --------------------------------------------------------------------------------


def from_item(item: Mapping[str, Any]) -> dict[str, JSON]:
    """All we know of an item, in our names, for a person to look at."""
    return {
        field.ours: (
            _all_shown(their_rows(item, field.theirs))
            if field.kind is Kind.ROWS
            else normal(field, item.get(field.theirs))
        )
        for field in FIELDS
    }


def seen_values(fields: Mapping[str, JSON], item: Mapping[str, Any]) -> dict[str, JSON]:
    """The fields of ours as they now stand there; of the rows only ours, with their ids."""
    values: dict[str, JSON] = {}
    for name, value in fields.items():
        field = BY_NAME.get(name)
        if field is None:
            continue
        if field.kind is Kind.ROWS:
            values[name] = _noted(wanted_rows(value), their_rows(item, field.theirs))
        else:
            values[name] = normal(field, item.get(field.theirs))
    return values


def _noted(wanted: list[Row], theirs: list[TheirRow]) -> list[JSON]:
    """One entry per wanted row. Of equal rows the newest is ours: the others were there before."""
    ids = {row.row: row.id for row in theirs}
    return [
        {**_shown(row), "id": ids[row]} if ids.get(row) else _shown(row)
        for row in wanted
        if row in ids
    ]


def _shown(row: Row) -> dict[str, JSON]:
    return {"value": row.value, "type": row.type}


def _all_shown(rows: list[TheirRow]) -> list[JSON]:
    return [_shown(row.row) for row in rows]
