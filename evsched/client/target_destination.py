"""A destination of a message, as payloads and settings write it, and the options that belong to it. Pure.

stream:orders            a stream of the Redis that has the jobs
list@billing:work        a list of another Redis, whose URL is in EVSCHED_FORWARD_URL_BILLING
exchange@rabbit:events   an exchange of an AMQP broker
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, cast

from msgspec import Struct

from evsched.jobs.steering import GiveUp

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


def destination_of(text: str) -> Destination:
    """Return the destination that a payload names.

    Raises:
        GiveUp: it is not valid.
    """
    try:
        found = read_destination(text)
    except ValueError as error:
        # It is not quoted: it may be a URL with a password.
        raise GiveUp(f"`to` is not a destination: {error}") from None
    if found.kind == "exchange" and not _EXCHANGE.fullmatch(found.name):
        raise GiveUp(
            f"messages cannot be sent to exchange {found.name!r:.200}: its name must have 1 to 127 characters of "
            "A-Z a-z 0-9 _ . : @ # , / + - and the space"
        )
    return found


def check_options(to: Destination, options: dict[str, Any]) -> None:
    """Refuse options that the destination does not have: most likely the producer means another one.

    Raises:
        GiveUp: it has one of them, or one is too long.
    """
    known = {"most": ("stream",), "end": ("list",), "bare": ("list", "channel"), "routing_key": ("exchange",)}
    for name, kinds in known.items():
        if options[name] is not None and to.kind not in kinds:
            raise GiveUp(f"a {to.kind} has no option {name}: only {' and '.join(kinds)} has")
    if to.kind == "exchange":
        check_length("routing_key", options["routing_key"] or "")
    elif to.kind == "queue":
        check_length("the name of the queue", to.name)


def check_length(what: str, text: str) -> None:
    """Check that AMQP can send a text as a short string. `what` it is, for the reason.

    Raises:
        GiveUp: it is too long.
    """
    length = len(text.encode())
    if length > _LONGEST:
        raise GiveUp(f"{what} has {length} bytes, and AMQP allows {_LONGEST} at most")
