"""Answers that cannot be stored, commits whose fate nobody knows, follow-ups that raise, code that
is gone: one operation's fault costs the others nothing, and no request is sent again for it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.db import connection as database

from hub import cases, claims, gate, moves, registry
from hub.models import Connection, Evidence, Mapping, Operation, ReviewCase
from hub.outbox import Submitted
from hub.signals import confirmed
from hub.sql import is_postgres
from tests.harness.classes import TestRemoteConnector
from tests.harness.remote import FakeRemote
from tests.harness.world import World, small_tuning

FIELDS = {"name": "Ann"}
CLASSES = ("a.create", "al.create", "b.create", "c.create", "d.create")


def one_each(world: World, connection: Connection) -> dict[str, Submitted]:
    return {
        action: world.submit(connection, action, action, 1, {"name": action}) for action in CLASSES
    }


def writes(remote: FakeRemote) -> list[str]:
    """The references of the writes that arrived, in order."""
    return [one.json.get("reference", "") for one in remote.log if one.method != "GET"]


def confirmed_all(world: World, done: dict[str, Submitted], *but: str) -> None:
    for action, one in done.items():
        if action not in but:
            assert world.state(one) == "confirmed", world.story(one)


# --- commits of unknown fate ---------------------------------------------------------------------


class Cut:
    """At the n-th time of a step the drain's next commit loses its connection: it held, or not."""

    def __init__(self, step: str, *, held: bool, times: int = 1) -> None:
        self.step, self.held, self.times = step, held, times
        self.seen: list[str] = []
        self.cuts = 0

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        if name != self.step or self.cuts >= self.times:
            return
        if name == "mark.before" and is_postgres():
            self._cut_the_marker()
        else:
            database._commit = self._commit  # type: ignore[attr-defined]

    def _cut_the_marker(self) -> None:
        """On PostgreSQL the marker is one statement, which commits by itself."""
        real = moves.mark

        def mark(*given: Any) -> Any:
            moves.mark = real
            self.cuts += 1
            if self.held:
                real(*given)
            assert database.connection is not None
            database.connection.close()
            raise OperationalError("the connection was cut at the commit")

        moves.mark = mark  # type: ignore[assignment]

    def _commit(self) -> None:
        del database._commit  # type: ignore[attr-defined]  # the class's own is in force again
        self.cuts += 1
        assert database.connection is not None
        if self.held:
            database.connection.commit()
        database.connection.close()
        raise OperationalError("the connection was cut at the commit")


def test_a_marker_that_did_not_hold_sends_nothing(world: World) -> None:
    """F29, F77: the commit of the marker fails: back to `pending`, then sent once."""
    remote = world.fake_remote()
    done = one_each(world, world.connect(remote))
    cut = Cut("mark.before", held=False)
    world.drain(steps=cut)
    assert cut.cuts == 1
    assert "mark.committed" not in cut.seen[: cut.seen.index("mark.before") + 1]
    world.settle()
    confirmed_all(world, done)
    assert sorted(writes(remote)) == sorted(set(writes(remote)))


def test_a_marker_that_held_unknown_to_us_sends_nothing(world: World) -> None:
    """F30, F31, F77: the row says `sent`, nothing left: a, b, c find out; d asks a person."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = one_each(world, connection)
    cut = Cut("mark.before", held=True)
    world.drain(steps=cut)
    assert cut.cuts == 1
    marked = Operation.objects.filter(state="sent")
    first = [row.reference for row in marked]
    assert first, world.states()
    assert not set(first) & set(writes(remote)), "a byte left though the marker was in doubt"
    world.settle()
    confirmed_all(world, done, "d.create")
    assert world.state(done["d.create"]) in ("review", "confirmed")
    assert sorted(writes(remote)) == sorted(set(writes(remote)))


@pytest.mark.parametrize("held", [True, False])
def test_the_fate_of_a_settle_is_unknown(world: World, held: bool) -> None:
    """F71, F77: read again and repeated if it did not hold: no request again, follow-ups once."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    remote.order("answer", "POST", status=422, body={"error": "INVALID"}, when="before")
    refused = world.submit(connection, "d.create", "refused", 1, FIELDS)
    world.settle()
    assert world.state(refused) == "failed"
    done = one_each(world, connection)
    told: list[int] = []

    def follow(operation_id: int, **_: Any) -> None:
        told.append(operation_id)
        cases.note(operation_id, "followed", "a follow-up in the same transaction", actor="test")

    confirmed.connect(follow)
    try:
        cut = Cut("settle.before", held=held, times=2)
        world.drain(steps=cut)
        world.settle()
    finally:
        confirmed.disconnect(follow)
    assert cut.cuts >= 1
    confirmed_all(world, done)
    assert set(told) == {one.operation_id for one in done.values()}
    for one in done.values():
        assert Evidence.objects.filter(operation_id=one.operation_id, kind="followed").count() == 1
        assert not Evidence.objects.filter(operation_id=one.operation_id, kind="late_result")
    assert len(writes(remote)) == len(CLASSES) + 1


@pytest.mark.parametrize("held", [True, False])
def test_the_case_of_a_settle_of_unknown_fate_is_one(world: World, held: bool) -> None:
    """F71, C9: a refusal settled twice over counts once."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    remote.order("answer", "POST", status=422, body={"error": "INVALID"}, when="before")
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    cut = Cut("settle.before", held=held)
    world.drain(steps=cut)
    world.settle()
    assert cut.cuts == 1
    assert world.state(done) == "failed", world.story(done)
    assert ReviewCase.objects.get().count == 1
    assert len(writes(remote)) == 1


@pytest.mark.parametrize("held", [True, False])
def test_the_fate_of_a_claim_is_unknown(world: World, held: bool) -> None:
    """F13, F77: rows claimed by a commit nobody heard of lapse before anything left."""
    remote = world.fake_remote()
    done = one_each(world, world.connect(remote))
    cut = Cut("claim.before", held=held)
    world.drain(steps=cut)
    world.settle()
    assert cut.cuts == 1
    confirmed_all(world, done)
    assert len(writes(remote)) == len(CLASSES)


# --- killed backends -----------------------------------------------------------------------------


def kill_backends(world: World) -> int:
    """End every connection a drain has to the database, as an administrator or a firewall does."""
    with psycopg.connect(world.database_url, autocommit=True) as admin:
        found = admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'hub-drain%'"
        ).fetchall()
    return len(found)


PHASES = (
    "claim.before", "prepare.guarded", "mark.before", "send.first_byte", "settle.before",
    "settle.committed",
)  # fmt: skip


@pytest.mark.postgresql
@pytest.mark.parametrize("phase", PHASES)
def test_the_drains_backend_is_killed(world: World, phase: str) -> None:
    """F77, F29, F71: at each phase the thread gets a new connection; one effect."""
    remote = world.fake_remote()
    done = one_each(world, world.connect(remote))
    killed: list[int] = []

    def steps(name: str) -> None:
        if name == phase and not killed:
            killed.append(kill_backends(world))

    world.drain(steps=steps)
    assert killed == [1]
    world.settle()
    confirmed_all(world, done, "d.create")
    assert world.state(done["d.create"]) in ("confirmed", "review")
    assert len(writes(remote)) == len(set(writes(remote)))


@pytest.mark.postgresql
@pytest.mark.parametrize("statement", ["claims.claim", "moves.mark", "moves.settle"])
def test_the_backend_is_killed_inside_the_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """F77: after the statement, before its commit: it did not hold, and so it is believed."""
    module = {"claims": claims, "moves": moves}[statement.partition(".")[0]]
    name = statement.partition(".")[2]
    real = getattr(module, name)
    killed: list[int] = []

    def then_killed(*given: Any, **more: Any) -> Any:
        result = real(*given, **more)
        if given[0] and not killed and (result if name != "settle" else result.ids):
            killed.append(kill_backends(world))
        return result

    monkeypatch.setattr(module, name, then_killed)
    remote = world.fake_remote()
    done = one_each(world, world.connect(remote))
    world.drain()
    assert killed == [1]
    world.settle()
    confirmed_all(world, done)
    assert len(writes(remote)) == len(CLASSES)


# --- what meets locks ----------------------------------------------------------------------------


@contextmanager
def locked(world: World, ids: list[int]) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's transaction holds these rows."""
    with psycopg.connect(world.database_url) as other:
        other.execute("SELECT 1 FROM hub_operation WHERE id = ANY(%s) FOR UPDATE", [ids])
        yield other
        other.rollback()


@pytest.mark.postgresql
def test_a_locked_row_holds_up_its_batch_only_for_a_moment(world: World) -> None:
    """F72: a web transaction keeps one row of a settle locked: the others settle."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(20)]
    held = done[7].operation_id
    locks = None

    def steps(name: str) -> None:
        nonlocal locks
        if name == "settle.before" and locks is None:
            locks = locked(world, [held])
            locks.__enter__()

    drain = threading.Thread(target=world.drain, kwargs={"steps": steps})
    drain.start()
    try:
        world.wait_for(lambda: world.states()["confirmed"] == 19, saying="19 of 20 settled")
        assert world.state(held) == "sent"
    finally:
        assert locks is not None
        locks.__exit__(None, None, None)
        drain.join(60)
    world.settle()
    assert world.states() == {"confirmed": 20}
    assert len(writes(remote)) == 20


@pytest.mark.postgresql
def test_a_settle_that_deadlocks_is_repeated_and_sends_nothing(world: World) -> None:
    """F72: PostgreSQL ends the drain's transaction; the batch settles all the same."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(5)]
    ids = sorted(one.operation_id for one in done)
    others: list[threading.Thread] = []
    victims: list[str] = []

    def embrace(holding: threading.Event) -> None:
        with psycopg.connect(world.database_url) as other:
            other.execute("SET deadlock_timeout = '30s'")
            other.execute("SELECT 1 FROM hub_operation WHERE id = %s FOR UPDATE", [ids[-1]])
            holding.set()
            with psycopg.connect(world.database_url, autocommit=True) as watch:
                waiting = (
                    "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'hub-drain%' "
                    "AND wait_event_type = 'Lock' AND datname = current_database()"
                )
                end = time.monotonic() + 60
                while not watch.execute(waiting).fetchall() and time.monotonic() < end:
                    time.sleep(0.01)
            other.execute("SELECT 1 FROM hub_operation WHERE id = %s FOR UPDATE", [ids[0]])
            victims.append("the drain")
            other.rollback()

    def steps(name: str) -> None:
        if name == "settle.before" and not others:
            holding = threading.Event()
            others.append(threading.Thread(target=embrace, args=(holding,)))
            others[0].start()
            holding.wait(60)

    hold_all_back(remote, 5)
    world.drain(steps=steps)
    for other in others:
        other.join(60)
    world.settle()
    assert victims == ["the drain"]
    assert world.states() == {"confirmed": 5}
    assert len(writes(remote)) == 5


def hold_all_back(remote: FakeRemote, count: int) -> None:
    """Answers that come at one moment settle in one batch."""
    remote.order("together", "POST", times=count)


def test_a_settle_that_fails_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """F72: retried in place, bounded; given up it is found out by key, look or a person."""
    remote = world.fake_remote()
    done = one_each(world, world.connect(remote))
    real, failures = moves.settle, [0]

    def failing(wanted: Any, now: Any = None) -> Any:
        if any(one.subject.state == "sent" for one in wanted) and failures[0] < 18:
            failures[0] += 1
            raise OperationalError("could not serialize access")
        return real(wanted, now)

    monkeypatch.setattr(moves, "settle", failing)
    world.settle()
    assert failures[0] >= 11
    confirmed_all(world, done, "d.create")
    assert world.state(done["d.create"]) in ("confirmed", "review")
    made = [one for one in remote.effects("acme") if one.kind == "create"]
    assert len(made) == len(CLASSES)


def test_a_claim_that_meets_c2_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: a claim that meets another drain's lower version leaves no attempt and is repeated."""
    from django.db import IntegrityError

    real, met = claims.claim, [0]

    def meets(*given: Any, **more: Any) -> Any:
        taken = real(*given, **more)
        if taken and met[0] < 2:
            met[0] += 1
            raise IntegrityError("c2_one_busy_per_stream")
        return taken

    monkeypatch.setattr(claims, "claim", meets)
    remote = world.fake_remote()
    done = one_each(world, world.connect(remote))
    world.settle()
    assert met == [2]
    confirmed_all(world, done)
    assert all(world.operation(one).attempt_set.count() == 1 for one in done.values())


# --- answers that cannot be stored ---------------------------------------------------------------

UGLY = {
    "a zero character": "a\x00b",
    "half a surrogate": "a\ud800b",
    "far too long": "x" * 5000,
    "a number": 12345678901234567890123,
    "a list": ["x"],
    "nothing": None,
}


@pytest.mark.parametrize("place", ["id", "version"])
def test_answers_that_no_database_would_store(world: World, place: str) -> None:
    """F7, F61, F72: the same on both databases; the batch is stored, and the worker lives."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    odd = {}
    for name, ugly in UGLY.items():
        odd[name] = world.submit(connection, "d.create", name, 1, FIELDS)
        reference = world.operation(odd[name]).reference
        body = {"id": f"made-up-{name}", "version": "1", "reference": reference, "fields": FIELDS}
        remote.order("answer", "POST", status=201, body=body | {place: ugly}, reference=reference)
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(3)]
    world.settle()
    assert [world.state(one) for one in done] == ["confirmed"] * 3
    assert len(writes(remote)) == len(odd) + 3
    for name, one in odd.items():
        row = world.operation(one)
        assert row.lapses == 0, f"a worker was lost over {name}"
        kept = place == "version" or name in ("a number", "a list", "nothing")
        assert row.state == ("confirmed" if kept else "review"), world.story(one)
        assert row.remote_version in ("", "1", str(UGLY[name]))
        text = world.story(one)
        text.encode()
        assert "\x00" not in text
    world.allow("I3", "the ids in the answers were made up by the test")


def test_words_that_no_database_would_store(world: World) -> None:
    """F7, F46: an error's code and text, and a candidate's fields, are kept cleaned and cut."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    refused, found = [], []
    for number, ugly in enumerate(("\x00", "\ud800", "x" * 70_000, "\x1b[2J", "\u202e")):
        refused.append(world.submit(connection, "d.create", f"r{number}", 1, FIELDS))
        reference = world.operation(refused[-1]).reference
        remote.order(
            "answer", "POST", status=422, body={"error": f"INVALID{ugly}"}, when="before",
            reference=reference,
        )  # fmt: skip
        found.append(world.submit(connection, "c.create", f"c{number}", 1, FIELDS))
        reference = world.operation(found[-1]).reference
        remote.order("drop", "POST", when="before", reference=reference)
        items = [{"id": f"9{ugly}", "reference": reference, "fields": {"name": ugly, ugly: 1}}]
        remote.order(
            "answer", "GET", status=200, times=50, reference=reference,
            body={"items": items, "complete": True},
        )  # fmt: skip
    world.settle(tuning=small_tuning(uncertain_max=1.0))
    for one in (*refused, *found):
        row = world.operation(one)
        assert (row.state, row.lapses) == ("review", 0), world.story(one)
    assert ReviewCase.objects.count() == 10
    for case in ReviewCase.objects.all():
        case.summary.encode()
        assert len(case.summary) <= 2000


def test_an_object_that_is_already_tied_to_something_else(world: World) -> None:
    """F61, F125, C6: that one goes to a person with the id as evidence; its batch is stored."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    first = world.submit(connection, "c.create", "first", 1, FIELDS)
    world.settle()
    taken = world.operation(first).remote_ref
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(9)]
    odd = world.submit(connection, "c.create", "odd", 1, FIELDS)
    reference = world.operation(odd).reference
    remote.order(
        "answer", "POST", status=201, reference=reference,
        body={"id": taken, "version": 1, "reference": reference, "fields": FIELDS},
    )  # fmt: skip
    hold_all_back(remote, 9)
    world.settle()
    assert [world.state(one) for one in done] == ["confirmed"] * 9
    row = world.operation(odd)
    assert (row.state, row.reason_code, row.maybe_executed) == ("review", "mapping_taken", True)
    assert taken in row.reason_text
    assert Mapping.objects.filter(remote_ref=taken).count() == 1
    assert not Mapping.objects.filter(source_id="odd").exists()
    assert len(writes(remote)) == 11


# --- follow-ups that raise -----------------------------------------------------------------------


@contextmanager
def follow_up(work: Callable[..., None]) -> Iterator[None]:
    confirmed.connect(work, weak=False)
    try:
        yield
    finally:
        confirmed.disconnect(work)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_follow_up_that_raises(world: World, times: int) -> None:
    """F74, F125: tried once more alone; raising again → a person, with the id and no mapping."""
    remote = world.fake_remote()
    connection = world.connect(remote, max_in_flight=50)
    hold_all_back(remote, 40)
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(40)]
    odd = done[13]
    raised = [0]

    def raises(operation_id: int, remote_ref: str, **_: Any) -> None:
        cases.note(operation_id, "followed", "written before it raised", actor="test")
        if operation_id == odd.operation_id and raised[0] < times:
            raised[0] += 1
            raise RuntimeError("no room on the shelf")

    with follow_up(raises):
        world.settle()
    others = [one for one in done if one is not odd]
    assert all(world.state(one) == "confirmed" for one in others)
    for one in others:
        assert Evidence.objects.filter(operation_id=one.operation_id, kind="followed").count() == 1
    row = world.operation(odd)
    notes = Evidence.objects.filter(operation_id=row.pk)
    # In a batch of its own it is alone at once, so its second time may be its last.
    if times == 1:
        assert row.state == "confirmed", world.story(odd)
        assert Mapping.objects.filter(source_id="13").exists()
        assert notes.filter(kind="followed").count() == 1
    elif row.state == "review":
        assert row.reason_code == "follow_up_failed"
        assert "no room on the shelf" in row.reason_text
        assert not Mapping.objects.filter(source_id="13").exists()
        assert not notes.filter(kind="followed").exists(), "half a follow-up was stored"
        assert "remote id" in notes.get(kind="follow_up_failed").data
    if times == 3:
        assert row.state == "review"
    assert len(writes(remote)) == 40


def test_a_follow_up_that_breaks_the_database(world: World) -> None:
    """F74: an integrity error of local code is that operation's fault alone."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    hold_all_back(remote, 5)
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(5)]
    odd = done[2]

    def breaks(operation_id: int, **_: Any) -> None:
        if operation_id == odd.operation_id:
            ReviewCase.objects.create(pk=1, subject="x" * 500)

    with follow_up(breaks):
        world.settle()
    assert [world.state(one) for one in done if one is not odd] == ["confirmed"] * 4
    assert world.state(odd) == "review", world.story(odd)
    assert len(writes(remote)) == 5


# --- connectors that raise, and code that is gone ------------------------------------------------


ERRORS = {
    type(one).__name__: one
    for one in (
        RuntimeError("boom"), KeyError("x"), RecursionError(), MemoryError(), StopIteration(7),
        AssertionError(), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"),
        OperationalError("not ours"),
    )
}  # fmt: skip


@pytest.mark.parametrize("place", ["send", "authorize", "made", "find"])
def test_a_connector_raises_anything(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """F117: evidence, and U or N by "had begun"; the others are carried out, the worker lives."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    real_made, real_authorize = TestRemoteConnector._made, TestRemoteConnector.authorize
    real_find = TestRemoteConnector.find

    def made(self: Any, request: Any, answer: Any) -> Any:
        _odd(request)
        return real_made(self, request, answer)

    def authorize(self: Any, call: Any) -> Any:
        for name, error in ERRORS.items():
            if name.encode() in call.body:
                raise error
        return real_authorize(self, call)

    def find(self: Any, request: Any) -> Any:
        _odd(request)
        return real_find(self, request)

    match place:
        case "send":
            monkeypatch.setattr(TestRemoteConnector, "_key", lambda self, r: _odd(r))
        case "authorize":
            monkeypatch.setattr(TestRemoteConnector, "authorize", authorize)
        case "made":
            monkeypatch.setattr(TestRemoteConnector, "_made", made)
        case "find":
            monkeypatch.setattr(TestRemoteConnector, "find", find)
    odd = {}
    for name in ERRORS:
        odd[name] = world.submit(connection, "c.create", name, 1, {"name": name})
        if place == "find":
            reference = world.operation(odd[name]).reference
            remote.order("drop", "POST", when="after", reference=reference)
    fine = [world.submit(connection, "c.create", f"fine {n}", 1, {"name": "x"}) for n in range(3)]
    world.settle(tuning=small_tuning(uncertain_max=1.0 if place == "find" else 600.0))
    before = place in ("send", "authorize")
    assert len(writes(remote)) == len(fine) + (0 if before else len(odd))
    assert [world.state(one) for one in fine] == ["confirmed"] * 3
    for name, one in odd.items():
        row = world.operation(one)
        assert row.lapses == 0, f"a worker was lost over {name}"
        if place == "made":
            assert row.state == "confirmed", world.story(one)
        else:
            assert (row.state, row.maybe_executed) == ("review", not before), world.story(one)


def test_a_connector_that_ends_its_worker_is_poison(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F14, F117, F126: no exception of the ordinary kind: three workers die, then a person."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    odd = world.submit(connection, "c.create", "odd", 1, FIELDS)
    fine = [world.submit(connection, "c.create", f"fine {n}", 1, FIELDS) for n in range(3)]

    def key(self: Any, request: Any) -> dict[str, str]:
        if request.source_id == "odd":
            raise SystemExit(3)
        return {}

    monkeypatch.setattr(TestRemoteConnector, "_key", key)
    died = 0
    for _ in range(8):
        try:
            world.settle()
            break
        except SystemExit:
            died += 1
    row = world.operation(odd)
    assert (row.state, row.reason_code, row.maybe_executed) == ("review", "poison", False)
    assert died == 3
    assert [world.state(one) for one in fine] == ["confirmed"] * 3
    assert len(writes(remote)) == 3


def _odd(request: Any) -> dict[str, str]:
    if request.source_id in ERRORS:
        raise ERRORS[request.source_id]
    return {}


def _nonsense(value: Any) -> Any:
    def send(self: Any, request: Any) -> Any:
        if False:
            yield
        return value

    return send


def _yields(value: Any) -> Any:
    def send(self: Any, request: Any) -> Any:
        yield value

    return send


NONSENSE: dict[str, Any] = {
    "None": lambda self, r: None,
    "a number": lambda self, r: 7,
    "a list": lambda self, r: [],
    "returns None": _nonsense(None),
    "returns text": _nonsense("done"),
    "yields text": _yields("GET /"),
    "yields None": _yields(None),
}


@pytest.mark.parametrize("method", ["send", "find"])
def test_a_connector_that_talks_nonsense(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """F117: nothing it says is taken for an answer, and it does not go on for ever."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    if method == "find":
        remote.order("drop", "POST", when="after", times=len(NONSENSE))
    monkeypatch.setattr(
        TestRemoteConnector,
        method,
        lambda self, request: NONSENSE[request.source_id](self, request),
    )
    odd = {name: world.submit(connection, "c.create", name, 1, FIELDS) for name in NONSENSE}
    world.settle(tuning=small_tuning(uncertain_max=0.5))
    for one in odd.values():
        row = world.operation(one)
        assert (row.state, row.lapses) == ("review", 0), world.story(one)
        assert row.maybe_executed is (method == "find"), world.story(one)


@pytest.mark.parametrize("action", ["c.create", "d.create"])
def test_the_code_of_an_action_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """F117: an upgrade took the action away: to a person, nothing sent, the rest goes on."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    odd = world.submit(connection, action, "odd", 1, FIELDS)
    left = {k: v for k, v in TestRemoteConnector.actions.items() if k != action}
    monkeypatch.setattr(TestRemoteConnector, "actions", left)
    fine = world.submit(connection, "a.create", "fine", 1, FIELDS)
    world.settle()
    row = world.operation(odd)
    assert (row.state, row.reason_code) == ("review", "code_missing"), world.story(odd)
    assert action in row.reason_text
    assert world.state(fine) == "confirmed"
    assert len(writes(remote)) == 1


def test_the_code_of_an_integration_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """F117: the connection pauses with a case that says what to do; the others go on."""
    world.real_time()
    remote = world.fake_remote()
    gone = world.connect(remote)
    stand_in = world.stand_in()
    other = world.connect(stand_in)
    waits = [world.submit(gone, "c.create", str(n), 1, FIELDS) for n in range(3)]
    fine = world.submit(other)
    installed = registry.integrations()
    monkeypatch.setattr(
        registry, "integrations", lambda: [one for one in installed if one.label != "testremote"]
    )
    world.drain(budget=3.0)
    assert world.state(fine) == "confirmed"
    assert {world.state(one) for one in waits} == {"pending"}
    case = ReviewCase.objects.get(subject="connection", closed_at=None)
    assert "INTEGRATIONS" in case.summary
    assert writes(remote) == []
    monkeypatch.setattr(registry, "integrations", lambda: installed)
    gate.resume(gone.pk)
    world.settle()
    assert {world.state(one) for one in waits} == {"confirmed"}


# --- the task's time limit -----------------------------------------------------------------------


class TimeLimit(SystemExit):
    """What Django-Q2's alarm raises in the main thread, wherever it is."""


@pytest.mark.parametrize("phase", ["claim.committed", "prepare.guarded", "mark.committed",
                                   "send.first_byte", "recv.status", "settle.before"])  # fmt: skip
def test_the_time_limit_of_the_task(world: World, phase: str) -> None:
    """F20: before the marker it lapses; after it nothing is settled by the interruption."""
    remote = world.fake_remote()
    done = one_each(world, world.connect(remote))
    fired: list[int] = []

    def alarm(*_: object) -> None:
        raise TimeLimit("Task exceeded maximum timeout value")

    def steps(name: str) -> None:
        if name == phase and not fired:
            fired.append(1)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(TimeLimit):
            world.drain(steps=steps)
    finally:
        signal.signal(signal.SIGALRM, before)
    world.settle()
    confirmed_all(world, done, "d.create")
    assert world.state(done["d.create"]) in ("confirmed", "review")
    made = [one for one in remote.effects("acme") if one.kind == "create"]
    assert len({one.reference for one in made}) == len(made)
