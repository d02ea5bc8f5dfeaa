"""What must hold in each state of a scene, and after recovery from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final

from evsched.jobs.job import Done
from evsched.transport.call import Call
from tests.interleavings.processes import CAP, SIGNAL, Handlers
from tests.interleavings.releases import HANDED_BACK, LEASE, STORE, THIS
from tests.interleavings.search import State
from tests.interleavings.server import ROOT, Clock, SavedRedis, Snapshot, unix
from tests.support.snapshot import light_fields

RECORD: Final = "a"
"""The id of the job with a record."""
PAYLOAD: Final = '{"task":"t","reply":true}'
INLINE_PAYLOAD: Final = '{"task":"i","reply":true}'
INLINE: Final = hashlib.sha1(INLINE_PAYLOAD.encode()).hexdigest()
"""The id of the job whose payload is the member of the schedule."""
SECOND_PAYLOAD: Final = '{"task":"i","reply":true,"args":[2]}'
SECOND: Final = hashlib.sha1(SECOND_PAYLOAD.encode()).hexdigest()
"""The id of another one."""
MEMBERS: Final = {INLINE: INLINE_PAYLOAD, SECOND: SECOND_PAYLOAD}
"""The inline jobs by their ids."""

_REQUEUE: Final = re.compile(r"requeue (\w) b'([^']+)'")
"""The worker and the lease of a call by which its jobs are taken."""

_CALL: Final = re.compile(r": (?:start|complete|retry|snooze|bury|requeue) (?P<worker>\w) ")
_TAKEN: Final = " died"
"""In a call by which a janitor takes the jobs of a worker."""

_ROUNDS: Final = 4
"""Dispatches and starts of a recovery: a job may have two attempts left, a next job of its id, and a hook's job."""


@dataclass(frozen=True)
class Rules:
    """What a scene's processes do that the rules depend on."""

    handlers: Handlers = field(default_factory=Handlers)
    jobs: frozenset[str] = frozenset({RECORD, INLINE})
    """Ids of the jobs that exist from the start."""
    again: frozenset[str] = frozenset()
    """Ids that are scheduled again: they may be on the schedule besides another place, and end twice."""
    cancelled: frozenset[str] = frozenset()
    """Ids that are cancelled: their jobs may be gone."""
    limited: Callable[[list[str]], bool] | None = None
    """Whether jobs with these ids may be in flight together; None = there is no limit."""
    limit: str | None = None
    """A limit of one job at a time for all jobs, which is set and removed meanwhile: those that passed before stay."""
    alone: str | None = None
    """Of the ids that begin with this, one may be in flight at a time: occurrences that do not overlap."""
    old: frozenset[str] = frozenset()
    """The processes of the previous release."""
    history: bool = True
    """Whether each end is in the history: the previous release has none."""

    def check(self, before: State | None, state: State, step: str) -> str | None:
        """Return what is wrong in a state, or in the step that led to it."""
        snapshot = state.snapshot
        for job in self.jobs | _recorded(snapshot):
            wrong = self._check_job(state, job)
            if wrong:
                return f"{_short(job)} {wrong}"
        return self._check_step(before, state, step) or self._check_gate(snapshot)

    def excuse(self, before: State, state: State, step: str) -> bool:
        """Return whether a process of the previous release does harm that docs/upgrade.md describes.

        The calls of its worker name no run. So one that arrives late, or after its lease has ended, reaches a newer run
        of the same job in the same worker. A cancelled job that it ends has no reply. And its dispatcher does not see
        that a worker without a lease holds an occurrence.
        """
        if not self.old:
            return False
        called = _CALL.search(step)
        worker = called["worker"] if called else ""
        if called and ("janitor" if _TAKEN in step else worker) in self.old:
            held = f"processing:{worker}"
            unfenced = worker in self.old and _TAKEN not in step and (step.startswith("late") or HANDED_BACK in step)
            for job in {*before.snapshot.items(held)} - {*state.snapshot.items(held)}:
                cancelled = _record(state.snapshot, job).get("outcome") == "cancelled"
                if cancelled or (unfenced and state.noted(f"begin {job}") > state.noted(f"end {job}")):
                    return True
        if self.alone is None or not {"dispatcher", "janitor"} & self.old or not step.startswith("dispatcher"):
            return False
        hidden = [worker for worker in ("U", "V") if worker not in state.snapshot.pairs("leases")]
        return any(job.startswith(self.alone) for name in hidden for job in state.snapshot.items(f"processing:{name}"))

    def _check_job(self, state: State, job: str) -> str | None:
        snapshot = state.snapshot
        record, found = _record(snapshot, job), _places(snapshot, job)
        begun, ended, ends = state.noted(f"begin {job}"), state.noted(f"end {job}"), len(snapshot.items(f"reply:{job}"))
        again, cancelled = job in self.again, job in self.cancelled
        if not found and not cancelled and (self.handlers.retention or not ended):
            return "is in no place"
        if not found and record and not record.get("outcome"):
            return "has a record and is in no place"
        # Scheduled again: the schedule besides one other place, and the lists of two workers before `start` decides.
        if len(found) > (2 + ("schedule" in found) if again else 1):
            return f"is in {' and '.join(found)}"
        if ends > ended and not cancelled:
            return f"has ended {ends} times, its handler {ended} times"
        if ends > 1 and not again:
            return f"has ended {ends} times"
        rows = sum(row.partition(" ")[0] == job for row in snapshot.items("history"))
        # If the id is used again, the reply of an earlier end may be gone.
        if self.history and (rows < ends or (rows > ends and not again)):
            return f"has ended {ends} times, {rows} times in the history"
        held = [name.partition(":")[2] for name in found if name.startswith("processing:")]
        attempt = int(record.get("attempt", 0))
        if attempt > begun + state.noted(f"perhaps begin {job}") + (record.get("worker", "?") in held):
            return f"is charged {attempt} attempts, {begun} began"
        if job in self.handlers.once and begun > 1:
            return f"began {begun} times, with attempts=1"
        if job in self.handlers.waits and (wrong := _check_wait(state, job, record, found)):
            return wrong
        hooks = [name for name in snapshot.keys if name.startswith(f"job:{job}.")]
        if self.handlers.hook_of(job) is not None and len(hooks) != _hooked(snapshot, job):
            return f"has ended {_hooked(snapshot, job)} times, its hook has {len(hooks)} jobs"
        return None

    def _check_step(self, before: State | None, state: State, step: str) -> str | None:
        if before is None:
            return None
        snapshot = state.snapshot
        called = _REQUEUE.search(step)
        if called and not step.endswith("[not sent]"):
            worker, lease = called.groups()
            held = f"processing:{worker}"
            if before.snapshot.pairs("leases").get(worker, "none") != lease and (
                before.snapshot.items(held) != snapshot.items(held)
            ):
                return f"requeue took the jobs of {worker}, which had renewed its lease"
        if HANDED_BACK in step:
            for job in self.jobs:
                gone = _places(before.snapshot, job) != _places(snapshot, job)
                started = "worker" in _record(before.snapshot, job)
                if gone and started and state.noted(f"begin {job}") > state.noted(f"end {job}"):
                    return f"{_short(job)} was handed back while it runs"
        for job in self.jobs if ": start " in step else ():
            earlier, later = _record(before.snapshot, job), _record(snapshot, job)
            if "finished" in earlier and later and later.get("started") != earlier.get("started"):
                return f"{_short(job)} was started again after its end"
        if self.limit is not None and self.limit in before.snapshot.pairs("limits"):
            earlier, later = _flying(before.snapshot), _flying(snapshot)
            if len(later) > max(1, len(earlier)) and self.limit in snapshot.pairs("limits"):
                return f"{' and '.join(map(_short, later))} are in flight, beyond the limit"
        left = before.snapshot.pairs("schedule").keys() - snapshot.pairs("schedule").keys()
        for member in left if "dispatch" in step else ():
            early = float(before.snapshot.pairs("schedule")[member]) - unix(state.clock)
            if early > 0:
                return f"{_short(member)} left the schedule {early:.3f} s early"
        return None

    def _check_gate(self, snapshot: Snapshot) -> str | None:
        flying = _flying(snapshot)
        waiting = [job for name in snapshot.keys if name.startswith("backlog") for job in snapshot.pairs(name)]
        together = [] if self.alone is None else [job for job in flying if job.startswith(self.alone)]
        if len(together) > 1:
            return f"{' and '.join(together)} are in flight, and may not overlap"
        counted = snapshot.pairs("in_flight")
        jobs = sorted(name for name in counted if name[0] not in "*#")
        if counted and (int(counted["*"]), jobs) != (len(flying), flying):
            return f"in_flight has {counted}, in flight are {flying}"
        if self.limit is not None and self.limit in snapshot.pairs("limits"):
            if waiting and not flying:
                return "no job is in flight, and a job stays in the backlog"
            return None
        if self.limited is None:
            if waiting and not snapshot.items("ready") and "paused" not in snapshot.pairs("limits"):
                return "the gate is open, and a job stays in the backlog"
            return None
        if not self.limited(flying):
            return f"{' and '.join(map(_short, flying))} are in flight, beyond the limit"
        for job in waiting:
            if self.limited([*flying, job]) and not snapshot.items("ready"):
                return f"the gate is open, and {_short(job)} stays in the backlog"
        return None

    # Recovery.

    def recover(self, redis: SavedRedis, states: list[State]) -> list[str | None]:
        """Recover from many states: an hour later, without faults, with one dispatcher and one new worker."""
        results: list[str | None] = ["recovery does not end"] * len(states)
        waiting = [(index, state.snapshot, self._recovery(state.snapshot), None) for index, state in enumerate(states)]
        turn = 0
        while waiting and turn < 60:
            calls = list[tuple[Snapshot, Call[Any], Clock]]()
            going = list[tuple[int, Generator[Call[Any], Any]]]()
            for index, snapshot, process, reply in waiting:
                try:
                    call = process.send(reply)
                except StopIteration:
                    results[index] = self._check_end(snapshot)
                    continue
                going.append((index, process))
                calls.append((snapshot, call, Clock(200, turn)))
            done = redis.make(calls)
            waiting = [
                (index, snapshot, process, reply)
                for (index, process), (snapshot, reply) in zip(going, done, strict=True)
            ]
            turn += 1
        return results

    def _recovery(self, snapshot: Snapshot) -> Generator[Call[Any], Any]:
        for name in ("U", "V"):
            lease = yield Call(("ZSCORE", f"{ROOT}leases", name), lambda reply: b"none" if reply is None else reply)
            while (yield STORE.requeue(name, "died", lease=lease, limit=100)).rest == "more":
                pass
        if "paused" in snapshot.pairs("limits"):
            yield STORE.resume()
        yield STORE.heartbeat("w", LEASE, fresh=True)
        for job in self.handlers.waits:
            if job in _recorded(snapshot) and not _record(snapshot, job).get("signals"):
                yield STORE.signal(job, SIGNAL, b"9")
        for turn in range(_ROUNDS):
            yield STORE.dispatch(limit=100, cap=CAP)
            for job in {*self.handlers.waits} - _recorded(snapshot) if turn == 0 else ():
                yield STORE.signal(job, SIGNAL, b"9")  # an inline job has an id from here on
            reply = yield STORE.start("w", [], hold=10, lease=LEASE, cap=CAP)
            for job in [job for job in reply.jobs if job.id in self.handlers.waits]:
                answer = yield STORE.wait_for("w", job, SIGNAL, self.handlers.waits[job.id])
                yield self.handlers.end(THIS, "w", f"{answer.how} {answer.value.decode()}", [(job.id, job.run)])
            for hooked in (True, False):
                ended = [job for job in reply.jobs if job.id not in self.handlers.waits]
                jobs = [job for job in ended if (self.handlers.hook_of(job.id) is not None) == hooked]
                hook = self.handlers.hook if hooked else None
                if jobs:
                    yield STORE.complete("w", [(job, Done(b"1", 300, True)) for job in jobs], hook)

    def _check_end(self, snapshot: Snapshot) -> str | None:
        for job in self.jobs | _recorded(snapshot):
            record = _record(snapshot, job)
            if not record and (job in self.cancelled or not self.handlers.retention):
                continue
            if not record.get("outcome"):
                return f"{_short(job)} does not end: {_places(snapshot, job)} {record}"
            if job in self.jobs and not snapshot.items(f"reply:{job}"):
                return f"{_short(job)} has ended without a reply"
        for name in ("schedule", "backlog", "ready", "suspects"):
            if name in snapshot.keys:
                return f"{name} is left: {snapshot.keys[name][2]}"
        left = [name for name in snapshot.keys if name.startswith(("processing:", "backlog:"))]
        if left or snapshot.pairs("in_flight").get("*", "0") != "0":
            return f"left: {left} {snapshot.pairs('in_flight')}"
        return None


def _check_wait(state: State, job: str, record: dict[str, str], found: list[str]) -> str | None:
    """Return what is wrong with a job that waits for a signal."""
    lines = [line.split("\t") for line in record.get("signals", "").splitlines()]
    if len(lines) > 1:
        return f"has two signals of one name: {lines}"
    if record.get("outcome") == "done" and [line[2] for line in lines] != [record["result"]]:
        return f"has ended with {record['result']}, its signals are {lines}"
    if record.get("outcome") == "dead" and lines:
        return f"is dead since no signal came, its signals are {lines}"
    due = float(dict(state.snapshot.pairs("schedule")).get(job, 0))
    if lines and "schedule" in found and due > unix(state.clock):
        return f"has got its signal, and waits for {due - unix(state.clock):g} s"
    return None


def _record(snapshot: Snapshot, job: str) -> dict[str, str]:
    """Return the record of a job, as readers see it; {} if it has none."""
    light = snapshot.pairs("light").get(job)
    return (light_fields(light) if light else {}) | snapshot.pairs(f"job:{job}")


def _recorded(snapshot: Snapshot) -> set[str]:
    """Return the ids of all jobs that have a record."""
    recorded = {name.removeprefix("job:") for name in snapshot.keys if name.startswith("job:")}
    return recorded | snapshot.pairs("light").keys()


def _lists(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the lists of jobs that passed the gate."""
    return {name: snapshot.items(name) for name in snapshot.keys if name.startswith(("ready", "processing:"))}


def _flying(snapshot: Snapshot) -> list[str]:
    """Return the jobs that passed the gate."""
    return sorted({job for jobs in _lists(snapshot).values() for job in jobs})


def _places(snapshot: Snapshot, job: str) -> list[str]:
    """Return all places that hold a job; a place twice if it holds the job twice."""
    members = (job, MEMBERS[job]) if job in MEMBERS else (job,)
    found = [name for name in ("schedule", "dead", "backlog") for member in members if member in snapshot.pairs(name)]
    found += [name for name in snapshot.keys if name.startswith("backlog:") and job in snapshot.pairs(name)]
    found += [name for name, jobs in _lists(snapshot).items() for one in jobs if one == job]
    if snapshot.pairs(f"job:{job}").get("finished") and "dead" not in found:
        found.append("finished")
    return found


def _hooked(snapshot: Snapshot, job: str) -> int:
    """Return how many ends of a job have called its hook: those that are done or dead."""
    return sum('"outcome":"cancelled"' not in reply for reply in snapshot.items(f"reply:{job}"))


def _short(job: str) -> str:
    names = {INLINE: "inline", SECOND: "second"}
    return names.get(job) or next((names[one] for one, member in MEMBERS.items() if member == job), job)
