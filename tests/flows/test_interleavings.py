"""Layer L5: sessions as lists of steps, run in every order they can meet in (PostgreSQL).

Each session is a thread with its own connection and an explicit transaction, whose commit is a step
of its own. A step that waits for another session is noticed by asking the server who blocks whom,
and goes on as soon as it may. SQLite has one writer at a time, so its transactions meet in no other
order than one after the other.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from hub import claims, gate, moves, outbox, review
from hub.claims import Claim, Claimed, LaneShare
from hub.contract import Candidate, Done, Kind, Looked
from hub.models import (
    Attempt,
    Connection,
    Decision,
    Evidence,
    Mapping,
    Operation,
    Tenant,
)
from hub.models.gate import PauseKind
from hub.moves import Mark, Settlement, Tried
from hub.policy import Facts, Limits, Verdict, decide
from hub.sql import database_now, rows
from hub.states import Actor, Outcome, Purpose, State
from hub.sweep import Sweeper
from tests.harness.world import World, small_tuning

pytestmark = pytest.mark.postgresql

COMMIT = "commit"
Step = Callable[[], Any]


# --- sessions and orders --------------------------------------------------------------------------


class Session:
    """A thread with a connection of its own that runs one step at a time, in explicit
    transactions.
    """

    def __init__(self) -> None:
        self.orders: queue.Queue[Step | str | None] = queue.Queue()
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self.pid = 0
        self._open: transaction.Atomic | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.do(self._introduce)
        assert self.done.wait(10)
        self.do(COMMIT)
        assert self.done.wait(10)

    def do(self, step: Step | str) -> None:
        """Begin a step; `done` tells its end."""
        self.done.clear()
        self.orders.put(step)

    def close(self) -> None:
        """End the thread."""
        self.orders.put(None)
        self._thread.join(10)

    def _introduce(self) -> None:
        self.pid = rows("SELECT pg_backend_pid()")[0][0]

    def _run(self) -> None:
        try:
            while (step := self.orders.get()) is not None:
                try:
                    self._one(step)
                except BaseException as error:  # noqa: BLE001 - the test's thread raises it again
                    self.failure = error
                self.done.set()
        finally:
            connection.close()

    def _one(self, step: Step | str) -> None:
        if step == COMMIT:
            if self._open is not None:
                ended, self._open = self._open, None
                ended.__exit__(None, None, None)
            return
        assert callable(step)
        if self._open is None:
            self._open = transaction.atomic()
            self._open.__enter__()
        try:
            step()
        except BaseException as error:
            ended, self._open = self._open, None
            ended.__exit__(type(error), error, error.__traceback__)
            raise


@dataclass
class Meeting:
    """What came of one order: the steps as they ended, and which of them had to wait."""

    order: tuple[int, ...]
    ended: list[tuple[int, int]] = field(default_factory=list)
    """(session, step) in the order they ended."""
    waited: list[tuple[int, int]] = field(default_factory=list)

    def before(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        """Whether one step had ended before the other did."""
        return self.ended.index(one) < self.ended.index(other)


class Stage:
    """Runs the steps of several sessions in a given order."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def run(self, order: tuple[int, ...], plans: Sequence[Sequence[Step | str]]) -> Meeting:
        """Play one order to its end. Raises what a step raised, or `AssertionError` for a
        deadlock.
        """
        while len(self.sessions) < len(plans):
            self.sessions.append(Session())
        left = [deque(enumerate(plan)) for plan in plans]
        meeting = Meeting(order)
        owed = [0] * len(plans)
        waiting: dict[int, int] = {}
        for who in order:
            owed[who] += 1
            self._go_on(left, owed, waiting, meeting)
        end = time.monotonic() + 10
        while waiting or any(owed):
            self._go_on(left, owed, waiting, meeting)
            assert time.monotonic() < end, f"order {order}: {waiting} never came to its end"
        return meeting

    def _go_on(
        self,
        left: list[deque[tuple[int, Step | str]]],
        owed: list[int],
        waiting: dict[int, int],
        meeting: Meeting,
    ) -> None:
        """Begin every step that is owed and may begin; collect what waited and is through."""
        moved = True
        while moved:
            moved = False
            for who in list(waiting):
                if self._through(who):
                    self._ended(who, waiting.pop(who), meeting)
                    moved = True
            for who, session in enumerate(self.sessions[: len(left)]):
                if not owed[who] or who in waiting:
                    continue
                number, step = left[who].popleft()
                owed[who] -= 1
                moved = True
                session.do(step)
                if self._through(who):
                    self._ended(who, number, meeting)
                else:
                    waiting[who] = number
                    meeting.waited.append((who, number))

    def _through(self, who: int) -> bool:
        """Wait until a session's step has ended (True) or waits for another session (False)."""
        session = self.sessions[who]
        end = time.monotonic() + 10
        while not session.done.wait(0.004):
            blockers = rows("SELECT pg_blocking_pids(%s)", [session.pid])[0][0]
            if {one.pid for one in self.sessions} & set(blockers):
                return session.done.is_set()
            assert time.monotonic() < end, "a step neither ended nor waits for another session"
        return True

    def _ended(self, who: int, number: int, meeting: Meeting) -> None:
        meeting.ended.append((who, number))
        failure, self.sessions[who].failure = self.sessions[who].failure, None
        if failure is not None:
            raise AssertionError(f"order {meeting.order}, step {who}.{number}") from failure

    def close(self) -> None:
        for session in self.sessions:
            session.close()


@pytest.fixture
def stage(world: World) -> Iterator[Stage]:
    """A stage in a world whose remotes are never asked."""
    world.allow("I2", "each order ends where its steps end")
    made = Stage()
    yield made
    made.close()


def orders(*lengths: int) -> list[tuple[int, ...]]:
    """Every order in which sessions of these lengths can meet."""
    result: list[tuple[int, ...]] = []

    def add(so_far: tuple[int, ...], left: tuple[int, ...]) -> None:
        if not any(left):
            result.append(so_far)
        for who, count in enumerate(left):
            if count:
                add((*so_far, who), (*left[:who], count - 1, *left[who + 1 :]))

    add((), lengths)
    return result


def meetings(
    stage: Stage, plans: Callable[[], tuple[Any, Sequence[Sequence[Step | str]]]]
) -> Iterator[tuple[Any, Meeting]]:
    """Every order, each with a fresh scene; `plans` makes a scene and the sessions' steps."""
    scene, steps = plans()
    for number, order in enumerate(orders(*(len(plan) for plan in steps))):
        if number:
            scene, steps = plans()
        yield scene, stage.run(order, steps)


# --- what sessions do -----------------------------------------------------------------------------

_NAMES = itertools.count()


def lane(limit: float | None = None) -> Connection:
    """A connection of its own for each order, so that no order meets what another has left."""
    tenant = Tenant.objects.get_or_create(slug="acme", defaults={"name": "Acme"})[0]
    name = f"lane-{next(_NAMES)}"
    return Connection.objects.create(
        tenant=tenant,
        name=name,
        integration="testremote",
        account=name,
        base_url="http://127.0.0.1:9",
        limits={"default": None},
    )


def tied(where: Connection, source_id: str = "1") -> None:
    """The entity is known over there, so that updates of it make sense."""
    Mapping.objects.create(
        tenant=where.tenant,
        connection=where,
        object_type="bp",
        source_system="hub",
        source_id=source_id,
        remote_ref=f"r{source_id}",
        version=0,
        updated_at=database_now(),
    )


def update(where: Connection, version: int, source_id: str = "1") -> int:
    """Submit a full state (class b′)."""
    return outbox.submit(
        where, "bp.update", source_id=source_id, version=version, fields={"n": version}
    ).operation_id


@dataclass
class Hands:
    """One worker's hands: what it has claimed and marked."""

    where: Connection
    name: str = "w"
    most: int = 10
    taken: list[Claimed] = field(default_factory=list)
    marked: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    again: int = 0
    """How often a claim met C2 and was made again."""
    free: list[int] = field(default_factory=list)

    def share(self) -> LaneShare:
        return LaneShare(self.where.pk, sends=self.most, looks=self.most, lease=60.0)

    def who(self) -> Claim:
        return Claim(self.name, 1, 0)

    def claim(self) -> None:
        """As the drain does: a savepoint, and once more when C2 says no."""
        for last in (False, False, True):
            try:
                with transaction.atomic():
                    self.taken = claims.claim(self.who(), [self.share()], 0.0)
                return
            except IntegrityError:
                self.again += 1
                if last:
                    raise

    def find(self) -> None:
        """The first half of a claim: which rows are free."""
        self.free = claims._free(self.who(), [(self.share(), self.most)], database_now())

    def take(self) -> None:
        """The second half: take them."""
        try:
            with transaction.atomic():
                self.taken = claims._take(
                    self.who(),
                    self.free,
                    {self.where.pk: self.share()},
                    database_now(),
                    0.0,
                    look=False,
                )
        except IntegrityError:
            self.again += 1
            self.taken = []

    def mark(self) -> None:
        """The markers of all it has."""
        self.marked = moves.mark([Mark(one.id, one.token, "d" * 64, 5.0) for one in self.taken])
        for one in self.taken:
            if one.id in self.marked:
                one.state = State.SENT

    def finish(self) -> None:
        """Settle: what was marked was done; what was not is stale, given back, or no longer
        ours.
        """
        planned = []
        for one in self.taken:
            if one.id in self.marked:
                ref = one.mapped_ref or f"made-{one.id}"
                planned.append(
                    Settlement(
                        one,
                        Verdict(
                            State.CONFIRMED, "done", "Done.", Outcome.DONE, done=Done(ref)
                        ),
                        Actor.WORKER,
                        Tried(Purpose.SEND, left="maybe"),
                        kind=Kind.UPDATE if one.mapped_ref else Kind.CREATE,
                    )
                )
                continue
            stale = Operation.objects.filter(
                connection=self.where,
                stream=one.stream,
                first_sent_at__isnull=False,
                version__gt=one.version,
            ).exists()
            state = State.DISCARDED if stale else State.PENDING
            planned.append(
                Settlement(
                    one,
                    Verdict(state, "back", "Its marker was refused.", Outcome.GIVEN_BACK),
                    Actor.WORKER,
                    Tried(Purpose.SEND),
                )
            )
        self.settled = set(moves.settle(planned).ids)


def both(*steps: Step) -> Step:
    """Several things as one step."""

    def run() -> None:
        for one in steps:
            one()

    return run


def complete(where: Connection) -> None:
    """Work on until nothing is due; then everything must have come through and nobody wait."""
    for _ in range(20):
        hands = Hands(where, "last", most=50)
        with transaction.atomic():
            hands.claim()
        with transaction.atomic():
            hands.mark()
        with transaction.atomic():
            hands.finish()
        if not hands.taken:
            break
    left = Operation.objects.filter(connection=where, state__in=["pending", "retry", "running"])
    assert not left, [f"{row} {row.state} parked={row.parked}" for row in left]
    assert not Operation.objects.filter(connection=where, parked=True)


def sent_in_order(where: Connection) -> None:
    """No version was marked after a higher one of its stream."""
    marked = list(
        Operation.objects.filter(connection=where, first_sent_at__isnull=False)
        .order_by("first_sent_at")
        .values_list("version", flat=True)
    )
    assert marked == sorted(marked), marked


# --- claims ---------------------------------------------------------------------------------------


def test_two_claims_of_one_row(stage: Stage) -> None:
    """F11: one wins; the other takes nothing, and does not wait."""
    waited = 0

    def plans() -> Any:
        where = lane()
        tied(where)
        update(where, 1)
        a, b = Hands(where, "a"), Hands(where, "b")
        return (where, a, b), [[a.claim, COMMIT], [b.claim, COMMIT]]

    for (where, a, b), meeting in meetings(stage, plans):
        waited += len(meeting.waited)
        assert len(a.taken) + len(b.taken) == 1, meeting
        row = Operation.objects.get(connection=where)
        assert (row.state, row.lease_token) == ("running", 1)
        assert Attempt.objects.filter(operation=row).count() == 1
    assert not waited


def test_two_claims_share_what_there_is(stage: Stage) -> None:
    """F11: with more rows than one takes, the other takes the next ones, and does not wait."""
    waited = 0

    def plans() -> Any:
        where = lane()
        for number in "123":
            tied(where, number)
            update(where, 1, number)
        a, b = Hands(where, "a", most=2), Hands(where, "b", most=2)
        return (where, a, b), [[a.claim, COMMIT], [b.claim, COMMIT]]

    for (_where, a, b), meeting in meetings(stage, plans):
        waited += len(meeting.waited)
        taken = [one.id for one in (*a.taken, *b.taken)]
        assert len(taken) == len(set(taken)) == 3, meeting
    assert not waited


def test_coalescing_meets_the_claim_of_the_older_row(stage: Stage) -> None:
    """F91: exactly one of: the older is sent and the newer waits, or the older is discarded."""
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = lane()
        tied(where)
        first = update(where, 1)
        a = Hands(where, "a")

        def submit() -> None:
            update(where, 2)

        steps = [[a.claim, COMMIT, both(a.mark), COMMIT, a.finish, COMMIT], [submit, COMMIT]]
        return (where, first, a), steps

    for (where, first, a), meeting in meetings(stage, plans):
        complete(where)
        older = Operation.objects.get(pk=first)
        newer = Operation.objects.get(connection=where, version=2)
        assert newer.state == "confirmed", meeting
        if older.state == "confirmed":
            assert older.first_sent_at and newer.first_sent_at
            assert older.first_sent_at < newer.first_sent_at, meeting
            assert a.marked == {first}
        else:
            assert (older.state, older.reason_code) == ("discarded", "superseded"), meeting
            assert older.first_sent_at is None
        seen[older.state] += 1
        sent_in_order(where)
    assert seen["confirmed"] and seen["discarded"], seen


def test_a_lower_version_that_comes_late_meets_a_claim_of_the_higher(stage: Stage) -> None:
    """C2 within a claim: the savepoint is rolled back and the claim made again; no order is
    lost.
    """
    again = 0
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = lane()
        tied(where)
        update(where, 2)
        a, b = Hands(where, "a"), Hands(where, "b")
        steps = [
            [a.claim, COMMIT, a.mark, both(a.finish), COMMIT],
            [both(lambda: update(where, 1)), COMMIT, b.claim, COMMIT],
        ]
        return (where, a, b), steps

    for (where, a, b), meeting in meetings(stage, plans):
        again += a.again + b.again
        assert len(a.taken) <= 1 and len(b.taken) <= 1
        if not a.marked and a.taken:
            raise AssertionError(meeting)
        with transaction.atomic():
            b.mark()
        with transaction.atomic():
            b.finish()
        complete(where)
        sent_in_order(where)
        low = Operation.objects.get(connection=where, version=1)
        high = Operation.objects.get(connection=where, version=2)
        assert high.state == "confirmed", meeting
        seen[low.state] += 1
    assert again, "no claim ever met C2"
    assert seen["confirmed"] and seen["discarded"], seen


# --- the marker's second look ---------------------------------------------------------------------


def _late_lower_version(stage: Stage) -> tuple[int, int]:
    """How often the marker refused a stale version, and how often an older one was marked later."""
    refused = overtaken = 0

    def plans() -> Any:
        where = lane()
        tied(where)
        update(where, 2)
        a, b = Hands(where, "a"), Hands(where, "b")
        steps = [
            [both(lambda: update(where, 1)), COMMIT, a.find, a.take, COMMIT, both(a.mark), COMMIT],
            [both(b.claim), COMMIT, both(b.mark), COMMIT, both(b.finish), COMMIT],
        ]
        # A commit right behind its step is one step with it: nothing can come between that matters.
        return (where, a, b), [_joined(steps[0]), _joined(steps[1])]

    for (where, a, _b), _meeting in meetings(stage, plans):
        mine = [one.id for one in a.taken if one.version == 1]
        if mine and not a.marked:
            refused += 1
        marked = list(
            Operation.objects.filter(connection=where, first_sent_at__isnull=False)
            .order_by("first_sent_at")
            .values_list("version", flat=True)
        )
        overtaken += marked == [2, 1]
    return refused, overtaken


def _joined(steps: Sequence[Step | str]) -> list[Step | str]:
    """Steps whose commit follows at once, each as one; `find` and `take` stay apart."""
    result: list[Step | str] = []
    for step in steps:
        if step == COMMIT and result and getattr(result[-1], "__name__", "") == "run":
            result[-1] = _committing(result[-1])  # type: ignore[arg-type]
        else:
            result.append(step)
    return result


def _committing(step: Step) -> Step:
    def run_and_commit() -> None:
        # Inside the session's transaction: it is committed by ending it early.
        step()
        connection.commit_now()  # type: ignore[attr-defined]

    return run_and_commit
