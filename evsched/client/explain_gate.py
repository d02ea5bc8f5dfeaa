"""Explains why a job waits at the gate: a pause, a limit, or its turn. Pure."""

from __future__ import annotations

from evsched.durations import format_duration
from evsched.jobs import groups
from evsched.jobs.record import JobStatus
from evsched.store.client_calls import Facts
from evsched.store.gate_limits import Limits


def in_backlog(gate: str, no_worker: str | None, status: JobStatus, facts: Facts) -> str:
    """Say what a job in the backlog waits for.

    `gate`: "the gate", or that of the job's shard. `no_worker`: the sentence that no worker serves the queue, if so.
    """
    limits, counts = facts.limits, facts.counts
    if paused := paused_at(facts.now, facts):
        return f"{paused}; no worker serves it either" if no_worker else paused
    if no_worker:
        return f"due, but {no_worker}"
    if facts.parked is not None:  # a limit of this group holds the job back
        return _limited(
            f"{gate} is closed to {groups.describe(facts.parked)}",
            facts,
            limits.of_group(facts.parked),
            counts.get("in_flight_group", 0),
            counts.get("opens_group"),
        )
    most = limits.queue.get("concurrency")
    if "opens" in counts or (most is not None and counts.get("in_flight", 0) >= int(most)):
        own = {name: (name, value) for name, value in limits.queue.items()}
        return _limited(f"{gate} is closed", facts, own, counts.get("in_flight", 0), counts.get("opens"))
    ahead, sharing = counts.get("ahead", 0), counts.get("groups", 1)
    share = ""
    if sharing > 1:
        weight = limits.groups.get(status.group or "", {}).get("weight", 1.0)
        part = f"{weight / max(counts.get('weights', sharing), weight):.0%}"
        gets = f"group {status.group} gets {part}" if status.group else f"jobs without a group get {part}"
        share = f"; {sharing:g} groups share {gate}, and {gets}"
    return f"behind {ahead:g} of {counts.get('waiting', 0):g} jobs in the backlog{share}"


def paused_at(at: float, facts: Facts) -> str:
    """Return the words about the present pause of the queue; "" if there is none, or if it has ended at this time."""
    limits = facts.limits
    if limits.paused is None or not limits.is_paused(max(at, facts.now)):
        return ""
    paused = f"the queue has been paused for {format_duration(facts.now - limits.paused)}"
    if limits.paused_until is not None:
        paused += f", and is for {format_duration(limits.paused_until - facts.now)} more"
    paused += f" ({limits.paused_why})" if limits.paused_why else ""
    return f"{paused}: resume it with `evsched resume`"


def _limited(
    closed: str, facts: Facts, limits: dict[str, tuple[str, float]], in_flight: float, opens: float | None
) -> str:
    """Say which limit holds the job back. `closed`: "the gate is closed", to a group if it is the group's limit.

    `limits`: those that hold, with the fields that they come from.
    """
    if opens is not None:
        field, rate = limits.get("rate", ("rate", 0.0))
        wait = format_duration(max(opens - facts.now, 0.0))
        return f"{closed} by the rate limit {rate:g}/s{origin(facts.limits, field)}: it opens in {wait}"
    field, most = limits.get("concurrency", ("", 0.0))
    if in_flight < most or not field:
        return f"{closed} no longer: the job passes when a dispatcher checks the group again"
    return f"{closed} by the concurrency limit: {in_flight:g} of {most:g}{origin(facts.limits, field)}"


def origin(limits: Limits, field: str) -> str:
    """Say where a limit comes from, if an app declares it: from the app's code, or from a change by hand since."""
    declared = limits.declared.get(field)
    if declared is None:
        return ""
    if limits.overruled(field):
        return f" (changed by hand; app {declared.app} declares {declared.value:g})"
    return f" (declared by app {declared.app})"
