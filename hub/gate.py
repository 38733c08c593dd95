"""May this connection send now, and how much? Pauses, breaker, tokens, fair turns.

All of it is rows, changed by conditional updates: a limit kept in a worker's memory is no limit,
and a saved form can never reopen a breaker (protocol §11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from hub.models import Bucket, Connection, Gate, Installation
from hub.models.gate import Breaker, PauseKind
from hub.remote import RateLimit
from hub.sql import database_now, is_postgres, moment, rows, stamp


@dataclass(frozen=True, slots=True)
class Lane:
    """A connection with due work whose gate is open (or whose breaker wants a probe)."""

    connection_id: int
    sends: bool
    looks: bool
    probe: bool
    failures: int
    opened_at: datetime | None = None
    """When the gate last opened, read with the lane: ages count from here, from the first claim on
    (protocol §11)."""
    lapsed: bool = False
    """Something due has lost its worker before."""


@dataclass(frozen=True, slots=True)
class Open:
    """What a claim begins with, as of one moment."""

    lanes: list[Lane]
    epoch: int
    clock_jumped_at: datetime | None
    """When the database's clock last made a step (A4)."""


_OPEN = """
SELECT i.epoch, i.clock_jumped_at, l.* FROM hub_installation i LEFT JOIN (
SELECT g.connection_id, g.breaker, g.failures, g.opened_at,
  EXISTS (SELECT 1 FROM hub_operation o WHERE o.connection_id = g.connection_id AND o.state IN
  ('pending', 'retry')
    AND NOT o.parked AND o.next_at <= {now}) AS sends,
  EXISTS (SELECT 1 FROM hub_operation o WHERE o.connection_id = g.connection_id
    AND o.state IN ('uncertain', 'accepted') AND o.next_at <= {now} AND o.lease_until IS NULL) AS
    looks,
  EXISTS (SELECT 1 FROM hub_operation o WHERE o.lapses > 0 AND o.next_at <= {now}
    AND o.connection_id = g.connection_id AND o.lease_until IS NULL AND NOT o.parked
    AND o.state IN ('pending', 'retry', 'uncertain', 'accepted')) AS lapsed
FROM hub_gate g JOIN hub_connection k ON k.id = g.connection_id
WHERE k.retired_at IS NULL
  AND (g.paused_at IS NULL OR g.paused_until <= {now})
  AND (g.throttled_until IS NULL OR g.throttled_until <= {now})
  AND (g.breaker = 'closed' OR g.breaker_until <= {now})
) l ON 1 = 1 WHERE i.id = 1
"""


def opened(now: datetime | None = None) -> Open:
    """The connections that have due work and an open gate, and what else a claim must know; one
    statement, for each costs the drain a wait.
    """
    if is_postgres():
        found = rows(_OPEN.format(now="clock_timestamp()"))
    else:
        found = rows(_OPEN.format(now="%(now)s"), {"now": stamp(now or timezone.now())})
    if not found:
        raise Installation.DoesNotExist("there is no installation row")
    lanes = [
        Lane(
            connection_id,
            sends=bool(sends),
            looks=bool(looks),
            probe=breaker != Breaker.CLOSED,
            failures=failures,
            opened_at=moment(opened_at),
            lapsed=bool(lapsed),
        )
        for _, _, connection_id, breaker, failures, opened_at, sends, looks, lapsed in found
        if connection_id is not None and (sends or looks)
    ]
    return Open(lanes, found[0][0], moment(found[0][1]))


# --- tokens
# -----------------------------------------------------------------------------------------


# The clock as of the lock: had the row been changed while we waited for it, all of this is
# evaluated anew; had it not, then nothing was taken meanwhile.
_LOCK_POSTGRES = """
SELECT level, refreshed_at, rate, burst, slowed_until, clock_timestamp() FROM hub_bucket
WHERE scope = %s AND "group" = %s FOR UPDATE
"""
_READ_SQLITE = """
SELECT level, refreshed_at, rate, burst, slowed_until, NULL FROM hub_bucket
WHERE scope = %s AND "group" = %s
"""


class Tokens:
    """The buckets of one transaction: locked when first asked for, written back by `store`.

    Two connections to one remote share a bucket. Use it inside one short transaction, in the order
    of the scopes.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now
        self._levels: dict[tuple[str, str], float] = {}
        self._taken: dict[tuple[str, str], int] = {}

    def left(self, limit: RateLimit) -> int:
        """Whole tokens that may be taken now."""
        key = (limit.scope, limit.group)
        if key not in self._levels:
            self._levels[key] = self._lock(limit)
        return max(0, int(self._levels[key] - self._taken.get(key, 0)))

    def take(self, limit: RateLimit, count: int) -> None:
        """Take tokens; they are not given back, whatever becomes of the call."""
        key = (limit.scope, limit.group)
        self._taken[key] = self._taken.get(key, 0) + count

    def store(self) -> None:
        """Write what was taken."""
        for (scope, group), taken in sorted(self._taken.items()):
            if taken:
                rows(
                    "UPDATE hub_bucket SET level = %s, refreshed_at = %s WHERE scope = %s "
                    'AND "group" = %s RETURNING 1',
                    [self._levels[scope, group] - taken, stamp(self._now), scope, group],
                )

    def _lock(self, limit: RateLimit) -> float:
        postgres = is_postgres()
        sql = _LOCK_POSTGRES if postgres else _READ_SQLITE
        found = rows(sql, [limit.scope, limit.group])
        if not found:
            self._make(limit)
            found = rows(sql, [limit.scope, limit.group])
        level, refreshed_at, rate, burst, slowed_until, read_at = found[0]
        self._now = read_at if postgres else self._now or database_now()
        slowed = moment(slowed_until)
        if rate != limit.rate or burst != limit.burst:
            Bucket.objects.filter(scope=limit.scope, group=limit.group).update(
                rate=limit.rate, burst=limit.burst
            )
        refill = limit.rate / 2 if slowed is not None and slowed > self._now else limit.rate
        since = moment(refreshed_at)
        gone = 0.0 if since is None else max(0.0, (self._now - since).total_seconds())
        return min(limit.burst, level + gone * refill)

    def _make(self, limit: RateLimit) -> None:
        with transaction.atomic():
            Bucket.objects.bulk_create(
                [
                    Bucket(
                        scope=limit.scope,
                        group=limit.group,
                        rate=limit.rate,
                        burst=limit.burst,
                        level=limit.burst,
                        refreshed_at=self._now or database_now(),
                    )
                ],
                ignore_conflicts=True,
            )


def take_tokens(
    wanted: Mapping[RateLimit, int], now: datetime | None = None
) -> dict[RateLimit, int]:
    """Take up to so many tokens of each limit for further calls of running steps; how many there
    were.
    """
    granted: dict[RateLimit, int] = {}
    with transaction.atomic():
        tokens = Tokens(now)
        for limit in sorted(wanted, key=lambda one: (one.scope, one.group)):
            granted[limit] = min(wanted[limit], tokens.left(limit))
            tokens.take(limit, granted[limit])
        tokens.store()
    return granted


def slow_down(limits: Iterable[RateLimit], seconds: float, now: datetime | None = None) -> None:
    """The remote said "too fast": these buckets are emptied and refill at half their rate for a
    while.
    """
    now = now or database_now()
    for limit in limits:
        Bucket.objects.filter(scope=limit.scope, group=limit.group).update(
            level=0, refreshed_at=now, slowed_until=now + timedelta(seconds=max(seconds, 1.0) * 10)
        )


def throttle(connection_id: int, seconds: float, now: datetime | None = None) -> None:
    """Nothing is claimed on this connection for so many seconds (protocol §10: `Retry-After`)."""
    until = (now or database_now()) + timedelta(seconds=seconds)
    Gate.objects.filter(connection_id=connection_id).exclude(throttled_until__gt=until).update(
        throttled_until=until
    )


LONG_BREAK = 5
"""Openings in a row after which a break is a long one: each waits twice as long as the last."""


# --- breaker
# ----------------------------------------------------------------------------------------


def count_bad(
    connection_id: int,
    bad: int,
    *,
    threshold: int,
    pause: float,
    cap: float,
    now: datetime | None = None,
) -> bool:
    """Count failures in a row; True when this opened the breaker."""
    now = now or database_now()
    sql = """
      UPDATE hub_gate SET failures = failures + %s WHERE connection_id = %s AND breaker = 'closed'
      RETURNING failures, openings"""
    found = rows(sql, [bad, connection_id])
    if not found or found[0][0] < threshold:
        return False
    wait = min(cap, pause * 2 ** min(found[0][1], 16))
    return bool(
        Gate.objects.filter(
            connection_id=connection_id, breaker=Breaker.CLOSED, failures__gte=threshold
        ).update(
            breaker=Breaker.OPEN,
            breaker_until=now + timedelta(seconds=wait),
            openings=found[0][1] + 1,
        )
    )


def count_good(connection_id: int) -> None:
    """The remote answers: failures are counted anew."""
    Gate.objects.filter(connection_id=connection_id, breaker=Breaker.CLOSED).exclude(
        failures=0, openings=0
    ).update(failures=0)


def take_probe(connection_id: int, seconds: float, now: datetime | None = None) -> bool:
    """Whether the caller may make the one probe of an open breaker; others wait `seconds` for its
    end.
    """
    now = now or database_now()
    return bool(
        Gate.objects.filter(connection_id=connection_id, breaker_until__lte=now)
        .exclude(breaker=Breaker.CLOSED)
        .update(breaker=Breaker.HALF_OPEN, breaker_until=now + timedelta(seconds=seconds))
    )


def probed(
    connection_id: int, well: bool, *, pause: float, cap: float, now: datetime | None = None
) -> None:
    """The probe's end: close the breaker, or open it again for longer. A probe of unknown fate is
    not well.
    """
    now = now or database_now()
    gate = Gate.objects.filter(connection_id=connection_id, breaker=Breaker.HALF_OPEN)
    if well:
        # Ages start anew after a break that was long. Were it so after every one, a breaker that
        # opens and closes for ever would keep what cannot be found out for ever, too.
        gate.filter(openings__gte=LONG_BREAK).update(opened_at=now)
        gate.update(breaker=Breaker.CLOSED, breaker_until=None, failures=0, openings=0)
        return
    openings = gate.values_list("openings", flat=True).first()
    if openings is not None:
        wait = min(cap, pause * 2 ** min(openings, 16))
        gate.update(
            breaker=Breaker.OPEN,
            breaker_until=now + timedelta(seconds=wait),
            openings=openings + 1,
        )


# --- pause ----------------------------------------------------------------------------------------


def pause(
    connection_id: int,
    kind: str,
    reason: str,
    *,
    by: str = "",
    until: datetime | None = None,
    now: datetime | None = None,
) -> bool:
    """Stop claiming and marking on a connection; what has left settles. True when it was not paused
    before.

    A person's pause is not replaced by a machine's.
    """
    now = now or database_now()
    values: dict[str, Any] = {
        "paused_at": now,
        "paused_until": until,
        "pause_kind": kind,
        "pause_reason": reason[:500],
        "paused_by": by,
    }
    gate = Gate.objects.filter(connection_id=connection_id)
    fresh = gate.filter(paused_at__isnull=True) | gate.filter(paused_until__lte=now)
    if Gate.objects.filter(pk__in=fresh.values("pk")).update(**values):
        return True
    if kind == PauseKind.PERSON:
        gate.update(**values)
    return False


def resume(connection_id: int, *, now: datetime | None = None) -> bool:
    """Open a paused gate, and the breaker with it; True when it was paused. Ages count from here
    (§11).
    """
    now = now or database_now()
    return bool(
        Gate.objects.filter(connection_id=connection_id, paused_at__isnull=False).update(
            paused_at=None,
            paused_until=None,
            pause_kind="",
            pause_reason="",
            paused_by="",
            opened_at=now,
            breaker=Breaker.CLOSED,
            breaker_until=None,
            failures=0,
        )
    )


def end_pauses(now: datetime | None = None) -> int:
    """Note the end of pauses whose time is over, so that ages count from it (sweep)."""
    now = now or database_now()
    ended = 0
    for gate in Gate.objects.filter(paused_at__isnull=False, paused_until__lte=now):
        ended += Gate.objects.filter(pk=gate.pk, paused_until=gate.paused_until).update(
            paused_at=None,
            paused_until=None,
            pause_kind="",
            pause_reason="",
            paused_by="",
            opened_at=gate.paused_until,
        )
    return ended


def degrade(
    connection_id: int, action: str, lost: str, why: str, now: datetime | None = None
) -> None:
    """An action turned out not to have what it declares: until a green test it is of its next
    class.
    """
    now = now or database_now()
    with transaction.atomic():
        query = Gate.objects.filter(connection_id=connection_id)
        gate = (query.select_for_update() if is_postgres() else query).get()
        gate.degraded[action] = {"lost": lost, "why": why[:300], "since": now.isoformat()}
        query.update(degraded=gate.degraded)


def restore_class(connection_id: int, actions: Iterable[str] | None = None) -> None:
    """A green test: these actions (all by default) are again what they declare."""
    with transaction.atomic():
        query = Gate.objects.filter(connection_id=connection_id)
        gate = (query.select_for_update() if is_postgres() else query).get()
        kept = (
            {k: v for k, v in gate.degraded.items() if k not in set(actions)}
            if actions is not None
            else {}
        )
        query.update(degraded=kept)


def ensure(connection_row: Connection) -> Gate:
    """The gate of a connection, made with it."""
    return Gate.objects.get_or_create(connection=connection_row)[0]
