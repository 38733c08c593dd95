"""Minimum check: an old change that comes after a newer one never wins (F87, F88, F90, F118)."""

import pytest
from django.db import transaction

from hub import gate
from hub.models import Operation
from hub.models.gate import PauseKind
from tests.harness.world import World

pytestmark = pytest.mark.processes


def _named(version: int) -> dict[str, str]:
    return {"first_name": f"Ann {version}", "last_name": "Smith"}


def test_fifty_versions_submitted_while_the_worker_is_paused(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(2)
    world.submit(bitrix, fields=_named(1))
    world.settle()
    gate.pause(bitrix.pk, PauseKind.PERSON, "maintenance over there", by="Eve")
    for version in range(2, 51):
        world.submit(bitrix, "contact.update", version=version, fields=_named(version))
    gate.resume(bitrix.pk)
    world.settle()
    assert world.states() == {"confirmed": 2, "discarded": 48}
    assert stand_in.simulator.items("acme")[0]["name"] == "Ann 50"
    assert [int(one["version"]) for one in stand_in.simulator.ledger()] == [1, 50]


def test_a_version_that_arrives_after_a_newer_one_was_sent_is_stale(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(2)
    world.submit(bitrix, fields=_named(1))
    world.settle()
    world.submit(bitrix, "contact.update", version=3, fields=_named(3))
    world.settle()
    late = world.submit(bitrix, "contact.update", version=2, fields=_named(2))
    world.settle()
    assert (world.state(late), world.operation(late).reason_code) == ("discarded", "stale")
    assert world.operation(late).attempt_set.count() == 0
    assert stand_in.simulator.items("acme")[0]["name"] == "Ann 3"


def test_a_version_committed_late_is_stale_too(world: World) -> None:
    """Written before the newer one was sent, and visible to nobody until afterwards."""
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.submit(bitrix, fields=_named(1))
    world.settle()
    world.submit(bitrix, "contact.update", version=3, fields=_named(3))
    world.settle()
    late = world.submit(bitrix, "contact.update", version=2, fields=_named(2))
    # As the row would stand had its own transaction begun before the newer one was sent.
    Operation.objects.filter(pk=late.operation_id).update(
        state="pending", reason_code="", reason_text=""
    )
    world.allow("I12", "the test put the row back as the race would have left it")
    world.work(2)
    world.settle()
    assert (world.state(late), world.operation(late).reason_code) == ("discarded", "stale")
    assert stand_in.simulator.items("acme")[0]["name"] == "Ann 3"


def test_the_next_version_waits_while_the_former_is_in_doubt(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in, numbers={"max_exec": 1.0})
    world.work(2)
    world.submit(bitrix, fields=_named(1))
    world.settle()
    stand_in.simulator.fault("late_commit", method="crm.item.update", seconds=0.6)
    first = world.submit(bitrix, "contact.update", version=2, fields=_named(2))
    world.wait_for(lambda: world.state(first) != "pending", saying="version 2 is under way")
    second = world.submit(bitrix, "contact.update", version=3, fields=_named(3))
    world.settle()
    assert (world.state(first), world.state(second)) == ("confirmed", "confirmed")
    assert stand_in.simulator.items("acme")[0]["name"] == "Ann 3"
    a, b = world.operation(first), world.operation(second)
    assert a.hold_until is not None
    assert b.first_sent_at is not None
    assert b.first_sent_at >= a.hold_until, "the hold did not hold"


def test_many_entities_with_versions_in_disorder_end_at_their_highest(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    stand_in.simulator.fault(
        "answer_lost_after_commit", method="crm.item.update", times=-1, probability=0.2, seed=3
    )
    with transaction.atomic():
        for number in range(20):
            world.submit(bitrix, source_id=str(number), fields=_named(1))
    world.work(2)
    for version in (4, 2, 5, 3):
        with transaction.atomic():
            for number in range(20):
                world.submit(bitrix, "contact.update", str(number), version, fields=_named(version))
    world.settle()
    assert {item["name"] for item in stand_in.simulator.items("acme")} == {"Ann 5"}
