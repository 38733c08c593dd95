"""One connection to a remote: sends one request at a time and takes in what comes back.

Bytes go from here straight into the socket: asyncio's transports keep a buffer of their own, which
a process that was frozen for minutes would go on sending from when it thaws. Here every send stands
below a look at the clock, and what the kernel holds is dropped by a reset when an exchange is given
up.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import h11

from hub.contract import CallFailed, FailureKind

CHUNK = 65536
MAX_HEAD = 65536
"""Most bytes of status line and headers that are taken from a remote."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CLOSE_POLITELY = struct.pack("ii", 0, 0)
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


def prepare(sock: socket.socket) -> None:
    """Make a new socket ready to carry a request.

    Closing it, by us or by the kernel when our process is killed, resets the connection, so
    that nothing that waits in the kernel goes out afterwards (protocol §6.4).
    """
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reason(error: BaseException) -> str:
    """An operating system's or TLS library's own words, without anything of the request in them."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS failed").replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return type(error).__name__


_END = h11.EndOfMessage()


@lru_cache(maxsize=32)
def _told(method: str) -> h11.Request:
    return h11.Request(method=method, target="/", headers=[("host", "-")])


def _pieces(head: bytes, body: bytes, halves: bool) -> list[bytes]:
    """The request as it is written, piece by piece; the head shares the first."""
    size = max(1, -(-len(body) // 2)) if halves else CHUNK
    if len(body) <= size:
        return [head + body]
    return [head + body[:size], *(body[at : at + size] for at in range(size, len(body), size))]


class Tls:
    """TLS over memory, so that the bytes reach the socket under `Link`'s rules."""

    __slots__ = ("_in", "_out", "_tls")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def handshake(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        """Agree with the server and check its certificate and name. Raises `OSError`s,
        `ssl.SSLError` too."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self._out.read())
                data = await loop.sock_recv(sock, CHUNK)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "in the handshake") from None
                self._in.write(data)
            except ssl.SSLError:
                self.farewell(sock)  # tells the server why
                raise
            else:
                await loop.sock_sendall(sock, self._out.read())
                return

    def encrypt(self, data: bytes) -> bytes:
        """What to send for `data`; also whatever the protocol itself still had to say."""
        self._tls.write(data)
        return self._out.read()

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """The text in `data` (b"" at the end of the stream), and whether the peer ended it
        properly.

        Raises `ssl.SSLError` when the bytes are no TLS, or the stream ended without a
        proper end.
        """
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        parts: list[bytes] = []
        while True:
            try:
                part = self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                return b"".join(parts), False
            if not part:
                return b"".join(parts), True
            parts.append(part)

    def farewell(self, sock: socket.socket) -> None:
        """Send what is left to say, as far as it goes without waiting."""
        try:
            sock.send(self._out.read())
        except OSError:
            return

    def end(self, sock: socket.socket) -> None:
        """Say that we send no more."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, OSError):
            pass  # it waits for the peer's own end, which we do not
        self.farewell(sock)


@dataclass(slots=True)
class Order:
    """What one exchange must hold to. `deadline` is a moment of `clock`; `guard` may refuse by
    raising."""

    clock: Callable[[], float]
    deadline: float
    max_body: int
    guard: Callable[[], None] | None = None
    steps: Callable[[str], None] | None = None


@dataclass(slots=True)
class Received:
    """An answer as it came: header names in lower case, body still encoded. `cut` says what ended
    it early."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    cut: str


class Link:
    """A connected socket with HTTP/1.1 on it. Belongs to the event loop it was made in.

    While no exchange is under way it closes itself as soon as the peer closes or says anything.
    """

    __slots__ = (
        "_bound",
        "_chunks",
        "_failed",
        "_fd",
        "_headers",
        "_http",
        "_order",
        "_over",
        "_raw",
        "_sent",
        "_size",
        "_spoiled",
        "_status",
        "_tls",
        "_wake",
        "begun",
        "closed",
        "idle_since",
        "loop",
        "sock",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, tls: Tls | None = None
    ) -> None:
        self.loop = loop
        self.sock = sock
        self.begun = False
        self.closed = False
        self.idle_since = 0.0
        self._fd = sock.fileno()
        self._tls = tls
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._order: Order | None = None
        self._wake: asyncio.Future[None] | None = None
        self._spoiled = self._sent = False
        self._bound = 0
        loop.add_reader(self._fd, self._readable)

    # --- the exchange ---

    async def exchange(self, method: str, head: bytes, body: bytes, order: Order) -> Received:
        """Send one request, its head written already, and wait for the answer.

        Raises `CallFailed`, whose `begun` is exact. The caller closes the link in every
        case (`close` after an answer, `abort` otherwise), or keeps it when `reusable` says
        so.
        """
        self.begun = self._over = False
        self._spoiled = self._sent = False
        self._status = 0
        self._headers: tuple[tuple[str, str], ...] = ()
        self._chunks: list[bytes] = []
        self._size = self._raw = 0
        self._failed: tuple[FailureKind, str] | None = None
        # h11 reads the answer; of the request it need only know the method, and that it was sent.
        self._http.send(_told(method))
        self._http.send(_END)
        pieces = _pieces(head, body, order.steps is not None)
        left = order.deadline - order.clock()
        self._bound_by(left)
        timer = self.loop.call_later(max(left, 0.0), self._expire)
        try:
            if order.steps is None:
                await self._send(pieces, order)
                while not self._over:
                    await self._woken()
            else:
                await self._send(pieces, order)
                await self._received_in_steps(order.steps)
        finally:
            timer.cancel()
            self._order = None
        if self._failed is not None and not self._status:
            raise CallFailed(self._failed[0], self._failed[1], begun=self.begun)
        cut = "" if self._failed is None else self._failed[1]
        return Received(self._status, self._headers, b"".join(self._chunks), cut)

    async def _send(self, pieces: list[bytes], order: Order) -> None:
        """Write the request: the guard right before the first byte, the clock before every
        send.

        Returns early when the exchange is over: the peer answered before it had it all, or
        broke off.
        """
        clock, deadline, sock, steps = order.clock, order.deadline, self.sock, order.steps
        for number, piece in enumerate(pieces):
            if self._over:
                return
            try:
                data = memoryview(piece if self._tls is None else self._tls.encrypt(piece))
            except ssl.SSLError as error:
                self._write_broke(error)
                return
            if number and steps is not None:
                steps("send.half_body")
            while data:
                if self._over:
                    return
                if clock() >= deadline:
                    self._expire()
                    return
                try:
                    if self.begun:
                        sent = sock.send(data)
                    else:
                        if self.closed:
                            raise CallFailed(
                                FailureKind.CONNECT,
                                "the remote closed the connection before anything was sent",
                                begun=False,
                            )
                        self._order = order
                        if order.guard is not None:
                            order.guard()
                        if steps is not None:
                            steps("send.first_byte")
                        self.begun = True
                        sent = sock.send(data)
                except (BlockingIOError, InterruptedError):
                    await self._writable()
                except OSError as error:
                    self._write_broke(error)
                    return
                else:
                    data = data[sent:]
        self._sent = True
        if steps is not None:
            steps("send.sent")

    async def _received_in_steps(self, steps: Callable[[str], None]) -> None:
        """Wait for the answer, telling each point that was passed, in order."""
        while not (self._status or self._over):
            await self._woken()
        if self._status:
            steps("recv.status")
        while not (self._chunks or self._over):
            await self._woken()
        if self._chunks:
            steps("recv.half_body")
        while not self._over:
            await self._woken()
        if self._failed is None:
            steps("recv.done")

    async def _woken(self) -> None:
        self._wake = self.loop.create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    async def _writable(self) -> None:
        self.loop.add_writer(self._fd, self._awake)
        try:
            await self._woken()
        finally:
            if not self.closed:
                self.loop.remove_writer(self._fd)

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _end(self, kind: FailureKind | None = None, text: str = "") -> None:
        """The exchange is over; with a kind, because something went wrong."""
        if self._over:
            return
        if kind is not None:
            self._failed = (kind, text)
        self._over = True
        self._awake()

    def _expire(self) -> None:
        if self.begun:
            text = "the answer did not end in time" if self._status else "no answer in time"
            self._end(FailureKind.DEADLINE, text)
        else:
            self._end(FailureKind.CONNECT, "no time was left to send the request")

    def _write_broke(self, error: OSError) -> None:
        """Sending failed; the peer may have answered first, and its answer may still be
        readable."""
        while self.begun and not self._over:
            before = self._raw
            self._take(FailureKind.WRITE)
            if self._raw == before:
                break
        kind = FailureKind.WRITE if self.begun else FailureKind.CONNECT
        self._end(kind, f"the connection broke while sending: {reason(error)}")

    # --- what comes in ---

    def _readable(self) -> None:
        if self._order is None:
            self._read_idle()
        elif self._over:  # more than the answer, before its reader came round
            self._spoiled = True
            self.loop.remove_reader(self._fd)
        else:
            self._take(FailureKind.READ)
            if not self._over and self._order.clock() >= self._order.deadline:
                self._expire()

    def _read_idle(self) -> None:
        """Between exchanges nothing may come but the protocol noise of TLS."""
        try:
            data = self.sock.recv(CHUNK)
            if data and self._tls is not None and self._tls.decrypt(data) == (b"", False):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self.abort()

    def _take(self, kind: FailureKind) -> None:
        """Read once from the socket and go on with the answer. `kind` is what a broken connection
        means."""
        try:
            data = self.sock.recv(CHUNK)
            self._raw += len(data)
            ended = not data
            if self._tls is not None:
                data, ended = self._tls.decrypt(data)
            if data:
                self._feed(data)
            if ended:  # TLS may say so right behind an answer
                self._spoiled = True
            # After a broken write the end of the stream is no news; only an answer would be.
            if ended and not self._over and (self._status or kind is not FailureKind.WRITE):
                self._feed(b"")
        except (BlockingIOError, InterruptedError):
            return
        except ssl.SSLError:
            self._end(FailureKind.PROTOCOL, "the TLS stream broke off or is damaged")
        except OSError as error:
            self._end(kind, f"the connection broke while waiting for the answer: {reason(error)}")
        except Exception as error:  # noqa: BLE001 - a callback has nobody else to tell
            self._end(FailureKind.OTHER, f"the answer could not be read: {type(error).__name__}")

    def _feed(self, data: bytes) -> None:
        order = self._order
        if order is None:
            return
        http = self._http
        try:
            http.receive_data(data)
            while not self._over:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    if self._raw > order.max_body + MAX_HEAD:
                        self._end(FailureKind.PROTOCOL, "the answer is too large")
                    return
                if isinstance(event, h11.Data):
                    self._add(bytes(event.data), order)
                elif isinstance(event, h11.EndOfMessage):
                    self._end()
                elif isinstance(event, h11.Response):
                    self._status = event.status_code
                    self._headers = tuple(
                        (name.decode("latin-1"), value.decode("latin-1"))
                        for name, value in event.headers
                    )
                    if order.steps is not None:
                        self._awake()
                elif not isinstance(event, h11.InformationalResponse):
                    self._end(FailureKind.PROTOCOL, "the remote closed without an answer")
        except h11.RemoteProtocolError:
            if self._status:
                text = "the answer's body was cut or damaged"
            elif data:
                text = "the remote answered with something that is not HTTP"
            else:
                text = "the remote closed without an answer"
            self._end(FailureKind.PROTOCOL, text)

    def _add(self, data: bytes, order: Order) -> None:
        room = order.max_body - self._size
        self._size += len(data)
        self._chunks.append(data[:room] if len(data) > room else data)
        if self._size > order.max_body:
            self._end(FailureKind.PROTOCOL, "the answer's body is too large")
        elif order.steps is not None:
            self._awake()

    # --- its life ---

    def _bound_by(self, seconds: float) -> None:
        """Have the kernel drop what nobody acknowledges within `seconds` (Linux)."""
        milliseconds = max(1, int(seconds * 1000))
        # Measured in whole seconds above one, so that a kept link needs no call of the kernel each
        # time.
        if milliseconds > 1000:
            milliseconds = -(-milliseconds // 1000) * 1000
        if milliseconds != self._bound and _USER_TIMEOUT is not None:
            self.sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, milliseconds)
            self._bound = milliseconds

    def still_open(self) -> bool:
        """Whether a kept link can be used: notices what arrived since the event loop last
        looked."""
        if not self.closed:
            self._read_idle()
        return not self.closed

    def reusable(self) -> bool:
        """Whether the exchange ended so cleanly that the next may follow on this link; prepares for
        it."""
        if self.closed or self._failed is not None or not self._sent:
            return False
        if self._spoiled or self._http.trailing_data[0]:  # more came than the answer
            return False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def abort(self) -> None:
        """Reset the connection: what the kernel still holds is dropped, not sent."""
        if not self.closed:
            self.closed = True
            self.loop.remove_reader(self._fd)
            self.loop.remove_writer(self._fd)
            self.sock.close()
            self._awake()

    def close(self) -> None:
        """Close after an answer; a request that was not sent to its end is reset all the same."""
        if not self._sent:
            self.abort()
        elif not self.closed:
            try:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_POLITELY)
            except OSError:
                self.abort()
                return
            if self._tls is not None:
                self._tls.end(self.sock)
            self.abort()
