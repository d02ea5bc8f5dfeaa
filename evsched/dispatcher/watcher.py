"""Keyspace events: the subscription to them, and how a dispatcher does without it in a flood.

A subscription fails in three ways, each of which is noticed. The connection is closed: `Watcher` opens it again, and
all queues are checked after the confirmation. It is half open, or Redis sends no events: `Proof` finds both.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal, Protocol

from msgspec import structs

from evsched import keys, process_events
from evsched.config import Config
from evsched.dispatcher.dispatch_loop import DispatchLoop
from evsched.dispatcher.timing import Proof
from evsched.errors import StoreError
from evsched.runtime.loops import WHOLE, NodePart, Runtime
from evsched.runtime.reconnect import Losses, Reconnect
from evsched.store import server
from evsched.transport import address
from evsched.transport.subscription import Subscription

FLAGS: Final = "Kzg"
"""K: the channel is named after the key. z: sorted set commands. g: commands of any type (RENAME, COPY, RESTORE)."""


def missing_flags(flags: str) -> set[str]:
    """Return the flags that notify-keyspace-events lacks. A stands for all kinds of events."""
    return set(FLAGS) - set(flags) - (set("zg") if "A" in flags else set())


class Poller(Protocol):
    """Polls the queues while no events of schedules arrive."""

    @property
    def count(self) -> int:
        """How many queues it polls."""
        ...

    def poll(self) -> None:
        """Poll from now on. Called again when events arrive for a sample, because events were missed before it."""
        ...

    def look(self) -> None:
        """Check every queue and poll no more: all later events arrive."""
        ...


class SubscriptionListener(Poller, Protocol):
    """Handles the other events, and gaps in the subscription."""

    def changed(self, queue: str, key: str) -> None:
        """Handle a change of a key that a duty looks after."""
        ...


Topic = Literal["schedule", "duty", "gate", "canary event", "canary message", "foreign"]

_REMOVALS: Final = frozenset(
    (b"zrem", b"del", b"zremrangebyscore", b"zremrangebyrank", b"zremrangebylex", b"zpopmin", b"zpopmax")
)
"""Events that bring no due nearer. The last job that leaves a schedule causes `del` too."""

_MOVES: Final = frozenset((b"zrem", b"zremrangebyrank"))
"""The removals that dispatchers cause."""

_CHANNELS: Final = 1000
"""Names of channels whose meaning is remembered, so that the messages of a flood are read quickly."""


class EventChannels:
    """The channels to subscribe to, and the meaning of a message on each."""

    def __init__(
        self, config: Config, dispatcher: str, part: NodePart = WHOLE, duties: Sequence[str] = ("recurrences",)
    ) -> None:
        db = address.parse(config.url).db
        names = config.queues or ("*",)
        self.duties = {f"}}:{key}".encode(): key for key in duties}
        """The keys that duties look after, by how the names of their channels end."""
        watched = [keys.root(name) + key for key in ("schedule", *duties, "canary") for name in names]
        channels = [keys.events(db, key) for key in watched]
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

    def _read(self, channel: bytes) -> tuple[Topic, str]:
        """Return the topic of a channel and its queue, '' if it has none."""
        if channel.endswith(b"}:schedule"):
            return self._of("schedule", channel[self._prefix :])
        if self.duty_of(channel) is not None:
            return self._of("duty", channel[self._prefix :])
        if channel.endswith(b"}:gate"):
            return self._of("gate", channel)
        return ("canary event" if channel.startswith(b"__keyspace@") else "canary message"), ""

    def duty_of(self, channel: bytes) -> str | None:
        """Return the key that a channel is about, if a duty looks after it."""
        return self.duties.get(channel[channel.rfind(b"}") :])

    def _of(self, kind: Topic, key: bytes) -> tuple[Topic, str]:
        found = keys.parse(key)
        # In a cluster, every node passes on all published messages, but only one has the queue.
        return ("foreign", "") if found is None or not self._owns(found[0]) else (kind, found[0])


class Watcher:
    """Keeps the subscription alive, and passes the events on to the listeners."""

    def __init__(
        self,
        runtime: Runtime,
        proof: Proof,
        loop: DispatchLoop,
        listener: SubscriptionListener,
        duties: Sequence[str],
    ) -> None:
        self._runtime = runtime
        self._proof = proof
        self._loop = loop
        self._listener = listener
        self._names = dict.fromkeys(runtime.config.queues)
        """The queues that are subscribed to by name; none = all are, by patterns."""
        self._channels = EventChannels(runtime.config, proof.name, runtime.part, duties)
        self._subscription: Subscription | None = None
        self._reconnect = Reconnect("subscription", runtime.emit)
        self.pulse = self._reconnect.pulse
        self._losses = Losses()
        self._cut = False
        """The watcher closed the connection itself, and has emitted `SubscriptionLost`."""

    def _cut_silent(self, subscription: Subscription) -> None:
        self._cut = True
        timeout = self._runtime.times.reply_timeout
        self._runtime.emit(process_events.SubscriptionLost(reason=f"silent for {timeout:g} s after a canary"))
        subscription.cut()

    def watch(self, queue: str) -> None:
        """Subscribe to the events of a queue too: it is a shard of a named queue that has more of them now."""
        if not self._names or queue in self._names:
            return
        self._names[queue] = None
        config = structs.replace(self._runtime.config, queues=tuple(self._names))
        before = self._channels
        self._channels = EventChannels(config, self._proof.name, self._runtime.part, [*before.duties.values()])
        if self._subscription is not None:
            self._subscribe_more(self._subscription, before)

    def _subscribe_more(self, subscription: Subscription, before: EventChannels) -> None:
        more = [name for name in self._channels.names if name not in before.names]
        # Events before the confirmation were missed.
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
            self._runtime.emit(process_events.Subscribed(again=again))
            self._listener.look()
            try:
                await self._listen(subscription)
            except StoreError as error:
                # One connection was lost. Whether Redis is down is for the next one to find out.
                self._runtime.emit(process_events.RedisFailed(kind=error.kind))
                if not self._cut:
                    self._runtime.emit(process_events.SubscriptionLost(reason=str(error)))
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
                if message in _MOVES:
                    self._loop.removed(queue)
                elif message not in _REMOVALS:
                    self._loop.changed(queue)
        elif kind == "duty" and message not in _REMOVALS:
            self._listener.changed(queue, self._channels.duty_of(channel) or "")
        elif kind == "gate":
            self._loop.opens(queue, _read_moment(message))
        elif kind == "canary event":
            self._proof.event_came = True
        elif kind == "canary message":
            self._proof.message_came()
            self._loop.proved()

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


_MANY: Final = 150

_WITHIN: Final = 0.1
"""This many events for each queue within this many seconds are a flood: far more than sparse jobs cause, and less than
2,000 a second. For each queue, because each is polled: with many queues, that costs more than a few thousand events."""

_DEAF: Final = (0.5, 1.0)
"""Seconds without events before the next sample, which may cost Redis hundreds of messages to each dispatcher. At
random, because the samples of many dispatchers at once would keep Redis busy."""

_BITE: Final = 0.005
"""Seconds between two reads during a sample, which only counts events: one read costs little more than one message."""


class Flood:
    """In a flood of events of schedules, has the dispatcher poll the queues instead of receiving the events.

    A client that schedules thousands of jobs a second for a later time causes as many events. Redis would send each of
    them to every dispatcher, which costs both more than reading the nearest due every few milliseconds. Measured with
    eight dispatchers and 2,000 such jobs a second, one at a time: without this, Redis uses twice the CPU time, and each
    dispatcher four times; with 50,000 in batches, 1.5 and six times. Network drivers disable interrupts under load for
    the same reason.

        calm ──(many events)──▶ deaf ──(a while)──▶ sampling ──(few events)──▶ calm
                                 ▲                     │
                                 └────(many events)────┘

    Only the events on these patterns and channels stop. All others, and the messages about gates and canaries, arrive
    all the time.
    """

    def __init__(self, subscription: Subscription, patterns: list[str], channels: list[str], poller: Poller) -> None:
        self._subscription = subscription
        self._patterns = patterns
        self._channels = channels
        self._poller = poller
        self._deaf = False
        self._count = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def event(self) -> bool:
        """Count an event; return whether to pass it on. After the unsubscription, it is dropped."""
        if self._deaf:
            return False
        if not self._count:
            self._since = time.monotonic()
        self._count += 1
        if self._count % _MANY == 0:
            if time.monotonic() - self._since >= _WITHIN:
                self._count = 0
            elif self._count >= _MANY * self._poller.count:
                self._stop_receiving()
        return True

    def end(self) -> None:
        """Cancel the next step: it is replaced by another one, or the subscription has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _stop_receiving(self) -> None:
        self.end()
        self._deaf = True
        self._subscription.rest = 0.0
        self._poller.poll()
        self._subscription.unsubscribe(self._patterns, self._channels, self._wait)

    def _wait(self) -> None:
        self._after(random.uniform(*_DEAF), self._receive)  # noqa: S311 - no secret

    def _receive(self) -> None:
        self._subscription.subscribe(self._patterns, self._channels, self._sample)

    def _sample(self) -> None:
        """Count events from 0. Redis has confirmed the subscription, so all events from now on arrive."""
        self._deaf, self._count = False, 0
        self._subscription.rest = _BITE
        self._poller.poll()
        self._after(_WITHIN, self._calm)

    def _calm(self) -> None:
        self._subscription.rest = 0.0
        self._poller.look()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self.end()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)
