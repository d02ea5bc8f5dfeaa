"""The URL of a request, read strictly: whatever two parsers could understand differently is refused. Pure."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from msgspec import Struct

from evsched.jobs.steering import GiveUp

_PORTS: Final = {"http": 80, "https": 443}

_PARTS: Final = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]{1,5}))?")
_SENT: Final = re.compile(r"[!-~]+")
"""What may be in a URL: visible ASCII. A backslash is refused too, because some parsers take it for a slash."""

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Target(Struct, frozen=True):
    """Where a request goes."""

    scheme: str
    host: str
    """In lower case; an IPv6 address without its brackets."""
    port: int
    path: str
    """With the query, as it is sent."""

    @property
    def default_port(self) -> int:
        """The port of a URL of this scheme that names none."""
        return _PORTS[self.scheme]

    @property
    def authority(self) -> str:
        """The host as the header Host has it, with its port if that is not the default one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == self.default_port else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The URL as it may be shown: without path and query, which may contain secrets."""
        return f"{self.scheme}://{self.authority}"


def read_url(text: str) -> Target:
    """Read the URL of a payload, or of a redirect.

    Raises:
        GiveUp: it is not valid; the reason quotes nothing but the host, since a URL may contain secrets.
    """
    if not text:
        raise GiveUp("the url is empty: write the whole URL, with http:// or https://")
    if not _SENT.fullmatch(text) or "\\" in text:
        raise GiveUp(
            "the url has a character that cannot be sent, such as a blank, a backslash or a letter outside ASCII: "
            "percent-encode it, and write a host in its ASCII form, xn--..."
        )
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise GiveUp("the url does not begin with http:// or https://: write the whole URL")
    scheme, authority, path = parts[1].lower(), parts[2], parts[3]
    if "@" in authority:
        raise GiveUp("the url has a user or a password in front of the host: pass it in the header Authorization")
    try:
        host, port = read_authority(authority)
    except ValueError as error:
        raise GiveUp(f"the url has {error}") from None
    return Target(scheme, host, _PORTS[scheme] if port is None else port, path if path[:1] == "/" else f"/{path}")


def read_authority(text: str) -> tuple[str, int | None]:
    """Read HOST or HOST:PORT.

    Raises:
        ValueError: it is not valid. The message says what it has, as the end of a sentence.
    """
    parts = _AUTHORITY.fullmatch(text)
    if parts is None or (parts[2] is not None and not 1 <= int(parts[2]) <= 65535):
        raise ValueError(f"a host or a port that is not valid: write HOST or HOST:PORT, not {text!r:.100}")
    return _read_host(parts[1]), None if parts[2] is None else int(parts[2])


def _read_host(text: str) -> str:
    host = text.lower()
    if host.startswith("["):
        try:
            if "%" in host:  # a zone names an interface of this machine
                raise ValueError
            return str(IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"brackets around what is no IPv6 address, {text!r:.100}") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # inet_aton, which many systems use, reads 127.1, 0177.0.0.1, 0x7f.0.0.1 and 2130706433 as 127.0.0.1.
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise ValueError(
                f"an IPv4 address in an unusual form, {text!r:.100}: write four decimal numbers without leading zeros"
            ) from None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        dot = ": leave out the dot at its end" if host.endswith(".") else ""
        raise ValueError(f"a host that is not valid, {text!r:.100}{dot}")
    return host
