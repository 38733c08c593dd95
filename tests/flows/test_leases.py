"""Workers that freeze, die or are asked to stop, at every moment of an attempt (F14-F22, F116).

A frozen drain is a real one whose threads all wait at a step point while others work; one test of
each kind freezes a real process. Whatever it was about, the world's invariants are checked after.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection

from hub import gate
from hub.contract import Request, Steps
from hub.delivery import Drain
from hub.models import Candidate, Dependency, Evidence, Operation, ReviewCase
from hub.models.gate import PauseKind
from hub.sql import database_now
from tests.harness.classes import TestRemoteConnector
from tests.harness.crashing import Crash, Fuse
from tests.harness.remote import FakeRemote
from tests.harness.world import World, small_tuning

FIELDS = {"name": "Ann"}
CREATES = ["a.create", "al.create", "b.create", "c.create", "d.create"]


class Frozen:
    """A drain that freezes at the first time of a step, with all its threads, until `thaw()`."""

    def __init__(self, world: World, step: str) -> None:
        self.step = step
        self.reached = threading.Event()
        self.thawed = threading.Event()
        self.settled = -1
        # A sweep of its own would freeze inside its transaction, which no test here is about.
        tuning = small_tuning(sweep_every=86_400.0)
        self.drain = world.worker(
            tuning=tuning, budget=86_400.0, until_idle=True, steps=self, name="frozen"
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.reached.wait(60), f"the drain never came to {step}"

    def __call__(self, name: str) -> None:
        if name == self.step:
            self.reached.set()
        if self.reached.is_set():
            assert self.thawed.wait(60)

    def _run(self) -> None:
        self.settled = self.drain.run()

    def thaw(self) -> None:
        """Let it go on, and wait for its end."""
        self.thawed.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def there(world: World) -> FakeRemote:
    return world.fake_remote()


def _late(world: World, operation: Any) -> list[Evidence]:
    return list(Evidence.objects.filter(operation_id=operation.operation_id, kind="late_result"))


def _writes(there: FakeRemote) -> int:
    return len(there.writes("acme"))


# --- zombies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", CREATES)
def test_a_zombie_before_its_marker(world: World, there: FakeRemote, action: str) -> None:
    """F15: frozen after its claim; another completes; the first gets no marker and sends
    nothing.
    """
    crm = world.connect(there)
    done = world.submit(crm, action, "1", 1, FIELDS)
    frozen = Frozen(world, "prepare.guarded")
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    before = Operation.objects.values().get(pk=done.operation_id)
    frozen.thaw()
    assert Operation.objects.values().get(pk=done.operation_id) == before
    assert _writes(there) == 1


@pytest.mark.parametrize("step", ["mark.committed", "send.connected"])
@pytest.mark.parametrize("action", ["a.create", "c.create", "d.create"])
def test_a_zombie_with_its_marker_that_wakes_early(
    world: World, there: FakeRemote, action: str, step: str
) -> None:
    """F16, within its lease but past the margin: the guard aborts, no byte leaves, no attempt is
    spent; it goes out afterwards.
    """
    crm = world.connect(there)
    done = world.submit(crm, action, "1", 1, FIELDS)
    frozen = Frozen(world, step)
    assert world.state(done) == "sent"
    world.pass_time(world.tuning.margin + 0.1)
    assert _writes(there) == 0
    frozen.thaw()
    world.settle()
    row = world.operation(done)
    assert (row.state, row.attempts) == ("confirmed", 1), world.story(done)
    first = row.attempt_set.order_by("token")[0]
    assert (first.left, first.outcome) == ("no", "N"), world.story(done)
    assert _writes(there) == 1


@pytest.mark.parametrize("step", ["mark.committed", "send.connected"])
@pytest.mark.parametrize("action", CREATES)
def test_a_zombie_with_its_marker_that_wakes_late(
    world: World, there: FakeRemote, action: str, step: str
) -> None:
    """F16, after its lease: others resolve it by what its class offers; it sends nothing."""
    crm = world.connect(there)
    done = world.submit(crm, action, "1", 1, FIELDS)
    frozen = Frozen(world, step)
    world.settle()
    expected = "review" if action == "d.create" else "confirmed"
    assert world.state(done) == expected, world.story(done)
    before = Operation.objects.values().get(pk=done.operation_id)
    frozen.thaw()
    assert Operation.objects.values().get(pk=done.operation_id) == before
    assert _writes(there) == (0 if action == "d.create" else 1)
    assert len(_late(world, done)) == 1, "what it had to say is evidence"


@pytest.mark.parametrize("action", CREATES)
def test_a_zombie_with_an_answer_in_its_hands(world: World, there: FakeRemote, action: str) -> None:
    """F17: resolved meanwhile with the same object, its answer is evidence and changes nothing; in
    review it is something to choose.
    """
    crm = world.connect(there)
    done = world.submit(crm, action, "1", 1, FIELDS)
    frozen = Frozen(world, "recv.done")
    world.settle()
    expected = "review" if action == "d.create" else "confirmed"
    assert world.state(done) == expected, world.story(done)
    before = Operation.objects.values().get(pk=done.operation_id)
    frozen.thaw()
    assert Operation.objects.values().get(pk=done.operation_id) == before
    [late] = _late(world, done)
    made = there.effects("acme")[0].remote_id
    assert made in late.data
    assert not ReviewCase.objects.filter(subject="duplicate").exists()
    if action == "d.create":
        assert Candidate.objects.get().remote_ref == made


def test_a_zombie_whose_answer_names_another_object(world: World, there: FakeRemote) -> None:
    """F17: a duplicate that no client could see in time is a case, and none is deleted."""
    world.allow("I1", "the search hid the object for longer than declared (A3)")
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    there.order("lag", "POST", seconds=3600.0)
    frozen = Frozen(world, "recv.done")
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    frozen.thaw()
    case = ReviewCase.objects.get(subject="duplicate")
    assert case.operation_id == done.operation_id
    ids = [effect.remote_id for effect in there.effects("acme")]
    assert len(ids) == 2
    assert all(one in case.summary for one in ids)
    assert len(there.things("acme")) == 2


@pytest.mark.parametrize(("status", "code"), [(503, "BUSY"), (400, "INVALID"), (500, "X")])
def test_a_zombie_with_an_error_cannot_reschedule(
    world: World, there: FakeRemote, status: int, code: str
) -> None:
    """F18, W3: no row; the state stays, and nothing is sent again."""
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    there.order("answer", "POST", when="before", status=status, body={"error": code})
    frozen = Frozen(world, "recv.done")
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    before = Operation.objects.values().get(pk=done.operation_id)
    frozen.thaw()
    world.settle()
    assert Operation.objects.values().get(pk=done.operation_id) == before
    assert len(_late(world, done)) == 1


def test_a_late_answer_takes_a_waiting_repeat_back(world: World, there: FakeRemote) -> None:
    """F120, W32: absence was trusted and the repeat is due; then the first answer comes: it is
    looked for, and not repeated.
    """
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    lag = 300.0
    there.order("lag", "POST", seconds=lag)
    frozen = Frozen(world, "recv.done")

    def halt(name: str) -> None:
        if name == "settle.committed" and world.state(done) == "retry":
            gate.pause(crm.pk, PauseKind.PERSON, "before the repeat", by="test")

    world.drain_until(lambda: world.state(done) == "retry", steps=halt)
    assert not world.operation(done).maybe_executed
    frozen.thaw()
    after = world.operation(done)
    assert (after.state, after.maybe_executed) == ("uncertain", True), world.story(done)
    assert after.sent_at is not None
    world.pass_time(lag - (database_now() - after.sent_at).total_seconds())
    gate.resume(crm.pk)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert _writes(there) == 1


def test_a_late_answer_during_the_repeat(world: World, there: FakeRemote) -> None:
    """F17: it comes while the repeat is on the wire, where nothing can be stopped any more; the
    second object is a case.
    """
    world.allow("I1", "the search hid the object for longer than declared (A3)")
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    there.order("lag", "POST", seconds=3600.0)
    frozen = Frozen(world, "recv.done")
    there.order("hold", "POST")

    def work_on() -> None:
        try:
            world.settle()
        finally:
            connection.close()

    thread = threading.Thread(target=work_on, daemon=True)
    thread.start()
    world.wait_for(lambda: _writes(there) == 2, saying="the repeat")
    assert world.state(done) == "sent"
    frozen.thaw()
    assert world.state(done) == "sent"
    there.release()
    thread.join(60)
    assert world.state(done) == "confirmed", world.story(done)
    case = ReviewCase.objects.get(subject="duplicate")
    assert all(effect.remote_id in case.summary for effect in there.effects("acme"))


@pytest.mark.processes
def test_a_process_frozen_in_mid_call(world: World) -> None:
    """F16, F17 for real: SIGSTOP after the request has left, SIGCONT after another has resolved
    it.
    """
    world.short_leases()
    there = world.fake_remote()
    crm = world.connect(there)
    there.order("hold", "POST")
    [first] = world.work(1)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    world.wait_for(lambda: _writes(there) == 1, saying="the request")
    world.freeze(first)
    there.release()
    world.workers.remove(first)
    try:
        world.settle()
        assert world.state(done) == "confirmed", world.story(done)
        before = Operation.objects.values().get(pk=done.operation_id)
        first.thaw()
        world.wait_for(lambda: _late(world, done), saying="the late result")
        assert Operation.objects.values().get(pk=done.operation_id) == before
        assert first.stop() == 0
    finally:
        world.workers.append(first)
    assert _writes(there) == 1


# --- polite stops ---------------------------------------------------------------------------------


def _stops(world: World, there: FakeRemote, action: str) -> Iterator[tuple[str, Any]]:
    """Stop a drain at each step of an undisturbed attempt; the step and the operation it had."""
    crm = world.connect(there)
    seen = Fuse()
    world.submit(crm, action, "undisturbed", 1, FIELDS)
    world.drain(steps=seen)
    for number, step in enumerate(dict.fromkeys(seen.seen)):
        done = world.submit(crm, action, str(number), 1, FIELDS)
        holder: list[Drain] = []

        def stop(name: str, step: str = step, holder: list[Drain] = holder) -> None:
            if name == step:
                holder[0].stop()

        # By this clock it takes a tenth of the time, so that no machine is too busy for its limits.
        holder.append(
            world.worker(until_idle=True, steps=stop, clock=lambda: world.clock.monotonic() / 10)
        )
        began = time.monotonic()
        holder[0].run()
        assert time.monotonic() - began < 120.0, step
        yield step, done


@pytest.mark.parametrize("action", ["a.create", "c.create", "d.create"])
def test_a_polite_stop_at_each_step(world: World, there: FakeRemote, action: str) -> None:
    """F21: nothing more is claimed, what runs is given back, what was sent ends, in time."""
    states: dict[str, str] = {}
    for step, done in _stops(world, there, action):
        states[step] = world.state(done)
        assert states[step] in ("pending", "retry", "confirmed"), (step, world.story(done))
        row = world.operation(done)
        assert row.lease_until is None
        assert row.lapses == 0
        if states[step] != "confirmed":
            assert row.attempts == 0, "a given back operation costs no attempt"
            assert row.maybe_executed is False
        world.settle()
        assert world.state(done) == "confirmed", (step, world.story(done))
    assert states["claim.before"] == "pending"
    assert states["prepare.guarded"] == "pending"
    assert states["send.sent"] == states["recv.done"] == "confirmed"
    assert len(there.effects("acme")) == len(states) + 1


@pytest.mark.processes
def test_sigterm_to_a_busy_worker(world: World) -> None:
    """F21 for real: what is on the wire ends, the rest is given back, the process ends well."""
    there = world.fake_remote()
    crm = world.connect(there, max_in_flight=4)
    there.order("slow", "POST", seconds=0.4, times=1000)
    done = [world.submit(crm, "c.create", str(n), 1, FIELDS) for n in range(40)]
    [worker] = world.work(1)
    world.wait_for(lambda: _writes(there) >= 4, saying="the first calls")
    assert worker.stop() == 0
    states = world.states()
    assert set(states) <= {"pending", "retry", "confirmed"}, states
    assert states["confirmed"] >= 1
    assert states["pending"] >= 10
    there.clear()
    world.settle()
    assert all(world.state(one) == "confirmed" for one in done)


# --- deaths ---------------------------------------------------------------------------------------


@pytest.mark.processes
def test_all_workers_die_at_once(world: World) -> None:
    """F22: all leases lapse for whoever comes next; a hand is needed only where the class says
    so.
    """
    world.short_leases()
    there = world.fake_remote()
    crm = world.connect(there, max_in_flight=10)
    there.order("slow", "POST", seconds=0.3, times=10_000)
    for n in range(60):
        world.submit(crm, "c.create" if n % 6 else "d.create", str(n), 1, FIELDS)
    workers = world.work(2)
    world.wait_for(lambda: len(there.writes("acme")) >= 20, saying="the first calls")
    for worker in workers:
        worker.kill()
    there.clear()
    held = Operation.objects.filter(lease_until__isnull=False).count()
    assert held >= 10
    world.settle(30)
    for row in Operation.objects.exclude(state="confirmed"):
        assert (row.state, row.action, row.maybe_executed) == ("review", "d.create", True)
    assert Operation.objects.filter(action="c.create", state="confirmed").count() == 50


def test_a_worker_that_dies_while_it_prepares_a_repeat(world: World, there: FakeRemote) -> None:
    """F116, W26: back to retry, still in doubt; the same key goes out once more and is absorbed."""
    crm = world.connect(there)
    there.order("drop", "POST", when="after")
    done = world.submit(crm, "a.create", "1", 1, FIELDS)
    fuse = Fuse("prepare.guarded", 2)
    with suppress(Crash):
        world.settle(steps=fuse)
    assert fuse.burnt
    assert (world.state(done), world.operation(done).maybe_executed) == ("running", True)

    row = world.lapsed(done)
    assert (row.state, row.maybe_executed, row.lapses) == ("retry", True, 1)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.effects("acme")) == 1


def _poison(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whoever prepares the operation "poison" dies; one entry per death."""
    deaths: list[str] = []
    plain = TestRemoteConnector.send

    def send(connector: TestRemoteConnector, request: Request) -> Steps[Any]:
        if request.source_id == "poison":
            deaths.append(request.source_id)
            raise Crash("poison")
        return plain(connector, request)

    monkeypatch.setattr(TestRemoteConnector, "send", send)
    return deaths


def _work_on(world: World) -> None:
    """One drain after the other, whatever kills them, until everything rests."""
    for _ in range(10):
        with suppress(Crash):
            world.settle()
            return
    raise AssertionError(f"still killed: {dict(world.states())}")


def test_an_operation_that_kills_its_workers(
    world: World, there: FakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F14, W21: three lost workers in a row are its own fault; it goes to review, not round and
    round.
    """
    crm = world.connect(there)
    deaths = _poison(monkeypatch)
    done = world.submit(crm, "c.create", "poison", 1, FIELDS)
    _work_on(world)
    row = world.operation(done)
    assert (row.state, row.reason_code, row.maybe_executed) == ("review", "poison", False)
    assert len(deaths) == 3
    assert _writes(there) == 0


def test_one_of_two_hundred_kills_its_workers(
    world: World, there: FakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F126: a batch dies with its worker, and only the culprit ends in review."""
    world.tuning = small_tuning(claim_depth=200)
    crm = world.connect(there, max_in_flight=100)
    deaths = _poison(monkeypatch)
    for n in range(200):
        world.submit(crm, "c.create", "poison" if n == 150 else str(n), 1, FIELDS)
    with suppress(Crash):
        world.drain(steps=Fuse("recv.done", 30))
    assert world.states()["confirmed"] < 100
    _work_on(world)
    assert dict(world.states()) == {"confirmed": 199, "review": 1}, [
        world.story(pk)
        for pk in Operation.objects.filter(state="review")
        .exclude(source_id="poison")
        .values_list("pk", flat=True)[:1]
    ]
    assert Operation.objects.get(state="review").source_id == "poison"
    assert 2 <= len(deaths) <= 3, "it may have lost its worker to the other crash before"


def test_thirty_kills_in_a_row_from_outside(
    world: World, there: FakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F126: killed blindly, too, whatever is in flight. Who may die five times instead of three
    before it is blamed (`HUB_MAX_LAPSES`) is hardly ever an innocent one.
    """
    world.tuning = small_tuning(claim_depth=200, max_lapses=5)
    crm = world.connect(there, max_in_flight=100)
    _poison(monkeypatch)
    for n in range(200):
        world.submit(crm, "a.create", "poison" if n == 150 else str(n), 1, FIELDS)
    killed = 0
    places = ("claim.committed", "mark.committed", "recv.done", "settle.before")
    for turn in range(30):
        if not world.moving():
            break
        killed += 1
        with suppress(Crash):
            world.drain(steps=Fuse(places[turn % 4], 1 + turn % 3))
            world.skip()  # it lived: all there is to take is leased to the dead
    _work_on(world)
    assert killed == 30
    blamed = Operation.objects.exclude(state="confirmed").values_list("source_id", "state")
    assert list(blamed) == [("poison", "review")]


@pytest.mark.parametrize("why", ["its connection is retired", "its parent is not confirmed"])
def test_what_lost_its_worker_and_cannot_be_taken_stops_nobody(
    world: World, there: FakeRemote, why: str
) -> None:
    """Operations that lost a worker are kept apart; one that cannot be taken must not keep the
    rest waiting.
    """
    world.allow("I2", "what cannot be taken stays")
    old = world.connect(there, "old")
    crm = world.connect(there)
    left = world.submit(old, "c.create", "1", 1, FIELDS)
    Operation.objects.filter(pk=left.operation_id).update(lapses=1)
    if why.startswith("its parent"):
        parent = world.submit(old, "job.run", "2", 1, FIELDS)
        Dependency.objects.create(child_id=left.operation_id, parent_id=parent.operation_id)
    else:
        old.retired_at = database_now()
        old.save()
    asked: list[str] = []
    drain = world.worker(budget=600.0, steps=asked.append)
    thread = threading.Thread(target=drain.run, daemon=True)
    thread.start()
    try:
        world.wait_for(lambda: asked.count("claim.committed") > 2, saying="the first claims")
        done = world.submit(crm, "c.create", "1", 1, FIELDS)
        world.wait_for(lambda: world.state(done) == "confirmed", saying="the other's work")
        before, began = asked.count("claim.before"), time.monotonic()
        time.sleep(1.0)
        took = time.monotonic() - began
        assert asked.count("claim.before") - before < 60 * took, "it asks again and again"
    finally:
        drain.stop()
        thread.join(60)
