"""The drain's thread at the database: it leaves nothing open behind it, and outlives errors."""

import os
import threading
import time

import pytest
from django.db import OperationalError

from hub import gate
from hub.delivery import Drain
from hub.desk import _LAST_WAIT
from tests.harness.crashing import Crash
from tests.harness.world import World, small_tuning

FIELDS = {"name": "Ann"}


def test_a_drain_leaves_no_file_open(world: World) -> None:
    """A worker runs hundreds of drains: pipes left behind would be more than `select` can count."""
    remote = world.fake_remote(watched=False)
    world.submit(world.connect(remote), "d.note", "1", 1, FIELDS)
    world.settle()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        Drain(tuning=small_tuning(), budget=1.0, until_idle=True).run()
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert not [one for one in threading.enumerate() if one.name.endswith("-desk")]


def test_a_drain_whose_slot_dies_ends_at_once(world: World) -> None:
    """What died in the loop's hands does not come back: the thread must not wait for it."""
    remote = world.fake_remote()
    world.submit(world.connect(remote), "c.create", "1", 1, FIELDS)

    def steps(name: str) -> None:
        if name == "prepare.guarded":  # the slot alone: the thread lives on
            raise Crash(name)

    began = time.monotonic()
    with pytest.raises(Crash):
        world.worker(steps=steps).run()
    assert time.monotonic() - began < _LAST_WAIT - 1.0
    world.settle()


def test_an_error_of_the_database_in_the_loop_of_the_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F77: whatever statement fails, the thread goes on and tries again later."""
    remote = world.fake_remote()
    done = world.submit(world.connect(remote), "c.create", "1", 1, FIELDS)
    real, failures = gate.opened, [0]

    def failing(*given: object) -> object:
        failures[0] += 1
        if failures[0] <= 3:
            raise OperationalError("the server closed the connection unexpectedly")
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(gate, "opened", failing)
    world.settle()
    assert failures[0] > 3
    assert world.state(done) == "confirmed"
    assert world.operation(done).lapses == 0
