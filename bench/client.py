"""What the rivals send with: as lean a client as can be, so that no client holds them back.

It does not guard, time out or judge addresses; aiohttp, the usual fast choice, costs more.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def thing(number: int) -> dict[str, Any]:
    """What every system of the bench sends, about 110 bytes as JSON."""
    return {
        "sku": f"SKU-{number:07d}",
        "quantity": 1 + number % 9,
        "price": "12.50",
        "title": "A thing of the bench, neither large nor small",
    }


def key(number: int) -> str:
    """An idempotency key as long as the hub's."""
    return f"rival{number:035d}"


class _Reply(asyncio.Protocol):
    """One kept connection with one request at a time."""

    def __init__(self) -> None:
        self.buffer = b""
        self.waiting: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or self.waiting is None:
            return
        head = self.buffer[:end].lower()
        at = head.index(b"content-length:") + 15
        size = int(head[at : head.find(b"\r\n", at) if b"\r\n" in head[at:] else len(head)])
        if len(self.buffer) < end + 4 + size:
            return
        body, self.buffer = self.buffer[end + 4 : end + 4 + size], b""
        ok = head.startswith(b"http/1.1 200")
        if ok:
            self.waiting.set_result(body)
        else:
            self.waiting.set_exception(RuntimeError(f"answered {head[:40]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(error or ConnectionResetError())


class Client:
    """Posts things to the echo over kept connections of one event loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._path = parts.path + "/things"
        self._idle: list[_Reply] = []

    async def post(self, number: int) -> Any:
        """Create one thing; the parsed answer."""
        loop = asyncio.get_running_loop()
        body = json.dumps(thing(number)).encode()
        if self._idle:
            link = self._idle.pop()
        else:
            _, link = await loop.create_connection(_Reply, self._host, self._port)
        link.waiting = loop.create_future()
        link.transport.write(
            b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
            b"idempotency-key: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (
                self._path.encode(),
                f"{self._host}:{self._port}".encode(),
                key(number).encode(),
                len(body),
                body,
            )
        )
        answer = await link.waiting
        self._idle.append(link)
        return json.loads(answer)


class Plain:
    """The same for a synchronous worker: one kept connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._link = http.client.HTTPConnection(parts.hostname, parts.port)
        self._path = parts.path + "/things"

    def post(self, number: int) -> Any:
        """Create one thing; the parsed answer."""
        headers = {"content-type": "application/json", "idempotency-key": key(number)}
        self._link.request("POST", self._path, json.dumps(thing(number)), headers)
        answer = self._link.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"answered {answer.status}")
        return json.loads(body)
