"""From rows to a situation: what the advice table is given, and at what cost."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection as database
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from hub import gate, situation
from hub.advice import Ended, Look, ReadBack, advise
from hub.candidates import Check, Proof, Sureness
from hub.models import Connection, Operation, ReviewCase
from hub.panel import choices
from hub.sql import database_now
from hub.states import Outcome, Purpose, State
from hub.urgency import Share
from tests.hub import rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def crm(monkeypatch: pytest.MonkeyPatch) -> Connection:
    rows.install(monkeypatch)
    return rows.connection()


def in_review(crm: Connection, action: str = "c.create", **more: Any) -> Operation:
    """An operation in doubt that a person has; sent an hour ago unless said."""
    values = {
        "maybe_executed": True, "first_sent_at": rows.ago(3600), "sent_at": rows.ago(3600),
        "last_byte_at": rows.ago(3599), "reason_code": "undecided",
    }  # fmt: skip
    row = rows.operation(crm, "review", action=action, **{**values, **more})
    ReviewCase.objects.filter(operation=row).update(reason_code=values["reason_code"])
    return row


def case_of(row: Operation) -> ReviewCase:
    return ReviewCase.objects.get(operation=row, subject="operation")


def known(row: Operation) -> situation.Known:
    return situation.situation(case_of(row))


def tried(row: Operation, ago: float, seen: dict[str, Any] | None = None, **more: Any) -> None:
    """A look that ended, begun so many seconds ago; or another attempt."""
    values: dict[str, Any] = {
        "purpose": Purpose.CONSULT, "outcome": Outcome.LOOKED, "worker": "w",
        "token": row.attempt_set.count() + 100, "claimed_at": rows.ago(ago),
        "settled_at": rows.ago(ago - 1), "seen": "" if seen is None else json.dumps(seen),
    }  # fmt: skip
    row.attempt_set.create(**{**values, **more})


def candidate(row: Operation, ref: str = "r9", **more: Any) -> None:
    values = {"seen_at": database_now(), "fields": '{"name": "Ann"}'}
    case_of(row).candidates.create(remote_ref=ref, **{**values, **more})


NOTHING = {"found": [], "complete": True, "text": ""}


# --- looks ----------------------------------------------------------------------------------------


def test_never_looked_at_it_is_looked_at_first(crm: Connection) -> None:
    row = in_review(crm)
    assert known(row).situation.look is Look.NONE
    assert advise(known(row).situation).row == 13


LOOKS = [
    (Outcome.LOOKED, {"unanswered": "", "text": ""}, Look.FAILED),
    (Outcome.LOOKED, {"found": [], "complete": False}, Look.INCOMPLETE),
    (Outcome.GIVEN_BACK, None, Look.FAILED),
]


@pytest.mark.parametrize(("outcome", "seen", "look"), LOOKS)
def test_a_look_that_is_no_answer(
    crm: Connection, outcome: Outcome, seen: dict[str, Any] | None, look: Look
) -> None:
    row = in_review(crm)
    tried(row, 100, seen, outcome=outcome)
    assert known(row).situation.look is look
    assert advise(known(row).situation).row == 13


def test_a_look_before_the_last_send_says_nothing_of_it(crm: Connection) -> None:
    row = in_review(crm, sent_at=rows.ago(50), last_byte_at=rows.ago(49))
    tried(row, 100, NOTHING)
    assert known(row).situation.look is Look.NONE


def test_too_early_a_look_names_the_moment_from_which_one_counts(crm: Connection) -> None:
    """Acceptance test 8: with a slow index it is looked again until settled, and never repeated."""
    Connection.objects.filter(pk=crm.pk).update(numbers={"*": {"max_exec": 600, "index_lag": 300}})
    row = in_review(crm, sent_at=rows.ago(400), last_byte_at=rows.ago(400))
    tried(row, 100, NOTHING)
    found = known(row).situation
    assert found.look is Look.TOO_EARLY
    assert found.look_from is not None
    assert abs(found.look_from - database_now() - timedelta(seconds=200)) < timedelta(seconds=5)
    # Late enough for the execution, and their index not waited out: another look is due.
    row = in_review(crm, source_id="2", absent_since=rows.ago(100))
    tried(row, 90, NOTHING)
    found = known(row).situation
    assert (found.look, advise(found).row) == (Look.TOO_EARLY, 13)
    assert found.look_from is not None


def test_two_late_looks_that_found_nothing_prove_absence(crm: Connection) -> None:
    row = in_review(crm, absent_since=rows.ago(200), looks=2)
    tried(row, 100, NOTHING)
    found = known(row).situation
    assert found.absence.sureness is Sureness.NOT_THERE
    assert advise(found).row == 20
    # A repeat cannot be pressed in doubt; the look it begins with can.
    advice = choices.of_case(case_of(row)).advice
    assert advice.row == 20
    assert advice.button is not None
    assert advice.button.action == "look_again"


def test_without_the_numbers_absence_is_probable_at_most(crm: Connection) -> None:
    Connection.objects.filter(pk=crm.pk).update(numbers={"*": {"max_exec": None}})
    row = in_review(crm)
    tried(row, 100, NOTHING)
    found = known(row).situation
    assert found.absence.sureness is Sureness.PROBABLY_NOT
    assert advise(found).row == 21
    advice = choices.of_case(case_of(row)).advice
    assert advice.button is not None
    assert advice.button.action == "send_again"


def test_where_nothing_can_be_looked_up_one_asks_there(crm: Connection) -> None:
    row = in_review(crm, "d.create")
    assert advise(known(row).situation).row == 22
    advice = choices.of_case(case_of(row)).advice
    assert advice.button is not None
    assert advice.button.action == "link"


# --- candidates -----------------------------------------------------------------------------------


def test_a_candidate_with_our_reference_is_linked(crm: Connection) -> None:
    row = in_review(crm)
    candidate(row, reference=row.reference, matches=True)
    found = known(row).situation
    assert [one.proof for one in found.candidates] == [Proof.PROVEN]
    assert advise(found).row == 8
    rows.mapping(crm, "c", "other", remote_ref="r9")
    assert advise(known(row).situation).row == 4
    assert known(row).taken == {"r9": "hub/other"}


def test_one_that_carries_another_records_reference_is_excluded(crm: Connection) -> None:
    other = rows.operation(crm, action="c.create", source_id="2")
    row = in_review(crm)
    candidate(row, reference=other.reference, matches=True)
    assert [one.proof for one in known(row).situation.candidates] == [Proof.EXCLUDED]


def test_not_the_same_hides_a_look_alike_and_proves_no_absence(crm: Connection) -> None:
    """Looks that would prove absence do not, once a person has set aside what they found."""
    row = in_review(crm, absent_since=rows.ago(200), looks=2)
    tried(row, 100, NOTHING)
    candidate(row, matches=True)
    assert advise(known(row).situation).row == 17
    case_of(row).candidates.update(refused_at=database_now())
    found = known(row).situation
    assert [one.proof for one in found.candidates] == [Proof.REFUSED]
    assert found.absence.missing == (Check.SET_ASIDE,)
    assert advise(found).row == 21


def test_what_a_late_answer_named_is_proven(crm: Connection) -> None:
    row = in_review(crm)
    row.evidence_set.create(
        at=database_now(), actor="w", kind="late_result", text="x", data="remote id r7"
    )
    found = known(row).situation
    assert [(one.ref, one.proof) for one in found.candidates] == [("r7", Proof.PROVEN)]


def test_one_put_away_and_one_that_differs(crm: Connection) -> None:
    row = in_review(crm)
    said = json.dumps([{"field": "name", "ours": "Ann", "theirs": "Bo"}])
    candidate(row, reference=row.reference, differences=said)
    assert advise(known(row).situation).row == 7
    case_of(row).candidates.update(place="bin")
    assert advise(known(row).situation).row == 5


def test_an_update_is_read_back(crm: Connection) -> None:
    row = in_review(crm, "bp.update")
    said = json.dumps([{"field": "name", "ours": "Ann", "theirs": "Bo"}])
    candidate(row, "r1", differences=said)
    tried(row, 100, {"found": ["r1"], "complete": True})
    assert known(row).situation.read_back is ReadBack.NEITHER
    rows.mapping(crm, "bp", "1", values='{"name": "Bo"}')
    found = known(row).situation
    assert (found.read_back, advise(found).row) == (ReadBack.BEFORE, 15)
    case_of(row).candidates.update(matches=True)
    found = known(row).situation
    assert (found.read_back, advise(found).row) == (ReadBack.EQUAL, 14)


# --- without doubt --------------------------------------------------------------------------------


ENDED = [
    (Outcome.NOTHING_LEFT, Ended.NOTHING_LEFT),
    (Outcome.REFUSED_FOR_NOW, Ended.FOR_NOW),
    (Outcome.REFUSED, Ended.FOR_GOOD),
    (Outcome.DENIED, Ended.FOR_GOOD),
    (Outcome.CONFLICT, Ended.OTHER),
]


@pytest.mark.parametrize(("outcome", "ended"), ENDED)
def test_how_the_last_try_ended(crm: Connection, outcome: Outcome, ended: Ended) -> None:
    row = in_review(crm, maybe_executed=False, stream_busy=False)
    tried(row, 100, purpose=Purpose.SEND, outcome=outcome)
    assert known(row).situation.ended is ended


def test_what_waits_behind_it_counts_and_may_replace_it(crm: Connection) -> None:
    row = rows.operation(crm, "failed", action="bp.update")
    assert advise(known(row).situation).row == 12
    rows.operation(crm, "pending", action="bp.update", version=2, parked=True)
    rows.operation(crm, "discarded", action="bp.update", version=3)
    found = known(row)
    assert found.held == 1
    assert found.situation.newest == 2
    assert advise(found.situation).row == 10
    assert [part.count for part in found.urgency.parts if part.share is Share.HELD] == [1]


def test_one_that_was_overtaken_is_discarded_and_never_retried(crm: Connection) -> None:
    row = rows.operation(crm, "failed", action="bp.update")
    rows.operation(crm, "confirmed", action="bp.update", version=2)
    found = known(row)
    assert found.stale
    assert (found.situation.overtaken, advise(found.situation).row) == (2, 10)
    advice = choices.of_case(case_of(row)).advice
    assert advice.button is not None
    assert advice.button.action == "discard"


def test_a_live_lease_is_waited_for(crm: Connection) -> None:
    row = in_review(crm)
    Operation.objects.filter(pk=row.pk).update(
        state=State.UNCERTAIN.value, lease_until=rows.ago(-60), lease_owner="w"
    )
    assert advise(known(row).situation).row == 2


def test_the_other_subjects(crm: Connection) -> None:
    row = rows.operation(crm, "confirmed", action="c.create", remote_ref="r1")
    found = {}
    for subject, number in (("drift", row.pk), ("duplicate", row.pk), ("connection", crm.pk)):
        case = ReviewCase.objects.create(
            tenant=crm.tenant, connection=crm, subject=subject, subject_id=number,
            operation=None if subject == "connection" else row, reason_code="drift", summary="x",
            opened_at=database_now(),
        )  # fmt: skip
        found[subject] = case
    assert advise(situation.situation(found["drift"]).situation).row == 1
    assert advise(situation.situation(found["duplicate"]).situation).row == 3
    assert advise(situation.situation(found["connection"]).situation).row == 26
    gate.pause(crm.pk, "credential", "They refuse us.")
    again = ReviewCase.objects.get(pk=found["connection"].pk)
    assert advise(situation.situation(again).situation).row == 25


def test_without_its_code_there_is_an_advice_all_the_same(crm: Connection) -> None:
    row = in_review(crm)
    Operation.objects.filter(pk=row.pk).update(action="c.gone")
    assert advise(known(Operation.objects.get(pk=row.pk)).situation).row == 22


# --- buttons --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("action", ["a.create", "bp.update", "c.create", "d.create", "bp.delete"])
def test_every_button_that_cannot_be_pressed_says_why_in_both_languages(
    crm: Connection, state: State, action: str
) -> None:
    """Acceptance test 16."""
    row = rows.operation(crm, state, action=action)
    said = {}
    for language in ("en", "es"):
        with translation.override(language):
            said[language] = {
                one.action: one.why_not for one in choices.of_operation(row) if one.why_not
            }
    assert said["en"]
    assert set(said["en"]) == set(said["es"])
    for name, text in said["en"].items():
        assert text.strip()
        assert said["es"][name].strip()
        assert text != said["es"][name]


# --- many at once ---------------------------------------------------------------------------------


def test_fifty_cases_cost_what_one_costs_and_are_told_the_same(crm: Connection) -> None:
    for number in range(50):
        row = in_review(crm, source_id=str(number))
        candidate(row, f"r{number}", reference=row.reference, matches=number % 2 == 0)
        tried(row, 100, NOTHING)
    every = list(ReviewCase.objects.select_related("operation", "connection__gate"))

    def asked(cases: list[ReviewCase]) -> int:
        with CaptureQueriesContext(database) as seen:
            choices.of_cases(cases)
        return len(seen.captured_queries)

    assert asked(every) == asked(every[:1]) <= 14
    now = database_now()
    together = situation.situations(every, now)
    for case in every[:5]:
        alone = situation.situation(ReviewCase.objects.get(pk=case.pk), now)
        assert alone == together[case.pk]
