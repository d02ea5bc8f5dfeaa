"""Which IP addresses a request may be sent to. Pure.

A payload names a host, and the owner of its name in the DNS chooses the address. So an address must be public, or
in a network that the settings allow: otherwise a payload could reach what only this machine can reach, such as a
database or the metadata service of a cloud.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_UNICAST: Final = ip_network("2000::/3")
"""The only IPv6 block from which global unicast addresses are assigned (RFC 4291, IANA)."""

NAT64: Final = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that a gateway translates to the IPv4 address within them (RFC 6052): those of every network."""

NAT64_LENGTHS: Final = (32, 40, 48, 56, 64, 96)
"""The lengths of such prefixes."""

_REFUSED: Final = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # for protocols; 192.0.0.192 is a metadata service. Older Pythons call most of it public
            "192.88.99.0/24",  # relays to 6to4 (RFC 7526)
            "168.63.129.16/32",  # Azure's platform, from within its virtual machines
            "2001::/23",  # for protocols
            "3fff::/20",  # for documentation (RFC 9637)
        ),
    )
)
"""What Python's `ipaddress` calls public in some of its versions, or always."""


def may_connect(address: Address, allowed: Sequence[Network], nat64: Sequence[IPv6Network] = ()) -> bool:
    """Return whether a request may be sent to an address: it is public, or in one of the allowed networks.

    The same must hold for each IPv4 address inside it, to which a gateway may pass the packets on. `nat64`: the
    prefixes for which gateways do that, besides the one of every network.
    """
    return not is_teredo(address) and all(
        _is_public(part) or any(part in network for network in allowed) for part in _parts(address, nat64)
    )


def is_teredo(address: Address) -> bool:
    """Return whether requests are never sent to an address, even in an allowed network: it is one of Teredo.

    Two servers on the way pass the packets on, and the author of the address names both.
    """
    return isinstance(address, IPv6Address) and address.teredo is not None


def _parts(address: Address, nat64: Sequence[IPv6Network]) -> list[Address]:
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:  # only another form of the IPv4 address, for the kernel too
        return [address.ipv4_mapped]
    translated: list[Address] = [_translated(address, one) for one in (NAT64, *nat64) if address in one]
    if translated:
        return translated
    return [address] if address.sixtofour is None else [address, address.sixtofour]


def _translated(address: IPv6Address, prefix: IPv6Network) -> IPv4Address:
    """Return the IPv4 address that follows a prefix (RFC 6052, 2.2). The ninth byte is not a part of it."""
    octets = address.packed if prefix.prefixlen == 96 else address.packed[:8] + address.packed[9:]
    at = prefix.prefixlen // 8
    return IPv4Address(octets[at : at + 4])


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        return False
    if any(address in network for network in _REFUSED):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)
