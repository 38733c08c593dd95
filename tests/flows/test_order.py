"""Versions of one entity go out one at a time and in order, whatever gets in between (§12, §13)."""

from __future__ import annotations

import http.client
import threading
from typing import Any

import pytest

from hub import gate, review
from hub.models import Connection, Dependency, Mapping, Operation
from hub.models.gate import PauseKind
from hub.outbox import Submitted
from hub.sql import database_now
from tests.harness.invariants import broken
from tests.harness.remote import FakeRemote
from tests.harness.world import World


@pytest.fixture
def there(world: World) -> FakeRemote:
    return world.fake_remote()


@pytest.fixture
def crm(world: World, there: FakeRemote) -> Connection:
    return world.connect(there)


def _created(world: World, crm: Connection, kind: str = "bp") -> Submitted:
    done = world.submit(crm, f"{kind}.create", "1", 1, {"n": 1})
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    return done


def _shown(there: FakeRemote) -> list[Any]:
    return [thing.fields.get("n") for thing in there.things("acme").values()]


def _refuse(there: FakeRemote, method: str) -> None:
    """The next write of this method is refused for good."""
    there.order("answer", method, when="before", status=400, body={"error": "INVALID"})


def _refused(
    world: World, there: FakeRemote, crm: Connection, action: str, version: int
) -> Submitted:
    """A version that was sent and refused for good."""
    _refuse(there, "PUT" if action.endswith("update") else "POST")
    done = world.submit(crm, action, "1", version, {"n": version})
    world.settle()
    assert world.state(done) == "failed", world.story(done)
    return done


def _decide(world: World, done: Submitted, action: str, **more: Any) -> review.Decided:
    """A person's decision over what is on the page now."""
    row = world.operation(done)
    return review.act(
        row.pk, action, by="ann", reason="because", seen_state=row.state,
        seen_token=row.lease_token, **more,
    )  # fmt: skip


def _act(world: World, done: Submitted, action: str, **more: Any) -> None:
    """The same, of one that is carried out."""
    decided = _decide(world, done, action, **more)
    assert decided.done, decided.text


def _written_versions(there: FakeRemote) -> list[int]:
    """In the order they first came; a repeat under the same key counts once."""
    return list(dict.fromkeys(one.json["version"] for one in there.log if one.method != "GET"))


# --- coalescing -----------------------------------------------------------------------------------


def test_fifty_versions_of_a_paused_connection(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F87: what nobody needs any more is not sent; the remote shows the last, and never a lower
    one after a higher.
    """
    gate.pause(crm.pk, PauseKind.PERSON, "maintenance", by="ann")
    all_of_them = [world.submit(crm, "bp.create", "1", 1, {"n": 1})]
    all_of_them += [world.submit(crm, "bp.update", "1", n, {"n": n}) for n in range(2, 51)]
    assert world.drain() == 0
    assert not there.log
    gate.resume(crm.pk)
    world.settle()
    assert _shown(there) == [50]
    assert _written_versions(there) == [1, 50]
    states = [world.state(one) for one in all_of_them]
    assert states == ["confirmed", *["discarded"] * 48, "confirmed"]
    reasons = set(Operation.objects.filter(state="discarded").values_list("reason_code", flat=True))
    assert reasons == {"superseded"}


def test_commands_are_never_coalesced(world: World, there: FakeRemote, crm: Connection) -> None:
    """F87: each is wanted, and they go in order."""
    gate.pause(crm.pk, PauseKind.PERSON, "maintenance", by="ann")
    for n in range(1, 21):
        world.submit(crm, "a.note", "1", n, {"n": n})
    gate.resume(crm.pk)
    world.settle()
    assert dict(world.states()) == {"confirmed": 20}
    assert _written_versions(there) == list(range(1, 21))


def test_many_streams_and_two_drains(world: World, there: FakeRemote, crm: Connection) -> None:
    """F87, I8: thirty entities of eight versions each, submitted while two drains work."""
    drains = [world.worker(budget=600.0, name=f"drain-{n}") for n in (1, 2)]
    threads = [threading.Thread(target=one.run, daemon=True) for one in drains]
    for one in threads:
        one.start()
    try:
        for version in range(1, 9):
            for entity in range(30):
                action = "bp.create" if version == 1 else "bp.update"
                world.submit(crm, action, str(entity), version, {"n": version})
        world.wait_for(lambda: not world.moving(), saying="the end of all work")
    finally:
        for drain in drains:
            drain.stop()
        for one in threads:
            one.join(60)
    assert _shown(there) == [8] * 30
    assert not Operation.objects.filter(parked=True).exists()


# --- waiting for the one before -------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["a", "b", "bp"])
def test_the_next_version_waits_for_an_unknown_one(
    world: World, there: FakeRemote, crm: Connection, kind: str, when: str
) -> None:
    """F88: version 2 leaves only when it is known what became of version 1."""
    there.order("drop", "PUT" if kind == "b" else "POST", when=when)
    first = world.submit(crm, f"{kind}.create", "1", 1, {"n": 1})
    second = world.submit(crm, f"{kind}.update", "1", 2, {"n": 2})
    world.settle()
    one, two = world.operation(first), world.operation(second)
    assert (one.state, two.state) == ("confirmed", "confirmed"), world.story(first)
    assert one.confirmed_at is not None
    assert two.first_sent_at is not None
    assert one.confirmed_at <= two.first_sent_at
    assert _shown(there) == [2]


def _late_copy(world: World, there: FakeRemote) -> tuple[Submitted, Submitted]:
    """Version 2 is carried out, its answer is lost, a look confirms it; and a second copy of the
    same request, made by the network, arrives just before `max_exec` is over.
    """
    crm = world.connect(there, numbers={"max_exec": 1.5})
    world.allow("I10", "the network made a second copy of a request (F43)")
    _created(world, crm)
    there.order("drop", "PUT", when="after")

    second = world.submit(crm, "bp.update", "1", 2, {"n": 2})
    world.drain_until(lambda: world.operation(second).first_sent_at)
    [first] = [one for one in there.log if one.method == "PUT"]

    def copy() -> None:
        with world.clock.after(first.at + 1.2 - world.clock.time()):
            line = http.client.HTTPConnection("127.0.0.1", there.port, timeout=60)
            line.request("PUT", "/".join(["", "acme", *first.parts]), first.body)
            assert line.getresponse().status == 200
            line.close()

    network = threading.Thread(target=copy)
    network.start()
    world.wait_for(lambda: world.clock.next_due() is not None, saying="the network")
    third = world.submit(crm, "bp.update", "1", 3, {"n": 3})
    world.settle()
    world.pass_time(2.0)
    network.join(60)
    return second, third


def test_a_late_copy_meets_the_hold(world: World, there: FakeRemote) -> None:
    """F89: version 3 has waited until it could no longer come."""
    second, third = _late_copy(world, there)
    held, passed = world.operation(second), world.operation(third)
    assert (held.state, passed.state) == ("confirmed", "confirmed")
    assert passed.first_sent_at is not None
    assert held.hold_until is not None
    assert passed.first_sent_at >= held.hold_until
    assert _shown(there) == [3]


def test_without_the_hold_a_late_copy_overwrites(
    world: World, there: FakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W15: the check above can see; without the hold the old version comes back."""
    monkeypatch.setattr("hub.doubts.hold_for", lambda action, limits: None)
    _late_copy(world, there)
    assert "I8" in broken(world)
    for name in ("I8", "I3", "I1", "I4"):
        world.allow(name, "the hold was taken out")


def test_a_late_copy_under_a_condition_is_refused(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F89: with an expected version no hold is needed; the late copy meets 412 and does nothing."""
    _created(world, crm, "b")
    there.order("late", "PUT", seconds=0.35)
    second = world.submit(crm, "b.update", "1", 2, {"n": 2})
    world.drain_until(lambda: world.state(second) == "confirmed")
    third = world.submit(crm, "b.update", "1", 3, {"n": 3})
    world.settle()
    assert world.state(third) == "confirmed", world.story(third)
    assert world.operation(second).hold_until is None
    assert _shown(there) == [3]


def test_a_version_behind_a_case_waits_for_the_person(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F90: version 1 is in review, and nobody knows whether it happened; version 2 waits."""
    there.order("drop", "POST", when="after")
    first = world.submit(crm, "d.create", "1", 1, {"n": 1})
    world.settle()
    assert world.state(first) == "review"
    second = world.submit(crm, "d.update", "1", 2, {"n": 2})
    for _ in range(3):
        world.drain()
    assert (world.state(second), world.operation(second).parked) == ("pending", True)
    [made] = there.things("acme")
    _act(world, first, "link", remote_ref=made)
    world.settle()
    assert world.state(second) == "confirmed", world.story(second)
    assert _shown(there) == [2]


def test_a_command_waits_for_what_a_person_has_yet_to_settle(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """§12: behind a refused one only a full state may pass."""
    first = _refused(world, there, crm, "a.note", 1)
    second = world.submit(crm, "a.note", "1", 2, {"n": 2})
    world.drain()
    assert world.state(second) == "pending"
    _act(world, first, "discard")
    world.settle()
    assert world.state(second) == "confirmed"


def test_two_actions_with_one_version(world: World, there: FakeRemote, crm: Connection) -> None:
    """F119: they go one after the other, by their number."""
    notes = [world.submit(crm, "a.note", "1", 1, {"n": n}, variant=str(n)) for n in range(5)]
    others = [world.submit(crm, "a.note", str(n), 1, {"n": n}) for n in range(10, 40)]
    world.settle()
    assert {world.state(one) for one in [*notes, *others]} == {"confirmed"}
    written = [one.json["fields"]["n"] for one in there.log if one.method != "GET"]
    mine = [n for n in written if n < 10]
    assert list(dict.fromkeys(mine)) == list(range(5))


# --- old versions ---------------------------------------------------------------------------------


def test_an_older_version_that_comes_late_is_stale(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F118: its transaction commits after the newer one was sent."""
    _created(world, crm)
    world.submit(crm, "bp.update", "1", 9, {"n": 9})
    world.settle()
    late = world.submit(crm, "bp.update", "1", 8, {"n": 8})
    row = world.operation(late)
    assert (row.state, row.reason_code) == ("discarded", "stale")
    world.drain()
    assert _shown(there) == [9]


def test_a_refused_older_version_is_not_retried_over_a_newer(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F118: a person who retries it is told why not."""
    _created(world, crm)
    older = _refused(world, there, crm, "bp.update", 2)
    world.submit(crm, "bp.update", "1", 3, {"n": 3})
    world.settle()
    decided = _decide(world, older, "retry")
    assert not decided.done
    assert "newer" in decided.text
    assert _shown(there) == [3]


def test_a_retry_meets_a_newer_version_on_its_way(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F118: retried before the newer was sent, it goes first or not at all."""
    _created(world, crm)
    older = _refused(world, there, crm, "bp.update", 2)
    newer = world.submit(crm, "bp.update", "1", 3, {"n": 3})
    _act(world, older, "retry")
    world.settle()
    assert world.state(older) in ("confirmed", "discarded")
    assert world.state(newer) == "confirmed"
    assert _shown(there) == [3]


# --- doubt that outlives its operation ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a", "al", "c", "d"])
@pytest.mark.parametrize("happened", [True, False])
def test_a_withdrawn_create_is_not_forgotten(
    world: World, there: FakeRemote, crm: Connection, kind: str, happened: bool
) -> None:
    """F121, W31: the next version's create is no blind one: looked for by the shared reference, or
    a person decides.
    """
    lost = there.order("drop", "POST", when="after" if happened else "before")
    first = world.submit(crm, f"{kind}.create", "1", 1, {"n": 1})
    world.drain_until(lambda: lost.met)
    if world.state(first) != "review":
        _act(world, first, "take_over")
    _act(world, first, "discard")
    row = world.operation(first)
    assert (row.state, row.maybe_executed) == ("discarded", True)
    second = world.submit(crm, f"{kind}.create", "1", 2, {"n": 2})
    world.settle()
    after = world.operation(second)
    made = len([one for one in there.effects("acme") if one.kind == "create"])
    assert made == (1 if happened or after.state == "confirmed" else 0), world.story(second)
    if kind in ("a", "d"):
        assert (after.state, after.reason_code) == ("review", "inherited_doubt")
        _act(world, second, "send_again")
        world.settle()
        assert world.states()["confirmed"] == 1
    elif happened:
        assert after.state == "review", "what is there shows another version: a person decides"
        assert after.cases.get(closed_at=None).candidates.count() == 1
    else:
        assert after.state == "confirmed", world.story(second)


def test_a_refused_create_is_followed_by_a_create(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F128: corrected at the source, the next version creates."""
    _refused(world, there, crm, "bp.create", 1)
    second = world.submit(crm, "bp.create", "1", 2, {"n": 2})
    world.settle()
    assert world.state(second) == "confirmed", world.story(second)
    assert _shown(there) == [2]


def test_an_update_behind_a_refused_create_becomes_a_create(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """F128: there is nothing to update; a create of the same version and state takes its place."""
    _refuse(there, "POST")
    first = world.submit(crm, "bp.create", "1", 1, {"n": 1})
    second = world.submit(crm, "bp.update", "1", 2, {"n": 2})
    world.settle()
    assert world.state(first) == "failed"
    replaced = world.operation(second)
    assert (replaced.state, replaced.reason_code) == ("discarded", "superseded")
    [instead] = replaced.superseded_by.all()
    assert (instead.action, instead.version, instead.state) == ("bp.create", 2, "confirmed")
    assert _shown(there) == [2]


# --- dependencies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["review", "failed", "discarded", "confirmed"])
def test_a_child_runs_only_behind_a_confirmed_parent(
    world: World, there: FakeRemote, crm: Connection, fate: str
) -> None:
    """F95, as far as there are dependencies: it waits behind a parent that came to anything
    else.
    """
    world.allow("I2", "a child whose parent is not confirmed waits")
    if fate == "review":
        there.order("drop", "POST", path="things")
    elif fate == "failed":
        _refuse(there, "POST")
    parent = world.submit(crm, "d.create", "parent", 1, {"n": 1})
    child = world.submit(crm, "d.create", "child", 1, {"n": 2})
    Dependency.objects.create(child_id=child.operation_id, parent_id=parent.operation_id)
    if fate == "discarded":
        _act(world, parent, "discard")
    for _ in range(3):
        world.drain()
    assert world.state(parent) == fate
    assert world.state(child) == ("confirmed" if fate == "confirmed" else "pending")
    assert Mapping.objects.filter(source_id="child").exists() == (fate == "confirmed")
    assert world.operation(child).created_at <= database_now()
