"""A world for operations: tenants, connections to a remote that really listens, and workers."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.db import connection as database
from django.db.models import Exists, Min, OuterRef, Q

from hub import credentials, gate, outbox
from hub.delivery import Drain
from hub.models import Bucket, Connection, Gate, Installation, Operation, Tenant
from hub.outbox import Submitted
from hub.policy import Limits
from hub.sql import database_now
from hub.states import MOVING
from hub.story import as_dict, as_text
from hub.sweep import Sweeper
from hub.tuning import Tuning
from integrations.bitrix24.simulator.client import Simulator
from tests.harness.clock import Clock, reset_database_clock, set_database_clock
from tests.harness.remote import FakeRemote, witness
from tests.harness.sometimes import Situations
from tests.harness.views import RemoteView, StandIn
from tests.harness.workers import HubRun, Worker

NUMBERS = {"max_send": 5.0, "max_exec": 0.4, "index_lag": 0.2}
"""Seconds; what a connection of a test declares unless it says otherwise."""
SHORT_NUMBERS = {**NUMBERS, "max_send": 1.5}
"""The same where a lease has to lapse while the test waits (`World.short_leases`)."""
CONTACT = {"first_name": "Ann", "last_name": "Smith", "phone": "+4930111222"}
_MOVING = [state.value for state in MOVING]


def small_tuning(**changes: Any) -> Tuning:
    """Tuning for a world whose time jumps: short waits, and leases with room for a busy machine.

    `changes` go to `Limits` or `Tuning` by name.
    """
    steps = {"look_schedule": (0.05, 0.5, 4.0), "sweep_every": 1.0}
    return _tuning({"margin": 2.0, "lease_addend": 100.0, **steps, **changes})


def real_tuning(**changes: Any) -> Tuning:
    """The same where all waits are real; the leases have room still, for nobody has to wait for
    them.
    """
    steps = {"look_schedule": (0.05, 0.1, 0.3), "sweep_every": 0.2}
    return _tuning({"margin": 0.3, "lease_addend": 100.0, **steps, **changes})


def _tuning(changes: Mapping[str, Any]) -> Tuning:
    limits: dict[str, Any] = {"retry_base": 0.05, "retry_cap": 0.5}
    numbers: dict[str, Any] = {
        "poll_interval": 0.05, "drain_budget": 600.0, "breaker_pause": 0.1,
        "breaker_pause_cap": 0.4,
    }  # fmt: skip
    for name, value in changes.items():
        (limits if name in Limits.__dataclass_fields__ else numbers)[name] = value
    return Tuning(limits=Limits(**limits), **numbers)


def environment_of(tuning: Tuning) -> dict[str, str]:
    """The same numbers for a worker process."""
    limits = tuning.limits
    return {
        "HUB_MARGIN": str(limits.margin),
        "HUB_RETRY_BASE": str(limits.retry_base),
        "HUB_RETRY_CAP": str(limits.retry_cap),
        "HUB_LOOK_SCHEDULE": ",".join(str(step) for step in limits.look_schedule),
        "HUB_MAX_ATTEMPTS": str(limits.max_attempts),
        "HUB_MAX_AGE": str(limits.max_age),
        "HUB_MAX_LAPSES": str(limits.max_lapses),
        "HUB_UNCERTAIN_MAX": str(limits.uncertain_max),
        "HUB_ACCEPTED_MAX": str(limits.accepted_max),
        "HUB_LEASE_ADDEND": str(tuning.lease_addend),
        "HUB_SWEEP_EVERY": str(tuning.sweep_every),
        "HUB_POLL_INTERVAL": str(tuning.poll_interval),
        "HUB_CLAIM_DEPTH": str(tuning.claim_depth),
        "HUB_SENDERS": str(tuning.senders),
        "HUB_LOG_LEVEL": "DEBUG",
    }


class NotAtRest(AssertionError):
    """Something was still moving when its time was over (I21); the text says what."""


class World:
    """Everything one test needs to run operations. Made by the fixture `world`, which checks it
    afterwards.
    """

    def __init__(
        self,
        *,
        database_url: str,
        environment: Mapping[str, str],
        folder: Path,
        situations: Situations,
    ) -> None:
        self.database_url = database_url
        self.environment = dict(environment)
        self.folder = folder
        self.situations = situations
        self.tuning = small_tuning()
        self.views: dict[int, RemoteView] = {}
        self.submitted: dict[int, str] = {}
        self.allowed: dict[str, str] = {}
        self.planted: dict[tuple[int, str], dict[str, Any]] = {}
        self.planted_on: dict[int, set[str]] = {}
        self.known_objects: set[str] = set()
        self.canaries: list[str] = []
        self.concerned: list[int] = []
        self.most_attempts = 60
        self.rate_slack = 0.0
        self.workers: list[Worker] = []
        self.clusters: list[HubRun] = []
        self._simulators: list[Simulator] = []
        self._remotes: list[FakeRemote] = []
        self._log = _Log()
        self.clock = Clock()
        self.numbers: Mapping[str, float] = NUMBERS
        self.real = False
        self._seen_moving: set[Any] = set()
        Installation.objects.get_or_create(pk=1)

    # --- time ---

    def real_time(self) -> None:
        """From here on all waits are real and small: other processes take part, whose time nobody
        can move. Tests marked `processes` begin with it.
        """
        assert self.clock.passed == 0.0, "time has jumped in this test"
        self.real = True
        self.tuning = real_tuning()

    def short_leases(self) -> None:
        """All waits are real, and a lease that lapses is one of them: it is over in seconds.

        A busy machine may then lose a lease that it should have kept, which costs attempts; no such
        test may say how many.
        """
        self.real_time()
        self.tuning = real_tuning(lease_addend=1.5)
        self.numbers = SHORT_NUMBERS

    def jumping_time(self) -> None:
        """Time may jump although the test is marked `processes`: none of them lives to see it."""
        self.real = False
        self.tuning = small_tuning()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, at once where it may."""
        if self.real:
            time.sleep(seconds)
        else:
            self.clock.jump(seconds)

    def skip(self, most: float = 86_400.0) -> None:
        """Nothing is due: let time pass until something may be, in the rows or at the remotes."""
        if self.real:
            time.sleep(0.05)
            return
        wait = min(most, self._until_next())
        self.pass_time(wait)

    def _until_next(self) -> float:
        now = database_now()
        moving = Operation.objects.filter(state__in=_MOVING)
        rows = set(moving.values_list("pk", "state", "lease_token", "next_at", "parked"))
        before, self._seen_moving = self._seen_moving, rows
        due = moving.filter(next_at__lte=now, lease_until=None).exists()
        if due and rows != before:
            return 0.0  # it fell due as the drain ended; if the next drain leaves it, it is held up
        found = [self.clock.next_due()]
        for query, names in (
            (moving, ("next_at", "lease_until")),
            (Operation.objects.all(), ("hold_until", "repeat_until")),
            (Gate.objects.all(), ("paused_until", "breaker_until", "throttled_until")),
            (Bucket.objects.all(), ("slowed_until",)),
        ):
            first = query.aggregate(
                **{name: Min(name, filter=Q(**{f"{name}__gt": now})) for name in names}
            )
            found += [(one - now).total_seconds() for one in first.values() if one is not None]
        ahead = [one for one in found if one is not None]
        if not ahead or Bucket.objects.exists():
            ahead.append(0.05)  # tokens come by no moment that is written anywhere
        elif due:
            ahead.append(5.0)  # nor does everything that holds up what is due
        return min(ahead) + 0.002

    # --- who is there ---

    def tenant(self, slug: str = "acme") -> Tenant:
        """The tenant of that name."""
        return Tenant.objects.get_or_create(slug=slug, defaults={"name": slug.title()})[0]

    def canary(self) -> str:
        """A new secret that must never show up anywhere."""
        self.canaries.append(f"canary-{secrets.token_hex(10)}")
        return self.canaries[-1]

    def stand_in(self, *, witness: bool = True, timeless: bool = False, **options: Any) -> StandIn:
        """Start a Bitrix24 stand-in; it watches the database for I7 and I19 unless told not to.

        Timeless: no fault will be ordered that takes time, so time may jump without it.
        """
        if not timeless:
            self._needs_real_time()
        simulator = Simulator(witness=self.database_url if witness else None, **options).start()
        self._simulators.append(simulator)
        return StandIn(simulator, secret=self.canary(), witnessed=witness)

    def fake_remote(self, *, watched: bool = True) -> FakeRemote:
        """Start a remote for the actions of every class (`classes.py`); it checks I7 unless told
        not to.
        """
        look = witness(self.database_url) if watched else None
        made = FakeRemote(secret=self.canary(), look=look, clock=self.clock).start()
        self._remotes.append(made)
        return made

    def connect(
        self,
        view: RemoteView,
        account: str = "acme",
        *,
        tenant: str = "acme",
        name: str = "",
        numbers: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        max_in_flight: int = 20,
        **columns: Any,
    ) -> Connection:
        """A connection with small numbers and no rate limit (unless asked), and its gate.

        `numbers` are over all actions (`{"max_exec": 1.0}`) or, with a name in it, per action.
        """
        given = dict(numbers or {})
        per_action = {key: value for key, value in given.items() if isinstance(value, Mapping)}
        common = {**self.numbers, **{k: v for k, v in given.items() if k not in per_action}}
        row = Connection.objects.create(
            tenant=self.tenant(tenant),
            name=name or f"{view.integration}-{account}-{len(self.views)}",
            integration=view.integration,
            account=account,
            base_url=view.base_url(account),
            secrets=credentials.seal(dict(view.secrets)),
            networks="127.0.0.0/8",
            numbers={"*": common, **per_action},
            limits={"default": None} if limits is None else dict(limits),
            max_in_flight=max_in_flight,
            **columns,
        )
        gate.ensure(row)
        self.views[row.pk] = view
        return row

    # --- what is asked for ---

    def submit(
        self,
        connection: Connection,
        action: str = "contact.create",
        source_id: str = "1",
        version: int = 1,
        fields: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Submitted:
        """Submit through the front door, and remember that it was acknowledged."""
        given = CONTACT if fields is None else fields
        if action.endswith(".delete") and fields is None:
            given = {}
        done = outbox.submit(
            connection, action, source_id=source_id, version=version, fields=given, **more
        )
        self.acknowledged(done.operation_id, f"{action} {source_id} v{version}")
        return done

    def lapsed(self, operation: Submitted) -> Operation:
        """Let time pass until the operation's lease has lapsed, and sweep; its row afterwards."""
        until = self.operation(operation).lease_until
        assert until is not None, self.story(operation)
        self.pass_time((until - database_now()).total_seconds() + 0.1)
        Sweeper(self.tuning, clock=self.clock.monotonic).sweep({}, database_now)
        return self.operation(operation)

    def acknowledged(self, operation_id: int, what: str) -> None:
        """Remember an operation somebody was told about (I2)."""
        self.submitted.setdefault(operation_id, what)

    def plant(
        self, connection: Connection, view: StandIn, remote_ref: str, fields: Mapping[str, Any]
    ) -> None:
        """A person fills fields we do not own; they must stay (I13)."""
        view.simulator.plant(int(remote_ref), dict(fields), connection.account)
        self.planted.setdefault((connection.pk, remote_ref), {}).update(fields)
        self.planted_on.setdefault(connection.pk, set()).add(remote_ref)

    def allow(self, invariant: str, why: str) -> None:
        """Leave an invariant out, because the test breaks the assumption it rests on; `why` says
        which.
        """
        self.allowed[invariant] = why

    # --- working ---

    def drain(self, *, budget: float = 600.0, until_idle: bool = True, **options: Any) -> int:
        """One drain in this process, until nothing is due."""
        return self.worker(budget=budget, until_idle=until_idle, **options).run()

    def worker(self, **options: Any) -> Drain:
        """A drain to be run by the test, in this process and in this world's time."""
        return Drain(
            **{
                "tuning": self.tuning,
                "clock": self.clock.monotonic,
                "now": self.clock.now,
                **options,
            }
        )

    def settle(self, seconds: float = 2000.0, **options: Any) -> None:
        """Work (here, or by waiting for the workers) until everything rests; raises `NotAtRest`
        (I21) when that takes longer, in this world's time.
        """
        deadline = self.clock.monotonic() + seconds
        while True:
            busy = [one.alive for one in self.workers] + [one.alive for one in self.clusters]
            if not any(busy):
                self.drain(budget=max(0.1, deadline - self.clock.monotonic()), **options)
            if not self.moving() and not self._remotes_busy():
                return
            left = deadline - self.clock.monotonic()
            if left <= 0.0:
                raise NotAtRest(self._still_moving(seconds))
            self.skip(left)

    def drain_until(self, what: Any, seconds: float = 2000.0, **options: Any) -> Any:
        """Work here until `what()` is true; its value. Raises `AssertionError` when that takes
        longer, in this world's time.
        """
        deadline = self.clock.monotonic() + seconds
        while True:
            self.drain(**options)
            found = what()
            if found:
                return found
            left = deadline - self.clock.monotonic()
            if left <= 0.0:
                raise AssertionError(self._still_moving(seconds))
            self.skip(left)

    def _remotes_busy(self) -> bool:
        return any(view.busy() for view in {id(v): v for v in self.views.values()}.values())

    def _still_moving(self, seconds: float) -> str:
        ids = Operation.objects.filter(state__in=_MOVING).values_list("pk", flat=True)[:3]
        stories = "\n\n".join(self.story(pk) for pk in ids)
        said = "\n".join(worker.said()[-1500:] for worker in self.workers)
        return f"After {seconds:g} s not at rest: {dict(self.states())}\n{stories}\n{said}"

    def work(self, count: int = 1, **environment: str) -> list[Worker]:
        """Start worker processes with the world's numbers; killed at the end if nobody did."""
        self._needs_real_time()
        started = []
        for _ in range(count):
            output = self.folder / f"worker-{len(self.workers)}.log"
            wanted = self.environment | environment_of(self.tuning) | environment
            worker = Worker(wanted, output)
            self.workers.append(worker)
            started.append(worker)
        return started

    def freeze(self, worker: Worker) -> None:
        """SIGSTOP to a worker, outside of any transaction of its own: on SQLite it would hold up
        everybody, which a test of the supervisor is about.
        """
        for _ in range(100):
            worker.freeze()
            if not self._locked():
                return
            worker.thaw()
            time.sleep(0.02)
        raise AssertionError("there was no moment between two transactions")

    def _locked(self) -> bool:
        if database.vendor != "sqlite":
            return False
        other = sqlite3.connect(database.settings_dict["NAME"], timeout=1.0, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            other.rollback()
        except sqlite3.OperationalError:
            return True
        finally:
            other.close()
        return False

    def hub_run(self, **environment: str) -> HubRun:
        """Start the shipped supervisor with its cluster; the hub's own web process is played for
        its probe.
        """
        self._needs_real_time()
        wanted = self.environment | environment_of(self.tuning) | environment
        made = HubRun(wanted, self.folder, self.fake_remote(watched=False).base_url("").rstrip("/"))
        self.clusters.append(made)
        return made

    def _needs_real_time(self) -> None:
        assert self.real, (
            "another process takes part: mark the test `processes`, or call `world.real_time()`"
        )

    # --- what came of it ---

    def operation(self, of: Submitted | int) -> Operation:
        """The operation's row as it is now."""
        return Operation.objects.get(pk=of if isinstance(of, int) else of.operation_id)

    def state(self, of: Submitted | int) -> str:
        """Its state's name."""
        return self.operation(of).state

    def states(self) -> Counter[str]:
        """How many operations are in which state."""
        return Counter(Operation.objects.values_list("state", flat=True))

    def moving(self) -> int:
        """How many operations do not rest yet; what waits for a person rests with what it waits
        for.
        """
        ids = set(Operation.objects.filter(state__in=_MOVING).values_list("pk", flat=True))
        return len(ids - self.waiting_for_people()) if ids else 0

    def waiting_for_people(self) -> set[int]:
        """Operations not yet sent that only a person's decision lets through: behind one in review
        whose fate is
        unknown, behind any unsettled one for what carries no full state, or at a paused connection.
        """
        waiting = Operation.objects.filter(state__in=["pending", "retry"])
        earlier = Operation.objects.filter(
            connection_id=OuterRef("connection_id"), stream=OuterRef("stream")
        ).exclude(pk=OuterRef("pk"))
        in_doubt = earlier.filter(state="review", stream_busy=True)
        unsettled = earlier.filter(state__in=["failed", "review"], version__lte=OuterRef("version"))
        paused = Gate.objects.filter(
            connection_id=OuterRef("connection_id"), paused_at__isnull=False, paused_until=None
        )
        return set(
            waiting.filter(
                Exists(in_doubt) | Q(full_state=False) & Exists(unsettled) | Exists(paused)
            ).values_list("pk", flat=True)
        )

    def wait_for(self, what: Any, seconds: float = 60.0, saying: str = "it") -> Any:
        """Ask again and again until `what()` is true; its value. Raises `AssertionError` after
        `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = what()
            if found:
                return found
            if time.monotonic() >= deadline:
                raise AssertionError(
                    f"{saying} did not come true within {seconds:g} s: {dict(self.states())}\n"
                    + "\n".join(worker.said()[-1500:] for worker in self.workers)
                )
            time.sleep(0.01)

    def story(self, of: Submitted | int) -> str:
        """What happened to an operation, in words."""
        found = as_dict(of if isinstance(of, int) else of.operation_id)
        return as_text(found) if found is not None else "no such operation"

    def said(self) -> str:
        """What was logged in this process."""
        return "\n".join(self._log.lines)

    def outputs(self) -> Iterator[tuple[str, str]]:
        """All that was logged or written, by place."""
        yield "the log", self.said()
        for path in sorted(self.folder.glob("*.log")):
            yield path.name, path.read_text(errors="replace")

    # --- its end ---

    def open(self) -> None:
        """Begin to listen to the log, and to keep the time."""
        set_database_clock(0.0)
        logging.getLogger().addHandler(self._log)

    def end_workers(self) -> None:
        """No worker outlives its test."""
        for worker in self.workers:
            if worker.alive:
                worker.kill()
        for cluster in self.clusters:
            cluster.end()

    def close(self) -> None:
        """Stop what was started."""
        self.end_workers()
        for simulator in self._simulators:
            simulator.stop()
        for remote in self._remotes:
            remote.stop()
        logging.getLogger().removeHandler(self._log)
        reset_database_clock()
        database.close()


class _Log(logging.Handler):
    """Keeps every line as the hub's own formatter would write it."""

    def __init__(self) -> None:
        super().__init__(level=logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
