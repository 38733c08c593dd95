"""The vendor's own client against the stand-in, over TLS: if it is content, shapes are right."""

import uuid
from collections.abc import Iterator

import pytest
import requests
from b24pysdk import BitrixWebhook, Client, errors

from integrations.bitrix24.simulator.client import Simulator


@pytest.fixture(scope="module")
def running() -> Iterator[Simulator]:
    with Simulator(tls=True, portals={"acme": "s3cret"}) as simulator:
        yield simulator


@pytest.fixture
def simulator(running: Simulator, monkeypatch: pytest.MonkeyPatch) -> Simulator:
    running.reset()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(running.certificate))
    return running


def webhook(simulator: Simulator, secret: str = "s3cret") -> BitrixWebhook:
    # The client builds https://DOMAIN/rest/TOKEN/METHOD.json; the path names the portal.
    return BitrixWebhook(domain=f"127.0.0.1:{simulator.port}/acme", webhook_token=f"1/{secret}")


@pytest.fixture
def client(simulator: Simulator) -> Client:
    return Client(webhook(simulator))


def test_it_creates_and_reads_back(simulator: Simulator, client: Client) -> None:
    created = client.crm.item.add(
        entity_type_id=3,
        fields={
            "name": "Ada",
            "originatorId": "hub",
            "originId": "sdk-1",
            "fm": [{"typeId": "PHONE", "valueType": "WORK", "value": "+1"}],
        },
    )
    item = created.result["item"]
    assert item["originId"] == "sdk-1"
    assert created.time.operating is not None
    read = client.crm.item.get(entity_type_id=3, bitrix_id=item["id"]).result["item"]
    assert read == item
    (effect,) = simulator.ledger()
    assert (effect["portal"], effect["reference"]) == ("acme", "sdk-1")


def test_it_updates_and_deletes(simulator: Simulator, client: Client) -> None:
    item_id = client.crm.item.add(entity_type_id=3, fields={"name": "Ada"}).result["item"]["id"]
    changed = client.crm.item.update(entity_type_id=3, bitrix_id=item_id, fields={"name": "Bea"})
    assert changed.result["item"]["name"] == "Bea"
    assert client.crm.item.delete(entity_type_id=3, bitrix_id=item_id).result == []
    assert simulator.items("acme") == []


def test_it_pages_both_ways(simulator: Simulator, client: Client) -> None:
    for number in range(120):
        simulator.seed({"name": f"N{number}"}, portal="acme")
    request = client.crm.item.list(entity_type_id=3, select=["id", "name"])
    assert (request.response.total, request.response.next) == (120, 50)
    wanted = [f"N{number}" for number in range(120)]
    assert [item["name"] for item in request.as_list().result] == wanted
    # Pages by identifier with counting off, in batches whose commands refer to each other.
    assert [item["name"] for item in request.as_list_fast().result] == wanted
    backwards = request.as_list_fast(descending=True).result
    assert [item["name"] for item in backwards] == wanted[::-1]


def test_it_finds_by_our_identifier(simulator: Simulator, client: Client) -> None:
    simulator.seed({"originId": "sdk-1"}, portal="acme")
    simulator.seed({"originId": "sdk-2"}, portal="acme")
    found = client.crm.item.list(
        entity_type_id=3, filter={"=originId": "sdk-2"}, select=["originId"], start=-1
    )
    assert [item["originId"] for item in found.result["items"]] == ["sdk-2"]


def test_its_classic_methods_work(simulator: Simulator, client: Client) -> None:
    added = client.crm.contact.add(fields={"NAME": "Ada", "ORIGIN_ID": "c-1"}).result
    assert client.crm.contact.get(bitrix_id=added).result["NAME"] == "Ada"
    assert client.crm.contact.update(bitrix_id=added, fields={"NAME": "Bea"}).result is True
    listed = client.crm.contact.list(filter={"ORIGIN_ID": "c-1"}, select=["ID", "NAME"])
    assert [row["NAME"] for row in listed.result] == ["Bea"]
    assert client.crm.contact.delete(bitrix_id=added).result is True


def test_its_batches_work(client: Client) -> None:
    answer = client.call_batch(
        {
            "there": client.crm.item.add(entity_type_id=3, fields={"name": "Ada & Co = 1"}),
            "missing": client.crm.item.get(entity_type_id=3, bitrix_id=999),
        }
    ).result
    assert answer.result["there"]["item"]["name"] == "Ada & Co = 1"
    assert answer.result_error["missing"]["error"] == "NOT_FOUND"


def test_its_probes_work(client: Client) -> None:
    assert client.profile().result["ADMIN"] is True
    assert client.server.time().result
    assert "crm" in client.scope().result


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("throttle", errors.BitrixAPIQueryLimitExceeded),
        ("operation_time_limit", errors.BitrixAPIOperationTimeLimit),
        ("coded_5xx_before_commit", errors.BitrixAPIInternalServerError),
        ("access_denied", errors.BitrixAPIAccessDenied),
        ("expired_token", errors.BitrixAPIExpiredToken),
        ("html_body", errors.BitrixResponseJSONDecodeError),
        ("uncoded_5xx_after_commit", errors.BitrixResponseJSONDecodeError),
        ("answer_lost_before_commit", errors.BitrixRequestError),
    ],
)
def test_it_understands_every_error(
    simulator: Simulator, client: Client, fault: str, expected: type[Exception]
) -> None:
    # It sends again after a 503 of its own accord, hence more than one.
    simulator.fault(fault, "crm.item.add", times=-1)
    with pytest.raises(expected):
        _ = client.crm.item.add(entity_type_id=3, fields={"originId": uuid.uuid4().hex}).result


def test_it_understands_refusals(simulator: Simulator, client: Client) -> None:
    with pytest.raises(errors.BitrixAPIInvalidArgValue):
        _ = client.crm.item.list(entity_type_id=3, filter={"=nope": 1}).result
    with pytest.raises(errors.BitrixAPINotFound):
        _ = client.crm.item.get(entity_type_id=3, bitrix_id=999).result
    with pytest.raises(errors.BitrixAPIInvalidCredentials):
        _ = Client(webhook(simulator, "wrong")).profile().result


def test_the_certificate_is_checked(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(simulator.webhook("acme") + "profile", timeout=5)
