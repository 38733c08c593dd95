"""`make run`: one command that brings everything up, says so once it answers, and leaves nothing
behind.
"""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener, urlopen

import pytest

from hub.management import local, processes

ROOT = Path(__file__).resolve().parents[2]
# It makes its own SQLite database in its own HUB_HOME, whatever the suite runs on.
pytestmark = [pytest.mark.processes, pytest.mark.sqlite]


def until(what: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def two_free_ports() -> int:
    """A free port whose successor is free as well."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


class Local:
    """A `make run` of a test, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = two_free_ports()
        self.processes: list[subprocess.Popen[bytes]] = []
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HUB_", "DATABASE_"))}
        self.environment = kept | {
            "HUB_LOCAL": "1",
            "HUB_HOME": str(home),
            "HUB_PORT": str(self.port),
            "HUB_DEMO_PASSWORD": "a-password-of-a-test",
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def output(self) -> Path:
        return self.home.parent / "output"

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def start(self) -> subprocess.Popen[bytes]:
        before = self.said.count("Ctrl-C stops everything")
        with self.output.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "run_local"],
                env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.processes.append(process)
        until(lambda: self.said.count("Ctrl-C stops everything") > before)
        return process

    def run(self, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), "run_local"],
            env=self.environment | changes, cwd=ROOT, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def family(self) -> dict[int, str]:
        """All processes of this home that still run, with their command lines."""
        found = {}
        for pid, home in processes.marked("HUB_HOME").items():
            if home == str(self.home) and processes.is_alive(pid):
                raw = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = raw.replace(b"\0", b" ").decode()
        return found

    def find(self, word: str) -> int:
        """The oldest process with this word in its command line; 0 when there is none."""
        return min((pid for pid, line in self.family().items() if word in line), default=0)

    def rows(self, sql: str) -> list[tuple]:
        with sqlite3.connect(self.home / "hub.sqlite3", timeout=20) as database:
            return database.execute(sql).fetchall()

    def get(self, path: str, plus: int = 0) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port + plus}{path}", timeout=60) as answer:
            return bytes(answer.read())


@pytest.fixture
def run_local(tmp_path: Path) -> Iterator[Local]:
    (tmp_path / "home").mkdir()
    made = Local(tmp_path / "home")
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.wait(60)
    processes.signal_all(made.family(), signal.SIGKILL)


def _replaced(run: Local, word: str, pid: int) -> bool:
    return run.find(word) not in (0, pid)


def confirmed(run: Local) -> int:
    return int(run.rows("SELECT count(*) FROM hub_operation WHERE state = 'confirmed'")[0][0])


def test_it_starts_says_so_recovers_stops_and_goes_on(run_local):
    runner = run_local.start()
    assert f"http://127.0.0.1:{run_local.port}/admin/" in run_local.said
    assert "admin, agent, senior, developer, auditor" in run_local.said
    assert json.loads(run_local.get("/health/ready"))["ready"]

    # The demo's changes arrive, and the probe goes the whole way.
    until(lambda: confirmed(run_local) >= 3)
    until(lambda: json.loads(run_local.get("/health/exchange"))["well"])
    assert json.loads(run_local.get("/_sim/ledger", plus=1))["effects"]
    _log_in(run_local)

    # A second one beside it says so and ends; so does one that finds the ports taken.
    second = run_local.run()
    assert second.returncode == 1
    assert f"already runs here: process {runner.pid}" in second.stderr
    other = run_local.run(HUB_HOME=str(run_local.home.parent / "other"))
    assert other.returncode == 1
    assert f"port {run_local.port} (for the web)" in other.stderr
    assert "Set HUB_PORT" in other.stderr

    # A child that dies is started again, and said to have died.
    for word in ("gunicorn", "hub_run", "simulator"):
        pid = run_local.find(word)
        os.kill(pid, signal.SIGKILL)
        until(partial(_replaced, run_local, word, pid))
    until(lambda: run_local.said.count("starting it again") >= 3)
    until(lambda: local.answers(f"http://127.0.0.1:{run_local.port}/health/ready"))
    count = confirmed(run_local)
    until(lambda: confirmed(run_local) > count)

    # Ctrl-C.
    began = time.monotonic()
    runner.send_signal(signal.SIGINT)
    assert runner.wait(120) == 0
    assert time.monotonic() - began < 60
    assert run_local.family() == {}
    assert run_local.rows("SELECT count(*) FROM hub_heartbeat") == [(0,)]

    # Again: the same data, and the story behind its last scene.
    told = run_local.rows("SELECT count(*) FROM hub_operation WHERE source_system = 'demo'")
    run_local.start()
    until(
        lambda: (
            run_local.rows("SELECT count(*) FROM hub_operation WHERE source_system = 'demo'") > told
        )
    )
    keys = run_local.rows("SELECT count(DISTINCT operation_key), count(*) FROM hub_operation")
    assert keys[0][0] == keys[0][1]
    references = [
        effect["reference"]
        for effect in json.loads(run_local.get("/_sim/ledger", plus=1))["effects"]
        if effect["method"] == "crm.item.add"
    ]
    assert len(references) == len(set(references)), "a contact stands twice in the portal"


def test_a_killed_runner_leaves_nothing_behind(run_local):
    runner = run_local.start()
    until(lambda: len(run_local.family()) > 6)
    runner.kill()
    runner.wait()
    until(lambda: run_local.family() == {})
    # And the next one takes over without ado.
    again = run_local.start()
    again.terminate()
    assert again.wait(120) == 0
    assert run_local.family() == {}


def _log_in(run: Local) -> None:
    """As a person would: the form, its token, the password that was printed."""
    opener = build_opener(HTTPCookieProcessor(jar := CookieJar()))
    address = f"http://127.0.0.1:{run.port}/admin/login/?next=/admin/"
    opener.open(address, timeout=60).read()
    token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {
        "username": "agent",
        "password": run.environment["HUB_DEMO_PASSWORD"],
        "csrfmiddlewaretoken": token,
        "next": "/admin/",
    }
    with opener.open(address, urlencode(form).encode(), timeout=60) as answer:
        assert answer.geturl().endswith("/admin/")
        assert b"logout" in answer.read()


# --- parts ---


def test_a_lock_tells_whether_the_last_run_ended_well(tmp_path):
    path = tmp_path / "lock"
    first = local.Lock(path)
    first.take("process 1")
    with pytest.raises(local.Occupied, match="process 1"):
        local.Lock(path).take("process 2")
    first.release()
    second = local.Lock(path)
    second.take("process 2")
    assert not second.unclean
    second.release()
    path.write_text("process 3\n")  # as a killed run would leave it
    third = local.Lock(path)
    third.take("process 4")
    assert third.unclean
    third.release()


@pytest.mark.parametrize("port", ["0", "-1", "65535", "80000", "8000.5", "web", "1e400"])
def test_a_port_that_is_none_is_said_in_one_line(run_local, port):
    done = run_local.run(HUB_PORT=port)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "HUB_PORT is " in done.stderr
    assert "set it to a" in done.stderr


def test_the_last_port_leaves_one_for_the_stand_in():
    assert local.ports_of(65_534) == {65_534: "the web", 65_535: "the stand-in"}
    with pytest.raises(local.NoPort, match="from 1 to 65534"):
        local.ports_of(65_535)


def test_taken_ports_are_named_with_the_variable_to_change():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            local.Occupied, match=rf"port {port} \(for the web\) is taken.*HUB_PORT"
        ):
            local.claim_ports({port: "the web"}, patience=0.3)
