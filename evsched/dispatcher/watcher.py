"""The watcher keeps a dispatcher's subscription to keyspace events alive, and passes the events on.

A subscription fails in three ways, each of which is noticed: the connection is closed (it is opened again, and all
queues are checked after the confirmation), it is half open, or Redis sends no events (`proof.py` finds these two).
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Final, Literal, Protocol

from msgspec import structs

from evsched import events, keys
from evsched.config import Config
from evsched.dispatcher.flood import Flood, Poller
from evsched.dispatcher.proof import Proof
from evsched.errors import StoreError
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Losses, Reconnect
from evsched.runtime.runtime import WHOLE, Part, Runtime
from evsched.store import server
from evsched.transport import address
from evsched.transport.subscription import Subscription

FLAGS: Final = "Kzg"
"""K: the channel is named after the key. z: sorted set commands. g: commands of any type (RENAME, COPY, RESTORE)."""


def missing_flags(flags: str) -> set[str]:
    """Return what notify-keyspace-events lacks. A stands for all kinds of events."""
    return set(FLAGS) - set(flags) - (set("zg") if "A" in flags else set())


class ScheduleListener(Protocol):
    """Handles the events of schedules and gates."""

    def changed(self, queue: str) -> None:
        """Handle an event that may have brought the next due nearer."""
        ...

    def removed(self, queue: str) -> None:
        """Handle the removal of a job from the schedule."""
        ...

    def opens(self, queue: str, moment: float) -> None:
        """Handle the time at which a gate opens, by Redis's clock; 0 = check now."""
        ...


class Listener(Poller, Protocol):
    """Handles the other events, and gaps in the subscription."""

    def recurs(self, queue: str) -> None:
        """Handle a change of a queue's recurrences."""
        ...


Kind = Literal["schedule", "recurrences", "gate", "canary event", "canary message", "foreign"]


_REMOVALS: Final = frozenset(
    (b"zrem", b"del", b"zremrangebyscore", b"zremrangebyrank", b"zremrangebylex", b"zpopmin", b"zpopmax")
)
"""Events that bring no due nearer. The last job that leaves a schedule causes `del` too. Dispatchers cause `zrem`."""


_CHANNELS: Final = 1000
"""Names of channels whose meaning is remembered, so that the messages of a flood are read quickly."""


class Channels:
    """What to subscribe to, and what a message on each channel is about."""

    def __init__(self, config: Config, dispatcher: str, part: Part = WHOLE) -> None:
        db = address.parse(config.url).db
        names = config.queues or ("*",)
        watched = (keys.schedule, keys.recurrences, keys.canary)
        channels = [keys.events(db, key(name)) for key in watched for name in names]
        channels += [keys.gate(name) for name in names]
        # Named queues are subscribed to by name: an ACL allows a pattern only if it contains the very same text.
        self.patterns = [] if config.queues else channels
        schedules = [keys.events(db, keys.schedule(name)) for name in names]
        self.schedules: tuple[list[str], list[str]] = ([], schedules) if config.queues else (schedules, [])
        """The patterns and the names among them that are about schedules."""
        self.names = [keys.canary_message(dispatcher), *(channels if config.queues else ())]
        self._prefix = len(keys.events(db, ""))
        self._owns = part.owns
        self.read = lru_cache(_CHANNELS)(self._read)

    def _read(self, channel: bytes) -> tuple[Kind, str]:
        """Return what a channel is about, and the queue, '' if it is about none."""
        if channel.endswith(b"}:schedule"):
            return self._of("schedule", channel[self._prefix :])
        if channel.endswith(b"}:recurrences"):
            return self._of("recurrences", channel[self._prefix :])
        if channel.endswith(b"}:gate"):
            return self._of("gate", channel)
        return ("canary event" if channel.startswith(b"__keyspace@") else "canary message"), ""

    def _of(self, kind: Kind, key: bytes) -> tuple[Kind, str]:
        found = keys.parse(key)
        # In a cluster every node passes on what is published, but only one has the queue.
        return ("foreign", "") if found is None or not self._owns(found[0]) else (kind, found[0])


class Watcher:
    """Subscribes to the events of the schedules, and calls the listeners."""

    def __init__(
        self, runtime: Runtime, dispatcher: str, proof: Proof, schedules: ScheduleListener, listener: Listener
    ) -> None:
        self._runtime = runtime
        self._proof = proof
        self._schedules = schedules
        self._listener = listener
        self._dispatcher = dispatcher
        self._names = dict.fromkeys(runtime.config.queues)
        """The queues that are subscribed to by name; none = all are, by patterns."""
        self._channels = Channels(runtime.config, dispatcher, runtime.part)
        self._subscription: Subscription | None = None
        self._reconnect = Reconnect("subscription", runtime.emit)
        self._losses = Losses()
        self._cut = False
        """The watcher closed the connection itself, and has emitted `SubscriptionLost`."""

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    def _cut_silent(self, subscription: Subscription) -> None:
        self._cut = True
        timeout = self._runtime.times.reply_timeout
        self._runtime.emit(events.SubscriptionLost(reason=f"silent for {timeout:g} s after a canary"))
        subscription.cut()

    def watch(self, queue: str) -> None:
        """Subscribe to the events of a queue too: it is a shard of a named queue that has more of them now."""
        if not self._names or queue in self._names:
            return
        self._names[queue] = None
        config = structs.replace(self._runtime.config, queues=tuple(self._names))
        before, self._channels = self._channels, Channels(config, self._dispatcher, self._runtime.part)
        if self._subscription is not None:
            self._subscribe_more(self._subscription, before)

    def _subscribe_more(self, subscription: Subscription, before: Channels) -> None:
        more = [name for name in self._channels.names if name not in before.names]
        # What came before the confirmation was missed.
        subscription.subscribe([], more, self._listener.look)

    async def run(self) -> None:
        """Watch until cancelled."""
        again = False
        while True:
            async with self._reconnect:
                await self._watch(again)
            again = True

    async def _watch(self, again: bool) -> None:
        """Subscribe, and pass events on until the connection is lost.

        Raises:
            StoreDown, StoreRefused: there is no subscription.
        """
        subscription = Subscription(self._runtime.config.url, node=self._runtime.part.node)
        self._cut = False
        try:
            channels = self._channels
            await subscription.open(channels.patterns, channels.names)
            self._subscription = subscription
            if self._channels is not channels:
                self._subscribe_more(subscription, channels)
            await self._check_flags()
            self._reconnect.passed()
            self._losses.opened()
            self._proof.begin(self.pulse, lambda: self._cut_silent(subscription))
            self._runtime.emit(events.Subscribed(again=again))
            self._listener.look()
            try:
                await self._listen(subscription)
            except StoreError as error:
                # One connection was lost. Whether Redis is down is for the next one to find out.
                self._runtime.emit(events.RedisFailed(kind=error.kind))
                if not self._cut:
                    self._runtime.emit(events.SubscriptionLost(reason=str(error)))
        finally:
            self._proof.end()
            self._subscription = None
            await subscription.close()
        self._listener.look()
        rest = self._losses.wait()
        self.pulse.expect(rest)
        await asyncio.sleep(rest)

    async def _listen(self, subscription: Subscription) -> None:
        """Pass messages on until the connection is lost.

        Raises:
            StoreDown
        """
        flood = Flood(subscription, *self._channels.schedules, self._listener)
        self._proof.await_message()
        try:
            async for channel, message in subscription.messages():
                self._proof.received()
                self._pass_on(channel, message, flood)
        finally:
            flood.end()

    def _pass_on(self, channel: bytes, message: bytes, flood: Flood) -> None:
        kind, queue = self._channels.read(channel)
        if kind == "schedule":
            if flood.event():
                if message == b"zrem":
                    self._schedules.removed(queue)
                elif message not in _REMOVALS:
                    self._schedules.changed(queue)
        elif kind == "recurrences":
            self._listener.recurs(queue)
        elif kind == "gate":
            self._schedules.opens(queue, _read_moment(message))
        elif kind == "canary event":
            self._proof.event_came()
        elif kind == "canary message":
            self._proof.message_came()

    async def _check_flags(self) -> None:
        """Set the flags if Redis allows it. They survive neither a restart nor a failover, so at each connect."""
        mend = f"CONFIG SET notify-keyspace-events {FLAGS}, and put it into redis.conf"
        try:
            flags = await self._runtime.sender.send(server.notification_flags())
            if missing := missing_flags(flags):
                wanted = "".join(sorted({*flags, *missing}))
                await self._runtime.sender.send(server.set_notification_flags(wanted))
            self._proof.mend = mend
        except StoreError as error:
            self._proof.mend = f"{mend}, as an administrator ({error})"


def _read_moment(message: bytes) -> float:
    """Read when a gate opens. Anybody may publish there: a message that is not a time means now."""
    try:
        moment = float(message)
    except ValueError:
        return 0.0
    return moment if moment > 0 else 0.0
