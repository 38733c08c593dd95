"""Guessing passwords ends, for the name and address it comes from and for nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client, RequestFactory

from hub.panel.login import client_address
from tests.hub import pages

pytestmark = pytest.mark.django_db
LOGIN = "/admin/login/?next=/admin/"


def enter(client: Client, name: str, password: str, address: str = "192.0.2.1") -> int:
    sent = {"username": name, "password": password, "next": "/admin/"}
    return client.post(LOGIN, sent, REMOTE_ADDR=address).status_code


def test_five_failures_lock_the_name_from_there_and_nowhere_else(client: Client) -> None:
    pages.person("ana")
    pages.person("luis")
    for _turn in range(4):
        assert enter(client, "ana", "wrong") == 200
    assert enter(client, "ana", "wrong") == 429
    assert enter(client, "ana", "x") == 429, "the right one does not help any more"
    assert enter(client, "luis", "x") == 302
    assert enter(Client(), "ana", "x", "192.0.2.2") == 302


def test_who_is_locked_out_is_told_for_how_long(client: Client) -> None:
    pages.person("ana")
    for _turn in range(5):
        enter(client, "ana", "wrong")
    sent = {"username": "ana", "password": "x"}
    response = client.post(LOGIN, sent, REMOTE_ADDR="192.0.2.1")
    assert "Wait 15 minutes" in response.content.decode()
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("proxies", "said", "address"),
    [
        (0, "203.0.113.9", "192.0.2.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "198.51.100.66, 203.0.113.9", "203.0.113.9"),
        (2, "198.51.100.66, 203.0.113.9", "198.51.100.66"),
        (2, "", "192.0.2.1"),
    ],
)
def test_only_what_our_own_proxies_added_is_believed(
    settings: Any, rf: RequestFactory, proxies: int, said: str, address: str
) -> None:
    settings.HUB_PROXIES = proxies
    asked = rf.get("/", REMOTE_ADDR="192.0.2.1", HTTP_X_FORWARDED_FOR=said)
    assert client_address(asked) == address
