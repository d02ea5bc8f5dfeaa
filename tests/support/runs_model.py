"""The verbs of clients, dispatchers and workers in plain Python: a second version of their scripts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from evsched.store.client_calls import New
from tests.support.gate import STRIDE, Gate, Record, id_of, is_inline

NEWEST = 16
SHARE_LEAST, BEYOND, LATER = 4, 0.25, 1e9

P = ParamSpec("P")
T = TypeVar("T")
G = TypeVar("G", bound=Gate)


def verb(method: Callable[Concatenate[G, P], T]) -> Callable[Concatenate[G, P], T]:
    """Let a method read the limits as a script does: once in each call."""

    def one(self: G, *args: P.args, **kwargs: P.kwargs) -> T:
        self.rules = {}
        return method(self, *args, **kwargs)

    return one


class Runs(Gate):
    """A queue as dispatchers and workers see it. Each method is a verb, and returns what callers act on."""

    cancelled = 0
    """How many jobs have ended as cancelled."""
    completed = 0
    """How many jobs have ended as done."""

    def holds(self, worker: str | None, job: str) -> bool:
        return worker is not None and job in self.processing.get(worker, [])

    def is_held(self, job: str) -> bool:
        return any(job in held for held in self.processing.values())

    def is_written(self, new: New, since: float) -> bool:
        """Return whether a call sent first at `since` has written the job: it is not older, and runs not before."""
        record = self.jobs.get(new.id)
        return (
            record is not None
            and record.created is not None
            and record.created >= math.floor(since)
            and not 0 < record.started < since
            and record.payload == new.payload
            and (record.finished or new.id in self.schedule or self.waits(new.id) or self.is_held(new.id))
        )

    def has_begun(self, job: str) -> bool:
        """Return whether a job runs or has ended, even if its id waits as well."""
        record = self.jobs.get(job)
        return (record is not None and self.holds(record.worker, job)) or not (job in self.schedule or self.waits(job))

    @verb
    def enqueue(self, new: New, conflict: str, now: float, since: float | None = None) -> bool:
        if conflict == "replace":
            self._replace(new, now)
            self.admit(0, now)
            return True
        if since is not None and self.is_written(new, since):
            return True
        record = self.jobs.get(new.id)
        waits = new.id in self.schedule
        taken = record is not None and (waits or not record.finished or new.id in self.dead)
        if taken and (conflict != "unique" or waits or new.id not in self.dead):
            return conflict == "keep"
        self._replace(new, now)
        return True

    def _replace(self, new: New, now: float) -> None:
        assert new.priority is not None
        job, record = new.id, self.jobs.get(new.id, Record(finished=True))
        fresh = Record(new.priority, new.group or "", payload=new.payload, created=math.floor(now))
        waited = self.remove_waiting(job)
        self.dead.discard(job)
        self.schedule[job] = now + new.delay if new.due is None else new.due
        fetched = [worker for worker, held in self.processing.items() if job in held]
        if not record.finished and self.holds(record.worker, job):
            record.next, record.again = fresh, None
            return
        if fetched and record.due is not None and not record.finished and not waited:
            self.processing[fetched[0]].remove(job)
            self.leave(job)
        self.jobs[job] = fresh

    def schedule_raw(self, job: str, due: float, payload: bytes) -> None:
        self.jobs.setdefault(job, Record()).payload = payload
        self.schedule[job] = due

    def adopt(self, member: str) -> None:
        """Make a record of an inline job."""
        self.jobs.setdefault(id_of(member), Record()).payload = member.encode()

    def _due(self, now: float, limit: int) -> list[tuple[float, str]]:
        """Return the members that a call moves: the first ones, and the newest of other groups than the last one."""
        everything = sorted((at, member) for member, at in self.schedule.items() if at <= now)
        due, further = everything[:limit], everything[limit:]
        if len(due) < limit:
            return due
        last = due[-1][1]
        group = "" if is_inline(last) else self.jobs[last].group
        newest = [(at, member) for at, member in further[-NEWEST:] if not is_inline(member)]
        return due + [(at, job) for at, job in newest if self.jobs[job].group != group]

    @verb
    def dispatch(self, now: float, limit: int) -> None:
        places: dict[str, float] = {}
        is_ready = set(self.ready)
        for at, member in self._due(now, limit):
            self.schedule.pop(member, None)
            job = id_of(member)
            if is_inline(member):
                self.adopt(member)
                self.schedule.pop(job, None)  # one job, as if its id had been scheduled again
            record = self.jobs[job]
            if record.finished:
                self.jobs[job] = record = Record(record.priority, record.group, record.due, payload=record.payload)
                self.dead.discard(job)
            elif record.worker is not None:
                if self.holds(record.worker, job):
                    record.again = at
                    continue
                record.worker = None
            if job not in is_ready and record.parked is None:
                record.due = at
                turn = (record.priority, record.group)
                weight = self.limits.get(f"weight:{record.group}", 1) if record.group else 1
                self.last[turn] = max(self.passed.get(record.priority, 0), self.last.get(turn, 0)) + 1 / weight
                places.setdefault(job, -record.priority * STRIDE + self.last[turn])
        for job, order in places.items():
            self.backlog.setdefault(job, order)
        self.admit(0, now)

    def place_of(self, job: str) -> str | None:
        """Return where readers find the job of an id: of two places, that of its run or else the schedule."""
        record = self.jobs.get(job)
        if record is not None and self.holds(record.worker, job):
            return "processing"
        if job in self.dead and job not in self.schedule:
            return "dead"
        if job in self.schedule or job in self.moving:
            return "schedule"
        if self.waits(job):
            return "ready" if job in self.ready else "backlog"
        if record is not None and record.finished:
            return "finished"
        return "processing" if self.is_held(job) else None

    # The gate's settings.

    @verb
    def pause(self, until: float | None, now: float) -> None:
        if not self.is_paused(now):
            self.limits["paused"] = now
        self.paused_until = until
        self.return_to_backlog(self.ready)
        self.ready = []

    @verb
    def resume(self, now: float) -> None:
        self.limits.pop("paused", None)
        self.admit(0, now)

    @verb
    def limit(self, name: str, value: float | None, now: float) -> None:
        before = {kept for kept in self.limits if ":task:" in kept}
        self.limits.pop(name, None)
        if value is not None:
            self.limits[name] = value
        group = name.partition(":")[2]
        if group.startswith("task:") and value is not None and not before:
            self.in_flight = None  # counted again
        for held in self.throttled:
            if group in (held, "*"):
                self.throttled[held] = 0
        self.admit(0, now)

    # The verbs of the workers.

    def fetch(self, worker: str) -> str | None:
        self.leases.add(worker)
        if not self.ready:
            return None
        job = self.ready.pop(0)
        self.processing.setdefault(worker, []).append(job)
        return job

    def share(self, held: int, most: int) -> int:
        """Return how many of `most` jobs a worker may take that holds `held`."""
        waiting, workers = len(self.ready) + len(self.backlog), len(self.leases)
        if most <= SHARE_LEAST or workers < 2 or waiting >= most * workers:
            return most
        everything = waiting + sum(len(self.processing.get(worker, [])) for worker in self.leases)
        part = max(math.ceil(everything / workers) - held, math.ceil(BEYOND * waiting / workers))
        return min(most, max(part, SHARE_LEAST))

    @verb
    def start(
        self, worker: str, fetched: list[str], hold: int, now: float, *, ticket: int | None = None
    ) -> list[tuple[str, str]]:
        since = self.idle.pop(worker, None)
        self.seats.pop(worker, None)
        self.told.discard(worker)
        held = self.processing.setdefault(worker, [])
        ids = [job for job in fetched if job in held]
        more = self.share(len(held), hold - len(held))
        if more > 0:
            self.admit(more, now)
            moved, self.ready = self.ready[:more], self.ready[more:]
            held += moved
            ids += moved
        self.admit(0, now)
        started: list[tuple[str, str]] = []
        before = len(held)
        for job in ids:
            record = self.jobs.get(job)
            if record is None:
                held.remove(job)
                self.leave(job)
                self.jobs[job] = Record(finished=True)
                self.dead.add(job)
                continue
            if record.due is None and job in self.schedule:
                held.remove(job)
                self.leave(job)
                continue
            if record.stop and not record.finished:
                if record.worker == worker and record.begun is None:
                    self._uncount(record)
                self._abort(job)
                held.remove(job)
                self.leave(job)
                continue
            if record.worker != worker and not record.finished and self.holds(record.worker, job):
                held.remove(job)
                continue
            if record.finished:
                held.remove(job)
                self.leave(job)
                continue
            if record.worker != worker:
                record.attempt, record.worker, record.started = record.attempt + 1, worker, now
            started.append((job, record.run))
        if len(held) < before:
            self.admit(0, now)
        if held:
            self.leases.add(worker)
        if ticket is not None and not self.ready and len(held) < hold:
            place = now + LATER if held else now
            self.idle[worker] = place if started or since is None else since
            if ticket:
                self.seats[worker] = ticket
        return started

    @verb
    def decline(self, worker: str, now: float) -> None:
        self.seats.pop(worker, None)
        self.told.discard(worker)
        if self.idle.pop(worker, None) is None and self.ready:
            self.hand_over(1, now)

    def _own(self, worker: str, job: str, run: str) -> bool:
        record = self.jobs.get(job)
        return (
            record is not None
            and (record.worker, record.run, record.finished) == (worker, run, False)
            and self.holds(worker, job)
        )

    def _renew(self, job: str) -> None:
        record = self.jobs[job]
        again = record.again
        if record.next is not None:
            record.priority, record.group = record.next.priority, record.next.group
            record.payload, record.created, record.next = record.next.payload, record.next.created, None
        record.worker, record.attempt, record.again, record.stop = None, 0, None, False
        record.begun, record.error, record.deaths, record.doubts, record.due = None, None, 0, 0, None
        record.started, record.waiting, record.wait_ends = 0, False, None
        record.steps, record.signal = 0, None
        if again is not None:
            self.schedule[job] = min(again, self.schedule.get(job, again))

    def _abort(self, job: str) -> None:
        self.cancelled += 1
        if self.jobs[job].again is not None or job in self.schedule:
            self._renew(job)
        else:
            self.jobs[job].finished, self.jobs[job].error = True, None

    def _end(self, worker: str, job: str) -> None:
        self.processing[worker].remove(job)
        self.leave(job)

    @verb
    def complete(self, worker: str, job: str, run: str, now: float, *, kept: bool = True) -> bool:
        """`kept`: the record is kept for a while."""
        own = self._own(worker, job, run)
        if own:
            self._end(worker, job)
            self.cancelled += self.jobs[job].stop
            self.completed += not self.jobs[job].stop
            if self.jobs[job].again is not None or job in self.schedule:
                self._renew(job)
            elif not kept:
                del self.jobs[job]
            else:
                self.jobs[job].finished, self.jobs[job].error = True, None
        self.admit(0, now)
        return own

    @verb
    def forward(self, worker: str, job: str, run: str, now: float, *, refused: bool) -> str:
        own = self._own(worker, job, run)
        stop = own and self.jobs[job].stop
        if own and refused and not stop:
            held = self.processing[worker]
            held.append(held.pop(held.index(job)))
            self.admit(0, now)
            return "refused"
        if own and not stop:
            self.sent.append(job)
        return "own" if self.complete(worker, job, run, now) else "lost"

    @verb
    def abort(self, worker: str, job: str, run: str, now: float) -> bool:
        own = self._own(worker, job, run)
        if own:
            self._abort(job)
            self._end(worker, job)
        self.admit(0, now)
        return own

    def _send_back(
        self, worker: str, job: str, run: str, at: float, now: float, *, counts: bool, began: bool = True
    ) -> bool:
        own = self._own(worker, job, run)
        if own and self.jobs[job].stop:
            if not began:
                self._uncount(self.jobs[job])
            self._abort(job)
            self._end(worker, job)
        elif own:
            record = self.jobs[job]
            record.again = self.schedule.get(job, record.again)
            self.schedule[job] = at
            record.worker = record.begun = record.due = None
            record.waiting = False
            record.attempt = max(0, record.attempt - (not counts))
            self._end(worker, job)
            if not began:
                record.started = 0
                self.refund(self.groups_of(job), now)
        self.admit(0, now)
        return own

    def begin(self, worker: str, job: str, run: str, mark: str) -> bool:
        own = self._own(worker, job, run)
        if own:
            self.jobs[job].begun = mark
        return own

    def _convict(self, record: Record) -> None:
        record.attempt += record.doubts
        record.deaths, record.doubts = record.deaths + 1, 0

    @verb
    def retry(
        self, worker: str, job: str, run: str, at: float, now: float, *, killed: bool, error: str | None = None
    ) -> bool:
        own = self._own(worker, job, run)
        if own:
            record = self.jobs[job]
            if killed:
                self._convict(record)
                run = record.run
            else:
                record.deaths = record.doubts = 0
            record.error = error
        return self._send_back(worker, job, run, at, now, counts=True)

    @verb
    def defer(self, worker: str, job: str, run: str, at: float, now: float) -> bool:
        return self._send_back(worker, job, run, at, now, counts=False, began=False)

    @verb
    def snooze(self, worker: str, job: str, run: str, at: float, now: float, *, waits: bool = False) -> bool:
        own, record = self._own(worker, job, run), self.jobs.get(job)
        if own and record is not None:
            record.deaths = record.doubts = 0
            at = now if waits and record.signal is not None else at
        sent = self._send_back(worker, job, run, at, now, counts=False)
        if own and record is not None and waits and record.signal is None and not record.finished:
            record.waiting = self.schedule.get(job) == at and record.worker is None and record.due is None
        return sent

    def keep(self, worker: str, job: str, run: str) -> bool:
        own = self._own(worker, job, run)
        if own:
            self.jobs[job].steps += 1
        return own

    def wait_for(self, worker: str, job: str, run: str, timeout: float, now: float) -> str:
        if not self._own(worker, job, run):
            return "lost"
        record = self.jobs[job]
        if record.signal is not None:
            return "come"
        if record.wait_ends is None:
            record.wait_ends = now + timeout
        return "over" if record.wait_ends <= now else "waits"

    def signal(self, job: str, value: int, now: float) -> str:
        record = self.jobs.get(job)
        if record is None or record.finished or job in self.moving:
            return "refused"
        if record.signal is not None:
            return "known"
        if record.wait_ends is not None and record.wait_ends <= now:
            return "refused"
        record.signal = value
        if record.waiting and record.worker is None and job in self.schedule:
            self.schedule[job], record.waiting = now, False
            return "due"
        return "kept"

    @verb
    def bury(self, worker: str, job: str, run: str, now: float, *, killed: bool, error: str | None = None) -> bool:
        own = self._own(worker, job, run)
        if own:
            if killed:
                self._convict(self.jobs[job])
            if self.jobs[job].stop:
                self._abort(job)
            elif self.jobs[job].again is not None or job in self.schedule or self.waits(job):
                self._renew(job)
            else:
                self.jobs[job].finished, self.jobs[job].error = True, error
                self.dead.add(job)
            self._end(worker, job)
        self.admit(0, now)
        return own

    def _uncount(self, record: Record) -> None:
        record.attempt, record.started = max(0, record.attempt - 1), 0

    def _cut_short(self, record: Record, *, died: bool) -> None:
        begun = record.begun in ("1", "alone")
        record.error = None if begun else record.error
        if died and record.begun == "alone":
            self._convict(record)
            record.deaths = 0
        elif died:
            record.doubts += not begun and not record.deaths
            record.deaths += 1
        if not (died and begun):
            record.attempt = max(0, record.attempt - 1)
        record.worker = record.begun = None
        record.started, record.waiting = 0, False

    @verb
    def requeue(self, worker: str, limit: int, now: float, *, died: bool) -> None:
        held = self.processing.get(worker, [])
        waited = self.idle.pop(worker, None) is not None
        self.seats.pop(worker, None)
        self.told.discard(worker)
        back: list[str] = []
        listed = 0
        for job in reversed(held[-limit:]):
            record = self.jobs.get(job, Record())
            holder = record.worker
            if record.finished or (holder != worker and self.holds(holder, job)):
                pass
            elif record.stop:
                if holder is not None and record.begun is None:
                    self._uncount(record)
                self._abort(job)
                self.leave(job)
            elif job not in self.ready:
                if self.is_paused(now):
                    back.insert(0, job)
                else:
                    self.ready.insert(0, job)
                    listed += 1
                    self.enter(job)
                if holder is not None:
                    self._cut_short(record, died=died)
                    record.again = self.schedule.pop(job, record.again)
            held.remove(job)
        self.return_to_backlog(back)
        self.hand_over(listed, now)
        self.admit(0, now)
        if not held:
            self.leases.discard(worker)
            if self.ready and not waited:
                self.hand_over(1, now)
