"""The stand-in as a process: ready line, restart with its state, polite stop, plain refusals."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integrations.bitrix24.simulator.client import ROOT, Simulator, SimulatorError

MODULE = [sys.executable, "-m", "integrations.bitrix24.simulator"]


def test_state_survives_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state.json"
    with Simulator(state=state) as first:
        kept = first.call(
            "crm.item.add",
            {
                "entityTypeId": 3,
                "fields": {"originId": "kept", "fm": [{"typeId": "PHONE", "value": "+1"}]},
            },
            portal="acme",
        )["result"]["item"]
        gone = first.seed({"name": "gone"}, portal="acme")
        first.person("delete", gone["id"], portal="acme")
        ledger = first.ledger()
    with Simulator(state=state) as second:
        assert second.items("acme") == [{"portal": "acme", **kept}]
        assert second.ledger() == ledger
        found = second.call(
            "crm.item.list", {"entityTypeId": 3, "filter": {"=originId": "kept"}}, portal="acme"
        )
        assert found["total"] == 1
        assert second.seed({}, portal="acme")["id"] > gone["id"], "an id is never given again"
        assert second.ledger()[-1]["id"] == len(ledger) + 1


def test_state_is_written_while_it_runs(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with Simulator(state=state) as simulator:
        simulator.seed({"name": "Ada"})
        deadline = time.monotonic() + 10
        while not state.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert simulator.process is not None
        simulator.process.kill()
        simulator.process.wait()
    with Simulator(state=state) as again:
        assert [item["name"] for item in again.items()] == ["Ada"]


def test_a_reset_is_kept_too(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with Simulator(state=state) as first:
        first.seed({"name": "old"})
    with Simulator(state=state) as second:
        second.reset()
        second.seed({"name": "new"})
    with Simulator(state=state) as third:
        assert [item["name"] for item in third.items()] == ["new"]
        third.reset()
    with Simulator(state=state) as fourth:
        assert fourth.items() == []
        assert fourth.seed({"name": "newest"})["id"] == 3, "an id is never given again"


def test_a_foreign_state_file_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "notes.json"
    state.write_text('{"format": 99}')
    with pytest.raises(SimulatorError, match="is not a state file of this stand-in"):
        Simulator(state=state).start()
    assert state.read_text() == '{"format": 99}'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_politely(number: int) -> None:
    with Simulator() as simulator:
        assert simulator.process is not None
        simulator.process.send_signal(number)
        assert simulator.process.wait(5) == 0


def test_it_stops_politely_with_a_connection_open() -> None:
    with Simulator() as simulator:
        assert simulator.process is not None
        with socket.create_connection(("127.0.0.1", simulator.port)):
            simulator.process.terminate()
            assert simulator.process.wait(5) == 0


def test_it_ends_when_its_parent_is_gone() -> None:
    simulator = Simulator().start()
    assert simulator.process is not None
    assert simulator.process.stdin is not None
    simulator.process.stdin.close()
    assert simulator.process.wait(5) == 0
    simulator.stop()


def test_the_address_can_be_written_to_a_descriptor() -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*MODULE, "--port", "0", "--ready-fd", str(writer)], cwd=ROOT, pass_fds=[writer]
    )
    try:
        os.close(writer)
        with os.fdopen(reader) as pipe:
            line = pipe.readline()
        assert line.startswith("listening on http://127.0.0.1:")
        assert Simulator.at(line.split()[-1]).status()["effects"] == 0
    finally:
        process.terminate()
        assert process.wait(5) == 0


def test_a_taken_port_is_said_plainly() -> None:
    with Simulator() as simulator:
        with pytest.raises(SimulatorError, match=r"cannot start:.*address already in use"):
            Simulator(port=simulator.port).start()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--portal", "acme"], "must look like NAME:SECRET"),
        (["--witness", "mysql://x/y"], "give postgres://"),
    ],
)
def test_wrong_options_are_said_plainly(options: list[str], text: str) -> None:
    done = subprocess.run(
        [*MODULE, "--port", "0", *options], cwd=ROOT, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_it_needs_neither_the_hub_nor_the_connector() -> None:
    program = (
        "import sys, integrations.bitrix24.simulator.__main__ as m;"
        "print([n for n in sys.modules if n.split('.')[0] in ('django', 'hub', 'httpx')"
        " or n.startswith('integrations.bitrix24.') and '.simulator' not in n])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=20
    )
    assert done.stdout.strip() == "[]", done.stderr
