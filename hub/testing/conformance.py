"""The questions every connector is asked; an integration inherits them with its samples and
recordings.

```python
class TestParcelo(ConnectorConformance):
    connector_class = ParceloConnector
    settings = ConnectionSettings("test", "acme", "https://parcelo.example")
    secrets = {"token": "s3cret-token"}
    fixtures = Path(__file__).parent / "fixtures"
    sample_requests = {"parcel.book": Request(...)}
```

Its hooks say how this remote answers; which questions follow is read off the declarations.
"""

# ruff: noqa: S101 - these are tests, shipped for integrations to inherit

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hub.contract import (
    FIND_BY_EXTERNAL_ID,
    IDEMPOTENCY_KEY,
    Accepted,
    Answer,
    Call,
    CallFailed,
    Capability,
    ConnectionSettings,
    Connector,
    Done,
    Echo,
    FailureKind,
    Looked,
    Refused,
    Request,
    SafetyClass,
    Unanswered,
    Write,
)
from hub.policy import classify
from hub.registry import declaration_problems
from hub.states import ErrorClass
from hub.testing.driving import Reply, answer, observe
from hub.testing.recorded import Recorded, load_all

UNKNOWN_CODE = "NO_SUCH_CODE_7Q"
LOST = CallFailed(FailureKind.READ, "read timed out", begun=True)


@cache
def _recordings(folder: Path | None) -> tuple[Recorded, ...]:
    return tuple(load_all(folder))


class ConnectorConformance:
    """Inherit, name it `Test…`, fill in the attributes, override the hooks the declarations call
    for.
    """

    connector_class: ClassVar[type[Connector]]
    settings: ClassVar[ConnectionSettings]
    secrets: ClassVar[Mapping[str, str]] = {}
    fixtures: ClassVar[Path | None] = None
    sample_requests: ClassVar[Mapping[str, Request]] = {}
    """One request per action, as it would be sent for real."""

    # --- hooks: how this remote answers ----------------------------------------------------------

    def error_answer(self, code: str) -> Answer:
        """The answer in which the remote reports `code`."""
        raise NotImplementedError("say how this remote reports an error code")

    def unknown_code_answer(self) -> Answer:
        """An answer with a code the table does not know, at a status that proves nothing."""
        return self.error_answer(UNKNOWN_CODE)

    def status_answer(self, status: int) -> Answer:
        """An answer that has a status and no code."""
        return answer(status, {})

    def done_answers(self, request: Request) -> Sequence[Reply]:
        """The answers of a `send` that went well: those to its reads, then the one to its write."""
        raise NotImplementedError("say how this remote answers when all goes well")

    def found_answers(self, request: Request, count: int) -> Sequence[Reply]:
        """The answers to a look that finds `count` objects, each equal to the request."""
        raise NotImplementedError("say how this remote answers a look")

    def incomplete_answers(self, request: Request) -> Sequence[Reply]:
        """The answers to a look whose pages are broken or do not end."""
        raise NotImplementedError("say how a look at this remote comes out incomplete")

    # --- what the tests are run for --------------------------------------------------------------

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per action, code, status or recording."""
        cls: Any = metafunc.cls
        actions = cls.connector_class.actions
        writes = [name for name, action in actions.items() if isinstance(action, Write)]
        values: dict[str, list[Any]] = {
            "action": writes,
            "found_action": [
                name for name in writes if actions[name].capabilities & FIND_BY_EXTERNAL_ID
            ],
            "error_code": list(cls.connector_class.errors.codes),
            "error_status": list(cls.connector_class.errors.statuses),
            "recorded": list(_recordings(cls.fixtures)),
        }
        for name, known in values.items():
            if name in metafunc.fixturenames:
                # An empty list would be a skip without a reason; such a connector has no such
                # question.
                metafunc.parametrize(
                    name, known or [None], ids=[_name(value) for value in known] or ["none"]
                )

    @pytest.fixture
    def connector(self) -> Connector:
        """The connector under test."""
        return self.connector_class(self.settings, self.secrets)

    def request_for(self, action: str) -> Request:
        """The sample of an action."""
        assert action in self.sample_requests, f"sample_requests lacks {action}"
        return self.sample_requests[action]

    def writing(
        self, connector: Connector, request: Request, last: Reply | None = None
    ) -> tuple[list[Call], Any]:
        """The calls of a `send` and what was seen; `last` replaces the answer to its write."""
        replies = list(self.done_answers(request))
        if last is not None:
            replies[-1] = last
        calls: list[Call] = []
        declared = connector.declared()[request.action]
        seen = observe(
            connector.send(request),
            replies,
            errors=connector.errors,
            action=declared if isinstance(declared, Write) else None,
            calls=calls,
        )
        return calls, seen

    # --- declarations ----------------------------------------------------------------------------

    def test_what_is_declared_is_implemented(self) -> None:
        assert declaration_problems(self.connector_class) == []

    def test_every_action_has_a_sample_that_is_valid(self, connector: Connector) -> None:
        assert set(self.sample_requests) == set(connector.actions)
        for action, request in self.sample_requests.items():
            assert request.action == action
            assert list(connector.validate(action, request.fields)) == []

    def test_what_is_not_declared_is_class_d(self, connector: Connector, action: str) -> None:
        declared = connector.declared()[action]
        assert isinstance(declared, Write)
        bare = declared.without(*Capability)
        assert bare.safety is SafetyClass.D
        assert not bare.can_look
        if not declared.capabilities:
            assert declared.safety is SafetyClass.D

    # --- errors ----------------------------------------------------------------------------------

    def test_an_error_code_lands_in_its_class(
        self, connector: Connector, error_code: str | None
    ) -> None:
        code = error_code
        if code is None:
            assert not connector.errors.codes
            return
        wanted = connector.errors.codes[code]
        for spelled in {code, code.lower(), code.upper()}:
            seen = classify(self.error_answer(spelled), connector.errors, Write())
            if wanted is ErrorClass.UNKNOWN:
                assert isinstance(seen, Unanswered), spelled
                assert not seen.nothing_left, spelled
            else:
                assert isinstance(seen, Refused), spelled
                assert seen.error is wanted, spelled
                assert seen.text, f"{spelled}: no words for the operator"

    def test_a_status_lands_in_its_class(
        self, connector: Connector, error_status: int | None
    ) -> None:
        status = error_status
        if status is None:
            assert not connector.errors.statuses
            return
        seen = classify(self.status_answer(status), connector.errors, Write())
        assert isinstance(seen, Refused)
        assert seen.error is connector.errors.statuses[status]

    def test_an_unknown_code_counts_as_no_answer(self, connector: Connector) -> None:
        if not connector.errors.codes:
            assert connector.errors.code_of(self.unknown_code_answer()) is None
            return
        seen = classify(self.unknown_code_answer(), connector.errors, Write())
        assert isinstance(seen, Unanswered)
        assert not seen.nothing_left

    # --- writing ---------------------------------------------------------------------------------

    def test_send_makes_one_write_and_it_is_last(self, connector: Connector, action: str) -> None:
        calls, seen = self.writing(connector, self.request_for(action))
        assert isinstance(seen, Done | Accepted), seen
        assert seen.echo in (Echo.OURS, Echo.NOT_EXPECTED)
        assert [call.write for call in calls] == [False] * (len(calls) - 1) + [True]
        declared = connector.declared()[action]
        if isinstance(declared, Write) and declared.creates and isinstance(seen, Done):
            assert seen.remote_ref, "a confirmed create must know the remote id"

    def test_a_repeat_is_the_same_request(self, connector: Connector, action: str) -> None:
        request = self.request_for(action)
        declared = connector.declared()[action]
        first, _ = self.writing(connector, request)
        again, _ = self.writing(connector, replace(request, repeat=True))
        assert first[-1] == again[-1]
        assert isinstance(declared, Write)
        if declared.capabilities & IDEMPOTENCY_KEY:
            assert request.remote_key in _said(first[-1]), "the write does not carry the key"
        if declared.capabilities & FIND_BY_EXTERNAL_ID:
            assert request.reference in _said(first[-1]), "the write does not carry the reference"

    def test_a_lost_answer_may_have_been_carried_out(
        self, connector: Connector, action: str
    ) -> None:
        _, seen = self.writing(connector, self.request_for(action), LOST)
        assert isinstance(seen, Unanswered)
        assert not seen.nothing_left

    @pytest.mark.parametrize("page", [b"", b"<html>Log in</html>", b"[]", b'{"id": ', b"null"])
    def test_an_answer_nobody_can_read_confirms_nothing(
        self, connector: Connector, action: str, page: bytes
    ) -> None:
        foreign = answer(200, body=page, headers={"content-type": "text/html"})
        _, seen = self.writing(connector, self.request_for(action), foreign)
        assert isinstance(seen, Unanswered)
        assert not seen.nothing_left

    def test_a_body_that_was_cut_confirms_nothing_by_itself(
        self, connector: Connector, action: str
    ) -> None:
        cut = answer(200, body=b'{"resu', body_lost=True)
        _, seen = self.writing(connector, self.request_for(action), cut)
        assert not isinstance(seen, Done | Accepted | Refused)

    # --- looking ---------------------------------------------------------------------------------

    def look(self, connector: Connector, request: Request, replies: Sequence[Reply]) -> Any:
        """What a look sees."""
        return observe(connector.find(request), replies, errors=connector.errors)

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_a_look_tells_none_from_one_from_many(
        self, connector: Connector, found_action: str | None, count: int
    ) -> None:
        if found_action is None:
            self._assert_nothing_is_found_by_reference()
            return
        request = self.request_for(found_action)
        seen = self.look(connector, request, self.found_answers(request, count))
        assert isinstance(seen, Looked), seen
        assert seen.complete
        assert len(seen.candidates) == count
        assert all(candidate.matches for candidate in seen.candidates)
        assert len({candidate.remote_ref for candidate in seen.candidates}) == count

    def test_incomplete_pages_are_no_answer(
        self, connector: Connector, found_action: str | None
    ) -> None:
        if found_action is None:
            self._assert_nothing_is_found_by_reference()
            return
        request = self.request_for(found_action)
        seen = self.look(connector, request, self.incomplete_answers(request))
        assert not (isinstance(seen, Looked) and seen.complete)

    @pytest.mark.parametrize("body", [b"<html>502</html>", b"{}", b"[]", b""])
    def test_a_look_that_fails_never_says_absent(
        self, connector: Connector, action: str, body: bytes
    ) -> None:
        declared = connector.declared()[action]
        assert isinstance(declared, Write)
        if not declared.can_look:
            with pytest.raises(NotImplementedError):
                connector.find(self.request_for(action))
            return
        for status in (200, 401, 403, 404, 429, 500, 502, 503):
            seen = self.look(connector, self.request_for(action), [answer(status, body=body)])
            assert not (isinstance(seen, Looked) and seen.complete), (status, body)

    def _assert_nothing_is_found_by_reference(self) -> None:
        for declared in self.connector_class.actions.values():
            assert not (isinstance(declared, Write) and declared.capabilities & FIND_BY_EXTERNAL_ID)

    # --- secrets ---------------------------------------------------------------------------------

    def test_no_secret_is_shown(self, connector: Connector, action: str) -> None:
        request = self.request_for(action)
        calls, seen = self.writing(connector, request)
        for call in calls:
            self._assert_hidden(connector, call)
        self._assert_no_secret(repr(seen))

    def test_a_recording_holds_true(self, connector: Connector, recorded: Recorded | None) -> None:
        if recorded is None:
            assert self.fixtures is None, "the folder of recordings is empty"
            return
        declared = connector.declared().get(recorded.request.action)
        calls: list[Call] = []
        seen = observe(
            recorded.start(connector),
            recorded.answers,
            errors=connector.errors,
            action=declared if isinstance(declared, Write) else None,
            calls=calls,
        )
        assert recorded.differences(calls, seen) == []
        assert recorded.source, "say where the recording comes from, with its date"
        for call in calls:
            self._assert_hidden(connector, call)
        self._assert_no_secret(repr(seen))

    def _assert_hidden(self, connector: Connector, call: Call) -> None:
        self._assert_no_secret(repr(call))
        sent = connector.authorize(call)
        self._assert_no_secret(sent.label)
        assert (sent.method, sent.body, sent.write) == (call.method, call.body, call.write)
        for secret in self.secrets.values():
            assert any(part in repr(sent) for part in _parts(secret)), "authorize adds no secret"

    def _assert_no_secret(self, text: str) -> None:
        for secret in self.secrets.values():
            for part in _parts(secret):
                assert part not in text, "a secret is shown"


def _parts(secret: str) -> list[str]:
    """A secret, and its pieces long enough to be one."""
    return [secret, *(part for part in secret.split("/") if len(part) >= 8)]


def _said(call: Call) -> str:
    headers = " ".join(value for _, value in call.headers)
    return f"{call.path} {headers} {call.body.decode(errors='replace')}"


def _name(value: Any) -> str:
    return value.name if isinstance(value, Recorded) else str(value) or "empty"
