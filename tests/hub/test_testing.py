"""The kit that integrations are tested with: it has to notice what it is there to notice."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hub.contract import (
    Answer,
    Call,
    CallFailed,
    CallRefused,
    Done,
    ErrorTable,
    FailureKind,
    Refused,
    Unanswered,
)
from hub.states import ErrorClass
from hub.testing import BadSteps, FakeRemote, Fault, Order, answer, drive, observe
from hub.testing.remote import effects_by_reference

ERRORS = ErrorTable(
    codes={"BUSY": ErrorClass.THROTTLED},
    code_of=lambda reply: reply.json.get("code") if reply.status >= 400 else None,
)
ROOT = Path(__file__).resolve().parents[2]
READ = Call.get("/thing")
WRITE = Call.post("/thing", json={"a": 1}, write=True)
Steps = Generator[Call, Answer, Any]


def read_then_write() -> Steps:
    first = yield READ
    second = yield WRITE
    return Done(remote_ref=f"{first.json}-{second.json}")


def test_answers_go_in_and_the_outcome_comes_out() -> None:
    calls: list[Call] = []
    done = drive(read_then_write(), [answer(200, 1), answer(201, 2)], calls=calls)
    assert done.remote_ref == "1-2"
    assert calls == [READ, WRITE]


def test_a_function_may_play_the_remote() -> None:
    done = drive(read_then_write(), lambda call: answer(200, call.method))
    assert done.remote_ref == "GET-POST"


def test_too_few_and_too_many_answers_are_noticed() -> None:
    with pytest.raises(BadSteps, match="No answer was given for POST"):
        drive(read_then_write(), [answer(200, 1)])
    with pytest.raises(BadSteps, match="1 answers were left over"):
        drive(read_then_write(), [answer(200, 1)] * 3)


def test_a_call_after_the_write_is_noticed() -> None:
    def steps() -> Steps:
        yield WRITE
        yield READ

    with pytest.raises(BadSteps, match="follows the write"):
        drive(steps(), [answer(200)] * 2)
    with pytest.raises(BadSteps, match="follows the write"):
        observe(steps(), [answer(200)] * 2)


def test_what_is_no_call_is_noticed() -> None:
    def steps() -> Any:
        yield "GET /thing"

    with pytest.raises(BadSteps, match="no Call"):
        drive(steps(), [answer(200)])


def test_a_refusal_is_raised_into_the_steps_which_may_catch_it() -> None:
    def steps() -> Steps:
        try:
            yield READ
        except CallRefused as refused:
            return refused.refusal.error
        return None

    busy = answer(503, {"code": "busy"})
    assert drive(steps(), [busy], errors=ERRORS) is ErrorClass.THROTTLED
    seen = observe(read_then_write(), [busy], errors=ERRORS)
    assert isinstance(seen, Refused)


@pytest.mark.parametrize(
    ("replies", "begun"),
    [
        ([CallFailed(FailureKind.CONNECT, "refused", begun=False)], False),
        ([answer(500, {})], False),
        ([answer(200, 1), answer(500, {})], True),
        ([answer(200, 1), answer(503, {"code": "NEW"})], True),
        ([answer(200, 1), CallFailed(FailureKind.READ, "timed out", begun=True)], True),
        ([answer(200, 1), CallFailed(FailureKind.CONNECT, "refused", begun=False)], False),
        ([answer(200, 1), answer(200, body=b"half", body_lost=True)], True),
        ([answer(200, 1), answer(200, body=b"no json")], True),
        ([answer(200, body=b"no json"), answer(200, 1)], True),
    ],
)
def test_what_goes_wrong_is_told_by_whether_a_write_had_begun(
    replies: list[Any], begun: bool
) -> None:
    seen = observe(read_then_write(), replies, errors=ERRORS)
    assert isinstance(seen, Unanswered)
    assert seen.nothing_left is not begun


def test_the_kit_needs_no_settings() -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    program = "import hub.testing, hub.testing.conformance"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=bare, check=True, timeout=60)


# --- the remote with a memory ---------------------------------------------------------------------


def talk(remote: FakeRemote, *requests: tuple[str, str, Any]) -> list[Any]:
    """Send requests one after the other; a lost answer shows as the exception's name."""

    async def go() -> list[Any]:
        seen: list[Any] = []
        async with httpx.AsyncClient(transport=remote, base_url="https://remote.test") as client:
            for method, path, body in requests:
                key = {"Idempotency-Key": body["key"]} if body and "key" in body else {}
                try:
                    reply = await client.request(method, path, json=body, headers=key)
                    seen.append((reply.status_code, reply.text))
                except httpx.HTTPError as error:
                    seen.append(type(error).__name__)
        return seen

    return asyncio.run(go())


POST = ("POST", "/things", {"reference": "r1", "fields": {"a": 1}})
SEARCH = ("GET", "/things?reference=r1", None)


def found(reply: Any) -> list[str]:
    return [row["id"] for row in json.loads(reply[1])["items"]]


def test_it_remembers_finds_changes_and_forgets() -> None:
    remote = FakeRemote()
    change = ("PUT", "/things/1", {"fields": {"a": 2}})
    *_, search, put, again, gone, missing = talk(
        remote, POST, SEARCH, change, change, ("DELETE", "/things/1", None),
        ("GET", "/things/1", None),
    )  # fmt: skip
    assert found(search) == ["1"]
    assert put[0] == again[0] == gone[0] == 200
    assert missing[0] == 404
    # The second PUT changed nothing, so it was no effect.
    assert [effect.method for effect in remote.effects] == ["POST", "PUT", "DELETE"]


@pytest.mark.parametrize(
    ("fault", "seen", "effects"),
    [
        (Fault.DROP_AFTER, "ReadError", 1),
        (Fault.DROP_BEFORE, "RemoteProtocolError", 0),
        (Fault.REFUSE, "ConnectError", 0),
        (Fault.CUT, "RemoteProtocolError", 1),
        (Order(Fault.ANSWER, 503, {"code": "BUSY"}), (503, '{"code":"BUSY"}'), 0),
        (Order(Fault.ANSWER_AFTER, 500, "oops"), (500, "oops"), 1),
    ],
)
def test_it_misbehaves_to_order_once(fault: Any, seen: Any, effects: int) -> None:
    remote = FakeRemote()
    remote.plan(fault)
    first, second = talk(remote, POST, POST)
    assert first == seen
    assert second[0] == 201
    assert len(remote.effects) == effects + 1


def test_it_may_carry_out_one_request_twice() -> None:
    remote = FakeRemote()
    remote.plan(Fault.TWICE)
    talk(remote, POST)
    assert len(effects_by_reference(remote.effects)["r1"]) == 2
    assert remote.with_reference("r1") == ["1", "2"]


def test_a_key_is_honoured_unless_it_is_told_to_ignore_keys() -> None:
    keyed = ("POST", "/things", {"reference": "r1", "fields": {}, "key": "k1"})
    honours, ignores = FakeRemote(), FakeRemote(ignores_keys=True)
    for remote, things in ((honours, 1), (ignores, 2)):
        remote.plan(Fault.DROP_AFTER)
        talk(remote, keyed, keyed)
        assert len(remote.things) == things


def test_a_search_lags_behind() -> None:
    remote = FakeRemote()
    remote.plan(Order(Fault.LAG, searches=2))
    _, *searches = talk(remote, POST, SEARCH, SEARCH, SEARCH)
    assert [found(search) for search in searches] == [[], [], ["1"]]


def test_a_read_may_fail_too_and_pages_end() -> None:
    remote = FakeRemote(page_size=2)
    remote.plan(Fault.DROP_BEFORE, reads=True)
    *_, lost, page, rest = talk(
        remote, POST, POST, POST, SEARCH, SEARCH, ("GET", "/things?reference=r1&after=2", None)
    )
    assert lost == "RemoteProtocolError"
    assert found(page) == ["1", "2"]
    assert json.loads(page[1])["next"] == "2"
    assert found(rest) == ["3"]
    assert json.loads(rest[1])["next"] is None


def test_a_stall_ends_when_it_is_released() -> None:
    async def go() -> tuple[int, int]:
        remote = FakeRemote()
        remote.plan(Fault.STALL)
        async with httpx.AsyncClient(transport=remote, base_url="https://remote.test") as client:
            waiting = asyncio.create_task(client.post("/things", json=POST[2]))
            while not remote.requests:
                await asyncio.sleep(0)
            before = len(remote.effects)
            remote.release()
            return before, (await waiting).status_code

    assert asyncio.run(go()) == (0, 201)
