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
from hub.sql import as_json, each_row, execute, is_postgres, later, marks, named, rows, stamp
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
    ("id", "bigint", None),
    ("token", "bigint", None),
    ("bef", "text", None),
    ("aft", "text", None),
    ("code", "text", None),
    ("txt", "text", None),
    ("outcome", "text", None),
    ("attempts", "integer", None),
    ("busy", "boolean", False),
    ("delay", "float8", 0.0),
    ("doubt", "boolean", False),
    ("repeats", "integer", 0),
    ("lapses", "integer", 0),
    ("looks", "integer", 0),
    ("hold", "float8", None),
    ("last", "float8", None),
    ("keep_absent", "boolean", False),
    ("absent", "float8", None),
    ("alive", "float8", None),
    ("ref", "text", ""),
    ("rver", "text", ""),
    ("job", "text", ""),
    ("step", "integer", 0),
    ("lapsed", "boolean", False),
    ("lift", "boolean", False),
    ("tried", "boolean", False),
    ("lft", "text", ""),
    ("err", "text", ""),
    ("status", "integer", None),
    ("rid", "text", ""),
    ("ms", "integer", None),
    ("seen", "text", ""),
    ("map", "text", ""),
    ("ten", "bigint", None),
    ("con", "bigint", None),
    ("otype", "text", ""),
    ("sys", "text", ""),
    ("sid", "text", ""),
    ("ver", "bigint", None),
    ("vals", "text", "{}"),
)
"""What a settle is told of a move: name, type, and what it is when nothing is said of it."""

_UNSAID = {name: value for name, _type, value in _COLUMNS}


def _told_as(name: str, value: Any) -> str:
    match value:
        case None:
            return name
        case bool():
            return f"coalesce({name}, {str(value).lower()}) AS {name}"
        case str():
            return f"coalesce({name}, '{value}') AS {name}"
        case _:
            return f"coalesce({name}, {value}) AS {name}"


_TOLD = f"""SELECT {", ".join(_told_as(name, value) for name, _type, value in _COLUMNS)}
  FROM json_to_recordset(%s::json)
    AS t({", ".join(f"{name} {kind}" for name, kind, _value in _COLUMNS)})"""


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
    row: dict[str, Any] = {
        "id": s.id,
        "token": s.token,
        "bef": s.state.value,
        "aft": move.after.value,
        "code": v.code,
        "txt": v.text,
        "outcome": v.outcome.value,
        "attempts": attempts,
        "busy": busy,
    }
    tried = move.tried
    if tried is not None:
        row["tried"] = True
        row["lft"] = tried.left
        row["rid"] = tried.remote_request_id
        row["ms"] = tried.duration_ms
        row["seen"] = tried.seen
        row["status"] = v.status
        row["err"] = v.error.value if v.error else ""
    if done is not None:
        row["rver"] = done.remote_version
    if map_kind:
        row["map"] = map_kind
        row["ten"], row["con"], row["otype"] = s.tenant_id, s.connection_id, s.object_type
        row["sys"], row["sid"], row["ver"] = s.source_system, s.source_id, s.version
        if done is not None and map_kind == "set":
            row["vals"] = as_json(dict(done.values))
    if confirmed or not s.yields_ref:
        row["ref"] = ref
    if s.repeats or v.adds_repeat:
        row["repeats"] = s.repeats + (1 if v.adds_repeat else 0)
        row["lift"] = v.adds_repeat
    if move.token_step or move.lapsed:
        row["step"], row["lapsed"] = move.token_step, move.lapsed
    if not confirmed:
        row |= _unsettled(move, looked)
    # Most of most rows is what it is anyway: what is not said need not be carried.
    return row


def _unsettled(move: Settlement, looked: bool) -> dict[str, Any]:
    """What is to be kept of an operation that is not done: its waits, its doubt, its counters."""
    s, v = move.subject, move.verdict
    return {
        "delay": v.delay,
        "doubt": v.doubt,
        "lapses": s.lapses + 1 if v.adds_lapse else 0,
        "looks": s.looks + 1 if looked else 0,
        "hold": None if v.hold is None or move.last_byte is None else v.hold + move.last_byte,
        "last": move.last_byte,
        "keep_absent": looked and not v.absent,
        "absent": -move.look_took if v.absent else None,
        "alive": move.alive,
        "job": v.job,
    }


_SETTLE_POSTGRES = f"""
WITH v AS MATERIALIZED ({_TOLD}),
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
  RETURNING o.sent_at AS marked_at, o.request_digest AS digest, v.*
),
a AS (
  UPDATE hub_attempt t SET settled_at = clock_timestamp(), outcome = u.outcome, verdict = u.txt,
    error_class = u.err, status = u.status, remote_request_id = u.rid, duration_ms = u.ms,
    seen = u.seen, "left" = u.lft,
    marked_at = CASE WHEN u.lft <> '' THEN u.marked_at END,
    request_digest = CASE WHEN u.lft <> '' THEN u.digest ELSE '' END
  FROM u WHERE u.tried AND t.operation_id = u.id AND t.token = u.token AND t.settled_at IS NULL
),
m AS (
  INSERT INTO hub_mapping (tenant_id, connection_id, object_type, source_system, source_id,
    remote_ref, version,
    remote_version, "values", revision, updated_at, deleted_at)
  SELECT u.ten, u.con, u.otype, u.sys, u.sid, u.ref, u.ver, u.rver, u.vals, 1, clock_timestamp(),
    NULL
  FROM u WHERE u.map = 'set' ORDER BY u.id
  ON CONFLICT (tenant_id, connection_id, object_type, source_system, source_id) DO UPDATE SET
    remote_ref = excluded.remote_ref, version = greatest(hub_mapping.version, excluded.version),
    remote_version = excluded.remote_version, "values" = excluded."values",
    revision = hub_mapping.revision + 1, updated_at = excluded.updated_at, deleted_at = NULL
  WHERE hub_mapping.remote_ref = excluded.remote_ref OR hub_mapping.deleted_at IS NOT NULL
  RETURNING 1
)
SELECT u.id, (SELECT count(*) FROM m) FROM u
"""

# What no longer was ours is evidence all the same: its attempt stays on record as stale.
_STALE_POSTGRES = f"""
WITH v AS MATERIALIZED ({_TOLD})
UPDATE hub_attempt t SET settled_at = clock_timestamp(), outcome = v.outcome, verdict = v.txt,
  error_class = v.err, status = v.status, remote_request_id = v.rid, duration_ms = v.ms,
  seen = v.seen, "left" = v.lft, stale = true, marked_at = NULL, request_digest = ''
FROM v WHERE v.tried AND NOT v.lapsed AND t.operation_id = v.id AND t.token = v.token
  AND t.settled_at IS NULL
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
WHERE operation_id = %(id)s AND token = %(token)s AND settled_at IS NULL
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
# wait for it. If it commits, it lets the next through itself; if not, the sweep does. The rows are
# found by their ids: written plainly, the flag would send PostgreSQL through all that are parked.
_UNPARK_POSTGRES = f"""
UPDATE hub_operation SET parked = false WHERE id IN (
  SELECT p.id FROM hub_operation p WHERE p.id = ANY(ARRAY({_FIRST_PARKED}))
    AND p.parked::integer = 1
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
        if row.get("map") == "gone" and row["id"] in hit:
            _mark_gone(row, now)
    freed = [row["id"] for row in data if row["id"] in hit and not row["busy"]]
    unparked = unpark(freed)
    return Settled(frozenset(hit), unparked)


def _settle_postgres(data: list[dict[str, Any]]) -> set[int]:
    found = rows(_SETTLE_POSTGRES, [as_json(data)])
    hit = {row[0] for row in found}
    wanted = sum(1 for row in data if row.get("map") == "set" and row["id"] in hit)
    if found and found[0][1] != wanted:
        raise MappingTaken("the entity is tied to another remote object")
    if len(hit) < len(data):
        execute(_STALE_POSTGRES, [as_json([row for row in data if row["id"] not in hit])])
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
            given = _UNSAID | row | {"now": text_now}
            for name in ("delay", "hold", "last", "absent", "alive"):
                given[name] = moment(given[name])
            found = run(_SETTLE_SQLITE, given)
            if found:
                hit.add(row["id"])
            if given["tried"] and (found or not given["lapsed"]):
                left = bool(given["lft"]) and bool(found)
                given["stale"] = not found
                given["marked"] = found[0][1] if left else None
                given["digest"] = found[0][2] if left else ""
                run(_ATTEMPT_SQLITE, given)
            if found and given["map"] == "set" and not run(_MAPPING_SQLITE, given):
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
# so what is read here is certain (protocol §5, row 4). The rows are found by their ids: written as
# a plain comparison, the state would send PostgreSQL through all that are running anywhere.
_MARK_CONDITION = """
  o.state || '' = 'running'
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
