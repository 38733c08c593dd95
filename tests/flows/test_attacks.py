"""Attacks that once got through: each of these broke a promise until its fault was mended."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection as database
from django.db import transaction

from hub import outbox, review
from hub.models import Connection, Decision, Mapping
from hub.outbox import Submitted
from tests.harness.crashing import Crash, Fuse
from tests.harness.remote import FakeRemote
from tests.harness.world import World


@pytest.fixture
def there(world: World) -> FakeRemote:
    return world.fake_remote()


@pytest.fixture
def crm(world: World, there: FakeRemote) -> Connection:
    return world.connect(there)


@pytest.fixture
def working(world: World) -> Iterator[threading.Thread]:
    """A drain at work beside the test, once it is started; it ends when nothing is due."""
    thread = threading.Thread(target=world.drain)
    yield thread
    if thread.ident is not None:
        thread.join(60)


def _decide(world: World, done: Submitted, action: str, **more: Any) -> review.Decided:
    row = world.operation(done)
    return review.act(
        row.pk, action, by="ann", reason="because", seen_state=row.state,
        seen_token=row.lease_token, **more,
    )  # fmt: skip


def _doubtful(world: World, there: FakeRemote, crm: Connection) -> tuple[Submitted, str]:
    """A create in review whose object is there; and the object's id."""
    there.order("drop", "POST", when="after")
    done = world.submit(crm, "d.create", "1", 1, {"n": 1})
    world.settle()
    assert world.state(done) == "review"
    return done, there.ledger[-1].remote_id


def _shows(there: FakeRemote, ref: str, value: str) -> None:
    body = json.dumps({"id": ref, "reference": "r", "version": 1, "fields": {"n": value}})
    there.order("answer", "GET", status=200, body=body)


# --- what a person links is stored, too ---


def test_a_secret_in_a_linked_object_is_not_stored(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """I15: a link kept the object as it came; a worker's look would have masked it."""
    done, ref = _doubtful(world, there, crm)
    _shows(there, ref, f"echoed: {there.secrets['token']}")
    assert _decide(world, done, "link", remote_ref=ref).done
    assert there.secrets["token"] not in Mapping.objects.get().values


def test_a_link_stores_only_what_can_be_stored(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F7: half a surrogate pair over there ended in an error page, and no decision on record."""
    done, ref = _doubtful(world, there, crm)
    _shows(there, ref, "half \ud800 a pair, \u0000")
    assert _decide(world, done, "link", remote_ref=ref).done
    assert Decision.objects.get().done
    assert world.state(done) == "confirmed"


# --- a true reason ---


def test_a_decision_refused_because_of_its_stream_says_so(
    world: World, there: FakeRemote, crm: Connection, working: threading.Thread
) -> None:
    """C2: "look again" behind a newer version in flight was refused as "tied to another record"."""
    there.order("answer", "POST", status=403, when="before")
    one = world.submit(crm, "c.create", "1", 1, {"n": 1})
    world.settle()
    assert world.state(one) == "review"
    there.order("hold", "POST")
    two = world.submit(crm, "c.create", "1", 2, {"n": 2})
    working.start()
    world.wait_for(lambda: world.state(two) == "sent", saying="the newer version is out")
    try:
        told = _decide(world, one, "look_again")
    finally:
        there.release()
        working.join(60)
    world.settle()
    assert not told.done
    assert "behind another version" in told.text


# --- a caller's open transaction ---


@pytest.mark.postgresql
@pytest.mark.parametrize("commits", [True, False])
def test_a_caller_that_takes_its_time_costs_no_answer(
    world: World, there: FakeRemote, crm: Connection, commits: bool
) -> None:
    """An import in one transaction holds what it coalesces. The answer of the version before it
    could not be stored then, and was lost with its remote id; meanwhile nothing else was settled.
    """
    elsewhere = world.fake_remote()
    other = world.connect(elsewhere, "other")
    crm.numbers = {"*": {**world.numbers, "max_send": 60.0}}
    crm.save()
    there.order("hold", "POST")
    one = world.submit(crm, "d.create", "1", 1, {"n": 1})
    drain = world.worker(budget=600.0)
    working = threading.Thread(target=drain.run)
    working.start()
    world.wait_for(lambda: world.state(one) == "sent", saying="the first is out")
    two = world.submit(crm, "d.update", "1", 2, {"n": 2})
    world.wait_for(lambda: world.operation(two).parked, saying="the second is put aside")
    inside, enough = threading.Event(), threading.Event()

    def caller() -> None:
        try:
            with transaction.atomic():
                done = outbox.submit(crm, "d.update", source_id="1", version=3, fields={"n": 3})
                inside.set()
                enough.wait(170)
                if not commits:
                    transaction.set_rollback(True)
            if commits:
                world.acknowledged(done.operation_id, "version 3")
        finally:
            database.close()

    thread = threading.Thread(target=caller)
    thread.start()
    try:
        assert inside.wait(60)
        there.release()
        world.wait_for(lambda: world.state(one) == "confirmed", saying="its answer is stored")
        done = world.submit(other, "c.create", "9", 1, {"n": 1})
        world.wait_for(lambda: world.state(done) == "confirmed", saying="the other tenant's work")
        assert thread.is_alive(), "the caller's transaction was over before"
    finally:
        enough.set()
        thread.join(60)
        drain.stop()
        working.join(60)
    world.settle()
    assert world.state(two) == ("discarded" if commits else "confirmed")


# --- numbers that change in mid-flight ---


def test_a_max_send_that_is_lowered_does_not_shorten_the_wait_of_what_is_out(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """A3: its worker may send until its lease ends. By the lowered number "not there" was trusted
    while the first copy could still be executed: a blind repeat.
    """
    crm.numbers = {"*": {**world.numbers, "max_send": 40.0}}
    crm.save()
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    with suppress(Crash):
        world.drain(steps=Fuse("send.connected"))
    row = world.operation(done)
    assert row.state == "sent"
    assert row.lease_until is not None
    crm.numbers = {"*": {**world.numbers, "max_send": 4.0}}
    crm.save()
    world.settle()
    after = world.operation(done)
    assert after.state == "confirmed", world.story(done)
    assert after.last_byte_at is not None
    margin = timedelta(seconds=world.tuning.limits.margin)
    assert after.last_byte_at >= row.lease_until - margin - timedelta(seconds=0.1)
