"""Destinations: where messages may be forwarded to. `client/target_tasks.py` has how they are written.

A producer can write any payload, but the worker may have larger rights than the producer. So the settings must allow
each destination, and only they have the URLs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from evsched.client.target_tasks import AMQP, Destination, destination_of, read_destination
from evsched.config import variable
from evsched.environment import FORWARD_URL
from evsched.errors import ConfigError
from evsched.jobs.steering import GiveUp
from evsched.transport import address


class Destinations(Struct, frozen=True):
    """What the settings allow. Make it with `read_destinations`."""

    allowed: tuple[Destination, ...]
    """The names may have `*` for any characters."""
    urls: Mapping[str, str]
    """Of the servers, by name."""

    def find(self, text: str) -> Destination:
        """Return the destination that a payload names.

        Raises:
            GiveUp: it is not valid, or not allowed.
        """
        found = destination_of(text)
        if not any(_allows(one, found) for one in self.allowed):
            raise GiveUp(
                f"messages to {text!r:.200} are not allowed here: name the destination with --forward-destination at "
                "all workers of the queue, and then bring the job back with `evsched dead revive`"
            )
        return found


def _allows(pattern: Destination, one: Destination) -> bool:
    if (pattern.kind, pattern.server) != (one.kind, one.server):
        return False
    form = ".*".join(map(re.escape, pattern.name.split("*")))
    return re.fullmatch(form, one.name, re.DOTALL) is not None


def read_destinations(allowed: Sequence[str], environment: Mapping[str, str]) -> Destinations:
    """Read the destinations that are allowed, and the URLs of their servers from an environment.

    Raises:
        ConfigError: one is not valid, or a server has no URL. The message quotes no URL, which may have a password.
    """
    found = list[Destination]()
    urls = dict[str, str]()
    for text in allowed:
        try:
            one = read_destination(text)
        except ValueError as error:
            raise ConfigError(
                f"{variable('forward_destinations')} has {text!r:.100}, which is not a destination: {error}"
            ) from None
        found.append(one)
        if one.server:
            urls[one.server] = _url_of(one, environment)
    return Destinations(tuple(found), urls)


def _url_of(destination: Destination, environment: Mapping[str, str]) -> str:
    name = FORWARD_URL + destination.server.upper()
    url = environment.get(name)
    if not url:
        raise ConfigError(f"{variable('forward_destinations')} names the server {destination.server}: set {name}")
    if destination.kind in AMQP:
        _check_amqp(name, url)
    else:
        try:
            address.parse(url)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    return url


def _check_amqp(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("amqp", "amqps") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its message quotes the URL
        good = False
    if not good:
        raise ConfigError(
            f"{name} is not the URL of an AMQP broker: write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://... for "
            "TLS; in a password, percent-encode characters with a meaning in a URL"
        )
