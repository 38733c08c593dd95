"""Exact search through indexes only: each column that is asked is led to by the columns its index
begins with, one value each, so that no statistics are needed to choose that index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hub.models import Connection, Mapping, Operation, Tenant
from hub.registry import UnknownIntegration, connector_class

FOUND = 200
"""Most rows of each kind one search word leads to."""
_KEY = re.compile(r"[0-9a-f]{64}")


def number(term: str) -> int | None:
    """The word as a primary key, or None when it cannot be one."""
    return int(term) if term.isascii() and term.isdecimal() and len(term) < 19 else None


def operations(term: str) -> list[int]:
    """The operations a word names: number, reference, key, source id, or id over there."""
    rows = Operation.objects.order_by("-pk").values_list("pk", flat=True)
    found = [pk] if (pk := number(term)) is not None else []
    found += rows.filter(reference=term)[:FOUND]
    if _KEY.fullmatch(term):
        for tenant in Tenant.objects.values_list("pk", flat=True):
            found += rows.filter(tenant_id=tenant, operation_key=term)[:FOUND]
    for connection, object_type in _kinds():
        same = rows.filter(connection_id=connection, object_type=object_type)
        found += same.filter(source_id=term)[:FOUND]
        mapped = _mapped_to(connection, object_type, term)
        if mapped is not None:
            found += same.filter(source_id=mapped[1])[:FOUND]
    return found


def mappings(term: str) -> list[int]:
    """The mappings a word names: source id, or id over there."""
    found: list[int] = []
    for connection, object_type in _kinds():
        mapped = _mapped_to(connection, object_type, term)
        if mapped is not None:
            found.append(mapped[0])
        # The mapping's index has the source system before the id; the entity's operations name it.
        entities = Operation.objects.filter(
            connection_id=connection, object_type=object_type, source_id=term
        ).order_by("-pk")
        for tenant, system in set(entities.values_list("tenant_id", "source_system")[:FOUND]):
            found += Mapping.objects.filter(
                tenant_id=tenant,
                connection_id=connection,
                object_type=object_type,
                source_system=system,
                source_id=term,
            ).values_list("pk", flat=True)
    return found


def _kinds() -> Iterator[tuple[int, str]]:
    """Each connection with each type of object its integration acts on."""
    for pk, label in Connection.objects.values_list("pk", "integration"):
        try:
            declared = connector_class(label)
        except UnknownIntegration:
            continue
        types = declared.object_types
        for kind in sorted({types.get(a, a.partition(".")[0]) for a in declared.actions}):
            yield pk, kind


def _mapped_to(connection: int, object_type: str, remote_ref: str) -> tuple[int, str] | None:
    """Primary key and source id of the mapping to an object there; there is one at most (C6)."""
    rows = Mapping.objects.filter(
        connection_id=connection, object_type=object_type, remote_ref=remote_ref
    )
    return rows.values_list("pk", "source_id").first()
