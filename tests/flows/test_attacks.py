"""Attacks that once got through: each of these broke a promise until its fault was mended."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection as database

from hub import review
from hub.models import Connection, Decision, Mapping
from hub.outbox import Submitted
from tests.harness.remote import FakeRemote
from tests.harness.world import World

NUMBERS = {"max_send": 2.0, "max_exec": 0.3, "index_lag": 0.1}


@pytest.fixture
def there(world: World) -> FakeRemote:
    return world.fake_remote()


@pytest.fixture
def crm(world: World, there: FakeRemote) -> Connection:
    return world.connect(there, numbers=NUMBERS)


@pytest.fixture
def working(world: World) -> Iterator[threading.Thread]:
    """A drain at work beside the test."""

    def work() -> None:
        try:
            world.drain()
        finally:
            database.close()

    thread = threading.Thread(target=work)
    yield thread
    if thread.ident is not None:
        thread.join(30)


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
    there.order("stall", "POST")
    two = world.submit(crm, "c.create", "1", 2, {"n": 2})
    working.start()
    world.wait_for(lambda: world.state(two) == "sent", saying="the newer version is out")
    try:
        told = _decide(world, one, "look_again")
    finally:
        there.release()
        working.join(30)
    world.settle()
    assert not told.done
    assert "behind another version" in told.text
