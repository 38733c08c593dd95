"""The advice table: each row by a fixture, and what one fact more or less makes of it.

A row is held to the table of the panel: removing or changing one fact changes the advice exactly as
the table says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from hub.advice import (
    TABLE,
    Advised,
    Asked,
    Ended,
    Happened,
    Look,
    ReadBack,
    Situation,
    Strength,
    Verb,
    advise,
    happened,
)
from hub.candidates import Absence, Check, Judged, Proof, Sighting, Sureness, absence, judge
from hub.contract import FIND_BY_EXTERNAL_ID, Kind, Write
from hub.panel import words
from hub.reasons import REASON_OF, Reason, reason_of
from hub.states import State
from hub.urgency import Share, urgency
from hub.verdicts import Facts
from hub.waits import absence_trusted


@pytest.fixture(autouse=True)
def in_english() -> Iterator[None]:
    """Whatever language a page of an earlier test was asked for in."""
    with translation.override("en"):
        yield


NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 30, 13, 0, tzinfo=UTC)
NOT_THERE = Absence(Sureness.NOT_THERE)
PROBABLY = Absence(Sureness.PROBABLY_NOT, (Check.EXECUTION,))
CANNOT_SAY = Absence(Sureness.CANNOT_SAY, (Check.PAGES,))


def seen(ref: str = "6043", **more: Any) -> Judged:
    return judge(Sighting(ref, **{"fields": 5, **more}))


def ours(ref: str = "6043", **more: Any) -> Judged:
    return seen(ref, carries_ours=True, **more)


def alike(ref: str = "6043", different: int = 1, **more: Any) -> Judged:
    return seen(ref, different=different, **more)


def doubtful(**more: Any) -> Situation:
    """A create in doubt, looked for completely and late enough, that was found nowhere."""
    values: dict[str, Any] = {
        "doubt": True, "look": Look.GOOD, "looks": 2, "version": 7, "absence": PROBABLY,
        "system": "CRM", "contact": "the CRM team",
    }  # fmt: skip
    return Situation(**{**values, **more})


def certain(**more: Any) -> Situation:
    values: dict[str, Any] = {"version": 7, "system": "CRM", "said": "phone is not valid"}
    return Situation(**{**values, **more})


UPDATE = {"kind": Kind.UPDATE, "repeat_harmless": True}

FIXTURES: dict[int, Situation] = {
    1: doubtful(data_changed=True),
    2: doubtful(in_hand_until=LATER),
    3: doubtful(candidates=(ours(), ours("6044"))),
    4: doubtful(candidates=(ours(linked_to="hub/9"),)),
    5: doubtful(candidates=(ours(place="bin"),)),
    6: doubtful(candidates=(ours(),), result_version="6"),
    7: doubtful(candidates=(ours(different=2),)),
    8: doubtful(candidates=(ours(),)),
    9: doubtful(candidates=(ours(),), newest=8),
    10: certain(ended=Ended.FOR_NOW, newest=8, newer_covers=True),
    11: certain(ended=Ended.NOTHING_LEFT),
    12: certain(ended=Ended.FOR_GOOD),
    13: doubtful(look=Look.TOO_EARLY, look_from=LATER),
    14: doubtful(read_back=ReadBack.EQUAL, **UPDATE),
    15: doubtful(read_back=ReadBack.BEFORE, **UPDATE),
    16: doubtful(read_back=ReadBack.NEITHER, **UPDATE),
    17: doubtful(candidates=(alike(),)),
    18: doubtful(candidates=(alike(), alike("6044"))),
    19: doubtful(repeat_harmless=True, repeat_until=LATER),
    20: doubtful(absence=NOT_THERE),
    21: doubtful(absence=PROBABLY),
    22: doubtful(absence=CANNOT_SAY),
    23: Situation(ask=Asked("phone", "1", "2")),
    24: Situation(difference=Asked("phone", owner="ERP")),
    25: Situation(system="CRM", access_refused_since=NOON, waiting=212),
    26: Situation(),
}

# The row, one fact that is changed, and the row that stands then.
CHANGES: list[tuple[int, dict[str, Any], int]] = [
    (1, {"data_changed": False}, 21),
    (2, {"in_hand_until": None}, 21),
    (3, {"candidates": (ours(),)}, 8),
    (3, {"candidates": ()}, 21),
    (4, {"candidates": (ours(),)}, 8),
    (4, {"candidates": (ours(), ours("6044"))}, 3),
    (5, {"candidates": (ours(),)}, 8),
    (5, {"candidates": (ours(place="bin", linked_to="hub/9"),)}, 4),
    (6, {"result_version": ""}, 8),
    (6, {"candidates": (ours(place="bin"),)}, 5),
    (7, {"candidates": (ours(),)}, 8),
    (7, {"result_version": "6"}, 6),
    (8, {"newest": 8}, 9),
    (8, {"candidates": (ours(different=1),)}, 7),
    (8, {"own_link": "77"}, 4),
    (8, {"own_link": "6043"}, 8),
    (8, {"candidates": (seen(),)}, 17),
    (8, {"look": Look.FAILED}, 8),
    (9, {"newest": 0}, 8),
    (9, {"candidates": (ours(linked_to="hub/9"),)}, 4),
    (10, {"newer_covers": False}, 11),
    (10, {"newest": 0, "newer_covers": False, "overtaken": 8}, 10),
    (8, {"overtaken": 8}, 8),
    (10, {"newest": 0}, 11),
    (10, {"doubt": True, "look": Look.GOOD, "absence": PROBABLY}, 21),
    (11, {"ended": Ended.FOR_NOW}, 11),
    (11, {"ended": Ended.FOR_GOOD}, 12),
    (11, {"ended": Ended.OTHER}, 26),
    (11, {"doubt": True}, 13),
    (12, {"ended": Ended.OTHER}, 26),
    (12, {"doubt": True}, 13),
    (13, {"look": Look.NONE}, 13),
    (13, {"look": Look.FAILED}, 13),
    (13, {"look": Look.INCOMPLETE}, 13),
    (13, {"look": Look.GOOD}, 21),
    (13, {"can_look": False}, 22),
    (13, {"candidates": (alike(),)}, 13),
    (13, {"candidates": (ours(),)}, 8),
    (13, {"repeat_harmless": True}, 13),
    (14, {"read_back": ReadBack.BEFORE}, 15),
    (14, {"read_back": ReadBack.NEITHER}, 16),
    (14, {"look": Look.FAILED}, 13),
    (15, {"look": Look.TOO_EARLY}, 13),
    (15, {"read_back": ReadBack.EQUAL}, 14),
    (15, {"kind": Kind.CREATE}, 19),
    (16, {"read_back": ReadBack.BEFORE}, 15),
    (16, {"read_back": None}, 19),
    (17, {"candidates": (alike(), alike("6044"))}, 18),
    (17, {"candidates": (alike(different=2),)}, 18),
    (17, {"candidates": (alike(refused=True),)}, 21),
    (17, {"candidates": (alike(carries_other="hub/9"),)}, 21),
    (17, {"candidates": (ours(different=1),)}, 7),
    (17, {"repeat_harmless": True}, 17),
    (17, {"absence": NOT_THERE}, 17),
    (18, {"candidates": (alike(),)}, 17),
    (18, {"candidates": (alike(refused=True), alike("6044", refused=True))}, 21),
    (19, {"repeat_harmless": False}, 21),
    (19, {"look": Look.NONE}, 13),
    (19, {"can_look": False}, 19),
    (19, {"data_changed": True}, 1),
    (20, {"absence": PROBABLY}, 21),
    (20, {"absence": CANNOT_SAY}, 22),
    (20, {"can_look": False}, 22),
    (20, {"job_lost": True}, 22),
    (20, {"doubt": False}, 26),
    (21, {"absence": NOT_THERE}, 20),
    (21, {"absence": CANNOT_SAY}, 22),
    (21, {"job_lost": True}, 22),
    (21, {"look": Look.INCOMPLETE}, 13),
    (22, {"absence": PROBABLY}, 21),
    (22, {"repeat_harmless": True}, 19),
    (23, {"ask": None}, 26),
    (24, {"difference": Asked("phone")}, 26),
    (24, {"ask": Asked("phone", "1", "2")}, 23),
    (25, {"access_refused_since": None}, 26),
    (25, {"ended": Ended.NOTHING_LEFT}, 11),
]

AS_THE_TABLE_SAYS: dict[int, tuple[Verb | None, Strength]] = {
    1: (Verb.DISCARD, Strength.SAFE),
    2: (None, Strength.SAFE),
    3: (Verb.LINK, Strength.JUDGEMENT),
    4: (None, Strength.JUDGEMENT),
    5: (Verb.LINK, Strength.JUDGEMENT),
    6: (Verb.DISCARD, Strength.JUDGEMENT),
    7: (Verb.LINK, Strength.JUDGEMENT),
    8: (Verb.LINK, Strength.SAFE),
    9: (Verb.LINK, Strength.SAFE),
    10: (Verb.DISCARD, Strength.SAFE),
    11: (Verb.RETRY, Strength.SAFE),
    12: (Verb.RETRY, Strength.SAFE),
    13: (Verb.LOOK, Strength.SAFE),
    14: (Verb.CONFIRM, Strength.SAFE),
    15: (Verb.RETRY, Strength.SAFE),
    16: (None, Strength.JUDGEMENT),
    17: (Verb.LINK, Strength.LIKELY),
    18: (None, Strength.JUDGEMENT),
    19: (Verb.RETRY, Strength.SAFE),
    20: (Verb.RETRY, Strength.SAFE),
    21: (Verb.SEND_ANYWAY, Strength.JUDGEMENT),
    22: (Verb.LINK, Strength.JUDGEMENT),
    23: (Verb.CHOOSE, Strength.JUDGEMENT),
    24: (Verb.CHOOSE, Strength.LIKELY),
    25: (None, Strength.SAFE),
    26: (None, Strength.JUDGEMENT),
}


@pytest.mark.parametrize("row", range(1, 27))
def test_each_row_has_its_verb_and_its_strength(row: int) -> None:
    found = advise(FIXTURES[row])
    assert (found.row, found.verb, found.strength) == (row, *AS_THE_TABLE_SAYS[row])
    assert found.facts or row == 26, "an advice cites its facts"
    assert found.would_change


@pytest.mark.parametrize(("row", "change", "then"), CHANGES)
def test_one_fact_more_or_less_changes_it_as_the_table_says(
    row: int, change: dict[str, Any], then: int
) -> None:
    assert advise(dataclasses.replace(FIXTURES[row], **change)).row == then


def test_every_row_is_changed_by_some_fact() -> None:
    assert {row for row, _change, then in CHANGES if row != then} == set(range(1, 26))
    assert set(TABLE) == set(FIXTURES) == set(AS_THE_TABLE_SAYS)


def test_to_mark_anything_but_a_create_is_to_confirm_it() -> None:
    found = advise(doubtful(kind=Kind.COMMAND, absence=CANNOT_SAY))
    assert (found.row, found.verb) == (22, Verb.CONFIRM)


# --- total ----------------------------------------------------------------------------------------

MOMENTS = st.none() | st.just(NOON)
SIGHTINGS = st.builds(
    Sighting,
    ref=st.sampled_from(["1", "2", "3"]),
    carries_ours=st.booleans(),
    returned=st.booleans(),
    carries_other=st.sampled_from(["", "hub/9"]),
    linked_to=st.sampled_from(["", "hub/8"]),
    refused=st.booleans(),
    foreign=st.booleans(),
    place=st.sampled_from(["", "bin"]),
    fields=st.integers(0, 5),
    different=st.integers(0, 5),
    created_at=MOMENTS,
    sent_first=MOMENTS,
).map(lambda one: dataclasses.replace(one, different=min(one.different, one.fields)))
SURE = st.sampled_from([NOT_THERE, PROBABLY, CANNOT_SAY])
ASKED = st.none() | st.builds(Asked, st.just("phone"), owner=st.sampled_from(["", "ERP"]))
SITUATIONS = st.builds(
    Situation,
    kind=st.sampled_from(Kind),
    doubt=st.booleans(),
    data_changed=st.booleans(),
    in_hand_until=MOMENTS,
    candidates=st.lists(SIGHTINGS.map(judge), max_size=3).map(tuple),
    duplicates=st.integers(0, 3),
    version=st.integers(0, 2),
    result_version=st.sampled_from(["", "6"]),
    newest=st.integers(0, 3),
    newer_covers=st.booleans(),
    overtaken=st.sampled_from([0, 3]),
    own_link=st.sampled_from(["", "1"]),
    ended=st.sampled_from(Ended),
    can_look=st.booleans(),
    look=st.sampled_from(Look),
    look_from=MOMENTS,
    read_back=st.none() | st.sampled_from(ReadBack),
    repeat_harmless=st.booleans(),
    repeat_until=MOMENTS,
    key_gone_at=MOMENTS,
    absence=SURE,
    job_lost=st.booleans(),
    ask=ASKED,
    difference=ASKED,
    access_refused_since=MOMENTS,
)


@given(SITUATIONS)
def test_there_is_an_advice_for_every_situation_and_words_for_it(situation: Situation) -> None:
    found = advise(situation)
    assert 1 <= found.row <= 26
    assert found == advise(situation)
    for language in ("en", "es"):
        with translation.override(language):
            texts = [words.advice(found), words.advice_in_short(found.row)]
            texts += [words.fact(one) for one in found.facts]
            texts += [words.would_change(one) for one in found.would_change]
            assert all(text.strip() and "%(" not in text for text in texts), texts


@given(SITUATIONS)
def test_no_repeat_is_advised_over_what_was_found_or_is_unknown(situation: Situation) -> None:
    """Rules 1, 3 and 4 of the panel."""
    found = advise(situation)
    if found.verb is Verb.RETRY:
        assert not situation.data_changed
        assert situation.by_id or not situation.proven
        if situation.doubt:
            assert not situation.can_look or situation.look is Look.GOOD
            assert found.row in (15, 19, 20)
            assert situation.by_id or not situation.to_compare


@given(SITUATIONS, st.data())
def test_not_the_same_never_turns_row_21_or_22_into_20(
    situation: Situation, data: st.DataObject
) -> None:
    """A person's word hides a look-alike, and takes "not there" away; it never brings it."""
    marked = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
    after = (
        tuple(
            judge(dataclasses.replace(one.seen, refused=True)) if mark else one
            for one, mark in zip(situation.candidates, marked, strict=False)
        )
        + situation.candidates[3:]
    )

    def row(candidates: tuple[Judged, ...]) -> int:
        """With looks that prove absence, but for what a person said."""
        sure = absence(trusted_facts(), set_aside=any(one.cast_aside for one in candidates))
        found = dataclasses.replace(situation, candidates=candidates, absence=sure)
        return advise(found).row

    if row(situation.candidates) in (17, 18, 21, 22):
        assert row(after) != 20


def test_a_proven_record_stays_proven_whatever_a_person_said() -> None:
    assert ours(refused=True).proof is Proof.PROVEN


# --- hard facts -----------------------------------------------------------------------------------

HARD = [
    ({"carries_ours": True}, Proof.PROVEN, True),
    ({"returned": True}, Proof.PROVEN, True),
    ({"carries_other": "hub/9"}, Proof.EXCLUDED, False),
    ({"linked_to": "hub/9"}, Proof.STRONG, False),
    ({"refused": True}, Proof.REFUSED, True),
    ({"foreign": True, "carries_ours": True}, Proof.FOREIGN, False),
    ({"created_at": NOON, "sent_first": LATER}, Proof.POSSIBLE, True),
    ({"different": 1}, Proof.STRONG, True),
    ({"different": 2}, Proof.POSSIBLE, True),
    ({"different": 3}, Proof.WEAK, True),
    ({"fields": 0}, Proof.WEAK, True),
]


@pytest.mark.parametrize(("facts", "proof", "linkable"), HARD)
def test_hard_facts_come_before_any_likeness(
    facts: dict[str, Any], proof: Proof, linkable: bool
) -> None:
    found = seen(**facts)
    assert (found.proof, found.linkable) == (proof, linkable)


def test_when_it_was_made_says_by_whom() -> None:
    assert seen(created_at=NOON, sent_first=LATER).existed_before
    assert seen(created_at=LATER, sent_last=NOON).by_somebody
    assert not ours(created_at=LATER, sent_last=NOON).by_somebody
    assert seen(place="archive").needs_senior


# --- the meter ------------------------------------------------------------------------------------


def trusted_facts(**more: Any) -> Facts:
    action = Write(FIND_BY_EXTERNAL_ID, Kind.CREATE, max_exec=60.0, index_lag=30.0)
    values: dict[str, Any] = {
        "state": State.UNCERTAIN, "action": action, "doubt": True, "since_last": 300.0,
        "absent_for": 200.0, "look_took": 10.0,
    }  # fmt: skip
    return Facts(**{**values, **more})


def a_write(exec_: float | None, lag: float | None, authoritative: bool) -> Write:
    return Write(
        FIND_BY_EXTERNAL_ID, Kind.CREATE, max_exec=exec_, index_lag=lag, authoritative=authoritative
    )


SECONDS = st.none() | st.floats(0, 400)
FACTS = st.builds(
    trusted_facts,
    action=st.builds(a_write, SECONDS, SECONDS, st.booleans()),
    since_last=SECONDS,
    absent_for=SECONDS,
    look_took=st.floats(0, 100),
    clock_jumped=st.booleans(),
)


@given(FACTS, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_the_meter_agrees_with_the_protocol(
    facts: Facts, complete: bool, account: bool, kept: bool, aside: bool
) -> None:
    found = absence(
        facts, complete=complete, right_account=account, reference_kept=kept, set_aside=aside
    )
    if found.sureness is Sureness.NOT_THERE:
        assert absence_trusted(facts)
        assert complete and account and kept and not aside  # noqa: PT018 - one promise
    else:
        assert found.missing, "what is missing is named"
    if not (complete and account and kept):
        assert found.sureness is Sureness.CANNOT_SAY


METER = [
    ({}, Sureness.NOT_THERE, ()),
    ({"absent_for": None}, Sureness.PROBABLY_NOT, (Check.INDEX, Check.TWICE)),
    ({"since_last": 50.0, "absent_for": 40.0}, Sureness.PROBABLY_NOT, None),
    ({"clock_jumped": True}, Sureness.PROBABLY_NOT, (Check.CLOCK,)),
    ({"action": a_write(None, None, True)}, Sureness.PROBABLY_NOT, (Check.EXECUTION,)),
    ({"action": a_write(60.0, None, False)}, Sureness.PROBABLY_NOT, (Check.INDEX,)),
    (
        {"action": a_write(60.0, None, True), "absent_for": None},
        Sureness.NOT_THERE,
        (),
    ),
]


@pytest.mark.parametrize(("change", "sureness", "missing"), METER)
def test_each_line_of_the_meter(
    change: dict[str, Any], sureness: Sureness, missing: tuple[Check, ...] | None
) -> None:
    found = absence(trusted_facts(**change))
    assert found.sureness is sureness
    if missing is not None:
        assert found.missing == missing


def test_never_looked_says_nothing() -> None:
    assert absence(trusted_facts(), looked=False).sureness is Sureness.CANNOT_SAY


# --- did it happen? urgency, reasons, words -------------------------------------------------------

DID_IT = [
    (State.PENDING, False, Happened.NO),
    (State.FAILED, False, Happened.NO),
    (State.REVIEW, True, Happened.MAYBE),
    (State.RETRY, True, Happened.MAYBE),
    (State.UNCERTAIN, True, Happened.MAYBE),
    (State.SENT, False, Happened.MAYBE),
    (State.DISCARDED, True, Happened.MAYBE),
    (State.ACCEPTED, True, Happened.STARTED),
    (State.CONFIRMED, False, Happened.YES),
]


@pytest.mark.parametrize(("state", "doubt", "expected"), DID_IT)
def test_did_it_happen(state: State, doubt: bool, expected: Happened) -> None:
    assert happened(state, doubt=doubt) is expected
    assert happened(State.REVIEW, doubt=True, proven=True) is Happened.YES


def test_urgency_opens_its_sentence() -> None:
    found = urgency(harm=1, irreversible=1, held=2, age=90_000)
    assert found.number == 73
    assert words.urgency(found) == (
        "73: harm (35), cannot be undone (25), waiting (10), 2 wait behind it (3)"
    )
    with translation.override("es"):
        assert words.urgency(found) == (
            "73: daño (35), no se puede deshacer (25), espera (10), 2 esperan detrás (3)"
        )
    assert words.urgency(urgency(harm=0)) == "0"


NUMBERS = st.floats(-1, 3)


@given(NUMBERS, NUMBERS, st.integers(0, 30), NUMBERS, st.floats(0, 200_000))
def test_the_parts_of_the_urgency_add_up(
    harm: float, irreversible: float, held: int, key: float, age: float
) -> None:
    found = urgency(harm=harm, irreversible=irreversible, held=held, key_used=key, age=age)
    assert 0 <= found.number <= 100
    assert sum(part.points for part in found.parts) == found.number
    more = urgency(harm=harm, irreversible=irreversible, held=held + 1, key_used=key, age=age)
    assert more.number >= found.number
    assert all(part.share in Share and part.points > 0 for part in found.parts)


def test_every_code_has_a_reason_and_every_reason_words() -> None:
    assert set(REASON_OF) <= set(words.REASONS)
    assert set(words.CASE_REASONS) == set(Reason)
    assert reason_of("waiting") is None
    assert words.case_reason("denied") == "They refuse us this action"
    assert words.case_reason("waiting") == "It waits its turn"


def test_everything_a_person_reads_is_there_in_both_languages() -> None:
    """Acceptance test 16, its data: every why-not, every effect, every row, and none the same."""
    tables: list[dict[Any, Any]] = [
        words.ADVICE, words.ADVICE_SHORT, words.FACTS, words.WOULD_CHANGE, words.CHECKS,
        words.CASE_REASONS, words.STRENGTHS, words.HAPPENED, words.WHY_NOT,
    ]  # fmt: skip
    texts = [text for table in tables for text in table.values()]
    texts += [text for pair in words.VERBS.values() for text in pair]
    for text in texts:
        with translation.override("en"):
            english = str(text)
        with translation.override("es"):
            spanish = str(text)
        assert english.strip()
        assert spanish.strip()
        assert spanish != english or english == "○ No", english
    assert set(words.VERBS) == set(Verb)
    assert {int(key.split()[0]) for key in words.ADVICE} == set(TABLE) == set(words.ADVICE_SHORT)
    assert set(words.CHECKS) == set(Check)


def test_a_why_not_names_its_condition_and_its_time() -> None:
    text = words.why_not("in hand", time=NOON)
    assert "possible again at" in text
    assert "2026" in text
    assert "%" not in words.why_not("retry look-alike", id="6043")


def test_wording_follows_the_facts() -> None:
    assert words.advice(advise(FIXTURES[8])) == "It happened: 6043 carries our reference. Link it."
    assert "ours is linked to 77" in words.advice(
        advise(dataclasses.replace(FIXTURES[8], own_link="77"))
    )
    assert "recognises a repeat until" in words.advice(advise(FIXTURES[19]))
    harmless = dataclasses.replace(FIXTURES[19], repeat_until=None)
    assert words.advice(advise(harmless)) == "A repeat changes nothing there. Retry."
    assert "Ask the CRM team" in words.advice(advise(FIXTURES[22]))
    assert "too early for a late execution" in words.advice(advise(FIXTURES[21]))
    assert isinstance(advise(FIXTURES[26]), Advised)
