"""Which addresses a connection may be reached at (protocol §6, the outbound guard)."""

import pytest

from hub.addresses import parse_networks, refusal


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "172.15.255.255",
        "172.32.0.1",
        "100.128.0.1",
        "192.0.1.1",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:0808:0808::1",
    ],
)
def test_public_addresses_are_allowed(address: str) -> None:
    """F45: what is public passes, also inside the forms that carry an IPv4 address."""
    assert refusal(address) == ""


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::8.8.8.8",
        "64:ff9b:1::10.0.0.1",
        "100::1",
        "2001::1",
        "2001:0:808:808::f7f7:f7f7",
        "2001:2::1",
        "2001:10::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "no address",
        "127.1",
        "",
    ],
)
def test_everything_else_is_refused(address: str) -> None:
    """F45: private, local, reserved and wrapped addresses are refused, with a reason."""
    assert refusal(address)


@pytest.mark.parametrize(
    ("address", "networks", "allowed"),
    [
        ("127.0.0.1", ["127.0.0.0/8"], True),
        ("::ffff:127.0.0.1", ["127.0.0.0/8"], True),
        ("::1", ["127.0.0.0/8"], False),
        ("::1", ["::1/128"], True),
        ("10.1.2.3", ["10.1.2.3/8"], True),
        ("11.0.0.1", ["10.0.0.0/8"], True),
        ("192.168.1.1", ["10.0.0.0/8"], False),
        ("64:ff9b::10.0.0.1", ["10.0.0.0/8"], True),
        ("64:ff9b:1::10.0.0.1", ["64:ff9b:1::/48"], False),
        ("64:ff9b:1::10.0.0.1", ["64:ff9b:1::/48", "10.0.0.0/8"], True),
        ("64:ff9b:1::10.0.0.1", ["10.0.0.0/8"], False),
        ("2002:7f00:1::1", ["2002::/16"], False),
        ("2001:0:808:808::80ff:fffe", ["2001::/32"], False),  # the client inside is 127.0.0.1
    ],
)
def test_a_connection_may_allow_networks(address: str, networks: list[str], allowed: bool) -> None:
    """F45: a listed network is allowed, and what an address carries inside is judged as well."""
    assert (refusal(address, parse_networks(networks)) == "") is allowed


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="'ten-slash-eight' is no network"):
        parse_networks(["10.0.0.0/8", "ten-slash-eight"])
