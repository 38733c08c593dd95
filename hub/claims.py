"""Taking operations to work on: lanes, order in a stream, tokens, leases (protocol §5, §12).

One transaction takes many due rows (rows 2 and 13), their leases, and opens their attempts.
`parked` is only a hint that lets the claim pass over rows whose turn has not come; the truth is
the blocker it looks for, and C2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.utils import timezone

from hub.gate import Tokens
from hub.moves import Subject
from hub.remote import RateLimit
from hub.sql import each_row, is_postgres, later, marks, moment, named, rows, stamp
from hub.states import Purpose, State


@dataclass(slots=True)
class Claimed(Subject):
    """One operation under our lease, with what sending needs of it and of its mapping."""

    variant: str = ""
    generation: int = 1
    remote_key: str = ""
    payload: str = "{}"
    payload_schema: int = 1
    fingerprint: str = ""
    first_sent_at: datetime | None = None
    last_byte_at: datetime | None = None
    absent_since: datetime | None = None
    created_at: datetime | None = None
    state_since: datetime | None = None
    retry_since: datetime | None = None
    restored: bool = False
    mapped_ref: str = ""
    mapped_version: int = 0
    mapped_remote_version: str = ""
    mapped_values: str = "{}"
    mapped_gone: bool = False
    stale: bool = False
    doubt_left: bool = False
    purpose: Purpose = Purpose.SEND
    claimed_clock: float = 0.0
    """The worker's monotonic clock before the claim (`t0` of protocol §6.1)."""
    lease: float = 0.0
    probe: bool = False
    claimed_at: datetime | None = field(default=None)


# In the order of `Claimed`. Moments nobody asks about are not fetched: the driver takes longer to
# read a moment than all the rest of a row.
_RETURNED = """o.id, o.lease_token, o.tenant_id, o.connection_id, o.state, o.object_type,
  o.source_system, o.source_id, o.action, o.version, o.attempts, o.repeats, o.lapses, o.looks,
  o.maybe_executed, o.stream, o.yields_ref, o.remote_ref, o.job, o.reference, o.variant,
  o.generation, o.remote_key, o.payload, o.payload_schema, o.fingerprint, o.first_sent_at,
  o.last_byte_at, o.absent_since,
  CASE WHEN o.maybe_executed THEN o.created_at END AS created_at,
  CASE WHEN o.state <> 'running' THEN o.state_since END AS state_since,
  o.retry_since, o.restored, o.full_state"""
_FULL_STATE = len(fields(Subject)) + 13
"""Where, in what is returned, `full_state` stands, and behind it what belongs to the mapping."""

_WITH_MAPPING = """SELECT o.*, m.remote_ref AS mref, m.version AS mver, m.remote_version AS mrver,
  m."values" AS mvals, m.deleted_at IS NOT NULL AS mgone,
  (o.full_state AND EXISTS (SELECT 1 FROM hub_operation n WHERE n.connection_id = o.connection_id
    AND n.stream = o.stream AND n.first_sent_at IS NOT NULL AND n.version > o.version)) AS stale,
  EXISTS (SELECT 1 FROM hub_operation d WHERE d.connection_id = o.connection_id
    AND d.stream = o.stream AND d.state = 'discarded' AND d.maybe_executed
    AND d.yields_ref) AS doubt_left{clock}
FROM {source} o
LEFT JOIN hub_mapping m ON m.tenant_id = o.tenant_id AND m.connection_id = o.connection_id
  AND m.object_type = o.object_type AND m.source_system = o.source_system
  AND m.source_id = o.source_id"""

# Open: in a moving state, or in review with doubt. What carries no full state also waits behind
# what a person has yet to settle. A busy row above (a late lower version) blocks too, or such rows
# would fill every claim.
# Asked in two, each from an index that names the answer: asked in one, the first of a stream of
# two hundred thousand would look through all of them for a busy one.
_BLOCKER = """coalesce((SELECT b.id FROM hub_operation b WHERE b.tenant_id = o.tenant_id
    AND b.connection_id = o.connection_id AND b.stream = o.stream AND b.stream_busy
    AND b.id <> o.id LIMIT 1),
  (SELECT b.id FROM hub_operation b WHERE b.connection_id = o.connection_id
    AND b.stream = o.stream AND b.state NOT IN ('confirmed', 'discarded')
    AND (b.version, b.id) < (o.version, o.id)
    AND (b.state NOT IN ('failed', 'review') OR NOT o.full_state)
  ORDER BY b.version, b.id LIMIT 1))"""
_HELD = """(SELECT max(h.hold_until) FROM hub_operation h WHERE h.connection_id = o.connection_id
    AND h.stream = o.stream AND h.hold_until IS NOT NULL AND h.hold_until > {now}
    AND h.id <> o.id)"""

_DUE = """o.connection_id = {lane} AND o.state IN ('pending', 'retry') AND NOT o.parked
  AND o.next_at <= {now} AND o.epoch = {epoch} AND o.lapses {lapses}
  AND (NOT o.maybe_executed
    OR (o.state = 'retry' AND (o.repeat_until IS NULL OR o.repeat_until > {now})))
  AND NOT (o.state = 'pending' AND o.yields_ref AND NOT o.doubt_lifted AND EXISTS (
    SELECT 1 FROM hub_operation d WHERE d.connection_id = o.connection_id
      AND d.stream = o.stream AND d.state = 'discarded' AND d.maybe_executed AND d.yields_ref))
  AND NOT EXISTS (SELECT 1 FROM hub_dependency e JOIN hub_operation p ON p.id = e.parent_id
    WHERE e.child_id = o.id AND p.state <> 'confirmed')"""

_LOOK_DUE = """o.connection_id = {lane} AND o.state IN ('uncertain', 'accepted')
  AND o.next_at <= {now} AND o.lease_until IS NULL AND o.epoch = {epoch} AND o.lapses {lapses}"""


@dataclass(slots=True)
class LaneShare:
    """How much one claim may take from one connection."""

    connection_id: int
    sends: int
    looks: int
    lease: float
    limit: RateLimit | None = None
    turn: int = 0
    """A running number: with few tokens every fifth goes to a look, so that neither starves."""
    probe: bool = False
    starved: bool = False
    """More was wanted than there were tokens."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who claims, and under which numbers of the installation."""

    worker: str
    epoch: int
    token_base: int
    lapses: int = 0
    """0: operations that never lost a worker. 1, 2: those that did, kept apart (protocol §11)."""


def claim(
    who: Claim, shares: Sequence[LaneShare], clock: float, now: datetime | None = None
) -> list[Claimed]:
    """Take what is due within the shares; call inside a transaction of its own.

    `clock` is the worker's monotonic clock, read before. Two rows of one stream are never taken
    together.
    """
    now = now or timezone.now()
    tokens = Tokens(None if is_postgres() else now)
    by_lane = {share.connection_id: share for share in shares}
    taken: list[Claimed] = []
    _share_tokens(shares, tokens)
    looks = [(share, share.looks) for share in shares if share.looks > 0]
    if looks:
        ids = [row[0] for row in _candidates(who, looks, now, look=True)]
        taken += _take(who, ids, by_lane, now, clock, look=True)
    sends = [(share, share.sends) for share in shares if share.sends > 0]
    if sends:
        ids = _free(who, sends, now)
        taken += _take(who, ids, by_lane, now, clock, look=False)
    for share in shares:
        if share.limit is not None:
            count = sum(1 for one in taken if one.connection_id == share.connection_id)
            if count:
                tokens.take(share.limit, count)
    tokens.store()
    for one in taken:
        share = by_lane[one.connection_id]
        one.probe = share.probe
        one.lease = share.lease
    return taken


def _bucket(share: LaneShare) -> tuple[str, str]:
    return (share.limit.scope, share.limit.group) if share.limit else ("", "")


def _share_tokens(shares: Sequence[LaneShare], tokens: Tokens) -> None:
    """Cut the shares down to the tokens there are; shares of one bucket are served in turn."""
    # By bucket, not by limit: two connections to one host may each have numbers of their own.
    left: dict[tuple[str, str], int] = {}
    for share in sorted(
        shares, key=lambda one: (one.limit.scope, one.limit.group) if one.limit else ("", "")
    ):
        if share.limit is None:
            continue
        bucket = (share.limit.scope, share.limit.group)
        there = left.setdefault(bucket, tokens.left(share.limit))
        if share.looks and share.sends:
            kept = there // 5 + (1 if there % 5 and share.turn % 5 == 0 else 0)
            share.looks = min(share.looks, kept)
        else:
            share.looks = min(share.looks, there)
        share.starved = share.sends > there - share.looks
        share.sends = min(share.sends, there - share.looks)
        left[bucket] = there - share.looks - share.sends


def _candidates(
    who: Claim, shares: Sequence[tuple[LaneShare, int]], now: datetime, *, look: bool
) -> list[tuple[Any, ...]]:
    """Due rows, locked, as (id, blocker, held until)."""
    lapses = "= 0" if who.lapses == 0 else f"= {int(who.lapses)}"
    due = _LOOK_DUE if look else _DUE
    postgres = is_postgres()
    clock = "clock_timestamp()" if postgres else "%(now)s"
    extra = "NULL, NULL" if look else f"{_BLOCKER}, {_HELD.format(now=clock)}"
    if postgres:
        where = due.format(lane="l.lane", now=clock, epoch="%(epoch)s", lapses=lapses)
        return rows(
            f"""SELECT x.* FROM unnest(%(lanes)s::bigint[], %(quotas)s::int[]) AS l(lane, n),
            LATERAL (SELECT o.id, {extra} FROM hub_operation o WHERE {where}
              ORDER BY o.next_at, o.id LIMIT l.n FOR UPDATE OF o SKIP LOCKED) x""",
            {
                "lanes": [share.connection_id for share, _ in shares],
                "quotas": [quota for _, quota in shares],
                "epoch": who.epoch,
            },
        )
    where = due.format(lane="%(lane)s", now=clock, epoch="%(epoch)s", lapses=lapses)
    sql = (
        f"SELECT o.id, {extra} FROM hub_operation o WHERE {where} "
        "ORDER BY o.next_at, o.id LIMIT %(n)s"
    )
    return [
        row
        for share, quota in shares
        for row in rows(
            sql,
            {"now": stamp(now), "lane": share.connection_id, "n": quota, "epoch": who.epoch},
        )
    ]


def _free(who: Claim, shares: Sequence[tuple[LaneShare, int]], now: datetime) -> list[int]:
    """The due rows whose turn it is; those whose turn has not come are put aside on the way."""
    wanted = {share.connection_id: quota for share, quota in shares}
    looked_at = [(share, quota) for share, quota in shares]
    for _ in range(4):
        found = _candidates(who, looked_at, now, look=False)
        blocked = [(row[0], row[1]) for row in found if row[1] is not None]
        held = [(row[0], row[2]) for row in found if row[1] is None and row[2] is not None]
        free = [row[0] for row in found if row[1] is None and row[2] is None]
        if held:
            _wait_for_hold(held)
        parked = _park(blocked) if blocked else 0
        if len(free) >= sum(wanted.values()) or not (parked or held) or len(found) < 1:
            break
        # A long stream stood in front: look past it, so that it is put aside once and for all.
        looked_at = [(share, min(2000, quota * 20)) for share, quota in looked_at]
    if len(looked_at) and len(free) > sum(wanted.values()):
        free = _cut(free, wanted)
    return free


def _cut(ids: list[int], wanted: dict[int, int]) -> list[int]:
    """At most the quota of each lane, in the order found."""
    lane_of = dict(
        rows(f"SELECT id, connection_id FROM hub_operation WHERE id IN ({marks(ids)})", list(ids))
    )
    left = dict(wanted)
    kept = []
    for one in ids:
        lane = lane_of[one]
        if left.get(lane, 0) > 0:
            left[lane] -= 1
            kept.append(one)
    return kept


def _wait_for_hold(held: list[tuple[int, Any]]) -> None:
    """Held rows fall due when the hold ends; until then they need not be met again."""
    with connection.cursor() as cursor:
        for operation_id, until in held:
            cursor.execute(
                "UPDATE hub_operation SET next_at = %s WHERE id = %s "
                "AND state IN ('pending', 'retry')",
                [stamp(moment(until)), operation_id],
            )


def _park(blocked: list[tuple[int, int]]) -> int:
    """Put blocked rows aside, while holding the blocker's lock: then its settle will see them."""
    blockers = sorted({blocker for _, blocker in blocked})
    open_rows = """AND (state NOT IN ('confirmed', 'discarded'))"""
    if is_postgres():
        held = {
            row[0]
            for row in rows(
                f"SELECT id FROM hub_operation WHERE id = ANY(%s) {open_rows} ORDER BY id "
                "FOR UPDATE SKIP LOCKED",
                [blockers],
            )
        }
    else:
        held = {
            row[0]
            for row in rows(
                f"SELECT id FROM hub_operation WHERE id IN ({marks(blockers)}) {open_rows}",
                blockers,
            )
        }
    ids = sorted(one for one, blocker in blocked if blocker in held)
    if not ids:
        return 0
    if is_postgres():
        rows(
            "UPDATE hub_operation SET parked = true WHERE id = ANY(%s) "
            "AND state IN ('pending', 'retry') RETURNING id",
            [ids],
        )
    else:
        rows(
            f"UPDATE hub_operation SET parked = 1 WHERE id IN ({marks(ids)}) "
            "AND state IN ('pending', 'retry') RETURNING id",
            ids,
        )
    return len(ids)


_LEFT_BEHIND = f"""
WITH f AS (SELECT DISTINCT ON (connection_id, stream) id FROM hub_operation WHERE parked
  ORDER BY connection_id, stream, version, id)
UPDATE hub_operation SET parked = false WHERE id IN (
  SELECT o.id FROM hub_operation o WHERE o.id = ANY(ARRAY(SELECT id FROM f))
    AND o.parked::integer = 1 AND {_BLOCKER} IS NULL
  FOR UPDATE OF o SKIP LOCKED)
RETURNING id
"""


def unpark_left_behind() -> int:
    """Let operations be claimed that were put aside behind what is no longer there; how many.

    On PostgreSQL a settle passes over a row that an open transaction holds; if that one rolls back,
    nobody else comes by (protocol §17: no row needs a hand).
    """
    return len(rows(_LEFT_BEHIND)) if is_postgres() else 0


_TAKE_SEND = """state = 'running', state_since = {now}, stream_busy = {true}, parked = {false},
  attempts = o.attempts + 1, lease_token = {token}, lease_owner = %(worker)s,
  lease_until = {lease}"""
_TAKE_LOOK = """lease_token = {token}, lease_owner = %(worker)s, lease_until = {lease}"""
# The tenant is named for the index of C2: without it SQLite walks the connection for each row.
_TAKE_IF = {
    False: """o.state IN ('pending', 'retry') AND NOT EXISTS (SELECT 1 FROM hub_operation b
      WHERE b.tenant_id = o.tenant_id AND b.connection_id = o.connection_id AND b.stream = o.stream
        AND b.stream_busy AND b.id <> o.id)""",
    True: "o.state IN ('uncertain', 'accepted') AND o.lease_until IS NULL",
}


def _take(
    who: Claim,
    ids: list[int],
    shares: dict[int, LaneShare],
    now: datetime,
    clock: float,
    *,
    look: bool,
) -> list[Claimed]:
    if not ids:
        return []
    found = (
        _take_postgres(who, ids, shares, look=look)
        if is_postgres()
        else _take_sqlite(who, ids, shares, now, look=look)
    )
    postgres = is_postgres()
    return [_as_claimed(row, postgres, look=look, now=now, clock=clock) for row in found]


def _as_claimed(
    row: tuple[Any, ...], postgres: bool, *, look: bool, now: datetime, clock: float
) -> Claimed:
    one = Claimed(*row[:_FULL_STATE])
    state = one.state = State(row[4])
    if not postgres:
        one.doubt, one.yields_ref, one.restored = map(
            bool, (one.doubt, one.yields_ref, one.restored)
        )
        one.first_sent_at, one.last_byte_at = moment(one.first_sent_at), moment(one.last_byte_at)
        one.absent_since, one.created_at = moment(one.absent_since), moment(one.created_at)
        one.state_since, one.retry_since = moment(one.state_since), moment(one.retry_since)
    ref, version, remote_version, values, gone, stale, doubt_left = row[
        _FULL_STATE + 1 : _FULL_STATE + 8
    ]
    if ref is not None:
        one.mapped_ref, one.mapped_version, one.mapped_remote_version = ref, version, remote_version
        one.mapped_values, one.mapped_gone = values, bool(gone)
    one.stale, one.doubt_left = bool(stale), bool(doubt_left)
    one.claimed_at = datetime.fromtimestamp(row[-1], UTC) if postgres else now
    if look:
        one.purpose = Purpose.POLL if state is State.ACCEPTED else Purpose.CONSULT
    one.claimed_clock = clock
    if not one.yields_ref and one.mapped_ref and not one.remote_ref:
        one.remote_ref = one.mapped_ref
    return one


def _take_postgres(
    who: Claim, ids: list[int], shares: dict[int, LaneShare], *, look: bool
) -> list[tuple[Any, ...]]:
    settings = (_TAKE_LOOK if look else _TAKE_SEND).format(
        now="clock_timestamp()",
        true="true",
        false="false",
        token="greatest(o.lease_token, %(base)s) + 1",
        lease="clock_timestamp() + l.lease * interval '1 second'",
    )
    purpose = "CASE WHEN o.state = 'accepted' THEN 'poll' ELSE 'consult' END" if look else "'send'"
    return rows(
        f"""WITH o AS (
          UPDATE hub_operation o SET {settings}
          FROM unnest(%(lanes)s::bigint[], %(leases)s::float8[]) AS l(lane, lease)
          WHERE o.id = ANY(%(ids)s) AND o.connection_id = l.lane AND {_TAKE_IF[look]}
          RETURNING {_RETURNED}
        ), t AS (
          INSERT INTO hub_attempt (operation_id, token, purpose, worker, claimed_at, "left",
            request_digest, outcome,
            verdict, error_class, remote_request_id, seen, stale)
          SELECT o.id, o.lease_token, {purpose}, %(worker)s, clock_timestamp(), '', '', '', '', '',
            '', '', false FROM o
        ) {
            _WITH_MAPPING.format(
                source="o", clock=", extract(epoch FROM clock_timestamp())::float8 AS clock"
            )
        }""",
        {
            "base": who.token_base,
            "worker": who.worker,
            "lanes": list(shares),
            "leases": [float(share.lease) for share in shares.values()],
            "ids": sorted(ids),
        },
    )


_OPEN_ATTEMPT_SQLITE = """
INSERT INTO hub_attempt (operation_id, token, purpose, worker, claimed_at, "left", request_digest,
  outcome, verdict, error_class, remote_request_id, seen, stale)
VALUES (:id, :token, :purpose, :worker, :now, '', '', '', '', '', '', '', 0)
"""


def _take_sqlite(
    who: Claim, ids: list[int], shares: dict[int, LaneShare], now: datetime, *, look: bool
) -> list[tuple[Any, ...]]:
    settings = (_TAKE_LOOK if look else _TAKE_SEND).format(
        now="%(now)s",
        true="1",
        false="0",
        token="max(o.lease_token, %(base)s) + 1",
        lease="%(lease)s",
    )
    taken: list[int] = []
    lane_of = dict(
        rows(f"SELECT id, connection_id FROM hub_operation WHERE id IN ({marks(ids)})", list(ids))
    )
    leases = {key: later(now, share.lease) for key, share in shares.items()}
    given = {"now": stamp(now), "base": who.token_base, "worker": who.worker}
    take = named(
        f"""UPDATE hub_operation AS o SET {settings} WHERE o.id = %(id)s AND {_TAKE_IF[look]}
        RETURNING lease_token, state"""
    )
    with each_row() as run:
        for operation_id in ids:
            given["id"] = operation_id
            given["lease"] = leases[lane_of[operation_id]]
            hit = run(take, given)
            if not hit:
                continue
            token, state = hit[0]
            given["token"] = token
            given["purpose"] = (
                "send" if not look else ("poll" if state == "accepted" else "consult")
            )
            run(_OPEN_ATTEMPT_SQLITE, given)
            taken.append(operation_id)
    if not taken:
        return []
    source = f"(SELECT {_RETURNED} FROM hub_operation o WHERE o.id IN ({marks(taken)}))"
    return rows(_WITH_MAPPING.format(source=source, clock=""), taken)
