"""The wire against real sockets: every row of protocol §10, and what §6.4 asks of the transport."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import os
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx
import pytest

from hub.contract import Answer, Call, CallFailed, FailureKind
from hub.http import MAX_IDLE, HubTransport, Route, Wire, boottime, retry_after
from hub.routes import plan_of, write_head
from tests.hub.remotes import OK, Remote, answering, remote, reset

T = TypeVar("T")
LOOPBACK = ("127.0.0.0/8",)
WRITE = Call.post("/things", json={"name": "x"}, write=True)
BIG = Call.post("/things", content=b"x" * 30_000_000, write=True)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, or fail the test instead of hanging it."""

    async def bounded() -> T:
        async with asyncio.timeout(15):
            return await work

    return asyncio.run(bounded())


def exchange(
    url: str,
    call: Call = WRITE,
    *,
    wire: Wire | None = None,
    max_send: float = 5.0,
    guard: Callable[[], None] | None = None,
    **route: Any,
) -> Answer:
    """One exchange on a wire of its own."""
    route.setdefault("networks", LOOPBACK)

    async def once() -> Answer:
        used = wire or Wire()
        try:
            return await used.exchange(Route(url, **route), call, max_send=max_send, guard=guard)
        finally:
            await used.aclose()

    return run(once())


def failure(url: str, call: Call = WRITE, **options: Any) -> CallFailed:
    """The failure an exchange must end with."""
    with pytest.raises(CallFailed) as caught:
        exchange(url, call, **options)
    assert "secret" not in caught.value.text
    return caught.value


def fails(failed: CallFailed, kind: FailureKind, *, begun: bool) -> None:
    assert (failed.kind, failed.begun) == (kind, begun), failed.text


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port nobody listens on, kept from others while the test runs."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def resolving(*answers: Sequence[str]) -> tuple[Callable[..., Any], list[str]]:
    """A resolver that gives the next answer each time, and the names it was asked for."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return resolve, asked


# --- what is sent --------------------------------------------------------------------------------


def test_an_exchange() -> None:
    """The request is written as told, and the answer comes back whole."""
    with answering(OK) as server:
        call = Call.post(
            "things", json={"a": "ñ"}, params={"q": 1}, headers={"Idempotency-Key": "k-1"}
        )
        answer = exchange(f"{server.url}/rest/1/secret/", call)
    assert (answer.status, answer.json, answer.body_lost) == (200, {"ok": True}, False)
    assert answer.header("Content-Type") == "application/json"
    assert 0 < answer.duration < 5
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /rest/1/secret/things?q=1 HTTP/1.1"
    assert set(lines[1:]) == {
        f"host: 127.0.0.1:{server.port}",
        "idempotency-key: k-1",
        "content-type: application/json",
        "user-agent: integration-hub",
        "accept: application/json",
        "accept-encoding: identity",
        "content-length: 10",
        "connection: close",
    }
    assert body == '{"a":"ñ"}'.encode()


@pytest.mark.parametrize(
    ("base", "path", "target"),
    [
        ("", "/a", "/a"),
        ("", "", "/"),
        ("/", "a", "/a"),
        ("/base", "/a", "/base/a"),
        ("/base/", "a?b=c", "/base/a?b=c"),
        ("/base", "", "/base"),
        ("/base/", "?b=c", "/base/?b=c"),
        ("/base", "//other.example/a", "/base//other.example/a"),
        ("/base", "/a#part", "/base/a"),
        ("", "@other.example/a", "/@other.example/a"),
    ],
)
def test_the_path_is_appended_to_the_address(base: str, path: str, target: str) -> None:
    with answering(OK) as server:
        exchange(server.url + base, Call.get(path))
    assert server.requests[0].split(b" ")[1].decode() == target


def test_a_path_may_be_a_whole_url_and_is_judged_too() -> None:
    """F45: a URL a remote gave us is judged like the connection's own address."""
    with answering(OK) as server:
        assert exchange("http://192.0.2.1/", Call.get(f"{server.url}/next?page=2"),
                        networks=(*LOOPBACK, "192.0.2.0/24")).status == 200  # fmt: skip
        assert server.requests[0].startswith(b"GET /next?page=2 HTTP/1.1\r\n")
        failed = failure("http://1.1.1.1/", Call.get(f"{server.url}/x?secret"), networks=())
    fails(failed, FailureKind.ADDRESS, begun=False)
    assert server.connections == 1


@pytest.mark.parametrize(
    "call",
    [
        Call("POST", "/a b", label="x"),
        Call("POST", "/ñ/secret", label="x"),
        Call("POST", "/a\r\nx: secret", label="x"),
        Call("PO ST", "/", label="x"),
        Call("CONNECT", "/", label="x"),
        Call("POST", "/", (("bad name", "secret"),)),
        Call("POST", "/", (("x", "secret\r\nevil: 1"),)),
        Call("POST", "/", (("x", "ñ secret"),)),
        Call("POST", "/", (("x", " secret"),)),
        Call("POST", "/", (("Host", "secret.example"),)),
        Call("POST", "/", (("Content-Length", "3"),)),
        Call("POST", "/", (("Transfer-Encoding", "chunked"),)),
    ],
)
def test_a_request_that_cannot_be_written(call: Call) -> None:
    """§10 LocalProtocolError: our defect, known before anything is connected."""
    with answering(OK) as server:
        fails(failure(server.url, call), FailureKind.LOCAL, begun=False)
    assert server.connections == 0


def test_of_a_head_only_what_repeats_is_kept() -> None:
    """Calls of one action have the same header names; values, closing and sender stay their own."""
    plan = plan_of(Route("https://example.org/rest"))

    def head(value: str, keep_alive: bool = True, user_agent: str = "hub") -> bytes:
        call = Call("POST", "", (("Accept", value), ("x-key", value)), b"{}")
        return write_head(plan, plan.target(call.path), call, keep_alive, user_agent)

    def lines(*more: str) -> bytes:
        all_lines = ["POST /rest HTTP/1.1", "host: example.org", *more, "content-length: 2"]
        return "\r\n".join([*all_lines, "\r\n"]).encode()

    identity = "accept-encoding: identity"
    assert head("1") == lines("accept: 1", "x-key: 1", "user-agent: hub", identity)
    assert head("a\tb") == lines("accept: a\tb", "x-key: a\tb", "user-agent: hub", identity)
    assert head("2", False, "other") == lines(
        "accept: 2", "x-key: 2", "user-agent: other", identity, "connection: close"
    )
    for value in ("secret\r\nevil: 1", "\tsecret", "secret ", "sécret"):
        with pytest.raises(CallFailed) as caught:
            head(value)
        fails(caught.value, FailureKind.LOCAL, begun=False)
        assert "secret" not in caught.value.text


def test_the_environment_has_no_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Proxies and credentials of the environment are not used (§6.4)."""
    with answering(OK) as server, closed_port() as port:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
        monkeypatch.setenv("HOME", str(tmp_path))
        assert exchange(server.url).status == 200
    assert b"authorization" not in server.requests[0].lower()


# --- connecting ----------------------------------------------------------------------------------


def test_connection_refused() -> None:
    """F24: refused; nothing has left."""
    with closed_port() as port:
        failed = failure(f"http://127.0.0.1:{port}/secret")
    fails(failed, FailureKind.CONNECT, begun=False)
    assert f"127.0.0.1:{port} could not be reached: connection refused" in failed.text


@pytest.mark.parametrize("error", [socket.gaierror(-2, "no such name"), OSError("down")])
def test_name_does_not_resolve(error: OSError) -> None:
    """F24: the name does not resolve; nothing has left."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        raise error

    failed = failure("http://remote.example/", wire=Wire(resolve=resolve))
    fails(failed, FailureKind.CONNECT, begun=False)
    assert "remote.example:80 does not resolve" in failed.text


def test_name_is_not_resolved_in_time() -> None:
    """F24: a name server that does not answer costs the connect time-out, no more."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    started = time.monotonic()
    failed = failure("http://remote.example/", wire=Wire(resolve=resolve), connect_timeout=0.2)
    fails(failed, FailureKind.CONNECT, begun=False)
    assert time.monotonic() - started < 2


def test_the_system_resolves_names() -> None:
    with answering(OK) as server:
        answer = exchange(f"http://localhost:{server.port}", networks=("127.0.0.0/8", "::1/128"))
    assert answer.status == 200
    assert f"host: localhost:{server.port}\r\n".encode() in server.requests[0]


def test_connecting_stalls() -> None:
    """F25: a connect that hangs ends with the connect time-out; nothing has left."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # nobody accepts, so the queue is full
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        failed = failure(url, connect_timeout=0.3)
        fails(failed, FailureKind.CONNECT, begun=False)
        assert "did not let us connect within" in failed.text
        fails(failure(url, max_send=0.3), FailureKind.CONNECT, begun=False)


def test_the_next_address_is_tried() -> None:
    """F24: of several addresses all are tried, in order, before giving up."""
    resolve, _ = resolving(["127.0.0.9", "127.0.0.1"])
    with answering(OK) as server:
        wire = Wire(resolve=resolve)
        assert exchange(f"http://remote.example:{server.port}", wire=wire).status == 200
    assert f"host: remote.example:{server.port}\r\n".encode() in server.requests[0]


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/secret",
        "http://127.1:{port}/secret",
        "http://0x7f000001:{port}/secret",
        "http://2130706433:{port}/secret",
        "http://localhost:{port}/secret",
        "http://LOCALHOST.:{port}/secret",
        "http://[::1]:{port}/secret",
        "http://[::ffff:127.0.0.1]:{port}/secret",
        "http://[64:ff9b::7f00:1]:{port}/secret",
        "http://[2002:7f00:1::]:{port}/secret",
        "http://169.254.169.254/secret",
    ],
)
def test_only_public_addresses_without_permission(url: str) -> None:
    """F45: however it is written, an address that is not public is refused without a packet."""
    with answering(OK) as server:
        failed = failure(url.format(port=server.port), networks=())
    fails(failed, FailureKind.ADDRESS, begun=False)
    assert "allow that network on the connection" in failed.text
    assert server.connections == 0


def test_the_judged_address_is_the_one_connected_to() -> None:
    """F45: the name is resolved once; a later, other answer is judged anew and gets no packet."""
    resolve, asked = resolving(["127.0.0.1"], ["127.0.0.2"])
    networks = ("127.0.0.1/32",)
    with answering(OK) as server:
        url = f"http://rebind.example:{server.port}"
        assert exchange(url, wire=Wire(resolve=resolve), networks=networks).status == 200
        assert asked == ["rebind.example"]
        failed = failure(url, wire=Wire(resolve=resolve), networks=networks)
    fails(failed, FailureKind.ADDRESS, begun=False)
    assert "127.0.0.2, a loopback address" in failed.text
    assert server.connections == 1


def test_of_a_mixed_answer_only_allowed_addresses_are_used() -> None:
    """F45: one allowed address among refused ones does not let the others through."""
    resolve, _ = resolving(["127.0.0.2", "127.0.0.1", "10.0.0.1"])
    with answering(OK) as server:
        answer = exchange(
            f"http://mixed.example:{server.port}",
            wire=Wire(resolve=resolve),
            networks=("127.0.0.1/32",),
        )
    assert answer.status == 200


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://remote.example/secret", "must begin with https:// or http://"),
        ("remote.example/secret", "must begin with https:// or http://"),
        ("", "must begin with https:// or http://"),
        ("http:///secret", "no valid host name"),
        ("http://a..b/secret", "no valid host name"),
        ("http://exa%6dple.org/secret", "no valid host name"),
        ("http://remote.example:99999/secret", "not a valid URL"),
        ("http://remote.example:0/secret", "no valid port"),
        ("http://[::1/secret", "not a valid URL"),
        ("http://me:secret@remote.example/", "must not hold a login"),
        ("http://remote.example/?key=secret", "without ? or #"),
        ("http://remote.example/a\nsecret", "character that no URL may hold"),
        ("http://remote.example\\@127.0.0.1/secret", "character that no URL may hold"),
    ],
)
def test_a_bad_address(url: str, said: str) -> None:
    """§10 UnsupportedProtocol, InvalidURL: configuration, in words that name the fix."""
    failed = failure(url)
    fails(failed, FailureKind.ADDRESS, begun=False)
    assert said in failed.text


def test_a_bad_network() -> None:
    failed = failure("http://remote.example/", networks=("ten/8",))
    fails(failed, FailureKind.ADDRESS, begun=False)
    assert "'ten/8' is no network" in failed.text


# --- the guard, and what has begun ---------------------------------------------------------------


def test_the_guard_comes_after_connecting_and_before_the_first_byte() -> None:
    """§6.4: the guard is asked on a connected socket; when it refuses, no byte leaves."""
    received: list[bytes] = []

    def handler(server: Remote, connection: socket.socket) -> None:
        try:
            received.append(connection.recv(100))
        finally:
            server.released.set()

    with remote(handler) as server:

        def guard() -> None:
            assert server.released.wait(0.2) is False, "connected, and nothing has come"
            assert server.connections == 1
            raise CallFailed(FailureKind.ABORTED, "the right to send has ended", begun=False)

        fails(failure(server.url, guard=guard), FailureKind.ABORTED, begun=False)
        assert server.released.wait(5)
    assert received in ([], [b""])


def test_the_clock_is_looked_at_before_the_first_byte() -> None:
    """§6.4: time that passed while connecting (a freeze) leaves no right to send."""
    now = [100.0]

    async def resolve(host: str, port: int) -> Sequence[str]:
        now[0] += 6.0  # frozen for longer than max_send
        return ["127.0.0.1"]

    asked: list[int] = []
    with answering(OK) as server:
        failed = failure(
            f"http://remote.example:{server.port}",
            wire=Wire(clock=lambda: now[0], resolve=resolve),
            max_send=5.0,
            guard=lambda: asked.append(1),
        )
        fails(failed, FailureKind.CONNECT, begun=False)
    assert server.requests == []
    assert asked == []


def test_no_chunk_is_written_after_the_deadline() -> None:
    """§6.4: each send stands below a look at the clock; here it jumps between two chunks."""
    now = [0.0]
    total = [0]
    call = Call.post("/", content=b"x" * 2_000_000, write=True)

    def steps(point: str) -> None:
        if point == "send.half_body":
            now[0] = 31.0

    def handler(server: Remote, connection: socket.socket) -> None:
        try:
            while part := connection.recv(65536):
                total[0] += len(part)
        finally:
            server.released.set()

    with remote(handler) as server:
        failed = failure(
            server.url, call, wire=Wire(clock=lambda: now[0], steps=steps), max_send=30
        )
        fails(failed, FailureKind.DEADLINE, begun=True)
        assert server.released.wait(5)
    assert 0 <= total[0] <= 1_001_000


@pytest.mark.parametrize("begun", [False, True])
def test_what_nobody_foresaw(begun: bool) -> None:
    """§10, anything else: told apart by whether a byte of ours can have left."""
    point = "send.sent" if begun else "send.first_byte"

    def fail() -> None:
        raise ZeroDivisionError("a secret")

    with answering(OK) as server:
        failed = failure(server.url, wire=Wire(steps=_at(point, fail)))
    fails(failed, FailureKind.OTHER, begun=begun)
    assert "ZeroDivisionError" in failed.text


def test_a_route_shows_no_secret() -> None:
    """I15: what a route holds of a secret does not get into a log by its repr."""
    route = Route("http://a.example/rest/1/secret/", proxy_url="http://me:secret@10.0.0.1:1")
    assert "secret" not in repr(route)


def test_a_cancelled_exchange_is_reset() -> None:
    """A worker that stops leaves nothing behind that the kernel would send later."""
    seen: list[int] = []

    def handler(server: Remote, connection: socket.socket) -> None:
        connection.recv(100)
        server.released.set()
        try:
            while connection.recv(65536):
                pass
        except OSError as error:
            seen.append(error.errno or 0)

    with remote(handler) as server:

        async def work() -> None:
            wire = Wire()
            task = asyncio.create_task(
                wire.exchange(Route(server.url, LOOPBACK), WRITE, max_send=5)
            )
            await asyncio.to_thread(server.released.wait, 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(work())
    assert seen in ([], [errno.ECONNRESET])
    assert server._threads[-1].is_alive() is False


def test_step_points_in_order() -> None:
    """F31, F32: the points at which a crash can be put, each passed once and in order."""
    passed: list[str] = []
    with answering(OK) as server:
        exchange(server.url, wire=Wire(steps=passed.append), guard=lambda: passed.append("guard"))
    assert passed == [
        "send.connected",
        "guard",
        "send.first_byte",
        "send.half_body",
        "send.sent",
        "recv.status",
        "recv.half_body",
        "recv.done",
    ]


@pytest.mark.parametrize(
    ("point", "sent"),
    [
        ("send.connected", 0),
        ("send.first_byte", 0),
        ("send.half_body", 1),
        ("send.sent", 2),
        ("recv.status", 2),
        ("recv.half_body", 2),
        ("recv.done", 2),
    ],
)
def test_a_crash_at_a_step_point(point: str, sent: int) -> None:
    """F31, F32: what had left by each point is exactly what the point's name says."""
    got = bytearray()

    def steps(passed: str) -> None:
        if passed == point:
            raise KeyboardInterrupt(point)

    def handler(server: Remote, connection: socket.socket) -> None:
        try:
            while b"ab" * 50 not in got and (part := connection.recv(65536)):
                got.extend(part)
            connection.sendall(OK)
        finally:
            server.released.set()

    with remote(handler) as server:
        with pytest.raises(KeyboardInterrupt):
            exchange(server.url, Call.post("/", content=b"ab" * 50), wire=Wire(steps=steps))
        assert server.connections <= 1
        if sent:
            assert server.released.wait(5)
    if not sent:
        assert got == b""
    elif sent == 1:
        assert b"ab" * 50 not in got
    else:
        assert got.endswith(b"ab" * 50)


# --- no answer -----------------------------------------------------------------------------------


def test_closed_before_reading() -> None:
    """F33: the remote closes without reading; our bytes were on their way, so: unknown."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.released.wait(5)

    with remote(handler) as server:
        failed = failure(
            server.url, guard=lambda: None, wire=Wire(steps=_at("send.sent", server.released.set))
        )
    assert failed.begun
    assert failed.kind in {FailureKind.READ, FailureKind.PROTOCOL}


def test_reset_before_reading() -> None:
    """F33: the remote resets while our request is on its way."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.released.wait(5)
        reset(connection)

    with remote(handler) as server:
        failed = failure(server.url, wire=Wire(steps=_at("send.sent", server.released.set)))
    fails(failed, FailureKind.READ, begun=True)
    assert "connection reset by peer" in failed.text


@pytest.mark.parametrize("executed", [True, False])
def test_closed_without_an_answer(executed: bool) -> None:
    """F34, F35: all read, executed or not, then closed: the wire cannot tell the two apart."""
    with answering(b"") as server:
        fails(failure(server.url), FailureKind.PROTOCOL, begun=True)
    assert len(server.requests) == 1


def test_reset_without_an_answer() -> None:
    """F34: all read, then reset."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        reset(connection)

    with remote(handler) as server:
        fails(failure(server.url), FailureKind.READ, begun=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46 secret \r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: secret\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
    ],
    ids=lambda answer: answer[:24].decode("latin-1"),
)
def test_garbage_for_an_answer(answer: bytes) -> None:
    """§10 RemoteProtocolError: a cut status line, garbage, or a head without end: unknown."""
    with answering(answer) as server:
        failed = failure(server.url)
    assert failed.begun
    assert failed.kind is FailureKind.PROTOCOL


def test_no_answer_in_time() -> None:
    """F36: read time-out; unknown, and not a moment longer than told."""
    with answering(b"", hold=True) as server:
        started = time.monotonic()
        failed = failure(server.url, max_send=0.3)
        assert 0.25 < time.monotonic() - started < 1.5
    fails(failed, FailureKind.DEADLINE, begun=True)


def _dripping(text: bytes) -> Callable[[Remote, socket.socket], None]:
    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        for byte in text:
            connection.sendall(bytes([byte]))
            if server.released.wait(0.05):
                return

    return handler


def test_a_dripping_head_ends_at_the_deadline() -> None:
    """F37: each byte comes soon enough for any read time-out; the deadline ends it all the same."""
    with remote(_dripping(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200)) as server:
        started = time.monotonic()
        fails(failure(server.url, max_send=0.4), FailureKind.DEADLINE, begun=True)
        assert time.monotonic() - started < 1.5


def test_a_dripping_body_is_a_lost_body() -> None:
    """F37: the status was read, so the answer counts; its body is lost."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(b"HTTP/1.1 201 Created\r\nlocation: /7\r\ncontent-length: 200\r\n\r\n")
        _drip(server, connection)

    with remote(handler) as server:
        started = time.monotonic()
        answer = exchange(server.url, max_send=0.4)
        assert time.monotonic() - started < 1.5
    assert (answer.status, answer.body_lost, answer.header("location")) == (201, True, "/7")


def _drip(server: Remote, connection: socket.socket) -> None:
    while not server.released.wait(0.05):
        connection.sendall(b"x")


def test_the_deadline_counts_on_the_clock_that_was_passed() -> None:
    """F37: a clock that jumps (the machine slept) ends a dripping answer at its next byte."""
    now = [0.0]

    def steps(point: str) -> None:
        if point == "recv.status":
            now[0] = 1000.0

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n")
        _drip(server, connection)

    with remote(handler) as server:
        started = time.monotonic()
        answer = exchange(server.url, wire=Wire(clock=lambda: now[0], steps=steps), max_send=30)
        assert time.monotonic() - started < 5
    assert answer.body_lost


def test_informational_answers_alone_are_none() -> None:
    """§10: 1xx says nothing about the request; endless ones are cut off."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        while not server.released.is_set():
            connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)

    with remote(handler) as server:
        fails(failure(server.url, max_body=1000), FailureKind.PROTOCOL, begun=True)


# --- a body that is not what it should be --------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\nlocation: /7\r\n\r\n{",
        b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\nlocation: /7\r\n\r\n",
        b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\nlocation: /7\r\n\r\n5\r\n{",
        b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\nlocation: /7\r\n\r\nzz\r\n{}\r\n",
        b"HTTP/1.1 201 Created\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n"
        b"location: /7\r\n\r\nabcd",
        b"HTTP/1.1 201 Created\r\ncontent-encoding: br\r\ncontent-length: 4\r\n"
        b"location: /7\r\n\r\nabcd",
        b"HTTP/1.1 201 Created\r\ncontent-encoding: gzip\r\nlocation: /7\r\n\r\n"
        + gzip.compress(b'{"id": 7}', mtime=0)[:-9],
    ],
)
def test_a_body_that_is_cut_or_cannot_be_decoded(answer: bytes) -> None:
    """F38: status and headers are kept, the body is marked lost."""
    with answering(answer) as server:
        got = exchange(server.url)
    assert (got.status, got.body_lost, got.header("location")) == (201, True, "/7")


def test_a_body_cut_by_a_reset() -> None:
    """F38: a reset after the status keeps the status."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{")
        server.released.wait(5)
        reset(connection)

    with remote(handler) as server:
        wire = Wire(steps=_at("recv.half_body", server.released.set))
        got = exchange(server.url, wire=wire)
    assert (got.status, got.body, got.body_lost) == (201, b"{", True)


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_body_that_is_too_large(framing: str) -> None:
    """§10: more than `max_body` is not taken; what was read stays within it."""
    head = b"HTTP/1.1 200 OK\r\n"
    if framing == "length":
        head += b"content-length: 50000000\r\n"
    elif framing == "chunked":
        head += b"transfer-encoding: chunked\r\n"

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(head + b"\r\n")
        part = b"x" * 1000
        while not server.released.is_set():
            connection.sendall(b"3e8\r\n" + part + b"\r\n" if framing == "chunked" else part)

    with remote(handler) as server:
        answer = exchange(server.url, max_body=100_000)
    assert (answer.status, answer.body_lost, len(answer.body)) == (200, True, 100_000)


def test_a_body_of_exactly_the_largest_size() -> None:
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"x" * 1000) as server:
        answer = exchange(server.url, max_body=1000)
    assert (len(answer.body), answer.body_lost) == (1000, False)


def test_a_body_that_grows_when_decoded() -> None:
    """§10: a small body that decodes to a huge one is cut at the same limit."""
    bomb = gzip.compress(b"\0" * 50_000_000, mtime=0)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    with answering(head + bomb) as server:
        tracemalloc.start()
        try:
            answer = exchange(server.url, max_body=100_000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (answer.status, answer.body_lost, len(answer.body)) == (200, True, 100_000)
    assert peak < 10_000_000


def _raw_deflate(text: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(text) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(b'{"ok":true}', mtime=0)),
        (b"x-gzip", gzip.compress(b'{"ok"', mtime=0) + gzip.compress(b":true}", mtime=0)),
        (b"deflate", zlib.compress(b'{"ok":true}')),
        (b"Deflate", _raw_deflate(b'{"ok":true}')),
        (b"identity", b'{"ok":true}'),
    ],
)
def test_encoded_bodies(coding: bytes, body: bytes) -> None:
    """A remote that compresses although nobody asked is understood."""
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n" % (
        coding,
        len(body),
    )
    with answering(head + body) as server:
        answer = exchange(server.url)
    assert (answer.json, answer.body_lost) == ({"ok": True}, False)


@pytest.mark.parametrize(
    ("answer", "method", "status", "body"),
    [
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
            "POST",
            200,
            b'{"ok":true}',
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            b'4\r\n{"ok\r\n7\r\n":true}\r\n0\r\n\r\n',
            "POST",
            200,
            b'{"ok":true}',
        ),
        (b'HTTP/1.1 200 OK\r\n\r\n{"ok":true}', "POST", 200, b'{"ok":true}'),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", "POST", 200, b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "POST", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 11\r\n\r\n", "GET", 304, b""),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\ncontent-encoding: gzip\r\n\r\n",
            "HEAD",
            200,
            b"",
        ),
        (b"HTTP/1.1 299\r\ncontent-length: 0\r\n\r\n", "POST", 299, b""),
    ],
)
def test_ways_to_answer(answer: bytes, method: str, status: int, body: bytes) -> None:
    """1xx are skipped; length, chunks and the end of the stream all end a body."""
    with answering(answer) as server:
        got = exchange(server.url, Call(method, "/"))
    assert (got.status, got.body, got.body_lost) == (status, body, False)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    """F59: a redirect is an answer like any other; nothing goes to the other host."""
    with answering(OK) as other:
        head = f"HTTP/1.1 {status} Moved\r\nlocation: {other.url}/x\r\ncontent-length: 0\r\n\r\n"
        with answering(head.encode()) as server:
            answer = exchange(server.url, Call.post("/", headers={"authorization": "secret"}))
    assert (answer.status, answer.header("location")) == (status, f"{other.url}/x")
    assert other.connections == 0


# --- sending a large body ------------------------------------------------------------------------


def test_a_large_body_arrives_whole() -> None:
    call = Call.post("/", content=os.urandom(5_000_000), write=True)
    with answering(OK) as server:
        assert exchange(server.url, call).status == 200
    assert server.requests[0].endswith(b"\r\n\r\n" + call.body)


def test_a_body_that_is_never_read() -> None:
    """F39: the write stalls; the deadline ends it, and what had left is unknown."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.released.wait(10)

    with remote(handler) as server:
        fails(failure(server.url, BIG, max_send=0.4), FailureKind.DEADLINE, begun=True)


def test_reset_while_sending() -> None:
    """§10 WriteError: the remote resets in the middle of the body: unknown."""

    def handler(server: Remote, connection: socket.socket) -> None:
        connection.recv(1000)
        reset(connection)

    with remote(handler) as server:
        failed = failure(server.url, BIG)
    assert failed.begun
    assert failed.kind in {FailureKind.WRITE, FailureKind.READ}


@pytest.mark.parametrize("then", ["reset", "hold"])
def test_an_early_answer_while_sending(then: str) -> None:
    """F40: a 413 that was read is the answer, whether the remote then resets or only stops
    reading."""

    def handler(server: Remote, connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(
            b"HTTP/1.1 413 Too Large\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nbig"
        )
        if then == "hold":
            server.released.wait(10)

    with remote(handler) as server:
        answer = exchange(server.url, BIG)
    assert (answer.status, answer.body) == (413, b"big")


def test_an_early_answer_found_after_the_write_broke() -> None:
    """F40: the answer and the reset came together; the answer still lies there to be read."""

    def handler(server: Remote, connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        reset(connection)
        server.released.set()

    def steps(point: str) -> None:
        if point == "send.half_body":  # the loop stands still here, so nothing is read meanwhile
            assert server.released.wait(5)

    call = Call.post("/", content=b"x" * 200_000, write=True)
    with remote(handler) as server:
        answer = exchange(server.url, call, wire=Wire(steps=steps))
    assert (answer.status, answer.body) == (413, b"big")


# --- kept connections ----------------------------------------------------------------------------


def _serving(server: Remote, connection: socket.socket) -> None:
    while server.read(connection):
        connection.sendall(OK)


def _twice(
    server: Remote,
    *,
    between: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = boottime,
    keep: Sequence[bool] = (True, True),
) -> list[Answer]:
    async def work() -> list[Answer]:
        wire, route, answers = Wire(clock=clock), Route(server.url, LOOPBACK), []
        for number, keep_alive in enumerate(keep):
            if number:
                between()
            answers.append(await wire.exchange(route, WRITE, max_send=5, keep_alive=keep_alive))
        await wire.aclose()
        return answers

    return run(work())


def test_a_kept_connection_is_used_again() -> None:
    with remote(_serving) as server:
        assert [answer.status for answer in _twice(server)] == [200, 200]
    assert server.connections == 1
    assert b"connection:" not in server.requests[0]


@pytest.mark.parametrize("keep", [(False, False), (False, True), (True, False)])
def test_a_connection_is_kept_only_where_it_was_asked_for(keep: tuple[bool, bool]) -> None:
    """F42: classes c and d neither keep a connection nor take a kept one."""
    with remote(_serving) as server:
        _twice(server, keep=keep)
    assert server.connections == 2


def test_a_kept_connection_closed_meanwhile_is_noticed() -> None:
    """F42: the close lies in the kernel, the event loop has not looked yet: a new connection is
    made."""
    closed = threading.Event()
    go = threading.Event()

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(OK)
        if server.connections == 1:
            go.wait(5)
            connection.close()
            closed.set()

    def between() -> None:
        go.set()
        assert closed.wait(5)

    with remote(handler) as server:
        assert [answer.status for answer in _twice(server, between=between)] == [200, 200]
    assert server.connections == 2


def test_a_kept_connection_closed_as_we_write_is_unknown() -> None:
    """F42: closed after our bytes had left: begun, and nothing is repeated here."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(OK)
        server.read(connection)

    with remote(handler) as server:
        with pytest.raises(CallFailed) as caught:
            _twice(server)
        fails(caught.value, FailureKind.PROTOCOL, begun=True)
        assert (server.connections, len(server.requests)) == (1, 2)


def test_a_kept_connection_grows_too_old() -> None:
    now = [0.0]

    def later() -> None:
        now[0] += MAX_IDLE + 1

    with remote(_serving) as server:
        _twice(server, between=later, clock=lambda: now[0])
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"HTTP/1.1 200 OK\r\n\r\n{}",
    ],
)
def test_a_connection_that_cannot_be_kept(answer: bytes) -> None:
    """F44: surplus bytes would be taken for the next request's answer, so the connection ends."""

    def handler(server: Remote, connection: socket.socket) -> None:
        while server.read(connection):
            connection.sendall(answer)
            if b"content-length" not in answer:
                return

    with remote(handler) as server:
        assert [got.status for got in _twice(server)] == [200, 200]
    assert server.connections == 2


def test_a_connection_is_not_kept_after_an_early_answer() -> None:
    """F40, F44: the rest of the body would be taken for the next request."""

    def handler(server: Remote, connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(OK)
        server.released.wait(10)

    async def work(server: Remote) -> None:
        wire, route = Wire(), Route(server.url, LOOPBACK)
        for _ in range(2):
            answer = await wire.exchange(route, BIG, max_send=5, keep_alive=True)
            assert answer.status == 200
        await wire.aclose()

    with remote(handler) as server:
        run(work(server))
    assert server.connections == 2


def test_an_answer_nobody_asked_for_ends_a_kept_connection() -> None:
    """F44: what arrives between two requests is no answer to the second."""
    pushed = threading.Event()
    go = threading.Event()

    def handler(server: Remote, connection: socket.socket) -> None:
        server.read(connection)
        connection.sendall(OK)
        go.wait(5)
        if not pushed.is_set():
            connection.sendall(OK.replace(b"200 OK", b"500 No"))
            pushed.set()
            server.released.wait(5)

    def between() -> None:
        go.set()
        assert pushed.wait(5)

    with remote(handler) as server:
        assert [got.status for got in _twice(server, between=between)] == [200, 200]
    assert server.connections == 2


def test_connections_are_not_shared_between_routes() -> None:
    """A kept connection belongs to one route: another account's call makes its own."""

    async def work(server: Remote) -> None:
        wire = Wire()
        for path in ("/a", "/b"):
            await wire.exchange(
                Route(server.url + path, LOOPBACK), WRITE, max_send=5, keep_alive=True
            )
        await wire.aclose()

    with remote(_serving) as server:
        run(work(server))
    assert server.connections == 2


def test_a_wire_survives_its_event_loop() -> None:
    """Links of an ended loop are not used in the next."""
    wire = Wire()

    async def once(server: Remote) -> int:
        route = Route(server.url, LOOPBACK)
        return (await wire.exchange(route, WRITE, max_send=5, keep_alive=True)).status

    with remote(_serving) as server:
        assert run(once(server)) == 200
        assert run(once(server)) == 200
        run(wire.aclose())
    assert server.connections == 2


def test_many_at_once() -> None:
    """Each answer goes to its own request."""

    def handler(server: Remote, connection: socket.socket) -> None:
        while request := server.read(connection):
            path = request.split(b" ")[1]
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(path), path)
            )

    async def work(server: Remote) -> None:
        wire, route = Wire(), Route(server.url, LOOPBACK)

        async def one(number: int) -> None:
            call = Call.post(f"/{number}", json={}, write=True)
            answer = await wire.exchange(route, call, max_send=10, keep_alive=True)
            assert answer.body == f"/{number}".encode()

        for start in range(0, 200, 20):
            await asyncio.gather(*(one(number) for number in range(start, start + 20)))
        await wire.aclose()

    with remote(handler) as server:
        run(work(server))
    assert server.connections <= 20


# --- Retry-After ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 1.0),
        ("9999999", 86400.0),
        ("9" * 6000, 86400.0),
        ("Mon, 30 Nov 2026 12:01:30 GMT", 90.0),
        ("Monday, 30-Nov-26 12:01:30 GMT", 90.0),
        ("Mon Nov 30 12:01:30 2026", 90.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 1.0),
        ("Tue, 30 Nov 2027 12:00:00 GMT", 86400.0),
        ("-5", None),
        ("1.5", None),
        ("+5", None),
        ("1e3", None),
        ("٣", None),
        ("soon", None),
        ("Mon, 99 Nov 2026 12:00:00 GMT", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    """§10: both forms, clamped to 1 s … 24 h, nonsense ignored."""
    assert retry_after(value, datetime(2026, 11, 30, 12, tzinfo=UTC)) == seconds


# --- the rim -------------------------------------------------------------------------------------


def _client(**options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=HubTransport(Wire(), Route("", LOOPBACK), **options), trust_env=False
    )


def test_an_httpx_client_speaks_through_the_wire() -> None:
    async def work() -> None:
        async with _client() as client:
            response = await client.post(f"{server.url}/a?b=c", json={"x": 1})
            assert (response.status_code, response.json()) == (200, {"ok": True})
            assert response.headers["content-type"] == "application/json"

    packed = gzip.compress(b'{"ok":true}', mtime=0)
    with answering(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(packed), packed)
    ) as server:
        run(work())
    assert server.requests[0].startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert server.requests[0].endswith(b'{"x":1}')


@pytest.mark.parametrize(
    ("answer", "error", "begun"),
    [
        (b"", httpx.RemoteProtocolError, True),
        (None, httpx.ReadTimeout, True),
    ],
)
def test_failures_at_the_rim(
    answer: bytes | None, error: type[httpx.TransportError], begun: bool
) -> None:
    """§10: httpx's own exceptions, with what is known of the bytes as their cause."""

    async def work() -> None:
        async with _client(max_send=0.3) as client:
            with pytest.raises(error) as caught:
                await client.post(server.url)
            cause = caught.value.__cause__
            assert isinstance(cause, CallFailed)
            assert cause.begun is begun

    with answering(answer or b"", hold=answer is None) as server:
        run(work())


def test_connect_and_address_failures_at_the_rim() -> None:
    async def work(port: int) -> None:
        async with _client() as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{port}")
            with pytest.raises(httpx.UnsupportedProtocol):
                await client.get("http://10.0.0.1/")

    with closed_port() as port:
        run(work(port))


def test_a_cut_body_at_the_rim_keeps_the_status() -> None:
    """F38: who streams sees status and headers before the error."""

    async def work() -> None:
        async with _client() as client:
            async with client.stream("POST", server.url) as response:
                assert response.status_code == 201
                with pytest.raises(httpx.RemoteProtocolError):
                    await response.aread()

    with answering(b"HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\n{") as server:
        run(work())


def _at(point: str, do: Callable[[], object]) -> Callable[[str], None]:
    """Step points that do something at one of them."""

    def steps(passed: str) -> None:
        if passed == point:
            do()

    return steps
