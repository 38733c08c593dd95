"""After a restore or a failover: what was forgotten must not be sent blindly (protocol §17; F81,
F82).

Markers newer than the backup are gone. So the installation enters a new epoch: the sweep takes what
is unfinished of an older one as *unknown*, one operation per stream, and tokens and versions start
above anything that may have been given out and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Max

from hub import health
from hub.models import Heartbeat, Installation, Operation
from hub.sql import database_now
from hub.states import FINAL, RESTING

STEP = 1_000_000
"""How far tokens and versions jump: more than any installation gives out between two backups."""


class WorkersAlive(Exception):
    """Drains are at work, or were a moment ago; the text says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Operations that will be treated as unknown."""

    connection: str
    state: str
    count: int


@dataclass(frozen=True, slots=True)
class Raised:
    """The installation after the change."""

    epoch: int
    token_base: int
    version_base: int
    restored_at: datetime


def waiting() -> list[Waiting]:
    """What will be marked, by connection and state. What rests with a person or has ended is left
    alone.
    """
    left_alone = [state.value for state in (*FINAL, *RESTING)]
    found = (
        Operation.objects.exclude(state__in=left_alone)
        .values_list("connection__name", "state")
        .annotate(count=Count("pk"))
        .order_by("connection__name", "state")
    )
    return [Waiting(*row) for row in found]


def refuse_while_working(now: datetime | None = None) -> None:
    """Raise `WorkersAlive` when a heartbeat is fresh: a worker of the old epoch would go on
    sending.
    """
    live = health.drains(settings.HUB_WATCHDOG_BEAT_AGE, now=now)
    names = ", ".join(f"{beat.drain} on {beat.host}" for beat in live[:5])
    if names:
        raise WorkersAlive(
            f"Workers are at work, or were less than {settings.HUB_WATCHDOG_BEAT_AGE:g} s ago: "
            f"{names}. "
            "Stop them on every host (hub_run), wait that long, then run this again."
        )


def raise_epoch(at: datetime | None = None) -> Raised:
    """Enter a new epoch. `at` is the last moment the lost installation can have sent anything; now
    by default.

    Raises `WorkersAlive`, and `ValueError` when `at` lies in the future.
    """
    with transaction.atomic():
        Installation.objects.get_or_create(pk=1)
        mine = Installation.objects.select_for_update().get(pk=1)
        now = database_now()
        refuse_while_working(now)
        if at is not None and at > now:
            raise ValueError(f"{at.isoformat()} lies in the future (it is {now.isoformat()}).")
        most = Operation.objects.aggregate(token=Max("lease_token"), epoch=Max("epoch"))
        mine.epoch = max(mine.epoch, most["epoch"] or 0) + 1
        mine.token_base = max(mine.token_base, most["token"] or 0) + STEP
        mine.version_base += STEP
        mine.restored_at = at or now
        mine.exchange_at = None  # it speaks of the installation that was lost
        mine.save()
        Heartbeat.objects.all().delete()
    return Raised(mine.epoch, mine.token_base, mine.version_base, mine.restored_at)
