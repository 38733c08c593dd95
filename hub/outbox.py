"""`submit()`: a change or command becomes an operation, in the transaction of whoever caused it.

The row is the outbox: if the caller's transaction rolls back, there was never an operation.
Uniqueness is C1's; create or update, coalescing and staleness are decided here (protocol §7, §12,
§13).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection as database
from django.db import transaction

from hub import bell, cases, keys, moves, remote
from hub.contract import BadPayload, Kind, Read, Write
from hub.models import Connection, Installation, Operation
from hub.models.review import Subject
from hub.registry import UnknownAction, UnknownIntegration, effective
from hub.sql import database_now, is_postgres, moment, rows, stamp
from hub.states import State


class Impossible(Exception):
    """A command that cannot be right: a create of what exists, an update of what does not (protocol
    §13).

    `operation_id` is the row that is in the way, if one is.
    """

    def __init__(self, text: str, operation_id: int | None = None) -> None:
        super().__init__(text)
        self.operation_id = operation_id


class Drift(Exception):
    """The same intent was submitted before with another payload; nothing was inserted (protocol
    §7).
    """

    def __init__(self, operation_id: int) -> None:
        super().__init__(
            f"Operation {operation_id} is the same intent with another payload. Give a changed "
            "payload a new version; a case has been opened."
        )
        self.operation_id = operation_id


@dataclass(frozen=True, slots=True)
class Submitted:
    """The operation that stands for the intent; `fresh` is False for a duplicate."""

    operation_id: int
    fresh: bool
    state: State


@dataclass(frozen=True, slots=True)
class Intent:
    """What was asked for, checked and keyed."""

    connection: Connection
    action: str
    write: Write
    object_type: str
    source_system: str
    source_id: str
    version: int
    variant: str
    key: str
    reference: str
    stream: str
    payload: str
    fingerprint: str
    correlation_id: str


def submit(
    connection: Connection,
    action: str,
    *,
    source_id: str,
    version: int,
    fields: Mapping[str, Any],
    source_system: str = "hub",
    variant: str = "",
    correlation_id: str = "",
    steps: Callable[[str], None] | None = None,
) -> Submitted:
    """Write one operation, or find the one that already stands for this intent.

    Joins the caller's transaction; the workers are rung when it commits. Raises `BadPayload` (bad
    input, the text names the field), `Impossible`, or `Drift`; after `Drift` a case is open once
    the caller's transaction has ended.
    """
    intent = _intent(
        connection, action, source_id, version, fields, source_system, variant, correlation_id
    )
    try:
        with transaction.atomic():
            submitted = _write(intent)
            if steps is not None:
                steps("submit.inserted")
    except Drift as drift:
        _open_drift_case(intent, drift.operation_id)
        raise
    if steps is not None:
        transaction.on_commit(lambda: steps("submit.committed"))
    if submitted.fresh and submitted.state is State.PENDING:
        bell.ring_on_commit()
    return submitted


def _intent(
    connection: Connection,
    action: str,
    source_id: str,
    version: int,
    fields: Mapping[str, Any],
    source_system: str,
    variant: str,
    correlation_id: str,
) -> Intent:
    if connection.retired_at is not None:
        raise BadPayload(f"connection: {connection.name} is retired; nothing more is sent there.")
    try:
        connector = remote.describe(connection)
        declared = effective(connector, action, connection.numbers)
    except (UnknownIntegration, UnknownAction) as error:
        raise BadPayload(f"action: {error}") from None
    if isinstance(declared, Read):
        raise BadPayload(f"action: {action} only reads; there is nothing to submit.")
    keys.check_text("action", action, most=60)
    keys.check_text("source_id", source_id)
    keys.check_text("source_system", source_system, most=60)
    keys.check_text("variant", variant, most=120, empty=True)
    keys.check_text("correlation_id", correlation_id, most=64, empty=True)
    keys.check_version(version)
    # A list of pairs would quietly become an object; whatever is none is for `keys` to refuse.
    fields = dict(fields) if isinstance(fields, Mapping) else fields
    payload = keys.canonical_payload(fields)
    problems = list(connector.validate(action, fields))
    if problems:
        raise BadPayload(" ".join(problems))
    object_type = connector.object_type(action)
    tenant = connection.tenant.slug
    key = keys.operation_key(
        tenant=tenant,
        account=connection.account,
        source_system=source_system,
        object_type=object_type,
        source_id=source_id,
        action=action,
        version=version,
        variant=variant,
    )
    remote_key = keys.remote_key(key, 1)
    reference = (
        keys.entity_reference(
            tenant=tenant,
            account=connection.account,
            object_type=object_type,
            source_system=source_system,
            source_id=source_id,
        )
        if declared.kind is Kind.CREATE
        else remote_key
    )
    return Intent(
        connection=connection,
        action=action,
        write=declared,
        object_type=object_type,
        source_system=source_system,
        source_id=source_id,
        version=version,
        variant=variant,
        key=key,
        reference=reference,
        stream=keys.stream_key(
            object_type=object_type, source_system=source_system, source_id=source_id
        ),
        payload=payload,
        fingerprint=keys.fingerprint(payload),
        correlation_id=correlation_id,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """What stands about an intent's entity, all as of one moment."""

    now: datetime
    epoch: int
    operation_id: int | None
    """The newest generation of this very intent."""
    state: str | None
    same_payload: bool
    create_id: int | None
    """A create of the entity that is under way, or in doubt."""
    remote_ref: str | None
    """The object the entity is tied to, unless it was deleted."""
    stale: bool
    """A newer version has been sent."""
    older: bool
    """An older full state waits that may be needless now."""


# One statement, because a caller waits for it with its own transaction open.
_LOOK = """
SELECT {now}, (SELECT epoch FROM hub_installation WHERE id = 1), k.id, k.state,
  EXISTS (SELECT 1 FROM hub_operation s WHERE s.tenant_id = %(tenant)s
    AND s.operation_key = %(key)s AND s.fingerprint = %(fingerprint)s),
  (SELECT c.id FROM hub_operation c WHERE c.connection_id = %(connection)s
    AND c.stream = %(stream)s AND c.yields_ref AND c.state NOT IN ('confirmed', 'discarded')
    AND (c.state IN ('pending', 'running', 'sent', 'uncertain', 'accepted', 'retry')
      OR (c.state = 'review' AND c.maybe_executed)) ORDER BY c.version DESC, c.id DESC LIMIT 1),
  (SELECT m.remote_ref FROM hub_mapping m WHERE m.tenant_id = %(tenant)s
    AND m.connection_id = %(connection)s AND m.object_type = %(object_type)s
    AND m.source_system = %(source_system)s AND m.source_id = %(source_id)s
    AND m.deleted_at IS NULL),
  EXISTS (SELECT 1 FROM hub_operation n WHERE n.connection_id = %(connection)s
    AND n.stream = %(stream)s AND n.first_sent_at IS NOT NULL AND n.version > %(version)s),
  EXISTS (SELECT 1 FROM hub_operation o WHERE o.connection_id = %(connection)s
    AND o.stream = %(stream)s AND o.state NOT IN ('confirmed', 'discarded')
    AND o.version < %(version)s)
FROM (SELECT 1) AS one LEFT JOIN (SELECT id, state FROM hub_operation
  WHERE tenant_id = %(tenant)s AND operation_key = %(key)s
  ORDER BY generation DESC LIMIT 1) AS k ON 1 = 1
"""


def _look(intent: Intent) -> _Known:
    given = {
        "tenant": intent.connection.tenant_id,
        "connection": intent.connection.pk,
        "key": intent.key,
        "fingerprint": intent.fingerprint,
        "stream": intent.stream,
        "object_type": intent.object_type,
        "source_system": intent.source_system,
        "source_id": intent.source_id,
        "version": intent.version,
    }
    now = "clock_timestamp()"
    if not is_postgres():
        now, given["now"] = "%(now)s", stamp(database_now())
    (row,) = rows(_LOOK.format(now=now), given)
    at = moment(row[0])
    assert at is not None  # noqa: S101 - a clock always tells
    return _Known(
        now=at,
        epoch=row[1] or 1,
        operation_id=row[2],
        state=row[3],
        same_payload=bool(row[4]),
        create_id=row[5],
        remote_ref=row[6],
        stale=bool(row[7]),
        older=bool(row[8]),
    )


def _write(intent: Intent) -> Submitted:
    found = _look(intent)
    known = _submitted_before(found)
    if known is not None:
        return known
    try:
        _refuse_impossible(intent, found)
    except Impossible:
        # What is in the way may be this very intent, committed since we looked (F2).
        known = _submitted_before(_look(intent))
        if known is None:
            raise
        return known
    stale = intent.write.is_full_state and found.stale
    inserted = insert(intent, found.now, epoch=found.epoch, stale=stale)
    if inserted is None:
        known = _submitted_before(_look(intent))
        if known is None:
            raise RuntimeError(f"operation key {intent.key} is taken by a row that cannot be read")
        return known
    if intent.write.is_full_state and not stale and found.older:
        _coalesce(intent, inserted, found.now)
    return Submitted(inserted, True, State.DISCARDED if stale else State.PENDING)


def _submitted_before(found: _Known) -> Submitted | None:
    """The newest generation of the intent, if it was submitted before with this payload; raises
    `Drift`.
    """
    if found.operation_id is None or found.state is None:
        return None
    if not found.same_payload:
        raise Drift(found.operation_id)
    return Submitted(found.operation_id, False, State(found.state))


def _refuse_impossible(intent: Intent, found: _Known) -> None:
    """A create of what exists, or a change of what does not, is refused and told which row is in
    the way.
    """
    what = f"{intent.object_type} {intent.source_id}"
    match intent.write.kind:
        case Kind.COMMAND:
            return
        case Kind.CREATE if found.remote_ref is not None:
            raise Impossible(
                f"{what} already exists as {found.remote_ref}: submit an update, not a create."
            )
        case Kind.CREATE if found.create_id is not None:
            create = Operation.objects.get(pk=found.create_id)
            raise Impossible(
                f"{what} is already being created by operation {create.pk} "
                f"(version {create.version}, {create.state}): submit an update, which will follow "
                "it.",
                create.pk,
            )
        case Kind.UPDATE | Kind.DELETE if found.remote_ref is None and found.create_id is None:
            raise Impossible(
                f"{what} is not known there, and no create of it is under way: submit a create "
                "first."
            )


_INSERT = """
INSERT INTO hub_operation (tenant_id, connection_id, source_system, object_type, source_id, action,
version, variant,
  operation_key, generation, remote_key, reference, payload, payload_schema, fingerprint, state,
  state_since, reason_code, reason_text, next_at, parked, lapses, attempts, repeats, looks,
  lease_token, lease_owner, request_digest, maybe_executed, stream, stream_busy, full_state,
  yields_ref, doubt_lifted, remote_ref, remote_version, job, supersedes_id, created_at,
  correlation_id, epoch, restored)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 1, %s, %s, %s, %s, %s, %s, {false}, 0,
0, 0, 0, 0, '',
  '', {false}, %s, {false}, %s, %s, %s, '', '', '', %s, %s, %s, %s, {false})
ON CONFLICT (tenant_id, operation_key, generation) DO NOTHING RETURNING id
"""


def insert(
    intent: Intent,
    now: datetime,
    *,
    epoch: int = 0,
    generation: int = 1,
    stale: bool = False,
    supersedes: int | None = None,
    doubt_lifted: bool = False,
) -> int | None:
    """Insert the row; its id, or None when C1 says that it is there already. `epoch` is read when
    it is not given."""
    epoch = epoch or Installation.objects.values_list("epoch", flat=True).filter(pk=1).first() or 1
    at = stamp(now)
    found = rows(
        _INSERT.format(false="false" if database.vendor == "postgresql" else "0"),
        [
            intent.connection.tenant_id,
            intent.connection.pk,
            intent.source_system,
            intent.object_type,
            intent.source_id,
            intent.action,
            intent.version,
            intent.variant,
            intent.key,
            generation,
            keys.remote_key(intent.key, generation),
            intent.reference
            if intent.write.kind is Kind.CREATE
            else keys.remote_key(intent.key, generation),
            intent.payload,
            intent.fingerprint,
            (State.DISCARDED if stale else State.PENDING).value,
            at,
            "stale" if stale else "",
            "A newer version had been sent before this one arrived." if stale else "",
            at,
            intent.stream,
            intent.write.is_full_state,
            intent.write.creates,
            doubt_lifted,
            supersedes,
            at,
            intent.correlation_id,
            epoch,
        ],
    )
    return found[0][0] if found else None


def _coalesce(intent: Intent, newer: int, now: datetime) -> None:
    """Older full states that have not gone anywhere are no longer wanted (row 18, §13)."""
    found = rows(
        """UPDATE hub_operation SET state = 'discarded', state_since = %s, reason_code =
        'superseded',
          reason_text = %s, parked = %s
        WHERE connection_id = %s AND stream = %s AND action = %s AND variant = %s AND full_state
          AND state IN ('pending', 'retry') AND NOT maybe_executed AND version < %s RETURNING id""",
        [
            stamp(now),
            f"Operation {newer} carries a newer full state.",
            False,
            intent.connection.pk,
            intent.stream,
            intent.action,
            intent.variant,
            intent.version,
        ],
    )
    if found:
        moves.unpark([row[0] for row in found])


def replace(operation_id: int, action: str, write: Write, now: datetime) -> int | None:
    """In the transaction that discarded an operation as superseded: an operation of the same
    version and state with the other action takes its place (§13); its id, or None when such a one
    exists already."""
    old = Operation.objects.select_related("connection__tenant").get(pk=operation_id)
    tenant, account = old.connection.tenant.slug, old.connection.account
    key = keys.operation_key(
        tenant=tenant,
        account=account,
        source_system=old.source_system,
        object_type=old.object_type,
        source_id=old.source_id,
        action=action,
        version=old.version,
        variant=old.variant,
    )
    intent = Intent(
        connection=old.connection,
        action=action,
        write=write,
        object_type=old.object_type,
        source_system=old.source_system,
        source_id=old.source_id,
        version=old.version,
        variant=old.variant,
        key=key,
        reference=keys.entity_reference(
            tenant=tenant,
            account=account,
            object_type=old.object_type,
            source_system=old.source_system,
            source_id=old.source_id,
        ),
        stream=old.stream,
        payload=old.payload,
        fingerprint=old.fingerprint,
        correlation_id=old.correlation_id,
    )
    newest = (
        Operation.objects.filter(tenant_id=old.tenant_id, operation_key=key)
        .order_by("-generation")
        .values_list("generation", flat=True)
        .first()
    )
    return insert(intent, now, generation=(newest or 0) + 1, supersedes=operation_id)


def _open_drift_case(intent: Intent, operation_id: int) -> None:
    """Open the case after the caller's transaction has ended: written inside, it would vanish with
    the rollback.
    """

    def write() -> None:
        cases.open_case(
            Subject.DRIFT,
            operation_id,
            tenant_id=intent.connection.tenant_id,
            connection_id=intent.connection.pk,
            operation_id=operation_id,
            reason_code="drift",
            summary=(
                f"{intent.action} of {intent.object_type} {intent.source_id}, "
                f"version {intent.version}, was submitted again with another payload. "
                "Nothing was sent for it."
            ),
            advice="correct",
        )
        cases.keep_submitted(operation_id, intent.payload)

    def elsewhere() -> None:
        try:
            write()
        finally:
            database.close()

    if not database.in_atomic_block:
        write()
        return
    # A connection of its own: on SQLite it waits for the caller's end, on PostgreSQL it need not.
    # Not a daemon, so that a process that ends right now still writes it.
    threading.Thread(target=elsewhere, name="drift-case").start()
