"""Loops: their common state, how a process runs them, when they wake up, and how they show that they do not hang.

A process runs each of its loops until it ends itself. So when one loop ends, it ends the others.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, Generic, TypeVar, cast

from msgspec import Struct, field, structs

from evsched.config import DEFAULT_QUEUE, Config
from evsched.errors import LoopEnded
from evsched.events import Emit
from evsched.lease import Times
from evsched.shards import Shards
from evsched.transport.address import Host
from evsched.transport.senders import BatchingSender


def _all(queue: str) -> bool:
    return True


class NodePart(Struct, frozen=True):
    """The queues that a dispatcher is for: the queues on one node of a cluster."""

    node: Host | None = None
    """None = there is no cluster."""
    owns: Callable[[str], bool] = _all
    """Whether the node has a queue."""
    idle_queue: str = DEFAULT_QUEUE
    """A queue of the node that carries the proof of the subscription while there is no other."""


WHOLE: Final = NodePart()
"""The part of the dispatcher of one Redis."""


class Runtime(Struct, frozen=True):
    """The common state of all loops of a process; passed to their constructors."""

    config: Config
    sender: BatchingSender
    emit: Emit
    part: NodePart = WHOLE
    shards: Shards = field(default_factory=Shards)
    """The known shards of queues. They grow while the process runs."""
    made_times: Times | None = None
    """See `times`. None = make them."""

    def __post_init__(self) -> None:
        if self.made_times is None:
            structs.force_setattr(self, "made_times", Times(self.config))

    @property
    def times(self) -> Times:
        """The times that follow from the lease. A copy by `structs.replace` has the same ones."""
        assert self.made_times is not None
        return self.made_times


@asynccontextmanager
async def background(*work: Coroutine[Any, Any, Any]) -> AsyncGenerator[tuple[asyncio.Task[Any], ...]]:
    """Run coroutines as tasks for the length of a block. At its end, those still running are cancelled and awaited."""
    tasks = tuple(asyncio.ensure_future(one) for one in work)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(tasks: Iterable[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """Wait until one of the tasks has ended, and return it."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done.pop()


async def run_beside(work: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> None:
    """Run `work` to its end, and `other` meanwhile. If `other` fails, `work` is cancelled and the error raised."""
    async with background(work, other) as (working, beside):
        await first_of((working, beside))
        if beside.done():
            beside.result()
        await working


async def run_loops(loops: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run loops, keyed by name, until cancelled.

    Raises:
        LoopEnded: a loop failed, returned, or was cancelled from within.
    """
    async with background(*loops.values()) as running:
        ended = await first_of(running)
    raise ended_loop(dict(zip(running, loops, strict=True))[ended], ended)


def ended_loop(name: str, loop: asyncio.Future[Any]) -> LoopEnded:
    """Return the error that says that a loop has ended, and why."""
    error = None if loop.cancelled() else loop.exception()
    if isinstance(error, LoopEnded):
        return error
    why = "it was cancelled" if loop.cancelled() else "it returned" if error is None else _describe(error)
    ended = LoopEnded(f"the {name} loop has ended: {why}; this is a bug of evsched: restart the process")
    ended.__cause__ = error
    return ended


def returned(loop: asyncio.Future[Any]) -> bool:
    return loop.done() and not loop.cancelled() and loop.exception() is None


def _describe(error: BaseException) -> str:
    """Return an error's type and message, and where it was raised."""
    if isinstance(error, BaseExceptionGroup):  # a group of tasks failed: its first error is the cause
        first: BaseException = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        return _describe(first)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


SLACK: Final = 15.0
"""Seconds that a pass may take: two calls that time out, both when connecting and when reading (7 s each), and a
pause."""


class Pulse:
    """Shows whether a loop hangs: the loop says when its next pass will begin, and is late if it does not.

    The health pages read it. Its methods may be called in any thread.
    """

    def __init__(self, who: str) -> None:
        self.who = who
        self._since = self._by = time.monotonic()
        self.rest()

    def expect(self, within: float = 0.0) -> None:
        """Note that a pass begins, and that the next one will begin `within` seconds."""
        self._since = time.monotonic()
        self._by = self._since + within + SLACK

    def rest(self) -> None:
        """Note that the loop waits without a limit."""
        self._by = float("inf")

    def problem(self) -> str | None:
        """Return why the loop is late; None = it is not."""
        now = time.monotonic()
        return f"the {self.who} loop has not run for {now - self._since:.0f} s" if now > self._by else None


_EARLY: Final = 0.0015
"""Seconds by which a timer may be late: a millisecond of rounding, and the time that the kernel takes to wake up."""


class Wakeup:
    """Lets one loop sleep until an exact moment, or until another task calls `ring`.

    An event loop rounds its timers to a millisecond, and uvloop's fire early. So the timer ends a little before the
    moment, and the sleeper yields to other tasks until the moment has come.
    """

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the sleep that is under way; without one, the next sleep ends as soon as it begins."""
        self._rung = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def sleep(self, until: float, roughly: float = float("inf")) -> bool:
        """Sleep until that moment of the monotonic clock; return whether `ring` ended the sleep.

        `roughly`: another moment that ends the sleep. It may be missed by a millisecond, which saves the CPU that the
        exact one costs, unless it is so near that a timer cannot tell.
        """
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        early = until - _EARLY if now + _EARLY < roughly else min(until, roughly) - _EARLY
        until, early = min(until, roughly), min(early, roughly)
        if not self._rung and early > now:
            self._sleeper = sleeper = loop.create_future()
            timer = loop.call_at(early, _wake, sleeper)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        while not self._rung and time.monotonic() < until:  # noqa: ASYNC110 - no event is this exact
            await asyncio.sleep(0)
        rung, self._rung = self._rung, False
        return rung


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


T = TypeVar("T", bound=Hashable)

_NEVER = float("inf")


class Timetable(Generic[T]):
    """When something is next to be done for each of many items. To plan, and to take the next item, costs O(log n)."""

    def __init__(self) -> None:
        self._moments: dict[T, float] = {}
        self._listed: dict[T, float] = {}
        """The moment of each item's valid entry in the heap. Other entries of the item are skipped."""
        self._heap: list[tuple[float, int, T]] = []
        self._number = count()
        """Decides between entries of one moment: the one that was added first comes first."""

    def __contains__(self, item: T) -> bool:
        return item in self._moments

    def at(self, item: T) -> float:
        """Return the moment of an item; inf = it has none."""
        return self._moments.get(item, _NEVER)

    def plan(self, item: T, at: float) -> None:
        """Set the moment of an item, instead of an earlier or a later one; inf = never."""
        if at == _NEVER:
            self.drop(item)
            return
        self._moments[item] = at
        # If the moment moves to a later time, the entry stays: `next` corrects it when it comes first.
        if at < self._listed.get(item, _NEVER):
            self._listed[item] = at
            heapq.heappush(self._heap, (at, next(self._number), item))

    def bring_forward(self, item: T, at: float) -> bool:
        """Set the moment of an item, unless it has an earlier one; return whether it was set."""
        sooner = at < self.at(item)
        if sooner:
            self.plan(item, at)
        return sooner

    def drop(self, item: T) -> None:
        self._moments.pop(item, None)

    def next(self) -> float:
        """Return the earliest moment; inf = no wait."""
        heap, moments, listed = self._heap, self._moments, self._listed
        while heap:
            at, _, item = heap[0]
            if listed.get(item) == at:
                moment = moments.get(item)
                if moment == at:
                    return at
                del listed[item]
                heapq.heappop(heap)
                if moment is not None:
                    self.plan(item, moment)
            else:
                heapq.heappop(heap)
        return _NEVER

    def take(self, until: float) -> T | None:
        """Remove and return the item whose moment is the earliest, if that is at most `until`."""
        if self.next() > until:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._moments[item], self._listed[item]
        return item
