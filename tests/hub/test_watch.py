"""`hub_watch` says by one line and its exit code whether work stands still."""

import socket

import pytest
from django.core.management import call_command
from django.db import DatabaseError

from hub import health
from tests.hub.operations import connection, heartbeat, pending

pytestmark = pytest.mark.django_db


def _watch(capsys, *arguments: str) -> tuple[int, str]:
    code = 0
    try:
        call_command("hub_watch", *arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    return code, capsys.readouterr().out


def test_well(capsys):
    code, said = _watch(capsys)
    assert (code, said) == (0, "well: nothing is due, no drain is known\n")


def test_standing_still_is_said_in_one_line(capsys):
    pending(connection(), due_for=1000)
    heartbeat(age=500)
    code, said = _watch(capsys)
    assert code == 1
    assert said.startswith("work stands still: due work has waited 1000 s")
    assert said.count("\n") == 1


def test_here_counts_only_this_hosts_drains(capsys):
    pending(connection(), due_for=1000)
    heartbeat("there", host="elsewhere")
    assert _watch(capsys)[0] == 0
    assert _watch(capsys, "--here")[0] == 1
    heartbeat("here", host=socket.gethostname())
    assert _watch(capsys, "--here")[0] == 0


def test_an_unreachable_database_is_not_well(capsys, monkeypatch):
    def fail(**_):
        raise DatabaseError("gone")

    monkeypatch.setattr(health, "standing", fail)
    code, said = _watch(capsys)
    assert code == 1
    assert "database does not answer" in said
