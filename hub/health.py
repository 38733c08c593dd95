"""Ages, counts and heartbeats as plain data, and the probe that proves the whole way (H6).

A running process proves nothing: what counts is how old the oldest due work is, and when an
operation last went all the way through queue, worker, wire and settle.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection as database
from django.db import transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Min, OuterRef, Q, QuerySet, Subquery

from hub import credentials, gate, keys, outbox
from hub.indexes import CLAIMABLE_NOW, TO_LOOK_AT
from hub.models import Connection, Gate, Heartbeat, Installation, Operation, Tenant
from hub.models.gate import Breaker
from hub.sql import database_now, execute
from hub.states import State

PROBE = "probe"
"""Label of the integration whose operations go to the hub's own web process, and the slug of its
connection.
"""
PROBE_ACTION = "probe.echo"
EXCHANGE_LIMIT = 180.0
"""Seconds without a whole exchange after which the hub says that it does not work."""
_REMEMBERED = 15
"""Minutes for which probes are looked for by name."""


# --- drains and due work --------------------------------------------------------------------------


def drains(
    within: float, *, now: datetime | None = None, host: str = "", pids: Collection[int] = ()
) -> QuerySet[Heartbeat]:
    """Heartbeats not older than `within` seconds; of one host, or of some of its processes, when
    these are given.
    """
    now = now or database_now()
    found = Heartbeat.objects.filter(beat_at__gte=now - timedelta(seconds=within))
    if host:
        found = found.filter(host=host[:200])
    return found.filter(pid__in=pids) if pids else found


def forget_drains(older: float, *, now: datetime | None = None) -> int:
    """Remove heartbeats that stopped so many seconds ago ; a good end removes its own."""
    now = now or database_now()
    return Heartbeat.objects.filter(beat_at__lt=now - timedelta(seconds=older)).delete()[0]


def _open_gates(now: datetime) -> QuerySet[Gate]:
    """The gates work may go through now, as `hub.gate.opened` sees them."""
    return Gate.objects.filter(
        Q(paused_at__isnull=True) | Q(paused_until__lte=now),
        Q(throttled_until__isnull=True) | Q(throttled_until__lte=now),
        Q(breaker=Breaker.CLOSED) | Q(breaker_until__lte=now),
        connection__retired_at__isnull=True,
    )


def oldest_due(now: datetime | None = None) -> float | None:
    """Seconds for which the oldest due operation has been waiting for a worker; None when nothing
    is due.

    Waiting are what may be claimed through an open gate, and what nobody gave back when its lease
    ran out.
    """
    now = now or database_now()
    # One row of an index per connection and kind: a minimum over everything due would read it all.
    mine = Operation.objects.filter(connection_id=OuterRef("pk")).order_by("next_at")
    to_send = mine.filter(CLAIMABLE_NOW)
    to_look = mine.filter(TO_LOOK_AT, lease_until__isnull=True)
    firsts = _open_gates(now).values_list(
        Subquery(to_send.values("next_at")[:1]), Subquery(to_look.values("next_at")[:1])
    )
    lapsed = Operation.objects.filter(lease_until__lt=now).aggregate(at=Min("lease_until"))["at"]
    found = [at for pair in firsts for at in pair if at is not None and at <= now]
    found += [] if lapsed is None else [lapsed]
    return (now - min(found)).total_seconds() if found else None


@dataclass(frozen=True, slots=True)
class Standing:
    """What the watchdog saw: `why` is empty when workers do their work, else one line for an
    operator.
    """

    due: float | None
    beat: float | None
    why: str = ""

    @property
    def line(self) -> str:
        """One line that says how it stands."""
        if self.why:
            return self.why
        due = "nothing is due" if self.due is None else f"oldest due work waits {self.due:.0f} s"
        beat = "no drain is known" if self.beat is None else f"last heartbeat {self.beat:.0f} s ago"
        return f"well: {due}, {beat}"


def standing(
    *,
    due_age: float,
    beat_age: float,
    host: str = "",
    pids: Collection[int] = (),
    since: float | None = None,
    now: datetime | None = None,
) -> Standing:
    """Judge whether work stands still: due work older than `due_age` while no heartbeat is younger
    than `beat_age`.

    `host` and `pids` narrow whose heartbeats count. `since` is for how many seconds these workers
    have had the chance to beat: as long as that is less than `beat_age`, nothing is held against
    them.
    """
    now = now or database_now()
    beats = Heartbeat.objects.all()
    if host:
        beats = beats.filter(host=host[:200])
    if pids:
        beats = beats.filter(pid__in=pids)
    last = beats.order_by("-beat_at").values_list("beat_at", flat=True).first()
    beat = None if last is None else (now - last).total_seconds()
    due = oldest_due(now)
    silent = min((age for age in (beat, since) if age is not None), default=None)
    if due is None or due <= due_age or (silent is not None and silent <= beat_age):
        return Standing(due, beat)
    said = (
        "no drain has ever reported" if beat is None else f"the last heartbeat is {beat:.0f} s old"
    )
    return Standing(
        due,
        beat,
        f"work stands still: due work has waited {due:.0f} s, and {said}; restart the workers",
    )


# --- the probe ------------------------------------------------------------------------------------


def ensure_probe(url: str = "") -> Connection:
    """The connection to the hub's own web process, made when there is none; its address follows
    `HUB_INTERNAL_URL`.
    """
    url = url or settings.HUB_INTERNAL_URL
    found = Connection.objects.filter(integration=PROBE, retired_at=None).order_by("pk").first()
    if found is None:
        with transaction.atomic():
            tenant = Tenant.objects.get_or_create(slug="hub", defaults={"name": "This hub"})[0]
            found = Connection.objects.get_or_create(
                name=PROBE,
                defaults={
                    "tenant": tenant,
                    "label": "Probe: the hub's own web process",
                    "integration": PROBE,
                    "account": "self",
                    "base_url": url,
                    # The probe never leaves the installation: its own network has to be allowed.
                    "networks": (
                        "127.0.0.0/8 ::1/128 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fd00::/8"
                    ),
                },
            )[0]
    elif found.base_url != url:
        Connection.objects.filter(pk=found.pk).update(base_url=url)
        found.base_url = url
    gate.ensure(found)
    return found


def _minute(now: datetime) -> int:
    return int(now.timestamp() // 60)


def submit_probe(now: datetime | None = None) -> int | None:
    """Submit this minute's synthetic operation; its id, or None when it was submitted before or
    there is no probe.

    Each is a stream of its own, so that one that hangs never hides those after it.
    """
    now = now or database_now()
    found = (
        Connection.objects.select_related("tenant")
        .filter(integration=PROBE, retired_at=None)
        .order_by("pk")
        .first()
    )
    if found is None:
        return None
    minute = _minute(now)
    submitted = outbox.submit(
        found,
        PROBE_ACTION,
        source_id=str(minute),
        version=1,
        fields={"nonce": f"minute-{minute}"},
        source_system="probe",
    )
    return submitted.operation_id if submitted.fresh else None


@dataclass(frozen=True, slots=True)
class Exchange:
    """When a synthetic operation last went the whole way, and how many seconds ago; None: never."""

    at: datetime | None
    age: float | None

    @property
    def well(self) -> bool:
        """Whether that is recent enough."""
        return self.age is not None and self.age <= EXCHANGE_LIMIT


def exchange(now: datetime | None = None) -> Exchange:
    """The last whole exchange: of the probes of the last minutes, else what was noted before."""
    now = now or database_now()
    minute = _minute(now)
    streams = [
        keys.stream_key(object_type=PROBE, source_system="probe", source_id=str(minute - back))
        for back in range(_REMEMBERED)
    ]
    at = (
        Operation.objects.filter(
            connection__integration=PROBE,
            stream__in=streams,
            first_sent_at__isnull=False,
            state=State.CONFIRMED.value,
        )
        .order_by("-confirmed_at")
        .values_list("confirmed_at", flat=True)
        .first()
    ) or Installation.objects.filter(pk=1).values_list("exchange_at", flat=True).first()
    return Exchange(at, None if at is None else (now - at).total_seconds())


def note_exchange(now: datetime | None = None) -> None:
    """Keep the moment of the last whole exchange beyond the minutes for which probes are looked
    for.
    """
    at = exchange(now).at
    if at is not None:
        Installation.objects.filter(pk=1).exclude(exchange_at=at).update(exchange_at=at)


# --- readiness ------------------------------------------------------------------------------------


def not_ready() -> list[str]:
    """What keeps this process from serving, in a word or two each; empty when it is ready.

    Raises `django.db.DatabaseError` when the database cannot be reached or written.
    """
    problems: list[str] = []
    executor = MigrationExecutor(database)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return ["migrations are not applied"]
    # Touches no row, and yet fails where nothing can be written: a replica, a full or read-only
    # disk.
    execute("UPDATE hub_installation SET mark = mark WHERE id = %s", [-1])
    sealed = (
        Connection.objects.exclude(secrets="")
        .filter(retired_at=None)
        .order_by("-pk")
        .values_list("secrets", flat=True)
        .first()
    )
    if sealed:
        try:
            credentials.open_sealed(sealed)
        except credentials.CannotOpen:
            problems.append("the credential keys do not open what was sealed")
    return problems
