"""The error table: the code decides, whatever its case and the status it comes with."""

import json
from typing import Any

import pytest

from hub.contract import Answer, BodyLost, Refused, Unanswered, Write
from hub.states import ErrorClass
from hub.testing import answer, classify
from integrations.bitrix24.errors import ERRORS, MAX_TEXT
from integrations.bitrix24.tests.samples import error_answer


def seen(reply: Answer) -> Any:
    return classify(reply, ERRORS, Write())


@pytest.mark.parametrize(
    ("code", "status", "wanted"),
    [
        ("QUERY_LIMIT_EXCEEDED", 503, ErrorClass.THROTTLED),
        ("OPERATION_TIME_LIMIT", 429, ErrorClass.THROTTLED),
        ("query_limit_exceeded", 200, ErrorClass.THROTTLED),
        ("OVERLOAD_LIMIT", 503, ErrorClass.CREDENTIAL),
        ("expired_token", 401, ErrorClass.CREDENTIAL),
        ("EXPIRED_TOKEN", 401, ErrorClass.CREDENTIAL),
        ("INVALID_CREDENTIALS", 403, ErrorClass.CREDENTIAL),
        ("INVALID_CREDENTIALS", 401, ErrorClass.CREDENTIAL),
        ("PORTAL_DELETED", 500, ErrorClass.CREDENTIAL),
        ("PORTAL_DELETED", 410, ErrorClass.CREDENTIAL),
        ("insufficient_scope", 401, ErrorClass.DENIED),
        ("ACCESS_DENIED", 400, ErrorClass.DENIED),
        ("ERROR_METHOD_NOT_FOUND", 404, ErrorClass.DENIED),
        ("NOT_FOUND", 400, ErrorClass.MISSING),
        ("CRM_FIELD_ERROR_REQUIRED", 400, ErrorClass.INVALID),
        ("100", 400, ErrorClass.INVALID),
        ("0", 400, ErrorClass.INVALID),
        ("", 400, ErrorClass.INVALID),
        ("", 401, ErrorClass.CREDENTIAL),
    ],
)
def test_a_code_decides_before_the_status(code: str, status: int, wanted: ErrorClass) -> None:
    refusal = seen(error_answer(code, status))
    assert isinstance(refusal, Refused)
    assert refusal.error is wanted
    assert "Told in words" in refusal.text


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INTERNAL_SERVER_ERROR", 500),
        ("ERROR_UNEXPECTED_ANSWER", 500),
        ("SOMETHING_NEW", 500),
        ("SOMETHING_NEW", 503),
        ("SOMETHING_NEW", 200),
        ("", 200),
        ("", 500),
        ("SOMETHING_NEW", 408),
        ("SOMETHING_NEW", 400),
        ("SOMETHING_NEW", 401),
        ("SOMETHING_NEW", 403),
        ("SOMETHING_NEW", 404),
        ("SOMETHING_NEW", 422),
        ("SOMETHING_NEW", 429),
        ("1048582", 400),
        ("Must be set parameter 'type'", 400),
    ],
)
def test_what_proves_nothing_counts_as_no_answer(code: str, status: int) -> None:
    lost = seen(error_answer(code, status))
    assert isinstance(lost, Unanswered)
    assert not lost.nothing_left


def test_an_error_that_is_a_number_is_read_as_its_digits() -> None:
    refusal = seen(answer(400, {"error": 0, "error_description": "No"}))
    assert isinstance(refusal, Refused)
    assert refusal.error is ErrorClass.INVALID
    assert refusal.code == "0"


@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("body", [b"<html>nginx</html>", b"", b"[1]", b'"text"', b"\xff\xfe"])
def test_a_body_that_is_not_bitrix24s_is_no_answer(status: int, body: bytes) -> None:
    reply = answer(status, body=body, headers={"content-type": "text/html; charset=utf-8"})
    lost = seen(reply)
    assert isinstance(lost, Unanswered)
    assert not lost.nothing_left
    assert "text/html" in lost.text


def test_a_404_never_means_that_the_item_is_gone() -> None:
    # A delete would pass for done because an address was wrong.
    assert isinstance(seen(error_answer("NEW", 404)), Unanswered)
    for reply in (error_answer("", 404), answer(404, {"message": "x"})):
        refusal = seen(reply)
        assert isinstance(refusal, Refused)
        assert refusal.error is not ErrorClass.MISSING


def test_a_success_is_left_to_the_connector_and_a_cut_one_is_lost() -> None:
    assert seen(answer(200, {"result": [], "time": {}})) is None
    assert isinstance(seen(answer(200, body=b'{"result', body_lost=True)), BodyLost)


def test_a_cut_refusal_goes_by_its_status() -> None:
    refusal = seen(answer(400, body=b'{"error": "NOT_F', body_lost=True))
    assert isinstance(refusal, Refused)
    assert refusal.error is ErrorClass.INVALID


def test_words_lose_their_markup_and_end_somewhere() -> None:
    words = "Field <b>Name</b> is<br>required " + "x " * 2500
    refusal = seen(error_answer("CRM_FIELD_ERROR_REQUIRED", text=words))
    assert refusal.text.startswith("CRM_FIELD_ERROR_REQUIRED: Field Name is required x")
    assert len(refusal.text) <= MAX_TEXT


def test_the_vendors_block_says_whom_to_call() -> None:
    assert "contact Bitrix24 support" in seen(error_answer("OVERLOAD_LIMIT", 503)).text


def test_a_rest_3_error_object_is_read_too() -> None:
    body = {"error": {"code": "NOT_FOUND", "message": "Gone"}}
    refusal = seen(answer(400, body=json.dumps(body).encode()))
    assert refusal.error is ErrorClass.MISSING
    assert "Gone" in refusal.text
