"""Destinations: where messages may be forwarded to, and how a payload and the settings name that.

    stream:orders            a stream of the Redis that has the jobs
    list@billing:work        a list of another Redis, whose URL is in EVSCHED_FORWARD_URL_BILLING
    exchange@rabbit:events   an exchange of an AMQP broker

A producer can write any payload, but the worker may have larger rights than the producer. So the settings must allow
each destination, and only they have the URLs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast
from urllib.parse import urlsplit

from msgspec import Struct

from evsched.config import variable
from evsched.environment import FORWARD_URL
from evsched.errors import ConfigError
from evsched.jobs.steering import GiveUp
from evsched.transport import address

Kind = Literal["stream", "list", "channel", "queue", "exchange"]

AMQP: Final = ("queue", "exchange")
"""The kinds of an AMQP broker; the others are Redis's."""

_FORM: Final = re.compile(r"(stream|list|channel|queue|exchange)(?:@([a-z][a-z0-9_]{0,63}))?:(.+)", re.DOTALL)
_HOW: Final = (
    "write stream:NAME, list:NAME or channel:NAME, with @SERVER before the colon for another Redis, or "
    "queue@SERVER:NAME or exchange@SERVER:NAME for an AMQP broker; the kind and SERVER are in lower case"
)
_OWN: Final = "evsched:"
"""How the keys and channels of evsched begin. No message may go there: it could change jobs."""

_REDIS_OWN: Final = "__"
"""How the channels of Redis and of Sentinels begin, such as `__sentinel__:hello`. They trust each message there."""

_LONGEST: Final = 255
"""Bytes of a name in AMQP, and of whatever else it sends as a short string."""

_EXCHANGE: Final = re.compile(r"[A-Za-z0-9_.:@#,/+ -]{1,127}")
"""The names of exchanges that the client library can send."""


class Destination(Struct, frozen=True):
    """A place for messages."""

    kind: Kind
    server: str
    """The name of its server in the settings; "" = the Redis that has the jobs."""
    name: str


def read_destination(text: str) -> Destination:
    """Read a destination as payloads and settings write it.

    Raises:
        ValueError: it is not valid; the message says why.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(_HOW)
    kind, server, name = cast("Kind", found[1]), found[2] or "", found[3]
    if kind in AMQP and not server:
        raise ValueError(f"a {kind} needs the name of its broker: {kind}@SERVER:{name}")
    if kind not in AMQP and name.startswith(_OWN):
        raise ValueError(f"keys and channels that begin with {_OWN} are evsched's own")
    if kind == "channel" and name.startswith(_REDIS_OWN):
        raise ValueError(f"channels that begin with {_REDIS_OWN} are Redis's own")
    return Destination(kind, server, name)


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
        try:
            found = read_destination(text)
        except ValueError as error:
            # It is not quoted: it may be a URL with a password.
            raise GiveUp(f"`to` is not a destination: {error}") from None
        if not any(_allows(one, found) for one in self.allowed):
            raise GiveUp(
                f"messages to {text!r:.200} are not allowed here: name the destination with --forward-destination at "
                "all workers of the queue, and then bring the job back with `evsched dead revive`"
            )
        if found.kind == "exchange" and not _EXCHANGE.fullmatch(found.name):
            raise GiveUp(
                f"messages cannot be sent to exchange {found.name!r:.200}: its name must have 1 to 127 characters of "
                "A-Z a-z 0-9 _ . : @ # , / + - and the space"
            )
        return found


def check_length(what: str, text: str) -> None:
    """Check that AMQP can send a text as a short string. `what` it is, for the reason.

    Raises:
        GiveUp: it is too long.
    """
    length = len(text.encode())
    if length > _LONGEST:
        raise GiveUp(f"{what} has {length} bytes, and AMQP allows {_LONGEST} at most")


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
