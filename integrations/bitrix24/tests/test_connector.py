"""The connector's calls and what it makes of the answers, driven without a network."""

from dataclasses import replace
from typing import Any

import pytest

from hub.contract import (
    BadPayload,
    Call,
    CallFailed,
    CallRefused,
    Conflict,
    ConnectionSettings,
    Done,
    Echo,
    Looked,
    SafetyClass,
    Unanswered,
    Write,
)
from hub.registry import effective
from hub.states import ErrorClass
from hub.testing import Reply, answer, drive, observe
from integrations.bitrix24.connector import MAX_PAGES, PAGE, UNUSED_REFERENCE, Bitrix24Connector
from integrations.bitrix24.tests.samples import (
    CREATE,
    DELETE,
    EMAIL_ROW,
    FIELDS,
    MARK,
    PHONE_ROW,
    REFERENCE,
    SECRET,
    UPDATE,
    connector,
    error_answer,
    item,
    item_answer,
    list_answer,
    sent,
)

NOTED = {"phone": [{"value": "+34 600 000 001", "type": "WORK", "id": "991"}]}
OK = answer(200, {"result": [], "time": {}})


def run(steps: Any, *replies: Reply) -> tuple[Any, list[Call]]:
    calls: list[Call] = []
    return drive(steps, replies, errors=connector().errors, calls=calls), calls


# --- declarations and access ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "safety", "looks"),
    [
        ("contact.create", SafetyClass.C, True),
        ("contact.update", SafetyClass.B_PRIME, True),
        ("contact.delete", SafetyClass.B_PRIME, True),
    ],
)
def test_the_classes_and_numbers_are_those_of_the_contract(
    action: str, safety: SafetyClass, looks: bool
) -> None:
    declared = Bitrix24Connector.actions[action]
    assert isinstance(declared, Write)
    assert (declared.safety, declared.can_look) == (safety, looks)
    assert (declared.max_send, declared.max_exec) == (75, 60)
    assert declared.source
    assert declared.dated == "2026-08-21"


def test_a_connection_may_state_numbers_of_its_own() -> None:
    own: dict[str, dict[str, Any]] = {
        "*": {"max_exec": None},
        "contact.create": {"index_lag": {"value": 5, "date": "today"}},
    }
    create = effective(connector(), "contact.create", own)
    assert isinstance(create, Write)
    assert (create.max_exec, create.index_lag, create.dated) == (None, 5, "today")
    limit = Bitrix24Connector.limits["default"]
    assert (limit.rate, limit.burst, limit.per) == (2, 40, "host")


@pytest.mark.parametrize(
    "secret", [SECRET, f"/{SECRET}/", f"https://portal.example/rest/{SECRET}/", f" {SECRET}\n"]
)
def test_the_webhook_goes_into_the_path_and_nowhere_else(secret: str) -> None:
    spoken = Bitrix24Connector(connector().settings, {"webhook": secret})
    call = Call.post("crm.item.add", json={"a": 1}, write=True)
    authorized = spoken.authorize(call)
    assert authorized.path == f"/rest/{SECRET}/crm.item.add"
    assert authorized.label == "crm.item.add"
    assert authorized.body == call.body


@pytest.mark.parametrize("secret", ["", "s3cret", "1/", "x/s3cret", "1/s3cret?x=1", "1/a/b/../c"])
def test_a_webhook_that_is_none_is_named_without_being_shown(secret: str) -> None:
    spoken = Bitrix24Connector(connector().settings, {"webhook": secret})
    with pytest.raises(BadPayload, match="USER_ID/SECRET") as raised:
        spoken.authorize(Call.post("server.time"))
    assert "s3cret" not in str(raised.value)


# --- create ---------------------------------------------------------------------------------------


def test_a_create_carries_mark_reference_and_version() -> None:
    done, calls = run(connector().send(CREATE), item_answer())
    fields = sent(calls[0])["fields"]
    assert calls[0].label == calls[0].path == "crm.item.add"
    assert sent(calls[0])["entityTypeId"] == 3
    assert fields["originatorId"] == MARK
    assert fields["originId"] == REFERENCE
    assert fields["originVersion"] == "3"
    assert fields["name"] == "Ana"
    assert done.remote_ref == "415"
    assert done.echo is Echo.OURS
    assert done.values["phone"] == NOTED["phone"]


@pytest.mark.parametrize(
    ("changes", "echo"),
    [
        ({}, Echo.OURS),
        ({"originId": None}, Echo.MISSING),
        ({"originId": ""}, Echo.MISSING),
        ({"originatorId": None}, Echo.MISSING),
        ({"originId": "another"}, Echo.OTHER),
        ({"originatorId": "another"}, Echo.OTHER),
    ],
)
def test_the_echo_of_a_create_is_compared(changes: dict[str, Any], echo: Echo) -> None:
    done, _ = run(connector().send(CREATE), item_answer(**changes))
    assert done.echo is echo


@pytest.mark.parametrize("body", [{"result": []}, {"result": {"item": []}}, {"result": 415}])
def test_an_answer_without_the_new_item_is_no_answer(body: Any) -> None:
    seen = observe(connector().send(CREATE), [answer(200, body)], errors=connector().errors)
    assert isinstance(seen, Unanswered)
    assert not seen.nothing_left


# --- update ---------------------------------------------------------------------------------------


def test_an_update_sends_the_difference_only() -> None:
    request = replace(
        UPDATE, fields={**FIELDS, "last_name": "Vidal Roca", "phone": "2"}, seen_values=NOTED
    )
    after = item_answer(
        lastName="Vidal Roca", originVersion="4", fm=[{**PHONE_ROW, "value": "2"}, EMAIL_ROW]
    )
    done, calls = run(connector().send(request), item_answer(), after)
    assert [call.label for call in calls] == ["crm.item.get", "crm.item.update"]
    assert sent(calls[1]) == {
        "entityTypeId": 3,
        "id": 415,
        "fields": {
            "lastName": "Vidal Roca",
            "fm": {"991": {"typeId": "PHONE", "valueType": "WORK", "value": "2"}},
            "originVersion": "4",
        },
    }
    assert done.remote_ref == "415"
    assert done.values["phone"] == [{"value": "2", "type": "WORK", "id": "991"}]


def test_an_update_that_is_there_already_writes_nothing() -> None:
    done, calls = run(connector().send(UPDATE), item_answer(originVersion="4"))
    assert [call.label for call in calls] == ["crm.item.get"]
    assert isinstance(done, Done)
    assert "nothing was written" in done.note


def test_equal_fields_under_an_older_version_get_the_version() -> None:
    _, calls = run(connector().send(UPDATE), item_answer(), item_answer(originVersion="4"))
    assert sent(calls[1])["fields"] == {"originVersion": "4"}


def test_a_newer_version_of_ours_stops_an_update_before_its_write() -> None:
    calls: list[Call] = []
    steps = connector().send(UPDATE)
    with pytest.raises(CallRefused) as raised:
        drive(steps, [item_answer(originVersion="9")], errors=connector().errors, calls=calls)
    assert raised.value.refusal.error is ErrorClass.CONFLICT
    assert raised.value.refusal.conflict is Conflict.VERSION
    assert not any(call.write for call in calls)


def test_versions_are_compared_as_numbers() -> None:
    request = replace(UPDATE, version=10)
    _, calls = run(
        connector().send(request), item_answer(originVersion="9"), item_answer(originVersion="10")
    )
    assert sent(calls[1])["fields"] == {"originVersion": "10"}


def test_another_systems_object_keeps_its_origin_and_its_version() -> None:
    theirs = {"originatorId": "erp", "originId": "77", "originVersion": "900"}
    _, calls = run(
        connector().send(UPDATE), item_answer(name="Anna", **theirs), item_answer(**theirs)
    )
    assert sent(calls[1])["fields"] == {"name": "Ana"}


def test_a_linked_object_of_nobodys_becomes_ours() -> None:
    nobody = {"originatorId": None, "originId": None, "originVersion": None}
    _, calls = run(connector().send(UPDATE), item_answer(**nobody), item_answer(originVersion="4"))
    assert sent(calls[1])["fields"] == {"originatorId": MARK, "originVersion": "4"}


def test_a_value_that_was_cleared_is_read_back_by_a_look() -> None:
    request = replace(UPDATE, fields={"first_name": "Ana", "comments": None})
    before = item_answer(comments="old")
    # Reported: the answer shows null, and the value is still there.
    done, _ = run(connector().send(request), before, item_answer(originVersion="4"))
    assert done.echo is Echo.OTHER
    assert "comments" in done.note
    looked, _ = run(connector().find(request), item_answer(comments="old", originVersion="4"))
    assert [one.field for one in looked.candidates[0].differences] == ["comments"]


@pytest.mark.parametrize(
    "changes", [{"id": 416}, {"originVersion": "7"}, {"fm": [PHONE_ROW, EMAIL_ROW]}]
)
def test_an_answer_that_is_not_about_our_update_is_looked_at(changes: dict[str, Any]) -> None:
    request = replace(UPDATE, fields={"phone": "2"}, seen_values=NOTED)
    after = {"originVersion": "4", "fm": [{**PHONE_ROW, "value": "2"}], **changes}
    done, _ = run(connector().send(request), item_answer(), item_answer(**after))
    assert done.echo is Echo.OTHER


@pytest.mark.parametrize("phone", ["2", None])
def test_phones_are_not_touched_on_a_contact_that_hides_its_phones(phone: str | None) -> None:
    request = replace(UPDATE, fields={**FIELDS, "phone": phone}, seen_values=NOTED)
    shown = item()
    del shown["fm"]
    seen = observe(
        connector().send(request),
        [answer(200, {"result": {"item": shown}})],
        errors=connector().errors,
    )
    assert isinstance(seen, Unanswered)
    assert seen.nothing_left


def test_an_item_that_is_not_the_one_asked_for_is_not_changed() -> None:
    with pytest.raises(CallFailed) as raised:
        run(connector().send(UPDATE), item_answer(id=9))
    assert not raised.value.begun


def test_an_update_of_a_vanished_contact_says_missing() -> None:
    with pytest.raises(CallRefused) as raised:
        run(connector().send(UPDATE), error_answer("NOT_FOUND"))
    assert raised.value.refusal.error is ErrorClass.MISSING


@pytest.mark.parametrize("remote_ref", ["", "x", "4 15", "1" * 30])
def test_an_id_that_is_none_is_refused(remote_ref: str) -> None:
    for request in (UPDATE, DELETE):
        with pytest.raises(BadPayload):
            run(connector().send(replace(request, remote_ref=remote_ref)))


# --- delete ---------------------------------------------------------------------------------------


def test_a_delete_is_one_call() -> None:
    done, calls = run(connector().send(DELETE), OK)
    assert [(call.label, call.write) for call in calls] == [("crm.item.delete", True)]
    assert sent(calls[0]) == {"entityTypeId": 3, "id": 415}
    assert done.remote_ref == "415"


def test_a_delete_of_what_is_gone_says_missing() -> None:
    seen = observe(connector().send(DELETE), [error_answer("NOT_FOUND")], errors=connector().errors)
    assert getattr(seen, "error", None) is ErrorClass.MISSING


# --- looking --------------------------------------------------------------------------------------


def test_a_look_for_a_create_asks_for_everything_by_both_fields() -> None:
    looked, calls = run(connector().find(CREATE), list_answer(item()))
    assert sent(calls[0]) == {
        "entityTypeId": 3,
        "filter": {"=originatorId": MARK, "=originId": REFERENCE, ">id": 0},
        "select": ["*"],
        "order": {"id": "ASC"},
        "start": -1,
    }
    (candidate,) = looked.candidates
    assert looked.complete
    assert not looked.authoritative
    assert candidate.matches
    assert candidate.version == "3"
    assert candidate.reference == REFERENCE
    assert candidate.url == "https://portal.example/acme/crm/contact/details/415/"


def test_a_look_shows_what_differs() -> None:
    looked, _ = run(connector().find(CREATE), list_answer(item(name="Anna", originVersion="2")))
    (candidate,) = looked.candidates
    assert not candidate.matches
    assert [(one.field, one.theirs) for one in candidate.differences] == [("first_name", "Anna")]
    assert candidate.version == "2"


def test_a_look_pages_by_id_to_the_end() -> None:
    first = list_answer(*(item(id=number) for number in range(1, PAGE + 1)))
    looked, calls = run(connector().find(CREATE), first, list_answer(item(id=900)))
    assert sent(calls[1])["filter"][">id"] == PAGE
    assert looked.complete
    assert len(looked.candidates) == PAGE + 1


def test_a_full_page_is_not_the_end() -> None:
    full = list_answer(*(item(id=number) for number in range(1, PAGE + 1)))
    looked, _ = run(connector().find(CREATE), full, list_answer())
    assert looked.complete
    assert len(looked.candidates) == PAGE


@pytest.mark.parametrize(
    "pages",
    [
        [list_answer(item(), item(id=416, originId="another"))],
        [list_answer(item(originId=None))],
        [list_answer(item(originatorId="erp"))],
        [list_answer(item(originId=REFERENCE.upper()))],
        [list_answer(item(id=5), item(id=5))],
        [list_answer(item(id=6), item(id=5))],
        [list_answer(item(id=None))],
        [answer(200, {"result": []})],
        [answer(200, {"result": {"items": {"1": item()}}})],
        [answer(200, {"result": {"items": [None]}})],
    ],
    ids=[
        "a stranger among ours", "no reference", "other originator", "other case", "twice",
        "order", "no id", "empty map", "object", "null row",
    ],
)  # fmt: skip
def test_a_look_at_broken_pages_is_incomplete(pages: list[Reply]) -> None:
    looked, _ = run(connector().find(CREATE), *pages)
    assert isinstance(looked, Looked)
    assert not looked.complete
    assert looked.text


def test_a_list_without_end_is_given_up() -> None:
    def page(call: Call) -> Reply:
        last = sent(call)["filter"][">id"]
        return list_answer(*(item(id=last + 1 + place) for place in range(PAGE)))

    calls: list[Call] = []
    looked = drive(connector().find(CREATE), page, errors=connector().errors, calls=calls)
    assert not looked.complete
    assert len(calls) == MAX_PAGES


@pytest.mark.parametrize("request_", [UPDATE, DELETE], ids=["update", "delete"])
def test_a_look_by_id_is_authoritative(request_: Any) -> None:
    gone, _ = run(connector().find(request_), error_answer("NOT_FOUND"))
    assert gone == Looked((), complete=True, authoritative=True)
    there, calls = run(connector().find(request_), item_answer())
    assert sent(calls[0]) == {"entityTypeId": 3, "id": 415}
    assert there.authoritative
    assert len(there.candidates) == 1


def test_a_look_without_an_id_says_that_it_saw_nothing() -> None:
    looked, calls = run(connector().find(replace(UPDATE, remote_ref="")))
    assert not looked.complete
    assert not calls


def test_an_object_is_read_before_a_link() -> None:
    found, _ = run(connector().read(CREATE, "415"), item_answer())
    assert found is not None
    assert found.matches
    missing, _ = run(connector().read(CREATE, "415"), error_answer("NOT_FOUND"))
    assert missing is None


# --- connection test ------------------------------------------------------------------------------

PROFILE = answer(200, {"result": {"ID": "1", "ADMIN": True}})
SCOPE = answer(200, {"result": ["crm", "task"]})
SCHEMA = answer(
    200,
    {"result": {"fields": {"originId": {}, "originatorId": {}, "originVersion": {}, "name": {}}}},
)


def check(*replies: Reply, **options: Any) -> tuple[Any, list[Call]]:
    return run(connector(**options).check(), *replies)


def test_a_connection_is_well_when_the_filter_finds_what_is_there() -> None:
    checked, calls = check(PROFILE, SCOPE, SCHEMA, list_answer(), list_answer(item()),
                           list_answer(item()))  # fmt: skip
    assert checked.ok
    assert checked.unproven == ()
    assert checked.account == "portal.example/acme"
    assert not any(call.write for call in calls)
    assert sent(calls[3])["filter"]["=originId"] == UNUSED_REFERENCE


def test_an_empty_portal_passes_and_says_what_is_not_proven() -> None:
    checked, _ = check(PROFILE, SCOPE, SCHEMA, list_answer(), list_answer())
    assert checked.ok
    assert "not yet proven" in checked.findings[-1].text


@pytest.mark.parametrize(
    "replies",
    [
        [PROFILE, SCOPE, SCHEMA, list_answer(item())],
        [PROFILE, SCOPE, SCHEMA, error_answer("INVALID_ARG_VALUE")],
        [PROFILE, SCOPE, SCHEMA, list_answer(), list_answer(item()), list_answer()],
        [PROFILE, SCOPE, SCHEMA, list_answer(), list_answer(item()),
         list_answer(item(), item(id=416, originId="another"))],
        [PROFILE, SCOPE, answer(200, {"result": {"fields": {"name": {}}}}), list_answer(),
         list_answer()],
        [PROFILE, answer(200, {"result": ["task"]}), SCHEMA, list_answer(), list_answer()],
        [answer(200, {"result": {"ID": "7", "ADMIN": False}}), SCOPE, SCHEMA, list_answer(),
         list_answer()],
        [error_answer("NO_AUTH_FOUND", 401)],
        [answer(502, body=b"<html>")],
        [answer(200, body=b"")],
    ],
    ids=[
        "filter ignored", "filter refused", "filter blind", "filter loose", "fields missing",
        "scope missing", "sees not all", "wrong webhook", "html", "empty body",
    ],
)  # fmt: skip
def test_what_is_not_well_leaves_creates_unproven(replies: list[Reply]) -> None:
    checked, _ = check(*replies)
    assert not checked.ok
    assert checked.unproven == ("contact.create",)
    assert all(finding.text for finding in checked.findings)


def test_an_operator_may_state_that_the_user_sees_all_contacts() -> None:
    user = answer(200, {"result": {"ID": "7", "ADMIN": False}})
    checked, _ = check(user, SCOPE, SCHEMA, list_answer(), list_answer(), sees_all_contacts=True)
    assert checked.ok


def test_the_probe_of_the_breaker_is_the_portals_clock() -> None:
    outcome, calls = run(connector().ping(), answer(200, {"result": "2026-09-21T15:35:01+03:00"}))
    assert outcome is None
    assert [(call.label, call.write) for call in calls] == [("server.time", False)]


def test_the_link_to_a_contact_is_built_from_the_address() -> None:
    spoken = Bitrix24Connector(
        ConnectionSettings("b", "acme", "https://acme.bitrix24.example/"), {"webhook": SECRET}
    )
    found, _ = run(spoken.read(CREATE, "415"), item_answer())
    assert found is not None
    assert found.url == "https://acme.bitrix24.example/crm/contact/details/415/"
