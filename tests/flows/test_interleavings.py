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
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from hub import cases, claims, gate, moves, outbox, review
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
from hub.redaction import Scrubber
from hub.sql import database_now, rows
from hub.states import Actor, Outcome, Purpose, State
from hub.sweep import Sweeper
from tests.harness.world import World, small_tuning

pytestmark = pytest.mark.postgresql

COMMIT = "commit"


@dataclass(frozen=True)
class Whole:
    """A step with its commit right behind it: a transaction nothing can come into."""

    step: Callable[[], Any]


Step = Callable[[], Any] | Whole | str


# --- sessions and orders --------------------------------------------------------------------------


class Session:
    """A thread with a connection of its own that runs one step at a time, in explicit
    transactions.
    """

    def __init__(self) -> None:
        self.orders: queue.Queue[Step | None] = queue.Queue()
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self.pid = 0
        self._open: transaction.Atomic | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.do(self._introduce)
        assert self.done.wait(60)
        self.do(COMMIT)
        assert self.done.wait(60)

    def do(self, step: Step) -> None:
        """Begin a step; `done` tells its end."""
        self.done.clear()
        self.orders.put(step)

    def close(self) -> None:
        """End the thread."""
        self.orders.put(None)
        self._thread.join(60)

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

    def _one(self, step: Step) -> None:
        if step == COMMIT:
            if self._open is not None:
                ended, self._open = self._open, None
                ended.__exit__(None, None, None)
            return
        if isinstance(step, Whole):
            self._one(step.step)
            self._one(COMMIT)
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

    def run(self, order: tuple[int, ...], plans: Sequence[Sequence[Step]]) -> Meeting:
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
        end = time.monotonic() + 60
        while waiting or any(owed):
            self._go_on(left, owed, waiting, meeting)
            assert time.monotonic() < end, f"order {order}: {waiting} never came to its end"
        return meeting

    def _go_on(
        self,
        left: list[deque[tuple[int, Step]]],
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
        end = time.monotonic() + 60
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
    stage: Stage, plans: Callable[[], tuple[Any, Sequence[Sequence[Step]]]]
) -> Iterator[tuple[Any, Meeting]]:
    """Every order, each with a fresh scene; `plans` makes a scene and the sessions' steps."""
    scene, steps = plans()
    for number, order in enumerate(orders(*(len(plan) for plan in steps))):
        if number:
            scene, steps = plans()
        yield scene, stage.run(order, steps)


# --- what sessions do -----------------------------------------------------------------------------

_NAMES = itertools.count()
_AN_HOUR = timedelta(hours=1)


def lane() -> Connection:
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


def entity(*versions: int) -> Connection:
    """A connection of its own with one entity, and these versions of it waiting."""
    where = lane()
    tied(where)
    for version in versions:
        update(where, version)
    return where


def committed(*steps: Callable[[], Any]) -> None:
    """Take each step in a transaction of its own, before the sessions meet or after."""
    for step in steps:
        with transaction.atomic():
            step()


def done_by(one: Claimed, ref: str) -> Settlement:
    """What a worker settles with whose write was answered well."""
    return Settlement(
        one,
        Verdict(State.CONFIRMED, "done", "Done.", Outcome.DONE, done=Done(ref)),
        Actor.WORKER,
        Tried(Purpose.SEND, left="maybe"),
        kind=Kind.UPDATE if one.mapped_ref else Kind.CREATE,
    )


def person(
    operation: int, action: str, state: str, token: int = 0, by: str = "ann"
) -> review.Decided:
    """A person's decision over a page that showed this state and token."""
    return review.act(
        operation, action, by=by, reason="because", seen_state=state, seen_token=token
    )


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
                planned.append(done_by(one, one.mapped_ref or f"made-{one.id}"))
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


def complete(where: Connection) -> None:
    """Work on until nothing is due; then everything must have come through and nobody wait."""
    for _ in range(20):
        hands = Hands(where, "last", most=50)
        committed(hands.claim, hands.mark, hands.finish)
        if not hands.taken:
            break
    left = Operation.objects.filter(connection=where, state__in=["pending", "retry", "running"])
    assert not left, [f"{row} {row.state} parked={row.parked}" for row in left]
    assert not Operation.objects.filter(connection=where, parked=True)


def marked_versions(where: Connection) -> list[int]:
    """In the order of their markers."""
    return list(
        Operation.objects.filter(connection=where, first_sent_at__isnull=False)
        .order_by("first_sent_at")
        .values_list("version", flat=True)
    )


def sent_in_order(where: Connection) -> None:
    """No version was marked after a higher one of its stream."""
    marked = marked_versions(where)
    assert marked == sorted(marked), marked


# --- claims ---------------------------------------------------------------------------------------


def test_two_claims_of_one_row(stage: Stage) -> None:
    """F11: one wins; the other takes nothing, and does not wait."""
    waited = 0

    def plans() -> Any:
        where = entity(1)
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
        where = entity()
        first = update(where, 1)
        a = Hands(where, "a")

        def submit() -> None:
            update(where, 2)

        steps = [[a.claim, COMMIT, a.mark, COMMIT, a.finish, COMMIT], [submit, COMMIT]]
        return (where, first, a), steps

    for (where, first, a), meeting in meetings(stage, plans):
        complete(where)
        older = Operation.objects.get(pk=first)
        newer = Operation.objects.get(connection=where, version=2)
        assert newer.state == "confirmed", meeting
        if older.state == "confirmed":
            assert older.first_sent_at
            assert newer.first_sent_at
            assert older.first_sent_at < newer.first_sent_at, meeting
            assert a.marked == {first}
        else:
            assert (older.state, older.reason_code) == ("discarded", "superseded"), meeting
            assert older.first_sent_at is None
        seen[older.state] += 1
        sent_in_order(where)
    assert set(seen) == {"confirmed", "discarded"}


def test_a_lower_version_that_comes_late_meets_a_claim_of_the_higher(stage: Stage) -> None:
    """C2 within a claim: the savepoint is rolled back and the claim made again; no order is
    lost.
    """
    again = 0
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = entity(2)
        a, b = Hands(where, "a"), Hands(where, "b")
        steps = [
            [a.claim, COMMIT, Whole(a.mark), Whole(a.finish)],
            [lambda: update(where, 1), COMMIT, b.claim, COMMIT],
        ]
        return (where, a, b), steps

    for (where, a, b), meeting in meetings(stage, plans):
        again += a.again + b.again
        assert len(a.taken) <= 1
        assert len(b.taken) <= 1
        assert len(a.marked) == len(a.taken), meeting
        committed(b.mark, b.finish)
        complete(where)
        sent_in_order(where)
        low = Operation.objects.get(connection=where, version=1)
        high = Operation.objects.get(connection=where, version=2)
        assert high.state == "confirmed", meeting
        seen[low.state] += 1
    assert again, "no claim ever met C2"
    assert set(seen) == {"confirmed", "discarded"}


# --- the marker's second look ---------------------------------------------------------------------


def _late_lower_version(stage: Stage) -> tuple[int, int]:
    """How often the marker refused a stale version, and how often an older one was marked after a
    newer.
    """
    refused = overtaken = 0

    def plans() -> Any:
        where = entity(2)
        a, b = Hands(where, "a"), Hands(where, "b")
        steps = [
            [lambda: update(where, 1), COMMIT, a.find, a.take, COMMIT, Whole(a.mark)],
            [Whole(b.claim), Whole(b.mark), Whole(b.finish)],
        ]
        return (where, a, b), steps

    for (where, a, _b), _meeting in meetings(stage, plans):
        committed(a.finish)
        mine = [one.id for one in a.taken if one.version == 1]
        refused += bool(mine) and not a.marked
        overtaken += marked_versions(where) == [2, 1]
        complete(where)
    return refused, overtaken


def test_the_marker_sees_a_newer_version_that_came_between(stage: Stage) -> None:
    """F118: an older version's claim begins before the newer one's cycle and ends after it."""
    refused, overtaken = _late_lower_version(stage)
    assert refused, "no claim ever ended after a newer version had been sent"
    assert not overtaken


def test_without_the_markers_second_look_the_orders_show_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W29: conditions on the stream read at the claim only; these orders must find it."""
    weak = moves._MARK_POSTGRES.replace("o.full_state AND EXISTS", "false AND EXISTS")
    assert weak != moves._MARK_POSTGRES
    monkeypatch.setattr(moves, "_MARK_POSTGRES", weak)
    _refused, overtaken = _late_lower_version(stage)
    assert overtaken


def test_a_newer_version_arrives_while_the_older_is_in_hand(stage: Stage) -> None:
    """F118, F88: submitted at any moment of the older one's attempt, the newer goes after it."""
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = entity(1)
        a, b = Hands(where, "a"), Hands(where, "b")
        steps = [
            [Whole(a.claim), a.mark, COMMIT, Whole(a.finish)],
            [Whole(lambda: update(where, 2)), b.claim, COMMIT, Whole(b.mark)],
        ]
        return (where, a, b), steps

    for (where, _a, b), _meeting in meetings(stage, plans):
        committed(b.finish)
        complete(where)
        sent_in_order(where)
        seen[Operation.objects.get(connection=where, version=1).state] += 1
    assert set(seen) == {"confirmed", "discarded"}


def test_a_pause_meets_markers(stage: Stage) -> None:
    """F111: once a pause is committed no marker is set; what has it already may settle."""
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = entity(1)
        a = Hands(where, "a")
        a.claim()

        def pause() -> None:
            gate.pause(where.pk, PauseKind.PERSON, "maintenance", by="ann")

        return (where, a), [[a.mark, COMMIT, Whole(a.finish)], [pause, COMMIT]]

    for (where, a), meeting in meetings(stage, plans):
        if meeting.before((1, 1), (0, 0)):
            assert not a.marked, meeting
        state = Operation.objects.get(connection=where).state
        assert state == ("confirmed" if a.marked else "pending"), meeting
        seen[state] += 1
        assert where.pk not in {one.connection_id for one in gate.opened().lanes}
    assert set(seen) == {"confirmed", "pending"}


# --- waiting and waking ---------------------------------------------------------------------------


def _park_meets_settle(stage: Stage) -> int:
    """How many orders left a row parked that nobody will wake."""
    lost = 0

    def plans() -> Any:
        where = entity(1)
        a = Hands(where, "a")
        committed(a.claim, a.mark)
        update(where, 2)
        blocked: list[tuple[int, int]] = []

        def settle() -> None:
            assert moves._settle_postgres([moves._row(done_by(a.taken[0], "r1"))])

        def look() -> None:
            found = claims._candidates(
                Claim("b", 1, 0),
                [(LaneShare(where.pk, 10, 0, 60.0), 10)],
                database_now(),
                look=False,
            )
            blocked.extend((row[0], row[1]) for row in found if row[1] is not None)

        def park() -> None:
            if blocked:
                claims._park(blocked)

        steps = [
            [settle, lambda: moves.unpark([a.taken[0].id]), COMMIT],
            [look, park, COMMIT],
        ]
        return (where, a), steps

    for (where, _a), _meeting in meetings(stage, plans):
        if Operation.objects.filter(connection=where, parked=True).exists():
            lost += 1
        else:
            complete(where)
    return lost


def test_no_wake_up_is_lost_between_settle_and_park(stage: Stage) -> None:
    """A row is put aside only under its blocker's lock, so the settle that frees it sees it."""
    assert _park_meets_settle(stage) == 0


def test_parking_without_the_blockers_lock_would_lose_wake_ups(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can see: without the lock some order leaves a row asleep for ever."""

    def careless(blocked: list[tuple[int, int]]) -> int:
        return Operation.objects.filter(pk__in=[one for one, _ in blocked]).update(parked=True)

    monkeypatch.setattr(claims, "_park", careless)
    assert _park_meets_settle(stage) > 0


def test_a_person_closes_the_blocker_while_the_next_is_put_aside(stage: Stage) -> None:
    """The same for a decision: discarding the blocker frees what waits behind it."""

    def plans() -> Any:
        where = entity()
        first = update(where, 1)
        # Another variant: a newer full state of its own would coalesce the first away.
        outbox.submit(
            where, "bp.update", source_id="1", version=2, fields={"n": 2}, variant="other"
        )
        b = Hands(where, "b")
        Operation.objects.filter(pk=first).update(next_at=database_now() + _AN_HOUR)

        def discard() -> None:
            person(first, "discard", "pending")

        return (where, b), [[discard, COMMIT], [b.claim, COMMIT]]

    for (where, b), meeting in meetings(stage, plans):
        committed(b.mark, b.finish)
        complete(where)
        newer = Operation.objects.get(connection=where, version=2)
        assert newer.state == "confirmed", meeting


# --- lapsed leases --------------------------------------------------------------------------------


def test_two_sweeps_and_the_worker_meet_on_one_lapsed_row(stage: Stage) -> None:
    """F12: one transition; the others hit no row."""
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = entity(1)
        w = Hands(where, "w")
        committed(w.claim, w.mark)
        Operation.objects.filter(connection=where).update(
            lease_until=database_now() - _AN_HOUR, sent_at=database_now() - _AN_HOUR
        )
        moved: list[int] = []

        def sweep() -> None:
            moved.append(Sweeper(small_tuning())._lapsed({}, database_now())[0])

        steps = [[sweep, COMMIT], [sweep, COMMIT], [w.finish, COMMIT]]
        return (where, w, moved), steps

    for (where, w, moved), meeting in meetings(stage, plans):
        assert sum(moved) + len(w.settled) == 1, meeting
        row = Operation.objects.get(connection=where)
        assert row.state == ("confirmed" if w.settled else "uncertain"), meeting
        attempt = Attempt.objects.get(operation=row)
        assert attempt.settled_at is not None
        assert Evidence.objects.filter(operation=row, kind="sweep").count() == sum(moved)
        seen[row.state] += 1
    assert set(seen) == {"confirmed", "uncertain"}


def test_a_sweep_meets_the_marker_of_a_lapsed_lease(stage: Stage) -> None:
    """F15: the lease has run out; whoever is first, nothing leaves under the old token."""

    def plans() -> Any:
        where = entity(1)
        w, other = Hands(where, "w"), Hands(where, "other")
        committed(w.claim)
        Operation.objects.filter(connection=where).update(lease_until=database_now() - _AN_HOUR)

        def sweep() -> None:
            Sweeper(small_tuning())._lapsed({}, database_now())

        steps = [[w.mark, COMMIT], [Whole(sweep), other.claim, COMMIT, Whole(other.mark)]]
        return (where, w, other), steps

    for (where, w, other), meeting in meetings(stage, plans):
        assert not w.marked, meeting
        assert not other.taken, meeting  # it lost a worker: it is kept apart, and claimed by itself
        row = Operation.objects.get(connection=where)
        assert (row.state, row.lapses) == ("pending", 1), meeting


# --- people ---------------------------------------------------------------------------------------


def in_review(where: Connection, action: str = "c.create") -> Operation:
    """An operation whose outcome nobody knows, as the worker would leave it."""
    made = outbox.submit(where, action, source_id="1", version=1, fields={"n": 1})
    w = Hands(where, "w")
    committed(w.claim, w.mark)
    verdict = Verdict(State.REVIEW, "unknown", "Nobody knows.", Outcome.UNKNOWN, doubt=True)
    move = Settlement(
        w.taken[0],
        verdict,
        Actor.WORKER,
        Tried(Purpose.SEND, left="maybe"),
        last_byte=0.0,
        kind=Kind.CREATE,
    )
    with transaction.atomic():
        moves.settle([move])
        cases.follow(move, Scrubber(), database_now())
    return Operation.objects.get(pk=made.operation_id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("discard", "look_again"),
        ("look_again", "look_again"),
        ("send_again", "send_again"),
        ("send_again", "discard"),
    ],
)
def test_two_people_decide_at_once(stage: Stage, one: str, other: str) -> None:
    """F110: one decision; the other is told that it has moved on. Both are on record."""
    winners: Counter[int] = Counter()

    def plans() -> Any:
        where = lane()
        row = in_review(where)
        told: dict[int, review.Decided] = {}

        def act(who: int, action: str) -> Callable[[], None]:
            def run() -> None:
                by = f"person-{who}"
                told[who] = person(row.pk, action, "review", row.lease_token, by)

            return run

        return (where, row, told), [[act(0, one), COMMIT], [act(1, other), COMMIT]]

    for (where, row, told), meeting in meetings(stage, plans):
        assert [d.done for d in told.values()].count(True) == 1, (meeting, told)
        refused = next(d for d in told.values() if not d.done)
        assert "moved on" in refused.text
        winner = next(who for who, d in told.items() if d.done)
        winners[winner] += 1
        decisions = Decision.objects.filter(operation=row)
        assert decisions.filter(done=True).count() == decisions.filter(done=False).count() == 1
        action = (one, other)[winner]
        after = Operation.objects.get(pk=row.pk)
        assert after.state == ("uncertain" if action == "look_again" else "discarded"), meeting
        generations = Operation.objects.filter(connection=where).count()
        assert generations == (2 if action == "send_again" else 1), meeting
    assert set(winners) == {0, 1}


def test_a_person_takes_over_while_a_look_is_settled(stage: Stage) -> None:
    """F110: decide × settle: either the machine's look counts, or the person's hands do."""
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = lane()
        row = in_review(where)
        person(row.pk, "look_again", "review", row.lease_token)
        w = Hands(where, "w")
        committed(w.claim)
        item = w.taken[0]
        assert item.state is State.UNCERTAIN
        write = review._declared(row)
        assert write is not None
        found = Looked((Candidate("r9", matches=True, reference=row.reference),))
        facts = Facts(State.UNCERTAIN, write, doubt=True, since_last=9.0)
        verdict = decide(facts, found, Limits())
        settled: list[int] = []
        told: list[review.Decided] = []

        def settle() -> None:
            move = Settlement(item, verdict, Actor.WORKER, Tried(Purpose.CONSULT), kind=Kind.CREATE)
            settled.extend(moves.settle([move]).ids)

        def take_over() -> None:
            told.append(person(row.pk, "take_over", "uncertain", item.token))

        return (row, settled, told), [[settle, COMMIT], [take_over, COMMIT]]

    for (row, settled, told), meeting in meetings(stage, plans):
        after = Operation.objects.get(pk=row.pk)
        assert bool(settled) != told[0].done, meeting
        assert after.state == ("confirmed" if settled else "review"), meeting
        assert after.maybe_executed == (not settled), meeting
        seen[after.state] += 1
    assert set(seen) == {"confirmed", "review"}


def test_a_person_withdraws_while_a_worker_claims(stage: Stage) -> None:
    """decide × claim: withdrawn and never sent, or sent and the person is told."""
    seen: Counter[str] = Counter()

    def plans() -> Any:
        where = entity()
        first = update(where, 1)
        w = Hands(where, "w")
        told: list[review.Decided] = []

        def withdraw() -> None:
            told.append(person(first, "discard", "pending"))

        steps = [[withdraw, COMMIT], [w.claim, COMMIT, w.mark, COMMIT, Whole(w.finish)]]
        return (first, w, told), steps

    for (first, w, told), meeting in meetings(stage, plans):
        row = Operation.objects.get(pk=first)
        assert bool(w.marked) != told[0].done, meeting
        assert row.state == ("discarded" if told[0].done else "confirmed"), meeting
        seen[row.state] += 1
    assert set(seen) == {"confirmed", "discarded"}


def test_two_submits_of_one_intent(stage: Stage) -> None:
    """F2: C1 decides; both callers get the same operation."""

    def plans() -> Any:
        where = entity()
        got: list[int] = []

        def submit() -> None:
            got.append(update(where, 1))

        return (where, got), [[submit, COMMIT], [submit, COMMIT]]

    for (where, got), meeting in meetings(stage, plans):
        assert got == [Operation.objects.get(connection=where).pk] * 2, meeting
