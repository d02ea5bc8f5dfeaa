"""Which addresses a request may be sent to."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_address, ip_network

import pytest

from evsched.targets.allowed_hosts import may_connect

PUBLIC = ["1.1.1.1", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111", "2a00:1450::8"]
EMBEDDED_PUBLIC = ["::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"]

NOT_PUBLIC = {
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1", "fec0::1"],
    "link-local": ["169.254.0.1", "fe80::1", "fe80::1%eth0"],
    "carrier NAT": ["100.64.0.1", "100.127.255.255"],
    "metadata services": ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.1", "192.88.99.1", "4000::1", "::7f00:1", "5f00::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarks": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0"],
    "6to4": ["2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::"],
    "Teredo": ["2001:0:7f00:1::", "2001:0:101:101::f5ff:fffe", "2001:0:101:101::fefe:fefe"],
    "NAT64": ["64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1.1.1.1"],
}


@pytest.mark.parametrize("text", [*PUBLIC, *EMBEDDED_PUBLIC])
def test_a_public_address_is_allowed(text: str) -> None:
    assert may_connect(ip_address(text), [])


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in NOT_PUBLIC.items() for text in texts])
def test_private_or_special_address_is_refused(kind: str, text: str) -> None:
    assert not may_connect(ip_address(text), [])
    assert not may_connect(ip_address(text), [ip_network("192.168.77.0/24"), ip_network("fd77::/32")])


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.1.2.3", "10.1.0.0/16"),
        ("::ffff:10.1.2.3", "10.1.0.0/16"),
        ("64:ff9b::10.1.2.3", "10.1.0.0/16"),
        ("2002:a01:203::1", "10.1.0.0/16"),
        ("127.0.0.1", "127.0.0.1/32"),
        ("::1", "::1/128"),
        ("fd12::5", "fd12::/48"),
        ("100.64.3.4", "0.0.0.0/0"),
    ],
)
def test_an_address_in_an_allowed_network_is_allowed(text: str, network: str) -> None:
    assert may_connect(ip_address(text), [ip_network(network)])


@pytest.mark.parametrize(
    ("prefix", "public", "private"),
    [
        ("2a00:64::/32", "2a00:64:101:101::", "2a00:64:a01:203::"),
        ("2a00:64:100::/40", "2a00:64:101:101:1::", "2a00:64:10a:102:3::"),
        ("2a00:64:1::/48", "2a00:64:1:101:1:100::", "2a00:64:1:a01:2:300::"),
        ("2a00:64:1:100::/56", "2a00:64:1:101:1:101::", "2a00:64:1:10a:1:203::"),
        ("2a00:64:1:1::/64", "2a00:64:1:1:1:101:100::", "2a00:64:1:1:a:102:300::"),
        ("fd00:64::/96", "fd00:64::1.1.1.1", "fd00:64::10.1.2.3"),
        ("64:ff9b:1::/48", "64:ff9b:1:101:1:100::", "64:ff9b:1:a01:2:300::"),
    ],
)
def test_the_ipv4_address_behind_a_gateway_of_this_network_is_judged(prefix: str, public: str, private: str) -> None:
    nat64 = [IPv6Network(prefix)]
    assert may_connect(ip_address(public), [], nat64)
    assert not may_connect(ip_address(private), [], nat64)
    assert may_connect(ip_address(private), [ip_network("10.1.0.0/16")], nat64)
    assert not may_connect(ip_address(private), [IPv6Network(prefix)], nat64)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.2.2.3", "10.1.0.0/16"),
        ("2002:7f00:1::", "2002::/16"),  # nor is the IPv4 address within it
        ("64:ff9b::127.0.0.1", "64:ff9b::/96"),
        ("2001:0:101:101::fefe:fefe", "2001::/32"),  # Teredo, with public addresses within it
        ("127.0.0.1", "::/0"),
    ],
)
def test_an_allowed_network_allows_nothing_else(text: str, network: str) -> None:
    assert not may_connect(ip_address(text), [ip_network(network)])
