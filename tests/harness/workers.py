"""Worker processes of a test: started, frozen, killed by their own process id, never by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """One `hub_drain --forever` in a process of its own."""

    def __init__(self, environment: Mapping[str, str], output: Path) -> None:
        self.output = output
        self._file: IO[bytes] = output.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "hub_drain", "--forever", "--budget", "600"],
            env=dict(environment),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
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
        self.process.wait(10)
        self._file.close()

    def freeze(self) -> None:
        """SIGSTOP: it does nothing until `thaw()`."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def stop(self, seconds: float = 10.0) -> int:
        """Ask it politely; its exit code. Raises `subprocess.TimeoutExpired` when it does not listen."""
        self.thaw()
        self.signal(signal.SIGTERM)
        code = self.process.wait(seconds)
        self._file.close()
        return code

    def said(self) -> str:
        """What it wrote."""
        return self.output.read_text(errors="replace")


class Cluster:
    """A parent that keeps a number of drains running; both may be killed, and the parent started anew."""

    def __init__(self, environment: Mapping[str, str], folder: Path, count: int = 2) -> None:
        self.count = count
        self._environment = dict(environment)
        self._folder = folder
        self._parents: list[subprocess.Popen[bytes]] = []
        self._orphans: set[int] = set()
        self.start()

    def start(self) -> None:
        """Start a parent; it forks its drains at once."""
        number = len(self._parents)
        with (self._folder / f"cluster-{number}.log").open("ab") as output:
            self._parents.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.harness.supervisor",
                        str(self.count),
                        str(self._record(number)),
                    ],
                    env=self._environment,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def _record(self, number: int) -> Path:
        return self._folder / f"cluster-{number}.children"

    @property
    def parent(self) -> int:
        """Process id of the present parent."""
        return self._parents[-1].pid

    def children(self) -> list[int]:
        """Process ids of the present parent's drains, the eldest first."""
        return self._children_of(len(self._parents) - 1)

    def _children_of(self, number: int) -> list[int]:
        record = self._record(number)
        found: list[int] = []
        for line in record.read_text().splitlines() if record.exists() else ():
            if line.startswith("+"):
                found.append(int(line[1:]))
            elif int(line[1:]) in found:
                found.remove(int(line[1:]))
        return found

    def kill_parent(self) -> list[int]:
        """SIGKILL to the parent; the drains it leaves behind go on, and are returned."""
        left = self.children()
        self._parents[-1].kill()
        self._parents[-1].wait(10)
        self._orphans |= set(left)
        return left

    def send(self, pid: int, number: int) -> None:
        """A signal to one of our drains; nothing when it has ended."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            self._orphans.discard(pid)

    def kill(self, pid: int) -> None:
        """SIGKILL to one drain."""
        self.send(pid, signal.SIGKILL)
        self._orphans.discard(pid)

    @property
    def alive(self) -> bool:
        """Whether the present parent runs."""
        return self._parents[-1].poll() is None

    def end(self) -> None:
        """Kill the parent, its drains and whatever an earlier parent left behind."""
        children = self.children()
        if self.alive:
            self._parents[-1].kill()
            self._parents[-1].wait(10)
        # A child forked in that very moment would be missing from the list read before.
        for pid in {*children, *self.children(), *self._orphans}:
            self.kill(pid)
        self._orphans.clear()

    def said(self) -> str:
        """What parents and drains wrote."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self._folder.glob("cluster-*.log"))
        )
