"""Minimum check: the worker is killed in mid-work and another goes on (F5, F13, F22, F31, F70,
F84).
"""

import pytest
from django.db import transaction

from hub.models import Attempt, Operation
from hub.states import Outcome
from tests.harness.world import World

pytestmark = pytest.mark.processes


def test_submitted_while_no_worker_runs(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    submitted = world.submit(bitrix)
    assert world.state(submitted) == "pending"
    world.work(1)
    world.settle()
    assert world.state(submitted) == "confirmed"


@pytest.mark.parametrize(
    ("fault", "happened"),
    [
        ("slow_answer", True),  # it was carried out at once, the answer is on its way
        ("slow_execution", True),  # it is carried out when the worker is dead already
        ("answer_lost_before_commit", False),  # it never is
    ],
)
def test_killed_while_the_request_is_out(world: World, fault: str, happened: bool) -> None:
    world.short_leases()
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in, numbers={"max_exec": 1.0})
    stand_in.simulator.fault(fault, method="crm.item.add", seconds=0.8)
    submitted = world.submit(bitrix)
    [worker] = world.work(1)
    # Not the marker: the request itself has to be there, or the kill comes before its first byte.
    world.wait_for(lambda: not stand_in.simulator.faults()["orders"], saying="the request")
    worker.kill()
    assert world.state(submitted) in ("sent", "uncertain")
    world.work(1)
    world.settle()
    assert world.state(submitted) == "confirmed", world.story(submitted)
    assert len(stand_in.simulator.items("acme")) == 1
    first = Attempt.objects.filter(operation_id=submitted.operation_id).order_by("token")[0]
    assert (first.outcome, first.left) == (Outcome.UNKNOWN.value, "maybe")
    sends = Attempt.objects.filter(purpose="send", outcome=Outcome.DONE.value).count()
    assert sends == (0 if happened else 1)


def test_killed_with_work_claimed_ahead(world: World) -> None:
    world.short_leases()
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in, max_in_flight=5)
    order = stand_in.simulator.fault("slow_answer", method="crm.item.add", times=-1, seconds=0.3)
    with transaction.atomic():
        made = [world.submit(bitrix, source_id=str(number)) for number in range(40)]
    [worker] = world.work(1)
    world.wait_for(
        lambda: world.states()["running"] >= 5 and world.states()["sent"] >= 3, saying="a claim"
    )
    worker.kill()
    stand_in.simulator.clear_faults()
    world.work(1)
    world.settle()
    assert order
    assert {world.state(one) for one in made} == {"confirmed"}
    assert len(stand_in.simulator.items("acme")) == 40
    assert not Operation.objects.exclude(lapses=0).exists()


def test_killed_again_and_again_every_operation_comes_home(world: World) -> None:
    world.short_leases()
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in, max_in_flight=5)
    stand_in.simulator.fault("slow_answer", method="crm.item.add", times=-1, seconds=0.1)
    with transaction.atomic():
        made = [world.submit(bitrix, source_id=str(number)) for number in range(60)]
    for more in (5, 20, 35):
        [worker] = world.work(1)
        world.wait_for(lambda m=more: world.states()["confirmed"] >= m, saying=f"{more} done")
        worker.kill()
    world.work(1)
    world.settle()
    assert {world.state(one) for one in made} == {"confirmed"}
    assert len(stand_in.simulator.items("acme")) == 60


def test_a_frozen_worker_comes_back_too_late_to_count(world: World) -> None:
    """The process is stopped while its request is out; another finds the effect; the first changes
    nothing (F17).
    """
    world.short_leases()
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    stand_in.simulator.fault("slow_answer", method="crm.item.add", seconds=1.2)
    submitted = world.submit(bitrix)
    [worker] = world.work(1)
    world.wait_for(lambda: not stand_in.simulator.faults()["orders"], saying="the request")
    world.freeze(worker)
    world.work(1)
    world.wait_for(lambda: world.state(submitted) == "confirmed", saying="the other's look")
    settled = world.operation(submitted)
    worker.thaw()
    row = world.operation(submitted)
    world.wait_for(
        lambda: row.evidence_set.filter(kind="late_result").exists(), saying="the late result"
    )
    row = world.operation(submitted)
    assert (row.state, row.remote_ref, row.lease_token) == (
        "confirmed", settled.remote_ref, settled.lease_token
    )  # fmt: skip
    assert worker.stop() == 0
    assert len(stand_in.simulator.items("acme")) == 1


def test_a_polite_stop_finishes_what_is_out_and_gives_the_rest_back(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in, max_in_flight=5)
    stand_in.simulator.fault("slow_answer", method="crm.item.add", times=-1, seconds=0.3)
    with transaction.atomic():
        for number in range(40):
            world.submit(bitrix, source_id=str(number))
    [worker] = world.work(1)
    world.wait_for(lambda: len(stand_in.simulator.requests()) >= 3, saying="some are out")
    assert worker.stop() == 0
    # What was marked and had not begun comes back to be sent again: nothing of it left.
    assert set(world.states()) <= {"pending", "confirmed", "retry"}
    assert world.states()["confirmed"] >= 3
    assert not Operation.objects.filter(state="retry", maybe_executed=True).exists()
    assert not Operation.objects.exclude(lapses=0).exists()
    stand_in.simulator.clear_faults()
    world.work(1)
    world.settle()
    assert world.states() == {"confirmed": 40}
