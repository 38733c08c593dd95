"""What counts is the age of due work and of the last whole exchange, not that a process runs."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import DatabaseError
from django.utils import timezone

from hub import credentials, gate, health
from hub.models import Connection, Gate, Heartbeat, Installation, Operation
from hub.models.gate import Breaker, PauseKind
from tests.hub.operations import connection, heartbeat, pending

pytestmark = pytest.mark.django_db


# --- due work ---


def test_nothing_due_has_no_age():
    assert health.oldest_due() is None


def test_the_oldest_due_operation_counts():
    where = connection()
    pending(where, "1", due_for=5)
    pending(where, "2", due_for=50)
    assert health.oldest_due() == pytest.approx(50, abs=5)


def test_what_is_due_later_does_not_count():
    pending(connection(), due_for=-60)
    assert health.oldest_due() is None


@pytest.mark.parametrize(
    "closed",
    [
        {"paused_at": timezone.now(), "pause_reason": "x", "pause_kind": PauseKind.PERSON},
        {"throttled_until": timezone.now() + timedelta(hours=1)},
        {"breaker": Breaker.OPEN, "breaker_until": timezone.now() + timedelta(hours=1)},
    ],
    ids=["paused", "throttled", "broken"],
)
def test_what_waits_behind_a_closed_gate_is_nobodys_fault(closed):
    where = connection()
    pending(where, due_for=500)
    Gate.objects.filter(connection=where).update(**closed)
    assert health.oldest_due() is None


def test_a_retired_connection_is_due_for_nobody():
    where = connection()
    pending(where, due_for=500)
    Connection.objects.update(retired_at=timezone.now())
    assert health.oldest_due() is None


def test_looks_count_as_due_and_so_does_a_lease_nobody_swept():
    where = connection()
    look, lapsed = pending(where, "1"), pending(where, "2")
    now = timezone.now()
    Operation.objects.filter(pk=look.pk).update(
        state="uncertain", stream_busy=True, next_at=now - timedelta(seconds=30)
    )
    assert health.oldest_due(now) == pytest.approx(30, abs=1)
    Operation.objects.filter(pk=lapsed.pk).update(
        state="running", stream_busy=True, lease_until=now - timedelta(seconds=70)
    )
    assert health.oldest_due(now) == pytest.approx(70, abs=1)


# --- the watchdog's judgement ---


@pytest.mark.parametrize(
    ("due", "beat", "since", "stands"),
    [
        (None, None, None, True),  # nothing is due: an idle cluster owes nothing
        (100, 1, None, True),  # a backlog, and somebody works on it
        (10, 100, None, True),  # silent, but nothing has waited long
        (100, 100, None, False),
        (100, None, None, False),  # no drain has ever reported
        (100, None, 5, True),  # just started: not yet held against it
        (100, 100, 60, False),
    ],
)
def test_work_stands_still_when_it_is_old_and_nobody_beats(due, beat, since, stands):
    if due is not None:
        pending(connection(), due_for=due)
    if beat is not None:
        heartbeat(age=beat)
    found = health.standing(due_age=50, beat_age=20, since=since)
    assert (found.why == "") is stands
    assert found.line


def test_only_the_heartbeats_asked_for_count():
    pending(connection(), due_for=100)
    heartbeat(age=0, host="other", pid=7)
    ages: dict[str, Any] = {"due_age": 50, "beat_age": 20}
    assert not health.standing(**ages).why
    assert health.standing(**ages, host="here").why
    assert not health.standing(**ages, host="other", pids=[7]).why
    assert health.standing(**ages, host="other", pids=[8]).why


def test_old_heartbeats_are_forgotten():
    heartbeat("old", age=100)
    heartbeat("young", age=1)
    assert health.forget_drains(50) == 1
    assert Heartbeat.objects.get().drain == "young"


# --- the probe ---


def test_the_probe_is_submitted_once_a_minute():
    health.ensure_probe()
    now = timezone.now().replace(second=10)
    first = health.submit_probe(now)
    assert first is not None
    assert health.submit_probe(now + timedelta(seconds=40)) is None
    assert health.submit_probe(now + timedelta(seconds=60)) not in (None, first)


def test_without_a_connection_there_is_no_probe():
    assert health.submit_probe() is None


def test_the_probes_connection_is_made_once_and_follows_the_address():
    first = health.ensure_probe("http://127.0.0.1:8000")
    again = health.ensure_probe("http://127.0.0.1:8001")
    assert (first.pk, again.base_url) == (again.pk, "http://127.0.0.1:8001")
    assert Connection.objects.get().base_url == "http://127.0.0.1:8001"
    assert gate.ensure(first)


def _confirmed(seconds_ago: float) -> None:
    health.ensure_probe()
    now = timezone.now()
    at = now - timedelta(seconds=seconds_ago)
    submitted = health.submit_probe(at)
    assert submitted is not None
    Operation.objects.filter(pk=submitted).update(
        state="confirmed", confirmed_at=at, first_sent_at=at
    )


def test_the_exchange_is_as_old_as_the_last_probe_that_was_confirmed():
    _confirmed(90)
    health.submit_probe(timezone.now())  # under way, so it proves nothing
    assert health.exchange().age == pytest.approx(90, abs=3)


def test_a_noted_exchange_outlives_the_minutes_in_which_probes_are_looked_for():
    Installation.objects.get_or_create(pk=1)
    _confirmed(30)
    noted = health.exchange().at
    health.note_exchange()
    found = health.exchange(timezone.now() + timedelta(hours=2))
    assert found.at == noted is not None
    assert not found.well


# --- addresses ---


def test_live_asks_nobody(client):
    assert client.get("/health/live").json() == {"live": True}


def test_exchange_is_unwell_until_something_went_the_whole_way(client):
    answer = client.get("/health/exchange")
    assert (answer.status_code, answer.json()["age"]) == (503, None)
    _confirmed(20)
    answer = client.get("/health/exchange")
    assert answer.status_code == 200
    assert answer.json()["age"] == pytest.approx(20, abs=3)


def test_exchange_is_unwell_after_three_minutes(client):
    _confirmed(181)
    assert client.get("/health/exchange").status_code == 503


@pytest.fixture(autouse=True)
def _nothing_known():
    """What one test found out is no other's."""
    cache.clear()


def test_ready_is_asked_of_the_database_once_a_second(client, monkeypatch):
    """Anybody may ask, as often as they like; each look is a write."""
    asked: list[int] = []

    def not_ready() -> list[str]:
        asked.append(1)
        return []

    monkeypatch.setattr("hub.health.not_ready", not_ready)
    for _ in range(20):
        assert client.get("/health/ready").status_code == 200
    assert len(asked) == 1
    cache.clear()  # as after the second
    client.get("/health/ready")
    assert len(asked) == 2


def test_ready_when_database_and_keys_are_as_they_should_be(client):
    connection(secrets=credentials.seal({"key": "value"}))
    answer = client.get("/health/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "problems": []})


def test_not_ready_when_the_keys_do_not_open_what_was_sealed(client):
    connection(secrets=credentials.seal({"key": "value"}, ["A" * 43 + "="]))
    answer = client.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["the credential keys do not open what was sealed"]


def test_not_ready_when_migrations_are_missing(client, monkeypatch):
    monkeypatch.setattr(health.MigrationExecutor, "migration_plan", lambda *_: ["one"])
    assert client.get("/health/ready").json()["problems"] == ["migrations are not applied"]


def test_not_ready_when_the_database_fails_and_its_words_stay_inside(client, monkeypatch):
    def fail(*_):
        raise DatabaseError("password=secret")

    monkeypatch.setattr(health, "execute", fail)
    answer = client.get("/health/ready")
    assert answer.status_code == 503
    assert b"secret" not in answer.content


def test_echo_gives_back_nonce_and_key(client):
    answer = client.post(
        "/health/echo",
        json.dumps({"nonce": "n"}),
        content_type="application/json",
        headers={"Idempotency-Key": "k"},
    )
    assert answer.json() == {"echo": "n", "key": "k"}
    assert answer.headers["Idempotency-Key"] == "k"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("{}", "k"),
        ('{"nonce": "n"}', ""),
        ('{"nonce": 5}', "k"),
        ("not json", "k"),
        ("[" * 3000, "k"),
        (json.dumps({"nonce": "n" * 5000}), "k"),
        ('{"nonce": "n"}', "k" * 500),
    ],
)
def test_echo_refuses_what_is_no_probe(client, body, key):
    answer = client.post(
        "/health/echo", body, content_type="application/json", headers={"Idempotency-Key": key}
    )
    assert answer.status_code == 422


@pytest.mark.parametrize("path", ["live", "ready", "exchange"])
def test_health_needs_no_login_and_takes_no_post(client, path):
    assert client.post(f"/health/{path}").status_code == 405


def test_echo_asks_for_no_token_of_a_form():
    from django.test import Client

    strict = Client(enforce_csrf_checks=True)
    answer = strict.post(
        "/health/echo",
        '{"nonce": "n"}',
        content_type="application/json",
        headers={"Idempotency-Key": "k"},
    )
    assert answer.status_code == 200
