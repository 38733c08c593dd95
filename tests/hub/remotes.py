"""Remotes for tests of the wire: real sockets on the loopback, each connection in a thread of its
own."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable, Iterator

Handler = Callable[[socket.socket], None]

OK = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"ok":true}'


class Remote:
    """A listening server. `handler` gets each connection; what it read goes into `requests`."""

    def __init__(self, handler: Handler, *, receive_buffer: int = 0) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.released = threading.Event()
        self._handler = handler
        self._listener = socket.socket()
        if receive_buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(50)
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        # A client that resets is what many tests are about; the handler need not care.
        with connection, contextlib.suppress(OSError):
            self._handler(connection)

    def read(self, connection: socket.socket) -> bytes:
        """Read one request, keep it, and return it; b"" when the client closed instead."""
        request = read_request(connection)
        if request:
            self.requests.append(request)
        return request

    def stop(self) -> None:
        self.released.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


@contextlib.contextmanager
def remote(handler: Callable[[Remote, socket.socket], None], **options: int) -> Iterator[Remote]:
    """A running remote whose handler also gets the remote itself."""
    server = Remote(lambda connection: handler(server, connection), **options)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def answering(answer: bytes, *, hold: bool = False) -> Iterator[Remote]:
    """A remote that reads a request, sends `answer`, and closes; with `hold` it stays open
    instead."""

    def handler(server: Remote, connection: socket.socket) -> None:
        if server.read(connection):
            connection.sendall(answer)
            if hold:
                server.released.wait(10)

    with remote(handler) as server:
        yield server


def read_request(connection: socket.socket) -> bytes:
    """One request from the wire, body included (by its content-length); b"" at the end of the
    stream."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    size = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            size = int(line.partition(b":")[2])
    while len(body) < size:
        part = connection.recv(65536)
        if not part:
            return b""
        body += part
    return head + b"\r\n\r\n" + body


def waiting(connection: socket.socket) -> int:
    """Bytes that lie in our kernel's receive queue, unread."""
    (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, b"\0" * 4))
    return int(count)


def reset(connection: socket.socket) -> None:
    """Close so that the peer sees a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def tls_server(context: ssl.SSLContext, connection: socket.socket) -> ssl.SSLSocket:
    return context.wrap_socket(connection, server_side=True)
