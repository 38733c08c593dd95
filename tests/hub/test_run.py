"""`hub_run` keeps workers going: what ends, stands still or is left behind is cleared and started
anew.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from django.db import connection as database

from hub import health
from hub.management import processes, supervisor
from hub.models import Heartbeat, Installation, Operation
from tests.hub.operations import connection, heartbeat, pending

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
QUICK = {
    "HUB_WATCHDOG_DUE_AGE": "2",
    "HUB_WATCHDOG_BEAT_AGE": "6",
    "HUB_MARGIN": "0.5",
    "HUB_LEASE_ADDEND": "2",
    "HUB_RETRY_BASE": "0.2",
    "HUB_SWEEP_EVERY": "0.5",
    "HUB_WORKERS": "1",
}


def until(what: Callable[[], object], seconds: float = 120.0, step: float = 0.05) -> None:
    """Wait until `what` is true; fail after so many seconds, which only a fault can take."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(step)


class Running:
    """One `hub_run` of a test; only its own processes are ever signalled, by their numbers."""

    def __init__(self, environment: dict[str, str], output: Path) -> None:
        self.output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "hub_run", "--look-every", "0.5"],
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def cluster(self) -> int:
        """The main process of the cluster it supervises now; 0 when none runs."""
        told = f":{self.process.pid}:"
        mains = [
            pid
            for pid, value in processes.marked(supervisor.MARKER).items()
            if told in value and processes.members(pid)
        ]
        return min(mains, default=0)

    def workers(self) -> list[int]:
        """The processes of its cluster that beat."""
        members = processes.members(self.cluster)
        return list(Heartbeat.objects.filter(pid__in=members).values_list("pid", flat=True))

    def stop(self) -> float:
        """SIGTERM; how long the end took."""
        began = time.monotonic()
        self.process.terminate()
        assert self.process.wait(120) == 0, self.said
        return time.monotonic() - began

    def end(self) -> None:
        clusters = [
            pid
            for pid, value in processes.marked(supervisor.MARKER).items()
            if f":{self.process.pid}:" in value
        ]
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        processes.signal_all(clusters, signal.SIGKILL)


class Echo(BaseHTTPRequestHandler):
    """The hub's own web process, as far as the probe sees it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        import json

        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers["idempotency-key"]
        body = json.dumps({"echo": asked["nonce"], "key": key}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test's output is its own."""


class Web(ThreadingHTTPServer):
    """A client that is killed resets its connection; that is what these tests are about."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    server = Web(("127.0.0.1", 0), Echo)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hub_run(hub_environment: dict[str, str], web: str, tmp_path: Path) -> Iterator[Callable]:
    started: list[Running] = []

    def start(**more: str) -> Running:
        environment = hub_environment | QUICK | {"HUB_INTERNAL_URL": web} | more
        one = Running(environment, tmp_path / f"output-{len(started)}")
        started.append(one)
        return one

    yield start
    for one in started:
        one.end()
    database.close()


def whole_exchange() -> bool:
    return Operation.objects.filter(connection__name="probe", state="confirmed").exists()


def test_it_carries_work_survives_every_kill_and_stops_in_time(hub_run):
    run = hub_run()
    until(whole_exchange)
    assert Heartbeat.objects.get().host == socket.gethostname()

    # The worker with the drain in it: the cluster replaces it, its successor is already waiting.
    first = run.workers()[0]
    os.kill(first, signal.SIGKILL)
    until(lambda: run.workers() and first not in run.workers())
    until(lambda: not Heartbeat.objects.filter(pid=first).exists())

    # The cluster's parent: its children would go on taking tasks.
    cluster = run.cluster
    family = processes.members(cluster)
    assert len(family) >= 4
    os.kill(cluster, signal.SIGKILL)
    until(lambda: run.cluster not in (0, cluster))
    assert not [pid for pid in family if processes.is_alive(pid)]
    until(run.workers)

    # Its sentinel: the parent then ends with exit code 0, as if all were well.
    cluster = run.cluster
    sentinel = next(pid for pid in processes.members(cluster) if parent(pid) == cluster)
    os.kill(sentinel, signal.SIGKILL)
    until(lambda: run.cluster not in (0, cluster))
    until(run.workers)
    assert "has ended with code" in run.said

    family = processes.members(run.cluster)
    assert run.stop() < 60
    assert not [pid for pid in family if processes.is_alive(pid)]
    assert not Heartbeat.objects.exists()
    assert not Operation.objects.filter(state__in=["running", "sent"]).exists()


def parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def test_a_frozen_cluster_is_found_and_restarted(hub_run):
    run = hub_run()
    until(whole_exchange)
    cluster = run.cluster
    family = processes.members(cluster)
    processes.signal_all(family, signal.SIGSTOP)
    pending(connection("crm"), due_for=100)
    until(lambda: run.cluster not in (0, cluster))
    assert "work stands still" in run.said
    assert not [pid for pid in family if processes.is_alive(pid)]
    until(run.workers)


def test_what_a_killed_hub_run_left_behind_is_cleared_by_the_next(hub_run):
    run = hub_run()
    until(run.workers)
    family = processes.members(run.cluster)
    # Frozen, so that the parent-death signal alone does not end them.
    processes.signal_all(family, signal.SIGSTOP)
    run.process.kill()
    run.process.wait()
    assert [pid for pid in family if processes.is_alive(pid)]
    second = hub_run()
    until(lambda: "had left behind" in second.said)
    assert not [pid for pid in family if processes.is_alive(pid)]
    until(second.workers)


def test_a_second_hub_run_leaves_the_first_alone(hub_run):
    first = hub_run()
    until(first.workers)
    cluster = first.cluster
    second = hub_run()
    until(second.workers)
    assert first.cluster == cluster
    assert "left behind" not in second.said


def test_a_killed_hub_run_takes_its_cluster_along(hub_run):
    run = hub_run()
    until(run.workers)
    family = processes.members(run.cluster)
    run.process.kill()
    run.process.wait()

    def gone() -> bool:
        # The cluster stops by itself; its drains would stay for their budget, so they are told.
        processes.signal_all(family, signal.SIGURG)
        return not [pid for pid in family if processes.is_alive(pid)]

    until(gone)


@pytest.mark.parametrize("interrupted", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_right_after_the_start_is_polite_too(hub_run, interrupted):
    run = hub_run()
    until(lambda: "started" in run.said)
    run.process.send_signal(interrupted)
    assert run.process.wait(120) == 0
    assert not run.cluster


def test_leases_that_do_not_nest_keep_it_from_starting(manage):
    """F23."""
    done = manage("hub_run", HUB_LEASE_ADDEND="1", HUB_MARGIN="5")
    assert done.returncode == 1
    assert "HUB_LEASE_ADDEND is 1 s" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_connection_whose_calls_outlast_the_task_keeps_it_from_starting(manage):
    """F23, in the numbers of one connection."""
    connection("crm", numbers={"*": {"max_send": 500}})
    done = manage("hub_run")
    assert done.returncode == 1
    assert "No worker is started: HUB_TASK_TIMEOUT is 150 s" in done.stderr
    assert "connection crm" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_without_tables_is_said_in_plain_words(hub_environment, tmp_path):
    environment = hub_environment | {"DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "hub_run"],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "manage.py migrate" in done.stderr
    assert "Traceback" not in done.stderr


# --- the supervisor with a stand-in for the cluster ---


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    signal.signal(signal.SIGURG, signal.SIG_IGN)
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
while True:
    time.sleep(1)
"""


@pytest.fixture
def said() -> list[str]:
    return []


def supervise(
    said: list[str], script: str, *arguments: str, ages: supervisor.Ages
) -> supervisor.Supervisor:
    return supervisor.Supervisor(
        ages, say=said.append, command=[sys.executable, "-c", script, *arguments]
    )


def stop_when(what: Callable[[], object]) -> Thread:
    """Ask this process to stop once `what` is true, as its own supervisor would."""

    def stop() -> None:
        try:
            until(what)
        finally:
            database.close()
            os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=stop)
    thread.start()
    return thread


def test_what_does_not_stop_is_killed_after_its_grace(transactional_db, said, tmp_path):
    pids = tmp_path / "pids"
    ages = supervisor.Ages(due=10, beat=10, look=0.2, grace=1.0, pause=0.1)
    one = supervise(said, STUBBORN, str(pids), ages=ages)
    asked = stop_when(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2)
    assert one.run() == 0
    asked.join()
    family = [int(line) for line in pids.read_text().split()]
    assert len(family) == 2
    assert not [pid for pid in family if processes.is_alive(pid)]
    assert any("did not stop in 1 s" in line for line in said)


def test_an_exit_code_of_0_is_not_trusted(transactional_db, said, tmp_path):
    lives = tmp_path / "lives"
    script = "import sys; open(sys.argv[1], 'a').write('x')"
    ages = supervisor.Ages(due=10, beat=10, look=0.2, grace=1.0, pause=0.1, pause_cap=0.4)
    one = supervise(said, script, str(lives), ages=ages)
    asked = stop_when(lambda: lives.exists() and len(lives.read_text()) >= 3)
    assert one.run() == 0
    asked.join()
    assert len(lives.read_text()) >= 3
    assert any("has ended with code 0; starting a new one" in line for line in said)


def test_a_cluster_that_dies_at_once_is_started_more_and_more_slowly(
    transactional_db, said, tmp_path
):
    ages = supervisor.Ages(due=10, beat=10, look=0.2, grace=1.0, pause=0.1, pause_cap=30)
    one = supervise(said, "raise SystemExit(3)", ages=ages)
    asked = stop_when(lambda: sum("a new one" in line for line in said) >= 4)
    assert one.run() == 0
    asked.join()
    waits = [float(line.split(" in ")[1].split(" s")[0]) for line in said if "a new one" in line]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]


def test_a_database_put_back_without_a_word_is_refused(transactional_db, said):
    """F81: the supervisor saw a later epoch, so somebody restored a backup and did not say so."""
    Installation.objects.update_or_create(pk=1, defaults={"epoch": 5})
    ages = supervisor.Ages(due=10, beat=10, look=0.2, grace=1.0, pause=0.1)
    one = supervise(said, "import time; time.sleep(60)", ages=ages)

    def put_back() -> None:
        until(lambda: any("started" in line for line in said))
        Installation.objects.filter(pk=1).update(epoch=4)
        database.close()

    thread = Thread(target=put_back)
    thread.start()
    assert one.run() == 1
    thread.join()
    assert any("hub_restored" in line for line in said)


def test_heartbeats_of_this_hosts_dead_are_removed_and_others_left(transactional_db, said):
    here = socket.gethostname()
    heartbeat("dead", host=here, pid=2**22 + 1)
    heartbeat("alive", host=here, pid=os.getpid())
    heartbeat("elsewhere", host="elsewhere", pid=2**22 + 1)
    ages = supervisor.Ages(due=10, beat=10, look=0.2, grace=1.0, pause=0.1)
    one = supervise(said, "import time; time.sleep(60)", ages=ages)
    asked = stop_when(lambda: not Heartbeat.objects.filter(drain="dead").exists())
    one.run()
    asked.join()
    assert {row.drain for row in Heartbeat.objects.all()} == {"alive", "elsewhere"}


def test_it_submits_the_probe_itself(transactional_db, said):
    """Else a frozen cluster with nothing to do would be found only by a customer's change."""
    health.ensure_probe()
    ages = supervisor.Ages(due=10, beat=10, look=0.2, grace=1.0, pause=0.1)
    one = supervise(said, "import time; time.sleep(60)", ages=ages)
    asked = stop_when(Operation.objects.filter(action=health.PROBE_ACTION).exists)
    one.run()
    asked.join()
    assert Operation.objects.filter(action=health.PROBE_ACTION).exists()


@pytest.mark.sqlite
def test_a_worker_frozen_while_it_holds_the_database_is_found(transactional_db, said, tmp_path):
    """On SQLite nobody can write then, the supervisor included; and nothing needs to be due."""
    script = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
if not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "w").close()
    database.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""
    path = str(database.settings_dict["NAME"])
    ages = supervisor.Ages(due=0.7, beat=0.7, look=0.2, grace=1.0, pause=0.1)
    one = supervise(said, script, path, str(tmp_path / "once"), ages=ages)
    asked = stop_when(lambda: any("no drain has reported" in line for line in said))
    assert one.run() == 0
    asked.join()
    assert any("no drain has reported" in line for line in said)
