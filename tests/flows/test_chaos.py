"""A cluster of two workers carries 2,000 operations while the remote fails and its processes, now
and then a parent,
are killed and frozen.

What must come out is what always must: the ledger without duplicates, every operation at rest with
a true state, none
lost. `world` checks that afterwards; here stands what makes it hard.
"""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter

import pytest
from django.db import connection, transaction

from hub.models import Connection, Operation
from hub.outbox import Impossible
from tests.harness.views import StandIn
from tests.harness.workers import HubRun
from tests.harness.world import World, real_tuning

pytestmark = pytest.mark.processes

CREATES, SECOND, THIRD = 1100, 700, 200
SEED = 20
ACTS = ("kill", "freeze", "kill", "parent", "kill", "freeze", "kill", "kill", "parent", "kill")
"""What happens about once a second, over and over; in the first round there is always work left."""
KILLING = 20.0
"""Seconds after which the remaining work is left in peace, so that the run has an end: it may be
longer on a busy machine, but not before each act was seen once."""
TRUE_REASONS = {
    "poison",  # its worker was killed three times in a row
    "absent_again",  # lost twice, and twice seen not to have happened: a person decides
}
FAULTS = (
    # name, probability, seconds
    ("answer_lost_after_commit", 0.05, 0.0),
    ("answer_lost_before_commit", 0.03, 0.0),
    ("late_commit", 0.02, 0.3),
    ("cut_body", 0.02, 0.0),
    ("coded_5xx_after_commit", 0.01, 0.0),
    ("uncoded_5xx_before_commit", 0.02, 0.0),
    ("uncoded_5xx_after_commit", 0.01, 0.0),
    ("throttle", 0.005, 0.0),
)


class Killer(threading.Thread):
    """Kills, freezes and thaws about once a second, whenever there is a drain at work.

    A thread of its own: a drain frozen inside a transaction blocks every writer on SQLite, and
    whoever submits could
    not thaw it.
    """

    def __init__(self, cluster: HubRun, seed: int, freeze: float) -> None:
        super().__init__(name="killer", daemon=True)
        self.cluster = cluster
        self.over = threading.Event()
        self.chance = random.Random(seed)
        self.freeze = freeze
        self.done: Counter[str] = Counter()
        self.next_at = time.monotonic() + 1.5
        self._later: list[tuple[float, int, int]] = []

    def run(self) -> None:
        """Until `end()`."""
        while not self.over.wait(0.05):
            self._turn()
        for _, pid, number in self._later:
            self.cluster.send(pid, number)
        connection.close()

    def end(self) -> None:
        """Thaw and kill what is still to be thawed and killed, and stop."""
        self.over.set()
        self.join(10)

    def _turn(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for due in [one for one in self._later if one[0] <= now]:
            self._later.remove(due)
            self.cluster.send(due[1], due[2])
        children = self.cluster.children() if now >= self.next_at else []
        if not children:
            return
        self.next_at = now + self.chance.uniform(0.8, 1.2)
        act, pid = ACTS[self.acted % len(ACTS)], self.chance.choice(children)
        match act:
            case "parent":
                self.cluster.replace_parent()
            case "freeze":
                self.cluster.send(pid, signal.SIGSTOP)
                self._later.append((now + self.freeze, pid, signal.SIGCONT))
            case "kill":
                self.cluster.kill(pid)
        self.done[act] += 1

    @property
    def acted(self) -> int:
        """How often it has done anything."""
        return self.done.total()


def _contact(number: int, version: int) -> dict[str, object]:
    return {
        "first_name": f"Ann {version}",
        "last_name": f"Number {number}",
        "phone": f"+49301{number:06d}",
        "email": f"ann{number}.{version}@example.com",
    }


def _ask(world: World, connection: Connection, action: str, number: int, version: int) -> None:
    """Submit as a source would: what cannot be updated, because its create came to rest, is
    created.
    """
    given = _contact(number, version)
    try:
        assert world.submit(connection, action, str(number), version, given).fresh
    except Impossible:
        open_or_done = Operation.objects.filter(
            connection=connection, source_id=str(number)
        ).exclude(state="review", maybe_executed=False)
        assert not open_or_done.filter(yields_ref=True).exclude(state="discarded").exists()
        assert world.submit(connection, "contact.create", str(number), version, given).fresh


def _plan() -> list[tuple[str, int, int]]:
    """All intents, in an order in which an entity's create comes first."""
    chance = random.Random(SEED)
    numbers = list(range(CREATES))
    plan = [("contact.create", number, 1) for number in numbers]
    for version, count in ((2, SECOND), (3, THIRD)):
        chosen = numbers[:count]
        chance.shuffle(chosen)
        plan += [("contact.update", number, version) for number in chosen]
    return plan


def _reasons() -> Counter[str]:
    return Counter(Operation.objects.filter(state="review").values_list("reason_code", flat=True))


def test_two_thousand_operations_through_faults_and_kills(world: World) -> None:
    world.tuning = real_tuning(lease_addend=1.2, claim_depth=20)
    world.most_attempts = 150
    world.allow("I19", "a drain frozen inside a transaction keeps it open: nobody can tell why")
    stand_in: StandIn = world.stand_in()
    numbers = {"max_send": 1.0, "max_exec": 1.0, "index_lag": 0.1}
    connections = [
        world.connect(stand_in, name, tenant=name, numbers=numbers) for name in ("acme", "globex")
    ]
    for number, (fault, probability, seconds) in enumerate(FAULTS):
        for method in ("crm.item.add", "crm.item.update"):
            stand_in.simulator.fault(
                fault,
                method=method,
                times=-1,
                probability=probability,
                seconds=seconds,
                seed=number,
            )
    # The remote is down for a moment, so that breakers open.
    stand_in.simulator.fault("uncoded_5xx_before_commit", times=150)
    cluster = world.hub_run(HUB_LOG_LEVEL="WARNING")
    world.wait_for(lambda: len(cluster.children()) == 2, 60, saying="a cluster of two drains")
    killer = Killer(cluster, SEED, freeze=3.0)
    killer.start()
    began = time.monotonic()
    plan = _plan()
    try:
        while plan:
            batch, plan = plan[:25], plan[25:]
            # What comes last waits for the killer, so that it always finds work to disturb.
            owed = len(ACTS) - len(plan) // 50
            world.wait_for(lambda: killer.acted >= owed, 120.0, "the killer's turn")  # noqa: B023
            with transaction.atomic():
                for action, number, version in batch:
                    _ask(world, connections[number % 2], action, number, version)
        submitted = time.monotonic()
        while world.moving() and time.monotonic() - began < KILLING:
            time.sleep(0.1)
    finally:
        killed_until = time.monotonic()
        killer.end()
    world.settle()
    ended = time.monotonic()
    states = world.states()
    if os.environ.get("HUB_TEST_TALK"):
        sys.stderr.write(
            f"\nsubmit {submitted - began:.1f} s, killing {killed_until - began:.1f} s, "
            f"all {ended - began:.1f} s; {dict(killer.done)}; {dict(states)}; {dict(_reasons())}\n"
        )
    assert len(world.submitted) == CREATES + SECOND + THIRD
    assert killer.acted >= len(ACTS)
    # An update whose create came to nothing is replaced by a create, which is a row of its own.
    assert states["confirmed"] + states["discarded"] >= 0.98 * len(world.submitted), states
    # Only what stands behind a contact whose fate a person has yet to settle may still wait.
    assert set(states) <= {"confirmed", "discarded", "review", "pending"}
    assert set(_reasons()) <= TRUE_REASONS, _reasons()
    superseded = Operation.objects.filter(state="discarded", reason_code="superseded").count()
    assert states["discarded"] == superseded
