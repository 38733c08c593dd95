"""Each rule whose loss would cost a duplicate, a loss or a lie, met where only that rule helps.

The planted weaknesses (`make weaknesses`) are held against these tests: each is named for its fault
and for the weakness it has to see. Remotes are real sockets, numbers small.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection as database
from django.utils import timezone

from hub import gate, review
from hub.delivery import Drain
from hub.models import Heartbeat, Operation
from hub.models.gate import PauseKind
from hub.sql import database_now, is_postgres
from tests.harness.crashing import Crash, Fuse
from tests.harness.remote import FakeRemote
from tests.harness.world import World, small_tuning

FIELDS = {"name": "Ann"}
CALM: dict[str, Any] = {"sweep_every": 600.0, "poll_interval": 30.0, "beat_every": 30.0}
"""A drain that leaves the database alone unless it has to."""


@pytest.fixture
def there(world: World) -> FakeRemote:
    return world.fake_remote()


class Held:
    """A drain in a thread of its own that waits at a step until it may go on."""

    def __init__(self, world: World, step: str) -> None:
        self._step = step
        self._reached = threading.Event()
        self._go = threading.Event()
        self._drain = world.worker(
            tuning=small_tuning(sweep_every=86_400.0),
            budget=86_400.0,
            until_idle=True,
            steps=self._at,
        )
        self._thread = threading.Thread(target=self._drain.run, daemon=True)
        self._thread.start()
        assert self._reached.wait(60), f"the drain never came to {step}"

    def _at(self, name: str) -> None:
        if name == self._step:
            self._reached.set()
        if self._reached.is_set():
            assert self._go.wait(60)

    def end(self) -> None:
        """Let it go on to its end."""
        self._go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


# --- the marker and the token ---------------------------------------------------------------------


def test_the_marker_is_there_before_the_first_byte(world: World, there: FakeRemote) -> None:
    """I7, F13, W1: the remote looks it up while it handles the very first request."""
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    holder: list[Drain] = []

    def stop(name: str) -> None:
        if name == "recv.done":
            holder[0].stop()

    holder.append(world.worker(budget=600.0, until_idle=True, steps=stop))
    holder[0].run()
    assert there.looked == 1
    assert there.complaints() == []
    assert world.state(done) == "confirmed"


def test_an_error_that_comes_late_does_not_reopen_what_another_has_sent(
    world: World, there: FakeRemote
) -> None:
    """F18, W3: frozen after its marker, the first says "nothing left" while the second's repeat is
    out: the same state, another token.
    """
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    first = Held(world, "send.connected")
    there.order("hold", "POST")
    assert world.lapsed(done).state == "uncertain"

    def work() -> None:
        world.drain_until(lambda: there.writes("acme"))
        database.close()

    second = threading.Thread(target=work)
    second.start()
    world.wait_for(lambda: there.writes("acme"), saying="the repeat")
    assert world.state(done) == "sent"
    before = world.operation(done).lease_token
    first.end()
    after = world.operation(done)
    there.release()
    second.join(60)
    assert (after.state, after.lease_token) == ("sent", before), world.story(done)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.writes("acme")) == 1


# --- what cannot be known -------------------------------------------------------------------------


def test_a_request_that_is_executed_late(world: World, there: FakeRemote) -> None:
    """F41, W5: the client has gone, the object comes later; looks before that prove nothing."""
    crm = world.connect(there, numbers={"max_exec": 1.0})
    there.order("late", "POST", seconds=0.4)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.effects("acme")) == 1


def test_a_503_that_asks_for_patience_after_it_executed(world: World, there: FakeRemote) -> None:
    """F48, W7: `Retry-After` says when, not whether; nothing but a person can tell here."""
    crm = world.connect(there)
    there.order("answer", "POST", when="after", status=503, headers={"retry-after": "1"}, body="")
    done = world.submit(crm, "d.create", "1", 1, FIELDS)
    world.settle()
    row = world.operation(done)
    assert (row.state, row.maybe_executed) == ("review", True), world.story(done)
    assert len(there.effects("acme")) == 1


def test_a_repeat_that_is_refused_proves_nothing(world: World, there: FakeRemote) -> None:
    """F115, W28: the first copy is still under way when its repeat gets a 4xx."""
    crm = world.connect(there)
    there.order("late", "POST", seconds=0.25)
    there.order("answer", "POST", when="before", status=400, body={"error": "INVALID"})
    done = world.submit(crm, "a.create", "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.effects("acme")) == 1


def test_a_repeat_whose_key_has_died_is_not_claimed(world: World, there: FakeRemote) -> None:
    """F52, W27: due again only after its key may have been forgotten, and no sweep came between."""
    crm = world.connect(there, numbers={"key_ttl": 100.0})
    there.order("drop", "POST", when="after")
    done = world.submit(crm, "a.create", "1", 1, FIELDS)
    waits = threading.Event()

    def halt(name: str) -> None:
        if name == "settle.committed" and not waits.is_set():
            gate.pause(crm.pk, PauseKind.PERSON, "until the key is dead", by="test")
            waits.set()

    drain = world.worker(tuning=small_tuning(sweep_every=86_400.0), budget=86_400.0, steps=halt)
    worker = threading.Thread(target=drain.run)
    worker.start()
    assert waits.wait(60)
    assert world.state(done) == "retry", world.story(done)
    dead = world.operation(done).repeat_until
    assert dead is not None
    world.pass_time((dead - database_now()).total_seconds() + 0.1)
    gate.resume(crm.pk)
    marker = world.submit(crm, "a.note", "2", 1, FIELDS)
    world.wait_for(lambda: world.state(marker) == "confirmed", saying="what came later")
    drain.stop()
    worker.join(60)
    assert len(there.writes("acme")) == 2
    world.settle()
    row = world.operation(done)
    assert (row.state, row.reason_code) == ("review", "key_used_up"), world.story(done)


def test_attempts_used_up_in_doubt_need_a_person(world: World, there: FakeRemote) -> None:
    """F34, I4, W22: it did happen; that every answer was lost makes it no failure."""
    world.tuning = small_tuning(max_attempts=2)
    crm = world.connect(there)
    there.order("drop", "POST", when="after", times=1000)
    done = world.submit(crm, "a.create", "1", 1, FIELDS)
    world.settle()
    row = world.operation(done)
    assert (row.state, row.maybe_executed) == ("review", True), world.story(done)
    assert len(there.effects("acme")) == 1
    assert len(there.writes("acme")) == 2


def test_a_create_after_one_withdrawn_in_doubt(world: World, there: FakeRemote) -> None:
    """F121, W31: the first may exist; the next version's create goes to a person, not out."""
    crm = world.connect(there)
    there.order("drop", "POST", when="after")
    first = world.submit(crm, "d.create", "1", 1, FIELDS)
    world.settle()
    row = world.operation(first)
    assert (row.state, row.maybe_executed) == ("review", True)
    told = review.act(
        row.pk, "discard", by="ann", reason="no longer wanted",
        seen_state=row.state, seen_token=row.lease_token,
    )  # fmt: skip
    assert told.done
    second = world.submit(crm, "d.create", "1", 2, FIELDS)
    world.settle()
    assert world.state(second) == "review", world.story(second)
    assert len(there.effects("acme")) == 1


# --- order ----------------------------------------------------------------------------------------


def test_a_late_copy_does_not_overwrite_the_next_version(world: World, there: FakeRemote) -> None:
    """F89, W15: version 2 is withdrawn in doubt while its copy is under way; version 3 waits until
    that copy can no longer arrive.
    """
    crm = world.connect(there, numbers={"max_exec": 1.8})
    world.submit(crm, "d.create", "1", 1, FIELDS)
    world.settle()
    there.order("late", "PUT", seconds=0.9)
    second = world.submit(crm, "d.update", "1", 2, {"name": "Eve"})
    world.drain()
    row = world.operation(second)
    assert (row.state, row.maybe_executed) == ("review", True)
    third = world.submit(crm, "d.update", "1", 3, {"name": "Mia"})
    told = review.act(
        row.pk, "discard", by="ann", reason="a newer one follows",
        seen_state=row.state, seen_token=row.lease_token,
    )  # fmt: skip
    assert told.done
    world.settle()
    assert world.state(third) == "confirmed", world.story(third)
    assert [one.fields["name"] for one in there.things("acme").values()] == ["Mia"]


# --- the call -------------------------------------------------------------------------------------


def test_a_write_that_is_redirected_goes_nowhere(world: World, there: FakeRemote) -> None:
    """F59, W19: neither the write nor the credential goes to the other host."""
    other = world.fake_remote(watched=False)
    crm = world.connect(there)
    elsewhere = {"location": f"{other.base_url('acme')}/things"}
    there.order("answer", "POST", when="before", status=307, headers=elsewhere, body="")
    done = world.submit(crm, "a.create", "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == "failed", world.story(done)
    assert other.log == []


def test_an_answer_that_drips_does_not_outlast_its_lease(world: World, there: FakeRemote) -> None:
    """F37, W14: each byte comes soon enough for a time-out per read; the attempt ends."""
    crm = world.connect(there, numbers={"max_send": 0.5})
    there.order("drip", "POST", seconds=0.02)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    first = world.operation(done).attempt_set.order_by("token")[0]
    assert first.outcome == "U", world.story(done)
    assert first.duration_ms is not None
    assert first.duration_ms < 1000 * world.tuning.lease(0.5)
    assert len(there.effects("acme")) == 1


def test_no_transaction_is_open_while_a_call_is_out(world: World) -> None:
    """I19, W12: the drain's own connection is looked at while the remote takes its time."""
    there = world.fake_remote()
    crm = world.connect(there)
    there.order("slow", "POST", seconds=0.5)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    raw: list[Any] = []
    seen: list[bool] = []
    ended = threading.Event()

    def open_now() -> bool:
        if is_postgres():
            return bool(raw[0].info.transaction_status)
        return bool(raw[0].in_transaction)

    def watch() -> None:
        while not ended.wait(0.02):
            seen.append(open_now())

    watcher = threading.Thread(target=watch)

    def steps(name: str) -> None:
        if name == "mark.committed":  # on the thread that owns the connection
            raw[:] = [database.connection]
        elif name == "send.sent":
            watcher.start()
        elif name == "recv.status":
            ended.set()

    world.drain(tuning=small_tuning(**CALM), steps=steps)
    watcher.join(10)
    assert world.state(done) == "confirmed", world.story(done)
    assert len(seen) >= 5
    assert sum(seen) <= len(seen) / 2, seen


@pytest.mark.postgresql
def test_the_stand_in_sees_no_transaction_span_a_call(world: World) -> None:
    """I19, W12: the stand-in asks the server, from a request's arrival to its answer."""
    world.real_time()
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    done = world.submit(bitrix)
    world.drain(tuning=small_tuning(**CALM))
    assert world.state(done) == "confirmed", world.story(done)
    assert stand_in.complaints() == []


# --- clocks, limits, deaths -----------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_workers_wall_clock_has_no_say_in_its_leases(
    world: World, there: FakeRemote, hours: int
) -> None:
    """F85, W13: leases end by the database's clock, whatever the worker's shows."""
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    left: list[float] = []

    def steps(name: str) -> None:
        if name == "claim.committed":
            row = Operation.objects.get(pk=done.operation_id)
            if row.lease_until is not None:
                left.append((row.lease_until - database_now()).total_seconds())

    world.drain(
        steps=steps, now=lambda: timezone.now() + timedelta(hours=hours),
    )  # fmt: skip
    assert left
    lease = world.tuning.lease(world.numbers["max_send"])
    assert all(0.0 < one <= lease for one in left), left
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.writes("acme")) == 1


@pytest.mark.processes
def test_workers_share_one_limit(world: World) -> None:
    """F106, I18, W20: three processes that begin at once, and one bucket."""
    world.rate_slack = 3.0  # tokens are taken at the claim: a busy machine sends in heaps
    there = world.fake_remote()
    crm = world.connect(there, limits={"default": {"rate": 4, "burst": 2}})
    gate.pause(crm.pk, PauseKind.PERSON, "until all are there", by="test")
    for number in range(12):
        world.submit(crm, "a.note", str(number), 1, FIELDS)
    world.work(3)
    world.wait_for(lambda: Heartbeat.objects.count() == 3, saying="three workers")
    gate.resume(crm.pk)
    world.settle()
    times = sorted(there.requests("acme"))
    assert len(times) >= 12
    assert times[-1] - times[0] > 1.5, "twelve at four a second, two of them at once: 2.5 s"


def test_an_operation_that_kills_its_workers_is_put_aside(world: World, there: FakeRemote) -> None:
    """F14, W21: three workers lost in a row; the fourth never meets it."""
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)

    for death in range(3):
        assert world.state(done) == "pending", world.story(done)
        with pytest.raises(Crash):
            world.drain(steps=Fuse("prepare.guarded"))
        assert world.lapsed(done).attempts == death + 1
    row = world.operation(done)
    assert (row.state, row.reason_code, row.maybe_executed) == ("review", "poison", False)
    with suppress(Crash):
        world.drain(steps=Fuse("prepare.guarded"))
    assert there.writes("acme") == []


@pytest.mark.processes
def test_another_process_takes_over_from_the_dead(world: World) -> None:
    """F22, W25: whoever sweeps ends the leases of those that no longer can."""
    world.short_leases()
    there = world.fake_remote()
    crm = world.connect(there)
    there.order("stall", "POST", when="after")
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    [worker] = world.work(1)
    world.wait_for(lambda: there.writes("acme"), saying="the request")
    worker.kill()
    there.release()
    world.work(1)
    world.wait_for(lambda: world.state(done) == "confirmed", saying="the take-over")
    assert len(there.effects("acme")) == 1


# --- slots, and a network that repeats
# -------------------------------------------------------------


def test_waiting_for_a_slot_costs_nothing(world: World, there: FakeRemote) -> None:
    """F27: with one slot and a slow remote the others wait; no attempt is used up, nothing is N."""
    crm = world.connect(there, max_in_flight=1)
    there.order("slow", "POST", seconds=0.15, times=3)
    done = [world.submit(crm, "c.create", str(n), 1, FIELDS) for n in range(6)]
    world.settle()
    assert [world.operation(one).attempts for one in done] == [1] * 6
    assert world.states() == {"confirmed": 6}


@pytest.mark.parametrize(("action", "effects"), [("a.create", 1), ("b.create", 1), ("c.create", 2)])
def test_a_request_that_the_network_repeats(
    world: World, there: FakeRemote, action: str, effects: int
) -> None:
    """F43: key and condition absorb the second copy; in class c only a comparison can see it."""
    if effects > 1:
        world.allow("I1", "the network made it two, and nothing here can prevent that")
    crm = world.connect(there)
    there.order("twice", "*")
    done = world.submit(crm, action, "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.effects("acme")) == effects
