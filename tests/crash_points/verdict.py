"""What must hold after an attack, by what handlers wrote down outside Redis and by what Redis has.

No job is lost: each one that was scheduled has ended, in the way that the scene says. None starts before it is due.
Each end has called its hook once. A run that was cut short is made again, and only such a run. The attempts of a job
are those that handlers began, but for two doubts that docs/design.md names: a run that was cut short may cost none, and
one that did not begin may cost one if the reason says so. The audit finds nothing, and no suspect is left.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from evsched import keys
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.finding import Finding
from evsched.shards import Shards
from evsched.transport.senders import BatchingSender
from tests.crash_points.scenes import Expected, Scene
from tests.crash_points.testimony import Line

_COUNTED: Final = re.compile(r"\((\d+) earlier runs? (?:is|are) counted that may not have begun\)")
_NOT_BEGUN: Final = "before its handler began"
_ONLY: Final = "its only attempt began, or was about to, and never ended"
"""Why a job of one attempt is dead after a crash: it may not have begun."""

_HOOK: Final = re.compile(r"\.(done|dead|expired)\.")
"""What the id of a hook's job has behind the id of the job that ended."""


@dataclass(frozen=True)
class Seen:
    """What an attack has left."""

    queue: str
    lines: Sequence[Line]
    killed: Collection[int]
    """The processes that were killed or stopped: that which has struck, and those that a handler has killed."""
    faulty: bool
    """A process has struck, or was to."""


def judge(redis: Any, url: str, scene: Scene, seen: Seen) -> tuple[list[str], int]:
    """Return what is wrong, and how many runs were made again."""
    parts = Shards({seen.queue: scene.shards}).all_of(seen.queue)
    records = _records(redis, parts)
    # Occurrences, and jobs whose ids are made of their arguments.
    others = {job for job in records if job not in scene.jobs and not _HOOK.search(job)}
    unnamed = {job for job in others if not job.startswith("tick@")}
    expected = dict(scene.jobs) | {job: Expected(hook=job in unnamed) for job in others}
    wrong, again = list[str](), 0
    for job, how in expected.items():
        own = _Told(how, records.get(job), job, seen)
        wrong += [f"{job} {one}" for one in own.wrong()]
        again += own.again
    wrong += [f"{line.job} started {line.due - line.at:.3f} s early" for line in _early(seen.lines)]
    wrong += [f"{one} and {other} ran together" for one, other in _overlaps(seen)]
    wrong += [
        f"{job} is a hook's job, and is not done" for job in records if _HOOK.search(job) and _fails(records[job])
    ]
    if len(unnamed) != scene.unnamed:
        wrong.append(f"there are {len(unnamed)} unique jobs, not {scene.unnamed}")
    made, missed = counts_of_recurrence(redis, seen.queue)
    # One that was on the schedule while no dispatcher ran counts as made, and then as missed.
    if made != scene.occurrences or not made - missed <= len(others - unnamed) <= made:
        wrong.append(f"the recurrence made {made} occurrences and missed {missed}, {len(others - unnamed)} have jobs")
    if "sends" in scene.jobs and (sent := redis.xlen(f"{seen.queue}-stream")) != 1:
        wrong.append(f"the message was sent {sent} times")
    suspects = [redis.hgetall(f"{keys.root(part)}suspects") for part in parts]
    wrong += [f"suspects are left: {left}" for left in suspects if left]
    wrong += [f"the audit finds {finding}" for finding in asyncio.run(_audit(url, parts))]
    return wrong, again


class _Told:
    """What is known of one job."""

    def __init__(self, how: Expected, record: dict[str, str] | None, job: str, seen: Seen) -> None:
        self._how = how
        self._record = record
        self._faulty = seen.faulty
        self._attempts = [line.attempt for line in seen.lines if (line.what, line.job) == ("start", job)]
        self._cut = len(
            {line.worker for line in seen.lines if (line.what, line.job) == ("start", job)} & {*seen.killed}
        )
        """Runs that were cut short, perhaps after the handler had returned."""
        hooks = [(line.what.split(":", 2), line.job) for line in seen.lines if line.what.startswith("hook:")]
        self._hooks = {(what[1], by) for what, by in hooks if what[2] == job}
        """The outcomes that hooks were told, and the ids of the hooks' jobs."""

    @property
    def again(self) -> int:
        """How many runs there were beyond those of a scene without a fault."""
        return max(0, len(self._attempts) - self._how.attempts - self._how.free)

    @property
    def _doubts_of_lone_run(self) -> int:
        """What a job that was suspect before the scene may be charged if its worker dies while it runs alone.

        Its doubts count then, and so does a run that was marked and did not begin.
        """
        if not self._how.doubts or not self._faulty:
            return 0
        return self._how.doubts + (0 if self._cut else 1)

    def wrong(self) -> Iterator[str]:
        """Say what is wrong with the job."""
        if self._how.outcome is None:
            # The record of a row is kept until its end is in the table.
            if self._attempts or (self._record is not None and self._record.get("outcome") != "cancelled"):
                yield f"was cancelled before it was due: {self._record}, {self._attempts}"
        elif self._record is None:
            yield "is lost"
        else:
            yield from self._wrong_end(self._record.get("outcome", ""), self._record.get("reason", ""))
            yield from self._wrong_runs(int(self._record.get("attempt", 0)), self._record.get("reason", ""))

    def _wrong_end(self, outcome: str, reason: str) -> Iterator[str]:
        given_up = self._how.only and self._faulty and outcome == "dead" and reason.startswith(_ONLY)
        if outcome != self._how.outcome and not given_up:
            yield f"has ended as {outcome!r}: {reason}"
        if self._how.hook and [told for told, _ in self._hooks] != [outcome]:
            yield f"has ended as {outcome!r}, its hook was told {sorted(self._hooks)}"

    def _wrong_runs(self, charged: int, reason: str) -> Iterator[str]:
        attempts, usual = self._attempts, self._how.attempts + self._how.free
        least = 0 if self._how.only else usual
        most = min(1, usual) if self._how.only else usual + self._cut
        if not least <= len(attempts) <= most:
            yield f"began {len(attempts)} times, not {least} to {most}: {attempts}"
        if self._how.free:
            return  # what the handler returned depends on how often it ran
        counted, before = _COUNTED.search(reason), self._doubts_of_lone_run
        doubts = before + (int(counted[1]) if counted else 0) + (_NOT_BEGUN in reason) + reason.startswith(_ONLY)
        if not len(attempts) - self._cut <= charged <= len(attempts) + doubts:
            yield f"is charged {charged} attempts, and began {len(attempts)} times: {attempts} {reason}"
        if any(not 0 <= newer - older <= 1 + before for older, newer in pairwise(sorted(attempts))):
            yield f"has a gap in its attempts: {attempts}"


def counts_of_recurrence(redis: Any, queue: str) -> tuple[int, int]:
    """Return how many occurrences were put on the schedule, and how many were missed while no dispatcher ran."""
    made, missed = redis.hmget(f"{keys.root(queue)}recurrence:tick", "made", "missed")
    return int(made or 0), int(missed or 0)


def _early(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.what == "start" and line.at < line.due]


def _overlaps(seen: Seen) -> Iterator[tuple[str, str]]:
    """Return jobs of a group with a limit of one that ran together, but for runs that were cut short at some time."""
    times = defaultdict[tuple[str, int], list[float]](list)
    for line in seen.lines:
        if line.job in ("group-1", "group-2") and line.worker not in seen.killed:
            times[line.job, line.worker].append(line.at)
    runs = sorted((min(moments), max(moments), job) for (job, _), moments in times.items())
    return ((one, other) for (_, end, one), (begin, _, other) in pairwise(runs) if begin < end)


def _fails(record: dict[str, str]) -> bool:
    return record.get("outcome") != "done"


def _records(redis: Any, parts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the records of all jobs, by their ids."""
    found = dict[str, dict[str, str]]()
    for part in parts:
        root = f"{keys.root(part)}job:"
        for key in redis.keys(f"{root}*"):
            fields = redis.hgetall(key).items()
            found[key.decode().removeprefix(root)] = {
                name.decode(): value.decode(errors="replace") for name, value in fields
            }
    return found


async def _audit(url: str, parts: Sequence[str]) -> list[Finding]:
    sender = BatchingSender(url)
    try:
        return await Audit(sender, parts, pause=0.1).run()
    finally:
        await sender.close()
