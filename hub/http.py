"""The wire: makes one HTTP exchange and knows whether a byte of ours has left.

The only module that imports httpx, and only for its rim (`HubTransport`). It resolves a name,
judges every address (`hub.addresses`) and connects only to a judged one; holds one hard deadline
over the whole exchange; asks the guard just before the first byte; keeps status and headers when a
body is cut; follows no redirect, repeats nothing, and takes neither proxies nor credentials from
the environment (protocol §6.4, §10). What is known before a byte moves, where a route leads and how
a request's head reads, stands in `hub.routes`.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from hub.addresses import refusal
from hub.contract import Answer, Call, CallFailed, FailureKind
from hub.link import MAX_HEAD, Link, Order, Received, Tls, prepare, reason
from hub.routes import OWN_HEADERS, Plan, Route, not_allowed, origin_of, plan_of, write_head

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Name and port to addresses, in the order to try them; raises `OSError` when there are none."""

MAX_IDLE = 10.0
"""Seconds a kept connection may be idle: the older, the likelier it is closed just as we write."""

_IDLE_PER_ROUTE = 100
_KNOWN_ROUTES = 1024
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
        self._user_agent = user_agent
        self._plans: dict[tuple[Route, str], Plan] = {}
        self._contexts: dict[tuple[str, int], ssl.SSLContext] = {}
        self._idle: dict[Plan, list[Link]] = {}
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
            head = write_head(plan, target, call, keep_alive, self._user_agent)
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

    # --- where to ---

    def _where(self, route: Route, path: str) -> tuple[Plan, str]:
        """The plan of a call and its request target. Raises `CallFailed` of kind ADDRESS."""
        origin, path = origin_of(path)
        plan = self._plans.get((route, origin))
        if plan is None:
            if len(self._plans) >= _KNOWN_ROUTES:
                self._plans.clear()
                self._drop_idle()
            plan = plan_of(replace(route, base_url=origin) if origin else route)
            self._plans[route, origin] = plan
        return plan, plan.target(path)

    # --- connecting ---

    async def _connect(self, plan: Plan, loop: asyncio.AbstractEventLoop, deadline: float) -> Link:
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

    async def _addresses(self, plan: Plan, kind: FailureKind, what: str, end: float) -> list[str]:
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
            raise not_allowed(what, address, why)
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
        plan: Plan,
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

    def _kept(self, plan: Plan, loop: asyncio.AbstractEventLoop) -> Link | None:
        links = self._idle.get(plan)
        oldest = self._clock() - MAX_IDLE
        while links:
            link = links.pop()
            if link.loop is loop and link.idle_since > oldest and link.still_open():
                return link
            link.abort()
        return None

    def _keep(self, plan: Plan, link: Link) -> None:
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


async def _tunnel(plan: Plan, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
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
                *((n, v) for n, v in headers if n.lower() not in OWN_HEADERS | {"accept-encoding"}),
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
