"""Worker processes of a test: started, frozen, killed by their own process id, never by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hub.management import processes, supervisor
from hub.models import Heartbeat
from tests.harness.forge import forge

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """One `hub_drain --forever` in a process of its own."""

    def __init__(self, environment: Mapping[str, str], output: Path) -> None:
        self.output = output
        self.process = forge(environment).manage(
            "hub_drain", "--forever", "--budget", "600", environment=environment, output=output
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs (or is frozen)."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal; nothing when it has ended."""
        if self.alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.wait(60)

    def freeze(self) -> None:
        """SIGSTOP: it does nothing until `thaw()`."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def stop(self, seconds: float = 60.0) -> int:
        """Ask it politely; its exit code. Raises `subprocess.TimeoutExpired` when it does not
        listen.
        """
        self.thaw()
        self.signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def said(self) -> str:
        """What it wrote."""
        return self.output.read_text(errors="replace")


QUICK_CLUSTER = {
    "HUB_WORKERS": "2",
    "HUB_WATCHDOG_DUE_AGE": "3",
    "HUB_WATCHDOG_BEAT_AGE": "6",
}


class HubRun:
    """The shipped supervisor with its Django-Q2 cluster: `hub_run`, its drains, and whoever else is
    in the cluster.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path, internal_url: str) -> None:
        self._environment = {**environment, **QUICK_CLUSTER, "HUB_INTERNAL_URL": internal_url}
        self._folder = folder
        self._replaced = 0
        self._parents: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start `hub_run`; it clears first what a killed one left behind."""
        with (self._folder / f"cluster-{len(self._parents)}.log").open("ab") as output:
            self._parents.append(
                subprocess.Popen(
                    [sys.executable, str(ROOT / "manage.py"), "hub_run", "--look-every", "0.5"],
                    env=self._environment,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def _clusters(self, parent: int) -> list[int]:
        told = f":{parent}:"
        return [pid for pid, value in processes.marked(supervisor.MARKER).items() if told in value]

    def children(self) -> list[int]:
        """Process ids of the drains at work in the present cluster."""
        mains = self._clusters(self._parents[-1].pid)
        mine = {pid for main in mains for pid in processes.members(main)}
        return list(Heartbeat.objects.filter(pid__in=mine).values_list("pid", flat=True))

    def replace_parent(self) -> None:
        """SIGKILL to a parent: in turns the cluster's main process, which `hub_run` replaces, and
        `hub_run` itself,
        whose successor clears what it left behind.
        """
        self._replaced += 1
        mains = self._clusters(self._parents[-1].pid)
        if self._replaced % 2 and mains:
            self.kill(min(mains))
            return
        self._parents[-1].kill()
        self._parents[-1].wait(10)
        self.start()

    def send(self, pid: int, number: int) -> None:
        """A signal to one process of the present cluster; nothing when it has ended."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return

    def kill(self, pid: int) -> None:
        """SIGKILL to one process of the cluster."""
        self.send(pid, signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether the present `hub_run` runs."""
        return self._parents[-1].poll() is None

    def end(self) -> None:
        """Kill everything that any of the `hub_run` of this test has started."""
        for parent in self._parents:
            if parent.poll() is None:
                parent.kill()
                parent.wait(10)
        for parent in self._parents:
            processes.kill_all(lambda p=parent: self._clusters(p.pid))  # type: ignore[misc]

    def said(self) -> str:
        """What they wrote."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self._folder.glob("cluster-*.log"))
        )
