"""The state machine in plain Python: what the scripts do, said a second time, to compare them with."""

from __future__ import annotations

from dataclasses import dataclass, field

READY_AHEAD = 16
STRIDE = 1e12


@dataclass
class Record:
    """What a record holds that steers the machine."""

    priority: int = 5
    group: str = ""
    due: float | None = None
    attempt: int = 0
    worker: str | None = None
    finished: bool = False
    again: float | None = None


@dataclass
class Model:
    """A queue. Each method is a verb; it returns what the script replies, as far as a caller steers by it."""

    schedule: dict[str, float] = field(default_factory=dict[str, float])
    backlog: dict[str, float] = field(default_factory=dict[str, float])
    ready: list[str] = field(default_factory=list[str])
    processing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    dead: set[str] = field(default_factory=set[str])
    jobs: dict[str, Record] = field(default_factory=dict[str, Record])
    passed: float = 0
    last: dict[str, float] = field(default_factory=dict[str, float])

    def holds(self, worker: str | None, job: str) -> bool:
        return worker is not None and job in self.processing.get(worker, [])

    def enqueue(self, job: str, due: float, priority: int, group: str) -> bool:
        record = self.jobs.get(job)
        if record and (job in self.dead or not record.finished or job in self.schedule):
            return False
        self.jobs[job] = Record(priority, group)
        self.schedule[job] = due
        return True

    def schedule_raw(self, job: str, due: float) -> None:
        self.jobs.setdefault(job, Record())
        self.schedule[job] = due

    def dispatch(self, now: float, limit: int) -> None:
        due = sorted((at, job) for job, at in self.schedule.items() if at <= now)[:limit]
        places: dict[str, float] = {}
        is_ready = set(self.ready)
        for at, job in due:
            record = self.jobs[job]
            del self.schedule[job]
            if record.finished:
                self.jobs[job] = record = Record(record.priority, record.group, record.due)
                self.dead.discard(job)
            elif record.worker is not None:
                if self.holds(record.worker, job):
                    record.again = at
                    continue
                record.worker = None
            if job not in is_ready:
                record.due = at
                turn = max(self.passed, self.last.get(record.group, 0)) + 1
                self.last[record.group] = turn
                places[job] = -record.priority * STRIDE + turn
        for job, order in places.items():
            self.backlog.setdefault(job, order)
        self.admit(0)

    def admit(self, asked: int) -> None:
        room = READY_AHEAD + asked - len(self.ready)
        front = sorted((order, job) for job, order in self.backlog.items())[: max(room, 0)]
        for _, job in front:
            self.ready.append(job)
            del self.backlog[job]
        if front:
            if self.backlog:
                self.passed = front[-1][0] % STRIDE
            else:
                self.passed, self.last = 0, {}

    def take(self, worker: str) -> str | None:
        if not self.ready:
            return None
        job = self.ready.pop(0)
        self.processing.setdefault(worker, []).append(job)
        return job

    def start(self, worker: str, taken: list[str], hold: int) -> list[tuple[str, int]]:
        held = self.processing.setdefault(worker, [])
        ids = [job for job in taken if job in held]
        more = hold - len(held)
        if more > 0:
            self.admit(more)
            moved, self.ready = self.ready[:more], self.ready[more:]
            held += moved
            ids += moved
        self.admit(0)
        started: list[tuple[str, int]] = []
        for job in ids:
            record = self.jobs.get(job)
            if record is None:
                held.remove(job)
                self.jobs[job] = Record(finished=True)
                self.dead.add(job)
                continue
            if record.due is None and job in self.schedule:
                held.remove(job)
                continue
            if record.worker != worker and not record.finished and self.holds(record.worker, job):
                record.again = record.due
                held.remove(job)
                continue
            if record.finished:
                record.attempt, record.finished = 0, False
                self.dead.discard(job)
                record.worker = None
            if record.worker != worker:
                record.attempt, record.worker = record.attempt + 1, worker
            started.append((job, record.attempt))
        return started

    def _own(self, worker: str, job: str, attempt: int) -> bool:
        record = self.jobs.get(job)
        return (
            record is not None
            and (record.worker, record.attempt, record.finished) == (worker, attempt, False)
            and self.holds(worker, job)
        )

    def _renew(self, job: str) -> None:
        record = self.jobs[job]
        again = record.again
        record.worker, record.attempt, record.again = None, 0, None
        if again is not None:
            self.schedule[job] = min(again, self.schedule.get(job, again))

    def complete(self, worker: str, job: str, attempt: int) -> bool:
        own = self._own(worker, job, attempt)
        if own:
            self.processing[worker].remove(job)
            if self.jobs[job].again is not None or job in self.schedule:
                self._renew(job)
            else:
                self.jobs[job].finished = True
        self.admit(0)
        return own

    def retry(self, worker: str, job: str, attempt: int, at: float) -> bool:
        own = self._own(worker, job, attempt)
        if own:
            record = self.jobs[job]
            record.again = self.schedule.get(job, record.again)
            self.schedule[job] = at
            record.worker = None
            self.processing[worker].remove(job)
        self.admit(0)
        return own

    def bury(self, worker: str, job: str, attempt: int) -> bool:
        own = self._own(worker, job, attempt)
        if own:
            waits = job in self.schedule or job in self.backlog or job in self.ready
            if self.jobs[job].again is not None or waits:
                self._renew(job)
            else:
                self.jobs[job].finished = True
                self.dead.add(job)
            self.processing[worker].remove(job)
        self.admit(0)
        return own

    def requeue(self, worker: str, limit: int) -> None:
        held = self.processing.get(worker, [])
        for job in reversed(held[-limit:]):
            record = self.jobs.get(job, Record())
            holder = None if record.finished else record.worker
            if holder != worker and self.holds(holder, job):
                record.again = record.due
            elif job not in self.ready:
                self.ready.insert(0, job)
                if holder is not None:
                    record.worker = None
            held.remove(job)
        self.admit(0)

    def cancel(self, job: str) -> str:
        record = self.jobs.get(job)
        running = record is not None and not record.finished and self.holds(record.worker, job)
        place = ""
        if job in self.ready:
            self.ready.remove(job)
            place = "ready"
        if self.backlog.pop(job, None) is not None:
            place = "backlog"
        if self.schedule.pop(job, None) is not None:
            place = "schedule"
        if record is not None and record.again is not None:
            record.again, place = None, "schedule"
        if not place:
            return "RUNNING" if running else "MISSING"
        if not running and job not in self.dead:
            self.jobs.pop(job, None)
        self.admit(0)
        return place

    def reschedule(self, job: str, due: float) -> bool:
        if job not in self.schedule and job not in self.backlog and job not in self.ready:
            return False
        self.schedule[job] = due
        self.backlog.pop(job, None)
        if job in self.ready:
            self.ready.remove(job)
        self.admit(0)
        return True

    def revive(self, job: str, now: float) -> bool:
        if job not in self.dead:
            return False
        record = self.jobs[job]
        record.finished, record.attempt, record.worker = False, 0, None
        self.schedule[job] = now
        self.dead.remove(job)
        return True

    def drop(self, job: str) -> bool:
        if job not in self.dead:
            return False
        self.dead.remove(job)
        if job not in self.schedule:
            del self.jobs[job]
        return True
