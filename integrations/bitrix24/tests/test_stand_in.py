"""The connector's steps over real HTTP, against the stand-in in a process of its own.

The driver here is deliberately simple: no retries, no judgement; what was lost is lost.
"""

import http.client
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest

from hub.contract import (
    Call,
    CallFailed,
    Conflict,
    ConnectionSettings,
    Done,
    Echo,
    FailureKind,
    Refused,
    Request,
    Steps,
    Unanswered,
)
from hub.states import ErrorClass
from hub.testing import Reply, answer, observe
from integrations.bitrix24.connector import Bitrix24Connector
from integrations.bitrix24.simulator.client import Simulator
from integrations.bitrix24.tests.samples import CREATE, FIELDS, REFERENCE

PORTAL = "acme"
SECRET = "s3cretWebhook77"


@pytest.fixture(scope="module")
def running() -> Iterator[Simulator]:
    with Simulator(portals={PORTAL: SECRET}) as simulator:
        yield simulator


@pytest.fixture
def stand_in(running: Simulator) -> Simulator:
    running.reset()
    return running


class Portal:
    """One portal of the stand-in, spoken to through the connector."""

    def __init__(self, simulator: Simulator, secret: str = SECRET) -> None:
        self.simulator = simulator
        self.base_url = simulator.base_url(PORTAL)
        self.connector = Bitrix24Connector(
            ConnectionSettings("test", PORTAL, self.base_url), {"webhook": f"1/{secret}"}
        )
        self.calls: list[Call] = []

    def call(self, call: Call) -> Reply:
        sent = self.connector.authorize(call)
        request = HttpRequest(
            self.base_url + sent.path, sent.body, dict(sent.headers), method=sent.method
        )
        try:
            with urlopen(request, timeout=20) as response:
                return answer(response.status, body=response.read(), headers=response.headers)
        except HTTPError as error:
            return answer(error.code, body=error.read(), headers=dict(error.headers))
        except (OSError, http.client.HTTPException) as error:
            return CallFailed(FailureKind.READ, type(error).__name__, begun=True)

    def run(self, steps: Steps[Any]) -> Any:
        self.calls = []
        return observe(steps, self.call, errors=self.connector.errors, calls=self.calls)

    def send(self, request: Request) -> Any:
        return self.run(self.connector.send(request))

    def find(self, request: Request) -> Any:
        return self.run(self.connector.find(request))

    def effects(self) -> list[tuple[str, str]]:
        return [
            (effect["method"], str(effect["remote_id"]))
            for effect in self.simulator.ledger(portal=PORTAL)
        ]


@pytest.fixture
def portal(stand_in: Simulator) -> Portal:
    return Portal(stand_in)


def made(portal: Portal, request: Request = CREATE) -> Done:
    done = portal.send(request)
    assert isinstance(done, Done), done
    return done


def update_of(done: Done, version: int = 4, **fields: Any) -> Request:
    return replace(
        CREATE,
        action="contact.update",
        reference="opkey2",
        version=version,
        remote_ref=done.remote_ref,
        seen_values=done.values,
        fields={**FIELDS, **fields},
    )


def test_a_create_is_echoed_and_found_by_its_reference(portal: Portal) -> None:
    assert portal.find(CREATE).candidates == ()
    done = made(portal)
    assert done.echo is Echo.OURS
    assert [row["value"] for row in done.values["phone"]] == ["+34 600 000 001"]
    looked = portal.find(CREATE)
    assert looked.complete
    (candidate,) = looked.candidates
    assert (candidate.remote_ref, candidate.matches, candidate.version) == (
        done.remote_ref, True, "3",
    )  # fmt: skip
    (effect,) = portal.simulator.ledger(portal=PORTAL)
    assert effect["reference"] == REFERENCE
    assert str(effect["version"]) == "3"


def test_a_create_whose_answer_was_lost_is_found(portal: Portal) -> None:
    portal.simulator.fault("answer_lost_after_commit", "crm.item.add")
    lost = portal.send(CREATE)
    assert isinstance(lost, Unanswered)
    assert not lost.nothing_left
    assert len(portal.find(CREATE).candidates) == 1


def test_a_create_that_did_not_happen_is_not_found(portal: Portal) -> None:
    portal.simulator.fault("answer_lost_before_commit", "crm.item.add")
    assert isinstance(portal.send(CREATE), Unanswered)
    looked = portal.find(CREATE)
    assert looked.complete
    assert looked.candidates == ()


def test_two_objects_with_our_reference_are_told_apart(portal: Portal) -> None:
    first, second = made(portal), made(portal)
    assert [one.remote_ref for one in portal.find(CREATE).candidates] == [
        first.remote_ref,
        second.remote_ref,
    ]


def test_an_update_changes_the_difference_and_leaves_other_rows(portal: Portal) -> None:
    done = made(portal)
    person = portal.call(
        Call.post(
            "crm.item.update",
            json={
                "entityTypeId": 3,
                "id": int(done.remote_ref),
                "fields": {"fm": {"n0": {"typeId": "PHONE", "valueType": "HOME", "value": "+9"}}},
            },
        )
    )
    assert not isinstance(person, Exception)
    updated = portal.send(
        update_of(done, last_name="Roca", phone=["+34 600 000 002", "+34 600 000 003"])
    )
    assert isinstance(updated, Done)
    assert updated.echo is not Echo.OTHER
    (item,) = portal.simulator.items(PORTAL)
    assert item["lastName"] == "Roca"
    phones = sorted(row["value"] for row in item["fm"] if row["typeId"] == "PHONE")
    assert phones == ["+34 600 000 002", "+34 600 000 003", "+9"]
    looked = portal.find(
        update_of(updated, last_name="Roca", phone=["+34 600 000 002", "+34 600 000 003"])
    )
    assert looked.candidates[0].matches
    # And the rows it wrote, no others, can be taken back.
    assert isinstance(portal.send(update_of(updated, 5, last_name="Roca", phone=None)), Done)
    (item,) = portal.simulator.items(PORTAL)
    assert [row["value"] for row in item["fm"] if row["typeId"] == "PHONE"] == ["+9"]


def test_a_repeated_update_writes_nothing(portal: Portal) -> None:
    done = made(portal)
    request = update_of(done, last_name="Roca", phone="+34 600 000 002")
    portal.simulator.fault("answer_lost_after_commit", "crm.item.update")
    assert isinstance(portal.send(request), Unanswered)
    before = portal.effects()
    again = portal.send(replace(request, repeat=True))
    assert isinstance(again, Done)
    assert [call.label for call in portal.calls] == ["crm.item.get"]
    assert portal.effects() == before


def test_an_older_version_is_not_written_over_a_newer_one(portal: Portal) -> None:
    done = made(portal)
    made(portal, update_of(done, 9, last_name="New"))
    before = portal.effects()
    refused = portal.send(update_of(done, 4, last_name="Old"))
    assert isinstance(refused, Refused)
    assert refused.conflict is Conflict.VERSION
    assert portal.effects() == before


@pytest.mark.parametrize("ignored", [False, True])
def test_whether_a_value_was_cleared_comes_out_in_the_look(portal: Portal, ignored: bool) -> None:
    done = made(portal, replace(CREATE, fields={**FIELDS, "comments": "old"}))
    request = update_of(done, comments=None)
    if ignored:
        portal.simulator.fault("clear_ignored", "crm.item.update")
    updated = portal.send(request)
    # The answers are the same in both cases.
    assert updated.echo is Echo.OTHER
    assert updated.values["comments"] is None
    assert portal.find(request).candidates[0].matches is not ignored


def test_a_delete_and_a_delete_of_what_is_gone(portal: Portal) -> None:
    done = made(portal)
    request = replace(update_of(done, 5), action="contact.delete", fields={})
    assert len(portal.find(request).candidates) == 1
    assert isinstance(portal.send(request), Done)
    again = portal.send(request)
    assert isinstance(again, Refused)
    assert again.error is ErrorClass.MISSING
    looked = portal.find(request)
    assert looked.candidates == ()
    assert looked.authoritative


def test_a_field_that_is_ignored_shows_in_the_echo(portal: Portal) -> None:
    portal.simulator.fault("field_ignored", "crm.item.add")
    assert made(portal).echo is Echo.MISSING


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("throttle", ErrorClass.THROTTLED),
        ("operation_time_limit", ErrorClass.THROTTLED),
        ("coded_5xx_before_commit", None),
        ("coded_5xx_after_commit", None),
        ("uncoded_5xx_before_commit", None),
        ("uncoded_5xx_after_commit", None),
        ("html_body", None),
        ("cut_body", None),
    ],
)
def test_faults_are_read_for_what_they_are(
    portal: Portal, fault: str, error: ErrorClass | None
) -> None:
    portal.simulator.fault(fault, "crm.item.add")
    seen = portal.send(CREATE)
    if error is None:
        assert isinstance(seen, Unanswered)
        assert not seen.nothing_left
    else:
        assert isinstance(seen, Refused)
        assert seen.error is error


def test_the_connection_test_on_an_empty_and_on_a_used_portal(portal: Portal) -> None:
    empty = portal.run(portal.connector.check())
    assert empty.ok, empty
    assert "not yet proven" in empty.findings[-1].text
    done = made(portal)
    used = portal.run(portal.connector.check())
    assert used.ok
    assert done.remote_ref in used.findings[-1].text
    assert portal.effects() == [("crm.item.add", done.remote_ref)]


def test_a_wrong_webhook_is_about_our_credential(stand_in: Simulator) -> None:
    stranger = Portal(stand_in, "another1")
    refused = stranger.send(CREATE)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorClass.CREDENTIAL
    checked = stranger.run(stranger.connector.check())
    assert not checked.ok
    assert checked.unproven == ("contact.create",)


def test_the_probe_of_the_breaker_answers(portal: Portal) -> None:
    assert portal.run(portal.connector.ping()) is None
    assert [call.label for call in portal.calls] == ["server.time"]
