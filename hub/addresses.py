"""Judges the addresses a connection may be reached at.

Rules row: no I/O. `hub.http` resolves a name, asks here about every address it got, and connects
only to one that was judged, so that a name whose answer changes between check and connect gains
nothing.

Public addresses are allowed; anything else only where the connection lists its network. The ranges
are those of the IANA special-purpose registries (RFC 6890 and its updates), written out because
what `ipaddress` calls global differs between Python versions. Addresses that carry an IPv4 address
inside (mapped, compatible, NAT64, 6to4, Teredo) are judged by what they carry as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

_NOT_PUBLIC_4 = tuple(
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a carrier's shared address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address, where cloud metadata lives"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "a documentation address"),
        ("192.88.99.0/24", "a reserved address"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address"),
        ("198.51.100.0/24", "a documentation address"),
        ("203.0.113.0/24", "a documentation address"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)
_NOT_PUBLIC_6 = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("2001::/32", "a Teredo tunnel address"),
        ("2001:db8::/32", "a documentation address"),
        ("2001::/23", "a reserved address"),
        ("3fff::/20", "a documentation address"),
        ("64:ff9b:1::/48", "a local translation address"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a private address"),
        ("ff00::/8", "a multicast address"),
    )
)
_PUBLIC_6 = (IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96"))
_MAPPED = IPv6Network("::ffff:0:0/96")
_LAST_32_BITS = (
    IPv6Network("::/96"),  # IPv4-compatible, deprecated
    IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated
    IPv6Network("64:ff9b::/96"),  # NAT64
    IPv6Network("64:ff9b:1::/48"),  # NAT64 of a site
)
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks a connection allows besides public addresses, from CIDR notation.

    Host bits may be set (``10.1.2.3/8``). Raises `ValueError` naming the text that is no network.
    """
    networks: list[Network] = []
    for text in texts:
        try:
            networks.append(ip_network(text.strip(), strict=False))
        except ValueError:
            raise ValueError(
                f"{text!r} is no network; write it like 10.0.0.0/8 or ::1/128"
            ) from None
    return tuple(networks)


def literal(host: str) -> Address | None:
    """The address a host is when it is written as one (without brackets), or None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def refusal(address: str | Address, networks: Sequence[Network] = ()) -> str:
    """Why a connection must not be made to `address`, or "" when it may be.

    `networks` is allowed besides public addresses. What is no address at all is refused too.
    """
    if isinstance(address, str):
        found = literal(address)
        if found is None:
            return "not an IP address"
        address = found
    if isinstance(address, IPv6Address):
        if address in _MAPPED:  # the system connects to the address inside, over IPv4
            return refusal(IPv4Address(int(address) & 0xFFFFFFFF), networks)
        why = _plain(address, networks)
        if why:
            return why
        for inner in _carried(address):
            why = _plain(inner, networks)
            if why:
                return f"an address that carries {inner}, {why}"
        return ""
    return _plain(address, networks)


def _plain(address: Address, networks: Sequence[Network]) -> str:
    """The judgement of an address as it stands, whatever it may carry."""
    if any(address in network for network in networks):
        return ""
    if isinstance(address, IPv4Address):
        return next((what for network, what in _NOT_PUBLIC_4 if address in network), "")
    what = next((what for network, what in _NOT_PUBLIC_6 if address in network), "")
    if what or any(address in network for network in _PUBLIC_6):
        return what
    return "a reserved address"


def _carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses an IPv6 address carries, by its prefix."""
    number = int(address)
    if number <= 1:  # :: and ::1 lie in the compatible range and carry nothing
        return ()
    if address in _SIX_TO_FOUR:
        return (IPv4Address((number >> 80) & 0xFFFFFFFF),)
    if address in _TEREDO:
        return (
            IPv4Address((number >> 64) & 0xFFFFFFFF),
            IPv4Address(~number & 0xFFFFFFFF),
        )
    if any(address in network for network in _LAST_32_BITS):
        return (IPv4Address(number & 0xFFFFFFFF),)
    return ()
