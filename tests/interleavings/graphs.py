"""Scenes of graphs: their nodes are released, stopped, started, revived and cancelled. See batches.py."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple

from evsched.batches import starter
from evsched.batches.node import StoredNode, Take
from evsched.batches.starter import Starter
from evsched.jobs.job import encode
from evsched.store.batch_calls import PlanRow
from tests.interleavings import batches
from tests.interleavings.batches import BATCH, FIELDS, Processes, Recovery, Setup, closes, codes_of, fates_of
from tests.interleavings.keepers import Keeper
from tests.interleavings.releases import QUEUE, STORE
from tests.interleavings.search import FAULTS, Scene, State
from tests.interleavings.server import SavedRedis, Snapshot

_KEPT: Final = 9e5


class Node(NamedTuple):
    """A node, which takes the results of those before it by position, in their order."""

    after: tuple[int, ...] = ()
    despite: bool = False

    def row(self) -> PlanRow:
        """Return it as `batch_plan` takes it."""
        takes = tuple(Take(str(one), one, QUEUE) for one in self.after)
        payload: dict[str, Any] = {"task": "t", "args": [], "kwargs": {}, "retention": _KEPT}
        made = StoredNode("", QUEUE, payload, _KEPT, takes=takes, despite=self.despite)
        return PlanRow(encode(made), "", QUEUE, self.after, self.despite)


class Plan(NamedTuple):
    """A scene: the nodes, and the processes beside the keepers."""

    nodes: tuple[Node, ...]
    processes: Callable[[Mapping[str, str]], Processes]
    """By the runs of the jobs."""
    closed: bool = True
    """Whether the first nodes run from the start."""
    far: bool = False
    changes: tuple[tuple[str, str, str], ...] = ()
    """Of scripts, so that small graphs reach their bounds."""


# What must hold.


def check(nodes: Sequence[Node], before: State | None, state: State, step: str) -> str | None:
    """Return what is wrong with the graph of a state."""
    wrong = batches.check(before, state, step)
    for at, node in enumerate(nodes):
        wrong = wrong or _check_job(state.snapshot, at, node)
    return wrong or _check_counts(state.snapshot, nodes)


def _check_job(snapshot: Snapshot, at: int, node: Node) -> str | None:
    fates, job = fates_of(snapshot, BATCH, at), snapshot.pairs(f"job:{BATCH}.{at}")
    if len(fates) - fates.count(2) > 1:
        return f"node {at} has ended {fates}"
    if "payload" not in job:  # it was cancelled, if there is a record
        return None
    args = json.loads(job["payload"]).get("args", [])
    if len(args) != len(node.after):
        return f"node {at} has got {args}"
    for one, value in zip(node.after, args, strict=True):
        ended = fates_of(snapshot, BATCH, one)
        if not ended or (1 not in ended and not node.despite):
            return f"node {at} was enqueued when node {one} was {ended}"
        if value != 1 and not (value is None and node.despite and ended != [1]):
            return f"node {at} has got {value} of node {one}, which was {ended}"
    return None


def _check_counts(snapshot: Snapshot, nodes: Sequence[Node]) -> str | None:
    """Compare what each node knows with what is; as long as there is more to pass on, it is not the same."""
    record, codes = batches.record_of(snapshot, BATCH), codes_of(snapshot, BATCH)
    if record["state"] == "open" or record.get("stop") or f"batch_ripple:{BATCH}" in snapshot.keys:
        return None
    known = snapshot.pairs(f"batch_nodes:{BATCH}")
    for at, node in enumerate(nodes):
        before = [codes[one] for one in node.after]
        waits = sum(code in (0, 7) if node.despite else code != 1 for code in before)
        fails = 0 if node.despite else sum(code not in (0, 1, 7) for code in before)
        if known[f"-{at}"] != f"{waits} {fails}":
            return f"node {at} knows {known[f'-{at}']} of {before}, with despite={node.despite}"
        if codes[at] in (6, 7) and codes[at] != (6 if fails else 7 if waits else 0):
            return f"node {at} has the code {codes[at]}, those before it {before}"
    return None


# The scenes.


def _start(redis: SavedRedis, plan: Plan, broken: type[Starter]) -> tuple[Snapshot, dict[str, str]]:
    """Return the state in which a graph is written, and the names of the runs of its first nodes."""
    setup = Setup(redis)
    setup.make(STORE.batch_open(BATCH, "x", retention=_KEPT, fields=FIELDS))
    setup.make(STORE.batch_plan(BATCH, 0, [node.row() for node in plan.nodes]))
    if not plan.closed:
        setup.run(0)
        return setup.snapshot, {}
    setup.make(STORE.batch_close(BATCH))
    real = Keeper(starter=broken)
    while setup.make(STORE.chores(1)):
        call = real.begin(0)
        while call is not None:
            call = real.go_on(setup.make(call))
    runs = setup.run(10)
    return setup.snapshot, runs


def _broken(redis: SavedRedis) -> type[Starter]:
    """Return the class whose own code runs here, with the changes of this search."""
    source = inspect.getsource(starter)
    changed = redis.changed("starter", source)
    if changed == source:
        return Starter
    made = ModuleType("starter")
    exec(changed, made.__dict__)
    return made.Starter


def _lower_half(started: Mapping[str, str]) -> Processes:
    return {
        "one": lambda: batches.ends("b.0", started["b.0"], "dead"),
        "two": lambda: batches.ends("b.1", started["b.1"], "done"),
        "reviver": lambda: batches.revives("b.0"),
    }


def _upper_half(started: Mapping[str, str]) -> Processes:
    return {"closer": lambda: closes(BATCH), "runner": lambda: batches.runs("b.0", "b.1")}


def _cancelled(started: Mapping[str, str]) -> Processes:
    return {
        "one": lambda: batches.ends("b.0", started["b.0"], "done"),
        "canceller": lambda: closes(BATCH, how="cancelled"),
    }


def _failed(started: Mapping[str, str]) -> Processes:
    return {
        "one": lambda: batches.ends("b.0", started["b.0"], "dead"),
        "reviver": lambda: batches.revives("b.0"),
        "canceller": lambda: closes(BATCH, how="cancelled"),
    }


_LOWER: Final = (Node(), Node(), Node((0, 1), despite=True), Node((0, 1)))
_UPPER: Final = (Node(), Node((0,)), Node((0,)), Node((1, 2), despite=True))
_SLOW: Final = (("*", "local EDGES_MOST = 300", "local EDGES_MOST = 2"),)

PLANS: Final[Mapping[str, Plan]] = {
    "graph": Plan(_LOWER, _lower_half),
    "graph that begins": Plan(_UPPER, _upper_half, closed=False),
    "graph that is cancelled": Plan((Node(), Node((0,)), Node((0,), despite=True)), _cancelled),
    "graph that has failed": Plan((Node(), Node((0,)), Node((1,))), _failed),
    "graph that ripples": Plan(_UPPER, _upper_half, closed=False, changes=_SLOW),
    "graph on another server": Plan((Node(), Node((0,))), _cancelled, far=True),
}
"""By name. All have two keepers besides."""


def make(
    name: str,
    redis: SavedRedis,
    *,
    faults: int,
    epochs: int,
    without: Sequence[str] = (),
    old: Sequence[str] = (),
    kinds: tuple[str, ...] = FAULTS,
) -> Scene:
    """Return a scene; `without`: processes that are left out."""
    assert not old, "the previous release has no graphs"
    plan = PLANS[name]
    redis.change(plan.changes)
    broken = _broken(redis)
    start, started = _start(redis, plan, broken)
    recovery, rules = Recovery(far=plan.far, depth=4, starter=broken), partial(check, plan.nodes)
    scope: dict[str, Any] = {"faults": faults, "epochs": epochs, "kinds": kinds, "without": without}
    return batches.scene_of(redis, start, plan.processes(started), rules, recovery, **scope)
