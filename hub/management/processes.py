"""Processes of ours: started so that none is left behind, found again, ended as a whole.

Linux is what this is written for. Elsewhere there is no `/proc` and no parent-death signal: a
session is then ended by its process group alone, and what a killed supervisor left behind is not
found.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    on_parent_death: int = signal.SIGTERM,
    stdin: int = subprocess.DEVNULL,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, told by a signal when this process dies.

    A session of its own, so that Ctrl-C reaches only this process, which then stops its children in
    order.
    """
    parent = os.getpid()
    prctl = _prctl()

    def before_exec() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(on_parent_death), 0, 0, 0)
            if os.getppid() != parent:  # it died in between
                os._exit(1)

    return subprocess.Popen(  # noqa: S603 - our own commands, no shell
        list(command),
        env=dict(environment),
        stdin=stdin,
        cwd=folder,
        start_new_session=True,
        preexec_fn=before_exec,
    )


def _prctl() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None


def started_at(pid: int) -> str:
    """When a process was started, as the kernel counts; with its number it names one process for
    good.
    """
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on (the third); empty when there is no such
    process.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def is_alive(pid: int, started: str = "") -> bool:
    """Whether the process runs (a zombie does not); with `started`, whether it is still that very
    one.
    """
    if not _PROC.exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and started in ("", fields[19])


def members(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for pid in _all():
        fields = _stat(pid)
        if fields and fields[0] not in "ZX" and fields[3] == str(session):
            found.append(pid)
    return found


def marked(name: str) -> dict[int, str]:
    """Processes of this user whose environment has the variable `name`, with its value."""
    found: dict[int, str] = {}
    start = f"{name}=".encode()
    for pid in _all():
        try:
            raw = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        for entry in raw.split(b"\0"):
            if entry.startswith(start):
                found[pid] = entry[len(start) :].decode(errors="replace")
                break
    return found


def _all() -> list[int]:
    try:
        return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]
    except OSError:
        return []


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of these processes that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def signal_session(session: int, number: int) -> None:
    """Send a signal to every process of a session."""
    found = members(session)
    if found:
        signal_all(found, number)
        return
    try:
        os.killpg(session, number)
    except (ProcessLookupError, PermissionError):
        return


def kill_all(find: Callable[[], Iterable[int]], *, patience: float = 5.0) -> list[int]:
    """SIGKILL what `find` gives until it gives nothing; the processes that were there.

    Asked again and again, because a process may start another one while it is being killed.
    """
    killed: set[int] = set()
    end = time.monotonic() + patience
    while found := list(find()):
        killed.update(found)
        signal_all(found, signal.SIGKILL)
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return sorted(killed)


def kill_session(session: int, *, patience: float = 5.0) -> list[int]:
    """End a session, whoever in it is left; the processes that were there."""
    if not _PROC.exists():
        signal_session(session, signal.SIGKILL)
        return []
    return kill_all(lambda: members(session), patience=patience)


class Signals:
    """Waits, and wakes at once when this process is told to stop (or one of its children ends).

    Use it as a context manager in the main thread; it puts the former handlers back.
    """

    def __init__(self, *numbers: int) -> None:
        self.count = 0
        self._numbers = numbers or (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._former: dict[int, object] = {}
        self._former_fd = -1

    @property
    def stop(self) -> bool:
        """Whether a stop was asked for."""
        return self.count > 0

    def __enter__(self) -> Signals:
        for number in self._numbers:
            self._former[number] = signal.signal(number, self._asked)
        self._former[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._former_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._former_fd)
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._read)
        os.close(self._write)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def wait(self, seconds: float) -> None:
        """Sleep so long at most; any signal wakes."""
        select.select([self._read], [], [], max(0.0, seconds))
        try:
            while os.read(self._read, 512):
                pass
        except BlockingIOError:
            pass
