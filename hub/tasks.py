"""What Django-Q2 runs: `drain()` and the one-minute `tick()`. Neither takes an argument; both may
run twice or never.

A drain fills its worker for its whole budget, so the chores of the minute are done by whoever comes
first, drain or tick. Everything here is idempotent.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, transaction
from django.utils import timezone
from django_q.models import Failure, OrmQ, Schedule

from hub import bell, checks, credentials, health, outbox, remote
from hub.contract import BadPayload
from hub.delivery import Drain
from hub.models import Connection, Installation
from hub.registry import UnknownIntegration
from hub.remote import Remote
from hub.sql import database_now
from hub.sweep import Sweeper
from hub.tuning import tuning

log = logging.getLogger("hub.tasks")
SCHEDULE = "hub: every minute"
TICK = "hub.tasks.tick"
KEEP_FAILURES = timedelta(days=7)
FORGET_DRAINS = 3600.0
"""Seconds after which a heartbeat that stopped is removed by whoever notices; until then it tells
what happened.
"""


def drain() -> int:
    """Carry what is due until the budget ends or a stop is asked for; how many moves were settled.

    Raises `ImproperlyConfigured` when the times in force do not nest: leases too short are how
    duplicates are made.
    """
    refuse_wrong_times()
    # The successor waits in the cluster from now on: if this worker is killed, the next one takes
    # it at once. Rung at the end, it would be lost with this drain, and only the next tick would
    # notice.
    bell.start_drain()
    chores()
    connection.close()  # the drain's own thread has its own; this one would only idle beside it
    return Drain(signals=True).run()


def tick() -> int:
    """Every minute: what a lost wake-up, a dead drain or an empty database would leave undone; how
    many moves were made.
    """
    if health.drains(settings.HUB_WATCHDOG_BEAT_AGE).count() < settings.HUB_WORKERS:
        bell.start_drain()
    chores()
    return sweep_once()


def chores() -> None:
    """Submit the minute's probe, note the last whole exchange, and throw away what nobody reads any
    more.
    """
    for work in (health.submit_probe, health.note_exchange, throw_away):
        try:
            with transaction.atomic():
                work()
        except (DatabaseError, BadPayload, outbox.Impossible, outbox.Drift) as error:
            # The drain that follows has its own connection and tries again; a chore waits for the
            # next minute.
            log.warning("chore %s: %s: %s", work.__name__, type(error).__name__, error)


def forget_taken() -> None:
    """Remove wake-ups that a killed cluster had taken long ago, before they come back one by one.

    A cluster that still holds one of them in its memory runs it all the same.
    """
    task_timeout, retry = settings.Q_CLUSTER["timeout"], settings.Q_CLUSTER["retry"]
    now = timezone.now()
    taken_before = now + timedelta(seconds=retry - 2 * task_timeout)
    for row in OrmQ.objects.filter(lock__gt=now, lock__lt=taken_before):
        if row.func() in (bell.DRAIN, TICK):  # another app's tasks are none of our business
            row.delete()


def throw_away() -> None:
    """Django-Q2 never prunes its failures, and a killed drain cannot remove its heartbeat."""
    old = timezone.now() - KEEP_FAILURES
    Failure.objects.filter(stopped__lt=old).delete()
    health.forget_drains(FORGET_DRAINS)
    forget_taken()


def sweep_once() -> int:
    """One sweep over every connection that can be used (protocol §17: any process may, at any
    time).
    """
    remotes = ready_remotes()
    return Sweeper(tuning()).sweep(remotes, timezone.now)


def ready_remotes() -> dict[int, Remote]:
    """The connections in use, ready; one that cannot be made ready is left out and named in the
    log.
    """
    mark = Installation.current().mark
    found: dict[int, Remote] = {}
    rows = Connection.objects.select_related("tenant", "gate").filter(
        retired_at__isnull=True, gate__isnull=False
    )
    for row in rows:
        try:
            found[row.pk] = remote.make(row, mark=mark)
        except (UnknownIntegration, credentials.CannotOpen) as error:
            log.warning("connection %s: %s", row.name, error)
    return found


def refuse_wrong_times() -> None:
    """Raise `ImproperlyConfigured` when leases, calls and time-outs do not nest (F23)."""
    wrong = checks.wrong_times()
    if wrong:
        raise ImproperlyConfigured(" ".join(wrong))


def ensure_schedule() -> None:
    """Make the one-minute schedule, once; a second one, or one with arguments, is put right."""
    with transaction.atomic():
        mine = list(Schedule.objects.filter(func=TICK).order_by("pk"))
        if not mine:
            Schedule.objects.create(
                name=SCHEDULE,
                func=TICK,
                schedule_type=Schedule.MINUTES,
                minutes=1,
                repeats=-1,
                next_run=database_now(),
            )
            return
        Schedule.objects.filter(pk__in=[row.pk for row in mine[1:]]).delete()
        # One schedule with bad arguments stops them all, so ours never has any.
        Schedule.objects.filter(pk=mine[0].pk).update(
            name=SCHEDULE,
            args=None,
            kwargs=None,
            hook=None,
            schedule_type=Schedule.MINUTES,
            minutes=1,
            repeats=-1,
            cluster=None,
            intended_date_kwarg=None,
        )


def after_migrate(sender: AppConfig, **more: object) -> None:
    """Make the schedule once its table exists (`migrate` may be told to stop before)."""
    tables = connection.introspection.table_names()
    if Schedule._meta.db_table in tables:
        ensure_schedule()
