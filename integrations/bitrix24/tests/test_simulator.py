"""The stand-in over real sockets: records, lists, batch, credentials, ledger."""

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from integrations.bitrix24.simulator import control
from integrations.bitrix24.simulator.client import Simulator, SimulatorError

CONTACT = 3


@pytest.fixture(scope="module")
def running() -> Iterator[Simulator]:
    with Simulator() as simulator:
        yield simulator


@pytest.fixture
def simulator(running: Simulator) -> Simulator:
    running.reset()
    return running


def add(simulator: Simulator, portal: str = "default", **fields: Any) -> dict[str, Any]:
    answer = simulator.call("crm.item.add", {"entityTypeId": CONTACT, "fields": fields}, portal)
    assert answer["status"] == 200, answer
    item: dict[str, Any] = answer["result"]["item"]
    return item


def change(simulator: Simulator, item_id: int, **fields: Any) -> dict[str, Any]:
    answer = simulator.call(
        "crm.item.update", {"entityTypeId": CONTACT, "id": item_id, "fields": fields}
    )
    assert answer["status"] == 200, answer
    item: dict[str, Any] = answer["result"]["item"]
    return item


def listed(simulator: Simulator, **given: Any) -> dict[str, Any]:
    return simulator.call("crm.item.list", {"entityTypeId": CONTACT, **given})


def phone(value: str, kind: str = "WORK") -> dict[str, str]:
    return {"typeId": "PHONE", "valueType": kind, "value": value}


def raw(
    simulator: Simulator, verb: str, path: str, body: bytes | str | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", simulator.port, timeout=10)
    try:
        connection.request(
            verb, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


# --- saving ---------------------------------------------------------------------------------------


def test_a_created_record_comes_back_with_its_identifiers(simulator: Simulator) -> None:
    item = add(simulator, name="Ada", originatorId="hub", originId="ref-1", originVersion="7")
    assert item["id"] > 0
    assert (item["originatorId"], item["originId"], item["originVersion"]) == ("hub", "ref-1", "7")
    assert item["lastName"] is None
    assert item["entityTypeId"] == CONTACT
    got = simulator.call("crm.item.get", {"entityTypeId": CONTACT, "id": item["id"]})
    assert got["result"]["item"] == item


def test_every_success_has_its_time_block(simulator: Simulator) -> None:
    time_block = listed(simulator)["time"]
    assert {"start", "finish", "duration", "processing", "date_start", "date_finish"} < set(
        time_block
    )
    assert "operating" in time_block
    simulator.limits("default", self_hosted=True)
    assert "operating" not in listed(simulator)["time"]


def test_unknown_and_read_only_names_are_ignored_without_a_word(simulator: Simulator) -> None:
    item = add(simulator, name="Ada", nickname="x", id=999, phone="+1")
    assert item["id"] != 999
    assert "nickname" not in item
    assert item["phone"] is None
    assert simulator.ledger()[0]["fields"] == {"name": "Ada"}


def test_the_same_identifier_twice_makes_two_records(simulator: Simulator) -> None:
    first = add(simulator, originId="same")
    second = add(simulator, originId="same")
    assert first["id"] != second["id"]
    found = listed(simulator, filter={"=originId": "same"})
    assert [item["id"] for item in found["result"]["items"]] == [first["id"], second["id"]]


def test_an_update_saves_the_difference_only(simulator: Simulator) -> None:
    item = add(simulator, name="Ada", lastName="Byron", originId="r", originVersion="1")
    change(simulator, item["id"], name="Ada", lastName="Lovelace", originVersion="2")
    effect = simulator.ledger()[-1]
    assert effect["method"] == "crm.item.update"
    assert effect["fields"] == {"lastName": "Lovelace", "originVersion": "2"}
    assert (effect["reference"], effect["version"]) == ("r", "2")


def test_an_update_that_changes_nothing_leaves_no_trace(simulator: Simulator) -> None:
    item = add(simulator, name="Ada", comments="", fm=[phone("+1")])
    row = item["fm"][0]
    same = change(
        simulator, item["id"], name="Ada", comments=None, fm={str(row["id"]): phone("+1")}
    )
    assert same == item
    assert len(simulator.ledger()) == 1
    assert len(simulator.requests()) == 2


def test_multi_fields_change_by_row_id_and_unnamed_rows_stay(simulator: Simulator) -> None:
    item = add(simulator, fm=[phone("+1"), phone("+2", "HOME"), phone("+3")])
    first, second, third = (str(row["id"]) for row in item["fm"])
    changed = change(
        simulator,
        item["id"],
        fm={
            first: {"typeId": "PHONE", "valueType": "MOBILE", "value": "+11"},
            third: {"typeId": "PHONE", "value": ""},
            "n0": {"typeId": "EMAIL", "valueType": "WORK", "value": "a@b.example"},
        },
    )
    assert [(row["typeId"], row["valueType"], row["value"]) for row in changed["fm"]] == [
        ("PHONE", "MOBILE", "+11"),
        ("PHONE", "HOME", "+2"),
        ("EMAIL", "WORK", "a@b.example"),
    ]
    assert str(changed["fm"][1]["id"]) == second
    assert (changed["phone"], changed["email"], changed["hasEmail"]) == ("+11", "a@b.example", "Y")


def test_rows_without_an_id_are_added_again_by_a_repeat(simulator: Simulator) -> None:
    item = add(simulator)
    for _ in range(2):
        changed = change(simulator, item["id"], fm=[phone("+1")])
    assert [row["value"] for row in changed["fm"]] == ["+1", "+1"]


def test_delete_answers_an_empty_list_and_then_not_found(simulator: Simulator) -> None:
    item = add(simulator, originId="r", originVersion="3")
    given = {"entityTypeId": CONTACT, "id": item["id"]}
    assert simulator.call("crm.item.delete", given)["result"] == []
    again = simulator.call("crm.item.delete", given)
    assert (again["status"], again["error"]) == (400, "NOT_FOUND")
    effect = simulator.ledger()[-1]
    assert (effect["method"], effect["remote_id"], effect["reference"], effect["version"]) == (
        "crm.item.delete",
        str(item["id"]),
        "r",
        "3",
    )
    assert len(simulator.ledger()) == 2


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"fields": {}}, "100"),
        ({"entityTypeId": 3}, "100"),
        ({"entityTypeId": 3, "fields": "text"}, "100"),
        ({"entityTypeId": "three", "fields": {}}, "100"),
        ({"entityTypeId": 99, "fields": {}}, "NOT_FOUND"),
        ({"entityTypeId": 3, "fields": {"companyId": "many"}}, "CRM_FIELD_ERROR_VALUE_NOT_VALID"),
        ({"entityTypeId": 3, "fields": {"name": ["a"]}}, "CRM_FIELD_ERROR_VALUE_NOT_VALID"),
        ({"entityTypeId": 3, "fields": {"birthdate": "soon"}}, "CRM_FIELD_ERROR_VALUE_NOT_VALID"),
        ({"entityTypeId": 3, "fields": {"fm": "+1"}}, "CRM_FIELD_ERROR_VALUE_NOT_VALID"),
    ],
)
def test_wrong_input_is_refused_without_effect(
    simulator: Simulator, given: dict[str, Any], code: str
) -> None:
    answer = simulator.call("crm.item.add", given)
    assert (answer["status"], answer["error"]) == (400, code)
    assert answer["error_description"]
    assert simulator.ledger() == []


@pytest.mark.parametrize("number", [1, 2, 4, 7, 31, 144])
def test_other_types_keep_their_external_identifier(simulator: Simulator, number: int) -> None:
    name = "originId" if number in (1, 2, 4) else "xmlId"
    added = simulator.call(
        "crm.item.add", {"entityTypeId": number, "fields": {"title": "T", name: "ref-9"}}
    )["result"]["item"]
    found = simulator.call(
        "crm.item.list", {"entityTypeId": number, "filter": {"=" + name: "ref-9"}}
    )
    assert [item["id"] for item in found["result"]["items"]] == [added["id"]]
    assert simulator.ledger()[0]["reference"] == "ref-9"


# --- lists ----------------------------------------------------------------------------------------


@pytest.fixture
def many(simulator: Simulator) -> Simulator:
    for number in range(120):
        add(simulator, name=f"N{number % 3}", originId=f"r{number:03}", companyId=number)
    return simulator


def test_pages_carry_next_only_when_there_is_more(many: Simulator) -> None:
    seen: list[str] = []
    start: int | None = 0
    sizes = []
    while start is not None:
        page = listed(many, start=start, order={"id": "ASC"}, select=["originId"])
        assert page["total"] == 120
        sizes.append(len(page["result"]["items"]))
        seen += [item["originId"] for item in page["result"]["items"]]
        start = page.get("next")
    assert sizes == [50, 50, 20]
    assert seen == [f"r{number:03}" for number in range(120)]


def test_minus_one_switches_counting_off_and_pages_by_id(many: Simulator) -> None:
    last, sizes = 0, []
    while True:
        page = listed(many, start=-1, order={"id": "ASC"}, filter={">id": last}, select=["id"])
        assert (page["total"], "next" in page) == (0, False)
        items = page["result"]["items"]
        sizes.append(len(items))
        if len(items) < 50:
            break
        last = items[-1]["id"]
    assert sizes == [50, 50, 20]


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ({"=name": "n1"}, 40),
        ({"name": ["N0", "N1"]}, 80),
        ({"@name": ["N0", "N1"]}, 80),
        ({"!name": "N0"}, 80),
        ({"!@name": ["N0", "N1"]}, 40),
        ({"<companyId": 10}, 10),
        ({">=companyId": 100, "<companyId": "110"}, 10),
        ({"%originId": "R01"}, 10),
        ({"=%originId": "r01%"}, 10),
        ({"!%originId": "r0"}, 20),
        ({"logic": "OR", "0": {"=originId": "r001"}, "1": {"=originId": "r002"}}, 2),
        ({"=originId": "R001"}, 1),
        ({"=originId": "absent"}, 0),
        ({"=originId": "r001", "=name": "N2"}, 0),
    ],
)
def test_filter_prefixes(many: Simulator, condition: dict[str, Any], count: int) -> None:
    assert listed(many, filter=condition)["total"] == count


def test_an_unknown_filter_or_order_field_is_refused(simulator: Simulator) -> None:
    for given in ({"filter": {"=originID": "x"}}, {"order": {"nope": "ASC"}}):
        answer = listed(simulator, **given)
        assert (answer["status"], answer["error"]) == (400, "INVALID_ARG_VALUE")


def test_fm_comes_only_with_the_star(simulator: Simulator) -> None:
    add(simulator, name="Ada", fm=[phone("+1")])
    whole = listed(simulator, select=["*"])["result"]["items"][0]
    assert whole["fm"][0]["value"] == "+1"
    assert "fm" not in listed(simulator)["result"]["items"][0]
    named = listed(simulator, select=["id", "name", "fm", "nothing"])["result"]["items"][0]
    assert set(named) == {"id", "name", "entityTypeId"}


def test_an_empty_list(simulator: Simulator) -> None:
    answer = listed(simulator)
    assert (answer["result"], answer["total"], "next" in answer) == ({"items": []}, 0, False)


# --- call forms and credentials -------------------------------------------------------------------


def test_bracketed_form_bodies_queries_and_upper_case_methods(simulator: Simulator) -> None:
    form = urlencode(
        {
            "entityTypeId": 3,
            "fields[name]": "Ada",
            "fields[originId]": "form",
            "fields[fm][0][typeId]": "PHONE",
            "fields[fm][0][value]": "+1",
        }
    )
    kind = "application/x-www-form-urlencoded"
    status, body = raw(simulator, "POST", "/rest/1/any/CRM.Item.Add.json", form, Content_Type=kind)
    assert (status, body["result"]["item"]["phone"]) == (200, "+1")
    query = urlencode({"entityTypeId": 3, "filter[=originId]": "form", "select[]": "id"})
    status, body = raw(simulator, "GET", f"/rest/1/any/crm.item.list?{query}")
    assert (status, body["total"]) == (200, 1)
    assert simulator.ledger()[0]["digest"] == hashlib.sha256(form.encode()).hexdigest()


def test_chunked_bodies_are_read(simulator: Simulator) -> None:
    body = json.dumps({"entityTypeId": 3, "fields": {"name": "Ada"}}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", simulator.port, timeout=10)
    connection.request(
        "POST", "/rest/1/x/crm.item.add", iter([body[:10], body[10:]]), encode_chunked=True,
        headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json"},
    )  # fmt: skip
    assert connection.getresponse().status == 200
    connection.close()
    assert simulator.ledger()[0]["digest"] == hashlib.sha256(body).hexdigest()


def test_a_connection_serves_several_requests(simulator: Simulator) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", simulator.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/rest/1/x/profile")
        answer = connection.getresponse()
        assert json.loads(answer.read())["result"]["ADMIN"] is True
        assert not answer.will_close
    connection.close()


def test_portals_keep_their_data_apart(simulator: Simulator) -> None:
    add(simulator, portal="acme", originId="a")
    add(simulator, portal="globex", originId="g")
    assert [item["originId"] for item in simulator.items("acme")] == ["a"]
    assert [effect["portal"] for effect in simulator.ledger()] == ["acme", "globex"]
    assert [effect["reference"] for effect in simulator.ledger(portal="globex")] == ["g"]
    assert [effect["id"] for effect in simulator.ledger(since=1)] == [2]


def test_credentials() -> None:
    with Simulator(portals={"acme": "right"}) as simulator:
        good = raw(simulator, "GET", "/acme/rest/1/right/profile")
        assert good[0] == 200
        wrong = raw(simulator, "GET", "/acme/rest/1/wrong/profile")
        assert (wrong[0], wrong[1]["error"]) == (401, "INVALID_CREDENTIALS")
        other = raw(simulator, "GET", "/globex/rest/1/right/profile")
        assert (other[0], other[1]["error"]) == (401, "INVALID_CREDENTIALS")
        none = raw(simulator, "GET", "/acme/rest/profile")
        assert (none[0], none[1]["error"]) == (401, "NO_AUTH_FOUND")
        token = raw(simulator, "POST", "/acme/rest/profile", '{"auth": "right"}')
        assert token[0] == 200
        stale = raw(simulator, "GET", "/acme/rest/profile?auth=old")
        assert (stale[0], stale[1]["error"]) == (401, "invalid_token")


def test_probes_of_a_connection_set_up(simulator: Simulator) -> None:
    assert simulator.call("profile")["result"]["ID"] == "1"
    assert simulator.call("user.current")["result"]["ACTIVE"] is True
    assert "crm" in simulator.call("scope")["result"]
    assert "T" in simulator.call("server.time")["result"]
    known = simulator.call("method.get", {"name": "crm.item.list"})["result"]
    assert known == {"isExisting": True, "isAvailable": True}
    fields = simulator.call("crm.item.fields", {"entityTypeId": 3})["result"]["fields"]
    assert fields["originId"]["type"] == "string"
    assert fields["id"]["isReadOnly"] is True
    webhook = simulator.call("app.info")
    assert (webhook["status"], webhook["error"]) == (403, "WRONG_AUTH_TYPE")
    status, body = raw(simulator, "GET", "/rest/app.info?auth=token")
    assert (status, body["result"]["INSTALLED"]) == (200, True)


def test_unknown_methods(simulator: Simulator) -> None:
    for name in ("crm.item.merge", "crm.nothing.add", "rubbish"):
        answer = simulator.call(name)
        assert (answer["status"], answer["error"]) == (404, "ERROR_METHOD_NOT_FOUND")


# --- classic methods ------------------------------------------------------------------------------


def test_classic_contacts_are_the_same_records_in_other_clothes(simulator: Simulator) -> None:
    added = simulator.call(
        "crm.contact.add",
        {
            "fields": {
                "NAME": "Ada",
                "LAST_NAME": "Byron",
                "ORIGIN_ID": "classic",
                "PHONE": [{"VALUE": "+1", "VALUE_TYPE": "WORK"}],
            }
        },
    )["result"]
    assert isinstance(added, int)
    got = simulator.call("crm.contact.get", {"id": added})["result"]
    assert (got["ID"], got["LAST_NAME"], got["PHONE"][0]["VALUE"]) == (str(added), "Byron", "+1")
    row = got["PHONE"][0]["ID"]
    updated = simulator.call(
        "crm.contact.update", {"id": added, "fields": {"PHONE": [{"ID": row, "VALUE": "+2"}]}}
    )
    assert updated["result"] is True
    assert simulator.items()[0]["fm"][0]["value"] == "+2"
    found = simulator.call(
        "crm.contact.list", {"filter": {"ORIGIN_ID": "classic"}, "select": ["ID", "NAME", "PHONE"]}
    )
    assert found["total"] == 1
    assert found["result"][0]["NAME"] == "Ada"
    assert simulator.call("crm.contact.delete", {"id": added})["result"] is True
    gone = simulator.call("crm.contact.get", {"id": added})
    assert (gone["status"], gone["error"], gone["error_description"]) == (400, "", "Not found")


# --- batch ----------------------------------------------------------------------------------------


def test_batch_runs_in_order_and_passes_results_on(simulator: Simulator) -> None:
    answer = simulator.call(
        "batch",
        {
            "halt": 0,
            "cmd": {
                "make": "crm.item.add?entityTypeId=3&fields[originId]=b1",
                "read": "crm.item.get?entityTypeId=3&id=$result[make][item][id]",
                "bad": "crm.item.get?entityTypeId=3&id=$result[absent][item][id]",
                "find": "crm.item.list?entityTypeId=3&filter[=originId]=b1",
            },
        },
    )
    result = answer["result"]
    assert answer["status"] == 200
    assert result["result"]["read"]["item"]["originId"] == "b1"
    assert result["result_error"]["bad"]["error"] == "NOT_FOUND"
    assert result["result_total"] == {"find": 1}
    assert result["result_next"] == []
    assert set(result["result"]) == {"make", "read", "find"}


def test_batch_stops_at_the_first_failure_if_told(simulator: Simulator) -> None:
    result = simulator.call(
        "batch",
        {
            "halt": 1,
            "cmd": {
                "bad": "crm.item.get?entityTypeId=3&id=1",
                "make": "crm.item.add?entityTypeId=3&fields[name]=x",
            },
        },
    )["result"]
    assert (result["result"], list(result["result_error"])) == ([], ["bad"])
    assert simulator.ledger() == []


def test_batch_limits(simulator: Simulator) -> None:
    many = {f"c{number}": "profile" for number in range(51)}
    answer = simulator.call("batch", {"cmd": many})
    assert (answer["status"], answer["error"]) == (400, "ERROR_BATCH_LENGTH_EXCEEDED")
    nested = simulator.call("batch", {"cmd": {"in": "batch?cmd[a]=profile"}})["result"]
    assert nested["result_error"]["in"]["error"] == "ERROR_BATCH_METHOD_NOT_ALLOWED"
    as_list = simulator.call("batch", {"cmd": ["profile", "scope"]})["result"]
    assert len(as_list["result"]) == 2
    assert as_list["result_error"] == []


# --- ledger, log, people --------------------------------------------------------------------------


def test_effects_carry_the_digest_of_the_bytes(simulator: Simulator) -> None:
    body = b'{"entityTypeId": 3,  "fields": {"originId": "r", "originVersion": "4"}}'
    raw(simulator, "POST", "/acme/rest/1/x/crm.item.add", body)
    (effect,) = simulator.ledger()
    at = effect.pop("at")
    assert at > 1_700_000_000
    assert effect == {
        "id": 1,
        "portal": "acme",
        "method": "crm.item.add",
        "entity": "contact",
        "remote_id": str(simulator.items("acme")[0]["id"]),
        "reference": "r",
        "version": "4",
        "digest": hashlib.sha256(body).hexdigest(),
        "fields": {"originId": "r", "originVersion": "4"},
    }
    (request,) = simulator.requests(portal="acme", method="crm.item.add")
    assert (request["reference"], request["fault"], request["status"]) == ("r", None, 200)
    assert request["digest"] == effect["digest"]


def test_requests_name_what_they_are_about(simulator: Simulator) -> None:
    item = add(simulator, originId="mine")
    change(simulator, item["id"], name="x")
    listed(simulator, filter={"=originId": "mine"})
    assert [one["reference"] for one in simulator.requests()] == ["mine"] * 3


def test_people_change_things_by_hand(simulator: Simulator) -> None:
    seeded = simulator.seed({"name": "By hand", "fm": [phone("+9")]}, portal="acme")
    simulator.plant(seeded["id"], {"comments": "ours"}, portal="acme")
    simulator.person("update", seeded["id"], {"name": "Changed"}, portal="acme")
    assert simulator.items("acme")[0] | {} == {
        **simulator.items("acme")[0], "comments": "ours", "name": "Changed"
    }  # fmt: skip
    simulator.person("delete", seeded["id"], portal="acme")
    assert simulator.items("acme") == []
    assert {effect["method"] for effect in simulator.ledger()} == {"person"}
    assert {effect["digest"] for effect in simulator.ledger()} == {""}
    with pytest.raises(SimulatorError, match="NOT_FOUND"):
        simulator.person("delete", seeded["id"], portal="acme")


def test_reset_forgets_everything(simulator: Simulator) -> None:
    add(simulator, originId="x")
    simulator.fault("throttle", times=-1)
    simulator.limits(rate=1, burst=1)
    simulator.reset()
    assert (simulator.items(), simulator.ledger(), simulator.requests()) == ([], [], [])
    assert simulator.faults()["orders"] == []


def test_an_id_is_never_given_again_whatever_is_forgotten(simulator: Simulator) -> None:
    first = simulator.seed({"fm": [phone("+1")]}, portal="acme")
    simulator.reset()
    assert simulator.items("acme") == []
    second = simulator.seed({"fm": [phone("+1")]}, portal="acme")
    assert second["id"] > first["id"]
    assert second["fm"][0]["id"] > first["fm"][0]["id"]
    assert [effect["remote_id"] for effect in simulator.ledger()] == [str(second["id"])]


def test_the_bare_address_lists_the_handles(simulator: Simulator) -> None:
    """Each of them is answered, and the page beside the code names each."""
    for target in ("/_sim/", "/_sim", "/_sim/?x=1"):
        status, body = raw(simulator, "GET", target)
        assert status == 200
    handles = body["handles"]
    page = (Path(control.__file__).parent / "README.md").read_text()
    for handle, text in handles.items():
        verb, name = handle.split()
        assert text
        assert f"`{verb} {name}" in page, handle
        if verb == "GET":
            assert raw(simulator, verb, f"/_sim/{name}")[0] == 200, handle
    cases = re.findall(r'case "(\w+)", "(\w+)"', Path(control.__file__).read_text())
    assert {f"{verb} {name}" for verb, name in cases} == set(handles)


def test_control_errors_say_what_is_wrong(simulator: Simulator) -> None:
    with pytest.raises(SimulatorError, match=r"unknown fault 'earthquake'.*late_commit"):
        simulator.fault("earthquake")
    with pytest.raises(SimulatorError, match="unknown names in the order: colour"):
        simulator.fault("throttle", colour="red")
    status, body = raw(simulator, "GET", "/_sim/nothing")
    assert (status, body["error"]) == (
        404, "there is no GET /_sim/nothing; GET /_sim/ lists what there is"
    )  # fmt: skip
