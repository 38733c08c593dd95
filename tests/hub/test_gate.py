"""Pauses, breaker, tokens: rows that only conditional updates change (protocol §11)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection as database
from django.db import transaction

from hub import gate
from hub.gate import Tokens
from hub.models import Bucket, Connection, Gate, Installation
from hub.models.gate import Breaker, PauseKind
from hub.remote import RateLimit
from hub.sql import database_now
from tests.hub import rows

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _installed(db: None) -> None:
    Installation.objects.get_or_create(pk=1)


LIMIT = RateLimit("host:443", "default", rate=1.0, burst=5)


@pytest.fixture(autouse=True)
def _integration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows.install(monkeypatch)
    Installation.objects.get_or_create(pk=1)


@pytest.fixture
def crm() -> Connection:
    return rows.connection()


def _gate(where: Connection) -> Gate:
    return Gate.objects.get(pk=where.pk)


def _lanes() -> dict[int, gate.Lane]:
    return {one.connection_id: one for one in gate.opened(database_now()).lanes}


# --- lanes ----------------------------------------------------------------------------------------


def test_a_lane_says_what_is_due(crm: Connection) -> None:
    assert not _lanes()
    rows.operation(crm, next_at=rows.ago(-9))
    rows.operation(crm, "uncertain", source_id="2", lease_until=rows.ago(-9))
    rows.operation(crm, source_id="3", parked=True)
    assert not _lanes(), "nothing of it can be taken"
    rows.operation(crm, source_id="4")
    assert (_lanes()[crm.pk].sends, _lanes()[crm.pk].looks) == (True, False)
    rows.operation(crm, "uncertain", source_id="5")
    assert _lanes()[crm.pk].looks


@pytest.mark.parametrize(
    ("columns", "is_open"),
    [
        ({}, True),
        ({"paused_at": 1, "pause_reason": "x"}, False),
        ({"paused_at": 9, "pause_reason": "x", "paused_until": -9}, False),
        ({"paused_at": 9, "pause_reason": "x", "paused_until": 1}, True),
        ({"throttled_until": -9}, False),
        ({"throttled_until": 1}, True),
        ({"breaker": "open", "breaker_until": -9}, False),
        ({"breaker": "open", "breaker_until": 1}, True),
        ({"breaker": "half_open", "breaker_until": -9}, False),
        ({"breaker": "half_open", "breaker_until": 1}, True),
    ],
    ids=str,
)
def test_when_a_gate_is_open(crm: Connection, columns: dict[str, Any], is_open: bool) -> None:
    rows.operation(crm)
    given = {k: rows.ago(v) if isinstance(v, int) else v for k, v in columns.items()}
    Gate.objects.filter(pk=crm.pk).update(**given)
    assert (crm.pk in _lanes()) == is_open
    if is_open:
        assert _lanes()[crm.pk].probe == ("breaker" in columns)


def test_a_retired_connection_has_no_lane(crm: Connection) -> None:
    rows.operation(crm)
    Connection.objects.filter(pk=crm.pk).update(retired_at=rows.ago(1))
    assert not _lanes()


# --- pause ----------------------------------------------------------------------------------------


def test_a_persons_pause_is_not_replaced_by_a_machines(crm: Connection) -> None:
    assert gate.pause(crm.pk, PauseKind.PERSON, "maintenance", by="ann")
    assert not gate.pause(crm.pk, PauseKind.CREDENTIAL, "401")
    found = _gate(crm)
    assert (found.pause_kind, found.pause_reason, found.paused_by) == (
        "person", "maintenance", "ann",
    )  # fmt: skip


def test_a_person_takes_over_a_machines_pause(crm: Connection) -> None:
    gate.pause(crm.pk, PauseKind.CREDENTIAL, "401")
    assert not gate.pause(crm.pk, PauseKind.PERSON, "we are on it", by="ann")
    assert _gate(crm).pause_kind == "person"


def test_resuming_opens_the_gate_and_its_breaker(crm: Connection) -> None:
    """Protocol §11: ages count from the gate's last opening."""
    assert not gate.resume(crm.pk)
    gate.pause(crm.pk, PauseKind.PERSON, "x")
    Gate.objects.filter(pk=crm.pk).update(breaker="open", breaker_until=rows.ago(-99), failures=9)
    before = database_now()
    assert gate.resume(crm.pk)
    found = _gate(crm)
    assert (found.paused_at, found.breaker, found.failures) == (None, "closed", 0)
    assert found.opened_at is not None
    assert found.opened_at >= before


def test_a_pause_that_is_over_is_noted_with_its_end(crm: Connection) -> None:
    until = rows.ago(50)
    gate.pause(crm.pk, PauseKind.PERSON, "x", until=until, now=rows.ago(99))
    assert gate.end_pauses() == 1
    assert gate.end_pauses() == 0
    assert (_gate(crm).paused_at, _gate(crm).opened_at) == (None, until)


# --- breaker --------------------------------------------------------------------------------------


def _bad(where: Connection, count: int) -> bool:
    return gate.count_bad(where.pk, count, threshold=5, pause=10.0, cap=60.0)


def test_a_breaker_opens_at_its_threshold(crm: Connection) -> None:
    assert not _bad(crm, 4)
    assert _bad(crm, 3)
    assert not _bad(crm, 9), "open already: what is in flight counts no more"
    found = _gate(crm)
    assert (found.breaker, found.openings) == ("open", 1)
    assert found.breaker_until is not None
    assert rows.ago(-8) < found.breaker_until < rows.ago(-12)


def test_an_answer_begins_the_count_anew(crm: Connection) -> None:
    _bad(crm, 4)
    gate.count_good(crm.pk)
    assert not _bad(crm, 4)
    assert _gate(crm).breaker == Breaker.CLOSED


def test_one_probe_at_a_time(crm: Connection) -> None:
    _bad(crm, 5)
    assert not gate.take_probe(crm.pk, 30.0), "its pause is not over"
    Gate.objects.update(breaker_until=rows.ago(1))
    assert gate.take_probe(crm.pk, 30.0)
    assert not gate.take_probe(crm.pk, 30.0)
    Gate.objects.update(breaker_until=rows.ago(1))
    assert gate.take_probe(crm.pk, 30.0), "whoever probed has died"


@pytest.mark.parametrize(("openings", "long"), [(1, False), (gate.LONG_BREAK, True)])
def test_a_probe_that_is_well_closes_the_breaker(
    crm: Connection, openings: int, long: bool
) -> None:
    """F127: ages begin anew after a long break, not each time a breaker opens and closes."""
    _bad(crm, 5)
    Gate.objects.update(breaker="half_open", openings=openings)
    gate.probed(crm.pk, True, pause=10.0, cap=60.0)
    found = _gate(crm)
    assert (found.breaker, found.failures, found.openings) == ("closed", 0, 0)
    assert (found.opened_at is not None) == long


def test_a_probe_of_unknown_fate_opens_it_again_for_longer(crm: Connection) -> None:
    """F109."""
    waits = []
    _bad(crm, 5)
    for _ in range(5):
        Gate.objects.update(breaker_until=rows.ago(1))
        assert gate.take_probe(crm.pk, 30.0)
        gate.probed(crm.pk, False, pause=10.0, cap=60.0)
        found = _gate(crm)
        assert found.breaker == "open"
        assert found.breaker_until is not None
        waits.append((found.breaker_until - database_now()).total_seconds())
    assert waits == pytest.approx([20, 40, 60, 60, 60], abs=1.0)


def test_a_late_probe_changes_no_closed_breaker(crm: Connection) -> None:
    gate.probed(crm.pk, False, pause=10.0, cap=60.0)
    assert _gate(crm).breaker == Breaker.CLOSED


# --- tokens ---------------------------------------------------------------------------------------


def _take(limit: RateLimit, count: int) -> int:
    return gate.take_tokens({limit: count}, database_now())[limit]


def test_tokens_run_out_and_come_back() -> None:
    assert _take(LIMIT, 3) == 3
    assert _take(LIMIT, 9) == 2
    assert _take(LIMIT, 1) == 0
    Bucket.objects.update(refreshed_at=rows.ago(2.5))
    assert _take(LIMIT, 9) == 2
    Bucket.objects.update(refreshed_at=rows.ago(999))
    assert _take(LIMIT, 9) == 5, "never more than the burst"


def test_a_clock_that_steps_back_makes_no_tokens() -> None:
    """F85."""
    assert _take(LIMIT, 5) == 5
    Bucket.objects.update(refreshed_at=rows.ago(-3600))
    assert _take(LIMIT, 1) == 0


def test_too_fast_empties_the_bucket_and_halves_its_rate() -> None:
    _take(LIMIT, 1)
    gate.slow_down([LIMIT], 4.0)
    assert _take(LIMIT, 1) == 0
    Bucket.objects.update(refreshed_at=rows.ago(4.5))
    assert _take(LIMIT, 9) == 2
    Bucket.objects.update(refreshed_at=rows.ago(4.5), slowed_until=rows.ago(1))
    assert _take(LIMIT, 9) == 4


def test_a_throttle_is_never_shortened(crm: Connection) -> None:
    """F47: not before the given time."""
    gate.throttle(crm.pk, 60.0)
    long = _gate(crm).throttled_until
    gate.throttle(crm.pk, 5.0)
    assert _gate(crm).throttled_until == long
    gate.throttle(crm.pk, 90.0)
    found = _gate(crm).throttled_until
    assert found is not None
    assert long is not None
    assert found > long + timedelta(seconds=20)


@pytest.mark.django_db(transaction=True)
def test_workers_that_take_at_once_never_take_more_than_there_are() -> None:
    """F106, W20: four workers, one bucket."""
    slow = RateLimit("host:443", "default", rate=0.0001, burst=40)
    got: list[int] = []
    ready = threading.Barrier(4)

    def worker() -> None:
        try:
            ready.wait()
            for _ in range(15):
                with transaction.atomic():
                    tokens = Tokens(None if database.vendor == "postgresql" else database_now())
                    mine = min(2, tokens.left(slow))
                    tokens.take(slow, mine)
                    tokens.store()
                got.append(mine)
        finally:
            database.close()

    threads = [threading.Thread(target=worker) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert len(got) == 60
    assert sum(got) == 40


# --- degraded actions, and the form ---------------------------------------------------------------


def test_an_action_that_lost_its_class_keeps_that_until_a_green_test(crm: Connection) -> None:
    gate.degrade(crm.pk, "a.create", "key", "no sign of it")
    gate.degrade(crm.pk, "c.create", "find", "the field is ignored")
    assert {k: v["lost"] for k, v in _gate(crm).degraded.items()} == {
        "a.create": "key", "c.create": "find",
    }  # fmt: skip
    gate.restore_class(crm.pk, ["a.create"])
    assert set(_gate(crm).degraded) == {"c.create"}
    gate.restore_class(crm.pk)
    assert not _gate(crm).degraded


def test_a_saved_form_undoes_nothing_of_what_workers_wrote(crm: Connection) -> None:
    """F130: neither breaker nor pause nor token, whatever the form's page was drawn from."""
    as_drawn = Connection.objects.select_related("gate").get(pk=crm.pk)
    assert as_drawn.gate.breaker == Breaker.CLOSED
    _bad(crm, 5)
    gate.pause(crm.pk, PauseKind.CREDENTIAL, "401")
    gate.throttle(crm.pk, 60.0)
    gate.degrade(crm.pk, "a.create", "key", "no sign of it")
    _take(LIMIT, 5)
    before = Gate.objects.values().get(pk=crm.pk), Bucket.objects.values().get()
    as_drawn.label = "New title"
    as_drawn.save()
    assert (Gate.objects.values().get(pk=crm.pk), Bucket.objects.values().get()) == before
    assert Connection.objects.get(pk=crm.pk).label == "New title"
