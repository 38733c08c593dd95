"""Every fault of the stand-in: what the caller sees, and what really happened."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from integrations.bitrix24.simulator.client import Simulator

LOST = "lost"


@pytest.fixture(scope="module")
def running() -> Iterator[Simulator]:
    with Simulator() as simulator:
        yield simulator


@pytest.fixture
def simulator(running: Simulator) -> Simulator:
    running.reset()
    return running


def ask(
    simulator: Simulator, method: str, portal: str = "default", timeout: float = 10, **given: Any
) -> tuple[int | str, bytes]:
    """One call; ("lost", b"") when the connection closed without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", simulator.port, timeout=timeout)
    path = simulator.webhook(portal).removeprefix(simulator.url) + method
    try:
        connection.request(
            "POST",
            path,
            json.dumps({"entityTypeId": 3, **given}),
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (ConnectionError, http.client.RemoteDisconnected):
        return LOST, b""
    finally:
        connection.close()


def add(simulator: Simulator, reference: str = "r", **given: Any) -> tuple[int | str, bytes]:
    return ask(simulator, "crm.item.add", fields={"originId": reference, "name": "Ada"}, **given)


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def error_code(body: bytes) -> str:
    return str(json.loads(body)["error"])


@pytest.mark.parametrize(
    ("fault", "status", "code", "effects"),
    [
        ("answer_lost_before_commit", LOST, None, 0),
        ("answer_lost_after_commit", LOST, None, 1),
        ("coded_5xx_before_commit", 500, "INTERNAL_SERVER_ERROR", 0),
        ("coded_5xx_after_commit", 500, "INTERNAL_SERVER_ERROR", 1),
        ("uncoded_5xx_before_commit", 502, None, 0),
        ("uncoded_5xx_after_commit", 502, None, 1),
        ("html_body", 200, None, 1),
        ("not_json", 200, None, 1),
        ("throttle", 503, "QUERY_LIMIT_EXCEEDED", 0),
        ("operation_time_limit", 429, "OPERATION_TIME_LIMIT", 0),
        ("overload_limit", 503, "OVERLOAD_LIMIT", 0),
        ("access_denied", 400, "ACCESS_DENIED", 0),
        ("invalid_credentials", 401, "INVALID_CREDENTIALS", 0),
        ("expired_token", 401, "expired_token", 0),
        ("portal_deleted", 500, "PORTAL_DELETED", 0),
    ],
)
def test_answer_faults(
    simulator: Simulator, fault: str, status: int | str, code: str | None, effects: int
) -> None:
    simulator.fault(fault, "crm.item.add")
    seen, body = add(simulator)
    assert seen == status
    assert len(simulator.ledger()) == effects
    if code:
        assert error_code(body) == code
    elif seen != LOST:
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(body)
    (request,) = simulator.requests()
    assert (request["fault"], request["status"]) == (fault, 0 if status == LOST else status)
    assert add(simulator)[0] == 200, "an order for one time meets one request"


def test_cut_body_keeps_status_and_breaks_off(simulator: Simulator) -> None:
    simulator.fault("cut_body", "crm.item.add")
    with pytest.raises(http.client.IncompleteRead) as caught:
        add(simulator)
    assert caught.value.partial.startswith(b'{"result"')
    assert caught.value.expected
    assert len(simulator.ledger()) == 1


def test_broken_gzip(simulator: Simulator) -> None:
    simulator.fault("broken_gzip", "crm.item.add")
    connection = http.client.HTTPConnection("127.0.0.1", simulator.port, timeout=10)
    connection.request("POST", "/rest/1/x/crm.item.add", '{"entityTypeId": 3, "fields": {}}')
    assert connection.getresponse().headers["Content-Encoding"] == "gzip"
    connection.close()


def test_late_commit_happens_when_the_caller_is_gone(simulator: Simulator) -> None:
    simulator.fault("late_commit", "crm.item.add", seconds=1)
    began = time.monotonic()
    assert add(simulator)[0] == LOST
    assert time.monotonic() - began < 1
    assert simulator.ledger() == []
    assert simulator.status()["pending_commits"] == 1
    wait_for(lambda: simulator.status()["pending_commits"] == 0)
    assert [effect["reference"] for effect in simulator.ledger()] == ["r"]


def test_late_commit_meets_writes_only_and_dies_with_a_reset(simulator: Simulator) -> None:
    simulator.fault("late_commit", "*", seconds=0.1)
    assert ask(simulator, "crm.item.list")[0] == 200
    assert add(simulator)[0] == LOST
    simulator.reset()
    simulator.fault("late_commit", "crm.item.add", seconds=0.2)
    add(simulator, "second")
    wait_for(lambda: simulator.status()["effects"] == 1)
    assert [effect["reference"] for effect in simulator.ledger()] == ["second"]


def test_a_late_delete_of_a_missing_record_changes_nothing(simulator: Simulator) -> None:
    simulator.fault("late_commit", "crm.item.delete", seconds=0.05)
    assert ask(simulator, "crm.item.delete", id=77)[0] == LOST
    wait_for(lambda: simulator.status()["pending_commits"] == 0)
    assert simulator.ledger() == []


def test_index_lag_on_the_create_hides_from_lists_not_from_get(simulator: Simulator) -> None:
    simulator.fault("index_lag", "crm.item.add", seconds=1)
    item_id = json.loads(add(simulator)[1])["result"]["item"]["id"]
    add(simulator, "prompt")
    assert ask(simulator, "crm.item.get", id=item_id)[0] == 200

    def references() -> list[str]:
        body = ask(simulator, "crm.item.list", select=["originId"])[1]
        return [item["originId"] for item in json.loads(body)["result"]["items"]]

    assert references() == ["prompt"]
    wait_for(lambda: references() == ["r", "prompt"])


def test_index_lag_on_the_list_hides_young_records(simulator: Simulator) -> None:
    add(simulator)
    simulator.fault("index_lag", "crm.item.list", seconds=60)
    assert json.loads(ask(simulator, "crm.item.list")[1])["total"] == 0
    assert json.loads(ask(simulator, "crm.item.list")[1])["total"] == 1


def test_faults_of_different_roles_meet_the_same_request(simulator: Simulator) -> None:
    simulator.fault("index_lag", "crm.item.add", seconds=60)
    simulator.fault("answer_lost_after_commit", "crm.item.add")
    assert add(simulator)[0] == LOST
    assert json.loads(ask(simulator, "crm.item.list")[1])["total"] == 0
    assert len(simulator.ledger()) == 1
    assert simulator.requests()[0]["fault"] == "answer_lost_after_commit+index_lag" or (
        simulator.requests()[0]["fault"] == "index_lag+answer_lost_after_commit"
    )


def test_field_ignored_drops_identifier_and_version(simulator: Simulator) -> None:
    simulator.fault("field_ignored", "crm.item.add")
    item = json.loads(add(simulator)[1])["result"]["item"]
    assert (item["originId"], item["name"]) == (None, "Ada")
    assert simulator.ledger()[0]["reference"] is None


def test_wrong_echo_shows_another_identifier(simulator: Simulator) -> None:
    simulator.fault("wrong_echo", "crm.item.add")
    item = json.loads(add(simulator)[1])["result"]["item"]
    assert item["originId"] == "other-r"
    assert simulator.ledger()[0]["reference"] == "r"


def test_clear_ignored_answers_empty_and_keeps_the_value(simulator: Simulator) -> None:
    item_id = json.loads(add(simulator)[1])["result"]["item"]["id"]
    simulator.fault("clear_ignored", "crm.item.update")
    body = ask(simulator, "crm.item.update", id=item_id, fields={"name": ""})[1]
    assert json.loads(body)["result"]["item"]["name"] is None
    assert simulator.items()[0]["name"] == "Ada"
    assert len(simulator.ledger()) == 1


def test_duplicate_execution_runs_twice_and_answers_once(simulator: Simulator) -> None:
    simulator.fault("duplicate_execution", "crm.item.add")
    assert add(simulator)[0] == 200
    first, second = simulator.ledger()
    assert first["digest"] == second["digest"]
    assert first["remote_id"] != second["remote_id"]
    assert len(simulator.requests()) == 1


def test_empty_list_as_for_a_user_without_rights(simulator: Simulator) -> None:
    add(simulator)
    simulator.fault("empty_list", "crm.item.list")
    answer = json.loads(ask(simulator, "crm.item.list")[1])
    assert (answer["result"]["items"], answer["total"]) == ([], 0)


@pytest.mark.parametrize(
    ("fault", "method"),
    [("slow_list", "crm.item.list"), ("slow_answer", "profile"), ("slow_execution", "profile")],
)
def test_slow_ones_take_their_time(simulator: Simulator, fault: str, method: str) -> None:
    simulator.fault(fault, "*", seconds=0.25)
    began = time.monotonic()
    assert ask(simulator, method)[0] == 200
    assert time.monotonic() - began >= 0.25


def test_slow_answer_has_committed_while_the_caller_waits(simulator: Simulator) -> None:
    simulator.fault("slow_answer", "crm.item.add", seconds=30)
    with pytest.raises(TimeoutError):
        add(simulator, timeout=0.3)
    assert len(simulator.ledger()) == 1


def test_slow_execution_commits_although_the_caller_has_left(simulator: Simulator) -> None:
    simulator.fault("slow_execution", "crm.item.add", seconds=1)
    with pytest.raises(TimeoutError):
        add(simulator, timeout=0.1)
    assert simulator.ledger() == []
    wait_for(lambda: len(simulator.ledger()) == 1)


def test_half_a_request_is_no_request(simulator: Simulator) -> None:
    with socket.create_connection(("127.0.0.1", simulator.port), timeout=5) as half:
        half.sendall(b"POST /rest/1/x/crm.item.add HTTP/1.1\r\nContent-Length: 60\r\n\r\n{")
    assert ask(simulator, "profile")[0] == 200
    assert simulator.ledger() == []
    assert len(simulator.requests()) == 1


def test_orders_are_choosy(simulator: Simulator) -> None:
    simulator.fault("throttle", "crm.item.*", times=-1, reference="b", portal="acme")
    assert add(simulator, "b")[0] == 200
    assert add(simulator, "a", portal="acme")[0] == 200
    assert add(simulator, "b", portal="acme")[0] == 503
    item = simulator.seed({"originId": "b"}, portal="acme")
    for method in ("update", "delete"):
        seen = ask(
            simulator, f"crm.item.{method}", portal="acme", id=item["id"], fields={"name": "x"}
        )
        assert seen[0] == 503
    found = ask(simulator, "crm.item.list", portal="acme", filter={"=originId": "b"})
    assert found[0] == 503
    (order,) = simulator.faults()["orders"]
    assert (order["met"], order["times"]) == (4, -1)
    simulator.clear_faults()
    assert add(simulator, "b", portal="acme")[0] == 200


def test_probability_is_seeded(simulator: Simulator) -> None:
    def run() -> list[int | str]:
        simulator.reset()
        simulator.fault("throttle", "profile", times=-1, probability=0.5, seed=7)
        return [ask(simulator, "profile")[0] for _ in range(20)]

    first = run()
    assert set(first) == {200, 503}
    assert run() == first


def test_every_fault_is_listed_with_a_text(simulator: Simulator) -> None:
    faults = simulator.faults()["faults"]
    assert {
        "answer_lost_before_commit", "answer_lost_after_commit", "late_commit", "cut_body",
        "html_body", "coded_5xx_before_commit", "coded_5xx_after_commit",
        "uncoded_5xx_before_commit", "uncoded_5xx_after_commit", "throttle",
        "operation_time_limit", "slow_list", "index_lag", "field_ignored",
    } <= set(faults)  # fmt: skip
    assert all(len(text) > 10 for text in faults.values())


def test_faults_inside_a_batch_refuse_single_commands(simulator: Simulator) -> None:
    simulator.fault("access_denied", "crm.item.add")
    body = ask(
        simulator,
        "batch",
        cmd={
            "one": "crm.item.add?entityTypeId=3&fields[originId]=1",
            "two": "crm.item.add?entityTypeId=3&fields[originId]=2",
        },
    )[1]
    result = json.loads(body)["result"]
    assert (list(result["result_error"]), list(result["result"])) == (["one"], ["two"])
    assert [effect["reference"] for effect in simulator.ledger()] == ["2"]


def test_the_bucket_leaks_and_counts_per_portal(simulator: Simulator) -> None:
    simulator.limits("acme", rate=5, burst=3)
    began = time.monotonic()
    seen = [add(simulator, str(n), portal="acme") for n in range(30)]
    took = time.monotonic() - began
    accepted = [status for status, _ in seen if status == 200]
    refused = [body for status, body in seen if status == 503]
    assert 3 <= len(accepted) <= 3 + 5 * took + 1
    assert {error_code(body) for body in refused} == {"QUERY_LIMIT_EXCEEDED"}
    assert len(simulator.ledger()) == len(accepted)
    assert add(simulator, portal="globex")[0] == 200
    wait_for(lambda: add(simulator, "later", portal="acme")[0] == 200)
    simulator.limits("acme", rate=None)
    assert {add(simulator, portal="acme")[0] for _ in range(20)} == {200}


def test_it_is_no_bottleneck(simulator: Simulator) -> None:
    # Pipelined on one connection, so that this measures the stand-in and not the test's client.
    count = 2000
    body = json.dumps({"entityTypeId": 3, "fields": {"name": "Ada", "originId": "p"}}).encode()
    one = (
        b"POST /rest/1/x/crm.item.add HTTP/1.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body
    last = b"GET /_sim/status HTTP/1.1\r\nConnection: close\r\n\r\n"
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", simulator.port), timeout=30) as pipe:
        sent = 0
        while sent < count:
            pipe.sendall(one * 20)
            sent += 20
            # Read what is there: an unread answer would fill the pipe.
            pipe.setblocking(False)
            try:
                while pipe.recv(1 << 16):
                    pass
            except BlockingIOError:
                pass
            pipe.settimeout(30)
        pipe.sendall(last)
        while pipe.recv(1 << 16):
            pass
    took = time.monotonic() - began
    assert len(simulator.ledger()) == count
    assert count / took > 1000, f"{count / took:.0f} requests a second"
