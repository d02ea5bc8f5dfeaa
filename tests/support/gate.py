"""The gate in plain Python: a second version of _limits.lua, _fair.lua and _gate.lua, to compare them with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

READY_AHEAD = 16
STRIDE = 1e12
PACKET, BURST = 0.05, 0.1
REOPENED = 20


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
    deaths: int = 0
    doubts: int = 0


@dataclass
class Rule:
    """What a group's own limits leave room for, as one script sees it."""

    room: float
    rate: float | None
    burst: float | None
    opens: float | None = None


@dataclass
class Gate:
    """The places of a queue and its limits; each method is a function of the Lua files."""

    schedule: dict[str, float] = field(default_factory=dict[str, float])
    backlog: dict[str, float] = field(default_factory=dict[str, float])
    ready: list[str] = field(default_factory=list[str])
    processing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    dead: set[str] = field(default_factory=set[str])
    jobs: dict[str, Record] = field(default_factory=dict[str, Record])
    passed: dict[int, float] = field(default_factory=dict[int, float])
    last: dict[tuple[int, str], float] = field(default_factory=dict[tuple[int, str], float])
    limits: dict[str, float] = field(default_factory=dict[str, float])
    in_flight: dict[str, str] | None = None
    sides: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    throttled: dict[str, float] = field(default_factory=dict[str, float])
    arrivals: dict[str, float] = field(default_factory=dict[str, float])
    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])

    @property
    def grouped(self) -> bool:
        return any(":" in name for name in self.limits)

    def tidy(self, group: str | None = None) -> None:
        if group is not None and not self.sides.get(group):
            self.sides.pop(group, None)
            self.throttled.pop(group, None)
        if not self.backlog and not self.throttled:
            self.passed, self.last = {}, {}

    def enter(self, job: str, group: str) -> None:
        if self.in_flight is not None:
            self.in_flight.setdefault(job, group)

    def leave(self, job: str) -> None:
        group = self.in_flight.pop(job, None) if self.in_flight is not None else None
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
        arrival = self.arrival(key, rate, max(1.0, burst or rate * BURST), now) + count / rate
        self.arrivals[key] = float(f"{arrival:.6f}")

    def rule(self, group: str, now: float) -> Rule:
        if group not in self.rules:
            most = self.limits.get(f"concurrency:{group}", math.inf)
            rate, burst = self.limits.get(f"rate:{group}"), self.limits.get(f"burst:{group}")
            in_flight = [name for name in (self.in_flight or {}).values() if name == group]
            rule = self.rules[group] = Rule(most - len(in_flight), rate, burst)
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

    def passing(self, room: float, now: float) -> int:
        """Let the first jobs pass, set aside those that their group holds back; return how many passed."""
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
                self.throttled.setdefault(group, rule.opens or math.inf)
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
            if self.in_flight is None:
                self.in_flight = {}
                for job in [*self.ready, *(job for held in self.processing.values() for job in held)]:
                    self.enter(job, self.jobs[job].group if job in self.jobs else "")
        else:
            self.in_flight = None
        if "paused" in self.limits:
            return
        room: float = READY_AHEAD + asked - len(self.ready)
        room = min(room, self.limits.get("concurrency", math.inf) - len(self.in_flight or ()))
        rate, burst = self.limits.get("rate"), self.limits.get("burst")
        if rate:
            room = min(room, self.tokens("", rate, burst, now)[0])
        if room <= 0:
            return
        if self.grouped or self.throttled:
            self.reopen(room, now)
        passed = self.passing(room, now)
        if rate and passed:
            self.spend("", rate, burst, passed, now)

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
