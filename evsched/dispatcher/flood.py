"""In a flood of events of schedules, a dispatcher stops receiving them and polls the queues until the flood is over.

A client that schedules thousands of jobs a second for a later time causes as many events. Redis would send each of them
to every dispatcher, which costs both more than reading the nearest due every few milliseconds. Network drivers disable
interrupts under load for the same reason.

    calm ──(many events)──▶ deaf ──(a while)──▶ sampling ──(few events)──▶ calm
                             ▲                     │
                             └────(many events)────┘

Other events, and the messages about gates and canaries, arrive all the time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

from evsched.transport.subscription import Subscription

_MANY: Final = 150
_WITHIN: Final = 0.1
"""So many events for each queue in so many seconds are a flood: far more than sparse jobs cause, and less than 2,000 a
second. For each queue, because each is polled: with many queues, that costs more than a few thousand events."""

_DEAF: Final = (0.75, 2.0)
"""Seconds without events before the next sample, which may cost Redis hundreds of messages to each dispatcher. At
random, because the samples of many dispatchers at once would keep Redis busy."""

_BITE: Final = 0.005
"""Seconds between two reads during a sample, which only counts events: one read costs little more than one message."""


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


class Flood:
    """Decides whether a subscription receives the events of schedules: those on these patterns and channels."""

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
        """Count an event; return whether to pass it on. Those that arrive after the unsubscription are not."""
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
        """Do nothing more, because the subscription has ended."""
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _stop_receiving(self) -> None:
        self._cancel()
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
        self._cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)
