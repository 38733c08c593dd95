"""The time of a world. It goes on by itself, and jumps where nothing but waiting would happen.

What a drain in the test's process waits for between two attempts (a lease that has to lapse, a
retry, a look, a hold) is written in rows, as moments of the database's clock. A test that waited
for them would take seconds, and with numbers small enough not to take minutes it would depend on
the machine being quick. So time jumps: the database's clock, the worker's monotonic one and the
remote's go forward together, and leases may be as long as in earnest.

A process of its own (a worker, the stand-in) has the machine's clock: there nothing may jump.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from django.db import connection

from hub.http import boottime

_PATIENCE = 30.0  # seconds for what is due to be done; only a fault needs more


class Clock:
    """Reads the machine's clocks, and adds what has been jumped over."""

    def __init__(self, passed: float = 0.0) -> None:
        self._passed = passed
        self._moved = threading.Condition()
        self._waiting: dict[object, float] = {}

    @property
    def passed(self) -> float:
        """Seconds jumped over so far."""
        return self._passed

    def monotonic(self) -> float:
        """What a worker measures its leases and deadlines by."""
        return boottime() + self._passed

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._passed

    def now(self) -> datetime:
        """The wall's clock; on SQLite the database's, too."""
        return datetime.now(UTC) + timedelta(seconds=self._passed)

    def jump(self, seconds: float) -> None:
        """Let so much time pass at once; whatever falls due by it is done when this returns."""
        with self._moved:
            self._passed += max(0.0, seconds)
            set_database_clock(self._passed)
            self._moved.notify_all()
            done = self._moved.wait_for(lambda: not self._overdue(), _PATIENCE)
        if not done:
            raise AssertionError(f"what fell due was not done within {_PATIENCE:g} s")

    def _overdue(self) -> bool:
        return any(due <= self.monotonic() for due in self._waiting.values())

    @contextmanager
    def after(self, seconds: float) -> Iterator[None]:
        """Wait so long, for something that a jump must not overtake: it is done in the body."""
        mine = object()
        with self._moved:
            due = self._waiting[mine] = self.monotonic() + seconds
            while (left := due - self.monotonic()) > 0:
                self._moved.wait(left)
        try:
            yield
        finally:
            with self._moved:
                del self._waiting[mine]
                self._moved.notify_all()

    def next_due(self) -> float | None:
        """In how many seconds the first thing that waits by `after` is due; None when none does."""
        with self._moved:
            first = min(self._waiting.values(), default=None)
        return None if first is None else max(0.0, first - self.monotonic())


# --- PostgreSQL's own clock -----------------------------------------------------------------------


def set_database_clock(ahead: float) -> None:
    """PostgreSQL: have `clock_timestamp()` go ahead by so many seconds, for every connection.

    A function of that name stands before the server's own in the search path that
    `prepare_database` has set. It is simple enough for the planner to put it in place.
    """
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql "
            "VOLATILE AS $$ SELECT pg_catalog.clock_timestamp() "
            f"+ interval '{ahead:.6f} seconds' $$"
        )


def reset_database_clock() -> None:
    """The server's own clock is in force again."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION IF EXISTS public.clock_timestamp()")


def prepare_database() -> None:
    """Let the test database's own functions come before the server's."""
    if connection.vendor == "postgresql":
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} SET search_path = public, pg_catalog")
        connection.close()
