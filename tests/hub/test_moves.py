"""The guarded move, the marker, and what the database itself refuses (protocol §3, §5)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, transaction

from hub import moves
from hub.contract import Done, Kind
from hub.models import Attempt, Connection, Gate, Mapping, Operation, ReviewCase
from hub.moves import MappingTaken, Mark, Settlement, Tried
from hub.policy import Verdict
from hub.states import Actor, Outcome, Purpose, State, allowed
from hub.sweep import subject_of
from tests.hub import rows

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _integration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows.install(monkeypatch)


@pytest.fixture
def crm() -> Connection:
    return rows.connection()


# --- constraints: plain statements that break one are refused -------------------------------------


def _refused(what: Any, name: str) -> None:
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        what()
    said = str(caught.value).lower()
    assert name in said or "unique" in said, said


def test_c1_one_row_per_key_and_generation(crm: Connection) -> None:
    """C1: the same key and generation twice is refused; another generation is not."""
    given = rows.values(crm)
    Operation.objects.create(**given)
    _refused(lambda: Operation.objects.create(**given), "c1_operation_key")
    Operation.objects.create(**given | {"generation": 2})


def test_c2_one_busy_operation_per_stream(crm: Connection) -> None:
    """C2: a second busy row of a stream is refused; of another stream it is not."""
    rows.operation(crm, "uncertain", version=1)
    other = rows.operation(crm, version=2)
    _refused(
        lambda: Operation.objects.filter(pk=other.pk).update(stream_busy=True),
        "c2_one_busy_per_stream",
    )
    rows.operation(crm, "uncertain", source_id="2")


@pytest.mark.parametrize(
    "state", ["pending", "retry", "confirmed", "failed", "review", "discarded"]
)
def test_c3_no_lease_where_nobody_works(crm: Connection, state: str) -> None:
    """C3: a lease only in running, sent, uncertain, accepted."""
    row = rows.operation(crm, state)
    _refused(
        lambda: Operation.objects.filter(pk=row.pk).update(lease_until=rows.ago(-9)),
        "c3_lease_only_where_allowed",
    )


@pytest.mark.parametrize("state", ["running", "sent"])
def test_c3_always_a_lease_in_flight(crm: Connection, state: str) -> None:
    """C3: running and sent always have one."""
    row = rows.operation(crm, state)
    _refused(
        lambda: Operation.objects.filter(pk=row.pk).update(lease_until=None),
        "c3_lease_always_in_flight",
    )


@pytest.mark.parametrize("state", ["running", "sent", "uncertain", "accepted"])
def test_c4_work_holds_its_stream(crm: Connection, state: str) -> None:
    """C4: whoever works on an operation, or waits for its fate, holds the stream."""
    row = rows.operation(crm, state, maybe_executed=False)
    _refused(
        lambda: Operation.objects.filter(pk=row.pk).update(stream_busy=False), "c4_busy_in_flight"
    )


@pytest.mark.parametrize("state", ["pending", "retry", "review", "uncertain"])
def test_c4_doubt_holds_its_stream(crm: Connection, state: str) -> None:
    """C4: an unfinished operation in doubt holds the stream."""
    row = rows.operation(crm, state, maybe_executed=True)
    _refused(lambda: Operation.objects.filter(pk=row.pk).update(stream_busy=False), "c4_busy_in")


def test_a_failed_operation_is_never_in_doubt(crm: Connection) -> None:
    row = rows.operation(crm, "failed")
    _refused(
        lambda: Operation.objects.filter(pk=row.pk).update(maybe_executed=True),
        "failed_is_never_in_doubt",
    )


def test_c5_one_attempt_per_token(crm: Connection) -> None:
    """C5: a token opens one attempt."""
    row = rows.operation(crm, "running")
    again = {"operation": row, "purpose": "send", "worker": "x", "claimed_at": rows.ago(0)}
    _refused(lambda: Attempt.objects.create(token=row.lease_token, **again), "c5_attempt_token")
    Attempt.objects.create(token=row.lease_token + 1, **again)


def test_c6_an_entity_is_one_object(crm: Connection) -> None:
    """C6: unique both ways, per connection and type."""
    rows.mapping(crm)
    _refused(lambda: rows.mapping(crm, remote_ref="r9"), "c6_mapping_entity")
    _refused(lambda: rows.mapping(crm, source_id="2", remote_ref="r1"), "c6_mapping_remote")
    rows.mapping(crm, object_type="c", remote_ref="r1")
    rows.mapping(rows.connection(), remote_ref="r1")


def test_c8_confirmed_is_complete(crm: Connection) -> None:
    """C8: confirmed has its moment, and its remote id where the action yields one."""
    row = rows.operation(crm, "confirmed", action="c.create")
    for change in ({"confirmed_at": None}, {"remote_ref": ""}, {"maybe_executed": True}):
        _refused(
            lambda change=change: Operation.objects.filter(pk=row.pk).update(**change),
            "c8_confirmed_is_complete",
        )
    plain = rows.operation(crm, "confirmed", action="d.note", source_id="2", remote_ref="")
    assert plain.pk


def test_c9_one_open_case_per_subject(crm: Connection) -> None:
    """C9: a second open case is refused; beside a closed one it is not."""
    row = rows.operation(crm, "review")
    given = {
        "tenant": crm.tenant,
        "connection": crm,
        "subject": "operation",
        "subject_id": row.pk,
        "reason_code": "x",
        "summary": "x",
        "opened_at": rows.ago(0),
    }
    _refused(lambda: ReviewCase.objects.create(**given), "c9_one_open_case")
    ReviewCase.objects.update(closed_at=rows.ago(0))
    ReviewCase.objects.create(**given)


@pytest.mark.parametrize("state", [s.value for s in State])
def test_c10_parked_only_while_waiting(crm: Connection, state: str) -> None:
    """C10: parked only in pending and retry."""
    row = rows.operation(crm, state)
    park = Operation.objects.filter(pk=row.pk)
    if state in ("pending", "retry"):
        assert park.update(parked=True) == 1
    else:
        _refused(lambda: park.update(parked=True), "c10_parked_only_when_waiting")


def test_a_pause_has_its_reason(crm: Connection) -> None:
    _refused(
        lambda: Gate.objects.filter(pk=crm.pk).update(paused_at=rows.ago(0)),
        "gate_pause_has_reason",
    )


# --- moves ----------------------------------------------------------------------------------------


def _move(row: Operation, state: State, **more: Any) -> Settlement:
    verdict: dict[str, Any] = {"code": "so", "text": "So be it.", "outcome": Outcome.NOTHING_LEFT}
    settlement: dict[str, Any] = {
        "tried": Tried(Purpose.SEND),
        "kind": Kind.UPDATE,
        "actor": Actor.WORKER,
    }
    for name, value in more.items():
        (verdict if name in Verdict.__dataclass_fields__ else settlement)[name] = value
    return Settlement(
        subject_of(row),
        Verdict(state, **verdict),
        **settlement,
    )


def _done(row: Operation, ref: str, **more: Any) -> Settlement:
    return _move(row, State.CONFIRMED, outcome=Outcome.DONE, done=Done(ref), **more)


def _settle(*planned: Settlement) -> moves.Settled:
    with transaction.atomic():
        return moves.settle(planned)


def test_only_moves_of_the_table_can_be_planned(crm: Connection) -> None:
    """I12: whatever is no row of §5 is refused before it reaches the database."""
    refused = 0
    for before in State:
        row = Operation(**rows.values(crm, before))
        for after in State:
            for actor in Actor:
                if before is after or allowed(before, after, actor):
                    continue
                with pytest.raises(ValueError, match="may not move"):
                    _move(row, after, actor=actor)
                refused += 1
    assert refused > 250


@pytest.mark.parametrize("wrong", ["token", "state"])
def test_a_move_that_is_no_longer_ours_changes_nothing(crm: Connection, wrong: str) -> None:
    """F18: no row is hit; the attempt is kept, as stale."""
    row = rows.operation(crm, "sent")
    planned = _move(row, State.RETRY)
    if wrong == "token":
        Operation.objects.filter(pk=row.pk).update(lease_token=row.lease_token + 1)
    else:
        Operation.objects.filter(pk=row.pk).update(
            state="uncertain", maybe_executed=True, lease_until=None
        )
    before = Operation.objects.values().get(pk=row.pk)
    assert _settle(planned) == moves.Settled(frozenset(), 0)
    assert Operation.objects.values().get(pk=row.pk) == before
    attempt = Attempt.objects.get(operation=row)
    assert attempt.stale
    assert attempt.settled_at is not None


def test_a_settle_repeated_touches_no_settled_attempt(crm: Connection) -> None:
    """F71: the repeated statement hits nothing, and the good attempt stays good."""
    rows.mapping(crm)
    row = rows.operation(crm, "sent")
    planned = _done(row, "r1")
    assert row.pk in _settle(planned).ids
    before = Attempt.objects.values().get(operation=row)
    assert not _settle(planned).ids
    assert Attempt.objects.values().get(operation=row) == before
    assert not before["stale"]


def test_a_sweeps_move_needs_the_lease_to_have_run_out(crm: Connection) -> None:
    row = rows.operation(crm, "running")
    planned = _move(row, State.PENDING, actor=Actor.SWEEP, lapsed=True, token_step=1)
    assert not _settle(planned).ids
    assert Attempt.objects.get(operation=row).settled_at is None, "a lease that lives is not ours"
    Operation.objects.filter(pk=row.pk).update(lease_until=rows.ago(1))
    assert row.pk in _settle(planned).ids
    row.refresh_from_db()
    assert (row.state, row.lease_token, row.lease_until) == ("pending", 2, None)


def test_a_taken_remote_id_costs_only_its_own_operation_the_batch(crm: Connection) -> None:
    """C6, F125: the batch holds nothing; alone, the others go through and that one does not."""
    rows.mapping(crm, "c", "other", remote_ref="r9")
    good = rows.operation(crm, "sent", action="c.create", source_id="1")
    bad = rows.operation(crm, "sent", action="c.create", source_id="2")
    planned = [_done(good, "r1", kind=Kind.CREATE), _done(bad, "r9", kind=Kind.CREATE)]
    with pytest.raises(IntegrityError):
        _settle(*planned)
    assert set(Operation.objects.values_list("state", flat=True)) == {"sent"}
    assert not Attempt.objects.filter(settled_at__isnull=False).exists()
    assert good.pk in _settle(planned[0]).ids
    with pytest.raises(IntegrityError):
        _settle(planned[1])


def test_an_entity_is_never_tied_to_a_second_object(crm: Connection) -> None:
    rows.mapping(crm, "c", "1", remote_ref="r1")
    row = rows.operation(crm, "sent", action="c.create")
    with pytest.raises(MappingTaken):
        _settle(_done(row, "r2", kind=Kind.CREATE))
    assert Mapping.objects.get().remote_ref == "r1"
    Mapping.objects.update(deleted_at=rows.ago(0))
    assert row.pk in _settle(_done(row, "r2", kind=Kind.CREATE)).ids
    assert Mapping.objects.get().remote_ref == "r2"


def test_a_value_the_database_refuses_holds_nothing_of_the_batch(crm: Connection) -> None:
    """A batch is a shared fate; the caller settles one by one."""
    good = rows.operation(crm, "sent", source_id="1")
    bad = rows.operation(crm, "sent", source_id="2")
    with pytest.raises(DatabaseError):
        _settle(_move(good, State.RETRY), _move(bad, State.RETRY, code=None))
    assert set(Operation.objects.values_list("state", flat=True)) == {"sent"}


def test_a_mapping_keeps_the_highest_version(crm: Connection) -> None:
    rows.mapping(crm, version=7)
    row = rows.operation(crm, "sent", version=3)
    _settle(_done(row, "r1"))
    found = Mapping.objects.get()
    assert (found.version, found.revision) == (7, 2)


def test_a_confirmed_delete_leaves_its_version_behind(crm: Connection) -> None:
    rows.mapping(crm, version=2)
    row = rows.operation(crm, "sent", action="bp.delete", version=5)
    _settle(_done(row, "r1", kind=Kind.DELETE))
    found = Mapping.objects.get()
    assert found.deleted_at is not None
    assert found.version == 5


def test_a_freed_stream_lets_its_first_parked_operation_go(crm: Connection) -> None:
    """Only the first, and only when the stream is free."""
    row = rows.operation(crm, "sent", version=1)
    rows.operation(crm, version=3, parked=True)
    rows.operation(crm, version=2, parked=True)
    held = _settle(_move(row, State.UNCERTAIN, doubt=True))
    assert held.unparked == 0
    assert Operation.objects.filter(parked=True).count() == 2
    row.refresh_from_db()
    freed = _settle(_done(row, "r1", tried=None))
    assert freed.unparked == 1
    assert list(Operation.objects.filter(parked=True).values_list("version", flat=True)) == [3]


def test_an_answer_for_now_costs_time_and_no_attempt(crm: Connection) -> None:
    """Protocol §11: T costs no attempt; N does."""
    for outcome, left in (
        (Outcome.REFUSED_FOR_NOW, 2),
        (Outcome.NOTHING_LEFT, 3),
    ):
        row = rows.operation(crm, "sent", source_id=str(left), attempts=3)
        _settle(_move(row, State.RETRY, outcome=outcome, costs_attempt=left == 3, delay=60.0))
        row.refresh_from_db()
        assert row.attempts == left
        assert row.next_at > rows.ago(-50)


def test_the_first_retry_is_what_ages_count_from(crm: Connection) -> None:
    row = rows.operation(crm, "sent", retry_since=rows.ago(100))
    _settle(_move(row, State.RETRY))
    row.refresh_from_db()
    assert row.state_since < rows.ago(90)


# --- the marker -----------------------------------------------------------------------------------


def _mark(row: Operation, *, token: int | None = None, need: float = 5.0) -> bool:
    with transaction.atomic():
        return row.pk in moves.mark([Mark(row.pk, token or row.lease_token, "d" * 64, need)])


def test_the_marker_is_set(crm: Connection) -> None:
    row = rows.operation(crm, "running")
    assert _mark(row)
    row.refresh_from_db()
    assert (row.state, row.request_digest) == ("sent", "d" * 64)
    assert row.sent_at == row.first_sent_at is not None


def test_a_repeat_keeps_the_moment_of_its_first_marker(crm: Connection) -> None:
    first = rows.ago(100)
    row = rows.operation(crm, "running", first_sent_at=first, maybe_executed=True)
    assert _mark(row)
    row.refresh_from_db()
    assert row.first_sent_at == first
    assert row.sent_at is not None
    assert row.sent_at > first


def test_no_marker_with_another_token(crm: Connection) -> None:
    """F15: whoever lost the lease marks nothing."""
    row = rows.operation(crm, "running", lease_token=4)
    assert not _mark(row, token=3)


@pytest.mark.parametrize("state", [s.value for s in State if s is not State.RUNNING])
def test_no_marker_from_another_state(crm: Connection, state: str) -> None:
    row = rows.operation(crm, state)
    assert not _mark(row)


def test_no_marker_when_the_lease_is_too_short(crm: Connection) -> None:
    """Row 4: what is left of the lease must cover the send and the margin."""
    row = rows.operation(crm, "running", lease_until=rows.ago(-20))
    assert not _mark(row, need=25.0)
    assert _mark(row, need=10.0)


def test_no_marker_while_paused(crm: Connection) -> None:
    """F111; a pause whose time is over is none."""
    row = rows.operation(crm, "running")
    gate = Gate.objects.filter(pk=crm.pk)
    gate.update(paused_at=rows.ago(9), pause_reason="x")
    assert not _mark(row)
    gate.update(paused_until=rows.ago(-9))
    assert not _mark(row)
    gate.update(paused_until=rows.ago(1))
    assert _mark(row)


@pytest.mark.parametrize("state", ["confirmed", "discarded", "failed"])
def test_no_marker_for_a_stale_version(crm: Connection, state: str) -> None:
    """F118: a higher version has been sent, however it ended; a command is never stale."""
    rows.operation(crm, state, version=9, first_sent_at=rows.ago(3))
    assert not _mark(rows.operation(crm, "running", version=8))
    rows.operation(crm, state, action="d.note", source_id="2", version=9, first_sent_at=rows.ago(3))
    assert _mark(rows.operation(crm, "running", action="d.note", source_id="2", version=8))


def test_a_higher_version_that_never_left_makes_nothing_stale(crm: Connection) -> None:
    rows.operation(crm, "failed", version=9, first_sent_at=None)
    assert _mark(rows.operation(crm, "running", version=8))


def test_no_marker_under_a_hold(crm: Connection) -> None:
    """F89: the hold of a closed row of the stream counts; one that is over does not."""
    held = rows.operation(crm, "confirmed", version=1, hold_until=rows.ago(-9))
    row = rows.operation(crm, "running", version=2)
    assert not _mark(row)
    Operation.objects.filter(pk=held.pk).update(hold_until=rows.ago(1))
    assert _mark(row)


def test_its_own_hold_does_not_keep_a_repeat_back(crm: Connection) -> None:
    assert _mark(rows.operation(crm, "running", hold_until=rows.ago(-9), maybe_executed=True))
