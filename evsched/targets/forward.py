"""The task `evsched.forward`: a job that is one message for a stream, a list, a channel or an AMQP broker.

A message for the Redis that has the jobs is returned: the script that ends the run sends it, so it is sent exactly
once. To any other server it is sent first, and then the run ends: at least once, with the job's id in the message.

A producer can write any payload, but the worker may have larger rights than the producer. So the settings must allow
each destination, and only they have the URLs. `client/target_tasks.py` has how destinations are written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import Struct

from evsched import keys
from evsched.client.target_tasks import AMQP, Destination, ForwardJob, check_length, destination_of, read_destination
from evsched.config import variable
from evsched.environment import FORWARD_URL
from evsched.errors import FULL, ConfigError, StoreError
from evsched.jobs.current_job import current_job
from evsched.jobs.job import Into, Message, encode
from evsched.jobs.redaction import REDACTED
from evsched.jobs.retry import Retry
from evsched.jobs.steering import GiveUp, RetryLater, Snooze
from evsched.transport import address
from evsched.transport.call import Call, Word, raw
from evsched.transport.redis_errors import PutOff
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import slot_of

if TYPE_CHECKING:
    from evsched.targets.broker import Broker


class Destinations(Struct, frozen=True):
    """The servers that the settings allow. Make it with `read_destinations`."""

    allowed: tuple[Destination, ...]
    """The names may have `*` for any characters."""
    urls: Mapping[str, str]
    """The URLs of the servers, by name."""

    def find(self, text: str, *, hidden: bool = False) -> Destination:
        """Return the destination that a payload names. `hidden`: no message has a part of it.

        Raises:
            GiveUp: it is not valid, or not allowed.
        """
        found = destination_of(text, hidden=hidden)
        if not any(_allows(one, found) for one in self.allowed):
            shown = REDACTED if hidden else repr(text)[:200]
            raise GiveUp(
                f"messages to {shown} are not allowed here: name the destination with --forward-destination at "
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


RETRY: Final = Retry(attempts=20, interval=1.0, max_interval=300.0, jitter=1.0)
"""A server may be down for longer than a deploy takes: these attempts span about an hour."""


class Forwarder:
    """Forwards the messages of one worker, as far as the settings allow them. It connects to a server on first use.

    `cluster`: the Redis that has the jobs is a cluster.

    Raises:
        ConfigError: a library is missing.
    """

    def __init__(self, destinations: Destinations, *, cluster: bool = False) -> None:
        self._destinations = destinations
        self._cluster = cluster
        self._servers: dict[str, BatchingSender] = {}
        self._put_off: dict[str, PutOff] = {}
        """For each of these servers."""
        self._brokers: dict[str, Broker] = {}
        brokers = {one.server for one in destinations.allowed if one.kind in AMQP}
        for name, url in destinations.urls.items():
            if name in brokers:
                self._brokers[name] = _broker(name, url)
            else:
                self._servers[name], self._put_off[name] = BatchingSender(url, short_replies=True), PutOff()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *raised: object) -> None:
        """Close the connections."""
        for server in self._servers.values():
            await server.close()
        for broker in self._brokers.values():
            await broker.close()

    async def forward(self, given: ForwardJob, hidden: Collection[str] = ()) -> Message | None:
        """Forward a message to a destination. `hidden`: the names of redacted arguments.

        Raises:
            RetryLater: the server cannot be reached, or refuses the message.
            Snooze: the server takes no messages now: its memory is full.
            GiveUp: the destination is not valid or not allowed, or in another slot of the cluster than the queue; or
                an option does not belong to it.
        """
        found = self._destinations.find(given.to, hidden="to" in hidden)
        given.check(hidden)
        shown = REDACTED if "to" in hidden else repr(found.name)[:200]
        job = current_job()
        text = encode(given.message)
        if found.kind in ("list", "channel") and not given.bare:
            text = encode({"id": job.id, "message": given.message})
        if found.kind in AMQP:
            exchange, key = (found.name, given.routing_key or "") if found.kind == "exchange" else ("", found.name)
            check_length("the id of the job", job.id)
            all_attempts = f"{job.queue}:{job.idempotency_key}"
            await self._brokers[found.server].publish(
                exchange, key, job.id, all_attempts, text, hidden={"to", "routing_key"}.intersection(hidden)
            )
            return None
        into: Into = found.kind if found.kind in ("stream", "channel") else given.end or "right"
        sent = Message(into, found.name, text, given.most)
        if not found.server:
            if self._cluster:
                _check_slot(found, shown, job.queue)
            return sent
        await self._send(found, shown, sent, job.id)
        return None

    async def _send(self, to: Destination, shown: str, message: Message, job_id: str) -> None:
        """Send a message to another Redis. `shown`: the name of the destination, as messages have it."""
        put_off = self._put_off[to.server]
        try:
            await self._servers[to.server].send(Call(_command(message, job_id), raw, near=message.name))
        except StoreError as error:
            what = f"the message to {to.kind} {shown} of {to.server}"
            if error.kind == FULL:
                raise Snooze(put_off.refused(), f"{what}: its memory is full: raise `maxmemory`") from None
            why = "the key has another type" if error.kind == "wrongtype" else error
            raise RetryLater(None, f"{what}: {why}") from None
        put_off.accepted()


def _broker(name: str, url: str) -> Broker:
    try:
        from evsched.targets.broker import Broker
    except ImportError as error:
        raise ConfigError("messages to AMQP brokers need a library: pip install 'evsched[amqp]'") from error
    return Broker(name, url)


def _check_slot(to: Destination, shown: str, queue: str) -> None:
    """Refuse a key that the script that ends the run cannot reach: a script reaches one slot.

    Raises:
        GiveUp
    """
    if to.kind != "channel" and slot_of(to.name) != slot_of(keys.root(queue)):
        raise GiveUp(
            f"{to.kind} {shown} is in another slot of the Redis Cluster than queue {queue}: give its name the "
            f"hash tag of the queue, such as {to.kind}:{{{queue}}}:NAME"
        )


def _command(message: Message, job_id: str) -> tuple[Word, ...]:
    """Return the command that sends a message; lua/forward.lua has the same."""
    match message.into:
        case "stream":
            kept = () if message.most is None else ("MAXLEN", "~", message.most)
            return ("XADD", message.name, *kept, "*", "id", job_id, "message", message.text)
        case "channel":
            return ("PUBLISH", message.name, message.text)
        case "left":
            return ("LPUSH", message.name, message.text)
        case "right":
            return ("RPUSH", message.name, message.text)
