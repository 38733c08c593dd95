"""How a remote is reached, worked out once, and how a request to it is written.

Rules row: no I/O. A `Route` says what a connection is configured to; `plan_of` judges it and works
out a `Plan`, which knows where to connect and how a call's request begins (protocol §10: what
cannot be reached is `address`, what cannot be written is `local`, and in both cases no byte left).
`hub.http` resolves names, connects and sends.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from hub.addresses import Network, literal, parse_networks, refusal
from hub.contract import Call, CallFailed, FailureKind

OWN_HEADERS = frozenset(
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
class Peer:
    """A host we connect to. `address` is filled when it was written as one, judged already."""

    host: str
    port: int
    address: str = ""

    @property
    def authority(self) -> str:
        """Host and port, as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A route, worked out. Compared by identity: kept links belong to one plan."""

    route: Route
    secure: bool
    remote: Peer
    first_hop: Peer
    """Whom to connect to: the remote, or the proxy before it."""
    networks: tuple[Network, ...]
    prefix: str
    """The path of the route's address, before that of a call."""
    proxy_authorization: str
    origin: str
    """What stands before the path of a request: nothing, or all of it for a proxy that reads it."""
    opening: str
    """The rest of the request line, and the headers that every request has."""

    @property
    def proxied(self) -> bool:
        """Whether a proxy is on the way."""
        return bool(self.route.proxy_url)

    def target(self, path: str) -> str:
        """The path of a request for a call's `path`, which is appended to the route's."""
        path = path.partition("#")[0]
        if not path:
            return self.prefix or "/"
        if path[0] == "?":
            return (self.prefix or "/") + path
        return self.prefix.rstrip("/") + (path if path[0] == "/" else "/" + path)


def origin_of(path: str) -> tuple[str, str]:
    """A call's path that is a URL of its own, cut into its origin and the rest; else "" and it."""
    if not path[:8].lower().startswith(("http://", "https://")):
        return "", path
    at = re.search(r"[/?#]", path[8:])
    cut = len(path) if at is None else 8 + at.start()
    return path[:cut], path[cut:]


# --- working out a route --------------------------------------------------------------------------


def plan_of(route: Route) -> Plan:
    """Work out a route. Raises `CallFailed` of kind ADDRESS, saying what to correct."""
    try:
        networks = parse_networks(route.networks)
    except ValueError as error:
        raise misconfigured(f"the connection's allowed networks: {error}") from None
    address = _parsed(route.base_url, "the connection's address", networks)
    secure, remote = address.secure, address.peer
    first_hop, authorization = remote, ""
    if route.proxy_url:
        proxy = _parsed(route.proxy_url, "the connection's proxy", networks, login_allowed=True)
        if proxy.secure:
            raise misconfigured("the connection's proxy must be written as http://host:port")
        first_hop = proxy.peer
        if proxy.login:
            authorization = "Basic " + b64encode(proxy.login.encode()).decode("ascii")
    read_by_proxy = bool(route.proxy_url) and not secure
    host = (
        remote.authority
        if remote.port != (443 if secure else 80)
        else remote.authority.rpartition(":")[0]
    )
    opening = f" HTTP/1.1\r\nhost: {host}"
    if read_by_proxy and authorization:
        opening += f"\r\nproxy-authorization: {authorization}"
    return Plan(
        route=route,
        secure=secure,
        remote=remote,
        first_hop=first_hop,
        networks=networks,
        prefix=address.path,
        proxy_authorization=authorization,
        origin=f"http://{host}" if read_by_proxy else "",
        opening=opening,
    )


class _Parsed(NamedTuple):
    secure: bool
    peer: Peer
    path: str
    login: str
    """What stands before the host."""


def _parsed(
    url: str, what: str, networks: Sequence[Network], *, login_allowed: bool = False
) -> _Parsed:
    """Take a URL apart and judge its host, where that is an address.

    No text of an error holds anything of the URL but scheme and host.
    """
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise misconfigured(f"{what} holds a character that no URL may hold")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        raise misconfigured(f"{what} is not a valid URL") from None
    if parts.scheme not in {"http", "https"}:
        raise misconfigured(f"{what} must begin with https:// or http://")
    login = parts.netloc.rpartition("@")[0]
    if login and not login_allowed:
        raise misconfigured(
            f"{what} must not hold a login; store it with the connection's credentials"
        )
    if parts.query or parts.fragment:
        raise misconfigured(f"{what} must end with its path, without ? or #")
    secure = parts.scheme == "https"
    port = (443 if secure else 80) if port is None else port
    address = literal(host)
    if address is None:
        try:
            host = host.encode("idna").decode("ascii").lower()
        except UnicodeError:
            raise misconfigured(f"{what} has no valid host name") from None
        if not _HOST.fullmatch(host):
            raise misconfigured(f"{what} has no valid host name")
    else:
        why = refusal(address, networks)
        if why:
            raise not_allowed(what, str(address), why)
    if not 0 < port < 65536:
        raise misconfigured(f"{what} has no valid port")
    peer = Peer(host, port, "" if address is None else str(address))
    return _Parsed(secure, peer, parts.path, unquote(login))


def misconfigured(text: str) -> CallFailed:
    """What is wrong with the connection's address, and what to correct."""
    return CallFailed(FailureKind.ADDRESS, text, begun=False)


def not_allowed(what: str, address: str, why: str) -> CallFailed:
    """The address a connection may not reach, and what to correct."""
    return misconfigured(
        f"{what} is at {address}, {why}; correct the connection's address, or allow that network "
        "on the connection"
    )


# --- writing a request ----------------------------------------------------------------------------


def write_head(plan: Plan, target: str, call: Call, keep_alive: bool, user_agent: str) -> bytes:
    """The request line and the headers of a call. Raises `CallFailed` of kind LOCAL."""
    method, headers = call.method, call.headers
    starts, ending = _frame(method, tuple([name for name, _ in headers]), keep_alive, user_agent)
    if not _TARGET.fullmatch(target):
        raise _unwritable("its path")
    parts = [method, " ", plan.origin, target, plan.opening]
    for start, (name, value) in zip(starts, headers, strict=True):
        # What is printable ASCII needs no expression; most is.
        plain = value.isascii() and value.isprintable() and value.strip() == value
        if not plain and not _VALUE.fullmatch(value):
            raise _unwritable(f"the header {name.lower()}")
        parts.append(start)
        parts.append(value)
    parts.append(ending)
    if call.body or method in _BODIES:
        parts.append(f"\r\ncontent-length: {len(call.body)}")
    parts.append("\r\n\r\n")
    return "".join(parts).encode("ascii")


@lru_cache(maxsize=256)
def _frame(
    method: str, names: tuple[str, ...], keep_alive: bool, user_agent: str
) -> tuple[tuple[str, ...], str]:
    """What stands before each of a call's values, and the headers behind them that it left to us.

    Every call of an action has the same method and names, so that they are checked once.
    """
    if not _METHOD.fullmatch(method) or method == "CONNECT":
        raise _unwritable("its method")
    given = [name.lower() for name in names]
    for name in given:
        if not _TOKEN.fullmatch(name):
            raise _unwritable("a header's name")
        if name in OWN_HEADERS:
            raise _unwritable(f"the header {name}")
    ours = {
        "user-agent": user_agent,
        "accept": "application/json",
        "accept-encoding": "identity",
    }
    left = {name: value for name, value in ours.items() if name not in given}
    if not keep_alive:
        left["connection"] = "close"
    ending = "".join(f"\r\n{name}: {value}" for name, value in left.items())
    return tuple(f"\r\n{name}: " for name in given), ending


def _unwritable(part: str) -> CallFailed:
    # what stands there is not quoted: it may be a secret
    text = f"the request cannot be written as HTTP: {part} is not allowed as it stands"
    return CallFailed(FailureKind.LOCAL, text, begun=False)
