"""The dispatcher: the loops that move due jobs, and which of them each event concerns.

Dispatchers are equals: any number may run, because every step is one atomic script. A dispatcher is correct without
keyspace events; they only shorten its sleeps.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from evsched import events
from evsched.dispatcher.dispatch_loop import DispatchLoop
from evsched.dispatcher.janitor import Janitor
from evsched.dispatcher.queue_finder import QueueFinder
from evsched.dispatcher.recurring import Recurring
from evsched.dispatcher.timing import RedisClock
from evsched.dispatcher.watcher import Proof, Watcher
from evsched.errors import CannotStart, StoreRefused
from evsched.events import Event
from evsched.runtime.loops import Pulse, Runtime, run_loops
from evsched.runtime.reconnect import Reconnect

_SEARCH: Final = 5.0
"""Seconds between two searches for new queues in a flood."""


class Dispatcher:
    """Dispatches the queues that the settings name, or all that exist."""

    def __init__(self, runtime: Runtime) -> None:
        name = secrets.token_hex(8)
        proof = Proof(runtime)
        clock = RedisClock(runtime.emit, self._clock_jumped)
        self._emit = runtime.emit
        self._loop = DispatchLoop(runtime, name, clock, proof, self)
        self._watcher = Watcher(runtime, name, proof, self._loop, self)
        self._recurring = Recurring(runtime, clock, self._loop)
        self._finder = QueueFinder(runtime, proof, self._loop)
        self._janitor = Janitor(runtime, self._loop)
        self._searched = 0.0
        """When new queues were last searched because events may have been missed."""

    @property
    def queues(self) -> list[str]:
        return self._loop.queues

    @property
    def count(self) -> int:
        """How many queues there are, with the empty ones that are at rest."""
        return self._loop.count

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its loops."""
        loops = self._loop, self._watcher, self._recurring, self._finder, self._janitor
        return [loop.pulse for loop in loops]

    def problem(self) -> str | None:
        """Return why no queue is dispatched: the failure of the last steps; None = at least one queue is."""
        return self._loop.problem()

    def on_event(self, event: Event) -> None:
        """Pass an event on to the janitor. Subscribe it to the events of the process."""
        self._janitor.on_event(event)

    async def run(self) -> None:
        """Dispatch until cancelled.

        Raises:
            LoopEnded
        """
        await run_loops(
            {
                "subscription": self._watcher.run(),
                "recurring": self._recurring.run(),
                "finder": self._finder.run(),
                "janitor": self._janitor.run(),
                "dispatcher": self._loop.run(),
            }
        )

    async def find_queues(self, *, required: bool = False) -> None:
        """Find the queues that exist at the start; wait while Redis is down. Others are found while it runs.

        Raises:
            CannotStart: Redis refuses, and the queues are `required`. Otherwise the search is repeated.
        """
        reconnect, found = Reconnect("the search for queues", self._emit), False
        while not found:
            async with reconnect:
                try:
                    await self._finder.begin()
                    await self._loop.settle()
                except StoreRefused as error:
                    if required:
                        raise CannotStart(f"the queues cannot be found: {error}: name them with --queue") from None
                    raise
                found = True

    def recurs(self, queue: str) -> None:
        """Look at the recurrences of a queue. Called by the watcher."""
        self._loop.serve(queue)
        self._recurring.look_at(queue)

    def look(self) -> None:
        """Look at every queue and search for new ones. Called by the watcher."""
        self._searched = time.monotonic()
        self._recurring.look()
        self._finder.look()
        self._loop.look()

    def poll(self) -> None:
        """Look at every queue again and again, and now and then search for new ones. Called by the watcher."""
        now = time.monotonic()
        if self._searched < now - _SEARCH:
            self._searched = now
            self._finder.look()
        self._loop.poll()

    def found(self, queue: str) -> None:
        """Have the other loops look at a new queue. Called by the dispatch loop."""
        self._emit(events.QueueFound(queue=queue))
        self._finder.found(queue)
        self._watcher.watch(queue)
        self._recurring.look_for(queue)

    def rests(self, queue: str) -> None:
        self._finder.rests(queue)

    def forget(self, queues: list[str]) -> None:
        self._finder.forget(queues)

    def _clock_jumped(self) -> None:
        """Check everything: the times that were computed before the jump are wrong."""
        self._recurring.look()
        self._loop.check_all("timer")
