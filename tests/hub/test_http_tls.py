"""The wire over TLS and through proxies, with certificates made here and real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import os
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hub.contract import Call, CallFailed, FailureKind
from hub.http import Route, Wire
from tests.hub.remotes import OK, Remote, answering, remote, reset, waiting
from tests.hub.test_http import LOOPBACK, WRITE, closed_port, exchange, fails, failure, run


@dataclass(frozen=True)
class Authority:
    """A certificate authority of our own, in a folder."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def made(cls, folder: Path, name: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        made = cls(folder / name, key, certificate)
        made.folder.mkdir()
        made.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return made

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def server(self, *names: str, expired: bool = False) -> ssl.SSLContext:
        """The TLS side of a server with a certificate for `names`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            names[0], self.certificate.subject.rfc4514_string()[3:], key, expired=expired
        )
        certificate = builder.add_extension(
            x509.SubjectAlternativeName([_name(name) for name in names]), critical=False
        ).sign(self.key, hashes.SHA256())
        file = self.folder / f"{names[0]}-{expired}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _name(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, *, expired: bool = False
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now - timedelta(days=1) if expired else now + timedelta(days=30)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(end)
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("tls"), "ours")


@contextlib.contextmanager
def over_tls(
    context: ssl.SSLContext, serve: Callable[[Remote, ssl.SSLSocket], None]
) -> Iterator[Remote]:
    """A remote that speaks TLS; a client that does not like it is no error here."""

    def handler(server: Remote, connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            serve(server, tls)

    with remote(handler) as server:
        yield server


def _serve(server: Remote, connection: socket.socket) -> None:
    while server.read(connection):
        connection.sendall(OK)


def _https(server: Remote, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{server.port}"


# --- certificates --------------------------------------------------------------------------------


def test_a_trusted_certificate(authority: Authority) -> None:
    with over_tls(authority.server("127.0.0.1"), _serve) as server:
        answer = exchange(_https(server), ca_file=str(authority.file))
    assert answer.json == {"ok": True}
    assert server.requests[0].startswith(b"POST /things HTTP/1.1\r\n")


def test_the_name_goes_into_the_handshake_and_is_checked(authority: Authority) -> None:
    """F26: the server is asked for, and checked against, the name, not the address connected to."""
    asked: list[str | None] = []
    context = authority.server("portal.example")
    context.sni_callback = lambda _tls, name, _context: asked.append(name)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with over_tls(context, _serve) as server:
        answer = exchange(
            _https(server, "portal.example"),
            wire=Wire(resolve=resolve),
            ca_file=str(authority.file),
        )
    assert answer.status == 200
    assert asked == ["portal.example"]
    assert f"host: portal.example:{server.port}\r\n".encode() in server.requests[0]


@pytest.mark.parametrize(
    ("names", "expired", "trusted", "said"),
    [
        (("127.0.0.1",), True, "ours", "certificate has expired"),
        (("other.example",), False, "ours", "IP address mismatch"),
        (("127.0.0.1",), False, "theirs", "unable to get local issuer certificate"),
        (("127.0.0.1",), False, "system", "unable to get local issuer certificate"),
    ],
    ids=["expired", "other name", "other authority", "system authorities"],
)
def test_a_bad_certificate(
    authority: Authority,
    tmp_path: Path,
    names: tuple[str, ...],
    expired: bool,
    trusted: str,
    said: str,
) -> None:
    """F26: wrong, expired or another's: nothing has left, and it is never tried unchecked."""
    ca_file = {
        "ours": str(authority.file),
        "theirs": str(Authority.made(tmp_path, "theirs").file),
        "system": "",
    }[trusted]
    with over_tls(authority.server(*names, expired=expired), _serve) as server:
        failed = failure(f"{_https(server)}/secret", ca_file=ca_file)
    fails(failed, FailureKind.CERTIFICATE, begun=False)
    assert said in failed.text
    assert (server.connections, server.requests) == (1, [])


def test_a_wrong_name_of_a_host(authority: Authority) -> None:
    """F26: a host name that the certificate does not carry."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with over_tls(authority.server("other.example"), _serve) as server:
        failed = failure(
            _https(server, "portal.example"),
            wire=Wire(resolve=resolve),
            ca_file=str(authority.file),
        )
    fails(failed, FailureKind.CERTIFICATE, begun=False)
    assert "Hostname mismatch" in failed.text


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_ca_file_that_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    """F26: a missing or broken file of authorities is no reason to trust others."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with answering(OK) as server:
        failed = failure(_https(server), ca_file=str(file))
    fails(failed, FailureKind.CERTIFICATE, begun=False)
    assert "correct the connection's CA file" in failed.text
    assert server.connections == 0


def test_a_replaced_ca_file_is_read_again(authority: Authority, tmp_path: Path) -> None:
    """F26: a renewed authority counts without a restart."""
    file = tmp_path / "ca.pem"
    file.write_bytes(Authority.made(tmp_path, "theirs").file.read_bytes())
    os.utime(file, ns=(1, 1))
    wire = Wire()
    with over_tls(authority.server("127.0.0.1"), _serve) as server:
        url = _https(server)
        assert failure(url, wire=wire, ca_file=str(file)).kind is FailureKind.CERTIFICATE
        file.write_bytes(authority.file.read_bytes())
        os.utime(file, ns=(2, 2))
        assert exchange(url, wire=wire, ca_file=str(file)).status == 200


def test_a_handshake_that_stalls(authority: Authority) -> None:
    """F25: the server accepts and then says nothing."""

    def handler(server: Remote, connection: socket.socket) -> None:
        server.released.wait(10)

    with remote(handler) as server:
        started = time.monotonic()
        failed = failure(_https(server), ca_file=str(authority.file), connect_timeout=0.3)
        assert time.monotonic() - started < 2
    fails(failed, FailureKind.CONNECT, begun=False)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_a_handshake_that_fails(authority: Authority, answer: bytes | None) -> None:
    """F25: no TLS at the other end, closed, or reset in the handshake: nothing has left."""

    def handler(server: Remote, connection: socket.socket) -> None:
        connection.recv(10)
        if answer is None:
            reset(connection)
        else:
            connection.recv(65536)
            connection.sendall(answer)

    with remote(handler) as server:
        failed = failure(_https(server), ca_file=str(authority.file))
    fails(failed, FailureKind.CONNECT, begun=False)


# --- exchanges over TLS --------------------------------------------------------------------------


def test_the_guard_comes_after_the_handshake(authority: Authority) -> None:
    """§6.4: TLS is agreed before the guard is asked; when it refuses, no byte of ours is sent."""
    shaken, ended = threading.Event(), threading.Event()
    read: list[bytes] = []

    def serve(server: Remote, connection: ssl.SSLSocket) -> None:
        shaken.set()
        try:
            read.append(connection.recv(100))
        finally:
            ended.set()

    def guard() -> None:
        assert shaken.wait(5)
        raise CallFailed(FailureKind.ABORTED, "a stop was asked for", begun=False)

    with over_tls(authority.server("127.0.0.1"), serve) as server:
        failed = failure(_https(server), ca_file=str(authority.file), guard=guard)
        assert ended.wait(5)
    fails(failed, FailureKind.ABORTED, begun=False)
    assert read in ([], [b""])


def test_a_large_body_both_ways_and_a_kept_connection(authority: Authority) -> None:
    sizes: list[int] = []

    def serve(server: Remote, connection: ssl.SSLSocket) -> None:
        while request := server.read(connection):
            body = request.partition(b"\r\n\r\n")[2]
            sizes.append(len(body))
            packed = gzip.compress(body, mtime=0)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s"
                % (len(packed), packed)
            )

    async def work(server: Remote) -> None:
        wire, route = Wire(), Route(_https(server), LOOPBACK, ca_file=str(authority.file))
        for size in (3_000_000, 10):
            call = Call.post("/", content=os.urandom(size), write=True)
            answer = await wire.exchange(route, call, max_send=10, keep_alive=True)
            assert answer.body == call.body
        await wire.aclose()

    with over_tls(authority.server("127.0.0.1"), serve) as server:
        run(work(server))
    assert sizes == [3_000_000, 10]
    assert server.connections == 1


def test_a_kept_connection_that_was_closed_is_noticed(authority: Authority) -> None:
    """F42: over TLS too, before a byte is written."""
    gone = threading.Event()

    def serve(server: Remote, connection: ssl.SSLSocket) -> None:
        server.read(connection)
        connection.sendall(OK)
        try:
            connection.unwrap()  # says so, and waits for the other end
        finally:
            gone.set()

    async def work(server: Remote) -> None:
        wire, route = Wire(), Route(_https(server), LOOPBACK, ca_file=str(authority.file))
        for _ in range(2):
            answer = await wire.exchange(route, WRITE, max_send=5, keep_alive=True)
            assert answer.status == 200
            assert await asyncio.to_thread(gone.wait, 5)
        await wire.aclose()

    with over_tls(authority.server("127.0.0.1"), serve) as server:
        run(work(server))
    assert server.connections == 2


def test_no_answer_and_cut_answers(authority: Authority) -> None:
    """F34, F38 over TLS: closed without an answer; a stream that ends without TLS's own end."""
    ca_file = str(authority.file)
    context = authority.server("127.0.0.1")

    def closing(server: Remote, connection: ssl.SSLSocket) -> None:
        server.read(connection)

    with over_tls(context, closing) as server:
        fails(failure(_https(server), ca_file=ca_file), FailureKind.PROTOCOL, begun=True)

    def cut(server: Remote, connection: ssl.SSLSocket) -> None:
        server.read(connection)
        connection.sendall(b"HTTP/1.1 201 Created\r\nlocation: /7\r\n\r\n{")  # until the end

    with over_tls(context, cut) as server:
        answer = exchange(_https(server), ca_file=ca_file)
    assert (answer.status, answer.body, answer.body_lost) == (201, b"{", True)

    def ended(server: Remote, connection: ssl.SSLSocket) -> None:
        cut(server, connection)
        with contextlib.suppress(OSError):
            connection.unwrap()

    with over_tls(context, ended) as server:
        answer = exchange(_https(server), ca_file=ca_file)
    assert (answer.body, answer.body_lost) == (b"{", False)


def test_an_early_answer_over_tls(authority: Authority) -> None:
    """F40: a 413 read while the body is still being sent."""

    def serve(server: Remote, connection: ssl.SSLSocket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        server.released.wait(10)

    call = Call.post("/", content=b"x" * 30_000_000, write=True)
    with over_tls(authority.server("127.0.0.1"), serve) as server:
        answer = exchange(_https(server), call, ca_file=str(authority.file))
    assert (answer.status, answer.body) == (413, b"big")


def test_no_answer_in_time_over_tls(authority: Authority) -> None:
    """F36, F39 over TLS."""

    def serve(server: Remote, connection: ssl.SSLSocket) -> None:
        server.released.wait(10)

    with over_tls(authority.server("127.0.0.1"), serve) as server:
        ca_file = str(authority.file)
        for body in (b"{}", b"x" * 30_000_000):
            call = Call.post("/", content=body, write=True)
            failed = failure(_https(server), call, ca_file=ca_file, max_send=0.5)
            fails(failed, FailureKind.DEADLINE, begun=True)


def test_after_the_deadline_tls_sends_nothing_more(authority: Authority) -> None:
    """F122: what had been encrypted but not sent stays here; the connection is reset."""
    found: list[int] = []

    def handler(server: Remote, connection: socket.socket) -> None:
        context = authority.server("127.0.0.1")
        tls = context.wrap_socket(connection, server_side=True)
        server.released.wait(10)
        found.append(waiting(tls))
        tls.close()

    call = Call.post("/", content=b"x" * 30_000_000, write=True)
    with remote(handler, receive_buffer=65536) as server:
        failed = failure(_https(server), call, ca_file=str(authority.file), max_send=0.5)
        fails(failed, FailureKind.DEADLINE, begun=True)
        server.released.set()
    assert found[0] < 5_000_000


# --- proxies -------------------------------------------------------------------------------------


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _forwarding(target_port: int) -> Callable[[Remote, socket.socket], None]:
    """A proxy that connects to `target_port` whatever it is asked for."""

    def handler(server: Remote, connection: socket.socket) -> None:
        request = server.read(connection)
        with socket.create_connection(("127.0.0.1", target_port)) as onward:
            if request.startswith(b"CONNECT "):
                connection.sendall(b"HTTP/1.1 200 Connection established\r\nx: y\r\n\r\n")
            else:
                onward.sendall(request)
            back = threading.Thread(target=_pump, args=(onward, connection), daemon=True)
            back.start()
            _pump(connection, onward)
            back.join(5)

    return handler


def test_http_through_a_proxy() -> None:
    """The whole URL goes to the proxy, and the name is left to it."""
    with answering(OK) as server, remote(_forwarding(server.port)) as proxy:
        answer = exchange("http://remote.example/base/", proxy_url=proxy.url)
    assert answer.status == 200
    assert proxy.requests[0].startswith(b"POST http://remote.example/base/things HTTP/1.1\r\n")
    assert b"\r\nhost: remote.example\r\n" in proxy.requests[0]
    assert b"proxy-authorization" not in proxy.requests[0]


def test_https_through_a_proxy(authority: Authority) -> None:
    """The proxy only sees CONNECT; the certificate is the remote's, and so is our request."""
    context = authority.server("remote.example")
    with over_tls(context, _serve) as server, remote(_forwarding(server.port)) as proxy:
        answer = exchange(
            "https://remote.example/secret",
            proxy_url=f"http://me:p%40ss@127.0.0.1:{proxy.port}",
            ca_file=str(authority.file),
        )
    assert answer.status == 200
    head = proxy.requests[0].decode()
    login = b64encode(b"me:p@ss").decode()
    assert head.startswith("CONNECT remote.example:443 HTTP/1.1\r\nHost: remote.example:443\r\n")
    assert f"\r\nProxy-Authorization: Basic {login}\r\n" in head
    assert b"proxy-authorization" not in server.requests[0].lower()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", FailureKind.PROXY),
        (b"HTTP/1.1 403 Forbidden\r\n\r\nno", FailureKind.PROXY),
        (b"HTTP/1.1 407 Login\r\nproxy-authenticate: Basic\r\n\r\n", FailureKind.PROXY_AUTH),
        (b"SSH-2.0-x\r\n\r\n", FailureKind.PROXY),
        (b"HTTP/1.1 200 OK\r\n\r\nsurplus", FailureKind.PROXY),
        (b"HTTP/1.1 200 O", FailureKind.PROXY),
        (b"", FailureKind.PROXY),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, FailureKind.PROXY),
    ],
)
def test_a_proxy_that_does_not_connect_us(
    authority: Authority, answer: bytes, kind: FailureKind
) -> None:
    """F28: refused, garbled, cut: nothing of our request has left."""
    asked: list[int] = []
    with answering(answer) as proxy:
        failed = failure(
            "https://remote.example/secret",
            proxy_url=f"http://me:secret@127.0.0.1:{proxy.port}",
            ca_file=str(authority.file),
            guard=lambda: asked.append(1),
        )
    fails(failed, kind, begun=False)
    assert asked == []


def test_a_proxy_that_never_answers(authority: Authority) -> None:
    """F28: CONNECT unanswered: nothing has left."""
    with answering(b"", hold=True) as proxy:
        failed = failure(
            "https://remote.example/",
            proxy_url=proxy.url,
            ca_file=str(authority.file),
            connect_timeout=0.3,
        )
    fails(failed, FailureKind.PROXY, begun=False)


def test_a_proxy_that_is_not_there() -> None:
    """F28: the proxy itself refuses the connection."""
    with closed_port() as port:
        failed = failure("http://remote.example/", proxy_url=f"http://127.0.0.1:{port}")
    fails(failed, FailureKind.PROXY, begun=False)
    assert f"the proxy 127.0.0.1:{port} could not be reached" in failed.text


def test_a_certificate_behind_a_proxy_is_checked(authority: Authority) -> None:
    """F26: a proxy that puts its own certificate before us gets nothing."""
    context = authority.server("other.example")
    with over_tls(context, _serve) as server, remote(_forwarding(server.port)) as proxy:
        failed = failure(
            "https://remote.example/", proxy_url=proxy.url, ca_file=str(authority.file)
        )
    fails(failed, FailureKind.CERTIFICATE, begun=False)
    assert server.requests == []


def test_a_plain_proxy_that_wants_a_login() -> None:
    """F28: over plain HTTP our request is in the proxy's hands by then: begun, but named."""
    with answering(b"HTTP/1.1 407 Login\r\ncontent-length: 0\r\n\r\n") as proxy:
        failed = failure("http://remote.example/", proxy_url=proxy.url)
    fails(failed, FailureKind.PROXY_AUTH, begun=True)


@pytest.mark.parametrize(
    ("url", "proxy_url", "networks", "said"),
    [
        ("http://remote.example/", "http://127.0.0.1:{port}", (), "proxy is at 127.0.0.1"),
        ("http://10.0.0.1/", "http://127.0.0.1:{port}", LOOPBACK, "address is at 10.0.0.1"),
        ("http://remote.example/", "https://127.0.0.1:{port}", LOOPBACK, "http://host:port"),
        ("http://remote.example/", "socks5://127.0.0.1:{port}", LOOPBACK, "must begin with"),
    ],
)
def test_proxy_addresses_are_judged(
    url: str, proxy_url: str, networks: tuple[str, ...], said: str
) -> None:
    """F45: the proxy's address is judged, and the remote's where it is written as one."""
    with answering(OK) as proxy:
        failed = failure(url, proxy_url=proxy_url.format(port=proxy.port), networks=networks)
    fails(failed, FailureKind.ADDRESS, begun=False)
    assert said in failed.text
    assert proxy.connections == 0
