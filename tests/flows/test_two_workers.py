"""Minimum check: two workers at once; each operation is carried by one of them (F11)."""

import pytest
from django.db import transaction
from django.db.models import Count

from hub.models import Attempt, Gate, Heartbeat
from hub.states import Outcome
from tests.harness.world import World, real_tuning

pytestmark = pytest.mark.processes
OPERATIONS = 200


def test_two_workers_share_what_is_due_and_never_one_operation(world: World) -> None:
    # Small bites, so that neither takes everything in one claim.
    world.tuning = real_tuning(claim_depth=10, senders=5)
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in, max_in_flight=5)
    stand_in.simulator.fault("slow_answer", method="crm.item.add", times=-1, seconds=0.02)
    world.work(2)
    world.wait_for(lambda: Heartbeat.objects.count() == 2, saying="two drains")
    with transaction.atomic():
        for number in range(OPERATIONS):
            world.submit(bitrix, source_id=str(number))
    world.settle()
    assert world.states() == {"confirmed": OPERATIONS}
    assert len(stand_in.simulator.items("acme")) == OPERATIONS
    done = Attempt.objects.filter(outcome=Outcome.DONE.value)
    shares = dict(done.values_list("worker").annotate(n=Count("id")))
    assert len(shares) == 2, shares
    assert min(shares.values()) >= OPERATIONS // 20, shares
    assert done.count() == OPERATIONS


def test_two_workers_on_one_stream_take_turns(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(2)
    world.wait_for(lambda: Heartbeat.objects.count() == 2, saying="two drains")
    made = [world.submit(bitrix)]
    for version in range(2, 12):
        made.append(world.submit(bitrix, "contact.update", version=version, fields=_named(version)))
    world.settle()
    assert world.state(made[-1]) == "confirmed"
    assert stand_in.simulator.items("acme")[0]["name"] == "Ann 11"
    versions = [int(one["version"]) for one in stand_in.simulator.ledger()]
    assert versions == sorted(versions)


def test_a_pause_lets_what_has_left_come_home_and_nothing_new_out(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in, max_in_flight=5)
    stand_in.simulator.fault("slow_answer", method="crm.item.add", times=-1, seconds=0.2)
    made = [world.submit(bitrix, source_id=str(number)) for number in range(60)]
    world.work(2)
    world.wait_for(lambda: world.states()["confirmed"] > 3, saying="some are done")
    from hub import gate
    from hub.models.gate import PauseKind

    gate.pause(bitrix.pk, PauseKind.PERSON, "the other side asked us to wait", by="Eve")
    world.wait_for(
        lambda: not (world.states()["sent"] or world.states()["running"]), saying="all at home"
    )
    before = len(stand_in.simulator.requests())
    assert 0 < before < 60
    assert world.states()["pending"] > 0
    assert Gate.objects.get().paused_at is not None
    world.wait_for(lambda: Heartbeat.objects.filter(in_flight=0).count() == 2, saying="idle drains")
    assert len(stand_in.simulator.requests()) == before
    gate.resume(bitrix.pk)
    world.settle()
    assert {world.state(one) for one in made} == {"confirmed"}


def _named(version: int) -> dict[str, str]:
    return {"first_name": f"Ann {version}"}
