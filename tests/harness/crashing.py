"""Drains that die at a chosen step point: once by losing all memory in this process, once by
SIGKILL for real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Crash(BaseException):
    """The process is gone. No ordinary exception: nothing may catch it and go on."""


@dataclass
class Fuse:
    """A step hook that dies at the n-th time of a named step, and at every later step: the dead do
    nothing more.

    Without a name it only notes what it sees.
    """

    name: str = ""
    time: int = 1
    seen: list[str] = field(default_factory=list)
    burnt: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, name: str) -> None:
        with self._lock:
            if not self.burnt:
                self.seen.append(name)
                self.burnt = name == self.name and self.seen.count(name) >= self.time
            if self.burnt:
                self.die()

    def die(self) -> None:
        raise Crash(self.seen[-1] if self.seen else "")


@dataclass
class Lethal(Fuse):
    """The same, for real. The name of the step goes to a pipe first, so that the test can tell
    where it was.
    """

    pipe: int = -1

    def die(self) -> None:
        os.write(self.pipe, json.dumps(self.seen).encode() + b"\n")
        os.kill(os.getpid(), signal.SIGKILL)


class Gallows:
    """A warm process that forks one drain per order, which kills itself at the ordered step."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.crashing"],
            env={**environment, "DJANGO_SETTINGS_MODULE": "hub.settings"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def drain(self, name: str, time: int, tuning: dict[str, Any], passed: float) -> list[str]:
        """Run a drain that dies at the step of that name; the steps it saw, or all and "end" if it
        did not die. It begins in a world whose time has jumped so far.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, time, tuning, passed]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the process that forks crashing drains has ended")
        answer: list[str] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def _child(name: str, time: int, tuning: dict[str, Any], passed: float, pipe: int) -> None:
    from django.utils import timezone

    from hub.delivery import Drain
    from tests.harness.clock import Clock
    from tests.harness.world import small_tuning

    clock = Clock(passed)
    timezone.now = clock.now
    fuse = Lethal(name, time, pipe=pipe)
    Drain(
        tuning=small_tuning(**tuning),
        budget=60.0,
        until_idle=True,
        steps=fuse,
        clock=clock.monotonic,
        now=clock.now,
    ).run()
    os.write(pipe, json.dumps([*fuse.seen, "end"]).encode() + b"\n")


def main() -> None:
    """Read orders from standard input; nothing here touches the database, so every fork starts
    clean.
    """
    import django

    django.setup()
    import hub.delivery
    import tests.harness.world  # noqa: F401 - warm

    assert hub.delivery is not None
    for line in sys.stdin:
        name, time, tuning, passed = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            code = 1
            try:
                _child(name, time, tuning, passed, writer)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader) as told:
            text = told.read()
        os.waitpid(pid, 0)
        sys.stdout.write((text.strip() or "[]") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
