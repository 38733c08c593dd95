"""Wakes workers: a notice to drains that are at work, and a Django-Q2 task that starts one where
none is.

A wake-up carries nothing and may come late, twice or never: it costs latency only (protocol §17).
"""

from __future__ import annotations

from django.db import connection, transaction
from django.utils import timezone
from django_q.models import OrmQ
from django_q.tasks import async_task

from hub.sql import is_postgres, rows

CHANNEL = "hub_due"
DRAIN = "hub.tasks.drain"


def ring_on_commit() -> None:
    """Ring once when the current transaction has committed; at once when there is none."""
    if not any(waiting[1] is ring for waiting in connection.run_on_commit):
        transaction.on_commit(ring)


def ring() -> None:
    """Tell resident drains that something is due, and have one started unless one already waits to
    be.
    """
    if is_postgres():
        # After the commit, not inside it: commits that carry a notice queue behind each other.
        told = rows(
            """SELECT pg_notify(%s, ''),
            EXISTS (SELECT 1 FROM django_q_ormq WHERE lock <= clock_timestamp())""",
            [CHANNEL],
        )
        if told[0][1]:
            return
    start_drain()


def start_drain() -> bool:
    """Queue a drain unless one is queued that nobody has taken; True when one was queued."""
    # A row nobody has taken will see our commit; one that is taken may already be past it.
    if OrmQ.objects.filter(lock__lte=timezone.now()).exists():
        return False
    async_task(DRAIN)
    return True
