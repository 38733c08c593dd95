"""The probe answers what every connector is asked, and takes no stranger for the hub."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hub.contract import (
    Answer,
    ConnectionSettings,
    Connector,
    Done,
    Echo,
    Refused,
    Request,
    SafetyClass,
    Unanswered,
    Write,
)
from hub.states import ErrorClass
from hub.testing import Reply, answer, drive
from hub.testing.conformance import ConnectorConformance
from integrations.probe.connector import ProbeConnector

REQUEST = Request(
    action="probe.echo",
    fields={"nonce": "n-4711"},
    object_type="probe",
    source_system="hub",
    source_id="probe",
    version=4711,
    remote_key="probekey4711",
    reference="probekey4711",
    mark="hub-mark",
)


class TestProbe(ConnectorConformance):
    connector_class = ProbeConnector
    settings = ConnectionSettings("probe", "hub", "http://127.0.0.1:8000")
    sample_requests = {"probe.echo": REQUEST}

    def error_answer(self, code: str) -> Answer:
        return answer(400, {"error": code})

    def done_answers(self, request: Request) -> Sequence[Reply]:
        return [answer(200, {"echo": request.fields["nonce"], "key": request.remote_key})]

    def test_it_is_safe_to_repeat_by_key_and_no_full_state(self) -> None:
        declared = self.connector_class.actions["probe.echo"]
        assert isinstance(declared, Write)
        assert declared.safety is SafetyClass.A
        assert not declared.is_full_state
        assert declared.keeps_alive

    @pytest.mark.parametrize(
        ("body", "echo"),
        [
            ({"echo": "n-4711", "key": "probekey4711"}, Echo.OURS),
            ({"echo": "n-4711"}, Echo.MISSING),
            ({"echo": "n-4711", "key": "other"}, Echo.OTHER),
        ],
    )
    def test_the_key_that_comes_back_is_compared(
        self, connector: Connector, body: Any, echo: Echo
    ) -> None:
        _, seen = self.writing(connector, REQUEST, answer(200, body))
        assert isinstance(seen, Done)
        assert seen.echo is echo

    def test_another_nonce_is_not_our_answer(self, connector: Connector) -> None:
        _, seen = self.writing(connector, REQUEST, answer(200, {"echo": "n-1", "key": "k"}))
        assert isinstance(seen, Unanswered)
        assert not seen.nothing_left

    def test_a_stranger_at_the_address_fails_the_probe(self, connector: Connector) -> None:
        _, seen = self.writing(connector, REQUEST, answer(404, body=b"<h1>Not Found</h1>"))
        assert isinstance(seen, Refused)
        assert seen.error is ErrorClass.INVALID

    @pytest.mark.parametrize("nonce", [None, "", 7, "x" * 201])
    def test_a_nonce_that_is_none_is_refused(self, connector: Connector, nonce: Any) -> None:
        assert list(connector.validate("probe.echo", {"nonce": nonce}))
        assert list(connector.validate("probe.echo", {"nonce": "n", "more": 1}))

    def test_the_same_nonce_with_another_key_differs_in_the_key_only(
        self, connector: Connector
    ) -> None:
        other = replace(REQUEST, remote_key="probekey4712")
        first, _ = self.writing(connector, REQUEST)
        second, _ = self.writing(connector, other)
        assert first[0].body == second[0].body
        assert first[0].headers != second[0].headers

    @pytest.mark.parametrize("status", [200, 503])
    def test_the_connection_test_says_whether_the_web_process_answers(
        self, connector: Connector, status: int
    ) -> None:
        checked = drive(connector.check(), [answer(status, {})], errors=connector.errors)
        assert checked.ok is (status == 200)
        assert checked.findings[0].text
