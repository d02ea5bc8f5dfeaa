"""The watcher: a dispatcher's ear. It keeps the subscription to the schedules alive, and proves that it is.

Three things go wrong with subscriptions, and none of them may go unnoticed: the connection is closed (then it is built
anew, and everything is looked at after the confirmation), it is half open (then the canary does not come back), or
Redis tells no events (then the canary's message comes back, but not its keyspace event).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from evsched import events, keys
from evsched.errors import StoreError
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Losses, Reconnect
from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.transport import address
from evsched.transport.connection import Subscription

FLAGS: Final = "Kzg"
"""K: the channel is named after the key. z: sorted set commands. g: commands of any type (RENAME, COPY, RESTORE)."""


def missing_flags(flags: str) -> set[str]:
    """Return what notify-keyspace-events lacks. A stands for all kinds of events."""
    return set(FLAGS) - set(flags) - (set("zg") if "A" in flags else set())


_FLOOD: Final = 1000
_FLOOD_WITHIN: Final = 0.1
"""So many events in so many seconds are a flood: reading each of them (6 us) would cost more than looking."""

_ASIDE: Final = 0.25
"""Seconds for which the subscription is then set aside, as network drivers do with interrupts."""


class Listener(Protocol):
    """Who is told what the watcher hears."""

    def heard(self, queue: str) -> None:
        """Hear that an event may have brought a due nearer."""
        ...

    def removed(self, queue: str) -> None:
        """Hear that something was taken off the schedule."""
        ...

    def opens(self, queue: str, moment: float) -> None:
        """Hear when a gate opens, by Redis's clock; 0 = look now."""
        ...

    def recurs(self, queue: str) -> None:
        """Hear that the recurrences of a queue have changed."""
        ...

    def look(self) -> None:
        """Look at every queue: something may have been missed."""
        ...


class Watcher:
    """Hears the events of the schedules, and tells the listener."""

    def __init__(self, runtime: Runtime, dispatcher: str, listener: Listener) -> None:
        self._runtime = runtime
        self._listener = listener
        config = runtime.config
        db = address.parse(config.url).db
        names = config.queues or ("*",)
        told = [keys.events(db, key(name)) for key in (keys.schedule, keys.recurrences, keys.canary) for name in names]
        told += [keys.gate(name) for name in names]
        # An ACL compares a pattern to the letter, and a channel by its own patterns: so names are no patterns.
        self._patterns = [] if config.queues else told
        self._channels = [keys.canary_message(dispatcher), *(told if config.queues else ())]
        self._prefix = len(keys.events(db, ""))
        self._subscription: Subscription | None = None
        self._reconnect = Reconnect("subscription", runtime.emit)
        self._losses = Losses()
        self._last = 0.0
        """When anything was heard, by the monotonic clock."""
        self._new = True
        """The subscription has not been proved yet: the next step does, whatever is heard before."""
        self._proof: asyncio.TimerHandle | None = None
        self._event_came = False
        self._proven: bool | None = None
        self._mend = ""
        self._cut = False
        """The link was cut by us, and that was told."""
        self.flooded = False
        """The subscription is set aside, or was until a moment ago: look every LOOK_MOST."""

    @property
    def deaf(self) -> bool:
        """Redis was seen to tell no events."""
        return self._proven is False

    def proof_at(self) -> float:
        """Return when the next proof is wanted, by the monotonic clock: after a silence, or at once when it is new."""
        if self._subscription is None or self._proof is not None:
            return float("inf")
        return 0.0 if self._new else self._last + self._runtime.config.probe_interval

    def expect(self) -> None:
        """Note that a canary is being sent: it must be heard within the deadline."""
        if self._subscription is not None and self._proof is None:
            self._new = False
            loop = asyncio.get_running_loop()
            self._proof = loop.call_later(self._runtime.config.reply_timeout, self._silent, self._subscription)

    def unsent(self) -> None:
        """Note that no canary was sent, or that nobody knows: that nothing is heard then says nothing of the link."""
        self._end_proof()
        self._last = time.monotonic()
        self.pulse.expect(self._runtime.config.probe_interval + self._runtime.config.reply_timeout)

    def _end_proof(self) -> None:
        if self._proof is not None:
            self._proof.cancel()
            self._proof = None

    def _silent(self, subscription: Subscription) -> None:
        self._proof = None
        if subscription is self._subscription:
            self._cut = True
            self._runtime.emit(
                events.SubscriptionLost(reason=f"silent for {self._runtime.config.reply_timeout:g} s after a canary")
            )
            subscription.cut()

    async def run(self) -> None:
        """Watch until cancelled."""
        again = False
        while True:
            async with self._reconnect:
                await self._watch(again)
            again = True

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    async def _watch(self, again: bool) -> None:
        """Subscribe, and hear until the link is lost or set aside.

        Raises:
            StoreDown, StoreRefused: there is no subscription.
        """
        subscription = Subscription(self._runtime.config.url)
        self._cut, rest = False, _ASIDE
        try:
            await subscription.open(self._patterns, self._channels)
            await self._check_flags()
            self._reconnect.passed()
            self._losses.opened()
            self._subscription = subscription
            self._new = True
            if not self.flooded:
                self._runtime.emit(events.Subscribed(again=again))
            self._listener.look()
            try:
                await self._listen(subscription)
            except StoreError as error:
                # One link was cut: whether Redis is down is for the next to find out.
                self._runtime.emit(events.RedisFailed(kind=error.kind))
                if not self._cut:
                    self._runtime.emit(events.SubscriptionLost(reason=str(error)))
                rest = self._losses.wait()
        finally:
            self._subscription = None
            self._end_proof()
            await subscription.close()
        self._listener.look()
        self.pulse.expect(rest)
        await asyncio.sleep(rest)

    async def _listen(self, subscription: Subscription) -> None:
        """Hear until the connection is cut, or a flood of events makes it cheaper not to."""
        calm = asyncio.get_running_loop().call_later(_FLOOD_WITHIN, self._calm) if self.flooded else None
        count, since = 0, time.monotonic()
        self.pulse.expect(self._runtime.config.probe_interval + self._runtime.config.reply_timeout)
        try:
            async for channel, message in subscription.messages():
                self._last = time.monotonic()
                self.pulse.expect(self._runtime.config.probe_interval + self._runtime.config.reply_timeout)
                self._hear(channel, message)
                count += 1
                if count == _FLOOD:
                    if self._last - since < _FLOOD_WITHIN:
                        self.flooded = True
                        return
                    count, since = 0, self._last
        finally:
            if calm is not None:
                calm.cancel()

    def _calm(self) -> None:
        """End a flood: what was not heard meanwhile is looked for once more."""
        self.flooded = False
        self._listener.look()

    def _hear(self, channel: bytes, message: bytes) -> None:
        if channel.endswith(b"}:schedule"):
            # A removal, most often our own, brings no due nearer.
            self._tell(channel, self._listener.removed if message == b"zrem" else self._listener.heard)
        elif channel.endswith(b"}:recurrences"):
            self._tell(channel, self._listener.recurs)
        elif channel.endswith(b"}:gate"):
            found = keys.parse(channel)
            if found is not None:
                self._listener.opens(found[0], _moment(message))
        elif channel.startswith(b"__keyspace@"):
            self._event_came = True
        else:
            self._prove()

    def _tell(self, channel: bytes, tell: Callable[[str], None]) -> None:
        found = keys.parse(channel[self._prefix :])
        if found is not None:
            tell(found[0])

    def _prove(self) -> None:
        """Take the canary's message as the proof: its event must have come before it."""
        self._end_proof()
        came, self._event_came = self._event_came, False
        if came != self._proven:
            self._proven = came
            self._runtime.emit(events.NotificationsProven() if came else events.NotificationsMissing(mend=self._mend))

    async def _check_flags(self) -> None:
        """Set the flags where Redis lets us. They survive neither its restart nor a failover: so at each connect."""
        mend = f"CONFIG SET notify-keyspace-events {FLAGS}, and put it into redis.conf"
        try:
            flags = await self._runtime.sender.send(server.notification_flags())
            if missing := missing_flags(flags):
                await self._runtime.sender.send(server.set_notification_flags("".join(sorted({*flags, *missing}))))
            self._mend = mend
        except StoreError as error:
            self._mend = f"{mend}, as an administrator ({error})"


def _moment(message: bytes) -> float:
    """Read when a gate opens. Anybody may publish anything there: what is no time is now."""
    try:
        moment = float(message)
    except ValueError:
        return 0.0
    return moment if moment > 0 else 0.0
