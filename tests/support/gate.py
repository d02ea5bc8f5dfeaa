"""The gate in plain Python: a second version of _in_flight.lua and _gate.lua, to compare them with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

READY_AHEAD = 16
STRIDE = 1e12
PACKET, BURST = 0.05, 0.1
REOPENED = 20
AT_ONCE = 32


def task_of(job: str) -> str:
    """Return the task of a job: every second one is of a task that the walks limit."""
    return "slow" if sum(job.encode()) % 2 else "quick"


def is_inline(member: str) -> bool:
    """Return whether a member of the schedule is the payload of its job."""
    return member.startswith("{")


def id_of(member: str) -> str:
    """Return the id of the job of a member of the schedule: that of an inline job is its SHA-1."""
    return hashlib.sha1(member.encode()).hexdigest() if is_inline(member) else member


def split(groups: str) -> list[str]:
    return groups.split("}")


@dataclass
class Record:
    """The fields of a record that the scripts act on."""

    priority: int = 5
    group: str = ""
    due: float | None = None
    attempt: int = 0
    worker: str | None = None
    finished: bool = False
    again: float | None = None
    stop: bool = False
    parked: str | None = None
    begun: str | None = None
    error: str | None = None
    """What the last failed run raised."""
    deaths: int = 0
    doubts: int = 0
    next: Record | None = None
    """The job that has replaced the one that runs."""
    started: float = 0.0
    """0 = the record has no such field."""
    payload: bytes = b""
    created: float | None = None
    steps: int = 0
    """How many steps are kept."""
    signal: int | None = None
    """The value of the signal that has come."""
    wait_ends: float | None = None
    """Until when the job may wait for it."""
    waiting: bool = False
    """The job waits for it on the schedule."""

    @property
    def run(self) -> str:
        """The name of its last run."""
        return f"{self.attempt} {self.started:.6f}"


@dataclass
class Rule:
    """The room that a group's own limits leave, as one script sees it."""

    room: float
    rate: float | None
    burst: float | None
    opens: float | None = None


@dataclass
class Gate:
    """The places of a queue and its limits; each method is a function of the Lua files."""

    schedule: dict[str, float] = field(default_factory=dict[str, float])
    """By member: the id of a job with a record, or an inline job."""
    moving: dict[str, float] = field(default_factory=dict[str, float])
    backlog: dict[str, float] = field(default_factory=dict[str, float])
    ready: list[str] = field(default_factory=list[str])
    processing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    leases: set[str] = field(default_factory=set[str])
    idle: dict[str, float] = field(default_factory=dict[str, float])
    """Worker -> since when it waits for a message."""
    seats: dict[str, int] = field(default_factory=dict[str, int])
    """Worker -> the ticket of its seat."""
    listening: bool = False
    """The workers receive their messages. If they do not, each in turn is served in vain."""
    told: set[str] = field(default_factory=set[str])
    """Workers that were sent an empty message and have not asked since."""
    is_suspect: Callable[[str], bool] = lambda _job: False
    handed: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    """The messages to workers: the worker, the ticket, and the job; 0 and "" if it is empty."""
    dead: set[str] = field(default_factory=set[str])
    jobs: dict[str, Record] = field(default_factory=dict[str, Record])
    passed: dict[int, float] = field(default_factory=dict[int, float])
    last: dict[tuple[int, str], float] = field(default_factory=dict[tuple[int, str], float])
    limits: dict[str, float] = field(default_factory=dict[str, float])
    paused_until: float | None = None
    in_flight: dict[str, str] | None = None
    """id -> its groups."""
    sides: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    throttled: dict[str, float] = field(default_factory=dict[str, float])
    arrivals: dict[str, float] = field(default_factory=dict[str, float])
    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])
    sent: list[str] = field(default_factory=list[str])
    """The jobs whose messages were sent."""

    @property
    def grouped(self) -> bool:
        return any(":" in name for name in self.limits)

    def tidy(self, group: str | None = None) -> None:
        if group is not None and not self.sides.get(group):
            self.sides.pop(group, None)
            self.throttled.pop(group, None)
        if not self.backlog and not self.throttled:
            self.passed, self.last = {}, {}

    def groups_of(self, job: str) -> str:
        own = self.jobs[job].group if job in self.jobs else ""
        task = f"task:{task_of(job)}"
        limited = f"concurrency:{task}" in self.limits or f"rate:{task}" in self.limits
        return "}".join(group for group in (own, task if limited and job in self.jobs else "") if group)

    def count_in(self, group: str) -> int:
        return sum(group in split(groups) for groups in (self.in_flight or {}).values())

    def enter(self, job: str) -> None:
        if self.in_flight is not None:
            self.in_flight.setdefault(job, self.groups_of(job))

    def leave(self, job: str) -> None:
        groups = self.in_flight.pop(job, None) if self.in_flight is not None else None
        for group in split(groups) if groups is not None else ():
            if group in self.throttled:
                self.throttled[group] = 0

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
        arrival = max(now, self.arrival(key, rate, max(1.0, burst or rate * BURST), now) + count / rate)
        self.arrivals[key] = float(f"{arrival:.6f}")

    def of_group(self, name: str, group: str) -> float | None:
        each = None if group.startswith("task:") else self.limits.get(f"{name}:*")
        return self.limits.get(f"{name}:{group}", each)

    def rate_of(self, group: str) -> tuple[float | None, float | None]:
        own = f"rate:{group}" in self.limits
        burst = self.limits.get(f"burst:{group}") if own else self.of_group("burst", group)
        return self.of_group("rate", group), burst

    def rule(self, group: str, now: float) -> Rule:
        if group not in self.rules:
            most, (rate, burst) = self.of_group("concurrency", group), self.rate_of(group)
            room = math.inf if most is None else most - self.count_in(group)
            rule = self.rules[group] = Rule(room, rate, burst)
            if rate:
                free, rule.opens = self.tokens(group, rate, burst, now)
                rule.room = min(rule.room, free)
        return self.rules[group]

    def refund(self, groups: str, now: float) -> None:
        """Refund the rates that a job which does not begin was charged."""
        if rate := self.limits.get("rate"):
            self.spend("", rate, self.limits.get("burst"), -1, now)
        for group in split(groups) if self.grouped and groups else ():
            rate, burst = self.rate_of(group)
            if rate:
                self.spend(group, rate, burst, -1, now)
            self.rules.pop(group, None)

    def spend_rule(self, group: str, count: int, now: float) -> None:
        rule = self.rules[group]
        if count:
            self.spend(group, rule.rate or 0, rule.burst, count, now)
            if rule.room < 1:
                rule.opens = self.tokens(group, rule.rate or 0, rule.burst, now)[1]

    def reopen(self, most: float, now: float) -> None:
        until = now if self.grouped else math.inf
        for _, group in sorted((at, group) for group, at in self.throttled.items() if at <= until)[:REOPENED]:
            rule, side = self.rule(group, now), self.sides[group]
            count = max(0, min(rule.room, most))
            for _, job in sorted((order, job) for job, order in side.items())[: int(min(count, 9999))]:
                self.backlog[job] = side.pop(job)
                self.jobs[job].parked = None
            self.throttled[group] = rule.opens or (
                math.inf if rule.room < 1 else now + PACKET if rule.rate is not None else 0
            )
            self.tidy(group)

    def passing(self, room: float, now: float) -> tuple[int, int]:
        """Let the first jobs pass, set aside those that a group holds back; return how many passed and were seen."""
        passed, spent, looked = list[float](), dict[str, int](), 0
        front = sorted((order, job) for job, order in self.backlog.items())
        for order, job in front[: int(room + AT_ONCE if self.grouped else room)]:
            if len(passed) == room:
                break
            looked += 1
            del self.backlog[job]
            groups = self.groups_of(job)
            ruled = split(groups) if self.grouped and groups else []
            closed = next((group for group in ruled if self.rule(group, now).room < 1), None)
            if closed is not None:
                self.spend_rule(closed, spent.pop(closed, 0), now)
                self.sides.setdefault(closed, {})[job] = order
                self.jobs[job].parked = closed
                self.throttled.setdefault(closed, self.rule(closed, now).opens or math.inf)
                continue
            self.ready.append(job)
            passed.append(order)
            self.enter(job)
            for group in ruled:
                rule = self.rule(group, now)
                rule.room -= 1
                if rule.rate is not None:
                    spent[group] = spent.get(group, 0) + 1
        for group, count in spent.items():
            self.spend_rule(group, count, now)
        for order in passed:
            priority = -math.floor(order / STRIDE)
            self.passed[priority] = max(self.passed.get(priority, 0), order % STRIDE)
        self.tidy()
        return len(passed), looked

    def is_paused(self, now: float) -> bool:
        return "paused" in self.limits and (self.paused_until is None or now < self.paused_until)

    def admit(self, asked: int, now: float) -> None:
        if "concurrency" in self.limits or self.grouped:
            if self.in_flight is None:
                self.in_flight = {}
                self.throttled = dict.fromkeys(self.throttled, 0)
                for job in [*self.ready, *(job for held in self.processing.values() for job in held)]:
                    self.enter(job)
        else:
            self.in_flight = None
        if self.is_paused(now):
            return
        self.limits.pop("paused", None)
        room: float = READY_AHEAD + asked - len(self.ready)
        room = min(room, self.limits.get("concurrency", math.inf) - len(self.in_flight or ()))
        rate, burst = self.limits.get("rate"), self.limits.get("burst")
        if rate:
            room = min(room, self.tokens("", rate, burst, now)[0])
        if room <= 0:
            return
        passed, by_group = 0, self.grouped or self.throttled
        while True:
            if by_group:
                self.reopen(room - passed, now)
            went, saw = self.passing(room - passed, now)
            passed += went
            if not saw or passed >= room:
                break
        self.hand_over(passed - asked, now)
        if rate and passed:
            self.spend("", rate, burst, passed, now)

    def hand_over(self, jobs: int, now: float) -> None:
        while jobs > 0 and self.idle:
            _, worker = min((since, worker) for worker, since in self.idle.items())
            del self.idle[worker]
            ticket = self.seats.pop(worker, 0)
            if not self.listening or (ticket and worker not in self.leases):
                continue
            job = self.start_first(worker, now) if ticket else ""
            self.handed.append((worker, ticket if job else 0, job))
            if not job:
                self.told.add(worker)
            jobs -= 1

    def start_first(self, worker: str, now: float) -> str:
        """Start the first job of ready for a worker; return its id, "" if `start` has to decide on it."""
        job = self.ready[0] if self.ready else ""
        record = self.jobs.get(job)
        if record is None or record.due is None or record.worker or record.finished or record.stop:
            return ""
        if self.is_suspect(job) or (self.in_flight is not None and job not in self.in_flight):
            return ""
        self.ready.remove(job)
        self.processing.setdefault(worker, []).append(job)
        record.attempt, record.worker, record.started = record.attempt + 1, worker, now
        return job

    def remove_waiting(self, job: str) -> str | None:
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

    def waits(self, job: str) -> bool:
        record = self.jobs.get(job)
        return job in self.backlog or job in self.ready or bool(record and record.parked is not None)

    def return_to_backlog(self, jobs: list[str]) -> None:
        for n, job in enumerate(jobs, 1):
            priority = self.jobs[job].priority if job in self.jobs else 5
            self.backlog.setdefault(job, -priority * STRIDE + n / (len(jobs) + 1))
            self.leave(job)
