"""Supervises one Django-Q2 cluster: starts it, restarts it when it ends or stands still, stops it
politely.

The cluster runs in a session of its own, because a killed parent leaves children that go on taking
tasks, and a worker killed while idle can freeze the rest without anybody noticing. Nobody else
trusts its exit code either.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connection

from hub import bell, health, tasks
from hub.management import processes
from hub.models import Heartbeat, Installation
from hub.sql import execute, is_postgres

MARKER = "HUB_SUPERVISED_BY"
"""Environment variable of everything in the cluster: which hub it works for, and which supervisor
started it.
"""


LOCK_PATIENCE = 2000
"""Milliseconds the supervisor waits for SQLite's lock."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Seconds. `grace` is what a polite stop may take before the rest is killed."""

    due: float
    beat: float
    look: float = 5.0
    grace: float = 10.0
    pause: float = 1.0
    pause_cap: float = 30.0


def this_hub() -> str:
    """A short name of this hub on this host, by its database."""
    database = settings.DATABASES["default"]
    parts = [str(database.get(name, "")) for name in ("ENGINE", "HOST", "PORT", "NAME")]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def marker() -> str:
    """What `MARKER` says in a cluster of this process."""
    pid = os.getpid()
    return f"{this_hub()}:{pid}:{processes.started_at(pid)}"


def strays() -> list[int]:
    """Processes of this hub's clusters on this host whose supervisor is gone."""
    found = []
    for pid, value in processes.marked(MARKER).items():
        hub, _, rest = value.partition(":")
        supervisor, _, started = rest.partition(":")
        if hub != this_hub() or not supervisor.isdigit():
            continue
        if not processes.is_alive(int(supervisor), started):
            found.append(pid)
    return found


def clear_strays(say: Callable[[str], None]) -> None:
    """End what a killed supervisor left behind. Before anything else: one of them may be frozen
    inside a transaction, and hold up all who write.
    """
    killed = processes.kill_all(strays)
    if killed:
        say(f"ended {len(killed)} processes that a killed supervisor had left behind")


class Supervisor:
    """One cluster, from start to end; `run` blocks until a stop is asked for."""

    def __init__(
        self,
        ages: Ages,
        *,
        say: Callable[[str], None],
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        manage = Path(settings.BASE_DIR) / "manage.py"
        self._command = list(command) or [sys.executable, str(manage), "qcluster"]
        self._environment = dict(os.environ if environment is None else environment)
        self._ages = ages
        self._say = say
        self._host = socket.gethostname()[:200]
        self._epoch = 0
        self._cluster: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._last_beat = 0.0

    def run(self) -> int:
        """Supervise until SIGTERM or SIGINT; 0 after a polite stop, 1 when the installation refuses
        workers.
        """
        with processes.Signals() as signals:
            quick = 0
            while not signals.stop:
                if not self._installation_is_known():
                    return 1
                self._start()
                why = self._watch(signals)
                self._end(polite=signals.stop)
                if signals.stop:
                    break
                quick = quick + 1 if time.monotonic() - self._started < 10 * self._ages.pause else 0
                wait = min(self._ages.pause_cap, self._ages.pause * 2 ** min(quick, 10))
                self._say(f"{why}; starting a new one in {wait:g} s")
                signals.wait(wait) if quick else None
        return 0

    # --- one life of the cluster ---

    def _start(self) -> None:
        self._cluster = processes.start(
            self._command,
            {**self._environment, MARKER: marker()},
            folder=Path(settings.BASE_DIR),
        )
        self._started = self._last_beat = time.monotonic()
        self._say(f"cluster {self._cluster.pid} started")
        self._with_database(bell.start_drain)

    def _watch(self, signals: processes.Signals) -> str:
        """Wait until the cluster ends, stands still, or a stop is asked for; why, in words."""
        cluster = self._running()
        looked = self._started
        while not signals.stop:
            signals.wait(min(0.5, self._ages.look))
            code = cluster.poll()
            if code is not None:
                return f"cluster {cluster.pid} has ended with code {code}"
            if time.monotonic() - looked < self._ages.look:
                continue
            looked = time.monotonic()
            why = self._look(cluster.pid)
            if why:
                return f"cluster {cluster.pid}: {why}"
        return ""

    def _look(self, session: int) -> str:
        """Why this cluster has to be restarted, if it has to be. An unreachable database is no
        reason.

        It reads before it writes: on SQLite, a worker frozen inside a transaction holds up every
        writer, and reading is what finds it.
        """
        pids = processes.members(session)
        seen: list[str] = []
        self._with_database(lambda: seen.append(self._judge(pids)))
        if not self._installation_is_known():
            return "this installation went back to an older epoch"
        if seen and seen[0]:
            return seen[0]
        self._with_database(lambda: self._keep_up(pids))
        return ""

    def _judge(self, pids: Sequence[int]) -> str:
        now = time.monotonic()
        since = now - self._started
        found = health.standing(
            due_age=self._ages.due,
            beat_age=self._ages.beat,
            host=self._host,
            pids=pids or [0],
            since=min(since, now - self._last_beat),
        )
        if found.why:
            return found.why
        if found.beat is not None:
            self._last_beat = max(self._last_beat, now - found.beat)
        # A drain that was stopped takes its heartbeat away: for a moment there may be none.
        silent = min(since, now - self._last_beat)
        if silent > self._ages.due + self._ages.beat:
            # A drain is always resident, so this long a silence means that none can be, due work or
            # not.
            return f"no drain has reported for {silent:.0f} s"
        return ""

    def _keep_up(self, pids: Sequence[int]) -> None:
        self._forget_dead(pids)
        # A trigger that does not pass through the cluster: without it, a frozen cluster with
        # nothing to do would be found only by the next customer's change.
        health.submit_probe()
        # Clusters share their wake-ups: another one may have taken those that were meant for idle
        # workers here.
        beating = health.drains(self._ages.beat, host=self._host, pids=pids or [0])
        if beating.count() < settings.HUB_WORKERS:
            bell.start_drain()

    def _end(self, *, polite: bool) -> None:
        """Nothing of this cluster runs afterwards."""
        cluster = self._running()
        if polite and cluster.poll() is None:
            self._stop_politely(cluster)
        left = processes.kill_session(cluster.pid)
        cluster.wait()
        if left:
            self._say(f"cluster {cluster.pid}: ended {len(left)} processes that were left")
        gone = [cluster.pid, *left]
        self._with_database(
            lambda: Heartbeat.objects.filter(host=self._host, pid__in=gone).delete()
        )
        self._with_database(lambda: self._forget_dead([]))
        self._cluster = None

    def _stop_politely(self, cluster: subprocess.Popen[bytes]) -> None:
        """Drains first, each by its own handler; then the main process, which waits for them."""
        end = time.monotonic() + self._ages.grace
        told = False
        while cluster.poll() is None and time.monotonic() < end:
            # Drains alone have a handler for SIGURG; everyone else ignores it, idle workers too.
            # Again and again, because a worker may take a wake-up that was already in the cluster's
            # memory.
            processes.signal_session(cluster.pid, signal.SIGURG)
            if not told:
                told = True
                cluster.terminate()
            try:
                cluster.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
        if cluster.poll() is None:
            self._say(f"cluster {cluster.pid} did not stop in {self._ages.grace:g} s and is killed")

    # --- around it ---

    def _running(self) -> subprocess.Popen[bytes]:
        if self._cluster is None:
            raise RuntimeError("no cluster has been started")
        return self._cluster

    def _forget_dead(self, alive: Sequence[int]) -> None:
        """Remove heartbeats of this host whose process is gone; its work comes back when its leases
        lapse.
        """
        if not Path("/proc").exists():
            return
        for beat in Heartbeat.objects.filter(host=self._host):
            if beat.pid not in alive and not processes.is_alive(beat.pid):
                Heartbeat.objects.filter(pk=beat.pk, beat_at=beat.beat_at).delete()

    def _installation_is_known(self) -> bool:
        """Refuse an epoch below one this process has seen: the database was put back, and nobody
        said so.
        """
        epochs: list[int] = []
        self._with_database(
            lambda: epochs.extend(Installation.objects.values_list("epoch", flat=True))
        )
        if not epochs:
            return True
        if epochs[0] < self._epoch:
            self._say(
                f"the database is at epoch {epochs[0]}, but this supervisor has seen "
                f"{self._epoch}: it was restored. "
                "Run manage.py hub_restored, then start the workers again"
            )
            return False
        self._epoch = epochs[0]
        return True

    def _with_database(self, work: Callable[[], object]) -> None:
        """Do something small there; when it cannot be done now, the next round tries again."""
        try:
            if not is_postgres():
                # A stop must not wait for a lock that nobody lets go.
                execute(f"PRAGMA busy_timeout = {LOCK_PATIENCE}")
            work()
        except DatabaseError as error:
            self._say(f"database: {type(error).__name__}: {str(error).strip()[:200]}")
        finally:
            connection.close()  # held between looks, it would only go stale


def prepare() -> None:
    """What has to stand before a cluster starts: times that nest, the schedule, the probe's
    connection.

    Raises `ImproperlyConfigured` for times that do not nest.
    """
    tasks.refuse_wrong_times()
    Installation.current()
    tasks.ensure_schedule()
    health.ensure_probe()
    connection.close()
