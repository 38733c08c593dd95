"""The harness itself: each class of action goes its way, and the checks see what they are for."""

import pytest

from hub.models import Operation
from tests.harness.invariants import broken, spellings
from tests.harness.world import World

CREATES = ["a.create", "al.create", "b.create", "bp.create", "c.create", "d.create"]
FIELDS = {"name": "Ann", "size": 3}


@pytest.mark.parametrize("action", [*CREATES, "a.note", "d.note"])
def test_an_action_of_each_class_is_confirmed(world: World, action: str) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = world.submit(connection, action, "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("action", CREATES)
def test_an_unknown_outcome_of_each_class(world: World, action: str, when: str) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    remote.order("drop", "PUT" if action == "b.create" else "POST", when=when)
    done = world.submit(connection, action, "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == ("review" if action == "d.create" else "confirmed"), world.story(
        done
    )


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["a", "b", "bp"])
def test_an_unknown_update_of_each_class(world: World, kind: str, when: str) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    world.submit(connection, f"{kind}.create", "1", 1, FIELDS)
    world.settle()
    remote.order("drop", "PUT", when=when)
    done = world.submit(connection, f"{kind}.update", "1", 2, {"name": "Eve"})
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)


def test_a_job_is_polled_to_its_end(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = world.submit(connection, "job.run", "1", 1, FIELDS)
    world.drain()
    assert world.state(done) == "accepted", world.story(done)
    remote.job("acme", world.operation(done).reference, "finished")
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)


def test_a_worker_process_has_the_tests_integration(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    world.work(1)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)


test_a_worker_process_has_the_tests_integration = pytest.mark.processes(
    test_a_worker_process_has_the_tests_integration
)


# --- the checks see
# ---------------------------------------------------------------------------------


def test_a_duplicate_is_seen(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    remote.order("twice", "POST")
    world.submit(connection, "c.create", "1", 1, FIELDS)
    world.settle()
    assert "I1" in broken(world)
    world.allow("I1", "a network that doubles a request cannot be prevented for class c (F43)")


def test_a_lost_effect_is_seen(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    world.submit(connection, "c.create", "1", 1, FIELDS)
    world.settle()
    with remote._lock:
        remote._things.clear()
        remote.ledger.clear()
    assert "I3" in broken(world)
    world.allow("I3", "the test took the object away")


def test_a_move_that_is_no_row_of_the_table_is_seen(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    Operation.objects.filter(pk=done.operation_id).update(
        state="failed", reason_text="by a form", maybe_executed=False
    )
    found = broken(world)
    assert "I12" in found
    assert "I20" in found  # failed without a case
    for name in ("I12", "I20"):
        world.allow(name, "the test wrote the state by hand")


def test_what_still_moves_is_seen(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    world.submit(connection, "c.create", "1", 1, FIELDS)
    assert set(broken(world)) == {"I2"}
    world.settle()


def test_a_deleted_attempt_is_seen(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    world.settle()
    world.operation(done).attempt_set.all().delete()
    assert "I11" in broken(world)
    for name in ("I11", "I4", "I10"):
        world.allow(name, "the test deleted the attempt")


def test_a_secret_in_a_row_is_seen(world: World) -> None:
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    world.settle()
    for form in spellings(world.canaries[0]):
        Operation.objects.filter(pk=done.operation_id).update(correlation_id=form)
        assert "I15" in broken(world), form
    Operation.objects.filter(pk=done.operation_id).update(correlation_id="")
