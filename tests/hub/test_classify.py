"""What an answer says by itself: each status as protocol §10 has it (F46-F48, F50, F55, F58)."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hub.contract import (
    CONDITIONAL_WRITE,
    FIND_BY_EXTERNAL_ID,
    FULL_STATE,
    IDEMPOTENCY_KEY,
    Accepted,
    Answer,
    BodyLost,
    Conflict,
    Done,
    ErrorTable,
    FailureKind,
    Kind,
    Refused,
    SafetyClass,
    Seen,
    Unanswered,
    Write,
)
from hub.policy import Facts, Limits, Verdict, classify, decide
from hub.states import ErrorClass, Outcome, State

STATUSES = range(100, 600)
NUMBERS: dict[str, Any] = {"max_exec": 60.0, "index_lag": 20.0}
CLASSES = {
    "a": Write(IDEMPOTENCY_KEY, key_ttl=3600, **NUMBERS),
    "a+look": Write(IDEMPOTENCY_KEY | FIND_BY_EXTERNAL_ID, key_ttl=3600, **NUMBERS),
    "b": Write(CONDITIONAL_WRITE, **NUMBERS),
    "b′": Write(FULL_STATE, **NUMBERS),
    "c": Write(FIND_BY_EXTERNAL_ID, **NUMBERS),
    "d": Write(),
}
ACTIONS = [
    pytest.param(replace(action, kind=kind), id=f"{name}-{kind}")
    for name, action in CLASSES.items()
    for kind in (Kind.CREATE, Kind.UPDATE, Kind.DELETE)
]


def code_in_body(answer: Answer) -> str | None:
    body = answer.json
    return str(body["error"]) if isinstance(body, dict) and "error" in body else None


TABLE = ErrorTable(
    codes={
        "SLOW_DOWN": ErrorClass.THROTTLED,
        "DEPOT_CLOSED": ErrorClass.TRANSIENT,
        "BAD_NAME": ErrorClass.INVALID,
        "NO_RIGHT": ErrorClass.DENIED,
        "EXPIRED": ErrorClass.CREDENTIAL,
        "GONE": ErrorClass.MISSING,
        "CLASH": ErrorClass.CONFLICT,
        "IN_PROGRESS": ErrorClass.CONFLICT,
        "CRASHED": ErrorClass.UNKNOWN,
    },
    conflicts={"IN_PROGRESS": Conflict.KEY_IN_PROGRESS},
    code_of=code_in_body,
    text_of=lambda answer: "Told in words.",
)
PLAIN = ErrorTable()


def answer(status: int, code: str | None = None, **headers: str) -> Answer:
    body = {"id": "41"} if code is None else {"error": code}
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(status, named, json.dumps(body).encode())


def judged(action: Write, seen: Seen | None, status: int) -> Verdict:
    """The verdict on a first try; what the connector reads from a success is given here."""
    if seen is None:
        seen = Accepted("job-1") if status == 202 else Done("41")
    return decide(Facts(State.SENT, action, first_sent_ago=1.0), seen, Limits())


def outcome(action: Write, status: int) -> Outcome:
    """The table of statuses, protocol §10, as it is written there."""
    kind = action.kind
    match status:
        case 200 | 201 | 204:
            return Outcome.DONE
        case 202:
            return Outcome.ACCEPTED
        case 304 if action.safety is SafetyClass.B:
            return Outcome.DONE
        case 307 | 308 | 421 | 425:
            return Outcome.NOTHING_LEFT
        case 400 | 405 | 406 | 411 | 413 | 414 | 415 | 422 | 428 | 431 | 451 | 501:
            return Outcome.REFUSED
        case 401 | 403:
            return Outcome.DENIED
        case 404 | 410 if kind is Kind.CREATE:
            return Outcome.REFUSED
        case 404 | 410 if kind is Kind.UPDATE:
            return Outcome.CONFLICT
        case 404 | 410:
            return Outcome.DONE
        case 409 | 412 | 424:
            return Outcome.CONFLICT
        case 423 | 429:
            return Outcome.REFUSED_FOR_NOW
        case _:
            return Outcome.UNKNOWN


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("wait", [None, 90.0], ids=["", "retry-after"])
@pytest.mark.parametrize("table", [TABLE, PLAIN], ids=["table", "no table"])
def test_every_status_is_what_the_protocol_says(
    action: Write, wait: float | None, table: ErrorTable
) -> None:
    for status in STATUSES:
        seen = classify(answer(status), table, action, wait)
        verdict = judged(action, seen, status)
        wanted = outcome(action, status)
        if status == 304 and wanted is Outcome.DONE and action.creates:
            wanted = Outcome.UNKNOWN  # "no change" names no object
        assert verdict.outcome is wanted, (status, seen, verdict)
        unknown = wanted is Outcome.UNKNOWN
        assert verdict.doubt == (unknown or verdict.state is State.UNCERTAIN), status
        if unknown:
            # W7: no header and no table ever turns this into a refusal.
            assert verdict.state is not State.FAILED
            assert (verdict.state is State.RETRY) == (action.safety is SafetyClass.A), status
            if wait is not None and verdict.state in (State.RETRY, State.UNCERTAIN):
                assert verdict.delay >= wait or status == 304, status
        if wanted is Outcome.REFUSED_FOR_NOW:
            assert verdict.delay >= (wait or 0.0)
            assert not verdict.costs_attempt


STATES: dict[Outcome, State] = {
    Outcome.REFUSED: State.FAILED,
    Outcome.REFUSED_FOR_NOW: State.RETRY,
    Outcome.DONE: State.CONFIRMED,
    Outcome.ACCEPTED: State.ACCEPTED,
}


@pytest.mark.parametrize("action", ACTIONS)
def test_where_a_status_leads(action: Write) -> None:
    for status in STATUSES:
        verdict = judged(action, classify(answer(status), PLAIN, action), status)
        if verdict.outcome in STATES:
            assert verdict.state is STATES[verdict.outcome], status
    led = {s: judged(action, classify(answer(s), PLAIN, action), s) for s in (307, 401, 403, 421)}
    assert led[307].state is State.FAILED
    assert led[401].state is State.RETRY
    assert led[401].halt
    assert led[403].state is State.REVIEW
    assert led[421].state is State.RETRY


@pytest.mark.parametrize("status", STATUSES[100:])
def test_an_unknown_code_counts_as_no_answer_on_any_status(status: int) -> None:
    for action in CLASSES.values():
        seen = classify(answer(status, "NEVER_HEARD_OF"), TABLE, action, 90.0)
        assert isinstance(seen, Unanswered), status
        assert not seen.nothing_left
        assert "NEVER_HEARD_OF" in seen.text
        assert (seen.status, seen.retry_after) == (status, 90.0)
        assert classify(answer(status, "CRASHED"), TABLE, action) != seen
        assert isinstance(classify(answer(status, "CRASHED"), TABLE, action), Unanswered)


@pytest.mark.parametrize("code", [c for c, v in TABLE.codes.items() if v is not ErrorClass.UNKNOWN])
@pytest.mark.parametrize("spelled", [str.lower, str.upper, str.title])
def test_a_known_code_decides_on_any_status(code: str, spelled: Callable[[str], str]) -> None:
    for status in STATUSES:
        seen = classify(answer(status, spelled(code)), TABLE, Write(), 90.0)
        assert isinstance(seen, Refused), status
        assert seen.error is TABLE.codes[code]
        assert (seen.status, seen.retry_after) == (status, 90.0)
        assert seen.text == "Told in words."
        assert (seen.conflict is Conflict.KEY_IN_PROGRESS) == (code == "IN_PROGRESS")


def test_a_success_with_an_error_object_goes_through_the_error_table() -> None:
    # F55; that a login page is no answer is for the connector to say, which reads the body.
    assert isinstance(classify(answer(200, "BAD_NAME"), TABLE, Write()), Refused)
    assert isinstance(classify(answer(200, "WHAT"), TABLE, Write()), Unanswered)
    assert classify(answer(200), TABLE, Write()) is None


@pytest.mark.parametrize("error", ErrorClass)
@pytest.mark.parametrize(
    "status", [100, 302, 303, 304, 307, 308, 408, 500, 501, 502, 503, 504, 520, 599]
)
def test_a_table_of_statuses_cannot_make_a_refusal_of_a_fault(
    status: int, error: ErrorClass
) -> None:
    # W7, F48: only a code the contract lists says "refused before execution".
    table = replace(TABLE, statuses={status: error})
    for action in CLASSES.values():
        for wait in (None, 90.0):
            assert classify(answer(status), table, action, wait) == classify(
                answer(status), TABLE, action, wait
            )
            if status not in (307, 308, 501) and (status, action.safety) != (304, SafetyClass.B):
                seen = classify(answer(status), table, action, wait)
                assert isinstance(seen, Unanswered)
                assert not seen.nothing_left


def test_a_table_of_statuses_may_explain_the_other_4xx() -> None:
    table = replace(TABLE, statuses={402: ErrorClass.CREDENTIAL, 404: ErrorClass.INVALID})
    for status, error in table.statuses.items():
        seen = classify(answer(status), table, Write())
        assert isinstance(seen, Refused)
        assert seen.error is error
    assert isinstance(classify(answer(402), TABLE, Write()), Unanswered)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_503_the_contract_lists_by_its_code_is_a_refusal_for_now(status: int) -> None:
    # F47, F48
    listed = classify(answer(status, "SLOW_DOWN"), TABLE, CLASSES["c"], 7.0)
    assert listed == Refused(
        ErrorClass.THROTTLED, "Told in words.", "SLOW_DOWN", status, retry_after=7.0
    )
    assert isinstance(classify(answer(status), TABLE, CLASSES["c"], 7.0), Unanswered)


@pytest.mark.parametrize("status", STATUSES)
def test_a_cut_body_never_makes_more_of_a_status(status: int) -> None:
    cut = Answer(status, (), b'{"id": "4', body_lost=True)
    for action in CLASSES.values():
        seen = classify(cut, TABLE, action)
        if status in (200, 201, 202, 204):
            assert isinstance(seen, BodyLost)
            assert judged(action, seen, status).doubt
        else:
            whole = classify(answer(status), PLAIN, action)
            assert type(seen) is type(whole), status


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_a_table_that_cannot_read_a_body_says_nothing_about_it(body: bytes) -> None:
    seen = classify(Answer(500, (), body), TABLE, Write())
    assert isinstance(seen, Unanswered)
    seen = classify(Answer(422, (), body), TABLE, Write())
    assert isinstance(seen, Refused)


@pytest.mark.parametrize(
    ("status", "kind"), [(307, FailureKind.ADDRESS), (308, FailureKind.ADDRESS)]
)
def test_a_moved_address_is_configuration(status: int, kind: FailureKind) -> None:
    seen = classify(answer(status), TABLE, Write())
    assert isinstance(seen, Unanswered)
    assert seen.nothing_left
    assert seen.kind is kind
    assert "redirect" in seen.text


@pytest.mark.parametrize(
    ("kind", "conflict"),
    [(Kind.CREATE, Conflict.EXISTS), (Kind.UPDATE, Conflict.VERSION)],
)
def test_a_failed_precondition_says_which(kind: Kind, conflict: Conflict) -> None:
    seen = classify(answer(412), PLAIN, replace(CLASSES["b"], kind=kind))
    assert isinstance(seen, Refused)
    assert seen.conflict is conflict
    assert judged(replace(CLASSES["b"], kind=kind), seen, 412).state is State.UNCERTAIN


@pytest.mark.parametrize("said", ["true", "True", " true "])
def test_the_sign_of_a_replayed_answer_is_read(said: str) -> None:
    # F50
    for status, kind in ((500, Unanswered), (422, Refused), (429, Refused)):
        seen = classify(answer(status, idempotent_replayed=said), PLAIN, CLASSES["a"])
        assert isinstance(seen, kind)
        assert seen.replayed
        assert judged(CLASSES["a"], seen, status).code == "key_stores_error"
    for code in ("BAD_NAME", "WHAT"):
        seen = classify(answer(400, code, idempotent_replayed=said), TABLE, CLASSES["a"])
        assert isinstance(seen, Unanswered | Refused)
        assert seen.replayed


@pytest.mark.parametrize("said", ["false", "", "1"])
def test_anything_else_is_no_sign(said: str) -> None:
    seen = classify(answer(500, idempotent_replayed=said), PLAIN, CLASSES["a"])
    assert isinstance(seen, Unanswered)
    assert not seen.replayed


def test_reads_are_read_alike_but_for_writing() -> None:
    for status in STATUSES:
        seen = classify(answer(status), PLAIN, None)
        if status in (200, 201, 202, 204):
            assert seen is None
        elif status == 304:
            assert isinstance(seen, Unanswered)
        else:
            assert isinstance(seen, Unanswered | Refused)
