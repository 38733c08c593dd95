"""F122: what waits in the kernel when we give up or die is never delivered.

The network is "cut" by a server that does not read: its receive buffer fills, and the rest of the
request waits in our kernel's send buffer. When the server reads again (the network heals), it must
find only what had arrived before, and a reset after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hub.contract import Call, CallFailed, FailureKind
from hub.http import Route, Wire
from tests.hub.remotes import waiting

ROOT = Path(__file__).resolve().parent.parent.parent
SIZE = 20_000_000

SENDER = f"""
import asyncio, sys
from hub.contract import Call, CallFailed
from hub.http import Route, Wire

async def send(port, max_send):
    call = Call.post("/", content=b"x" * {SIZE}, write=True)
    try:
        await Wire().exchange(
            Route(f"http://127.0.0.1:{{port}}", ("127.0.0.0/8",)), call, max_send=max_send
        )
    except CallFailed as failed:
        print(failed.kind, failed.begun, flush=True)

asyncio.run(send(int(sys.argv[1]), float(sys.argv[2])))
"""

# The same bytes as any other program would send them: shows that the test can tell the difference.
PLAIN_SENDER = f"""
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(b"x" * {SIZE})
"""


@contextlib.contextmanager
def deaf_server() -> Iterator[socket.socket]:
    """A listener whose connections take in little while nobody reads."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        listener.settimeout(10)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener


@contextlib.contextmanager
def sender(program: str, port: int, max_send: float) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(port), str(max_send)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def filled(connection: socket.socket) -> int:
    """Wait until the receive buffer takes in no more, and say how much lies there."""
    deadline = time.monotonic() + 10
    before, since = -1, time.monotonic()
    while time.monotonic() < deadline:
        now = waiting(connection)
        if now != before:
            before, since = now, time.monotonic()
        elif now and time.monotonic() - since > 0.2:
            return now
        time.sleep(0.02)
    raise AssertionError("the sender never filled the buffer")


def drained(connection: socket.socket) -> tuple[int, bool]:
    """Read to the end: how many bytes came, and whether a reset ended them."""
    connection.settimeout(10)
    total = 0
    while True:
        try:
            data = connection.recv(1 << 20)
        except ConnectionResetError:
            return total, True
        if not data:
            return total, False
        total += len(data)


def test_killed_with_the_request_in_the_send_buffer() -> None:
    """F122, F32: SIGKILL in the middle of the body; the kernel closes with a reset."""
    with deaf_server() as listener:
        port = listener.getsockname()[1]
        with sender(SENDER, port, 30.0) as process, listener.accept()[0] as connection:
            filled(connection)
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            there = waiting(connection)
            assert drained(connection) == (there, True)
            assert there < SIZE


def test_a_plain_socket_goes_on_sending_after_its_process_was_killed() -> None:
    """What F122 guards against does happen here, so the test above can fail."""
    with deaf_server() as listener:
        port = listener.getsockname()[1]
        with sender(PLAIN_SENDER, port, 0) as process, listener.accept()[0] as connection:
            filled(connection)
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            there = waiting(connection)
            total, _ = drained(connection)
            assert total > there


def test_given_up_with_the_request_in_the_send_buffer() -> None:
    """F122: the deadline passes; the exchange is reset, and nothing is delivered afterwards."""
    call = Call.post("/", content=b"x" * SIZE, write=True)

    async def send(port: int) -> None:
        with pytest.raises(CallFailed) as caught:
            await Wire().exchange(
                Route(f"http://127.0.0.1:{port}", ("127.0.0.0/8",)), call, max_send=0.4
            )
        assert (caught.value.kind, caught.value.begun) == (FailureKind.DEADLINE, True)

    with deaf_server() as listener:
        asyncio.run(send(listener.getsockname()[1]))
        with listener.accept()[0] as connection:
            there = waiting(connection)
            assert drained(connection) == (there, True)
            assert 0 < there < SIZE


def test_answered_early_with_the_request_in_the_send_buffer() -> None:
    """F40, F122: an answer that comes before all is sent is taken, and the rest dropped."""
    call = Call.post("/", content=b"x" * SIZE, write=True)

    with deaf_server() as listener, ThreadPoolExecutor(1) as pool:
        route = Route(f"http://127.0.0.1:{listener.getsockname()[1]}", ("127.0.0.0/8",))
        answer = pool.submit(lambda: asyncio.run(Wire().exchange(route, call, max_send=10)))
        with listener.accept()[0] as connection:
            filled(connection)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            assert answer.result(10).status == 413
            there = waiting(connection)
            assert drained(connection) == (there, True)
            assert there < SIZE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it (protocol §6.4)")
def test_frozen_with_the_request_in_the_send_buffer() -> None:
    """F122: a frozen process cannot reset, so the kernel gives up by itself after `max_send`."""
    with deaf_server() as listener:
        port = listener.getsockname()[1]
        with sender(SENDER, port, 2.5) as process, listener.accept()[0] as connection:
            filled(connection)
            process.send_signal(signal.SIGSTOP)
            assert _given_up(connection, 15), "the kernel still holds the connection"
            there = waiting(connection)
            assert drained(connection) == (there, True)
            process.send_signal(signal.SIGCONT)
            assert process.wait(10) == 0
            assert process.stdout is not None
            assert process.stdout.read().split()[1] == "True"


def _given_up(connection: socket.socket, seconds: float) -> bool:
    """Wait until the kernel has given up the other end; nobody tells us so over the network."""
    ends = f":{connection.getpeername()[1]:04X}", f":{connection.getsockname()[1]:04X}"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        if not any(line[1].endswith(ends[0]) and line[2].endswith(ends[1]) for line in lines):
            return True
        time.sleep(0.05)
    return False


def test_thawed_after_the_deadline() -> None:
    """F122, §6.4: frozen between two chunks while the server reads on; no chunk after the thaw."""
    with deaf_server() as listener:
        port = listener.getsockname()[1]
        with sender(SENDER, port, 2.0) as process, listener.accept()[0] as connection:
            filled(connection)
            process.send_signal(signal.SIGSTOP)
            frozen = time.monotonic()
            # The network heals while it is frozen: all the kernel holds may come, but no more.
            connection.settimeout(0.3)
            total = 0
            with contextlib.suppress(TimeoutError):
                while data := connection.recv(1 << 20):
                    total += len(data)
            assert total < SIZE
            time.sleep(max(0.0, frozen + 2.1 - time.monotonic()))
            os.kill(process.pid, signal.SIGCONT)
            assert drained(connection) == (0, True)
            assert process.wait(10) == 0
