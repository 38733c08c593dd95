"""Exact search through indexes only: each column that is asked is led to by the columns its index
begins with.
"""

from __future__ import annotations

from hub.models import Connection, Mapping, Operation
from hub.registry import UnknownIntegration, integrations

FOUND = 200
"""Most rows of each kind one search word leads to."""


def number(term: str) -> int | None:
    """The word as a primary key, or None when it cannot be one."""
    return int(term) if term.isascii() and term.isdecimal() and len(term) < 19 else None


def object_types() -> list[str]:
    """The types of object that installed integrations act on."""
    names: set[str] = set()
    for config in integrations():
        try:
            declared = config.connector_class()
        except UnknownIntegration:
            continue
        for action in declared.actions:
            names.add(declared.object_types.get(action, action.partition(".")[0]))
    return sorted(names)


def operations(term: str) -> list[int]:
    """The operations a word names: number, reference, key, source id, or id over there."""
    rows = Operation.objects.order_by("-pk").values_list("pk", flat=True)
    connections = dict(Connection.objects.values_list("pk", "tenant_id"))
    types = object_types()
    found = [pk] if (pk := number(term)) is not None else []
    found += rows.filter(reference=term)[:FOUND]
    found += rows.filter(tenant_id__in=set(connections.values()), operation_key=term)[:FOUND]
    of_entity = rows.filter(connection_id__in=list(connections), object_type__in=types)
    found += of_entity.filter(source_id=term)[:FOUND]
    for one in _mapped_to(term, list(connections), types)[:20]:
        same = rows.filter(connection_id=one.connection_id, object_type=one.object_type)
        found += same.filter(source_id=one.source_id)[:FOUND]
    return found


def mappings(term: str) -> list[int]:
    """The mappings a word names: source id, or id over there."""
    connections = dict(Connection.objects.values_list("pk", "tenant_id"))
    types = object_types()
    found = [one.pk for one in _mapped_to(term, list(connections), types)]
    # The mapping's index has the source system before the id; the entity's operations name it.
    entities = (
        Operation.objects.filter(
            connection_id__in=list(connections), object_type__in=types, source_id=term
        )
        .order_by("-pk")
        .values_list("tenant_id", "connection_id", "object_type", "source_system")[:FOUND]
    )
    for tenant_id, connection_id, object_type, source_system in set(entities):
        found += Mapping.objects.filter(
            tenant_id=tenant_id,
            connection_id=connection_id,
            object_type=object_type,
            source_system=source_system,
            source_id=term,
        ).values_list("pk", flat=True)
    return found


def _mapped_to(term: str, connections: list[int], types: list[str]) -> list[Mapping]:
    return list(
        Mapping.objects.filter(
            connection_id__in=connections, object_type__in=types, remote_ref=term
        ).defer("values")[:FOUND]
    )
