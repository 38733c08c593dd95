"""Rows for tests that judge them and send nothing: connections, operations, heartbeats."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from hub import gate, outbox
from hub.models import Connection, Heartbeat, Operation, Tenant


def connection(name: str = "crm", integration: str = "probe", **more: Any) -> Connection:
    """A connection with an open gate; its remote is never reached."""
    tenant = Tenant.objects.get_or_create(slug="acme", defaults={"name": "Acme"})[0]
    row = Connection.objects.create(
        tenant=tenant,
        name=name,
        integration=integration,
        account=name,
        base_url="http://127.0.0.1:9",
        **more,
    )
    gate.ensure(row)
    return row


def pending(where: Connection, source_id: str = "1", *, due_for: float = 0.0) -> Operation:
    """A pending operation that has been due for so many seconds."""
    done = outbox.submit(
        where, "probe.echo", source_id=source_id, version=1, fields={"nonce": source_id}
    )
    Operation.objects.filter(pk=done.operation_id).update(
        next_at=timezone.now() - timedelta(seconds=due_for)
    )
    return Operation.objects.get(pk=done.operation_id)


def heartbeat(drain: str = "host-1-a", *, age: float = 0.0, **more: Any) -> Heartbeat:
    """A heartbeat of so many seconds ago."""
    at = timezone.now() - timedelta(seconds=age)
    values: dict[str, Any] = {"host": "host", "pid": 1, "epoch": 1, "started_at": at, "beat_at": at}
    return Heartbeat.objects.create(drain=drain, **{**values, **more})
