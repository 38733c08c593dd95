"""Processes of the hub without the second each takes to load Django: forked from a warm one.

A `Forge` has loaded everything and does nothing but fork. Each child takes the environment it is
given, reads its settings anew and runs `manage.py` with its arguments: a process of its own, with
its own connections, that can be stopped, frozen and killed like any other. That `manage.py` starts
from nothing is what the tests of the supervisor and of the demo show, which start it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """A process of the forge, with what `subprocess.Popen` offers that tests use."""

    def __init__(self, pid: int, ended: Path, arguments: Sequence[str]) -> None:
        self.pid = pid
        self.args = list(arguments)
        self.returncode: int | None = None
        self._ended = ended
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, as `Popen` tells it; None while it runs or is frozen."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises `subprocess.TimeoutExpired` when it takes longer."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is not None:
            return self.returncode
        if not select.select([self._handle], [], [], timeout)[0]:
            return None
        while not self._ended.exists():  # it has ended; the forge is about to write down how
            time.sleep(0.001)
        self.returncode = int(self._ended.read_text())
        self._ended.unlink()
        os.close(self._handle)
        return self.returncode


class Forge:
    """A warm process; made once for each settings module and kept until this process ends."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hub-forge-")
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.forge"],
            env=dict(environment),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def manage(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
        input: Path | None = None,
    ) -> Forked:
        """Run `manage.py` with these arguments. Output is appended; without `errors` they go there,
        too.
        """
        self._count += 1
        ended = Path(self._folder.name) / str(self._count)
        order = {
            "arguments": arguments,
            "environment": dict(environment),
            "input": str(input or os.devnull),
            "output": str(output),
            "errors": str(errors or output),
            "ended": str(ended),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the process that forks others has ended")
        return Forked(int(line), ended, ["manage.py", *arguments])

    def close(self) -> None:
        """End it, and whatever it has started that still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._folder.cleanup()


_FORGES: dict[str, Forge] = {}


def forge(environment: Mapping[str, str]) -> Forge:
    """The forge of these settings; what else the environment says is each child's own."""
    name = environment["DJANGO_SETTINGS_MODULE"]
    if name not in _FORGES:
        _FORGES[name] = Forge(environment)
        atexit.register(_FORGES[name].close)
    return _FORGES[name]


# --- in the forge ---------------------------------------------------------------------------------


def _warm() -> None:
    """Load what the hub's commands load. Nothing here may talk to a database or start a thread."""
    import importlib
    import pkgutil

    import django
    from django.conf import settings

    django.setup()
    from hub.management import commands

    for module in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"hub.management.commands.{module.name}")
    importlib.import_module(settings.ROOT_URLCONF)
    importlib.import_module(f"{settings.DATABASES['default']['ENGINE']}.base")


def _forget_settings() -> None:
    """Have the settings read anew from the environment when they are first asked for."""
    from asgiref.local import Local
    from django.conf import settings
    from django.db import connections
    from django.utils.functional import empty

    for name in {os.environ["DJANGO_SETTINGS_MODULE"], "hub.settings"}:
        sys.modules.pop(name, None)
    settings._wrapped = empty
    vars(connections).pop("settings", None)
    connections._settings = None  # type: ignore[attr-defined]
    connections._connections = Local(connections.thread_critical)  # type: ignore[attr-defined]


def _child(order: Mapping[str, Any]) -> None:
    for number, (name, flags) in enumerate(
        (
            (order["input"], os.O_RDONLY),
            (order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            (order["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        )
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["environment"])
    _forget_settings()
    sys.argv = ["manage.py", *order["arguments"]]
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    import manage

    manage.main()


def _fork(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _child(order)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - a process ends with its traceback, this one no less
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Fork by order of standard input, tell the process id, and write down how each one ended."""
    _warm()
    running: dict[int, str] = {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = b""
    while True:
        ready, _, _ = select.select([0, reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            place = Path(running.pop(pid))
            draft = place.with_suffix(".draft")
            draft.write_text(str(os.waitstatus_to_exitcode(status)))
            draft.rename(place)
        if 0 in ready:
            part = os.read(0, 65536)
            if not part:
                break
            *lines, waiting = (waiting + part).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = _fork(order)
                running[pid] = order["ended"]
                sys.stdout.write(f"{pid}\n")
                sys.stdout.flush()
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
