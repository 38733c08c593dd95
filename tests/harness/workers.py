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
