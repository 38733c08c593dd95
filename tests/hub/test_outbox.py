"""The front door: what is taken, what is refused in plain words, what a second time means."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection as database
from django.db import transaction
from django_q.models import OrmQ

from hub import bell, keys, outbox, registry
from hub.contract import BadPayload, Write
from hub.models import Connection, Mapping, Operation, ReviewCase
from hub.outbox import Drift, Impossible, Submitted, submit
from hub.sql import database_now
from hub.states import State
from tests import harness
from tests.harness.apps import TestRemoteConfig
from tests.harness.classes import TestRemoteConnector
from tests.hub.operations import connection

FIELDS = {"name": "Ann", "size": 3}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry.integrations()
    mine = TestRemoteConfig("tests.harness", harness)
    monkeypatch.setattr(registry, "integrations", lambda: [*found, mine])


@pytest.fixture
def crm(transactional_db: None) -> Connection:
    """A connection to a remote with actions of every class; nothing is ever sent here."""
    return connection("crm", "testremote")


def put(
    where: Connection,
    action: str = "a.create",
    source_id: str = "1",
    version: int = 1,
    fields: Any = None,
    **more: Any,
) -> Submitted:
    given = FIELDS if fields is None else fields
    return submit(where, action, source_id=source_id, version=version, fields=given, **more)


def mapped(where: Connection, kind: str = "a", source_id: str = "1", ref: str = "77") -> Mapping:
    """The object exists over there as far as we know."""
    return Mapping.objects.create(
        tenant=where.tenant,
        connection=where,
        object_type=kind,
        source_system="hub",
        source_id=source_id,
        remote_ref=ref,
        updated_at=database_now(),
    )


def sent(row_id: int, state: str = "confirmed", **more: Any) -> None:
    """What a worker left behind, as far as the front door can tell."""
    now = database_now()
    Operation.objects.filter(pk=row_id).update(
        state=state,
        first_sent_at=now,
        confirmed_at=now if state == "confirmed" else None,
        remote_ref="77" if state == "confirmed" else "",
        **more,
    )


def rows() -> Counter[str]:
    return Counter(Operation.objects.values_list("state", flat=True))


# --- the same again ------------------------------------------------------------------------------


def test_the_same_operation_again_is_the_same_row(crm: Connection) -> None:
    """F1: one row; the second caller gets the first's id and state, and that it is not fresh."""
    first = put(crm)
    assert (first.fresh, first.state) == (True, State.PENDING)
    again = put(crm, fields={"size": 3, "name": "Ann"})
    assert again == Submitted(first.operation_id, False, State.PENDING)
    sent(first.operation_id)
    assert put(crm) == Submitted(first.operation_id, False, State.CONFIRMED)
    assert Operation.objects.count() == 1


@pytest.mark.parametrize("state", ["failed", "discarded", "review"])
def test_a_duplicate_of_what_has_ended_is_still_that_operation(crm: Connection, state: str) -> None:
    """F1: nothing becomes fresh because the first was refused: only a decision sends again."""
    first = put(crm)
    Operation.objects.filter(pk=first.operation_id).update(state=state, reason_text="for the test")
    assert put(crm) == Submitted(first.operation_id, False, State(state))
    assert Operation.objects.count() == 1


def test_a_duplicate_is_the_newest_generation(crm: Connection) -> None:
    """F1: after a decision made a second generation, a repeat of the intent names that one."""
    first = put(crm)
    Operation.objects.filter(pk=first.operation_id).update(state="discarded", maybe_executed=True)
    old = Operation.objects.get(pk=first.operation_id)
    newest = Operation.objects.create(
        **{
            f.attname: getattr(old, f.attname)
            for f in Operation._meta.concrete_fields
            if f.attname not in ("id", "generation", "state", "maybe_executed", "supersedes_id")
        },
        generation=2,
        state="pending",
        supersedes=old,
    )
    assert put(crm) == Submitted(newest.pk, False, State.PENDING)


@pytest.mark.parametrize("together", [False, True])
def test_twenty_threads_submit_the_same(crm: Connection, together: bool) -> None:
    """F2, W10: C1 decides; nobody sees an error, inside a caller's transaction or without one."""
    barrier = threading.Barrier(20)
    answers: list[Submitted] = []
    errors: list[BaseException] = []

    def one() -> None:
        try:
            barrier.wait(20)
            if together:
                with transaction.atomic():
                    answers.append(put(crm))
            else:
                answers.append(put(crm))
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len({one.operation_id for one in answers}) == 1
    assert sum(one.fresh for one in answers) == 1
    assert Operation.objects.count() == 1


# --- drift ---------------------------------------------------------------------------------------


def test_the_same_key_with_another_payload_is_drift(crm: Connection) -> None:
    """F3: no new row; the caller's conflict names the operation; one case stands for all times."""
    first = put(crm)
    for _ in range(3):
        with pytest.raises(Drift, match=f"Operation {first.operation_id} ") as caught:
            put(crm, fields={**FIELDS, "size": 4})
        assert caught.value.operation_id == first.operation_id
    assert Operation.objects.count() == 1
    case = ReviewCase.objects.get()
    assert (case.subject, case.subject_id, case.count) == ("drift", first.operation_id, 3)
    assert case.closed_at is None
    assert "a.create of a 1, version 1" in case.summary
    assert Operation.objects.get().payload == keys.canonical_payload(FIELDS)


def wait_for(what: Callable[[], bool]) -> None:
    """The case is written by a thread of its own; wait for that thread, not for a time."""
    for thread in threading.enumerate():
        if thread.name == "drift-case":
            thread.join(30)
    assert what()


def _change_and_put(crm: Connection, time: int) -> None:
    with transaction.atomic():
        mapped(crm, "x", str(time), str(time))
        put(crm, fields={"name": f"Eve {time}"})


def test_drift_inside_a_transaction_outlives_its_rollback(crm: Connection) -> None:
    """F131: ten callers roll back; the conflict reaches each, one open case counts them."""
    first = put(crm)
    for time in range(1, 11):
        with pytest.raises(Drift):
            _change_and_put(crm, time)
        wait_for(lambda: ReviewCase.objects.filter(count=time).exists())  # noqa: B023
    assert Mapping.objects.count() == 0
    assert ReviewCase.objects.count() == 1
    assert Operation.objects.get().pk == first.operation_id


def test_a_caller_may_catch_drift_and_commit(crm: Connection) -> None:
    """F3, F131: the conflict does not spoil the caller's transaction."""
    put(crm)
    with transaction.atomic():
        with pytest.raises(Drift):
            put(crm, fields={"name": "Eve"})
        other = put(crm, source_id="2")
    wait_for(lambda: ReviewCase.objects.filter(count=1).exists())
    assert Operation.objects.filter(pk=other.operation_id).exists()


# --- the caller's transaction --------------------------------------------------------------------


def _put_and_regret(crm: Connection) -> None:
    with transaction.atomic():
        put(crm)
        raise RuntimeError("the caller changed its mind")


def test_a_rollback_leaves_nothing(crm: Connection) -> None:
    """F4: no row, no wake-up."""
    with pytest.raises(RuntimeError, match="changed its mind"):
        _put_and_regret(crm)
    assert Operation.objects.count() == 0
    assert OrmQ.objects.count() == 0


def test_a_rollback_to_a_savepoint_leaves_nothing(crm: Connection) -> None:
    """F4: the same inside a larger transaction that commits."""
    with transaction.atomic():
        with pytest.raises(RuntimeError, match="changed its mind"):
            _put_and_regret(crm)
        kept = put(crm, source_id="2")
    assert list(Operation.objects.values_list("pk", flat=True)) == [kept.operation_id]
    assert OrmQ.objects.count() == 1


def test_the_wake_up_comes_after_the_commit_and_once(crm: Connection) -> None:
    """F5, F6: one queued drain for a hundred operations; a duplicate or a drift rings nobody."""
    with transaction.atomic():
        for number in range(100):
            put(crm, source_id=str(number))
        assert OrmQ.objects.count() == 0
    assert OrmQ.objects.count() == 1
    OrmQ.objects.all().delete()
    put(crm, source_id="1")
    with pytest.raises(Drift):
        put(crm, source_id="1", fields={"name": "Eve"})
    assert OrmQ.objects.count() == 0


def test_a_lost_wake_up_loses_nothing(crm: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: the process dies between commit and wake-up: the row is there for the next who looks."""

    class Gone(BaseException):
        pass

    def die() -> None:
        raise Gone

    monkeypatch.setattr(bell, "ring", die)
    with pytest.raises(Gone):
        put(crm)
    assert rows() == {"pending": 1}


# --- bad input -----------------------------------------------------------------------------------

DEEP: Any = 1
for _ in range(10_000):
    DEEP = [DEEP]

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a zero character", {"fields": {"name": "a\x00b"}}, r"^name: holds the character U\+0000"),
    ("half a surrogate", {"fields": {"name": "a\ud800"}}, "^name: holds half of a surrogate pair"),
    ("a bad name", {"fields": {"a\x00": 1}}, r"^a name in payload: holds the character U\+0000"),
    ("a name that is none", {"fields": {1: 1}}, "^payload: a name must be a text"),
    ("deep inside", {"fields": {"a": [{"b": "\x00"}]}}, r"^a\[0\]\.b: holds the character"),
    ("not a number", {"fields": {"size": float("nan")}}, "^size: not a finite number"),
    ("infinite", {"fields": {"size": float("-inf")}}, "^size: not a finite number"),
    ("5,000 digits", {"fields": {"size": 10**4999}}, "^size: the number is too large"),
    ("just inexact", {"fields": {"size": 2**53}}, "^size: the number is too large"),
    ("depth 10,000", {"fields": {"a": DEEP}}, r"^a\[0\].*: nested too deeply; at most 32"),
    ("a set", {"fields": {"a": {1}}}, "^a: set has no JSON form"),
    ("too much", {"fields": {"a": "x" * 300_000}}, "^The payload has more than 262144 bytes"),
    ("a list", {"fields": [["name", "Ann"]]}, "^The payload must be a JSON object"),
    ("nothing", {"fields": 7}, "^The payload must be a JSON object"),
    ("no id", {"source_id": ""}, "^source_id: must not be empty"),
    ("a long id", {"source_id": "x" * 256}, "^source_id: has 256 characters; at most 255"),
    ("a zero in the id", {"source_id": "a\x00"}, r"source_id: holds the character U\+0000"),
    ("half an id", {"source_id": "\udcff"}, "source_id: holds half of a surrogate pair"),
    ("an id that is no text", {"source_id": 7}, "^source_id: must be a text, not int"),
    ("a version below", {"version": -1}, "^version: must be between 0 and"),
    ("a version above", {"version": 2**53}, "^version: must be between 0 and"),
    ("half a version", {"version": 1.0}, "^version: must be a whole number"),
    ("a true version", {"version": True}, "^version: must be a whole number"),
    ("a bad variant", {"variant": "\x00"}, r"^variant: holds the character U\+0000"),
    ("a long source", {"source_system": "x" * 61}, "^source_system: has 61 characters"),
    ("a long mark", {"correlation_id": "x" * 65}, "^correlation_id: has 65 characters"),
    ("no such action", {"action": "a.fly"}, "^action: The integration 'testremote' has no action"),
    ("a bad action", {"action": "a\x00"}, r"^action: .* has no action 'a\\x00'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_refused_at_the_door(
    crm: Connection, given: dict[str, Any], text: str
) -> None:
    """F7: a readable text that names field and reason, the same on both databases; no row."""
    with pytest.raises(BadPayload, match=text) as caught:
        put(crm, **given)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()
    assert Operation.objects.count() == 0


def test_what_can_be_stored_is_stored_as_it_was_signed(crm: Connection) -> None:
    """F7: on both databases the very bytes whose fingerprint was taken come back."""
    odd = {
        "😀": 'Ann \u2028 ñ \\ " / é e\u0301',
        "control": "\x01\x1f\x7f\u0085",
        "numbers": [0, -1, 1.5, 1e300, 5e-324, 2**53 - 1, -0.0],
        "nested": [[[[{"a": None, "b": True}]]]],
    }
    done = put(crm, fields=odd)
    row = Operation.objects.get(pk=done.operation_id)
    assert keys.fingerprint(row.payload) == row.fingerprint
    assert row.payload == keys.canonical_payload(odd)
    assert put(crm, fields=odd).operation_id == done.operation_id


# --- keys and versions ---------------------------------------------------------------------------


def test_there_and_back_again_is_three_operations(crm: Connection) -> None:
    """F9, W9: A → B → A: the version tells them apart, not the content."""
    mapped(crm)
    made = [
        put(crm, "a.update", version=version, fields={"name": name})
        for version, name in enumerate(("A", "B", "A"), start=1)
    ]
    assert len({one.operation_id for one in made}) == 3
    found = Operation.objects.order_by("version")
    assert len({one.operation_key for one in found}) == 3
    assert found[0].fingerprint == found[2].fingerprint
    assert [one.state for one in found] == ["discarded", "discarded", "pending"]


@pytest.mark.parametrize("mark", ["|", ":", "/", "\n", ",", "\x1f", "\\", '"', " ", "1"])
def test_separators_inside_values_keep_keys_apart(crm: Connection, mark: str) -> None:
    """F10: ("a|b", "c") and ("a", "b|c") are two intents, in every pair of neighbouring parts."""
    one = put(crm, source_system=f"a{mark}b", source_id="c")
    two = put(crm, source_system="a", source_id=f"b{mark}c")
    three = put(crm, "a.note", source_id="n", variant=f"1{mark}")
    four = put(crm, "a.note", source_id="n", version=11, variant=mark)
    ids = {x.operation_id for x in (one, two, three, four)}
    assert len(ids) == 4
    found = Operation.objects.filter(pk__in=ids)
    assert len({x.operation_key for x in found}) == 4
    assert len({x.remote_key for x in found}) == 4
    assert len({x.stream for x in found}) == 3


# --- create, update, delete ----------------------------------------------------------------------


def test_a_create_of_what_exists_is_impossible(crm: Connection) -> None:
    """§13: the refusal says what it is over there and what to do instead."""
    mapped(crm, ref="77")
    with pytest.raises(Impossible, match="a 1 already exists as 77: submit an update") as caught:
        put(crm, version=2)
    assert caught.value.operation_id is None


OPEN = ["pending", "running", "sent", "uncertain", "accepted", "retry", "review"]


@pytest.mark.parametrize("state", OPEN)
def test_a_second_create_names_the_row_in_the_way(crm: Connection, state: str) -> None:
    """§13: while a create is open (or in doubt with a person) another version of it is refused."""
    first = put(crm)
    _bring(first.operation_id, state)
    with pytest.raises(Impossible, match=f"created by operation {first.operation_id} ") as caught:
        put(crm, version=2)
    assert caught.value.operation_id == first.operation_id
    assert Operation.objects.count() == 1
    follows = put(crm, "a.update", version=2)
    assert follows.state is State.PENDING


def _bring(row_id: int, state: str) -> None:
    """A row that satisfies the constraints of its state."""
    leased = state in ("running", "sent")
    Operation.objects.filter(pk=row_id).update(
        state=state,
        stream_busy=state not in ("pending", "retry"),
        lease_until=database_now() if leased else None,
        maybe_executed=state in ("uncertain", "review"),
        reason_text="for the test",
    )


@pytest.mark.parametrize("state", ["failed", "discarded", "review"])
def test_after_a_create_that_had_no_effect_the_next_version_creates(
    crm: Connection, state: str
) -> None:
    """F128: refused, withdrawn, or with a person but not in doubt: the next is a create."""
    first = put(crm)
    Operation.objects.filter(pk=first.operation_id).update(state=state)
    with pytest.raises(Impossible, match="submit a create first"):
        put(crm, "a.update", version=2)
    assert put(crm, version=2).state is State.PENDING


@pytest.mark.parametrize("action", ["a.update", "b.delete"])
def test_a_change_of_nothing_is_impossible(crm: Connection, action: str) -> None:
    """§13: neither a mapping nor an open create."""
    with pytest.raises(Impossible, match="is not known there, and no create of it is under way"):
        put(crm, action)
    assert Operation.objects.count() == 0


def test_what_was_deleted_there_counts_as_gone(crm: Connection) -> None:
    """§13: a mapping with `deleted_at` is no object: an update is refused, a create is taken."""
    row = mapped(crm)
    Mapping.objects.filter(pk=row.pk).update(deleted_at=database_now())
    with pytest.raises(Impossible):
        put(crm, "a.update", version=2)
    assert put(crm, version=3).fresh


def test_another_connections_object_is_another_object(crm: Connection) -> None:
    """§13, I14: mappings and creates of one account say nothing about another."""
    other = connection("erp", "testremote")
    mapped(crm)
    put(other)
    with pytest.raises(Impossible):
        put(other, version=2)
    put(crm, "a.update", version=2)


def test_commands_need_no_object(crm: Connection) -> None:
    """§13 speaks of creates, updates and deletes; a command is taken as it comes."""
    assert put(crm, "d.note").fresh
    assert put(crm, "job.run", source_id="2").fresh


# --- versions of one stream ----------------------------------------------------------------------


def test_a_newer_full_state_takes_the_place_of_older_ones(crm: Connection) -> None:
    """F87, §13: what has not gone anywhere is discarded as superseded, and says by which row."""
    mapped(crm)
    old = [put(crm, "a.update", version=v).operation_id for v in range(1, 5)]
    newest = put(crm, "a.update", version=5)
    found = {row.pk: row for row in Operation.objects.all()}
    assert [found[one].state for one in old] == ["discarded"] * 4
    assert all(found[one].reason_code == "superseded" for one in old)
    assert str(newest.operation_id) in found[old[3]].reason_text
    assert found[newest.operation_id].state == "pending"


@pytest.mark.parametrize("state", ["running", "sent", "uncertain", "review"])
def test_what_is_under_way_is_not_superseded(crm: Connection, state: str) -> None:
    """F91, §13: a claimed or doubtful row stays; the newer one waits behind it."""
    mapped(crm)
    first = put(crm, "a.update", version=1)
    _bring(first.operation_id, state)
    put(crm, "a.update", version=2)
    assert Operation.objects.get(pk=first.operation_id).state == state


def test_a_repeat_in_doubt_is_not_superseded(crm: Connection) -> None:
    """§13: anything of unknown fate is never coalesced."""
    mapped(crm)
    first = put(crm, "a.update", version=1)
    Operation.objects.filter(pk=first.operation_id).update(
        state="retry", maybe_executed=True, stream_busy=True
    )
    put(crm, "a.update", version=2)
    assert Operation.objects.get(pk=first.operation_id).state == "retry"


def test_commands_other_actions_and_other_variants_are_not_superseded(crm: Connection) -> None:
    """§13: only full states of one stream, action and variant."""
    mapped(crm)
    mapped(crm, "b")
    put(crm, "a.note", version=1)
    put(crm, "a.note", version=2)
    put(crm, "b.update", version=1)
    put(crm, "b.delete", version=2)
    put(crm, "a.update", version=1, variant="x")
    put(crm, "a.update", version=2, variant="y")
    assert rows() == {"pending": 6}


def test_an_older_version_does_not_supersede_a_newer(crm: Connection) -> None:
    """F118: an older one that arrives late, while the newer has not been sent, waits its turn."""
    mapped(crm)
    newer = put(crm, "a.update", version=2)
    put(crm, "a.update", version=1)
    assert Operation.objects.get(pk=newer.operation_id).state == "pending"
    assert rows() == {"pending": 2}


@pytest.mark.parametrize("state", ["confirmed", "failed", "discarded"])
def test_stale_on_arrival(crm: Connection, state: str) -> None:
    """F118, row 1: a full state below one that was sent is discarded at once, with a reason."""
    mapped(crm)
    newer = put(crm, "a.update", version=5)
    sent(newer.operation_id, state, reason_text="for the test")
    OrmQ.objects.all().delete()
    late = put(crm, "a.update", version=4)
    assert late.state is State.DISCARDED
    row = Operation.objects.get(pk=late.operation_id)
    assert (row.state, row.reason_code) == ("discarded", "stale")
    assert "newer version" in row.reason_text
    assert OrmQ.objects.count() == 0
    assert put(crm, "a.update", version=4) == Submitted(row.pk, False, State.DISCARDED)


def test_a_command_is_never_stale(crm: Connection) -> None:
    """§12: what carries no full state is not overtaken."""
    newer = put(crm, "a.note", version=5)
    sent(newer.operation_id, remote_version="")
    assert put(crm, "a.note", version=4).state is State.PENDING


# --- replacement ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [("a.update", "a.create"), ("a.create", "a.update")])
def test_an_operation_that_takes_anothers_place(crm: Connection, old: str, new: str) -> None:
    """F128, §13: same version and state, its own key, and on record whose place it took."""
    if old == "a.update":
        mapped(crm)
    action = TestRemoteConnector.actions[new]
    assert isinstance(action, Write)
    first = put(crm, old, version=3, correlation_id="c1")
    with transaction.atomic():
        Operation.objects.filter(pk=first.operation_id).update(state="discarded")
        made = outbox.replace(first.operation_id, new, action, database_now())
    assert made is not None
    was, row = Operation.objects.get(pk=first.operation_id), Operation.objects.get(pk=made)
    assert (row.action, row.version, row.payload, row.fingerprint) == (
        new, 3, was.payload, was.fingerprint,
    )  # fmt: skip
    assert (row.supersedes_id, row.correlation_id, row.generation) == (was.pk, "c1", 1)
    assert row.stream == was.stream
    assert row.operation_key != was.operation_key
    assert row.remote_key != was.remote_key
    assert row.yields_ref is (new == "a.create")
    with transaction.atomic():
        again = outbox.replace(was.pk, new, action, database_now())
    assert again is not None
    assert Operation.objects.get(pk=again).generation == 2


# --- a race at the door --------------------------------------------------------------------------


def test_an_update_that_races_with_the_end_of_its_create(crm: Connection) -> None:
    """F91, F128: whatever the moment, an update finds the create or its mapping, never neither."""
    creates = [put(crm, source_id=str(n)).operation_id for n in range(30)]
    errors: list[BaseException] = []

    def confirm() -> None:
        try:
            for row in Operation.objects.filter(pk__in=creates).order_by("pk"):
                with transaction.atomic():
                    mapped(crm, source_id=row.source_id, ref=f"r{row.pk}")
                    sent(row.pk)
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)
        finally:
            database.close()

    other = threading.Thread(target=confirm)
    other.start()
    try:
        for number in range(30):
            put(crm, "a.update", source_id=str(number), version=2)
    finally:
        other.join(60)
    assert errors == []
    assert Operation.objects.filter(action="a.update", state="pending").count() == 30


def test_what_a_retired_connection_is_given_is_refused(crm: Connection) -> None:
    """F7: nothing is taken that could never be sent."""
    crm.retired_at = database_now()
    with pytest.raises(BadPayload, match="connection: crm is retired"):
        put(crm)
