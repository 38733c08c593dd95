"""The older methods' names and types: ``LAST_NAME``, and nearly everything a string."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import EntityType, camel, classic
from .store import Item, value_of


def from_classic(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Classic fields in the names of ``crm.item.*``; multi-fields become ``fm``."""
    result: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for name, value in fields.items():
        new = camel(str(name))
        if not new.startswith("fm:"):
            result[new] = value
            continue
        given = value.values() if isinstance(value, Mapping) else value
        for row in given if isinstance(given, list) or isinstance(value, Mapping) else []:
            if isinstance(row, Mapping):
                key = str(row["ID"]) if str(row.get("ID", "")).isdigit() else f"n{len(rows)}"
                rows[key] = {
                    "typeId": new[3:],
                    "value": row.get("VALUE"),
                    "valueType": row.get("VALUE_TYPE"),
                }
    return result | ({"fm": rows} if rows else {})


def filter_from_classic(kind: EntityType, filters: Any) -> dict[str, Any]:
    """A classic filter in new names; an unknown key is ignored, as old methods do."""
    result: dict[str, Any] = {}
    for key, value in filters.items() if isinstance(filters, Mapping) else ():
        bare = str(key).lstrip("=!<>@%")
        name = camel(bare)
        name = name[3:].lower() if name.startswith("fm:") else name
        if name in kind.fields:
            result[str(key)[: len(str(key)) - len(bare)] + name] = value
    return result


def to_classic(kind: EntityType, item: Item, select: list[str]) -> dict[str, Any]:
    """A record as classic methods answer it; multi-fields only where ``select`` names them."""
    result: dict[str, Any] = {"ID": str(item.id)}
    for name in kind.fields:
        old = classic(name)
        if name not in ("fm", "phone", "email") and ("*" in select or old in select):
            value = value_of(item, name)
            if value is not None and not isinstance(value, str):
                value = f"{value:.2f}" if isinstance(value, float) else str(value)
            result[old] = value
    for typed in ("PHONE", "EMAIL", "WEB", "IM"):
        rows = [row for row in item.rows.values() if row["typeId"] == typed]
        if typed in select and rows:
            result[typed] = [
                {
                    "ID": str(row["id"]),
                    "VALUE_TYPE": row["valueType"],
                    "VALUE": row["value"],
                    "TYPE_ID": typed,
                }
                for row in rows
            ]
    return result
