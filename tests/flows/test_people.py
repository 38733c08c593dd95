"""People in the middle of it: decisions, pauses, and what happens when two of them meet (§16)."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection as database

from hub import gate, review
from hub.models import Connection, Decision, Operation, ReviewCase
from hub.models.gate import PauseKind
from hub.outbox import Submitted
from hub.sql import database_now
from tests.harness.remote import FakeRemote
from tests.harness.world import World, small_tuning


@pytest.fixture
def there(world: World) -> FakeRemote:
    return world.fake_remote()


@pytest.fixture
def crm(world: World, there: FakeRemote) -> Connection:
    return world.connect(there)


def _act(world: World, done: Submitted | int, action: str, **more: Any) -> review.Decided:
    row = world.operation(done)
    given: dict[str, Any] = {
        "by": "ann", "reason": "because", "seen_state": row.state, "seen_token": row.lease_token,
    }  # fmt: skip
    return review.act(row.pk, action, **{**given, **more})


def _in_review(world: World, there: FakeRemote, crm: Connection, *, happened: bool) -> Submitted:
    """A create of class d whose outcome nobody knows."""
    there.order("drop", "POST", when="after" if happened else "before")
    done = world.submit(crm, "d.create", "1", 1, {"n": 1})
    world.settle()
    assert world.state(done) == "review", world.story(done)
    return done


# --- two people -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["send_again", "discard"])
def test_twenty_clicks_are_one_decision(
    world: World, there: FakeRemote, crm: Connection, action: str
) -> None:
    """F110: at once, from as many pages; one is done, the others are told, all are on record."""
    done = _in_review(world, there, crm, happened=False)
    row = world.operation(done)
    ready = threading.Barrier(20)
    told: list[review.Decided] = []

    def click(number: int) -> None:
        try:
            ready.wait(60)
            told.append(
                review.act(
                    row.pk, action, by=f"person-{number}", reason="because", seen_state="review",
                    seen_token=row.lease_token,
                )
            )  # fmt: skip
        finally:
            database.close()

    threads = [threading.Thread(target=click, args=(n,)) for n in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert len(told) == 20
    assert [one.done for one in told].count(True) == 1
    assert all("moved on" in one.text for one in told if not one.done)
    assert Decision.objects.filter(operation=row).count() == 20
    world.settle()
    assert Operation.objects.count() == (2 if action == "send_again" else 1)
    assert len(there.effects("acme")) == (1 if action == "send_again" else 0)


def test_a_page_that_was_drawn_before_the_machine_moved_on(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F110: what the person saw is no longer so; nothing changes."""
    there.order("drop", "POST", when="after")
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    world.drain_until(lambda: there.log)
    seen = world.operation(done)
    world.settle()
    decided = review.act(
        seen.pk, "take_over", by="ann", reason="slow", seen_state="uncertain",
        seen_token=seen.lease_token,
    )  # fmt: skip
    assert not decided.done
    assert "confirmed" in decided.text
    assert world.state(done) == "confirmed"


# --- decisions that are carried out ---------------------------------------------------------------


def test_it_happened(world: World, there: FakeRemote, crm: Connection) -> None:
    """Link: the object is read, the operation is confirmed with it, and updates go on."""
    done = _in_review(world, there, crm, happened=True)
    [made] = there.things("acme")
    assert _act(world, done, "link", remote_ref=made).done
    assert world.state(done) == "confirmed"
    update = world.submit(crm, "d.update", "1", 2, {"n": 2})
    world.settle()
    assert world.state(update) == "confirmed", world.story(update)
    assert len(there.things("acme")) == 1


@pytest.mark.parametrize("happened", [True, False])
def test_send_again(world: World, there: FakeRemote, crm: Connection, happened: bool) -> None:
    """F112, the sending half: a second generation, on record with name and reason, and at most one
    object more.
    """
    done = _in_review(world, there, crm, happened=happened)
    decided = _act(world, done, "send_again")
    assert decided.done
    world.acknowledged(decided.operation_id, "sent again")
    world.settle()
    again = world.operation(decided.operation_id)
    assert (again.state, again.generation, again.supersedes_id) == (
        "confirmed", 2, done.operation_id,
    )  # fmt: skip
    first = world.operation(done)
    assert (first.state, first.maybe_executed) == ("discarded", True)
    assert len(there.effects("acme")) == (2 if happened else 1)
    record = Decision.objects.get()
    assert (record.by_name, record.reason, record.done) == ("ann", "because", True)


def test_the_cause_was_corrected(world: World, there: FakeRemote, crm: Connection) -> None:
    """Row 20: the same payload goes again, under the same key."""
    there.order("answer", "POST", when="before", status=400, body={"error": "INVALID"})
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    world.settle()
    assert world.state(done) == "failed"
    key = world.operation(done).remote_key
    assert _act(world, done, "retry").done
    world.settle()
    row = world.operation(done)
    assert (row.state, row.remote_key) == ("confirmed", key)
    assert not ReviewCase.objects.filter(closed_at=None).exists()


def test_look_again(world: World, there: FakeRemote, crm: Connection) -> None:
    """The remote is asked once more, and nothing is sent."""
    there.order("drop", "POST", when="after")
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})

    def take_over(name: str) -> None:
        if name == "settle.committed" and world.state(done) == "uncertain":
            assert _act(world, done, "take_over").done

    world.drain(steps=take_over)
    assert world.state(done) == "review", world.story(done)
    assert _act(world, done, "look_again").done
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.writes("acme")) == 1


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_that_is_taken_over_is_never_simply_started_again(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """§9.7: the remote has it; looked for again it is found, still running, and ends once."""
    done = world.submit(crm, "job.run", "1", 1, {"n": 1})
    world.drain_until(lambda: world.state(done) == "accepted")
    assert _act(world, done, "take_over").done
    row = world.operation(done)
    assert (row.state, row.maybe_executed) == ("review", True)
    refused = _act(world, done, "retry")
    assert not refused.done
    assert _act(world, done, "look_again").done
    world.drain_until(lambda: world.state(done) == "accepted")
    there.job("acme", row.reference, "finished")
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.effects("acme")) == 1


def test_a_job_the_remote_lost(world: World, there: FakeRemote, crm: Connection) -> None:
    """F93: it vanished; a person decides, and an ordinary retry is not among the choices."""
    done = world.submit(crm, "job.run", "1", 1, {"n": 1})
    world.drain_until(lambda: world.state(done) == "accepted")
    there.job("acme", world.operation(done).reference, "gone")
    world.settle()
    row = world.operation(done)
    assert (row.state, row.reason_code, row.maybe_executed) == ("review", "unknown_job", True)
    enabled = {one.action for one in review.choices(row) if one.enabled}
    assert "retry" not in enabled
    assert {"send_again", "look_again", "discard"} <= enabled


# --- repeats that are refused ---------------------------------------------------------------------


def test_a_repeat_is_refused_while_the_first_copy_is_under_way(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F115, W28: the refusal is not believed; the first copy may still be carried out."""
    there.order("late", "POST", seconds=0.8)
    there.order("answer", "POST", when="before", status=400, body={"error": "INVALID"})
    done = world.submit(crm, "a.create", "1", 1, {"n": 1})
    world.settle()
    row = world.operation(done)
    assert row.state != "failed", world.story(done)
    assert row.state == "confirmed" or row.maybe_executed, world.story(done)
    assert len(there.effects("acme")) == 1


# --- pauses ---------------------------------------------------------------------------------------


def test_a_pause_while_fifty_are_in_flight(world: World) -> None:
    """F111: what has left settles; nothing new starts, until the person opens it again."""
    world.tuning = small_tuning(senders=50, claim_depth=100)
    there = world.fake_remote()
    crm = world.connect(there, numbers={"max_send": 60.0}, max_in_flight=50)
    there.order("hold", "POST", times=1000)
    for n in range(200):
        world.submit(crm, "c.create", str(n), 1, {"n": n})
    drain = world.worker(budget=600.0)
    thread = threading.Thread(target=drain.run, daemon=True)
    thread.start()
    try:
        world.wait_for(lambda: len(there.writes("acme")) >= 40, saying="the first calls")
        gate.pause(crm.pk, PauseKind.PERSON, "maintenance", by="ann")
        marked = Operation.objects.exclude(first_sent_at=None).count()
        there.release()
        world.wait_for(
            lambda: not Operation.objects.filter(state__in=["running", "sent"]).exists(),
            saying="the end of what was in flight",
        )
        time.sleep(0.3)
        assert Operation.objects.exclude(first_sent_at=None).count() == marked
        # A marker may be followed by a stopped first byte, never a byte by no marker.
        assert len(there.writes("acme")) <= marked
        states = world.states()
        assert set(states) <= {"pending", "retry", "confirmed"}, states
        assert states["pending"] > 50
        there.clear()
        gate.resume(crm.pk)
        world.wait_for(lambda: world.states()["confirmed"] == 200, saying="the rest")
    finally:
        drain.stop()
        thread.join(60)
    assert not Operation.objects.filter(attempts__gt=2).exists()


def test_a_pause_ends_by_itself(world: World, there: FakeRemote, crm: Connection) -> None:
    until = database_now() + timedelta(seconds=0.5)
    gate.pause(crm.pk, PauseKind.PERSON, "a moment", by="ann", until=until)
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    world.drain()
    assert world.state(done) == "pending"
    world.settle()
    assert world.state(done) == "confirmed"
    assert min(there.requests("acme")) >= until.timestamp()
