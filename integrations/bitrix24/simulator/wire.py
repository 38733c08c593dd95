"""HTTP/1.1 on asyncio, just enough of it, and quick.

A library server would answer correctly whatever the application does; this one has to close without
an answer, stop half-way and keep working for callers that have long gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, NamedTuple

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Request(NamedTuple):
    """One request, complete. Header names are lower-case; ``source`` is the peer's address."""

    verb: str
    target: str
    headers: dict[str, str]
    body: bytes
    source: str


class Reply(NamedTuple):
    """An answer. ``lost`` closes without sending anything, ``cut`` stops after half the body."""

    status: int
    body: bytes
    content_type: str = "application/json; charset=utf-8"
    lost: bool = False
    cut: bool = False
    more_headers: str = ""


Handle = Callable[[Request], "Reply | Coroutine[Any, Any, Reply]"]
LOST = Reply(0, b"", lost=True)


class HttpProtocol(asyncio.Protocol):
    """One connection. Requests on it are answered in order, one at a time."""

    def __init__(self, handle: Handle, tasks: set[asyncio.Task[None]]) -> None:
        self._handle = handle
        self._tasks = tasks
        self._buffer = bytearray()
        self._busy = False
        self._expected_sent = False
        self._source = ""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where the caller sits."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio hands out transports
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._source = peer[0] if peer else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone; work in progress goes on, as it does at a real service."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Collect, and answer what is complete."""
        self._buffer += data
        if not self._busy:
            self._advance()

    def _advance(self) -> None:
        while self._transport is not None and not self._busy:
            request = self._next()
            if request is None:
                return
            outcome = self._handle(request)
            if isinstance(outcome, Reply):
                self._send(outcome, request)
            else:
                self._busy = True
                task = asyncio.get_running_loop().create_task(self._later(outcome, request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _later(self, outcome: Coroutine[Any, Any, Reply], request: Request) -> None:
        reply = await outcome
        self._busy = False
        self._send(reply, request)
        self._advance()

    def _next(self) -> Request | None:
        """The next complete request, taken from the buffer."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._refuse(431)
            return None
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        if len(parts) != 3:
            self._refuse(400)
            return None
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        start = end + 4
        if "chunked" in headers.get("transfer-encoding", "").lower():
            chunks = self._dechunk(start)
            if chunks is None:
                self._continue(headers)
                return None
            body, after = chunks
        else:
            length = headers.get("content-length", "0")
            if not length.isdigit() or int(length) > MAX_BODY:
                self._refuse(413 if length.isdigit() else 400)
                return None
            after = start + int(length)
            if len(self._buffer) < after:
                self._continue(headers)
                return None
            body = bytes(self._buffer[start:after])
        del self._buffer[:after]
        self._expected_sent = False
        return Request(parts[0], parts[1], headers, body, self._source)

    def _dechunk(self, start: int) -> tuple[bytes, int] | None:
        body = bytearray()
        at = start
        while True:
            line_end = self._buffer.find(b"\r\n", at)
            if line_end < 0:
                return None
            try:
                size = int(self._buffer[at:line_end].partition(b";")[0], 16)
            except ValueError:
                self._refuse(400)
                return None
            at = line_end + 2
            if len(self._buffer) < at + size + 2:
                return None
            body += self._buffer[at : at + size]
            at += size + 2
            if size == 0:
                return bytes(body), at

    def _continue(self, headers: dict[str, str]) -> None:
        if headers.get("expect", "").lower() == "100-continue" and not self._expected_sent:
            self._expected_sent = True
            if self._transport is not None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, status: int) -> None:
        self._buffer.clear()
        if self._transport is not None:
            self._transport.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
                "Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
            self._transport.close()

    def _send(self, reply: Reply, request: Request) -> None:
        transport = self._transport
        if transport is None:
            return
        if reply.lost:
            transport.abort()
            self._transport = None
            return
        keep = request.headers.get("connection", "").lower() != "close" and not reply.cut
        head = (
            f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}\r\n"
            f"Content-Type: {reply.content_type}\r\nContent-Length: {len(reply.body)}\r\n"
            f"{reply.more_headers}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        ).encode("latin-1")
        transport.write(head + (reply.body[: len(reply.body) // 2] if reply.cut else reply.body))
        if not keep:
            transport.close()
            self._transport = None
