"""The sweep: lapsed leases, waits that are over, doubts left behind (protocol §11, §12, §17)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection as database

from hub.models import Attempt, Connection, Evidence, Gate, Installation, Operation, ReviewCase
from hub.sql import database_now
from hub.sweep import Sweeper
from tests.harness.world import small_tuning
from tests.hub import rows

pytestmark = pytest.mark.django_db
NUMBERS = {"*": {"max_send": 1.5, "max_exec": 0.4, "index_lag": 0.2}}


@pytest.fixture(autouse=True)
def _integration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows.install(monkeypatch)
    Installation.objects.get_or_create(pk=1)


@pytest.fixture
def crm() -> Connection:
    return rows.connection(numbers=NUMBERS)


def _sweep(*, now: Callable[[], datetime] = database_now, **changes: float) -> int:
    return Sweeper(small_tuning(**changes)).sweep({}, now)


def _after(row: Operation) -> Operation:
    return Operation.objects.get(pk=row.pk)


def _case(row: Operation) -> ReviewCase | None:
    return ReviewCase.objects.filter(subject="operation", subject_id=row.pk, closed_at=None).first()


# --- lapsed leases --------------------------------------------------------------------------------


def test_a_live_lease_is_left_alone(crm: Connection) -> None:
    for n, state in enumerate(("running", "sent", "uncertain", "accepted")):
        action = "job.run" if state == "accepted" else "bp.update"
        rows.operation(crm, state, action=action, source_id=str(n), lease_until=rows.ago(-30))
    assert _sweep() == 0


def test_lost_before_the_marker_it_waits_again(crm: Connection) -> None:
    """F13: nothing was sent; the attempt is closed, the token raised, the move on record."""
    row = rows.operation(crm, "running", lease_until=rows.ago(1))
    assert _sweep() == 1
    after = _after(row)
    assert (after.state, after.lapses, after.stream_busy, after.maybe_executed) == (
        "pending", 1, False, False,
    )  # fmt: skip
    assert after.lease_token == row.lease_token + 1
    attempt = Attempt.objects.get(operation=row)
    assert attempt.settled_at is not None
    assert (attempt.left, attempt.marked_at) == ("", None)
    assert Evidence.objects.get(operation=row).kind == "sweep"


def test_lost_while_it_prepared_a_repeat_it_stays_in_doubt(crm: Connection) -> None:
    """F116, W26: back to retry, not to pending, and it holds its stream."""
    row = rows.operation(crm, "running", maybe_executed=True, lease_until=rows.ago(1))
    _sweep()
    after = _after(row)
    assert (after.state, after.maybe_executed, after.stream_busy) == ("retry", True, True)


@pytest.mark.parametrize("doubt", [False, True])
def test_the_third_loss_in_a_row_is_its_own_fault(crm: Connection, doubt: bool) -> None:
    """F14: to review, not into a loop."""
    row = rows.operation(crm, "running", lapses=2, maybe_executed=doubt, lease_until=rows.ago(1))
    _sweep()
    after = _after(row)
    assert (after.state, after.reason_code, after.maybe_executed) == ("review", "poison", doubt)
    assert _case(row) is not None


@pytest.mark.parametrize(
    ("action", "state"),
    [
        ("a.create", "retry"),
        ("al.create", "uncertain"),
        ("b.create", "uncertain"),
        ("bp.update", "uncertain"),
        ("c.create", "uncertain"),
        ("d.create", "review"),
        ("job.run", "uncertain"),
    ],
)
def test_lost_after_the_marker_it_is_in_doubt(crm: Connection, action: str, state: str) -> None:
    """F31, W2: never plainly claimable; its stream stays held."""
    row = rows.operation(crm, "sent", action=action, lease_until=rows.ago(1))
    _sweep()
    after = _after(row)
    assert (after.state, after.maybe_executed, after.stream_busy) == (state, True, True)
    assert (after.repeat_until is not None) == (action == "a.create")
    attempt = Attempt.objects.get(operation=row)
    assert (attempt.left, attempt.settled_at is not None) == ("maybe", True)
    assert (_case(row) is not None) == (state == "review")


def test_a_copy_may_leave_until_the_margin_is_over(crm: Connection) -> None:
    """Protocol §9.1: `t_last` = marker + margin + max_send, and the hold counts from it."""
    sent = rows.ago(0.5)
    row = rows.operation(crm, "sent", sent_at=sent, lease_until=rows.ago(0.1))
    _sweep(margin=3.0)
    after = _after(row)
    assert after.last_byte_at is not None
    assert (after.last_byte_at - sent).total_seconds() == pytest.approx(4.5, abs=0.3)
    assert after.hold_until is not None
    assert (after.hold_until - after.last_byte_at).total_seconds() == pytest.approx(0.4, abs=0.1)


def test_a_dead_key_is_not_repeated(crm: Connection) -> None:
    """F52, W27: the lease is lost when the key may have been forgotten."""
    row = rows.operation(
        crm, "sent", action="a.create", lease_until=rows.ago(1), first_sent_at=rows.ago(3500)
    )
    _sweep()
    after = _after(row)
    assert (after.state, after.maybe_executed) == ("review", True)
    case = _case(row)
    assert case is not None
    assert case.assumption == "A2"


@pytest.mark.parametrize(("state", "action"), [("uncertain", "c.create"), ("accepted", "job.run")])
def test_a_look_that_is_lost_is_taken_again(crm: Connection, state: str, action: str) -> None:
    """Row 13, up to the poison limit."""
    row = rows.operation(crm, state, action=action, lease_until=rows.ago(1))
    for lapses in (1, 2):
        _sweep()
        after = _after(row)
        assert (after.state, after.lapses, after.lease_until) == (state, lapses, None)
        Operation.objects.filter(pk=row.pk).update(lease_until=rows.ago(1))
    _sweep()
    assert (_after(row).state, _after(row).reason_code) == ("review", "poison")
    assert _after(row).maybe_executed


def test_a_thousand_leases_of_the_dead(crm: Connection) -> None:
    """F22, W25: all lapse in one sweep of whoever is alive; none needs a hand but by its class."""
    for n in range(1005):
        Operation.objects.create(
            **rows.values(crm, "running" if n % 2 else "sent", source_id=str(n))
            | {"lease_until": rows.ago(1)}
        )
    assert _sweep() == 1005
    assert set(Operation.objects.values_list("state", flat=True)) == {"pending", "uncertain"}
    assert _sweep() == 0


def test_without_its_code_a_lapsed_operation_needs_a_person(crm: Connection) -> None:
    """F117: the action is gone after an upgrade; nothing that may have left is forgotten."""
    sent = rows.operation(crm, "sent", source_id="1", lease_until=rows.ago(1))
    ran = rows.operation(crm, "running", source_id="2", lease_until=rows.ago(1))
    Operation.objects.update(action="bp.gone")
    _sweep()
    assert (_after(sent).state, _after(sent).maybe_executed) == ("review", True)
    assert (_after(ran).state, _after(ran).maybe_executed) == ("pending", False)


def test_a_job_whose_code_is_gone_is_still_in_doubt(crm: Connection) -> None:
    """The remote has our job: sending it anew would start a second one (§9.7)."""
    row = rows.operation(crm, "accepted", action="job.run", lease_until=rows.ago(1))
    Operation.objects.update(action="job.gone")
    _sweep()
    assert (_after(row).state, _after(row).maybe_executed) == ("review", True)


# --- waits that are over --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "action", "code"),
    [
        ("uncertain", "c.create", "undecided"),
        ("accepted", "job.run", "exhausted"),
        ("retry", "bp.update", "exhausted"),
    ],
)
def test_what_has_waited_too_long_goes_to_a_person(
    crm: Connection, state: str, action: str, code: str
) -> None:
    """Rows 16 and 19; a job that is slow stays in doubt, so that no second one is started."""
    since = rows.ago(90_000)
    row = rows.operation(crm, state, action=action, state_since=since, retry_since=since)
    assert _sweep() == 1
    after = _after(row)
    assert (after.state, after.reason_code) == ("review", code)
    assert after.maybe_executed == (state != "retry")
    assert _case(row) is not None


def test_a_pause_of_three_days_costs_nobody_its_age(crm: Connection) -> None:
    """F127: paused or just opened, nothing goes to review by age; a day later it does."""
    for n in range(20):
        state, action = (("retry", "bp.update"), ("uncertain", "c.create"))[n % 2]
        rows.operation(
            crm, state, action=action, source_id=str(n), state_since=rows.ago(3 * 86_400),
            retry_since=rows.ago(3 * 86_400) if state == "retry" else None,
        )  # fmt: skip
    gate = Gate.objects.filter(pk=crm.pk)
    gate.update(paused_at=rows.ago(3 * 86_400), pause_reason="x")
    assert _sweep() == 0
    gate.update(paused_until=rows.ago(60))
    assert _sweep() == 0, "ages count from the end of the pause"
    assert Gate.objects.get(pk=crm.pk).opened_at is not None
    gate.update(opened_at=rows.ago(90_000))
    assert _sweep() == 20


def test_an_open_breaker_stops_the_clock_too(crm: Connection) -> None:
    rows.operation(crm, "retry", state_since=rows.ago(90_000), retry_since=rows.ago(90_000))
    Gate.objects.filter(pk=crm.pk).update(breaker="open", breaker_until=rows.ago(-60))
    assert _sweep() == 0


@pytest.mark.parametrize(("action", "state"), [("al.create", "uncertain"), ("a.create", "review")])
def test_a_repeat_whose_key_died_while_it_waited(crm: Connection, action: str, state: str) -> None:
    """F52, F127, rows 23 and 19: looked up where it can be, else a person; a marker under way
    misses.
    """
    row = rows.operation(
        crm, "retry", action=action, maybe_executed=True, repeat_until=rows.ago(1),
        first_sent_at=rows.ago(4000),
    )  # fmt: skip
    assert _sweep() == 1
    after = _after(row)
    assert (after.state, after.maybe_executed) == (state, True)
    assert after.lease_token == row.lease_token + 1


# --- doubt that outlives its operation ------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "state"),
    [
        ("a.create", "review"),
        ("al.create", "uncertain"),
        ("b.create", "uncertain"),
        ("c.create", "uncertain"),
        ("d.create", "review"),
    ],
)
def test_the_next_create_inherits_the_doubt(crm: Connection, action: str, state: str) -> None:
    """F121, W31: looked for by the shared reference; without a look a person decides."""
    rows.operation(crm, "discarded", action=action, version=1, maybe_executed=True)
    row = rows.operation(crm, action=action, version=2)
    assert _sweep() == 1
    after = _after(row)
    assert (after.state, after.maybe_executed, after.reason_code) == (
        state, True, "inherited_doubt",
    )  # fmt: skip
    assert after.first_sent_at is None
    assert _sweep() == 0


def test_a_decision_to_send_again_lifts_the_inherited_doubt(crm: Connection) -> None:
    rows.operation(crm, "discarded", action="c.create", version=1, maybe_executed=True)
    rows.operation(crm, action="c.create", version=2, doubt_lifted=True)
    assert _sweep() == 0


def test_doubt_waits_for_its_turn(crm: Connection) -> None:
    """Row 22: first in line and no other holds the stream."""
    rows.operation(crm, "discarded", action="c.create", version=1, maybe_executed=True)
    busy = rows.operation(crm, "uncertain", action="c.create", version=2, next_at=rows.ago(-60))
    row = rows.operation(crm, action="c.create", version=3)
    assert _sweep() == 0
    Operation.objects.filter(pk=busy.pk).update(
        state="failed", stream_busy=False, maybe_executed=False
    )
    assert _sweep() == 1
    assert _after(row).state == "uncertain"


# --- after a restore ------------------------------------------------------------------------------


def test_after_a_restore_one_operation_per_stream_is_looked_at(crm: Connection) -> None:
    """F81: markers may have been forgotten; all at once would break C2."""
    rows.mapping(crm)
    queued = [rows.operation(crm, version=n) for n in (1, 2, 3)]
    other = rows.operation(crm, action="c.create", source_id="2")
    d = rows.operation(crm, action="d.create", source_id="3")
    Installation.objects.update(epoch=2, restored_at=rows.ago(5))
    _sweep()
    assert [_after(row).state for row in queued] == ["uncertain", "pending", "pending"]
    assert _after(other).state == "uncertain"
    assert _after(d).state == "review"
    first = _after(queued[0])
    assert (first.epoch, first.restored, first.maybe_executed) == (2, True, True)
    assert _after(queued[1]).epoch == 1
    assert _sweep() == 0


def test_nothing_is_of_an_older_epoch_without_a_restore(crm: Connection) -> None:
    rows.operation(crm)
    assert _sweep() == 0


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3600.0, -3600.0, 0.05])
def test_a_step_of_the_databases_clock_is_noticed(
    crm: Connection, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F85, A4: compared with the monotonic clock; below the margin it is none."""
    clock = [0.0]
    jump = [0.0]
    sweeper = Sweeper(small_tuning(), clock=lambda: clock[0])
    start = database_now()

    def now() -> datetime:
        return start + timedelta(seconds=clock[0] + jump[0])

    if database.vendor == "postgresql":
        monkeypatch.setattr("hub.sweep.database_now", now)
    sweeper.sweep({}, now)
    clock[0], jump[0] = 5.0, step
    sweeper.sweep({}, now)
    noted = Installation.objects.get()
    assert (noted.clock_jumped_at is not None) == (abs(step) > 1)
    assert ("A4" in noted.clock_note) == (abs(step) > 1)
