"""The wire: makes one HTTP exchange and knows whether a byte of ours has left.

The only module that imports httpx, and only for its rim (`HubTransport`). It resolves a name,
judges every address (`hub.addresses`) and connects only to a judged one; holds one hard deadline
over the whole exchange; asks the guard just before the first byte; keeps status and headers when a
body is cut; follows no redirect, repeats nothing, and takes neither proxies nor credentials from
the environment (protocol §6.4, §10).
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

import httpx

from hub.addresses import Network, literal, parse_networks, refusal
from hub.contract import Answer, Call, CallFailed, FailureKind
from hub.link import MAX_HEAD, Link, Order, Received, Tls, prepare, reason

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Name and port to addresses, in the order to try them; raises `OSError` when there are none."""

MAX_IDLE = 10.0
"""Seconds a kept connection may be idle: the older, the likelier it is closed just as we write."""

_IDLE_PER_ROUTE = 100
_KNOWN_ROUTES = 1024
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that frame or steer an exchange: the wire writes them, a call may not."""

_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_METHOD = re.compile(r"[A-Z]+")
_TARGET = re.compile(r"[!-~]+")
_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[!-~]([ \t!-~]*[!-~])?|")
_BODIES = frozenset({"POST", "PUT", "PATCH"})
_LONGEST_WAIT = 86400.0
_MOST_MEMBERS = 32
"""Of a body in gzip: each costs a copy of all that follows it, and the event loop waits."""


def boottime() -> float:
    """Seconds on a clock that also counts while the machine sleeps, where there is one."""
    return _boottime()


def _find_boottime() -> Callable[[], float]:
    clock_id: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    if clock_id is None:
        return time.monotonic
    found = clock_id
    return lambda: time.clock_gettime(found)


_boottime = _find_boottime()


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds a `Retry-After` header asks us to wait, within 1 s and 24 h; None when it says
    nothing usable.

    Takes both forms, whole seconds and an HTTP date (one in the past counts as 1 s). Negative,
    fractional and other text is ignored. `now` is an aware datetime: the moment the answer
    came.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        wait = float(text[:12])
    elif text[:3].isalpha():
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        wait = (moment - now).total_seconds()
    else:
        return None
    return min(max(wait, 1.0), _LONGEST_WAIT)


@dataclass(frozen=True, slots=True)
class Route:
    """How one connection's remote is reached. Made once per connection: the wire keeps links by
    it.

    `base_url` (http or https) may hold a secret in its path, `proxy_url` one before its host:
    neither is shown.
    """

    base_url: str = field(repr=False)
    networks: tuple[str, ...] = ()
    """Networks in CIDR notation that are allowed besides public addresses."""
    proxy_url: str = field(default="", repr=False)
    """An HTTP proxy (``http://[user:password@]host:port``). Its address is judged like a
    remote's; a name behind it is resolved by the proxy and cannot be judged here."""
    ca_file: str = ""
    """PEM file with the authorities to trust instead of the system's."""
    max_body: int = 8 * 1024 * 1024
    """Most bytes of an answer's body that are taken, as sent and after decoding."""
    connect_timeout: float = 10.0
    """Seconds for everything before the request: name, TCP, proxy, TLS."""


@dataclass(frozen=True, slots=True)
class _Peer:
    """A host we connect to. `address` is filled when it was written as one, judged already."""

    host: str
    port: int
    address: str = ""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A route, worked out. Compared by identity: kept links belong to one plan."""

    route: Route
    secure: bool
    remote: _Peer
    first_hop: _Peer
    networks: tuple[Network, ...]
    host: str
    prefix: str
    proxied: bool
    proxy_authorization: str


class Wire:
    """Makes exchanges, and keeps connections between them where it is told to.

    Used by one event loop at a time. `clock` must count while the machine sleeps. `steps` is told
    each point an exchange passes and may raise to stop it there: a `BaseException` goes through as
    it is (a simulated crash), any other becomes a `CallFailed`. Points: ``send.connected``,
    ``send.first_byte`` (after the guard), ``send.half_body``, ``send.sent``, ``recv.status``,
    ``recv.half_body``, ``recv.done``.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = boottime,
        resolve: Resolve | None = None,
        steps: Callable[[str], None] | None = None,
        user_agent: str = "integration-hub",
    ) -> None:
        self._clock = clock
        self._resolve = resolve or self._system_resolve
        self._steps = steps
        self._defaults = (
            ("user-agent", f"user-agent: {user_agent}"),
            ("accept", "accept: application/json"),
            ("accept-encoding", "accept-encoding: identity"),
        )
        self._plans: dict[tuple[Route, str], _Plan] = {}
        self._contexts: dict[tuple[str, int], ssl.SSLContext] = {}
        self._idle: dict[_Plan, list[Link]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._resolver: ThreadPoolExecutor | None = None

    async def exchange(
        self,
        route: Route,
        call: Call,
        *,
        max_send: float,
        guard: Callable[[], None] | None = None,
        keep_alive: bool = False,
    ) -> Answer:
        """Send `call` and return its answer, within `max_send` seconds for everything.

        `call.path` is appended to the route's address, or is an http(s) URL of its own.
        `guard` is called right before the first byte of the request; when it raises,
        nothing has been sent. Raises `CallFailed`, whose `begun` says whether a byte of the
        request can have left. An answer whose status was read but whose body was cut, too
        large or not decodable is returned with `body_lost`.
        """
        clock, steps = self._clock, self._steps
        started = clock()
        deadline = started + max_send
        link: Link | None = None
        keep = False
        try:
            plan, target = self._where(route, call.path)
            head = self._head(plan, target, call, keep_alive)
            loop = asyncio.get_running_loop()
            link = self._kept(plan, loop) if keep_alive else None
            if link is None:
                link = await self._connect(plan, loop, deadline)
            if steps is not None:
                steps("send.connected")
            order = Order(clock, deadline, route.max_body, guard, steps)
            received = await link.exchange(call.method, head, call.body, order)
            answer = _answer(received, route.max_body, clock() - started)
            keep = keep_alive and link.reusable()
            if keep:
                self._keep(plan, link)
            elif not received.cut:
                link.close()
        except CallFailed:
            raise
        except Exception as error:
            begun = link is not None and link.begun
            text = f"the exchange failed in a way nobody foresaw: {type(error).__name__}"
            raise CallFailed(FailureKind.OTHER, text, begun=begun) from error
        finally:
            if link is not None and not keep:
                link.abort()
        if answer.status == 407 and plan.proxied and not plan.secure:
            raise CallFailed(
                FailureKind.PROXY_AUTH, "the proxy does not accept our credentials", begun=True
            )
        return answer

    async def aclose(self) -> None:
        """Close every kept connection."""
        self._drop_idle()
        if self._resolver is not None:
            self._resolver.shutdown(wait=False, cancel_futures=True)
            self._resolver = None

    # --- what to send, and where ---

    def _where(self, route: Route, path: str) -> tuple[_Plan, str]:
        """The plan of a call and its request target. Raises `CallFailed` of kind ADDRESS."""
        origin = ""
        if path[:8].lower().startswith(("http://", "https://")):
            at = re.search(r"[/?#]", path[8:])
            cut = len(path) if at is None else 8 + at.start()
            origin, path = path[:cut], path[cut:]
        plan = self._plans.get((route, origin))
        if plan is None:
            if len(self._plans) >= _KNOWN_ROUTES:
                self._plans.clear()
                self._drop_idle()
            plan = _plan(replace(route, base_url=origin) if origin else route)
            self._plans[route, origin] = plan
        path = path.partition("#")[0]
        if not path:
            return plan, plan.prefix or "/"
        if path[0] == "?":
            return plan, (plan.prefix or "/") + path
        return plan, plan.prefix.rstrip("/") + (path if path[0] == "/" else "/" + path)

    def _head(self, plan: _Plan, target: str, call: Call, keep_alive: bool) -> bytes:
        """Request line and headers. Raises `CallFailed` of kind LOCAL."""
        method = call.method
        plain_proxy = plan.proxied and not plan.secure
        if plain_proxy:
            target = f"http://{plan.host}{target}"
        if not _METHOD.fullmatch(method) or method == "CONNECT":
            raise _unwritable("its method")
        if not _TARGET.fullmatch(target):
            raise _unwritable("its path")
        lines = [f"{method} {target} HTTP/1.1", f"host: {plan.host}"]
        given: set[str] = set()
        for name, value in call.headers:
            name = name.lower()
            if not _TOKEN.fullmatch(name):
                raise _unwritable("a header's name")
            if name in _OWN_HEADERS or not _VALUE.fullmatch(value):
                raise _unwritable(f"the header {name}")
            given.add(name)
            lines.append(f"{name}: {value}")
        lines.extend(line for name, line in self._defaults if name not in given)
        if call.body or method in _BODIES:
            lines.append(f"content-length: {len(call.body)}")
        if not keep_alive:
            lines.append("connection: close")
        if plain_proxy and plan.proxy_authorization:
            lines.append(f"proxy-authorization: {plan.proxy_authorization}")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("ascii")

    # --- connecting ---

    async def _connect(self, plan: _Plan, loop: asyncio.AbstractEventLoop, deadline: float) -> Link:
        """A link to the remote, over the first judged address that works. Raises `CallFailed`, not
        begun."""
        context = self._context(plan.route.ca_file) if plan.secure else None
        end = min(deadline, self._clock() + plan.route.connect_timeout)
        peer = plan.first_hop
        kind = FailureKind.PROXY if plan.proxied else FailureKind.CONNECT
        what = f"the proxy {peer.authority}" if plan.proxied else peer.authority
        addresses = [peer.address] if peer.address else await self._addresses(plan, kind, what, end)
        text = f"no time was left to connect to {what}"
        for number, address in enumerate(addresses):
            left = end - self._clock()
            if left <= 0:
                break
            share = left / (len(addresses) - number)
            try:
                async with asyncio.timeout(share):
                    return await self._open(plan, loop, address, context)
            except TimeoutError:
                text = f"{what} did not let us connect within {share:.1f} s"
            except ssl.SSLCertVerificationError as error:
                raise CallFailed(
                    FailureKind.CERTIFICATE,
                    f"the certificate of {plan.remote.authority} is refused: {reason(error)}",
                    begun=False,
                ) from None
            except ssl.SSLError as error:
                kind = FailureKind.CONNECT
                text = f"TLS with {plan.remote.authority} failed: {reason(error)}"
            except OSError as error:
                text = f"{what} could not be reached: {reason(error)}"
        raise CallFailed(kind, text, begun=False)

    async def _addresses(self, plan: _Plan, kind: FailureKind, what: str, end: float) -> list[str]:
        """Resolve the first hop and keep the addresses it may be reached at."""
        peer = plan.first_hop
        try:
            async with asyncio.timeout(max(0.0, end - self._clock())):
                found = await self._resolve(peer.host, peer.port)
        except TimeoutError:
            raise CallFailed(
                kind, f"the name of {what} was not resolved in time", begun=False
            ) from None
        except (OSError, UnicodeError):
            raise CallFailed(kind, f"the name of {what} does not resolve", begun=False) from None
        refused = {address: refusal(address, plan.networks) for address in found}
        allowed = [address for address, why in refused.items() if not why]
        if refused and not allowed:
            address, why = next(iter(refused.items()))
            raise _misconfigured(_not_allowed(what, address, why))
        if not allowed:
            raise CallFailed(kind, f"the name of {what} has no address", begun=False)
        return allowed

    async def _system_resolve(self, host: str, port: int) -> Sequence[str]:
        if self._resolver is None:  # of our own, so that a hanging name server holds up nobody else
            self._resolver = ThreadPoolExecutor(8, thread_name_prefix="resolve")
        found = await asyncio.get_running_loop().run_in_executor(
            self._resolver,
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def _open(
        self,
        plan: _Plan,
        loop: asyncio.AbstractEventLoop,
        address: str,
        context: ssl.SSLContext | None,
    ) -> Link:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            prepare(sock)
            await loop.sock_connect(sock, (address, plan.first_hop.port))
            tls = None
            if context is not None:
                if plan.proxied:
                    await _tunnel(plan, loop, sock)
                tls = Tls(context, plan.remote.host)
                await tls.handshake(loop, sock)
            return Link(loop, sock, tls)
        except BaseException:
            sock.close()
            raise

    def _context(self, ca_file: str) -> ssl.SSLContext:
        """TLS settings with the system's authorities or those of a file, read again when it
        changes."""
        try:
            changed = os.stat(ca_file).st_mtime_ns if ca_file else 0
            context = self._contexts.get((ca_file, changed))
            if context is None:
                context = ssl.create_default_context(cafile=ca_file or None)
                context.set_alpn_protocols(["http/1.1"])
                self._contexts[ca_file, changed] = context
        except OSError as error:  # SSLError, for what is no certificate, is one
            raise CallFailed(
                FailureKind.CERTIFICATE,
                f"the file of trusted authorities cannot be used: {reason(error)}; correct the "
                "connection's CA file",
                begun=False,
            ) from None
        return context

    # --- kept links ---

    def _kept(self, plan: _Plan, loop: asyncio.AbstractEventLoop) -> Link | None:
        links = self._idle.get(plan)
        oldest = self._clock() - MAX_IDLE
        while links:
            link = links.pop()
            if link.loop is loop and link.idle_since > oldest and link.still_open():
                return link
            link.abort()
        return None

    def _keep(self, plan: _Plan, link: Link) -> None:
        links = self._idle.setdefault(plan, [])
        if len(links) >= _IDLE_PER_ROUTE:
            link.abort()
            return
        link.idle_since = self._clock()
        links.append(link)
        if self._sweeper is None:
            self._sweeper = link.loop.call_later(MAX_IDLE / 2, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = self._clock() - MAX_IDLE
        for plan, links in list(self._idle.items()):
            fresh = [link for link in links if link.idle_since > oldest and not link.closed]
            for link in links:
                if link.idle_since <= oldest:
                    link.abort()
            if fresh:
                self._idle[plan] = fresh
            else:
                del self._idle[plan]
        if self._idle:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(MAX_IDLE / 2, self._sweep)

    def _drop_idle(self) -> None:
        for links in self._idle.values():
            for link in links:
                link.abort()
        self._idle.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None


def _unwritable(part: str) -> CallFailed:
    # what stands there is not quoted: it may be a secret
    text = f"the request cannot be written as HTTP: {part} is not allowed as it stands"
    return CallFailed(FailureKind.LOCAL, text, begun=False)


def _misconfigured(text: str) -> CallFailed:
    return CallFailed(FailureKind.ADDRESS, text, begun=False)


def _not_allowed(what: str, address: str, why: str) -> str:
    return (
        f"{what} is at {address}, {why}; correct the connection's address, or allow that network "
        "on the connection"
    )


def _plan(route: Route) -> _Plan:
    """Work out a route. Raises `CallFailed` of kind ADDRESS, saying what to correct."""
    try:
        networks = parse_networks(route.networks)
    except ValueError as error:
        raise _misconfigured(f"the connection's allowed networks: {error}") from None
    secure, remote, path, _ = _parsed(route.base_url, "the connection's address", networks)
    proxied = bool(route.proxy_url)
    first_hop, authorization = remote, ""
    if proxied:
        proxy_secure, first_hop, _, login = _parsed(
            route.proxy_url, "the connection's proxy", networks, login_allowed=True
        )
        if proxy_secure:
            raise _misconfigured("the connection's proxy must be written as http://host:port")
        if login:
            authorization = "Basic " + b64encode(login.encode()).decode("ascii")
    host = (
        remote.authority
        if remote.port != (443 if secure else 80)
        else remote.authority.rpartition(":")[0]
    )
    return _Plan(
        route=route,
        secure=secure,
        remote=remote,
        first_hop=first_hop,
        networks=networks,
        host=host,
        prefix=path,
        proxied=proxied,
        proxy_authorization=authorization,
    )


def _parsed(
    url: str, what: str, networks: Sequence[Network], *, login_allowed: bool = False
) -> tuple[bool, _Peer, str, str]:
    """Whether a URL is https, its host, its path, and the login before the host.

    No text of an error holds anything of the URL but scheme and host.
    """
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise _misconfigured(f"{what} holds a character that no URL may hold")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        raise _misconfigured(f"{what} is not a valid URL") from None
    if parts.scheme not in {"http", "https"}:
        raise _misconfigured(f"{what} must begin with https:// or http://")
    login = parts.netloc.rpartition("@")[0]
    if login and not login_allowed:
        raise _misconfigured(
            f"{what} must not hold a login; store it with the connection's credentials"
        )
    if parts.query or parts.fragment:
        raise _misconfigured(f"{what} must end with its path, without ? or #")
    secure = parts.scheme == "https"
    port = (443 if secure else 80) if port is None else port
    address = literal(host)
    if address is None:
        try:
            host = host.encode("idna").decode("ascii").lower()
        except UnicodeError:
            raise _misconfigured(f"{what} has no valid host name") from None
        if not _HOST.fullmatch(host):
            raise _misconfigured(f"{what} has no valid host name")
    else:
        why = refusal(address, networks)
        if why:
            raise _misconfigured(_not_allowed(what, str(address), why))
    if not 0 < port < 65536:
        raise _misconfigured(f"{what} has no valid port")
    peer = _Peer(host, port, "" if address is None else str(address))
    return secure, peer, parts.path, unquote(login)


async def _tunnel(plan: _Plan, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Have the proxy connect us to the remote. None of our request is in it."""
    proxy = f"the proxy {plan.first_hop.authority}"
    lines = [f"CONNECT {plan.remote.authority} HTTP/1.1", f"Host: {plan.remote.authority}"]
    if plan.proxy_authorization:
        lines.append(f"Proxy-Authorization: {plan.proxy_authorization}")
    await loop.sock_sendall(sock, ("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
    head = b""
    while b"\r\n\r\n" not in head:
        data = await loop.sock_recv(sock, 4096)
        head += data
        if not data or len(head) > MAX_HEAD:
            raise CallFailed(FailureKind.PROXY, f"{proxy} did not answer CONNECT", begun=False)
    found = re.match(rb"HTTP/1\.[01] (\d{3})\b", head)
    status = int(found[1]) if found else 0
    if status == 407:
        raise CallFailed(
            FailureKind.PROXY_AUTH, f"{proxy} does not accept our credentials", begun=False
        )
    if not 200 <= status < 300 or not head.endswith(b"\r\n\r\n"):
        said = (
            f"refused to connect us: {status}" if status else "answered CONNECT with something else"
        )
        raise CallFailed(FailureKind.PROXY, f"{proxy} {said}", begun=False)


def _answer(received: Received, max_body: int, duration: float) -> Answer:
    body, lost = received.body, bool(received.cut)
    if body:
        coding = (
            next((v for k, v in received.headers if k == "content-encoding"), "").strip().lower()
        )
        if coding and coding != "identity":
            body, whole = _decoded(coding, body, max_body)
            lost = lost or not whole
    return Answer(received.status, received.headers, body, lost, duration)


def _decoded(coding: str, body: bytes, most: int) -> tuple[bytes, bool]:
    """As much of a body as could be decoded into `most` bytes, and whether that is all of it."""
    if coding not in {"gzip", "x-gzip", "deflate"}:
        return body, False
    bits = zlib.MAX_WBITS | 32  # gzip or zlib, by its own header
    if coding == "deflate" and body[0] & 0x0F != 8:
        bits = -zlib.MAX_WBITS  # some servers send deflate without its zlib wrapping
    parts: list[bytes] = []
    left = most
    for _ in range(_MOST_MEMBERS):
        if not body:
            break
        decoder = zlib.decompressobj(bits)
        try:
            part = decoder.decompress(body, left + 1)
        except zlib.error:
            return b"".join(parts), False
        parts.append(part[:left])
        if len(part) > left or not decoder.eof:
            return b"".join(parts), False
        left -= len(part)
        body = decoder.unused_data
    return b"".join(parts), not body


# --- the rim -------------------------------------------------------------------------------------


class _Body(httpx.AsyncByteStream):
    """A body as it came; ends with an error when the rest of it was lost."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._answer.body
        if self._answer.body_lost:
            raise httpx.RemoteProtocolError(
                "the answer's body was cut, too large, or not decodable"
            )


_AT_THE_RIM: dict[FailureKind, type[httpx.TransportError]] = {
    FailureKind.CONNECT: httpx.ConnectError,
    FailureKind.CERTIFICATE: httpx.ConnectError,
    FailureKind.ABORTED: httpx.ConnectError,
    FailureKind.ADDRESS: httpx.UnsupportedProtocol,
    FailureKind.PROXY: httpx.ProxyError,
    FailureKind.PROXY_AUTH: httpx.ProxyError,
    FailureKind.LOCAL: httpx.LocalProtocolError,
    FailureKind.WRITE: httpx.WriteError,
    FailureKind.READ: httpx.ReadError,
    FailureKind.DEADLINE: httpx.ReadTimeout,
    FailureKind.PROTOCOL: httpx.RemoteProtocolError,
    FailureKind.OTHER: httpx.ReadError,
}


class HubTransport(httpx.AsyncBaseTransport):
    """The wire for whoever speaks httpx: same rules, httpx's own requests, responses and
    exceptions.

    `route` says which addresses are allowed, which proxy and authorities are used; host and
    path come from each request. A raised exception has the `CallFailed`, with its `begun`, as
    its cause. Time-outs of the client are not used: `max_send` bounds the whole exchange.
    """

    def __init__(
        self,
        wire: Wire,
        route: Route | None = None,
        *,
        max_send: float = 30.0,
        guard: Callable[[], None] | None = None,
        keep_alive: bool = False,
    ) -> None:
        self._wire = wire
        self._route = route or Route("")
        self._max_send = max_send
        self._guard = guard
        self._keep_alive = keep_alive

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make one exchange; see `Wire.exchange`."""
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw
        ]
        call = Call(
            method=request.method,
            path=request.url.raw_path.decode("ascii"),
            headers=(
                *(
                    (n, v)
                    for n, v in headers
                    if n.lower() not in _OWN_HEADERS | {"accept-encoding"}
                ),
            ),
            body=await request.aread(),
            label=request.method,
        )
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        try:
            answer = await self._wire.exchange(
                replace(self._route, base_url=origin),
                call,
                max_send=self._max_send,
                guard=self._guard,
                keep_alive=self._keep_alive,
            )
        except CallFailed as failed:
            raise _AT_THE_RIM[failed.kind](failed.text, request=request) from failed
        kept = [
            (name, value)
            for name, value in answer.headers
            if name not in {"content-encoding", "content-length", "transfer-encoding"}
        ]
        return httpx.Response(answer.status, headers=kept, stream=_Body(answer))

    async def aclose(self) -> None:
        """Close the wire's kept connections."""
        await self._wire.aclose()
