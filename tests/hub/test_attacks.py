"""Attacks that once got through: each of these broke a promise until its fault was mended."""

from __future__ import annotations

import gzip
import json
import time

import pytest
from django.test import Client

from hub.contract import Answer
from hub.http import _decoded
from hub.models import Decision
from hub.redaction import Scrubber
from hub.states import State
from integrations.bitrix24.errors import text_of
from tests.hub import pages

SECRET = "7/kanarie0123456789vogel"
LONG = 400_000


# --- one remote must not stop the drain (one event loop serves all of them) ---


@pytest.mark.parametrize(
    "unit", ["a-", "a.", "\\", "token ", "a://b:", "%25", "authorization:", "a", "token='\\x"]
)
def test_no_answer_takes_the_scrubber_the_square_of_its_length(unit: str) -> None:
    """8,000 characters of "a-a-" took twelve seconds: a request id or a code stopped everybody."""
    text = unit * (LONG // len(unit))
    scrubber = Scrubber([SECRET])
    began = time.process_time()
    scrubber.text(text, 300)
    scrubber.masked(text)
    assert time.process_time() - began < 3.0


def test_a_body_of_many_gzip_members_is_given_up() -> None:
    """Eight megabytes of empty members took minutes: each costs a copy of all that follows."""
    member = gzip.compress(b"")
    began = time.process_time()
    body, whole = _decoded("gzip", member * (8 * 1024 * 1024 // len(member)), 8 * 1024 * 1024)
    assert (body, whole) == (b"", False)
    assert time.process_time() - began < 1.0
    assert _decoded("gzip", gzip.compress(b"a") + gzip.compress(b"b"), 10) == (b"ab", True)


def test_tags_are_not_looked_for_in_megabytes() -> None:
    body = json.dumps({"error": "X", "error_description": "<" * 4_000_000}).encode()
    began = time.process_time()
    text_of(Answer(400, (), body, False, 0.0))
    assert time.process_time() - began < 1.0


# --- secrets ---


@pytest.mark.parametrize("times", range(15, 40))
def test_a_secret_that_is_repeated_leaves_no_half_at_a_cut(times: int) -> None:
    """Cut first and masked later, the last copy of an echoed credential was all but whole."""
    secret = SECRET.partition("/")[2]
    said = " ".join([secret] * times) + " " + secret * 30
    body = json.dumps({"error": "X", "error_description": said}).encode()
    text = Scrubber([SECRET]).text(text_of(Answer(400, (), body, False, 0.0)), 300)
    assert secret[:8] not in text


def test_a_secret_across_the_end_of_what_is_searched_leaves_no_half() -> None:
    for before in range(0, 3000, 7):
        text = Scrubber([SECRET]).text("x" * before + SECRET * 400, 300)
        assert "kanarie" not in text


# --- pages ---

HIDDEN = [
    ("operation", "state=all&payload__contains=Zenobia"),
    ("operation", "state=all&fingerprint__startswith=a"),
    ("candidate", "fields__contains=Zenobia"),
    ("candidate", "differences__contains=Okafor"),
    ("attempt", "seen__contains=a"),
    ("evidence", "data__contains=a"),
    ("mapping", "values__contains=a"),
    ("connection", "secrets__startswith=gAAAA"),
    ("reviewcase", "connection__secrets__startswith=gAAAA"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("model", "query"), HIDDEN)
def test_an_address_cannot_guess_what_a_page_hides(client: Client, model: str, query: str) -> None:
    """I15: `?payload__contains=` told whoever may not see payloads, bit by bit, what they hold."""
    pages.one_of_each(pages.connection())
    client.force_login(pages.person("eve", f"view_{model}"))
    assert client.get(f"/admin/hub/{model}/").status_code == 200
    assert client.get(f"/admin/hub/{model}/?{query}").status_code == 400


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("model", "query"),
    [
        ("operation", "state=review&reason=unknown&age=1m&action=contact.create&tenant=1"),
        ("connection", "integration__exact=bitrix24&retired_at__isempty=1&tenant=1"),
        ("reviewcase", "subject__exact=operation&closed=all&connection=1&age=1d"),
        ("attempt", "outcome=U&purpose__exact=send&stale__exact=0"),
        ("candidate", "matches__exact=0"),
        ("decision", "action=retry&done__exact=1"),
    ],
)
def test_the_filters_of_the_lists_still_work(client: Client, model: str, query: str) -> None:
    pages.one_of_each(pages.connection())
    client.force_login(pages.person("root", root=True))
    assert client.get(f"/admin/hub/{model}/?{query}").status_code == 200


@pytest.mark.django_db
def test_the_overview_shows_nobody_what_no_list_would(client: Client) -> None:
    """Whoever may enter, with no permission at all, saw every tenant, connection and worker."""
    rows = pages.one_of_each(pages.connection("portal-of-acme", label="Very private"))
    assert rows
    client.force_login(pages.person("nobody"))
    text = client.get("/admin/").content.decode()
    for hidden in ("portal-of-acme", "Very private", "Acme", "drain-1", "found"):
        assert hidden not in text, hidden
    client.force_login(pages.person("looker", "view_connection"))
    text = client.get("/admin/").content.decode()
    assert "Very private" in text or "portal-of-acme" in text
    assert "drain-1" not in text


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        "operation/?action=%00",
        "operation/?state=all&reason=%00",
        f"operation/?tenant={'9' * 30}",
        f"operation/?connection={'9' * 30}",
        "attempt/?outcome=%00",
        "attempt/?purpose__exact=%00",
        "connection/?integration__exact=%00",
        "reviewcase/?subject__exact=%00",
        "decision/?action=%00",
    ],
)
def test_no_address_ends_in_an_error_page(client: Client, query: str) -> None:
    pages.one_of_each(pages.connection())
    client.force_login(pages.person("root", root=True))
    assert client.get(f"/admin/hub/{query}").status_code in (200, 400)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "token"),
    [("review", "9" * 30), ("review", "-" + "9" * 30), ("\x00", "0"), ("z" * 300, "5")],
)
def test_a_forged_page_is_a_stale_page(client: Client, state: str, token: str) -> None:
    """What no column holds, sent as what the person saw, ended in an error page, off the record."""
    row = pages.in_state(pages.connection(), State.REVIEW)
    client.force_login(pages.person("root", root=True))
    given = {"action": "discard", "reason": "x", "seen_state": state, "seen_token": token}
    assert client.post(f"/admin/operations/{row.pk}/", given).status_code == 409
    assert Decision.objects.filter(operation=row, done=False).count() == 1
