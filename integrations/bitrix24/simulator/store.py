"""The records of one portal: what is stored, what a save changes, what a list finds.

Nothing here knows HTTP or faults. There is no uniqueness on external identifiers, a save writes
only differences, and deleted records are gone: the properties an integration has to live with.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import RestError
from .fields import EntityType, Kind, entity_type, moment, stored

Values = dict[str, Any]
ROBOT_USER = 1


@dataclass(slots=True)
class Item:
    """One record. ``rows`` are its multi-field rows by id; ``visible_at`` is for index lag."""

    id: int
    values: Values
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    created_at: float = 0.0
    visible_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """What a save really did: the record afterwards, and only what is different now."""

    item: Item
    fields: Values


class Table:
    """All records of one type in one portal, in id order, found by reference without a scan."""

    def __init__(self, kind: EntityType) -> None:
        self.kind = kind
        self.items: dict[int, Item] = {}
        self.ids: list[int] = []
        self.by_reference: dict[str, set[int]] = defaultdict(set)

    def put(self, item: Item) -> None:
        """Add a record; ids only grow."""
        self.items[item.id] = item
        self.ids.append(item.id)
        self._index(item)

    def remove(self, item: Item) -> None:
        """Forget a record."""
        del self.items[item.id]
        self._unindex(item)
        if len(self.ids) > 2 * len(self.items) + 100:
            self.ids = list(self.items)

    def assign(self, item: Item, changed: Values) -> None:
        """Set values and keep the index true."""
        self._unindex(item)
        item.values.update(changed)
        self._index(item)

    def get(self, item_id: Any) -> Item:
        """The record; raises the vendor's 400 ``NOT_FOUND``."""
        try:
            return self.items[int(item_id)]
        except (KeyError, ValueError, TypeError):
            raise RestError(400, "NOT_FOUND", "Element not found") from None

    def after(self, last_id: int) -> Iterator[Item]:
        """Records with a higher id, ascending."""
        for item_id in self.ids[bisect_right(self.ids, last_id) :]:
            if item_id in self.items:
                yield self.items[item_id]

    def _index(self, item: Item) -> None:
        reference = item.values.get(self.kind.reference_field)
        if reference:
            self.by_reference[str(reference).casefold()].add(item.id)

    def _unindex(self, item: Item) -> None:
        reference = item.values.get(self.kind.reference_field)
        if reference:
            self.by_reference[str(reference).casefold()].discard(item.id)


class Store:
    """One portal's data. ``clock`` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.tables: dict[int, Table] = {}
        self.next_id = 1
        self.next_row = 1

    def table(self, kind: EntityType) -> Table:
        """The table of that type, made when first asked for."""
        if kind.number not in self.tables:
            self.tables[kind.number] = Table(kind)
        return self.tables[kind.number]

    def add(self, kind: EntityType, fields: Mapping[str, Any], *, lag: float = 0.0) -> Change:
        """Create a record; it shows up in lists after ``lag`` seconds."""
        values = {
            name: stored(name, kind.fields[name], value)
            for name, value in fields.items()
            if name != "fm" and name in kind.fields and not kind.fields[name].read_only
        }
        now = self.clock()
        item = Item(self.next_id, values, created_at=now, visible_at=now + lag)
        said = dict(values)
        if "fm" in kind.fields and fields.get("fm"):
            self._apply_rows(item, fields["fm"])
            said["fm"] = [dict(row) for row in item.rows.values()]
        self.next_id += 1
        values.setdefault("opened", "N")
        values.setdefault("assignedById", ROBOT_USER)
        values["createdTime"] = values["updatedTime"] = moment(now)
        values["lastActivityTime"] = values["createdTime"]
        values["createdBy"] = values["updatedBy"] = ROBOT_USER
        self.table(kind).put(item)
        return Change(item, said)

    def update(self, kind: EntityType, item_id: Any, fields: Mapping[str, Any]) -> Change:
        """Save only what differs; ``Change.fields`` is empty when nothing did."""
        table = self.table(kind)
        item = table.get(item_id)
        changed: Values = {}
        for name, value in fields.items():
            known = kind.fields.get(name)
            if known is None or known.read_only or known.kind is Kind.MULTIFIELD:
                continue
            new = stored(name, known, value)
            if new != item.values.get(name):
                changed[name] = new
        said = dict(changed)
        if "fm" in kind.fields and fields.get("fm"):
            rows = self._apply_rows(item, fields["fm"])
            if rows:
                said["fm"] = rows
        if said:
            changed["updatedTime"] = moment(self.clock())
            changed["updatedBy"] = ROBOT_USER
            table.assign(item, changed)
        return Change(item, said)

    def delete(self, kind: EntityType, item_id: Any) -> Item:
        """Remove a record and return what it was."""
        table = self.table(kind)
        item = table.get(item_id)
        table.remove(item)
        return item

    def _apply_rows(self, item: Item, given: Any) -> list[Values]:
        """Change multi-field rows by id, add the others; rows that are not named stay."""
        pairs: Iterable[tuple[str, Any]]
        if isinstance(given, list):
            pairs = [(f"n{number}", row) for number, row in enumerate(given)]
        elif isinstance(given, dict):
            pairs = list(given.items())
        else:
            raise RestError(400, "CRM_FIELD_ERROR_VALUE_NOT_VALID", "Invalid value of field fm")
        if not all(isinstance(row, dict) for _, row in pairs):
            raise RestError(400, "CRM_FIELD_ERROR_VALUE_NOT_VALID", "Invalid value of field fm")
        said: list[Values] = []
        for key, row in pairs:
            named = key if str(key).isdigit() else row.get("id")
            row_id = int(named) if str(named).isdigit() else 0
            value = row.get("value")
            if row_id in item.rows:
                said += self._change_row(item, row_id, row)
            elif value not in (None, "") and not str(key).isdigit():
                new_id = self.next_row
                new: Values = {
                    "id": new_id,
                    "typeId": str(row.get("typeId") or "PHONE").upper(),
                    "valueType": str(row.get("valueType") or "WORK").upper(),
                    "value": str(value),
                }
                self.next_row += 1
                item.rows[new_id] = new
                said.append(dict(new))
        return said

    @staticmethod
    def _change_row(item: Item, row_id: int, row: Mapping[str, Any]) -> list[Values]:
        old = item.rows[row_id]
        if "value" in row and row["value"] in (None, ""):
            del item.rows[row_id]
            return [{**old, "value": ""}]
        new = dict(old)
        for name in ("valueType", "value"):
            if row.get(name) is not None:
                new[name] = str(row[name])
        if new == old:
            return []
        item.rows[row_id] = new
        return [dict(new)]

    def emptied(self) -> Store:
        """A store without a record that goes on counting where this one is."""
        store = Store(self.clock)
        store.next_id, store.next_row = self.next_id, self.next_row
        return store

    def dump(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {
            "next_id": self.next_id,
            "next_row": self.next_row,
            "tables": {
                str(number): [
                    [item.id, item.values, list(item.rows.values()), item.created_at]
                    for item in table.items.values()
                ]
                for number, table in self.tables.items()
            },
        }

    def load(self, dumped: Mapping[str, Any]) -> None:
        """The opposite of :meth:`dump`, into an empty store."""
        self.next_id = dumped["next_id"]
        self.next_row = dumped["next_row"]
        for number, rows in dumped["tables"].items():
            table = self.table(entity_type(int(number)))
            for item_id, values, multi, created_at in rows:
                by_id = {row["id"]: row for row in multi}
                table.put(Item(item_id, values, by_id, created_at, created_at))


def shown(kind: EntityType, item: Item, select: Iterable[str] | None = None) -> Values:
    """A record as ``crm.item.*`` answers it.

    ``select=None`` is the whole record. Otherwise the named fields; ``fm`` comes only with ``*``.
    """
    names = None if select is None else set(select)
    everything = names is None or "*" in names
    result: Values = {"id": item.id}
    wanted = kind.fields if everything else [name for name in kind.fields if name in (names or ())]
    for name in wanted:
        if name not in ("id", "fm"):
            result[name] = value_of(item, name)
    if everything and "fm" in kind.fields:
        result["fm"] = [dict(row) for row in item.rows.values()]
    result["entityTypeId"] = kind.number
    return result


def value_of(item: Item, name: str) -> Any:
    """One field of a record, computed ones included."""
    if name == "id":
        return item.id
    if name in ("phone", "email"):
        return next(
            (row["value"] for row in item.rows.values() if row["typeId"] == name.upper()), None
        )
    if name in ("hasPhone", "hasEmail"):
        wanted = name[3:].upper()
        return "Y" if any(row["typeId"] == wanted for row in item.rows.values()) else "N"
    return item.values.get(name)
