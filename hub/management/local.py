"""The runner behind `make run`: web, workers, stand-in and the demo's story, as one thing that
starts and stops.

Its children are told by the kernel when it dies, so that even a killed runner leaves nothing
behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from django.conf import settings

from hub.management import processes

# Small numbers, so that a lapsed lease or a lost answer is resolved while somebody watches.
# `hub.checks` judges them.
ENGINE = {
    "HUB_MARGIN": "1",
    "HUB_LEASE_ADDEND": "5",
    "HUB_RETRY_BASE": "1",
    "HUB_RETRY_CAP": "30",
    "HUB_LOOK_SCHEDULE": "1,2,5,15,60",
    "HUB_SWEEP_EVERY": "1",
    "HUB_WATCHDOG_DUE_AGE": "20",
    "HUB_WATCHDOG_BEAT_AGE": "10",
}
"""What `make run` sets unless the environment does."""
QUICK = 5.0
"""A child that ends sooner than so many seconds after its start is started again more slowly."""


LAST_PORT = 65_534
"""The highest port of the web: the stand-in takes the next, and there is none above 65535."""


class Occupied(Exception):
    """Something else has the lock or a port; the text says what, and what to do."""


class NoPort(Exception):
    """`HUB_PORT` is no port a local run can use; the text says which are."""


# --- one run at a time ----------------------------------------------------------------------------


class Lock:
    """The lock of a local run in `HUB_HOME`; the kernel frees it when the process ends, however
    that happens.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self.unclean = False
        """Whether the run before this one was killed."""

    def take(self, told: str) -> None:
        """Take it and leave a note for whoever finds it taken; raises `Occupied`."""
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            note = file.read().strip()
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise Occupied(
                f"The hub already runs here: {note or 'no details'}. Stop that one first (Ctrl-C "
                "in "
                f"its terminal), or set HUB_HOME and HUB_PORT to run a second one beside it."
            ) from None
        file.seek(0)
        self.unclean = bool(file.read().strip())
        file.truncate(0)
        file.write(told + "\n")
        file.flush()
        os.set_inheritable(file.fileno(), False)
        self._file = file

    def release(self) -> None:
        """Let it go; an empty note says that this run ended well."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None


def ports_of(web: int) -> dict[int, str]:
    """The ports of a local run and for what each is; raises `NoPort`."""
    if not 1 <= web <= LAST_PORT:
        raise NoPort(
            f"HUB_PORT is {web}: set it to a number from 1 to {LAST_PORT}; the stand-in takes the "
            "next one."
        )
    return {web: "the web", web + 1: "the stand-in"}


def claim_ports(ports: Mapping[int, str], patience: float) -> None:
    """Raise `Occupied` when a port is still taken after `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        taken = {port: what for port, what in ports.items() if not _is_free(port)}
        if not taken:
            return
        if time.monotonic() >= end:
            said = " and ".join(f"port {port} (for {what})" for port, what in taken.items())
            verb = "is" if len(taken) == 1 else "are"
            raise Occupied(
                f"{said} {verb} taken by another program. Set HUB_PORT to another number: the web "
                "takes "
                "that one, the stand-in the next. For example: "
                f"HUB_PORT={settings.HUB_PORT + 100} make run"
            )
        time.sleep(0.2)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


# --- children -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Child:
    """A process the runner keeps going. `lasting` is False for one that may end by itself."""

    name: str
    command: list[str]
    patience: float
    """Seconds a polite stop of it may take."""
    lasting: bool = True
    ends_with_stdin: bool = False
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    not_before: float = 0.0
    quick: int = 0

    def start(self, environment: Mapping[str, str]) -> None:
        stdin = subprocess.PIPE if self.ends_with_stdin else subprocess.DEVNULL
        self.process = processes.start(
            self.command, environment, stdin=stdin, folder=Path(settings.BASE_DIR)
        )
        self.started = time.monotonic()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


def children() -> list[Child]:
    """Stand-in, web, workers, story: in the order they start (stopping has its own)."""
    python, manage = sys.executable, str(Path(settings.BASE_DIR) / "manage.py")
    port, home = settings.HUB_PORT, Path(settings.HUB_HOME)
    return [
        Child(
            "stand-in",
            [
                *(python, "-m", "integrations.bitrix24.simulator", "--until-stdin-closes"),
                *("--port", str(port + 1), "--state", str(home / "bitrix24.json")),
            ],
            patience=3.0,
            ends_with_stdin=True,
        ),
        Child(
            "web",
            [
                *(python, "-m", "gunicorn", "hub.wsgi", "--bind", f"127.0.0.1:{port}"),
                *("--workers", "1", "--threads", "4", "--graceful-timeout", "2"),
                *("--log-level", "warning", "--no-control-socket"),
            ],
            patience=3.0,
        ),
        Child("workers", [python, manage, "hub_run", "--look-every", "2"], patience=15.0),
        Child("story", [python, manage, "hub_demo", "--story"], patience=2.0, lasting=False),
    ]


class Runner:
    """Keeps the children going until a stop is asked for."""

    def __init__(
        self,
        kept: list[Child],
        *,
        say: Callable[[str], None],
        environment: Mapping[str, str],
        ready: Callable[[], bool],
        greet: Callable[[], None],
    ) -> None:
        self._children = kept
        self._say = say
        self._environment = dict(environment)
        self._ready = ready
        self._greet = greet

    def run(self) -> int:
        """0 after a stop that was asked for."""
        with processes.Signals() as signals:
            try:
                self._loop(signals)
            finally:
                self._stop(signals)
        return 0

    def _loop(self, signals: processes.Signals) -> None:
        greeted = False
        patience = time.monotonic() + 60.0
        for child in self._children:
            child.start(self._environment)
        while not signals.stop:
            signals.wait(0.25)
            for child in self._children:
                self._keep(child)
            if not greeted and self._ready():
                greeted = True
                self._greet()
            elif not greeted and time.monotonic() > patience:
                patience = time.monotonic() + 60.0
                self._say("not everything answers yet; see the lines above, or stop with Ctrl-C")

    def _keep(self, child: Child) -> None:
        if child.alive:
            return
        now = time.monotonic()
        if child.process is not None:
            code = child.process.wait()
            # Nothing of it may stay: a web server's children would keep the port.
            processes.kill_session(child.process.pid)
            child.process = None
            if not child.lasting and code == 0:
                child.not_before = float("inf")
                return
            child.quick = child.quick + 1 if now - child.started < QUICK else 0
            wait = min(10.0, float(2**child.quick) / 2)
            child.not_before = now + wait
            self._say(f"{child.name} has ended with code {code}; starting it again in {wait:g} s")
        if now >= child.not_before:
            child.start(self._environment)

    def _stop(self, signals: processes.Signals) -> None:
        """Workers first, while web and stand-in still answer them; then the rest. A second Ctrl-C
        ends it all.
        """
        self._say("stopping ...")
        asked = signals.count
        for names in (("story", "workers"), ("web", "stand-in")):
            some = [child for child in self._children if child.name in names and child.alive]
            started = time.monotonic()
            for child in some:
                self._process(child).terminate()
            while any(child.alive for child in some) and signals.count <= asked:
                now = time.monotonic()
                if all(now - started > child.patience for child in some if child.alive):
                    break
                signals.wait(0.1)
        for child in self._children:
            if child.process is None:
                continue
            if child.alive:
                self._say(f"{child.name} did not stop in time and is killed")
            processes.kill_session(child.process.pid)
            child.process.wait()

    @staticmethod
    def _process(child: Child) -> subprocess.Popen[bytes]:
        if child.process is None:
            raise RuntimeError(f"{child.name} has not been started")
        return child.process


def answers(url: str) -> bool:
    """Whether something answers there with a success."""
    try:
        with urlopen(url, timeout=2) as answer:  # noqa: S310 - addresses of this machine
            return 200 <= answer.status < 300
    except (HTTPError, URLError, OSError):
        return False
