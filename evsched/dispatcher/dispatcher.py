"""The dispatcher: the loops that move due jobs, and which of them each event concerns.

Dispatchers are equals: any number may run, because every step is one atomic script. A dispatcher is correct without
keyspace events; they only shorten its sleeps. In a cluster, `ClusterDispatcher` runs one for each primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from evsched import events, keys, process_events, shard_map
from evsched.dispatcher.dispatch_loop import DispatchLoop
from evsched.dispatcher.duty import Duty, MakeDuty
from evsched.dispatcher.janitor import Janitor
from evsched.dispatcher.queue_finder import QueueFinder
from evsched.dispatcher.recurring import Recurring
from evsched.dispatcher.timing import Proof, RedisClock
from evsched.dispatcher.watcher import Watcher
from evsched.errors import CannotStart, StoreError, StoreRefused
from evsched.events import Event
from evsched.runtime.loops import NodePart, Pulse, Runtime, Wakeup, run_loops
from evsched.runtime.reconnect import Reconnect
from evsched.transport.address import Host
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import Topology, slot_of

_SEARCH: Final = 5.0
"""Seconds between two searches for new queues in a flood."""


class Dispatcher:
    """Dispatches the queues that the settings name, or all that exist. `duties`: those besides the recurrences."""

    def __init__(self, runtime: Runtime, duties: Sequence[MakeDuty] = ()) -> None:
        proof = Proof(runtime)
        clock = RedisClock(runtime.emit, self._clock_jumped)
        self._emit = runtime.emit
        self._finder = QueueFinder(runtime, proof, lambda queue: self._loop.serve(queue))
        self._loop = DispatchLoop(runtime, clock, proof, self._finder, self._found)
        found: list[Duty] = [Recurring(runtime, clock, lambda: self._loop.queues)]
        found += [make(runtime, lambda: self._loop.queues) for make in duties]
        self._duties = {duty.key: duty for duty in found}
        self._watcher = Watcher(runtime, proof, self._loop, self, list(self._duties))
        self._janitor = Janitor(runtime, lambda: self._loop.queues)
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
        loops = self._loop, self._watcher, *self._duties.values(), self._finder, self._janitor
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
                **{key: duty.run() for key, duty in self._duties.items()},
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

    def changed(self, queue: str, key: str) -> None:
        """Look at a key of a queue, which has changed. Called by the watcher."""
        self._loop.serve(queue)
        self._duties[key].look_at(queue)

    def look(self) -> None:
        """Look at every queue and search for new ones. Called by the watcher."""
        self._searched = time.monotonic()
        self._look_at_all()
        self._finder.look()
        self._loop.look()

    def poll(self) -> None:
        """Look at every queue again and again, and now and then search for new ones. Called by the watcher."""
        now = time.monotonic()
        if self._searched < now - _SEARCH:
            self._searched = now
            self._finder.look()
        self._loop.poll()

    def _found(self, queue: str) -> None:
        """Have the other loops look at a new queue."""
        self._emit(events.QueueFound(queue=queue))
        self._finder.found(queue)
        self._watcher.watch(queue)
        for duty in self._duties.values():
            duty.look_for(queue)

    def _clock_jumped(self) -> None:
        """Check everything: the times that were computed before the jump are wrong."""
        self._look_at_all()
        self._loop.check_all("timer")

    def _look_at_all(self) -> None:
        for duty in self._duties.values():
            duty.look()


class _PrimaryDispatcher:
    """The dispatcher of one primary, which runs until `task` is cancelled.

    It names the node in the events about Redis.
    """

    def __init__(self, runtime: Runtime, host: Host, slots: frozenset[int], duties: Sequence[MakeDuty] = ()) -> None:
        config = runtime.config
        owned = tuple(queue for queue in config.queues if slot_of(keys.root(queue)) in slots)
        self.slots = slots
        self.sender = BatchingSender(config.url, node=host)
        self._emit_on = runtime.emit
        self._at = f"at {host[0]}:{host[1]}"
        self._down: dict[str, float] = {}
        """Who reported that the node is down, and when."""
        self.idle_queue = _idle_queue(slots)
        part = NodePart(host, lambda queue: slot_of(keys.root(queue)) in slots, self.idle_queue)
        mine = structs.replace(
            runtime,
            config=structs.replace(config, queues=owned),
            sender=self.sender,
            emit=self._emit,
            part=part,
        )
        self.dispatcher = Dispatcher(mine, duties)
        self.task = asyncio.create_task(self._run())

    def _emit(self, event: Event) -> None:
        if isinstance(event, process_events.RedisDown | process_events.RedisUp):
            if isinstance(event, process_events.RedisDown):
                self._down[event.who] = time.monotonic()
            else:
                self._down.pop(event.who, None)
            event = structs.replace(event, who=f"{event.who} {self._at}")
        self._emit_on(event)

    async def _run(self) -> None:
        try:
            await self.dispatcher.find_queues()
            await self.dispatcher.run()
        finally:
            # Other dispatchers have the queues of this node now, or it has none.
            for who, since in self._down.items():
                seconds = time.monotonic() - since
                self._emit_on(process_events.NodeReleased(who=f"{who} {self._at}", seconds=seconds))
            await self.sender.close()


def _idle_queue(slots: frozenset[int]) -> str:
    """Return a name in one of the slots for a queue that nobody uses."""
    return next(name for number in range(10**6) if slot_of(keys.root(name := f"evsched-idle-{number}")) in slots)


class ClusterDispatcher:
    """Runs a dispatcher for each primary that has slots of the queues to serve.

    Keyspace events stay on their node, clocks differ, and a node that is down must not hold up the others. So each
    node has a dispatcher of its own, which treats it as a Redis of its own. When slots or primaries move, the
    dispatchers of the nodes concerned are started again.
    """

    def __init__(self, runtime: Runtime, topology: Topology, duties: Sequence[MakeDuty] = ()) -> None:
        self._runtime = runtime
        self._duties = duties
        self._topology = topology
        self._nodes: dict[Host, _PrimaryDispatcher] = {}
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("topology", runtime.emit)

    @property
    def queues(self) -> list[str]:
        """The queues that are dispatched, without the idle queue of each node."""
        nodes = self._nodes.values()
        return sorted({queue for node in nodes for queue in node.dispatcher.queues if queue != node.idle_queue})

    @property
    def pulses(self) -> list[Pulse]:
        return [self._reconnect.pulse, *(pulse for node in self._nodes.values() for pulse in node.dispatcher.pulses)]

    def problem(self) -> str | None:
        """Return why no queue is dispatched; None = at least one node's are."""
        problems = [node.dispatcher.problem() for node in self._nodes.values()]
        return self._reconnect.reason or (problems[0] if problems and all(problems) else None)

    def on_event(self, event: Event) -> None:
        """Pass an event on to the dispatchers. After `ShardsFound`, the nodes to serve are determined again."""
        if isinstance(event, process_events.ShardsFound):
            self._wakeup.ring()
        for node in self._nodes.values():
            node.dispatcher.on_event(event)

    async def run(self) -> None:
        """Dispatch until cancelled.

        Raises:
            LoopEnded
        """
        await run_loops({"topology": self._follow(), "shards": self._find_shards()})

    async def _follow(self) -> None:
        """Run a dispatcher for each primary, as the slots are at the time."""
        loop = asyncio.get_running_loop()

        def ring() -> None:
            loop.call_soon_threadsafe(self._wakeup.ring)

        end = self._topology.listen(ring)
        try:
            while True:
                async with self._reconnect:
                    await self._adapt()
                if self._reconnect.failures:
                    continue
                self._reconnect.pulse.expect(self._runtime.times.safety_cap)
                await self._rest()
        finally:
            end()
            await self._stop(list(self._nodes))

    async def _find_shards(self) -> None:
        """Search the nodes for shards of named queues, as often as for queues, while the numbers cannot be read."""
        while True:
            if self._runtime.config.queues and not (
                self._runtime.shards.learned or await shard_map.learn(self._runtime)
            ):
                with contextlib.suppress(StoreError):  # it concerns the other loop as well, which reports it
                    nodes = await self._topology.primaries()
                    await asyncio.gather(*(shard_map.find(self._runtime, node, self._wakeup.ring) for node in nodes))
            await asyncio.sleep(self._runtime.times.safety_cap * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    async def _adapt(self) -> None:
        """Run a dispatcher for each primary, as the slots are now, and the shards of the queues that are named."""
        slots = defaultdict[Host, set[int]](set)
        queues = tuple(shard_map.named(self._runtime))
        named = {slot_of(keys.root(queue)) for queue in queues}
        for slot, host in enumerate(await self._topology.owners()):
            if host is not None and (not named or slot in named):
                slots[host].add(slot)
        wanted = {host: frozenset(found) for host, found in slots.items()}
        await self._stop([host for host, node in self._nodes.items() if wanted.get(host) != node.slots])
        config = structs.replace(self._runtime.config, queues=queues)
        for host, found in wanted.items():
            if host not in self._nodes:
                mine = structs.replace(self._runtime, config=config)
                node = _PrimaryDispatcher(mine, host, found, self._duties)
                self._nodes[host] = node
                node.task.add_done_callback(lambda _: self._wakeup.ring())

    async def _rest(self) -> None:
        """Wait until the topology is out of date, a dispatcher has ended, or the safety cap has passed."""
        if not await self._wakeup.sleep(time.monotonic() + self._runtime.times.safety_cap):
            self._topology.outdated()
        for node in self._nodes.values():
            if node.task.done():
                node.task.result()

    async def _stop(self, hosts: list[Host]) -> None:
        tasks = [self._nodes.pop(host).task for host in hosts]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
