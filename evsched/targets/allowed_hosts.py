"""Where the settings allow requests to go: hosts, IP addresses, networks, and how many redirects. Pure.

A payload names a host, and the owner of its name in the DNS chooses the address. So an address must be public, or
in a network that the settings allow: otherwise a payload could reach hosts that only this machine can reach, such as a
database or the metadata service of a cloud.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

from msgspec import Struct

from evsched.client.target_tasks import Target, read_authority
from evsched.config import Config, variable
from evsched.errors import ConfigError

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
"""Networks that some versions of Python's `ipaddress`, or all, call public."""


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


_FORMS: Final = (
    "write HOST, HOST:PORT, *.example.com for all hosts below it, or * for every public host, on ports 80 and 443, or "
    "with a port such as *:8443"
)

_NAT64: Final = "nat64:"


class HostRule(Struct, frozen=True):
    """One entry of the allowed hosts."""

    name: str
    """The host; or its suffix, such as `.example.com`; or empty for every host."""
    port: int | None
    """None = the default port of the scheme."""

    def allows(self, target: Target) -> bool:
        """Return whether a request may be sent to that host and port."""
        is_host = target.host.endswith(self.name) if self.name[:1] in ("", ".") else target.host == self.name
        return is_host and target.port == (self.port or target.default_port)


class Allowed(Struct, frozen=True):
    """The allowed hosts and networks. Make it with `read_allowed`."""

    hosts: tuple[HostRule, ...]
    networks: tuple[Network, ...]
    """Networks that requests may be sent to although they are not public."""
    nat64: tuple[IPv6Network, ...]
    """Prefixes for which the network's gateways translate to IPv4."""
    redirects: int
    """How many redirects of a request are followed."""

    def allows(self, target: Target) -> bool:
        """Return whether a request may be sent to a host. Its address is judged when it is connected to."""
        return any(rule.allows(target) for rule in self.hosts)


def read_allowed(config: Config) -> Allowed:
    """Read the allowed hosts and networks from the settings.

    Raises:
        ConfigError: a host or a network is not valid, or no host is allowed.
    """
    if not config.http_hosts:
        raise ConfigError(
            "evsched.targets sends requests to allowed hosts alone, and none is allowed: name each with --http-host or "
            f"in {variable('http_hosts')}; {_FORMS}. To forward messages alone, name --forward-destination instead"
        )
    return Allowed(
        hosts=tuple(map(_read_rule, config.http_hosts)),
        networks=tuple(_read_network(text) for text in config.http_networks if not text.startswith(_NAT64)),
        nat64=tuple(_read_nat64(text.removeprefix(_NAT64)) for text in config.http_networks if text.startswith(_NAT64)),
        redirects=config.http_redirects,
    )


def _read_rule(text: str) -> HostRule:
    star, host = "", text
    if text == "*" or text.startswith(("*:", "*.")):
        star, host = "*", f"any{text[1:]}"  # so that the rest is read as that of any other host
    try:
        name, port = read_authority(host)
    except ValueError:
        raise ConfigError(
            f"{variable('http_hosts')} has {text!r:.100}, which is not an allowed host: {_FORMS}"
        ) from None
    return HostRule(name.removeprefix("any") if star else name, port)


def _read_network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"{variable('http_networks')} has {text!r:.100}: {error}; write a network such as 10.1.0.0/16 or fd12::/48"
        ) from None


def _read_nat64(text: str) -> IPv6Network:
    try:
        found = IPv6Network(text)
    except ValueError:
        found = None
    if found is None or found.prefixlen not in NAT64_LENGTHS:
        lengths = ", ".join(map(str, NAT64_LENGTHS))
        raise ConfigError(
            f"{variable('http_networks')} has {_NAT64 + text!r:.100}, which is not a NAT64 prefix: write one such as "
            f"{_NAT64}fd00:64::/96; its length is one of {lengths}"
        )
    return found
