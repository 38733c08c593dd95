"""The one guarded function that moves operations, and the marker.

Every move is a conditional update whose `WHERE` names the old state and the token (protocol §5); an
operation that is not in the returned set is no longer the caller's. `settle` serves a worker's
batch, a sweep and a person alike: one statement moves many operations, closes their attempts and
writes their mappings; what is rare (cases, candidates) follows row by row in the same transaction.
A batch that fails is for the caller to try again one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection
from django.utils import timezone

from hub.contract import Kind
from hub.policy import Verdict
from hub.sql import as_json, each_row, is_postgres, later, marks, named, rows, stamp
from hub.states import Actor, Purpose, State, allowed


class MappingTaken(Exception):
    """A confirmation would tie an entity to another remote object than the one it is tied to."""


@dataclass(slots=True)
class Subject:
    """What a move has to know of an operation; it cannot have changed since its token was read."""

    id: int
    token: int
    tenant_id: int
    connection_id: int
    state: State
    object_type: str
    source_system: str
    source_id: str
    action: str
    version: int
    attempts: int
    repeats: int
    lapses: int
    looks: int
    doubt: bool
    stream: str
    yields_ref: bool
    remote_ref: str = ""
    job: str = ""
    reference: str = ""


@dataclass(slots=True)
class Tried:
    """What to write into the attempt that ends here."""

    purpose: Purpose
    left: str = ""
    duration_ms: int | None = None
    remote_request_id: str = ""
    seen: str = ""


@dataclass(slots=True)
class Settlement:
    """One move to be made. Times are seconds from now; negative ones lie in the past."""

    subject: Subject
    verdict: Verdict
    actor: Actor
    tried: Tried | None = None
    last_byte: float | None = None
    """When our bytes can last have left, seconds from now; None: no new attempt of unknown fate."""
    look_took: float = 0.0
    kind: Kind = Kind.COMMAND
    alive: float | None = None
    """How long a repeat by key may still be claimed; None: no key has to live."""
    token_step: int = 0
    lapsed: bool = False
    """Only if the lease has run out at this very moment (sweep)."""
    remote_ref: str = ""
    who: str = ""
    after: State = field(init=False)

    def __post_init__(self) -> None:
        self.after = self.verdict.state
        if not allowed(self.subject.state, self.after, self.actor) and not (
            self.subject.state == self.after
        ):
            raise ValueError(
                f"operation {self.subject.id}: {self.actor} may not move "
                f"{self.subject.state} to {self.after}"
            )


_COLUMNS = (
    "id bigint, token bigint, bef text, aft text, code text, txt text, delay float8, "
    "doubt boolean, busy boolean, "
    "attempts integer, repeats integer, lapses integer, looks integer, hold float8, last float8, "
    "keep_absent boolean, absent float8, alive float8, ref text, rver text, job text, "
    "step integer, lapsed boolean, "
    "lift boolean, tried boolean, atok bigint, outcome text, lft text, err text, status integer, "
    "rid text, ms integer, seen text, "
    "map text, ten bigint, con bigint, otype text, sys text, sid text, ver bigint, vals text"
)


def _row(move: Settlement) -> dict[str, Any]:
    s, v = move.subject, move.verdict
    done = v.done
    ref = move.remote_ref or (done.remote_ref if done is not None else "") or s.remote_ref
    confirmed = move.after is State.CONFIRMED
    attempts = s.attempts
    if (
        not v.costs_attempt
        and move.tried is not None
        and move.tried.purpose is Purpose.SEND
        and attempts > 0
    ):
        attempts -= 1
    looked = move.after is s.state and move.after in (State.UNCERTAIN, State.ACCEPTED)
    map_kind = ""
    if confirmed and move.kind is Kind.DELETE:
        map_kind = "gone"
    elif confirmed and ref and move.kind in (Kind.CREATE, Kind.UPDATE):
        map_kind = "set"
    elif confirmed and ref and s.yields_ref:
        map_kind = "set"
    busy = move.after in (State.RUNNING, State.SENT, State.UNCERTAIN, State.ACCEPTED) or (
        v.doubt and move.after in (State.PENDING, State.RETRY, State.REVIEW)
    )
    tried = move.tried
    return {
        "id": s.id,
        "token": s.token,
        "bef": s.state.value,
        "aft": move.after.value,
        "code": v.code,
        "txt": v.text,
        "delay": v.delay,
        "doubt": v.doubt and move.after is not State.CONFIRMED,
        "busy": busy,
        "attempts": attempts,
        "repeats": s.repeats + (1 if v.adds_repeat else 0),
        "lapses": s.lapses + 1 if v.adds_lapse else 0,
        "looks": s.looks + 1 if looked else 0,
        "hold": None if v.hold is None or move.last_byte is None else v.hold + move.last_byte,
        "last": move.last_byte,
        "keep_absent": looked and not v.absent,
        "absent": -move.look_took if v.absent else None,
        "alive": move.alive,
        "ref": ref if confirmed or not s.yields_ref else "",
        "rver": done.remote_version if done is not None else "",
        "job": v.job,
        "step": move.token_step,
        "lapsed": move.lapsed,
        "lift": v.adds_repeat,
        "tried": tried is not None,
        "atok": s.token,
        "outcome": v.outcome.value,
        "lft": tried.left if tried else "",
        "err": v.error.value if v.error else "",
        "status": v.status,
        "rid": tried.remote_request_id if tried else "",
        "ms": tried.duration_ms if tried else None,
        "seen": tried.seen if tried else "",
        "map": map_kind,
        "ten": s.tenant_id,
        "con": s.connection_id,
        "otype": s.object_type,
        "sys": s.source_system,
        "sid": s.source_id,
        "ver": s.version,
        "vals": as_json(dict(done.values)) if done is not None and map_kind == "set" else "{}",
    }


_SETTLE_POSTGRES = f"""
WITH v AS MATERIALIZED (SELECT * FROM json_to_recordset(%s::json) AS v({_COLUMNS})),
u AS (
  UPDATE hub_operation o SET
    state = v.aft,
    state_since = CASE WHEN o.state = v.aft THEN o.state_since
      WHEN v.aft = 'retry' THEN coalesce(o.retry_since, clock_timestamp())
        ELSE clock_timestamp() END,
    retry_since = CASE WHEN v.aft = 'retry' THEN coalesce(o.retry_since, clock_timestamp())
      WHEN v.aft IN ('uncertain', 'pending', 'sent', 'running') THEN o.retry_since ELSE NULL END,
    reason_code = v.code, reason_text = v.txt,
    next_at = clock_timestamp() + v.delay * interval '1 second',
    parked = false, lapses = v.lapses, attempts = v.attempts, repeats = v.repeats, looks = v.looks,
    lease_token = o.lease_token + v.step, lease_owner = '', lease_until = NULL,
    maybe_executed = v.doubt, stream_busy = v.busy,
    hold_until = CASE WHEN v.hold IS NULL THEN o.hold_until
      ELSE greatest(o.hold_until, clock_timestamp() + v.hold * interval '1 second') END,
    last_byte_at = CASE WHEN v.last IS NULL THEN o.last_byte_at
      ELSE clock_timestamp() + v.last * interval '1 second' END,
    absent_since = CASE WHEN v.keep_absent THEN o.absent_since
      WHEN v.absent IS NULL THEN NULL ELSE clock_timestamp() + v.absent * interval '1 second' END,
    repeat_until = CASE WHEN v.alive IS NULL THEN NULL
      ELSE clock_timestamp() + v.alive * interval '1 second' END,
    doubt_lifted = o.doubt_lifted OR v.lift,
    remote_ref = CASE WHEN v.ref = '' THEN o.remote_ref ELSE v.ref END,
    remote_version = CASE WHEN v.rver = '' THEN o.remote_version ELSE v.rver END,
    job = CASE WHEN v.job = '' THEN o.job ELSE v.job END,
    confirmed_at = CASE WHEN v.aft = 'confirmed' THEN clock_timestamp() ELSE o.confirmed_at END
  FROM v WHERE o.id = v.id AND o.lease_token = v.token AND o.state = v.bef
    AND (NOT v.lapsed OR o.lease_until < clock_timestamp())
  RETURNING o.id, o.sent_at, o.request_digest
),
a AS (
  UPDATE hub_attempt t SET settled_at = clock_timestamp(), outcome = v.outcome, verdict = v.txt,
    error_class = v.err, status = v.status, remote_request_id = v.rid, duration_ms = v.ms,
      seen = v.seen,
    "left" = v.lft, stale = (u.id IS NULL),
    marked_at = CASE WHEN v.lft <> '' THEN u.sent_at END,
    request_digest = CASE WHEN v.lft <> '' THEN coalesce(u.request_digest, '') ELSE '' END
  FROM v LEFT JOIN u ON u.id = v.id
  WHERE v.tried AND t.operation_id = v.id AND t.token = v.atok AND t.settled_at IS NULL
    AND (u.id IS NOT NULL OR NOT v.lapsed)
),
m AS (
  INSERT INTO hub_mapping (tenant_id, connection_id, object_type, source_system, source_id,
    remote_ref, version,
    remote_version, "values", revision, updated_at, deleted_at)
  SELECT v.ten, v.con, v.otype, v.sys, v.sid, v.ref, v.ver, v.rver, v.vals, 1, clock_timestamp(),
    NULL
  FROM v JOIN u ON u.id = v.id WHERE v.map = 'set' ORDER BY v.id
  ON CONFLICT (tenant_id, connection_id, object_type, source_system, source_id) DO UPDATE SET
    remote_ref = excluded.remote_ref, version = greatest(hub_mapping.version, excluded.version),
    remote_version = excluded.remote_version, "values" = excluded."values",
    revision = hub_mapping.revision + 1, updated_at = excluded.updated_at, deleted_at = NULL
  WHERE hub_mapping.remote_ref = excluded.remote_ref OR hub_mapping.deleted_at IS NOT NULL
  RETURNING 1
)
SELECT u.id, (SELECT count(*) FROM m) FROM u
"""

_SETTLE_SQLITE = named("""
UPDATE hub_operation SET
  state_since = CASE WHEN state = %(aft)s THEN state_since
    WHEN %(aft)s = 'retry' THEN coalesce(retry_since, %(now)s) ELSE %(now)s END,
  retry_since = CASE WHEN %(aft)s = 'retry' THEN coalesce(retry_since, %(now)s)
    WHEN %(aft)s IN ('uncertain', 'pending', 'sent', 'running') THEN retry_since ELSE NULL END,
  state = %(aft)s, reason_code = %(code)s, reason_text = %(txt)s, next_at = %(delay)s, parked = 0,
  lapses = %(lapses)s, attempts = %(attempts)s, repeats = %(repeats)s, looks = %(looks)s,
  lease_token = lease_token + %(step)s, lease_owner = '', lease_until = NULL,
  maybe_executed = %(doubt)s, stream_busy = %(busy)s,
  hold_until = CASE WHEN %(hold)s IS NULL THEN hold_until
    ELSE max(coalesce(hold_until, %(hold)s), %(hold)s) END,
  last_byte_at = coalesce(%(last)s, last_byte_at),
  absent_since = CASE WHEN %(keep_absent)s THEN absent_since ELSE %(absent)s END,
  repeat_until = %(alive)s,
  doubt_lifted = (doubt_lifted OR %(lift)s),
  remote_ref = CASE WHEN %(ref)s = '' THEN remote_ref ELSE %(ref)s END,
  remote_version = CASE WHEN %(rver)s = '' THEN remote_version ELSE %(rver)s END,
  job = CASE WHEN %(job)s = '' THEN job ELSE %(job)s END,
  confirmed_at = CASE WHEN %(aft)s = 'confirmed' THEN %(now)s ELSE confirmed_at END
WHERE id = %(id)s AND lease_token = %(token)s AND state = %(bef)s
  AND (NOT %(lapsed)s OR lease_until < %(now)s)
RETURNING id, sent_at, request_digest
""")

_ATTEMPT_SQLITE = named("""
UPDATE hub_attempt SET settled_at = %(now)s, outcome = %(outcome)s, verdict = %(txt)s,
  error_class = %(err)s,
  status = %(status)s, remote_request_id = %(rid)s, duration_ms = %(ms)s, seen = %(seen)s,
    "left" = %(lft)s,
  stale = %(stale)s, marked_at = %(marked)s, request_digest = %(digest)s
WHERE operation_id = %(id)s AND token = %(atok)s AND settled_at IS NULL
""")

_MAPPING_SQLITE = named("""
INSERT INTO hub_mapping (tenant_id, connection_id, object_type, source_system, source_id,
  remote_ref, version,
  remote_version, "values", revision, updated_at, deleted_at)
VALUES (%(ten)s, %(con)s, %(otype)s, %(sys)s, %(sid)s, %(ref)s, %(ver)s, %(rver)s, %(vals)s, 1,
  %(now)s, NULL)
ON CONFLICT (tenant_id, connection_id, object_type, source_system, source_id) DO UPDATE SET
  remote_ref = excluded.remote_ref, version = max(version, excluded.version),
  remote_version = excluded.remote_version, "values" = excluded."values",
  revision = revision + 1, updated_at = excluded.updated_at, deleted_at = NULL
WHERE hub_mapping.remote_ref = excluded.remote_ref OR hub_mapping.deleted_at IS NOT NULL
RETURNING id
""")

_GONE = """
UPDATE hub_mapping SET deleted_at = {now}, updated_at = {now}, revision = revision + 1,
  version = {version}
WHERE tenant_id = %(ten)s AND connection_id = %(con)s AND object_type = %(otype)s
  AND source_system = %(sys)s
  AND source_id = %(sid)s AND deleted_at IS NULL
"""

_FIRST_PARKED = """
  SELECT (SELECT n.id FROM hub_operation n WHERE n.connection_id = s.connection_id
    AND n.stream = s.stream AND n.parked
    ORDER BY n.version, n.id LIMIT 1)
  FROM hub_operation s WHERE s.id IN ({ids})"""
_UNPARK_SQLITE = f"""
UPDATE hub_operation SET parked = 0 WHERE parked AND id IN ({_FIRST_PARKED}) RETURNING id
"""
# A caller's open transaction that coalesces holds such rows for as long as it likes: no settle may
# wait for it. If it commits, it lets the next through itself; if not, the sweep does.
_UNPARK_POSTGRES = f"""
UPDATE hub_operation SET parked = false WHERE id IN (
  SELECT p.id FROM hub_operation p WHERE p.parked AND p.id IN ({_FIRST_PARKED})
  FOR UPDATE SKIP LOCKED)
RETURNING id
"""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settle hit, and whether it let a waiting operation through."""

    ids: frozenset[int]
    unparked: int


def settle(moves: Sequence[Settlement], now: datetime | None = None) -> Settled:
    """Make the moves, inside a transaction. What is not in the result was no longer the caller's.

    The attempt of such a one stays on record as stale. Raises `MappingTaken` or a database error
    when one move of the batch cannot be stored: nothing of the batch holds then, and the caller
    settles one by one.
    """
    if not moves:
        return Settled(frozenset(), 0)
    now = now or timezone.now()
    # Rows are always touched in the same order, so that two batches cannot wait for each other.
    data = [_row(move) for move in sorted(moves, key=lambda move: move.subject.id)]
    hit = _settle_postgres(data) if is_postgres() else _settle_sqlite(data, now)
    for row in data:
        if row["map"] == "gone" and row["id"] in hit:
            _mark_gone(row, now)
    freed = [row["id"] for row in data if row["id"] in hit and not row["busy"]]
    unparked = unpark(freed)
    return Settled(frozenset(hit), unparked)


def _settle_postgres(data: list[dict[str, Any]]) -> set[int]:
    found = rows(_SETTLE_POSTGRES, [as_json(data)])
    hit = {row[0] for row in found}
    wanted = sum(1 for row in data if row["map"] == "set" and row["id"] in hit)
    if found and found[0][1] != wanted:
        raise MappingTaken("the entity is tied to another remote object")
    return hit


def _settle_sqlite(data: list[dict[str, Any]], now: datetime) -> set[int]:
    hit: set[int] = set()
    text_now = stamp(now)
    moments: dict[float | None, Any] = {}

    def moment(seconds: float | None) -> Any:
        if seconds not in moments:
            moments[seconds] = later(now, seconds)
        return moments[seconds]

    with each_row() as run:
        for row in data:
            given = row | {"now": text_now}
            for name in ("delay", "hold", "last", "absent", "alive"):
                given[name] = moment(row[name])
            found = run(_SETTLE_SQLITE, given)
            if found:
                hit.add(row["id"])
            if row["tried"] and (found or not row["lapsed"]):
                left = bool(row["lft"]) and bool(found)
                given["stale"] = not found
                given["marked"] = found[0][1] if left else None
                given["digest"] = found[0][2] if left else ""
                run(_ATTEMPT_SQLITE, given)
            if found and row["map"] == "set" and not run(_MAPPING_SQLITE, given):
                raise MappingTaken("the entity is tied to another remote object")
    return hit


def _mark_gone(row: dict[str, Any], now: datetime) -> None:
    postgres = is_postgres()
    sql = _GONE.format(
        now="clock_timestamp()" if postgres else "%(now)s",
        version="greatest(version, %(ver)s)" if postgres else "max(version, %(ver)s)",
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, row | {"now": stamp(now)})


def unpark(ids: Sequence[int]) -> int:
    """Let the first parked operation of each of these operations' streams be claimed; how many.

    A later statement than the move that freed the stream, never the same one: its snapshot must see
    that move.
    """
    if not ids:
        return 0
    if is_postgres():
        sql = _UNPARK_POSTGRES.format(ids="SELECT unnest(%s::bigint[])")
        return len(rows(sql, [list(ids)]))
    return len(rows(_UNPARK_SQLITE.format(ids=marks(ids)), list(ids)))


# --- the marker ---------------------------------------------------------------------------------

# While the stream is ours nobody else in it can move,
# so what is read here is certain (protocol §5, row 4).
_MARK_CONDITION = """
  o.state = 'running'
  AND NOT (o.full_state AND EXISTS (SELECT 1 FROM hub_operation n
    WHERE n.connection_id = o.connection_id
    AND n.stream = o.stream AND n.first_sent_at IS NOT NULL AND n.version > o.version))
  AND NOT EXISTS (SELECT 1 FROM hub_operation h WHERE h.connection_id = o.connection_id
    AND h.stream = o.stream
    AND h.hold_until IS NOT NULL AND h.hold_until > {now} AND h.id <> o.id)
  AND NOT EXISTS (SELECT 1 FROM hub_gate g WHERE g.connection_id = o.connection_id
    AND g.paused_at IS NOT NULL
    AND (g.paused_until IS NULL OR g.paused_until > {now}))
"""

_MARK_POSTGRES = f"""
UPDATE hub_operation o SET state = 'sent', state_since = clock_timestamp(),
  sent_at = clock_timestamp(),
  first_sent_at = coalesce(o.first_sent_at, clock_timestamp()), request_digest = v.digest,
  restored = false
FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::float8[]) AS v(id, token, digest, need)
WHERE o.id = v.id AND o.lease_token = v.token
  AND o.lease_until >= clock_timestamp() + v.need * interval '1 second'
  AND {_MARK_CONDITION.format(now="clock_timestamp()")}
RETURNING o.id
"""

_MARK_SQLITE = named(f"""
UPDATE hub_operation AS o SET state = 'sent', state_since = %(now)s, sent_at = %(now)s,
  first_sent_at = coalesce(o.first_sent_at, %(now)s), request_digest = %(digest)s, restored = 0
WHERE o.id = %(id)s AND o.lease_token = %(token)s AND o.lease_until >= %(needed)s
  AND {_MARK_CONDITION.format(now="%(now)s")}
RETURNING id
""")


@dataclass(frozen=True, slots=True)
class Mark:
    """One marker to be set: `need` is `max_send` + margin, in seconds."""

    id: int
    token: int
    digest: str
    need: float


def mark(wanted: Sequence[Mark], now: datetime | None = None) -> set[int]:
    """Set the markers (row 4), inside a transaction; only for the returned ids may bytes leave."""
    if not wanted:
        return set()
    ordered = sorted(wanted, key=lambda one: one.id)
    if is_postgres():
        found = rows(
            _MARK_POSTGRES,
            [
                [one.id for one in ordered],
                [one.token for one in ordered],
                [one.digest for one in ordered],
                [float(one.need) for one in ordered],
            ],
        )
        return {row[0] for row in found}
    now = now or timezone.now()
    text_now = stamp(now)
    hit: set[int] = set()
    with each_row() as run:
        for one in ordered:
            given = {
                "now": text_now,
                "digest": one.digest,
                "id": one.id,
                "token": one.token,
                "needed": later(now, one.need),
            }
            if run(_MARK_SQLITE, given):
                hit.add(one.id)
    return hit
