"""Operations in any state, as the engine itself would have left them, for tests of single moves."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest

from hub import keys, registry, remote
from hub.models import Attempt, Connection, Mapping, Operation, ReviewCase, Tenant
from hub.sql import database_now
from hub.states import LEASABLE, RESTING, State
from tests import harness
from tests.harness.apps import TestRemoteConfig

_NUMBERS = itertools.count(1)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know the tests' own integration (`tests/harness/classes.py`)."""
    installed = registry.integrations()
    mine = TestRemoteConfig("tests.harness", harness)
    monkeypatch.setattr(registry, "integrations", lambda: [*installed, mine])


def tenant(slug: str = "acme") -> Tenant:
    """The tenant of that name."""
    return Tenant.objects.get_or_create(slug=slug, defaults={"name": slug})[0]


def connection(tenant_slug: str = "acme", **more: Any) -> Connection:
    """A connection whose remote is never asked, without rate limits unless given."""
    name = f"crm-{next(_NUMBERS)}"
    values = {"account": name, "base_url": "http://127.0.0.1:9", "limits": {"default": None}}
    return Connection.objects.create(
        tenant=tenant(tenant_slug), name=name, integration="testremote", **{**values, **more}
    )


def mapping(where: Connection, object_type: str = "bp", source_id: str = "1", **more: Any) -> Any:
    """The entity is tied to a remote object."""
    values = {"remote_ref": f"r{source_id}", "updated_at": database_now(), "source_system": "hub"}
    return Mapping.objects.create(
        tenant=where.tenant,
        connection=where,
        object_type=object_type,
        source_id=source_id,
        **{**values, **more},
    )


def ago(seconds: float) -> datetime:
    """So many seconds before the database's now; negative ones lie ahead."""
    return database_now() - timedelta(seconds=seconds)


def values(
    where: Connection,
    state: State | str = State.PENDING,
    action: str = "bp.update",
    source_id: str = "1",
    version: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """The columns of an operation in a state, consistent with every constraint unless `more`
    breaks one.
    """
    state = State(state)
    declared = remote.declared(where, action)
    kind = action.partition(".")[0]
    payload = keys.canonical_payload({"name": "Ann"})
    number = next(_NUMBERS)
    key = keys.operation_key(
        tenant=where.tenant.slug,
        account=where.account,
        source_system="hub",
        object_type=kind,
        source_id=source_id,
        action=action,
        version=version,
        variant=str(number),
    )
    doubt = bool(more.get("maybe_executed", state is State.UNCERTAIN))
    now = database_now()
    found: dict[str, Any] = {
        "tenant": where.tenant,
        "connection": where,
        "source_system": "hub",
        "object_type": kind,
        "source_id": source_id,
        "action": action,
        "version": version,
        "variant": str(number),
        "operation_key": key,
        "remote_key": keys.remote_key(key, 1),
        "reference": keys.entity_reference(
            tenant=where.tenant.slug,
            account=where.account,
            object_type=kind,
            source_system="hub",
            source_id=source_id,
        ),
        "payload": payload,
        "fingerprint": keys.fingerprint(payload),
        "state": state.value,
        "state_since": now,
        "reason_code": "given",
        "reason_text": "As the test wants it.",
        "next_at": now,
        "stream": keys.stream_key(object_type=kind, source_system="hub", source_id=source_id),
        "full_state": declared.is_full_state,
        "yields_ref": declared.creates,
        "created_at": now,
        "maybe_executed": doubt,
        "stream_busy": state in LEASABLE
        or (doubt and state not in (State.CONFIRMED, State.FAILED, State.DISCARDED)),
        "lease_token": 0 if state is State.PENDING else 1,
    }
    if state in (State.RUNNING, State.SENT):
        found |= {"lease_until": ago(-60), "lease_owner": "w", "attempts": 1}
    if state not in (State.PENDING, State.RUNNING) and (doubt or state is not State.DISCARDED):
        found |= {"first_sent_at": ago(5), "sent_at": ago(5)}
    if doubt:
        found |= {"last_byte_at": ago(4)}
    if state is State.ACCEPTED:
        found |= {"job": "j1"}
    if state is State.CONFIRMED:
        found |= {"confirmed_at": now, "remote_ref": f"r{source_id}"}
    if state is State.RETRY:
        found |= {"retry_since": now}
    return {**found, **more}


def operation(where: Connection, state: State | str = State.PENDING, **more: Any) -> Operation:
    """An operation in a state, with its open attempt when leased and its case when at rest."""
    row = Operation.objects.create(**values(where, state, **more))
    if row.lease_until is not None:
        purpose = {"accepted": "poll", "uncertain": "consult"}.get(row.state, "send")
        Attempt.objects.create(
            operation=row,
            token=row.lease_token,
            purpose=purpose,
            worker="w",
            claimed_at=database_now(),
        )
    if State(row.state) in RESTING:
        ReviewCase.objects.create(
            tenant=where.tenant,
            connection=where,
            operation=row,
            subject="operation",
            subject_id=row.pk,
            reason_code="given",
            summary="As the test wants it.",
            opened_at=database_now(),
        )
    return row
