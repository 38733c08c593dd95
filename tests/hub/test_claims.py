"""Which operations are taken, in which order, and how many (protocol §5, §11, §12)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import connection as database
from django.db import transaction

from hub import claims
from hub.claims import Claim, Claimed, LaneShare
from hub.models import Attempt, Bucket, Connection, Dependency, Operation
from hub.remote import RateLimit
from hub.sql import database_now
from hub.states import Purpose, State
from tests.hub import rows

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _integration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows.install(monkeypatch)


@pytest.fixture
def crm() -> Connection:
    return rows.connection()


def _claim(
    *shares: LaneShare, lapses: int = 0, token_base: int = 0, epoch: int = 1
) -> list[Claimed]:
    with transaction.atomic():
        return claims.claim(
            Claim("w", epoch, token_base, lapses), list(shares), 7.0, database_now()
        )


def _share(where: Connection, sends: int = 200, looks: int = 0, **more: Any) -> LaneShare:
    return LaneShare(where.pk, sends, looks, lease=60.0, **more)


def _taken(where: Connection, **more: Any) -> list[int]:
    return sorted(one.id for one in _claim(_share(where), **more))


# --- what is due ----------------------------------------------------------------------------------


def test_a_claim_takes_lease_token_and_attempt(crm: Connection) -> None:
    rows.mapping(crm, remote_version="3")
    row = rows.operation(crm)
    [one] = _claim(_share(crm))
    row.refresh_from_db()
    assert (row.state, row.lease_token, row.lease_owner, row.attempts) == ("running", 1, "w", 1)
    assert row.stream_busy
    assert row.lease_until is not None
    assert rows.ago(-50) < row.lease_until < rows.ago(-70)
    attempt = Attempt.objects.get(operation=row)
    assert (attempt.token, attempt.purpose, attempt.settled_at) == (1, "send", None)
    assert (one.token, one.state, one.purpose) == (1, State.RUNNING, Purpose.SEND)
    assert (one.mapped_ref, one.mapped_remote_version, one.claimed_clock) == ("r1", "3", 7.0)


@pytest.mark.parametrize(
    ("state", "columns"),
    [
        ("pending", {"next_at": 60}),
        ("pending", {"parked": True}),
        ("pending", {"epoch": 2}),
        ("pending", {"lapses": 1}),
        ("pending", {"maybe_executed": True}),
        ("retry", {"maybe_executed": True, "repeat_until": -1}),
        *((state.value, {}) for state in State if state.value not in ("pending", "retry")),
    ],
    ids=str,
)
def test_what_is_not_claimed(crm: Connection, state: str, columns: dict[str, Any]) -> None:
    """Not due, put aside, of another epoch, kept apart, in doubt without leave to repeat, or not
    waiting.
    """
    given = {
        name: rows.ago(-value) if name in ("next_at", "repeat_until") else value
        for name, value in columns.items()
    }
    rows.operation(crm, state, **given)
    assert not _taken(crm)


@pytest.mark.parametrize(
    "columns",
    [{}, {"maybe_executed": True}, {"maybe_executed": True, "repeat_until": 60}],
    ids=str,
)
def test_a_retry_whose_repeat_is_harmless_is_claimed(
    crm: Connection, columns: dict[str, Any]
) -> None:
    """In doubt it may go again while its key lives, or where no key has to (b, b′)."""
    given = {k: rows.ago(-v) if k == "repeat_until" else v for k, v in columns.items()}
    row = rows.operation(crm, "retry", **given)
    assert _taken(crm) == [row.pk]


def test_the_token_base_of_a_restore_is_passed(crm: Connection) -> None:
    rows.operation(crm)
    [one] = _claim(_share(crm), token_base=5000)
    assert one.token == 5001


def test_looks_are_taken_by_their_own_share(crm: Connection) -> None:
    """Row 13: due, and nobody is looking."""
    uncertain = rows.operation(crm, "uncertain", source_id="1")
    accepted = rows.operation(crm, "accepted", action="job.run", source_id="2")
    rows.operation(crm, "uncertain", source_id="3", next_at=rows.ago(-60))
    rows.operation(crm, "uncertain", source_id="4", lease_until=rows.ago(-60))
    rows.operation(crm, source_id="5")
    taken = {one.id: one for one in _claim(_share(crm, sends=0, looks=10))}
    assert set(taken) == {uncertain.pk, accepted.pk}
    assert taken[uncertain.pk].purpose is Purpose.CONSULT
    assert taken[accepted.pk].purpose is Purpose.POLL
    uncertain.refresh_from_db()
    assert (uncertain.state, uncertain.attempts) == ("uncertain", 0), "looks do not count"


def test_a_child_waits_for_all_its_parents(crm: Connection) -> None:
    """F95: claimable when every parent is confirmed, whatever else they came to."""
    child = rows.operation(crm, action="a.note", source_id="child")
    parents = [rows.operation(crm, "confirmed", source_id="p1")]
    for number, state in enumerate(("failed", "review", "discarded", "accepted", "uncertain")):
        parents.append(rows.operation(crm, state, action="job.run", source_id=f"p{number + 2}"))
    for parent in parents:
        Dependency.objects.create(child=child, parent=parent)
    for parent in parents[1:]:
        assert not _taken(crm)
        Operation.objects.filter(pk=parent.pk).update(
            state="confirmed", remote_ref="r", confirmed_at=rows.ago(0), maybe_executed=False,
            lease_until=None, stream_busy=False,
        )  # fmt: skip
    assert _taken(crm) == [child.pk]


def test_a_create_waits_where_an_earlier_one_may_have_happened(crm: Connection) -> None:
    """F121: no blind create behind doubt; a decision lifts it, and an update is no create."""
    rows.operation(crm, "discarded", action="c.create", version=1, maybe_executed=True)
    created = rows.operation(crm, action="c.create", version=2)
    assert not _taken(crm)
    Operation.objects.filter(pk=created.pk).update(doubt_lifted=True)
    assert _taken(crm) == [created.pk]


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "doubt", "passes_full", "passes_command"),
    [
        ("confirmed", False, True, True),
        ("discarded", False, True, True),
        ("discarded", True, True, True),
        ("failed", False, True, False),
        ("review", False, True, False),
        ("review", True, False, False),
        ("pending", False, False, False),
        ("retry", False, False, False),
        ("retry", True, False, False),
        ("running", False, False, False),
        ("sent", False, False, False),
        ("uncertain", True, False, False),
        ("accepted", False, False, False),
    ],
)
def test_who_may_pass_a_lower_version(
    crm: Connection, state: str, doubt: bool, passes_full: bool, passes_command: bool
) -> None:
    """F88, F90, §12: what is open blocks; what a person has yet to settle blocks what is no full
    state.
    """
    for action, source_id, passes in (
        ("bp.update", "1", passes_full),
        ("a.note", "2", passes_command),
    ):
        rows.operation(
            crm, state, action=action, source_id=source_id, version=1, maybe_executed=doubt,
            next_at=rows.ago(-60),
        )  # fmt: skip
        second = rows.operation(crm, action=action, source_id=source_id, version=2)
        assert (second.pk in _taken(crm)) == passes
        second.refresh_from_db()
        assert second.parked == (not passes)


def test_another_stream_is_not_in_the_way(crm: Connection) -> None:
    rows.operation(crm, "uncertain", source_id="1", version=1)
    other = rows.operation(crm, source_id="2", version=2)
    elsewhere = rows.operation(rows.connection(), source_id="1", version=2)
    assert _taken(crm) == [other.pk]
    assert _taken(elsewhere.connection) == [elsewhere.pk]


def test_two_due_operations_of_one_stream_in_a_claim_of_200(crm: Connection) -> None:
    """F119: one of them is taken, and the other rows are not disturbed."""
    twins = [rows.operation(crm, source_id="twin", version=1) for _ in range(2)]
    others = [rows.operation(crm, source_id=f"s{n}") for n in range(199)]
    taken = _taken(crm)
    assert len(taken) == len(set(taken)) == 200
    assert set(taken) == {twins[0].pk, *(one.pk for one in others)}
    assert set(Operation.objects.filter(state="pending").values_list("pk", "parked")) == {
        (twins[1].pk, True)
    }


def test_a_busy_higher_version_blocks_a_lower_that_came_late(crm: Connection) -> None:
    rows.operation(crm, "running", version=2)
    late = rows.operation(crm, version=1)
    assert not _taken(crm)
    late.refresh_from_db()
    assert late.parked


def test_a_hold_keeps_the_next_back_until_it_ends(crm: Connection) -> None:
    """F89: whatever state the held operation is in by now; the row falls due when the hold ends."""
    held = rows.operation(crm, "confirmed", version=1, hold_until=rows.ago(-30))
    waiting = rows.operation(crm, version=2)
    assert not _taken(crm)
    waiting.refresh_from_db()
    held.refresh_from_db()
    assert waiting.next_at == held.hold_until
    assert not waiting.parked
    Operation.objects.filter(pk=held.pk).update(hold_until=rows.ago(1))
    Operation.objects.filter(pk=waiting.pk).update(next_at=rows.ago(1))
    assert _taken(crm) == [waiting.pk]


def test_what_lost_its_worker_is_taken_only_among_its_like(crm: Connection) -> None:
    """Protocol §11: the innocent must not pay for the one that kills."""
    by_lapses = {n: rows.operation(crm, source_id=f"s{n}", lapses=n) for n in (0, 1, 2)}
    for lapses, row in by_lapses.items():
        assert _taken(crm, lapses=lapses) == [row.pk]


# --- how many -------------------------------------------------------------------------------------


def test_each_lane_gets_its_share(crm: Connection) -> None:
    other = rows.connection()
    for where in (crm, other):
        for n in range(5):
            rows.operation(where, source_id=f"s{n}", next_at=rows.ago(10 - n))
    taken = _claim(_share(crm, 2), _share(other, 3))
    assert [one.connection_id for one in taken].count(crm.pk) == 2
    assert [one.connection_id for one in taken].count(other.pk) == 3
    first = set(Operation.objects.filter(source_id__in=["s0", "s1"]).values_list("pk", flat=True))
    assert first <= {one.id for one in taken}, "the longest due go first"


def test_a_claim_takes_no_more_than_there_are_tokens(crm: Connection) -> None:
    """I18: one token each, taken in the same transaction."""
    limit = RateLimit("host:443", "default", rate=0.001, burst=3)
    for n in range(9):
        rows.operation(crm, source_id=f"s{n}")
    share = _share(crm, limit=limit)
    assert len(_claim(share)) == 3
    assert share.starved
    assert Bucket.objects.get().level == pytest.approx(0, abs=0.01)
    assert not _claim(_share(crm, limit=limit))


def test_lanes_to_one_host_share_its_tokens(crm: Connection) -> None:
    """I18, protocol §3: two connections to one portal share a bucket, also with numbers of their
    own.
    """
    other = rows.connection()
    for where in (crm, other):
        for n in range(9):
            rows.operation(where, source_id=f"s{n}")
    taken = _claim(
        _share(crm, limit=RateLimit("host:443", "default", rate=0.001, burst=3)),
        _share(other, limit=RateLimit("host:443", "default", rate=0.002, burst=3)),
    )
    assert len(taken) == 3
    assert Bucket.objects.get().level >= -0.01


def test_with_few_tokens_looks_and_sends_both_get_some(crm: Connection) -> None:
    """Protocol §9.6: neither side starves."""
    for n in range(30):
        rows.operation(crm, source_id=f"s{n}")
        rows.operation(crm, "uncertain", source_id=f"u{n}")
    looked = sent = 0
    for turn in range(10):
        limit = RateLimit(f"host-{turn}:443", "default", rate=0.001, burst=1)
        for one in _claim(_share(crm, 5, 5, limit=limit, turn=turn)):
            looked += one.purpose is Purpose.CONSULT
            sent += one.purpose is Purpose.SEND
    assert looked == 2
    assert sent == 8


# --- long streams ---------------------------------------------------------------------------------


def _multiply(row: Operation, count: int) -> None:
    """The same operation in versions 1 to `count`."""
    names = [str(f.column) for f in Operation._meta.concrete_fields if f.column != "id"]
    own = {"version": "n.i", "operation_key": "'k' || n.i"}
    columns = ", ".join(f'"{name}"' for name in names)
    chosen = ", ".join(own.get(name, f'o."{name}"') for name in names)
    with database.cursor() as cursor:
        cursor.execute(
            f"""INSERT INTO hub_operation ({columns})
            WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < %s)
            SELECT {chosen} FROM hub_operation o CROSS JOIN n WHERE o.id = %s""",
            [count, row.pk],
        )


def test_a_long_stream_is_put_aside_once(crm: Connection) -> None:
    """Behind a stuck head stands a long queue; a claim looks past it to what comes after."""
    rows.operation(crm, "uncertain", version=0, next_at=rows.ago(-60))
    _multiply(rows.operation(crm, version=1, next_at=rows.ago(99)), 300)
    behind = rows.operation(crm, source_id="after", next_at=rows.ago(1))
    assert [one.id for one in _claim(_share(crm, 20))] == [behind.pk]
    assert Operation.objects.filter(parked=True).count() == 300


@pytest.mark.parametrize("busy", [True, False], ids=["behind a busy head", "all pending"])
def test_a_claim_stays_fast_in_front_of_a_long_stream(crm: Connection, busy: bool) -> None:
    """20,000 parked versions of one stream cost a claim next to nothing (the bench takes
    200,000).
    """
    count = 20_000
    if busy:
        rows.operation(crm, "uncertain", version=0, next_at=rows.ago(-60))
    first = rows.operation(crm, version=1, parked=True, next_at=rows.ago(99))
    _multiply(first, count)
    if not busy:
        Operation.objects.filter(pk=first.pk).update(parked=False)
    for n in range(40):
        rows.operation(crm, source_id=f"s{n}")
    with database.cursor() as cursor:
        cursor.execute("ANALYZE")
    took = []
    for _ in range(4):
        began = time.perf_counter()
        assert len(_claim(_share(crm, 10))) == 10
        took.append(time.perf_counter() - began)
    assert min(took) < 0.25, took
