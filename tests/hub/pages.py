"""What the tests of the pages share: rows of every kind, and one of each state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.utils import timezone

from hub import credentials, gate, outbox
from hub.models import (
    Attempt,
    Candidate,
    Connection,
    Decision,
    Dependency,
    Evidence,
    Heartbeat,
    Installation,
    Mapping,
    Operation,
    ReviewCase,
    Tenant,
)
from hub.models.operation import STATE_LABELS
from hub.states import State

CANARY = "canary-5ecr3t-of-the-webhook"
FIELDS = {"first_name": "Zenobia", "last_name": "Okafor"}


def person(name: str = "ana", *permissions: str, root: bool = False) -> User:
    """Somebody who may enter the admin, with these permissions only."""
    user = User.objects.create_user(name, password="x", is_staff=True, is_superuser=root)
    for permission in permissions:
        user.user_permissions.add(Permission.objects.get(codename=permission))
    return User.objects.get(pk=user.pk)


def connection(name: str = "portal", **columns: Any) -> Connection:
    """A connection with a secret that must never be seen, and its gate."""
    Installation.objects.get_or_create(pk=1)
    tenant, _ = Tenant.objects.get_or_create(slug="acme", defaults={"name": "Acme"})
    values: dict[str, Any] = {
        "tenant": tenant,
        "integration": "bitrix24",
        "account": f"{name}.example.com",
        "base_url": f"https://{name}.example.com",
        "secrets": credentials.seal({"webhook": f"1/{CANARY}"}),
        **columns,
    }
    row = Connection.objects.create(name=name, **values)
    gate.ensure(row)
    return row


def operation(of: Connection, source_id: str = "7", **columns: Any) -> Operation:
    """A submitted create, put into the state that `columns` say."""
    done = outbox.submit(of, "contact.create", source_id=source_id, version=1, fields=FIELDS)
    if columns:
        Operation.objects.filter(pk=done.operation_id).update(**columns)
    return Operation.objects.get(pk=done.operation_id)


def in_state(of: Connection, state: State) -> Operation:
    """An operation in a state, with what the database's constraints ask of it."""
    now = timezone.now()
    columns: dict[str, Any] = {"state": state.value, "state_since": now - timedelta(minutes=5)}
    if state in (State.RUNNING, State.SENT):
        columns |= {"lease_until": now + timedelta(minutes=1), "lease_owner": "worker-1"}
    if state in (State.RUNNING, State.SENT, State.UNCERTAIN, State.ACCEPTED):
        columns |= {"stream_busy": True}
    if state in (State.UNCERTAIN, State.REVIEW):
        columns |= {"maybe_executed": True, "stream_busy": True, "reason_code": "unknown"}
    if state is State.CONFIRMED:
        columns |= {"confirmed_at": now, "remote_ref": "41"}
    return operation(of, f"in-{state.value}", **columns)


def one_of_each(of: Connection) -> dict[State, Operation]:
    """One operation in each state, and a row of every other kind around the one in review."""
    found = {State(state): in_state(of, State(state)) for state, _label in STATE_LABELS}
    row, now = found[State.REVIEW], timezone.now()
    Attempt.objects.create(
        operation=row, token=1, purpose="send", worker="worker-1", claimed_at=now, marked_at=now,
        left="maybe", settled_at=now, outcome="U", verdict="The connection broke.", seen='{"a": 1}',
    )  # fmt: skip
    Evidence.objects.create(operation=row, at=now, actor="sweep", kind="sweep", text="Cleared up.")
    case = ReviewCase.objects.create(
        tenant=of.tenant, connection=of, operation=row, subject="operation", subject_id=row.pk,
        reason_code="found_different", summary="One looks like it.", assumption="A3",
        advice="link", opened_at=now,
    )  # fmt: skip
    Candidate.objects.create(
        case=case, remote_ref="6043", reference=row.reference, seen_at=now,
        fields='{"first_name": "Zenobia", "last_name": "Other"}',
        differences='[{"field": "last_name", "ours": "Okafor", "theirs": "Other"}]',
    )  # fmt: skip
    Decision.objects.create(
        case=case, operation=row, action="look_again", by_name="luis", reason="To be sure",
        at=now, done=True, result="It is looked up at once.",
    )  # fmt: skip
    Mapping.objects.create(
        tenant=of.tenant, connection=of, object_type="contact", source_system="hub",
        source_id="in-confirmed", remote_ref="41", updated_at=now,
    )  # fmt: skip
    Dependency.objects.create(child=found[State.PENDING], parent=row)
    Heartbeat.objects.create(
        drain="drain-1", host="here", pid=1, epoch=1, started_at=now, beat_at=now
    )
    return found
