"""The state machine in plain Python: what the scripts do, said a second time, to compare them with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

READY_AHEAD = 16
STRIDE = 1e12
PACKET, BURST = 0.05, 0.1
REOPENED = 20
NEWEST = 16

P = ParamSpec("P")
T = TypeVar("T")


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
    stop: bool = False
    parked: str | None = None


@dataclass
class Rule:
    """What a group's own limits leave room for, as one script sees it."""

    room: float
    rate: float | None
    burst: float | None
    opens: float | None = None


def verb(method: Callable[Concatenate[Model, P], T]) -> Callable[Concatenate[Model, P], T]:
    """Let a method see the limits as a script does: anew in each call, and once in it."""

    def one(self: Model, *args: P.args, **kwargs: P.kwargs) -> T:
        self.rules = {}
        return method(self, *args, **kwargs)

    return one


@dataclass
class Model:
    """A queue. Each method is a verb; it returns what the script replies, as far as a caller steers by it."""

    schedule: dict[str, float] = field(default_factory=dict[str, float])
    backlog: dict[str, float] = field(default_factory=dict[str, float])
    ready: list[str] = field(default_factory=list[str])
    processing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    dead: set[str] = field(default_factory=set[str])
    jobs: dict[str, Record] = field(default_factory=dict[str, Record])
    passed: dict[int, float] = field(default_factory=dict[int, float])
    last: dict[tuple[int, str], float] = field(default_factory=dict[tuple[int, str], float])
    limits: dict[str, float] = field(default_factory=dict[str, float])
    inside: dict[str, str] | None = None
    sides: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    closed: dict[str, float] = field(default_factory=dict[str, float])
    arrivals: dict[str, float] = field(default_factory=dict[str, float])
    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])

    def holds(self, worker: str | None, job: str) -> bool:
        return worker is not None and job in self.processing.get(worker, [])

    @verb
    def enqueue(self, job: str, due: float, priority: int, group: str, conflict: str, now: float) -> bool:
        record = self.jobs.get(job)
        if record and (job in self.dead or not record.finished or job in self.schedule):
            if conflict != "replace":
                return conflict == "keep"
            self.unline(job)
            self.dead.discard(job)
            self.schedule[job] = due
            if not record.finished and self.holds(record.worker, job):
                record.priority, record.group, record.again = priority, group, None
            else:
                self.jobs[job] = Record(priority, group)
            self.admit(0, now)
            return True
        self.jobs[job] = Record(priority, group)
        self.schedule[job] = due
        return True

    def schedule_raw(self, job: str, due: float) -> None:
        self.jobs.setdefault(job, Record())
        self.schedule[job] = due

    @verb
    def dispatch(self, now: float, limit: int) -> None:
        everything = sorted((at, job) for job, at in self.schedule.items() if at <= now)
        due, further = everything[:limit], everything[limit:]
        if len(due) == limit:
            flood = self.jobs[due[-1][1]].group
            due += [(at, job) for at, job in further[-NEWEST:] if self.jobs[job].group != flood]
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
            if job not in is_ready and record.parked is None:
                record.due = at
                turn = (record.priority, record.group)
                weight = self.limits.get(f"weight:{record.group}", 1) if record.group else 1
                self.last[turn] = max(self.passed.get(record.priority, 0), self.last.get(turn, 0)) + 1 / weight
                places[job] = -record.priority * STRIDE + self.last[turn]
        for job, order in places.items():
            self.backlog.setdefault(job, order)
        self.admit(0, now)

    # The gate.

    @property
    def grouped(self) -> bool:
        return any(":" in name for name in self.limits)

    def tidy(self, group: str | None = None) -> None:
        if group is not None and not self.sides.get(group):
            self.sides.pop(group, None)
            self.closed.pop(group, None)
        if not self.backlog and not self.closed:
            self.passed, self.last = {}, {}

    def enter(self, job: str, group: str) -> None:
        if self.inside is not None:
            self.inside.setdefault(job, group)

    def leave(self, job: str) -> None:
        group = self.inside.pop(job, None) if self.inside is not None else None
        if group in self.closed:
            self.closed[group] = 0

    def arrival(self, key: str, rate: float, most: float, now: float) -> float:
        arrival = self.arrivals.get(key, 0)
        return arrival if now < arrival <= now + most / rate + 1 else now

    def tokens(self, key: str, rate: float, burst: float | None, now: float) -> tuple[int, float | None]:
        most = max(1.0, burst or rate * BURST)
        packet = max(1, math.floor(min(most, rate * PACKET)))
        arrival = self.arrival(key, rate, most, now)
        free = math.floor(most - (arrival - now) * rate + 2e-6 * rate + 1e-9)
        return (free, None) if free >= packet else (0, arrival - (most - packet) / rate)

    def spend(self, key: str, rate: float, burst: float | None, count: int, now: float) -> None:
        arrival = self.arrival(key, rate, max(1.0, burst or rate * BURST), now) + count / rate
        self.arrivals[key] = float(f"{arrival:.6f}")

    def rule(self, group: str, now: float) -> Rule:
        if group not in self.rules:
            most = self.limits.get(f"concurrency:{group}", math.inf)
            rate, burst = self.limits.get(f"rate:{group}"), self.limits.get(f"burst:{group}")
            inside = [of for of in (self.inside or {}).values() if of == group]
            rule = self.rules[group] = Rule(most - len(inside), rate, burst)
            if rate:
                free, rule.opens = self.tokens(group, rate, burst, now)
                rule.room = min(rule.room, free)
        return self.rules[group]

    def spend_rule(self, group: str, count: int, now: float) -> None:
        rule = self.rules[group]
        if count:
            self.spend(group, rule.rate or 0, rule.burst, count, now)
            if rule.room < 1:
                rule.opens = self.tokens(group, rule.rate or 0, rule.burst, now)[1]

    def reopen(self, most: float, now: float) -> None:
        until = now if self.grouped else math.inf
        for _, group in sorted((at, group) for group, at in self.closed.items() if at <= until)[:REOPENED]:
            rule, side = self.rule(group, now), self.sides[group]
            count = max(0, min(rule.room, most))
            for _, job in sorted((order, job) for job, order in side.items())[: int(min(count, 9999))]:
                self.backlog[job] = side.pop(job)
                self.jobs[job].parked = None
            self.closed[group] = rule.opens or (
                math.inf if rule.room < 1 else now + PACKET if rule.rate is not None else 0
            )
            self.tidy(group)

    def passing(self, room: float, now: float) -> int:
        """Let the front pass, set aside what its group holds back; return how many passed."""
        passed, spent = list[float](), dict[str, int]()
        for order, job in sorted((order, job) for job, order in self.backlog.items()):
            if len(passed) == room:
                break
            group = self.jobs[job].group
            rule = self.rule(group, now) if self.grouped and group else None
            del self.backlog[job]
            if rule is not None and rule.room < 1:
                self.spend_rule(group, spent.pop(group, 0), now)
                self.sides.setdefault(group, {})[job] = order
                self.jobs[job].parked = group
                self.closed.setdefault(group, rule.opens or math.inf)
                continue
            self.ready.append(job)
            passed.append(order)
            self.enter(job, group)
            if rule is not None:
                rule.room -= 1
                if rule.rate is not None:
                    spent[group] = spent.get(group, 0) + 1
        for group, count in spent.items():
            self.spend_rule(group, count, now)
        for order in passed:
            priority = -math.floor(order / STRIDE)
            self.passed[priority] = max(self.passed.get(priority, 0), order % STRIDE)
        self.tidy()
        return len(passed)

    def admit(self, asked: int, now: float) -> None:
        if "concurrency" in self.limits or self.grouped:
            if self.inside is None:
                self.inside = {}
                for job in [*self.ready, *(job for held in self.processing.values() for job in held)]:
                    self.enter(job, self.jobs[job].group if job in self.jobs else "")
        else:
            self.inside = None
        if "paused" in self.limits:
            return
        room: float = READY_AHEAD + asked - len(self.ready)
        room = min(room, self.limits.get("concurrency", math.inf) - len(self.inside or ()))
        rate, burst = self.limits.get("rate"), self.limits.get("burst")
        if rate:
            room = min(room, self.tokens("", rate, burst, now)[0])
        if room <= 0:
            return
        if self.grouped or self.closed:
            self.reopen(room, now)
        passed = self.passing(room, now)
        if rate and passed:
            self.spend("", rate, burst, passed, now)

    def unline(self, job: str) -> str | None:
        record = self.jobs.get(job)
        group = record.parked if record else None
        if record and group is not None:
            record.parked = None
            del self.sides[group][job]
            self.tidy(group)
            return "backlog"
        if self.backlog.pop(job, None) is not None:
            self.tidy()
            return "backlog"
        if job in self.ready:
            self.ready.remove(job)
            self.leave(job)
            return "ready"
        return None

    def lined(self, job: str) -> bool:
        record = self.jobs.get(job)
        return job in self.backlog or job in self.ready or bool(record and record.parked is not None)

    def step_back(self, jobs: list[str]) -> None:
        for n, job in enumerate(jobs, 1):
            priority = self.jobs[job].priority if job in self.jobs else 5
            self.backlog.setdefault(job, -priority * STRIDE + n / (len(jobs) + 1))
            self.leave(job)

    @verb
    def pause(self, now: float) -> None:
        self.limits.setdefault("paused", now)
        self.step_back(self.ready)
        self.ready = []

    @verb
    def resume(self, now: float) -> None:
        self.limits.pop("paused", None)
        self.admit(0, now)

    @verb
    def limit(self, name: str, value: float | None, now: float) -> None:
        self.limits.pop(name, None)
        if value is not None:
            self.limits[name] = value
        group = name.partition(":")[2]
        if group in self.closed:
            self.closed[group] = 0
        self.admit(0, now)

    # The verbs of the workers.

    def take(self, worker: str) -> str | None:
        if not self.ready:
            return None
        job = self.ready.pop(0)
        self.processing.setdefault(worker, []).append(job)
        return job

    @verb
    def start(self, worker: str, taken: list[str], hold: int, now: float) -> list[tuple[str, int]]:
        held = self.processing.setdefault(worker, [])
        ids = [job for job in taken if job in held]
        more = hold - len(held)
        if more > 0:
            self.admit(more, now)
            moved, self.ready = self.ready[:more], self.ready[more:]
            held += moved
            ids += moved
        self.admit(0, now)
        started: list[tuple[str, int]] = []
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
                self._abort(job)
                held.remove(job)
                self.leave(job)
                continue
            if record.worker != worker and not record.finished and self.holds(record.worker, job):
                record.again = record.due
                held.remove(job)
                continue
            if record.finished:
                record.attempt, record.finished, record.stop = 0, False, False
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
        record.worker, record.attempt, record.again, record.stop = None, 0, None, False
        if again is not None:
            self.schedule[job] = min(again, self.schedule.get(job, again))

    def _abort(self, job: str) -> None:
        if self.jobs[job].again is not None or job in self.schedule:
            self._renew(job)
        else:
            self.jobs[job].finished = True

    def _end(self, worker: str, job: str) -> None:
        self.processing[worker].remove(job)
        self.leave(job)

    @verb
    def complete(self, worker: str, job: str, attempt: int, now: float) -> bool:
        own = self._own(worker, job, attempt)
        if own:
            self._end(worker, job)
            if self.jobs[job].again is not None or job in self.schedule:
                self._renew(job)
            else:
                self.jobs[job].finished = True
        self.admit(0, now)
        return own

    @verb
    def abort(self, worker: str, job: str, attempt: int, now: float) -> bool:
        own = self._own(worker, job, attempt)
        if own:
            self._abort(job)
            self._end(worker, job)
        self.admit(0, now)
        return own

    @verb
    def retry(self, worker: str, job: str, attempt: int, at: float, now: float) -> bool:
        own = self._own(worker, job, attempt)
        if own and self.jobs[job].stop:
            self._abort(job)
            self._end(worker, job)
        elif own:
            record = self.jobs[job]
            record.again = self.schedule.get(job, record.again)
            self.schedule[job] = at
            record.worker = None
            self._end(worker, job)
        self.admit(0, now)
        return own

    @verb
    def defer(self, worker: str, job: str, attempt: int, at: float, now: float) -> bool:
        own = self._own(worker, job, attempt)
        if own and self.jobs[job].stop:
            self._abort(job)
            self._end(worker, job)
        elif own:
            record = self.jobs[job]
            record.again = self.schedule.get(job, record.again)
            self.schedule[job] = at
            record.worker = None
            record.attempt -= 1
            self._end(worker, job)
        self.admit(0, now)
        return own

    @verb
    def bury(self, worker: str, job: str, attempt: int, now: float) -> bool:
        own = self._own(worker, job, attempt)
        if own:
            if self.jobs[job].again is not None or job in self.schedule or self.lined(job):
                self._renew(job)
            else:
                self.jobs[job].finished = True
                self.dead.add(job)
            self._end(worker, job)
        self.admit(0, now)
        return own

    @verb
    def requeue(self, worker: str, limit: int, now: float) -> None:
        held = self.processing.get(worker, [])
        back: list[str] = []
        for job in reversed(held[-limit:]):
            record = self.jobs.get(job, Record())
            holder = None if record.finished else record.worker
            if holder != worker and self.holds(holder, job):
                record.again = record.due
            elif record.stop and not record.finished:
                self._abort(job)
                self.leave(job)
            elif job not in self.ready:
                if "paused" in self.limits:
                    back.insert(0, job)
                else:
                    self.ready.insert(0, job)
                    self.enter(job, record.group)
                if holder is not None:
                    record.worker = None
            held.remove(job)
        self.step_back(back)
        self.admit(0, now)

    @verb
    def cancel(self, job: str, now: float) -> str:
        record = self.jobs.get(job)
        place = self.unline(job) or ""
        if self.schedule.pop(job, None) is not None:
            place = "schedule"
        if record is not None and record.again is not None:
            record.again, place = None, "schedule"
        running = record is not None and not record.finished and self.holds(record.worker, job)
        if record is not None and running:
            record.stop, place = True, "processing"
        if not place:
            return "MISSING"
        if not running and job not in self.dead:
            self.jobs.pop(job, None)
        self.admit(0, now)
        return place

    @verb
    def reschedule(self, job: str, due: float, now: float) -> bool:
        if job not in self.schedule and not self.lined(job):
            return False
        self.schedule[job] = due
        self.unline(job)
        self.admit(0, now)
        return True

    def revive(self, job: str, now: float) -> bool:
        if job not in self.dead:
            return False
        record = self.jobs[job]
        record.finished, record.attempt, record.worker, record.stop = False, 0, None, False
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
