"""Answers and looks, over the wire and through the engine: what each leads to, and what it never
leads to: a second effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from hub import gate
from hub.contract import Write
from hub.models import Attempt, Candidate, Connection, Gate, Operation, ReviewCase
from hub.models.gate import PauseKind
from hub.outbox import Submitted
from hub.sql import database_now
from tests.harness.classes import TestRemoteConnector
from tests.harness.remote import FakeRemote
from tests.harness.world import World, small_tuning

FIELDS = {"name": "Ann"}
PATIENT = small_tuning(breaker_threshold=10_000)


def reference(world: World, done: Submitted) -> str:
    return world.operation(done).reference


def writes(remote: FakeRemote) -> list[str]:
    return [one.json.get("reference", "") for one in remote.log if one.method != "GET"]


def made(remote: FakeRemote) -> list[str]:
    """The references of what was created there by us."""
    return [x.reference for x in remote.effects("acme") if x.kind == "create" and not x.by_person]


def first_outcome(world: World, done: Submitted) -> str:
    # On a busy machine the guard may give an attempt back before anything left.
    tried = world.operation(done).attempt_set.exclude(verdict__contains="The right to send")
    attempt = tried.order_by("token").first()
    assert attempt is not None, world.story(done)
    return str(attempt.outcome)


# --- statuses ------------------------------------------------------------------------------------

STATUSES: Mapping[int, tuple[str, str, str, str]] = {
    # status: outcome of the first attempt, then where a, c and d end when nothing was executed
    301: ("U", "confirmed", "confirmed", "review"),
    303: ("U", "confirmed", "confirmed", "review"),
    304: ("U", "confirmed", "confirmed", "review"),
    307: ("N", "failed", "failed", "failed"),
    400: ("R", "failed", "failed", "failed"),
    403: ("D", "review", "review", "review"),
    404: ("R", "failed", "failed", "failed"),
    408: ("U", "confirmed", "confirmed", "review"),
    409: ("K", "review", "review", "review"),
    413: ("R", "failed", "failed", "failed"),
    418: ("U", "confirmed", "confirmed", "review"),
    421: ("N", "confirmed", "confirmed", "confirmed"),
    422: ("R", "failed", "failed", "failed"),
    423: ("T", "confirmed", "confirmed", "confirmed"),
    424: ("K", "review", "review", "review"),
    425: ("N", "confirmed", "confirmed", "confirmed"),
    429: ("T", "confirmed", "confirmed", "confirmed"),
    451: ("R", "failed", "failed", "failed"),
    500: ("U", "confirmed", "confirmed", "review"),
    501: ("R", "failed", "failed", "failed"),
    502: ("U", "confirmed", "confirmed", "review"),
    503: ("U", "confirmed", "confirmed", "review"),
    504: ("U", "confirmed", "confirmed", "review"),
    521: ("U", "confirmed", "confirmed", "review"),
    599: ("U", "confirmed", "confirmed", "review"),
}


@pytest.mark.parametrize("executed", [False, True])
def test_a_sample_of_the_statuses(world: World, executed: bool) -> None:
    """F46, F48, F49, F59, W6, W7: the table of §10 over the wire; executed or not, one effect.

    A status that refuses is taken at its word, so it is tried only where nothing ran. 429 throttles
    its whole connection; its time is short here.
    """
    remote = world.fake_remote()
    connection = world.connect(remote, max_in_flight=8)
    done: dict[tuple[int, str], Submitted] = {}
    for status, (outcome, *_) in STATUSES.items():
        if executed and outcome != "U":
            continue
        for action in ("a.note", "c.create", "d.note"):
            one = world.submit(connection, action, f"{action} {status}", 1, FIELDS)
            done[status, action] = one
            remote.order(
                "answer", "POST", status=status, when="after" if executed else "before",
                reference=reference(world, one), headers={"location": remote.base_url("other")},
            )  # fmt: skip
    world.settle(tuning=PATIENT)
    for (status, action), one in done.items():
        outcome, *ends = STATUSES[status]
        end = ends[("a.note", "c.create", "d.note").index(action)]
        assert (first_outcome(world, one), world.state(one)) == (outcome, end), (
            f"{status}: {world.story(one)}"
        )
        [*_, last] = Attempt.objects.filter(operation_id=one.operation_id, purpose="send")
        if end in ("failed", "review") and not executed:
            assert last.status == status, world.story(one)
    assert len(made(remote)) == len(set(made(remote)))
    assert not any(one.account == "other" for one in remote.log), "a redirect was followed"


def test_503_and_a_time_to_wait_after_it_was_executed(world: World) -> None:
    """F48, W7: `Retry-After` never turns unknown into refused; the look waits for it."""
    remote = world.fake_remote()
    done = world.submit(world.connect(remote), "c.create", "1", 1, FIELDS)
    remote.order("answer", "POST", status=503, headers={"retry-after": "1"})
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert first_outcome(world, done) == "U"
    assert len(made(remote)) == 1
    times = remote.requests("acme")
    assert times[1] - times[0] >= 0.95


# --- Retry-After ---------------------------------------------------------------------------------

WAITS = {
    "3": (3.0, 4.0),
    "date": (1.0, 4.1),
    "0": (1.0, 2.0),
    "31536000": (86_400.0, 86_401.0),
    "-5": (0.0, 1.0),
    "1.5": (0.0, 1.0),
    "soon": (0.0, 1.0),
    "": (0.0, 1.0),
}


def test_the_forms_of_retry_after(world: World) -> None:
    """F47: seconds and date, clamped to 1 s … 24 h; negative, a year and garbage do no harm."""
    remote = world.fake_remote()
    done: dict[str, tuple[Connection, Submitted]] = {}
    for number, text in enumerate(WAITS):
        connection = world.connect(remote, f"t{number}", name=f"t{number}")
        one = world.submit(connection, "d.note", "1", 1, FIELDS)
        done[text] = (connection, one)
        value = text
        if text == "date":
            value = format_datetime(datetime.now(UTC) + timedelta(seconds=4), usegmt=True)
        remote.order(
            "answer", "POST", status=429, when="before", reference=reference(world, one),
            headers={"retry-after": value},
        )  # fmt: skip
    began = database_now()
    world.drain()
    ended = database_now()
    for text, (connection, one) in done.items():
        least, most = WAITS[text]
        row, found = world.operation(one), Gate.objects.get(pk=connection.pk)
        if least >= 1.0 or row.state == "retry":
            assert (row.state, row.reason_code, row.attempts) == ("retry", "throttled", 0)
            assert row.next_at >= began + timedelta(seconds=least), text
            assert row.next_at <= ended + timedelta(seconds=most), text
            assert found.throttled_until is not None
        if least >= 1.0:
            assert found.throttled_until is not None
            assert found.throttled_until >= began + timedelta(seconds=least), text
    Gate.objects.filter(throttled_until__gt=ended + timedelta(hours=1)).update(throttled_until=None)
    Operation.objects.filter(next_at__gt=ended + timedelta(hours=1)).update(next_at=ended)
    world.settle()
    assert {world.state(one) for _, one in done.values()} == {"confirmed"}


def test_nothing_of_the_connection_is_sent_before_its_time(world: World) -> None:
    """F47: a throttled connection waits as a whole; throttling burns no attempts."""
    remote = world.fake_remote()
    connection = world.connect(remote, max_in_flight=1)
    remote.order("answer", "POST", status=429, when="before", times=3,
                 headers={"retry-after": "1"})  # fmt: skip
    world.submit(connection, "d.note", "0", 1, FIELDS)
    world.drain()
    done = [world.submit(connection, "d.note", str(n), 1, FIELDS) for n in range(1, 4)]
    world.settle()
    assert world.states() == {"confirmed": 4}
    assert max(world.operation(one).attempts for one in done) <= 1
    times = remote.requests("acme")
    assert times[1] - times[0] >= 0.95


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["a.create", "al.create"])
def test_500_after_it_was_executed_then_the_first_result(world: World, action: str) -> None:
    """F49: one effect, confirmed; a repeat carries the same key and bytes (I9)."""
    remote = world.fake_remote()
    done = world.submit(world.connect(remote), action, "1", 1, FIELDS)
    remote.order("answer", "POST", status=500)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(made(remote)) == 1


def test_a_key_that_remembers_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """F50: every repeat returns the old 500: noticed by the remote's sign, not after 8 attempts."""
    remote = world.fake_remote()
    remote.key_stores_errors = True
    ran: list[str] = []

    def post(request: Any, order: Any) -> Any:
        ran.append(request.key)
        return 500, {}, {"error": "OOPS"}

    monkeypatch.setattr(remote, "_post", post)
    done = world.submit(world.connect(remote), "a.note", "1", 1, FIELDS)
    world.settle()
    row = world.operation(done)
    assert (row.state, row.reason_code) == ("review", "key_stores_error"), world.story(done)
    assert row.maybe_executed
    assert (len(ran), len(writes(remote))) == (1, 2)
    assert ReviewCase.objects.get(closed_at=None).assumption == "A2"


def test_keys_that_are_forgotten_too_early(world: World) -> None:
    """F51: with a look the first object is found; a key alone cannot notice (A2)."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    for action in ("al.create", "a.create"):
        one = world.submit(connection, action, action, 1, FIELDS)
        remote.order("drop", "POST", reference=reference(world, one))
    forgot = []

    def steps(name: str) -> None:
        if name == "settle.before":
            remote.forget_keys()
            forgot.append(name)

    world.settle(steps=steps)
    assert forgot
    assert world.states() == {"confirmed": 2}
    looked = [x.reference for x in remote.effects("acme") if x.reference == _of(world, "al.create")]
    assert len(looked) == 1
    assert len([x for x in made(remote) if x == _of(world, "a.create")]) == 2
    world.allow("I1", "the remote broke the promise of its keys (A2), and nothing can be looked up")


def _of(world: World, source_id: str) -> str:
    return Operation.objects.get(source_id=source_id).reference


@pytest.mark.parametrize("action", ["a.note", "al.create"])
def test_a_repeat_that_falls_due_after_the_keys_life(world: World, action: str) -> None:
    """F52, W27: it is not sent: looked up where that is possible, else to a person."""
    remote = world.fake_remote()
    life = 100.0
    connection = world.connect(remote, numbers={"key_ttl": life})
    done = world.submit(connection, action, "1", 1, FIELDS)
    remote.order("drop", "POST")

    def steps(name: str) -> None:
        if name == "settle.committed":
            gate.pause(connection.pk, PauseKind.PERSON, "until the key is dead", by="test")

    world.drain(steps=steps)
    world.pass_time(life)
    gate.resume(connection.pk)
    world.settle()
    row = world.operation(done)
    if action == "a.note":
        assert (row.state, row.reason_code, row.maybe_executed) == ("review", "key_used_up", True)
    else:
        assert row.state == "confirmed", world.story(done)
    assert len(writes(remote)) == 1


def test_a_remote_that_ignores_keys(world: World) -> None:
    """F53: the sign of honouring is missing: the action drops a class; no repeat by key."""
    remote = world.fake_remote()
    remote.ignores_keys = True
    connection = world.connect(remote)
    first = world.submit(connection, "a.note", "1", 1, FIELDS)
    world.settle()
    assert world.state(first) == "confirmed"
    assert Gate.objects.get(pk=connection.pk).degraded["a.note"]["lost"] == "key"
    second = world.submit(connection, "a.note", "2", 1, FIELDS)
    remote.order("drop", "POST")
    world.settle()
    row = world.operation(second)
    assert (row.state, row.maybe_executed) == ("review", True), world.story(second)
    assert len(writes(remote)) == 2


def test_two_copies_never_run_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """F54, F41: the key is not atomic there: the repeat waits until the first copy cannot run."""
    strict = TestRemoteConnector.actions["a.note"]
    assert isinstance(strict, Write)
    loose = replace(strict, key_atomic=False)
    monkeypatch.setattr(
        TestRemoteConnector, "actions", {**TestRemoteConnector.actions, "a.note": loose}
    )
    remote = world.fake_remote()
    remote.key_atomic = False
    connection = world.connect(remote, numbers={"max_exec": 0.8})
    done = world.submit(connection, "a.note", "1", 1, FIELDS)
    remote.order("late", "POST", seconds=0.6)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    times = remote.requests("acme")
    assert len(times) == 2
    assert times[1] - times[0] >= 0.79
    assert len(made(remote)) == 1


# --- bodies --------------------------------------------------------------------------------------

BODIES: Mapping[str, tuple[Any, str, str]] = {
    "a known error": ({"error": "INVALID"}, "failed", "failed"),
    "an unknown error": ({"error": "WHATEVER"}, "confirmed", "review"),
    "a login page": ("<html><form>Log in</form></html>", "confirmed", "review"),
    "nothing": ("", "confirmed", "review"),
    "a list": ("[]", "confirmed", "review"),
    "half of it": ('{"id": "1', "confirmed", "review"),
    "deep": ("[" * 100_000, "confirmed", "review"),
}


def test_success_with_a_body_that_says_otherwise(world: World) -> None:
    """F55, F38: an error object goes through the error table; what cannot be read is unknown."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done: dict[tuple[str, str], Submitted] = {}
    for name, (body, *_) in BODIES.items():
        for action in ("c.create", "d.note"):
            one = done[name, action] = world.submit(
                connection, action, f"{action} {name}", 1, FIELDS
            )
            remote.order("answer", "POST", status=200, body=body, when="before",
                         reference=reference(world, one))  # fmt: skip
    world.settle(tuning=PATIENT)
    for (name, action), one in done.items():
        end = BODIES[name][1 if action == "c.create" else 2]
        assert world.state(one) == end, f"{name}: {world.story(one)}"
    assert len(made(remote)) == len(set(made(remote)))


def test_the_answer_to_somebody_elses_request(world: World) -> None:
    """F44, F61: another reference than ours proves nothing about ours; none is not trusted."""
    remote = world.fake_remote()
    ends = {
        ("c.create", "wrong_echo"): "confirmed", ("d.note", "wrong_echo"): "review",
        ("c.create", "no_echo"): "review",
    }  # fmt: skip
    done = {}
    for action, fault in ends:
        connection = world.connect(remote, f"{action}-{fault}")  # it costs the action its class
        one = done[action, fault] = world.submit(connection, action, "1", 1, FIELDS)
        remote.order(fault, "POST", reference=reference(world, one))
    world.settle()
    for key, one in done.items():
        assert world.state(one) == ends[key], world.story(one)
    row = world.operation(done["c.create", "no_echo"])
    assert row.reason_code == "reference_ignored"
    assert Candidate.objects.filter(case__operation_id=row.pk).count() == 1
    assert len(writes(remote)) == 3


# --- credentials and conflicts -------------------------------------------------------------------


def test_401_for_good(world: World) -> None:
    """F57, F56: one pause, one case, all budgets intact; opened again, everything goes out once.

    A webhook's secret cannot be renewed by the hub, so there is nothing to try before pausing: F56
    waits for an integration that has tokens.
    """
    remote = world.fake_remote()
    connection = world.connect(remote, max_in_flight=5)
    remote.order("answer", status=401, body={"error": "BAD_TOKEN"}, when="before", times=-1)
    for number in range(300):
        world.submit(connection, "d.note", str(number), 1, FIELDS)
    world.drain()
    assert len(writes(remote)) <= 10
    assert ReviewCase.objects.filter(subject="connection", closed_at=None).count() == 1
    assert ReviewCase.objects.count() == 1
    assert not Operation.objects.exclude(state__in=("pending", "retry")).exists()
    assert not Operation.objects.exclude(attempts=0).exists()
    found = Gate.objects.get(pk=connection.pk)
    assert found.paused_at is not None
    assert found.pause_kind == PauseKind.CREDENTIAL
    refused = len(writes(remote))
    remote.clear()
    gate.resume(connection.pk)
    world.settle()
    assert world.states() == {"confirmed": 300}
    assert len(writes(remote)) == 300 + refused


def test_conflicts(world: World) -> None:
    """F58: in progress → same key later; exists → looked at and confirmed; version → §13."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    progress = world.submit(connection, "a.note", "progress", 1, FIELDS)
    remote.order("answer", "POST", status=409, body={"error": "KEY_IN_PROGRESS"}, when="before",
                 reference=reference(world, progress))  # fmt: skip
    reused = world.submit(connection, "a.note", "reused", 1, FIELDS)
    remote.order("answer", "POST", status=422, body={"error": "KEY_REUSED"}, when="before",
                 reference=reference(world, reused))  # fmt: skip
    exists = world.submit(connection, "b.create", "exists", 1, FIELDS)
    remote.order("answer", "PUT", status=412, body={"error": "EXISTS"},
                 reference=reference(world, exists))  # fmt: skip
    world.settle()
    assert world.state(progress) == "confirmed", world.story(progress)
    assert world.operation(reused).reason_code == "key_reused"
    assert world.state(exists) == "confirmed", world.story(exists)
    assert len(made(remote)) == 2
    thing = remote._things["acme", world.operation(exists).remote_ref]
    thing.version = 9  # somebody else's later version
    late = world.submit(connection, "b.update", "exists", 5, {"name": "Eve"})
    world.settle()
    row = world.operation(late)
    assert (row.state, row.reason_code) == ("discarded", "stale"), world.story(late)
    assert thing.fields == FIELDS


# --- looking -------------------------------------------------------------------------------------


def test_an_index_that_lags(world: World) -> None:
    """F62, W5: no repeat in between; found when it shows; one effect."""
    world.real_time()
    stand_in = world.stand_in()
    connection = world.connect(stand_in, numbers={"max_exec": 0.3, "index_lag": 1.2})
    done = world.submit(connection)
    stand_in.simulator.fault("answer_lost_after_commit", method="crm.item.add")
    stand_in.simulator.fault("index_lag", method="crm.item.add", seconds=1.0)
    world.settle()
    row = world.operation(done)
    assert (row.state, row.repeats) == ("confirmed", 0), world.story(done)
    assert len(stand_in.simulator.items("acme")) == 1


def test_an_index_that_lags_longer_than_declared(world: World) -> None:
    """F63: a breach of A3 no client can see in time: two objects, and the row says what it did."""
    world.real_time()
    stand_in = world.stand_in()
    connection = world.connect(stand_in, numbers={"max_exec": 0.2, "index_lag": 0.1})
    done = world.submit(connection)
    stand_in.simulator.fault("answer_lost_after_commit", method="crm.item.add")
    stand_in.simulator.fault("index_lag", method="crm.item.add", seconds=30)
    world.settle()
    row = world.operation(done)
    assert (row.state, row.repeats) == ("confirmed", 1), world.story(done)
    told = " ".join(row.attempt_set.order_by("token").values_list("verdict", flat=True))
    assert "every wait that was declared" in told
    assert len(stand_in.simulator.items("acme")) == 2
    world.allow("I1", "the search shows what was made later than declared (A3)")


def test_a_look_that_fails_is_no_absence(world: World) -> None:
    """F64, F65: time-out, 500, 429, 403, incomplete pages: still uncertain, never a repeat."""
    remote = world.fake_remote()
    connection = world.connect(remote, numbers={"max_exec": 0.1, "index_lag": 0.05})
    faults: list[tuple[str, dict[str, Any]]] = [
        ("answer", {"status": 500}), ("answer", {"status": 429}), ("answer", {"status": 403}),
        ("answer", {"status": 404}), ("answer", {"status": 200, "body": "<html>"}),
        ("answer", {"status": 302}), ("drop", {}), ("cut", {}), ("incomplete", {}),
    ]  # fmt: skip
    done = []
    for number, (fault, more) in enumerate(faults):
        one = world.submit(connection, "c.create", str(number), 1, FIELDS)
        done.append(one)
        remote.order("drop", "POST", reference=reference(world, one))
        remote.order(fault, "GET", times=4, reference=reference(world, one), **more)
    world.settle(tuning=PATIENT)
    for one, (fault, more) in zip(done, faults, strict=True):
        assert world.state(one) == "confirmed", f"{fault} {more}: {world.story(one)}"
        assert world.operation(one).repeats == 0
    assert len(writes(remote)) == len(done)


def test_a_look_that_never_comes_back(world: World) -> None:
    """F64, F36: bounded by the deadline of the action; no answer."""
    remote = world.fake_remote()
    connection = world.connect(remote, numbers={"max_send": 0.4})
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    remote.order("drop", "POST")
    remote.order("stall", "GET", times=2, when="before")
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(writes(remote)) == 1


def test_what_a_look_finds_decides(world: World) -> None:
    """F66, F67, F68: two, another content, a deleted one: nothing there is deleted."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = {
        name: world.submit(connection, "c.create", name, 1, FIELDS)
        for name in ("two", "changed", "deleted")
    }
    for one in done.values():
        remote.order("drop", "POST", reference=reference(world, one))
    meddled: list[str] = []
    mark = {name: reference(world, one) for name, one in done.items()}

    def steps(name: str) -> None:
        if name == "look.before" and not meddled and len(made(remote)) == 3:
            meddled.append(name)
            ids = {thing.reference: thing.remote_id for thing in remote.things("acme").values()}
            remote.seed("acme", FIELDS, reference=mark["two"], version=1)
            remote.person("acme", ids[mark["changed"]], {"name": "Eve"})
            remote.person("acme", ids[mark["deleted"]], None)

    world.settle(steps=steps)
    assert meddled
    two, changed = world.operation(done["two"]), world.operation(done["changed"])
    assert (two.state, two.maybe_executed) == ("review", True), world.story(two.pk)
    assert Candidate.objects.filter(case__operation_id=two.pk).count() == 2
    assert (changed.state, changed.reason_code) == ("review", "found_different")
    candidate = Candidate.objects.get(case__operation_id=changed.pk)
    assert "Eve" in candidate.differences
    assert len([x for x in made(remote) if x == two.reference]) == 1
    # Deleted there and gone without a trace is, to any client, what never happened: once again.
    gone = world.operation(done["deleted"])
    assert (gone.state, gone.repeats) == ("confirmed", 1), world.story(gone.pk)
    assert len([x for x in made(remote) if x == gone.reference]) == 2
    world.allow("I1", "a person deleted the first object before anybody could have seen it (F68)")


@pytest.mark.parametrize("action", ["a.create", "al.create", "b.create", "c.create"])
def test_the_object_appears_between_look_and_repeat(world: World, action: str) -> None:
    """F69: the first copy arrives after the last look: a and b absorb it; c rests on A3 alone."""
    remote = world.fake_remote()
    connection = world.connect(remote, numbers={"max_exec": 0.1, "index_lag": 0.05})
    done = world.submit(connection, action, "1", 1, FIELDS)
    late = 0.15 if action != "c.create" else 0.05
    remote.order("late", "PUT" if action == "b.create" else "POST", seconds=late)
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(made(remote)) == 1


def test_a_look_meets_an_action_that_has_lost_its_class(world: World) -> None:
    """F53, F115: doubt stays doubt when the action can no longer be looked up."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    remote.order("drop", "POST")

    def steps(name: str) -> None:
        if name == "settle.committed":
            gate.degrade(connection.pk, "c.create", "find", "for the test", database_now())

    world.settle(steps=steps, tuning=small_tuning(uncertain_max=2.0))
    row = world.operation(done)
    assert (row.state, row.maybe_executed) == ("review", True), world.story(done)
    assert len(writes(remote)) == 1


# --- a success that is none -----------------------------------------------------------------------


def _read_back(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    declared = TestRemoteConnector.actions[action]
    monkeypatch.setitem(TestRemoteConnector.actions, action, replace(declared, read_back=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(("lost", "end"), [(0, "confirmed"), (1, "confirmed"), (2, "review")])
def test_a_success_is_read_back_where_the_action_demands_it(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: int, end: str
) -> None:
    """F60: the remote says "created" and has created nothing: it is seen and made up for, once."""
    _read_back(monkeypatch, "c.create")
    there = world.fake_remote()
    crm = world.connect(there)
    done = world.submit(crm, "c.create", "1", 1, FIELDS)
    reference = world.operation(done).reference
    for _ in range(lost):
        ghost = {"id": "T-ghost", "reference": reference, "version": "1"}
        there.order("answer", "POST", when="before", status=201, body=ghost)
    world.settle()
    row = world.operation(done)
    assert row.state == end, world.story(done)
    assert row.remote_ref != "T-ghost"
    assert [effect.remote_id for effect in there.effects("acme")] == [row.remote_ref] * (lost < 2)
    assert len(writes(there)) == min(lost + 1, 2)
    assert any(one.method == "GET" for one in there.log)


def test_a_change_is_read_back_where_the_action_demands_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F60: the same of an update: it is repeated until it is really there."""
    _read_back(monkeypatch, "bp.update")
    there = world.fake_remote()
    crm = world.connect(there)
    made = world.submit(crm, "bp.create", "1", 1, FIELDS)
    world.settle()
    ref = world.operation(made).remote_ref
    there.order("answer", "PUT", when="before", status=200, body={"id": ref, "version": "2"})
    changed = world.submit(crm, "bp.update", "1", 2, FIELDS | {"name": "Other"})
    world.settle()
    assert world.state(changed) == "confirmed", world.story(changed)
    assert there.things("acme")[ref].fields["name"] == "Other"
