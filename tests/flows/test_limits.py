"""Limits over all workers, fair turns, breakers and pauses (protocol §11)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from hub import gate
from hub.delivery import Drain
from hub.models import Attempt, Bucket, Connection, Gate, Operation, ReviewCase
from hub.models.gate import PauseKind
from hub.sql import database_now
from hub.states import MOVING
from tests.harness import audit
from tests.harness.classes import TestRemoteConnector
from tests.harness.world import World, small_tuning

DAY = timedelta(days=1)


@contextmanager
def _working(world: World, **options: Any) -> Iterator[Drain]:
    """A drain at work in a thread of its own."""
    drain = world.worker(budget=600.0, **options)
    thread = threading.Thread(target=drain.run, daemon=True)
    thread.start()
    try:
        yield drain
    finally:
        drain.stop()
        thread.join(60)
        assert not thread.is_alive()


def _rest(world: World) -> None:
    world.wait_for(lambda: not world.moving(), saying="the end of all work")


# --- rates ----------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("workers", [2, 4])
def test_several_workers_share_one_limit(world: World, workers: int) -> None:
    """F106, W20, I18: the remote never sees more than burst and rate, nor much less."""
    # A token is taken with the claim; how soon the call leaves after that is up to the machine.
    world.rate_slack = 15 * 0.3
    there = world.fake_remote()
    crm = world.connect(there, limits={"default": {"rate": 15, "burst": 5}})
    for n in range(60):
        world.submit(crm, "c.create", str(n), 1, {"n": n})
    world.work(workers)
    world.wait_for(lambda: world.states()["confirmed"] == 60, saying="all of it")
    times = sorted(there.requests("acme"))
    assert len(times) >= 60
    assert 55 / 15 - 0.5 <= times[-1] - times[0] < 60
    assert Bucket.objects.get().level >= -0.001


def test_looks_pay_for_themselves(world: World) -> None:
    """I18: every further call of an attempt takes its own token."""
    world.tuning = small_tuning()
    there = world.fake_remote()
    crm = world.connect(there, limits={"default": {"rate": 10, "burst": 2}})
    there.order("drop", "POST", when="before", times=5)
    for n in range(10):
        world.submit(crm, "c.create", str(n), 1, {"n": n})
    world.settle()
    assert set(world.states()) == {"confirmed"}
    assert len(there.requests("acme")) >= 15


def test_too_fast_costs_time_and_no_attempt(world: World) -> None:
    """F47: not before the given time; the attempt is given back."""
    there = world.fake_remote()
    crm = world.connect(there)
    there.order(
        "answer", "POST", when="before", status=429, headers={"retry-after": "1"},
        body={"error": "TOO_FAST"},
    )  # fmt: skip
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    world.settle()
    row = world.operation(done)
    assert (row.state, row.attempts) == ("confirmed", 1)
    first, second = sorted(there.requests("acme"))[:2]
    assert second - first >= 1.0


# --- fair turns -----------------------------------------------------------------------------------


def test_a_tenant_with_a_long_queue_delays_nobody_by_more_than_a_round(world: World) -> None:
    """F107: the other's first operation starts within what had been claimed ahead."""
    world.tuning = small_tuning(claim_depth=40, senders=10)
    there = world.fake_remote()
    loud = world.connect(there, "loud", tenant="loud", max_in_flight=10)
    quiet = world.connect(there, "quiet", tenant="quiet", max_in_flight=10)
    for n in range(300):
        world.submit(loud, "c.create", str(n), 1, {"n": n})
    before: list[int] = []
    waiting: list[int] = []

    def steps(name: str) -> None:
        # On the drain's own thread, so that it is there for this claim however long it takes.
        if name == "claim.before" and not before and len(there.requests("loud")) > 60:
            waiting.append(world.states()["pending"])
            world.submit(quiet, "c.create", "1", 1, {"n": 1})
            before.append(len(there.requests("loud")))

    world.drain(steps=steps)
    [first] = there.requests("quiet")
    between = len([at for at in there.requests("loud") if at < first]) - before[0]
    assert waiting[0] > 100, "the loud one was done before it could be in the way"
    # Claimed ahead, and prepared or in flight: three times the calls at once.
    assert between <= 40 + 3 * 10, between
    world.settle()


def test_a_remote_that_hangs_fills_its_own_slots_only(world: World) -> None:
    """F108: the others go on; its breaker opens, and closes when it is well again."""
    world.tuning = small_tuning(breaker_threshold=3, senders=8)
    hanging, well = world.fake_remote(), world.fake_remote()
    stuck = world.connect(hanging, "stuck", numbers={"max_send": 60.0}, max_in_flight=3)
    free = world.connect(well, "free", max_in_flight=5)
    hanging.order("stall", "POST", when="before", times=10_000)
    for n in range(30):
        world.submit(stuck, "c.create", str(n), 1, {"n": n})
    with _working(world):
        world.wait_for(lambda: hanging.writes("stuck"), saying="the first call that hangs")
        others = [world.submit(free, "c.create", str(n), 1, {"n": n}) for n in range(30)]
        world.wait_for(
            lambda: all(world.state(one) == "confirmed" for one in others),
            saying="the others' work",
        )
        called = Attempt.objects.filter(operation__connection=stuck).exclude(marked_at=None)
        assert not called.exclude(settled_at=None).exists(), "they waited for the one that hangs"
        hanging.release()  # without an answer: each call is a failure
        world.wait_for(
            lambda: any(e.kind == "breaker" and e.after == "open" for e in audit.entries()),
            saying="the breaker",
        )
    hanging.clear()
    world.settle()
    assert set(world.states()) == {"confirmed"}
    assert Gate.objects.get(pk=stuck.pk).breaker == "closed"
    assert Gate.objects.get(pk=free.pk).openings == 0


# --- breaker --------------------------------------------------------------------------------------


def _openings(where: Connection) -> int:
    return Gate.objects.get(pk=where.pk).openings


@pytest.mark.parametrize("happened", [True, False])
def test_a_probe_whose_fate_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """F109: the breaker opens again, and the probe is resolved by its own class."""
    monkeypatch.setattr(TestRemoteConnector, "ping", lambda self: None)
    world.tuning = small_tuning(breaker_threshold=2)
    there = world.fake_remote()
    crm = world.connect(there)
    Gate.objects.filter(pk=crm.pk).update(
        breaker="open", breaker_until=database_now(), openings=1, failures=2
    )
    lost = there.order("drop", "POST", when="after" if happened else "before")
    first = world.submit(crm, "c.create", "1", 1, {"n": 1})
    others = [world.submit(crm, "c.create", str(n), 1, {"n": n}) for n in range(2, 12)]
    world.drain()
    assert lost.met == 1
    assert len(there.writes("acme")) == 1, "one probe, and nothing beside it"
    assert _openings(crm) == 2
    world.settle()
    assert {world.state(one) for one in [first, *others]} == {"confirmed"}
    assert len(there.effects("acme")) == 11
    assert Gate.objects.get(pk=crm.pk).breaker == "closed"


def test_a_harmless_read_is_the_probe_where_there_is_one(world: World) -> None:
    """Protocol §11: no operation is put at risk."""
    world.tuning = small_tuning(breaker_threshold=2)
    there = world.fake_remote()
    crm = world.connect(there)
    Gate.objects.filter(pk=crm.pk).update(
        breaker="open", breaker_until=database_now(), openings=1, failures=2
    )
    there.order("drop", "GET", path="ping", times=2)
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    world.settle()
    assert world.state(done) == "confirmed"
    assert [one.parts[-1] for one in there.log].index("things") >= 3
    assert world.operation(done).attempts == 1


# --- pauses ---------------------------------------------------------------------------------------


def test_a_dead_credential_pauses_and_costs_nothing(world: World) -> None:
    """F57, §11: after the first refusals nothing more is sent; one case; budgets stay."""
    there = world.fake_remote()
    crm = world.connect(there, max_in_flight=2)
    there.order("answer", "POST", when="before", status=401, body={"error": "BAD_TOKEN"}, times=999)
    for n in range(60):
        world.submit(crm, "c.create", str(n), 1, {"n": n})
    world.drain()
    assert Gate.objects.get(pk=crm.pk).pause_kind == PauseKind.CREDENTIAL
    assert len(there.writes("acme")) <= 10
    assert ReviewCase.objects.filter(subject="connection", closed_at=None).count() == 1
    assert Operation.objects.exclude(state__in=["pending", "retry"]).count() == 0
    assert not Operation.objects.filter(attempts__gt=1).exists()
    there.clear()
    gate.resume(crm.pk)
    world.settle()
    assert set(world.states()) == {"confirmed"}


def test_a_pause_of_three_days(world: World) -> None:
    """F127: resumed, what waited is tried and looked at anew; nothing goes to review by its age,
    though the drain was there all the time.
    """
    world.tuning = small_tuning(
        margin=0.3, sweep_every=0.1, retry_base=1.0, retry_cap=1.0, look_schedule=(1.0, 0.1)
    )
    there = world.fake_remote()
    crm = world.connect(there)
    there.order("drop", "POST", when="before", times=40)
    for n in range(40):
        world.submit(crm, ("c.create", "a.create")[n % 2], str(n), 1, {"n": n})

    def halt(name: str) -> None:
        if name == "settle.committed" and not Operation.objects.filter(first_sent_at=None).exists():
            gate.pause(crm.pk, PauseKind.PERSON, "holidays", by="ann")

    world.drain(steps=halt)
    then = database_now() - 3 * DAY
    waiting = Operation.objects.filter(state__in=[state.value for state in MOVING])
    waiting.update(state_since=then)
    waiting.filter(state="retry").update(retry_since=then)
    assert waiting.count() >= 5
    # Back at first, the remote is busy, so that everything is asked about more than once.
    there.order("answer", "*", when="before", status=503, body={"error": "BUSY"}, times=30)
    with _working(world):
        time.sleep(0.5)
        assert not Operation.objects.filter(state="review").exists(), "aged while paused"
        gate.resume(crm.pk)
        _rest(world)
    reviewed = Operation.objects.filter(state="review")
    assert not reviewed.exists(), "\n".join(world.story(one.pk) for one in reviewed[:2])


def test_keys_that_died_during_a_pause_are_looked_up(world: World) -> None:
    """F127, F52: not repeated; what has no look goes to a person."""
    there = world.fake_remote()
    crm = world.connect(there, numbers={"key_ttl": 100.0})
    there.order("drop", "POST", when="after", times=2)
    looked = world.submit(crm, "al.create", "1", 1, {"n": 1})
    blind = world.submit(crm, "a.create", "2", 1, {"n": 2})

    def halt(name: str) -> None:
        if name == "settle.committed":
            gate.pause(crm.pk, PauseKind.PERSON, "holidays", by="ann")

    world.drain(steps=halt)
    for one in (looked, blind):
        Operation.objects.filter(pk=one.operation_id, first_sent_at__isnull=False).update(
            first_sent_at=database_now() - DAY
        )
        Operation.objects.filter(pk=one.operation_id, repeat_until__isnull=False).update(
            repeat_until=database_now() - DAY
        )
    there.forget_keys()
    gate.resume(crm.pk)
    world.settle()
    assert world.state(looked) == "confirmed", world.story(looked)
    row = world.operation(blind)
    assert row.state in ("review", "confirmed"), world.story(blind)
    assert len(there.effects("acme")) == 2
    assert len(there.writes("acme")) == 2


def test_a_form_saved_while_workers_open_the_breaker(world: World) -> None:
    """F130: the form's page was drawn before; saving it neither closes the breaker nor makes
    tokens.
    """
    world.tuning = small_tuning(breaker_threshold=3, breaker_pause=30.0)
    world.allow("I2", "the breaker stays open")
    there = world.fake_remote()
    crm = world.connect(there, limits={"default": {"rate": 5, "burst": 10}})
    drawn = Connection.objects.select_related("gate").get(pk=crm.pk)
    there.order("drop", "POST", when="before", times=100)
    for n in range(20):
        world.submit(crm, "c.create", str(n), 1, {"n": n})
    world.drain()
    found = Gate.objects.get(pk=crm.pk)
    assert found.breaker == "open"
    level = Bucket.objects.get().level
    sent = len(there.log)
    drawn.label = "A new title"
    drawn.save()
    assert Gate.objects.get(pk=crm.pk).breaker == "open"
    assert Bucket.objects.get().level == level
    world.drain()
    assert len(there.log) == sent
