"""I15: planted secrets that a remote, an exception or a header gives back to us stay out of every
row, log, page and report, however they are written.
"""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection as database
from django.test import Client, RequestFactory
from django.urls import NoReverseMatch, reverse
from django.views.debug import ExceptionReporter

from hub.contract import CallFailed, FailureKind
from hub.models import Connection
from hub.outbox import Submitted
from tests.harness.classes import TestRemoteConnector
from tests.harness.world import World, small_tuning

FIELDS = {"name": "Ann"}


def forms(secret: str) -> dict[str, str]:
    """The ways a secret may be written, as a remote would give it back."""
    raw = secret.encode()
    return {
        "plain": secret,
        "base64": base64.b64encode(raw).decode(),
        "base64 of more": base64.b64encode(b"user:" + raw).decode(),
        "URL-encoded": "".join(f"%{byte:02X}" for byte in raw),
        "quoted": quote(secret, safe=""),
        "JSON-escaped": "".join(f"\\u{ord(c):04x}" for c in secret),
        "as a header": f"Authorization: Bearer {secret}",
        "in a URL": f"https://example.test/rest/1/{secret}/crm.item.add?auth={secret}",
        "cut": f"{'x' * 590}{secret}",
    }


def searched(secret: str) -> dict[str, str]:
    """What must stand nowhere: every form, without what surrounds it."""
    raw = secret.encode()
    found = {
        "plain": secret,
        "URL-encoded": "".join(f"%{byte:02X}" for byte in raw),
        "JSON-escaped": "".join(f"\\u{ord(c):04x}" for c in secret),
        "JSON-escaped twice": "".join(f"\\\\u{ord(c):04x}" for c in secret),
        "half of it": secret[: len(secret) // 2 + 4],
    }
    for pad in range(3):
        inner = base64.b64encode(b"\0" * pad + raw).decode()
        found[f"base64 at {pad}"] = inner[4 if pad else 0 : len(inner) - 4]
    return found


def check(secrets: list[str], places: Iterator[tuple[str, str]]) -> int:
    """Raise with every place that holds a secret; how many places were searched."""
    leaks, count = [], 0
    for place, text in places:
        count += 1
        for secret in secrets:
            leaks += [f"{place}: {name}" for name, form in searched(secret).items() if form in text]
    assert not leaks, "\n".join(leaks[:20])
    return count


def dump() -> Iterator[tuple[str, str]]:
    """Every row of every table as text, but for the sealed column."""
    for table in database.introspection.table_names():
        with database.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {database.ops.quote_name(table)}")
            names = [column[0] for column in cursor.description or ()]
            for row in cursor.fetchall():
                values = dict(zip(names, row, strict=True))
                if table == "hub_connection":
                    values.pop("secrets")
                yield f"table {table}", repr(values)
                yield f"table {table}", "\n".join(str(value) for value in values.values())


@pytest.fixture
def told(world: World) -> tuple[list[str], dict[str, Submitted]]:
    """Operations whose remote gave our secret back in every form and place."""
    world.tuning = small_tuning(uncertain_max=0.6, breaker_threshold=10_000)
    remote = world.fake_remote()
    connection = world.connect(remote)
    secret = remote.secrets["token"]
    done: dict[str, Submitted] = {}
    for name, form in forms(secret).items():
        places: dict[str, dict[str, Any]] = {
            "code": {"status": 422, "body": {"error": f"INVALID {form}"}},
            "known code": {"status": 422, "body": {"error": "INVALID", "message": form}},
            "HTML": {"status": 502, "body": f"<html><pre>{form}</pre></html>"},
            "200 HTML": {"status": 200, "body": f"<html>{form}</html>"},
            "header": {"status": 400, "headers": {"x-request-id": form, "x-said": form}},
            "id": {"status": 201, "body": {"id": form, "version": form}},
        }
        for place, more in places.items():
            key = f"{place}, {name}"
            one = done[key] = world.submit(connection, "d.create", key, 1, FIELDS)
            reference = world.operation(one).reference
            if place == "id":
                more["body"]["reference"] = reference
            remote.order("answer", "POST", when="before", reference=reference, **more)
        one = done[f"candidate, {name}"] = world.submit(
            connection, "c.create", f"candidate, {name}", 1, FIELDS
        )
        reference = world.operation(one).reference
        remote.order("drop", "POST", when="before", reference=reference)
        items = [{"id": f"9{name}", "reference": reference, "fields": {"name": form, form: form}}]
        remote.order("answer", "GET", status=200, times=9, reference=reference,
                     body={"items": items, "complete": True})  # fmt: skip
    world.settle()
    world.allow("I3", "the ids in the answers were made up by the test")
    return [secret], done


def test_what_a_remote_gives_back(
    world: World, told: tuple[list[str], dict[str, Submitted]]
) -> None:
    """I15: error texts, codes, headers, HTML bodies, ids and candidates: rows, logs, hub_show."""
    secrets, done = told
    out = io.StringIO()
    ids = [str(one.operation_id) for one in done.values()]
    call_command("hub_show", *ids, stdout=out)
    call_command("hub_show", "--json", *ids, stdout=out)
    shown = out.getvalue()
    assert shown.count("\n") > len(done)

    def places() -> Iterator[tuple[str, str]]:
        yield from dump()
        yield from world.outputs()
        yield "hub_show", shown

    assert check(secrets, places()) > len(done)


def test_every_page_of_the_admin(
    world: World, told: tuple[list[str], dict[str, Submitted]]
) -> None:
    """I15: lists, records and forms, as a superuser sees them."""
    secrets, done = told
    user = get_user_model().objects.create_superuser("root", "r@example.test", "pw")
    client = Client()
    client.force_login(user)

    def pages() -> Iterator[tuple[str, str]]:
        yield "index", client.get("/admin/").content.decode()
        for model in apps.get_app_config("hub").get_models():
            name = f"{model._meta.app_label}_{model._meta.model_name}"
            try:
                address = reverse(f"admin:{name}_changelist")
            except NoReverseMatch:
                continue
            yield address, client.get(address).content.decode()
            for pk in model._default_manager.values_list("pk", flat=True)[:80]:
                address = reverse(f"admin:{name}_change", args=[pk])
                answer = client.get(address, follow=True)
                assert answer.status_code == 200, address
                yield address, answer.content.decode()

    assert check(secrets, pages()) > len(done)


def test_what_exceptions_carry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I15, F117: an integration that puts the secret into its exceptions: no row, no log line."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    secret = remote.secrets["token"]
    real = TestRemoteConnector._key
    errors = {
        "runtime": RuntimeError(f"bad token {secret}"),
        "key": KeyError(secret),
        "failed": CallFailed(FailureKind.OTHER, f"token {secret}\x00", begun=True),
        "chained": ValueError("outer"),
    }
    errors["chained"].__cause__ = RuntimeError(f"inner {secret}")

    def key(self: Any, request: Any) -> dict[str, str]:
        if request.source_id in errors:
            raise errors[request.source_id]
        return real(self, request)

    def made(self: Any, request: Any, answer: Any) -> Any:
        raise errors[request.source_id.partition(" ")[2]]

    monkeypatch.setattr(TestRemoteConnector, "_key", key)
    monkeypatch.setattr(TestRemoteConnector, "_made", made)
    for name in errors:
        world.submit(connection, "c.create", name, 1, FIELDS)
        world.submit(connection, "d.note", f"after {name}", 1, FIELDS)
    world.settle(tuning=small_tuning(uncertain_max=0.5))
    assert world.states()["review"] == 2 * len(errors), world.states()

    def places() -> Iterator[tuple[str, str]]:
        yield from dump()
        yield from world.outputs()

    check([secret], places())


def test_the_report_of_an_exception(world: World, rf: RequestFactory) -> None:
    """I15: Django's own report of an error, with a connector and its secrets in the frames."""
    world.real_time()
    stand_in = world.stand_in()
    row = world.connect(stand_in)
    secret = stand_in.secrets["webhook"].partition("/")[2]
    from hub import remote as remotes

    row = Connection.objects.select_related("tenant", "gate").get(pk=row.pk)
    ready = remotes.make(row, mark="m")
    try:
        _break(ready)
    except RuntimeError as error:
        request = rf.post(
            "/admin/hub/connection/1/change/",
            {"secret_webhook": f"1/{secret}", "webhook": f"1/{secret}", "token": secret},
        )
        report = ExceptionReporter(request, type(error), error, error.__traceback__)
        places = {"HTML": report.get_traceback_html(), "text": report.get_traceback_text()}
    check([secret], iter(places.items()))


def _break(ready: Any) -> None:
    connector = ready.connector
    secrets = connector.secrets
    raise RuntimeError(f"{type(connector).__name__} broke with {len(secrets)} secrets")


def test_what_a_worker_process_says(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """I15: at DEBUG, with a remote that refuses the secret and shows it."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    secret = remote.secrets["token"]
    remote.order("answer", "POST", status=401, body={"error": "BAD_TOKEN", "token": secret})
    remote.order("answer", "POST", status=500, body=f"trace: token={secret}", times=2)
    with caplog.at_level(logging.DEBUG):
        for number in range(3):
            world.submit(connection, "a.note", str(number), 1, FIELDS)
        world.drain(budget=3.0)
    check([secret], iter([("caplog", caplog.text), ("json", json.dumps(caplog.text))]))
    from hub import gate

    gate.resume(connection.pk)
    world.settle()
    world.allow("I4", "a 401 after the write was carried out says it was not")
    world.allow("I1", "the same")
