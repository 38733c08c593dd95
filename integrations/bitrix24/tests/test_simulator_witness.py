"""The witness sees a marker that is missing, and a transaction that waits for an answer."""

import hashlib
import json
import sqlite3
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integrations.bitrix24.simulator.client import Simulator
from integrations.bitrix24.simulator.witness import SQL, database

BODY = json.dumps(
    {"entityTypeId": 3, "fields": {"originId": "ref-1", "originVersion": "1"}}
).encode()
DIGEST = hashlib.sha256(BODY).hexdigest()
TABLES = """
    CREATE TABLE hub_operation (
        id INTEGER PRIMARY KEY, reference TEXT, state TEXT, request_digest TEXT, first_sent_at TEXT
    );
    CREATE TABLE hub_attempt (id INTEGER PRIMARY KEY, operation_id INTEGER, request_digest TEXT);
"""


class Hub:
    """A database with the hub's tables, as far as the witness reads them."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.executescript(TABLES)

    def operation(
        self,
        state: str,
        digest: str = DIGEST,
        sent: str | None = "2026-12-01",
        reference: str = "ref-1",
    ) -> None:
        self.connection.execute("DELETE FROM hub_operation")
        self.connection.execute(
            "INSERT INTO hub_operation (id, reference, state, request_digest, first_sent_at)"
            " VALUES (1, ?, ?, ?, ?)",
            (reference, state, digest, sent),
        )


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path / "hub.db")
    yield made
    made.connection.close()


@pytest.fixture
def simulator(hub: Hub) -> Iterator[Simulator]:
    with Simulator(witness=hub.url) as running:
        yield running


def send(simulator: Simulator, body: bytes = BODY) -> dict[str, Any]:
    """One create; what the witness says afterwards."""
    request = urllib.request.Request(
        simulator.webhook() + "crm.item.add", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
    report = simulator.violations()
    assert report["errors"] == []
    return report


@pytest.mark.parametrize("state", ["sent", "uncertain", "retry", "review", "confirmed"])
def test_a_marked_operation_is_content(hub: Hub, simulator: Simulator, state: str) -> None:
    hub.operation(state)
    report = send(simulator)
    assert (report["violations"], report["checked"]["I7"]) == ([], 1)


def test_the_reference_need_not_match(hub: Hub, simulator: Simulator) -> None:
    hub.operation("sent", reference="of a linked record")
    assert send(simulator)["violations"] == []


@pytest.mark.parametrize(
    ("state", "digest", "sent"),
    [
        ("sent", "0" * 64, "2026-12-01"),  # another request's bytes
        ("running", "", None),  # nothing marked yet
        ("running", DIGEST, None),
        ("running", DIGEST, "2026-12-01"),  # marked once, but not under the present lease
        ("pending", DIGEST, "2026-12-01"),
    ],
)
def test_a_missing_marker_is_a_violation(
    hub: Hub, simulator: Simulator, state: str, digest: str, sent: str | None
) -> None:
    hub.operation(state, digest, sent)
    (violation,) = send(simulator)["violations"]
    assert (violation["invariant"], violation["digest"]) == ("I7", DIGEST)
    assert violation["reference"] == "ref-1"


def test_no_operation_at_all(hub: Hub, simulator: Simulator) -> None:
    (violation,) = send(simulator)["violations"]
    assert violation["text"] == "no operation carries the marker for these bytes"
    simulator.reset()
    assert simulator.violations()["violations"] == []


def test_late_bytes_of_an_earlier_lease_are_content(hub: Hub, simulator: Simulator) -> None:
    hub.operation("running")
    hub.connection.execute(
        "INSERT INTO hub_attempt (operation_id, request_digest) VALUES (1, ?)", (DIGEST,)
    )
    assert send(simulator)["violations"] == []


def test_reads_are_not_watched(simulator: Simulator) -> None:
    simulator.call("crm.item.list", {"entityTypeId": 3})
    assert simulator.violations()["checked"]["I7"] == 0


def test_a_blind_witness_says_so(tmp_path: Path) -> None:
    with Simulator(witness=f"sqlite:///{tmp_path}/absent.db") as simulator:
        simulator.call("crm.item.add", {"entityTypeId": 3, "fields": {}})
        report = simulator.violations()
        assert report["checked"]["I7"] == 0
        assert "unable to open" in report["errors"][0]


def test_its_statements_fit_the_real_tables(database_url: str) -> None:
    seen = database(database_url)
    assert seen.rows(SQL.MARKED_REFERENCE, "r", DIGEST) == []
    assert seen.rows(SQL.MARKED, DIGEST) == []
    assert seen.rows(SQL.EARLIER, DIGEST) == []
    if seen.watches_transactions:
        assert seen.rows(SQL.TRANSACTIONS) == []
    seen.close()


@pytest.mark.postgresql
@pytest.mark.parametrize("released", [True, False])
def test_a_transaction_that_waits_for_the_answer_is_a_violation(
    database_url: str, released: bool
) -> None:
    import psycopg

    with (
        Simulator(witness=database_url) as simulator,
        psycopg.connect(database_url, application_name="hub-drain-1") as sender,
    ):
        sender.execute("SELECT 1")  # opens a transaction
        # Released: it ends while the answer is held back, so it did not wait for the answer.
        timer = threading.Timer(0.1, sender.rollback)
        if released:
            timer.start()
        body = json.dumps({"entityTypeId": 3, "fields": {}}).encode()
        found = [one["invariant"] for one in send(simulator, body)["violations"]]
        assert ("I19" in found) is not released
        assert simulator.violations()["checked"]["I19"] == 1
        if released:
            timer.join()
