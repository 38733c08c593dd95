"""Layer L4: a crash at every single step point, in this process and by SIGKILL (F13, F20, F29-F32,
F70, F73).

For step 1, 2, 3 … a drain carries one fresh operation and dies there; the next one takes over what
is left. Every operation has a connection of its own, and those of the dead are paused until all
crashes are over, so that a later drain meets its own operation only. In the end all gates open,
everything comes to rest, and all invariants hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hub import gate
from hub.models import Connection, Operation
from hub.models.gate import PauseKind
from tests.harness.crashing import Crash, Fuse, Gallows
from tests.harness.world import World, small_tuning

pytestmark = pytest.mark.processes

NO_SWEEP: dict[str, Any] = {"sweep_every": 86_400.0}
MOST = 40
"""More step points than one operation can meet: a run that goes on this long has gone astray."""

Dying = Callable[[str, int], list[str]]


def _die_everywhere(world: World, action: str, dying: Dying) -> set[str]:
    """Crash at each step that an undisturbed run meets, each time it is met; the names of the steps
    that were hit.
    """
    world.jumping_time()
    stand_in = world.stand_in(timeless=True)
    ready = [world.connect(stand_in, f"a{n}") for n in range(MOST)]
    if action != "contact.create":
        for connection in ready:
            world.submit(connection)
        world.settle()
    for connection in ready:
        gate.pause(connection.pk, PauseKind.PERSON, "not its turn", by="test")
    undisturbed = _one(world, ready[0], action, lambda: dying("", 1))
    assert undisturbed[-1] == "end"
    met = Counter(name for name in undisturbed[:-1] if not name.startswith("claim."))
    met.update({"claim.before": 1, "claim.committed": 1})  # how often an idle drain asks is chance
    points = [(name, time) for name in met for time in range(1, met[name] + 1)]
    hit: set[str] = set()
    for connection, (name, time) in zip(ready[1:], points, strict=False):
        seen = _one(world, connection, action, lambda n=name, t=time: dying(n, t))  # type: ignore[misc]
        if seen[-1] == name:
            hit.add(name)
    assert len(points) < MOST, "more step points than connections were made ready for"
    for connection in ready:
        gate.resume(connection.pk)
    world.settle()
    return hit


def _one(
    world: World, connection: Connection, action: str, dying: Callable[[], list[str]]
) -> list[str]:
    """Let one operation of its own meet its fate; the steps that were seen."""
    gate.resume(connection.pk)
    world.submit(connection, action, version=2)
    seen = dying()
    gate.pause(connection.pk, PauseKind.PERSON, "its drain has died", by="test")
    return seen


def _in_process(world: World, name: str, time: int) -> list[str]:
    fuse = Fuse(name, time)
    try:
        world.drain(tuning=small_tuning(**NO_SWEEP), steps=fuse)
    except Crash:
        pass
    return fuse.seen if fuse.burnt else [*fuse.seen, "end"]


EXPECTED = {
    "claim.before",
    "claim.committed",
    "prepare.guarded",
    "mark.before",
    "mark.committed",
    "send.connected",
    "send.first_byte",
    "send.sent",
    "recv.status",
    "recv.done",
    "settle.before",
    "settle.committed",
}


@pytest.mark.parametrize("action", ["contact.create", "contact.update", "contact.delete"])
def test_a_crash_at_any_step_loses_nothing(world: World, action: str) -> None:
    hit = _die_everywhere(world, action, lambda name, time: _in_process(world, name, time))
    assert hit >= EXPECTED, f"never crashed at {EXPECTED - hit}"
    _all_true(world)


@pytest.mark.parametrize("action", ["contact.create", "contact.update"])
def test_a_kill_at_any_step_loses_nothing(world: World, action: str) -> None:
    gallows = Gallows(world.environment)
    try:
        hit = _die_everywhere(
            world,
            action,
            lambda name, time: gallows.drain(name, time, NO_SWEEP, world.clock.passed),
        )
    finally:
        gallows.close()
    assert hit >= EXPECTED, f"never killed at {EXPECTED - hit}"
    _all_true(world)


def _all_true(world: World) -> None:
    """Every operation is confirmed: the stand-in was well, so nothing but the crash was in the
    way.
    """
    left = Operation.objects.exclude(state="confirmed").values_list("pk", flat=True)
    assert not left, "\n".join(world.story(pk) for pk in list(left)[:5])
    assert Connection.objects.count() == MOST
