"""The remote of the bench: takes a thing, waits its latency, names its id and echoes the key.

`python -m bench.echo` prints its port and serves until its standard input ends. It counts calls
and duplicates by idempotency key; a key that comes again gets the first id again. What is posted to
`/L/things` is answered after L milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

HEAD_END = b"\r\n\r\n"


class Ledger:
    """What reached us since the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.calls = 0
        self.duplicates = 0
        self.first = 0.0
        self.in_flight = 0
        self.most = 0
        self.keys: dict[bytes, int] = {}

    def told(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "duplicates": self.duplicates,
            "things": len(self.keys),
            "first": self.first,
            "most_at_once": self.most,
        }


class Exchange(asyncio.Protocol):
    """One connection; requests one after the other."""

    def __init__(self, ledger: Ledger, loop: asyncio.AbstractEventLoop) -> None:
        self._ledger = ledger
        self._loop = loop
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(HEAD_END)
            if end < 0:
                return
            head = self._buffer[:end].lower()
            begin = end + 4 + int(_header(head, b"content-length") or 0)
            if len(self._buffer) < begin:
                return
            self._buffer = self._buffer[begin:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        closing = _header(head, b"connection") == b"close"
        if path == b"/stats":
            return self._write(json.dumps(self._ledger.told()).encode(), closing)
        if path == b"/reset":
            self._ledger.reset()
            return self._write(b"{}", closing)
        if method != b"post":
            return self._write(b"{}", closing)
        ledger = self._ledger
        if not ledger.calls:
            ledger.first = time.monotonic()
        ledger.calls += 1
        key = _header(head, b"idempotency-key")
        number = ledger.keys.get(key)
        if number is None:
            number = ledger.keys[key] = len(ledger.keys) + 1
        else:
            ledger.duplicates += 1
        body = b'{"id":"T-%d","key":"%b","state":"stored"}' % (number, key)
        ledger.in_flight += 1
        ledger.most = max(ledger.most, ledger.in_flight)
        latency = int(path.split(b"/")[1])
        if latency:
            self._loop.call_later(latency / 1000, self._done, body, closing)
        else:
            self._done(body, closing)

    def _done(self, body: bytes, closing: bool) -> None:
        self._ledger.in_flight -= 1
        self._write(body, closing)

    def _write(self, body: bytes, closing: bool) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        if closing:
            self._transport.close()


def _header(head: bytes, name: bytes) -> bytes:
    begin = head.find(b"\r\n" + name + b":")
    if begin < 0:
        return b""
    begin += len(name) + 3
    end = head.find(b"\r\n", begin)
    return head[begin : end if end > 0 else len(head)].strip()


async def serve() -> None:
    """Serve on a free loopback port until standard input ends."""
    loop = asyncio.get_running_loop()
    ledger = Ledger()
    server = await loop.create_server(lambda: Exchange(ledger, loop), "127.0.0.1", 0, backlog=1024)
    gc.freeze()
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
