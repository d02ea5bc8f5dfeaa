"""What the settings allow: the hosts to which requests may be sent, the networks, and how many redirects."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_network
from typing import Final

from msgspec import Struct

from evsched.client.target_tasks import Target, read_authority
from evsched.config import Config, variable
from evsched.errors import ConfigError
from evsched.targets.addresses import NAT64_LENGTHS, Network

_FORMS: Final = (
    "write HOST, HOST:PORT, *.example.com for all hosts below it, or * for every public host, on ports 80 and 443, or "
    "with a port such as *:8443"
)

_NAT64: Final = "nat64:"


class HostRule(Struct, frozen=True):
    """One entry of the allowed hosts."""

    name: str
    """The host; or what it ends with, such as `.example.com`; or empty for every host."""
    port: int | None
    """None = the default port of the scheme."""

    def allows(self, target: Target) -> bool:
        """Return whether a request may be sent to that host and port."""
        is_host = target.host.endswith(self.name) if self.name[:1] in ("", ".") else target.host == self.name
        return is_host and target.port == (self.port or target.default_port)


class Allowed(Struct, frozen=True):
    """What is allowed. Make it with `read_allowed`."""

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
    """Read what the settings allow.

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
