"""Whether a process is alive and ready: what `/healthz` and `/readyz` answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from evsched.errors import NO_ENTRY, StoreDown, StoreRefused
from evsched.events import (
    Event,
    NotificationsMissing,
    NotificationsProven,
    Subscribed,
    SubscriptionLost,
    WorkerDraining,
)
from evsched.runtime.loops import Pulse
from evsched.store import server
from evsched.store.store import Store
from evsched.telemetry.queue_stats import DEADLINE
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender


class Readiness:
    """Alive: each loop makes progress. Ready: Redis serves, and a dispatcher receives keyspace events."""

    def __init__(self, sender: BatchingSender) -> None:
        self._sender = sender
        self._pulses: list[Callable[[], list[Pulse]]] = []
        self._loops: list[tuple[str, Callable[[], str | None]]] = []
        """One queue of each kind of loop, and a function that returns why its last passes failed, or None."""
        self._others: list[Callable[[], str | None]] = []
        self._subscribes = False
        self._unproven: str | None = "whether keyspace events arrive is not tested yet"
        self._unsubscribed: str | None = None
        self._draining = False

    def on_event(self, event: Event) -> None:
        """Note whether the subscription works, and whether the process drains."""
        if isinstance(event, WorkerDraining):
            self._draining = True
        elif isinstance(event, NotificationsProven):
            self._unproven = None
        elif isinstance(event, NotificationsMissing):
            self._unproven = f"Redis sends no keyspace events: {event.mend}"
        elif isinstance(event, SubscriptionLost):
            self._unsubscribed = f"the subscription is lost: {event.reason}"
        elif isinstance(event, Subscribed):
            self._unsubscribed = None

    def watch(self, pulses: Callable[[], list[Pulse]]) -> None:
        """Require these loops to make progress."""
        self._pulses.append(pulses)

    def require(self, queue: str, failure: Callable[[], str | None], *, subscribes: bool = False) -> None:
        """Be ready only if Redis serves `queue`, and `failure()` is None. `subscribes`: the events must arrive too."""
        self._loops.append((queue, failure))
        self._subscribes = self._subscribes or subscribes

    def require_other(self, problem: Callable[[], str | None]) -> None:
        """Be ready only if `problem()` is None too: it is not about Redis."""
        self._others.append(problem)

    def why_not_alive(self) -> str | None:
        """Return which loop hangs; None if none does."""
        return next((hung for pulses in self._pulses for pulse in pulses() if (hung := pulse.problem())), None)

    async def why_not_ready(self) -> str | None:
        """Return why the process is not ready; None if it is."""
        if self._draining:
            return "draining: the process was asked to stop"
        if not self._loops:
            return "the process is starting"
        known = self.why_not_alive() or (self._subscribes and (self._unsubscribed or self._unproven)) or None
        if known is not None:
            return known
        for queue, failure in self._loops:
            if (reason := await why_redis_does_not_serve(self._sender.send, queue, failure)) is not None:
                return reason
        return next((reason for other in self._others if (reason := other()) is not None), None)


async def why_redis_does_not_serve(
    send: Callable[[Call[Any]], Awaitable[Any]], queue: str, failure: Callable[[], str | None] = lambda: None
) -> str | None:
    """Return why Redis does not serve; None if it does. It runs a script, then checks how the last passes went."""
    try:
        async with asyncio.timeout(DEADLINE):
            await send(Store(queue).queue_stats())  # a script, so scripts run
            if await send(server.takes_no_writes(queue)):
                return "Redis is a replica: it accepts no writes"
    except StoreDown as error:
        return f"Redis does not answer: {error}"
    except StoreRefused as error:
        if error.kind in (*NO_ENTRY, "noperm"):
            return f"Redis refuses: {error}"
        # Bad data of one queue: the process is ready unless its loops fail for all queues.
    except TimeoutError:
        return f"Redis does not answer within {DEADLINE:g} s"
    refused = failure()
    return None if refused is None else f"Redis refuses: {refused}"
