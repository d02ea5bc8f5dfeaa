"""The keeper of batches: a loop beside each dispatcher, which does the chores of its queues when they are due.

A chore is a text in a sorted set of the queue: see lua/_batches.lua. Any keeper may do it, and do it again. It is
removed when it has been done, so none is lost with a process. Most are about batches whose home is the queue. The
others are reports of ends of jobs of the queue, which are carried to the homes of their batches. Nothing is polled: an
event says that the set has changed, and without one the loop sleeps until the first chore is due.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from evsched import events, keys
from evsched.batches import pausing
from evsched.batches.member import CODES, Member, are_there, members, with_codes
from evsched.batches.starter import Starter
from evsched.client.client import Client
from evsched.client.operations import Nodes
from evsched.client.option_values import Unique
from evsched.dispatcher.queue_rounds import QueueRounds
from evsched.errors import JobLate, JobMissing, StoreError
from evsched.jobs.job import decode, encode
from evsched.runtime.loops import Runtime
from evsched.store.batch_pauses import FORGET_AFTER, BatchPause
from evsched.store.client_calls import New
from evsched.store.server import clock
from evsched.store.store import Store

_CHORES: Final = 200
"""Chores that one step reads."""

_ENDS: Final = 2000
"""Ends that one step counts, about: some hundred microseconds of Redis's time."""

_GATHER: Final = 0.05
"""Seconds between two steps of a queue: ends that come meanwhile are counted together."""

_AGAIN: Final = 60.0
"""Seconds after which ends are carried to another server once more. If that has failed over and lost its last writes,
it gets them then."""

_LATER: Final = 5.0
"""Seconds after which a chore that was refused is tried again."""

_SLICE: Final = 64
"""Members that one call looks for, or cancels: about 2 ms of Redis's time."""

_SLICES: Final = 16
"""Slices that are cancelled in one step."""

_CALLED: Final = 86400.0
"""Seconds for which the id of a callback's job is taken, so that it is one job even if it has ended."""

_GAP: Final = 16
"""Ordinals without a report that may lie between two that are sent as one text of bytes."""

_UNNAMED: Final = "-"

_END: Final = re.compile(r"(\d{1,9})([odxcem])(?:\.(\d{1,2}))?")


class BatchKeeper:
    """Does the chores of the queues that `served()` returns."""

    key = "chores"

    def __init__(self, runtime: Runtime, served: Callable[[], list[str]], client: Client | None = None) -> None:
        self._runtime = runtime
        self._client = client or Client(runtime.config.url, runtime.shards)
        self._starter = Starter(self._client)
        self._queues = pausing.ShardFinder(self._client.store, self._client.shards)
        self._rounds = QueueRounds(
            "batches", runtime, served, runtime.times.seldom, lambda seen: seen.chores, self.step
        )
        self.pulse = self._rounds.pulse
        self._stepped: dict[str, float] = {}
        """When the last chores of queues were done, on the monotonic clock; unless they released or started nodes of a
        graph, whose ends are counted as soon as they come."""

    def look_at(self, queue: str) -> None:
        """Do the chores of a queue now, or soon after the last ones."""
        self._rounds.visit_by(queue, self._stepped.get(queue, -_GATHER) + _GATHER)

    def look_for(self, queue: str) -> None:
        """Look whether a new queue has chores."""
        self._rounds.add(queue)

    def look(self) -> None:
        """Look at all queues: events may have been missed, or Redis's clock was set."""
        self._rounds.restart()

    async def run(self) -> None:
        """Do chores until cancelled."""
        try:
            await self._rounds.run()
        finally:
            await self._client.close()

    async def step(self, queue: str) -> float:
        """Do the first chores of a queue that are due; return the seconds until the next step.

        Raises:
            StoreDown, StoreRefused: chores that were not done are still there.
        """
        store, began = self._client.store(queue), time.monotonic()
        self._stepped.pop(queue, None)
        found, now = await self._runtime.sender.send_all([store.chores(_CHORES), clock(keys.root(queue))])
        if not found:
            return float("inf")
        due = [(step, at) for step, at in found if at <= now]
        if not due:
            return min(found[0][1] - now, self._runtime.times.seldom)
        released = await self._carry_ends(store, [one for one in due if one[0].startswith("end ")], now)
        for step, _ in due:
            if not step.startswith("end "):
                await self._do(store, step, now)
        if not released and not any(step.startswith(("start ", "ripple ")) for step, _ in due):
            self._stepped[queue] = began
        return _GATHER

    async def _do(self, store: Store, step: str, now: float) -> None:
        """Do a chore of a batch, and remove it. One that is malformed is removed."""
        kind, *words = step.split(" ")
        chores = {
            "call": (9, self._call),
            "recall": (9, self._recall),
            "settle": (4, self._settle),
            "cancel": (3, self._cancel),
            "expire": (1, self._expire),
            "hold": (3, self._hold),
            "resume": (2, self._resume),
            "forget": (1, self._forget),
            "start": (2, self._start),
            "restart": (2, self._restart),
            "ripple": (2, self._ripple),
            "shed": (2, self._starter.shed),
        }
        count, do = chores.get(kind, (-1, self._forget))
        more: tuple[str, float] | None = None
        if len(words) == count and keys.NAME.fullmatch(words[0]):
            try:
                more = await do(store, now, *words)
            except (JobMissing, ValueError):
                pass  # the batch is forgotten, or it is malformed
            except (StoreError, JobLate):
                more = step, now + _LATER  # the others do not wait for it; if it is our Redis that is down, this fails
        if more is not None:
            await self._runtime.sender.send(store.add_chore(*more))
        if more is None or more[0] != step:
            await self._runtime.sender.send(store.end_chores([step]))
            self._runtime.emit(events.ChoresDone(queue=store.queue, steps=[step]))

    # Ends of jobs of this queue.

    async def _carry_ends(self, store: Store, steps: list[tuple[str, float]], now: float) -> bool:
        """Count ends at the homes of their batches, and start the nodes of graphs that they release.

        Return whether there were such nodes.
        """
        released = False
        by_home, carried, count = defaultdict[str, Reports](Reports), defaultdict[str, list[tuple[str, bool]]](list), 0
        bad = list[str]()
        for step, at in steps:
            address, _, rest = step.removeprefix("end ").partition(" ")
            home, _, batch = address.partition("/")
            said, _, text = rest.partition(" ")
            moment = _number(said)
            if moment is None or not keys.NAME.fullmatch(home) or not keys.NAME.fullmatch(batch):
                bad.append(step)
                continue
            count += by_home[home].add(batch, text)
            carried[home].append((step, at == moment))
            if count >= _ENDS:
                break
        if bad:
            await self._runtime.sender.send(store.end_chores(bad))
            self._runtime.emit(events.ChoresDone(queue=store.queue, steps=bad))
        for home, ends in by_home.items():
            try:
                counted = await self._client.send(self._client.store(home).batch_count(ends.rows()))
            except StoreError:
                if self._runtime.part.node is None:
                    raise  # there is one Redis
                await self._later(store, [step for step, _ in carried[home]], now + _LATER)
                continue
            for batch, _, starts in counted:
                for ordinals in starts.split():
                    released = True
                    await self._do(self._client.store(home), f"start {batch} {ordinals}", now)
            await self._carried(store, home, carried[home], now)
        return released

    async def _carried(self, store: Store, home: str, steps: list[tuple[str, bool]], now: float) -> None:
        """Remove ends that were counted. Those that went to another server for the first time are carried once more."""
        again = list[str]()
        if await self._is_elsewhere(home):
            again = [step for step, is_first in steps if is_first]
        if again:
            await self._runtime.sender.send(store.delay_chores(again, now + _AGAIN))
        if done := [step for step, _ in steps if step not in set(again)]:
            await self._runtime.sender.send(store.end_chores(done))
        self._runtime.emit(events.ChoresDone(queue=store.queue, steps=[step for step, _ in steps]))

    async def _is_elsewhere(self, queue: str) -> bool:
        """Return whether a queue is on another server of a cluster."""
        if self._runtime.part.node is None:
            return False
        (node,) = await self._client.perform(Nodes(near=keys.root(queue)))
        return node != self._runtime.part.node

    async def _later(self, store: Store, steps: list[str], at: float) -> None:
        """Put ends off that could not be counted: under another moment, so that they are carried twice all the same."""
        for step in steps:
            kind, address, _, rest = step.split(" ", 3)
            later = store.add_chore(f"{kind} {address} {at:.6f} {rest}", at)
            await self._runtime.sender.send_all([later, store.end_chores([step])])

    # Batches whose home is this queue. Each returns the chore that takes the place of this one, and when.

    async def _call(
        self, store: Store, now: float, batch: str, outcome: str, number: str, *counts: str
    ) -> tuple[str, float] | None:
        """Schedule the job of a callback. On another server, this is done once more, as ends are carried twice."""
        queue = await self._schedule(store, batch, outcome, number, *counts)
        if queue is not None and await self._is_elsewhere(queue):
            return f"recall {batch} {outcome} {number} {' '.join(counts)}", now + _AGAIN
        return None

    async def _recall(self, store: Store, now: float, batch: str, outcome: str, number: str, *counts: str) -> None:
        await self._schedule(store, batch, outcome, number, *counts)

    async def _schedule(self, store: Store, batch: str, outcome: str, number: str, *counts: str) -> str | None:
        """Schedule the job of a callback, unless that was done before; return its queue, None if there is none."""
        text = await self._client.send(store.batch_field(batch, f"on_{outcome}"))
        call = _decoded(text)
        queue, payload = call.get("queue"), call.get("payload")
        if not isinstance(queue, str) or not keys.NAME.fullmatch(queue) or not isinstance(payload, dict):
            return None
        names = ("total", "done", "dead", "cancelled", "expired", "stopped")
        ended = {"batch": batch, "queue": store.queue, "outcome": outcome}
        ended |= {name: int(count) for name, count in zip(names, counts, strict=True)}
        # An earlier batch of the id has called, too.
        life = await self._client.send(store.batch_life(batch))
        job_id = f"{batch}.{outcome}.{number}.{life}"[-200:]
        made = encode(payload | {"args": [ended]})
        job = New(job_id, made, call.get("priority"), call.get("group"))
        await self._client.enqueue(queue, [job], "keep", Unique(within=_CALLED))
        return queue

    async def _settle(
        self, store: Store, now: float, batch: str, first: str, last: str, token: str
    ) -> tuple[str, float] | None:
        """Look for jobs that a reservation is for and that were never enqueued. They are missing from then on.

        First their records, then the ends that are to be carried: so a job that ends meanwhile is not thought missing.
        """
        start, end = int(first), min(int(first) + _SLICE, int(last) + 1) - 1
        known = (await self._client.send(store.batch_ends(batch, start, end))).ljust(end - start + 1, b"\0")
        at = [start + i for i, byte in enumerate(known) if byte % 8 == CODES["o"]]
        lost = dict[int, str]()
        found = await self._client.run(members(store, batch, at, [0] * len(at)))
        for queue in sorted({member.queue for member in found}):
            mine = [member for member in found if member.queue == queue]
            jobs = [member for member in mine if member.batch is None]
            stores = await self._client.whole(queue)
            there = await self._client.run(are_there(stores, store, batch, jobs)) if jobs else []
            lost |= {job.ordinal: queue for job, found in zip(jobs, there, strict=True) if not found}
            for member in mine:
                address = f"{store.queue}/{batch}/{member.ordinal}"
                child = member.batch
                if child is not None and not await self._client.send(
                    self._client.store(queue).is_child(child, address)
                ):
                    lost[member.ordinal] = queue
        for queue in sorted(set(lost.values())):
            for one in await self._client.whole(queue):
                reported = await self._client.send(one.chores(0))
                if any(step.startswith(f"end {store.queue}/{batch} ") for step, _ in reported):
                    return f"settle {batch} {first} {last} {token}", now + _LATER
        if lost:
            missing = Reports()
            turns = {ordinal: known[ordinal - start] // 8 for ordinal in lost}
            missing.add(batch, " ".join(f"{ordinal}m.{turns[ordinal]}" for ordinal in sorted(lost)))
            await self._client.send(store.batch_count(missing.rows()))
        if end < int(last):
            return f"settle {batch} {end + 1} {last} {token}", now
        if token != _UNNAMED:
            await self._client.send(store.batch_add(batch, "settled", 0, confirms=token))
        return None

    async def _cancel(self, store: Store, now: float, batch: str, first: str, last: str) -> tuple[str, float] | None:
        """Cancel members that have not ended, some at a time. Then look for lost jobs.

        Also cancelled ones: a program whose first call got no reply may have enqueued such a job again.
        """
        codes, start = (CODES["o"], CODES["c"]), int(first)
        for _ in range(_SLICES):
            found = await self._client.run(with_codes(store, batch, int(last) + 1, codes, _SLICE, start))
            await self._cancel_members(f"{store.queue}/{batch}", found)
            if len(found) < _SLICE:
                return f"settle {batch} 0 {last} {_UNNAMED}", now + _LATER
            start = found[-1].ordinal + 1
        return f"cancel {batch} {start} {last}", now

    async def _cancel_members(self, batch: str, found: list[Member]) -> None:
        """Cancel what waits by one call for each queue and shard, and others one by one. `batch`: `<home>/<batch>`."""
        jobs, others = defaultdict[str, list[Member]](list), [member for member in found if member.batch is not None]
        for member in found:
            if member.batch is None:
                jobs[self._client.shards.home(member.queue, member.id)].append(member)
        for shard, some in jobs.items():
            waited = await self._client.send(self._client.store(shard).cancel_waiting([member.id for member in some]))
            others += [member for member, did in zip(some, waited, strict=True) if not did]
        for member in others:
            try:
                if (child := member.batch) is not None:
                    inner = self._client.store(member.queue)
                    if await self._client.send(inner.is_child(child, f"{batch}/{member.ordinal}")):
                        await self._client.send(inner.batch_close(child, how="cancelled"))
                else:
                    await self._client.cancel(member.queue, member.id)
            except JobMissing:
                pass  # it has ended, and its report is on its way; or it was never enqueued

    async def _start(self, store: Store, now: float, batch: str, listed: str) -> tuple[str, float] | None:
        """Enqueue the jobs of released nodes. On another server, this is done once more, as ends are carried twice."""
        queues = await self._starter.start(store, now, batch, listed)
        elsewhere = [await self._is_elsewhere(queue) for queue in sorted(queues)]
        return (f"restart {batch} {listed}", now + _AGAIN) if any(elsewhere) else None

    async def _restart(self, store: Store, now: float, batch: str, listed: str) -> None:
        await self._starter.start(store, now, batch, listed)

    async def _ripple(self, store: Store, now: float, batch: str, number: str) -> None:
        """Go on with the changes of a graph. If there is even more to do, the script leaves another such chore."""
        await self._client.send(store.batch_count([(batch, 0, b"")]))

    async def _expire(self, store: Store, now: float, batch: str) -> None:
        await self._client.run(pausing.cancel(store, self._queues, batch, "expired"))

    async def _hold(self, store: Store, now: float, batch: str, stamp: str, first: str) -> tuple[str, float] | None:
        """Apply a pause, or its end, in queues of a batch: the program that made it may have died."""
        record = await self._client.send(store.batch(batch))
        if record is None or record.stamp != int(stamp):
            return None  # a newer one has a chore of its own
        paused = BatchPause(now, record.stamp, record.paused is not None)
        applying = pausing.apply(store, self._queues, batch, paused, int(first), record.paused_why or "")
        is_more, _ = await self._client.run(applying)
        return (f"hold {batch} {stamp} {int(first) + pausing.SLICE}", now) if is_more else None

    async def _resume(self, store: Store, now: float, batch: str, stamp: str) -> None:
        """End a pause at its time, unless it was ended or replaced before."""
        await self._client.send(store.batch_pause(batch, held=False, after=0.0, seen=int(stamp)))

    async def _forget(self, store: Store, now: float, batch: str) -> tuple[str, float] | None:
        record = await self._client.send(store.batch(batch))
        if record is not None and record.finished is not None:
            if record.stamp and now < record.finished + FORGET_AFTER:
                return f"forget {batch}", record.finished + FORGET_AFTER
            if record.stamp:
                await self._client.run(pausing.forget(store, self._queues, batch, record.stamp))
            if record.nodes:
                await self._starter.forget(store, now, batch)
            for call in store.forget_batch(batch):
                await self._client.send(call)
        return None


class Reports:
    """Ends of jobs by their batches, for the batches of one home."""

    def __init__(self) -> None:
        self._of: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def add(self, batch: str, text: str) -> int:
        """Add the ends of a report; return how many. Malformed ones are left out."""
        found = self._of[batch]
        words = text.split(" ")
        for word in words:
            if (match := _END.fullmatch(word)) is not None:
                ordinal, byte = int(match[1]), CODES[match[2]] + 8 * min(int(match[3] or 0), 31)
                known = found.get(ordinal, 0)
                newer = byte // 8 - known // 8
                if newer > 0 or (newer == 0 and byte % 8 and known % 8 in (CODES["o"], CODES["m"])):
                    found[ordinal] = byte
        return len(words)

    def rows(self) -> list[tuple[str, int, bytes]]:
        """Return the rows of `batch_count`: ordinals that are near each other are in one."""
        rows = list[tuple[str, int, bytes]]()
        for batch, found in self._of.items():
            first, text = -1, bytearray()
            for ordinal in sorted(found):
                if text and ordinal - first - len(text) > _GAP:
                    rows.append((batch, first, bytes(text)))
                    text = bytearray()
                if not text:
                    first = ordinal
                text += bytes(ordinal - first - len(text)) + bytes([found[ordinal]])
            if text:
                rows.append((batch, first, bytes(text)))
        return rows


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text) else None


def _decoded(text: bytes | None) -> dict[str, Any]:
    try:
        found = decode(text or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
