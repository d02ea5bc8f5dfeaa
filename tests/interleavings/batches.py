"""Scenes of batches: their jobs, ends, additions, cancels and revivals, and the keepers, whose own code runs here.

The home of the batch is the queue of its jobs; callbacks are scheduled in another queue, where nobody runs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from msgspec import structs

from evsched.batches.starter import Starter
from evsched.jobs.job import Buried, Done, FetchedJob
from evsched.store.client_calls import New
from evsched.transport.call import Call
from tests.interleavings.keepers import Keeper, keeper
from tests.interleavings.processes import CAP
from tests.interleavings.releases import LEASE, QUEUE, STORE
from tests.interleavings.search import FAULTS, LOST, Do, Epoch, Operation, Process, Scene, State
from tests.interleavings.server import BASE, EPOCH, Clock, SavedRedis, Snapshot

BATCH: Final = "b"
PARENT: Final = "o"
"""The batch that the other one is a member of, in some scenes."""
CALLBACKS: Final = "c"
"""The queue of callbacks."""

_PAYLOAD: Final = b'{"task":"t"}'
FIELDS: Final = {
    f"on_{outcome}": json.dumps({"queue": CALLBACKS, "payload": {"task": outcome}}) for outcome in ("done", "failed")
}
RESERVED: Final = 5.0
_SETTLED: Final = 10.0
"""Seconds of a reservation: shorter than an epoch, since only the order of times is compared."""
_OVER: Final = ("done", "failed", "cancelled")
_CODES: Final = {"open": 0, "done": 1, "dead": 2, "cancelled": 3, "expired": 4}
_COUNTS: Final = ("done", "dead", "cancelled", "expired", "missing", "stopped")


# Programs and workers.


def repeat(call: Call[Any], faults: tuple[str, ...] = FAULTS) -> Generator[Operation, Any, Any]:
    """Make a call until its reply comes, as programs and workers do; return that."""
    epoch = yield Epoch()
    reply = yield Do(call, faults)
    if call.again is not None:
        call = call.again(BASE + epoch * EPOCH)
    while reply == LOST:
        reply = yield Do(call)
    return reply


def ends(job: str, run: str, outcome: str) -> Process:
    """Make a worker end a run."""
    yield from repeat(end_run("U", FetchedJob(job, 1, 0.0, b"", run=run), outcome))


def end_run(worker: str, job: FetchedJob, outcome: str) -> Call[Any]:
    if outcome == "done":
        return STORE.complete(worker, [(job, Done(b"1", 300.0, False))])
    return STORE.bury(worker, [(job, Buried("it failed", False))])


def runs(*jobs: str) -> Process:
    """Make a worker wait for jobs, run them one after the other, and end them."""
    for job in jobs:
        reply, begun = None, None
        while begun is None:
            reply = yield Do(STORE.dispatch(limit=100, cap=CAP), ())
            held = yield Do(STORE.held("V"), ())
            reply = yield Do(STORE.start("V", held, hold=len(jobs), lease=LEASE, cap=CAP), ("lost", "unsent"))
            if reply != LOST:
                begun = next((one for one in reply.jobs if one.id == job), None)
            reply = held = None
        yield from repeat(end_run("V", begun, "done"))


def revives(job: str) -> Process:
    """Revive a job when it is dead, and run it again."""
    reply = "refused"
    while str(reply).startswith("refused"):
        reply = yield from repeat(STORE.revive([job]))
    yield from runs(job)


def closes(*batches: str, how: Any = "") -> Process:
    """Close batches, or cancel them."""
    for batch in batches:
        yield from repeat(STORE.batch_close(batch, how=how))


def adds(member: str = "", run: str = "") -> Process:
    """Add a job to the batch: as another program, or in the run of a member, which ends then."""
    call = STORE.batch_add(BATCH, "t", 1, QUEUE, member=member)
    reserved = yield from repeat(_settled_soon(call))
    if reserved.first is not None:
        until = reserved.now + RESERVED
        job = New(f"{BATCH}.{reserved.first}", _PAYLOAD)
        put = STORE.enqueue([job], batch=f"{QUEUE}/{BATCH}/{reserved.first}/{until:.6f}")
        # One that comes after its repetition, and after the cancel of that job, enqueues it again: see lua/enqueue.lua.
        enqueued = yield from repeat(put, ("lost", "unsent"))
        if not str(enqueued).startswith("refused"):
            yield from repeat(STORE.batch_add(BATCH, "confirm", 0, confirms="t"))
    if member:
        yield from repeat(end_run("U", FetchedJob(f"{BATCH}.{member}", 1, 0.0, b"", run=run), "done"))


def _settled_soon(call: Call[Any]) -> Call[Any]:
    return structs.replace(call, words=(*call.words[:7], repr(_SETTLED), *call.words[8:]))


# What must hold.


def check(before: State | None, state: State, step: str) -> str | None:
    """Return what is wrong with the batches of a state."""
    for batch in (BATCH, PARENT):
        if f"batch:{batch}" in state.snapshot.keys:
            wrong = _check(state.snapshot, batch)
            if wrong:
                return f"batch {batch} {wrong}"
    return None


def _check(snapshot: Snapshot, batch: str) -> str | None:
    record, codes = record_of(snapshot, batch), codes_of(snapshot, batch)
    counted = {name: codes.count(code) for code, name in enumerate(_COUNTS, 1)}
    said = {name: int(record.get(name, 0)) for name in _COUNTS}
    if said != counted:
        return f"says {said}, its ordinals {counted}"
    open_ = [field for field in record if field.startswith("adding:")]
    if int(record["adding"]) != len(open_):
        return f"says {record['adding']} reservations, it has {open_}"
    for ordinal, code in enumerate(codes):
        fates = fates_of(snapshot, batch, ordinal)
        is_node = ordinal < int(record.get("nodes", 0))
        if code in (1, 2, 3, 4) and code not in fates and not (is_node and code == 3 and record.get("stop")):
            return f"counts member {ordinal} as {_COUNTS[code - 1]}, it has been {fates}"
        if code == 5 and batch == BATCH and f"job:{batch}.{ordinal}" in snapshot.keys:
            return f"counts member {ordinal} as missing, it is there"
        if code > 5 and not is_node:
            return f"gives member {ordinal} the code {code}, it is not a node"
    called = _called(snapshot, batch)
    if len({number for _, number in called}) != len(called) or any(n > int(record["round"]) for _, n in called):
        return f"has ended {record['round']} times, it has called {called}"
    if record["state"] == "cancelled":  # it stays so, whatever a revived job does
        codes = [code for code, turn in zip(codes, _turns(snapshot, batch), strict=True) if code or not turn]
    if record["state"] in _OVER and (open_ or {0, 7} & {*codes} or not record.get("closed")):
        return f"is {record['state']}, with {codes} and {open_}"
    return None


def record_of(snapshot: Snapshot, batch: str) -> dict[str, str]:
    return snapshot.pairs(f"batch:{batch}")


def codes_of(snapshot: Snapshot, batch: str) -> list[int]:
    """Return how each member has ended, as its home has it."""
    return [byte % 8 for byte in _bytes(snapshot, batch)]


def _turns(snapshot: Snapshot, batch: str) -> list[int]:
    return [byte // 8 for byte in _bytes(snapshot, batch)]


def _bytes(snapshot: Snapshot, batch: str) -> list[int]:
    total = int(record_of(snapshot, batch)["total"])
    found = [ord(char) for char in "".join(snapshot.items(f"batch_ends:{batch}"))]
    return found[:total] + [0] * (total - len(found))


def _called(snapshot: Snapshot, batch: str) -> list[tuple[str, int]]:
    """Return the callbacks that have been scheduled: the outcome, and of which end."""
    prefix = f"evsched:{{{CALLBACKS}}}:job:{batch}."
    found = [name.removeprefix(prefix).split(".") for name in snapshot.keys if name.startswith(prefix)]
    return [(outcome, int(number)) for outcome, number, _ in found]


def fates_of(snapshot: Snapshot, batch: str, ordinal: int) -> list[int]:
    """Return how a member has ended so far, by its codes; the last one last."""
    if batch == PARENT:
        child = record_of(snapshot, BATCH)
        last = {"done": [1], "failed": [2], "cancelled": [3]}.get(child.get("state", ""), [])
        return [2] * (int(child.get("round", 0)) - len(last)) + last  # only one that has failed is opened again
    job = f"{batch}.{ordinal}"
    rows = [row.split(" ") for row in snapshot.items("history")]
    return sorted(_CODES[outcome] for one, outcome in rows if one == job)[::-1]


# Recovery.


@dataclass
class _Recovering:
    index: int
    snapshot: Snapshot
    process: Generator[Operation, Any, str | None]
    reply: Any = None
    epoch: int = 200


class Recovery(NamedTuple):
    """How a batch recovers: an hour later, all jobs are run, and one keeper does the chores that are left."""

    far: bool = False
    depth: int = 1
    """Of the graph: how many of its nodes stand one behind the other."""
    starter: type[Starter] = Starter

    def recover(self, redis: SavedRedis, states: list[State]) -> list[str | None]:
        """Recover from many states."""
        results: list[str | None] = ["recovery does not end"] * len(states)
        waiting = [_Recovering(at, state.snapshot, self._recovery(state.snapshot)) for at, state in enumerate(states)]
        for turn in range(150 * self.depth):
            going, calls = list[_Recovering](), list[tuple[Snapshot, Call[Any], Clock]]()
            for one in waiting:
                try:
                    operation = one.process.send(one.reply)
                    while isinstance(operation, Epoch):
                        one.epoch = 200 + turn
                        operation = one.process.send(one.epoch)
                except StopIteration as end:
                    results[one.index] = end.value or _check_end(one.snapshot)
                    continue
                going.append(one)
                calls.append((one.snapshot, cast(Do, operation).call, Clock(one.epoch)))
            for one, made in zip(going, redis.make(calls), strict=True):
                one.snapshot, one.reply = made
            waiting = going
        return results

    def _recovery(self, snapshot: Snapshot) -> Generator[Operation, Any, str | None]:
        real = Keeper(far=self.far, starter=self.starter)
        elsewhere = [name for name in snapshot.keys if name.startswith(f"evsched:{{{CALLBACKS}}}:")]
        if self.far and elsewhere:
            yield Do(Call(("DEL", *elsewhere), int))  # that server has failed over, and has lost its last writes
        for batch in (BATCH, PARENT):
            yield Do(STORE.batch_close(batch))
        for worker in ("U", "V"):
            lease = yield Do(Call((*("ZSCORE", f"evsched:{{{QUEUE}}}:leases"), worker), lambda reply: reply or b"none"))
            yield Do(STORE.requeue(worker, "died", lease=lease, limit=100))
        yield from do_chores(real)  # before jobs run that are to be cancelled
        for _ in range(self.depth + 1):
            yield Do(STORE.dispatch(limit=100, cap=CAP))
            yield Do(STORE.heartbeat("w", 1e6, fresh=True))
            reply = yield Do(STORE.start("w", [], hold=10, lease=1e6, cap=CAP))
            if reply.jobs and record_of(snapshot, BATCH).get("nodes") and (yield Do(STORE.batch_field(BATCH, "stop"))):
                for job in reply.jobs:
                    if (yield Do(STORE.member_of(job.id))).count(b"/") == 2:  # it was not revived
                        return f"{job.id} runs, although its batch was cancelled"
            for job in reply.jobs:
                yield Do(end_run("w", job, "done"))
            if self.depth > 1:
                yield from do_chores(real)
        yield from do_chores(real)
        return None


def do_chores(real: Keeper) -> Process:
    """Do all chores that are ever due, in some epochs."""
    for _ in range(12):
        left = yield Do(STORE.chores(100))
        if all(step.startswith("forget ") for step, _ in left):
            return
        call = real.begin((yield Epoch()))
        while call is not None:
            call = real.go_on((yield Do(call)))


def _check_end(snapshot: Snapshot) -> str | None:
    left = [step for step in snapshot.pairs("chores") if not step.startswith("forget ")]
    if left:
        return f"chores are left: {left}"
    for batch in (BATCH, PARENT):
        record = record_of(snapshot, batch)
        if not record:
            continue
        codes = codes_of(snapshot, batch)
        if record["state"] not in _OVER:
            return f"batch {batch} does not end: {record}, {codes}"
        for ordinal, code in enumerate(codes):
            fates = fates_of(snapshot, batch, ordinal)
            without = [5]
            if ordinal < int(record.get("nodes", 0)):
                without = [3, 5, 6] if record.get("stop") else [6]
            if code not in ([_last(snapshot, batch, ordinal, fates)] if fates else without):
                return f"batch {batch} counts member {ordinal} as {code}, it has been {fates}"
        called = sorted(_called(snapshot, batch), key=lambda one: one[1])
        rounds = int(record["round"]) - (record["state"] == "cancelled")
        outcomes = ["failed"] * (rounds - 1) + [record["state"] if record["state"] != "cancelled" else "failed"]
        if called != [(outcome, number) for number, outcome in enumerate(outcomes[:rounds], 1)]:
            return f"batch {batch} is {record['state']}, has ended {record['round']} times, and has called {called}"
        if rounds and record["state"] != "cancelled":
            said = json.loads(snapshot.pairs(_callback(snapshot, batch, *called[-1]))["payload"])["args"][0]
            counts = {name: int(record.get(name, 0)) for name in _COUNTS[:4]}
            counts["total"] = int(record["total"]) - int(record.get("missing", 0))
            if {name: said[name] for name in counts} != counts:
                return f"the callback of batch {batch} says {said}, the batch {counts}"
    return None


def _callback(snapshot: Snapshot, batch: str, outcome: str, number: int) -> str:
    prefix = f"evsched:{{{CALLBACKS}}}:job:{batch}.{outcome}.{number}."
    return next(name for name in snapshot.keys if name.startswith(prefix))


def _last(snapshot: Snapshot, batch: str, ordinal: int, fates: Sequence[int]) -> int:
    if batch == PARENT:
        return fates[-1]
    outcome = snapshot.pairs(f"job:{batch}.{ordinal}").get("outcome")
    return _CODES[outcome] if outcome else max(fates, key=lambda code: code == 3)


# The scenes.


class Setup:
    """The calls that lead to the start of a scene."""

    def __init__(self, redis: SavedRedis) -> None:
        self._redis = redis
        self.snapshot = redis.setup([("SET", "x", "")])

    def make(self, call: Call[Any]) -> Any:
        """Make a call, and return its reply."""
        ((self.snapshot, reply),) = self._redis.make([(self.snapshot, call, Clock())])
        return reply

    def run(self, most: int) -> dict[str, str]:
        """Start jobs in worker U, and give V a lease; return the names of their runs by their ids."""
        for worker in ("U", "V"):
            self.make(STORE.heartbeat(worker, LEASE, fresh=True))
        if most:
            self.make(STORE.dispatch(limit=most, cap=CAP))
        found = self.make(STORE.start("U", [], hold=2, lease=LEASE, cap=CAP))
        return {job.id: job.run for job in found.jobs}


def _start(redis: SavedRedis, jobs: int, started: int, *, parent: bool) -> tuple[Snapshot, dict[str, str]]:
    """Return the state in which a batch has jobs, of which some run, and the names of their runs."""
    setup = Setup(redis)
    make = setup.make

    def add(batch: str, count: int, ids: Sequence[str] = ()) -> float:
        found = make(STORE.batch_add(batch, "x", count, QUEUE, ids=ids))
        make(STORE.batch_add(batch, "confirm", 0, confirms="x"))
        return found.now

    if parent:
        make(STORE.batch_open(PARENT, "x", retention=9e5, fields=FIELDS))
        add(PARENT, 1, [f"/{BATCH}"])
    address = f"{QUEUE}/{PARENT}/0" if parent else ""
    make(STORE.batch_open(BATCH, "x", retention=9e5, fields=FIELDS, parent=address))
    now = add(BATCH, jobs)
    rows = [New(f"{BATCH}.{n}", _PAYLOAD) for n in range(jobs)]
    make(STORE.enqueue(rows, batch=f"{QUEUE}/{BATCH}/0/{now + RESERVED:.6f}"))
    runs = setup.run(started)
    return setup.snapshot, runs


Processes = dict[str, Callable[[], Process]]


class Plan(NamedTuple):
    """A scene: how many jobs the batch has at first, how many of them run, and the processes beside the keepers."""

    jobs: int
    started: int
    processes: Callable[[Mapping[str, str]], Processes]
    """By the runs of the jobs."""
    parent: bool = False
    far: bool = False


def _two_jobs(started: Mapping[str, str]) -> Processes:
    return {
        "one": lambda: ends("b.0", started["b.0"], "done"),
        "two": lambda: ends("b.1", started["b.1"], "dead"),
        "closer": lambda: closes(BATCH),
        "reviver": lambda: revives("b.1"),
    }


def _one_job(started: Mapping[str, str]) -> Processes:
    return {
        "one": lambda: ends("b.0", started["b.0"], "dead"),
        "closer": lambda: closes(BATCH),
        "reviver": lambda: revives("b.0"),
    }


def _of_parent(started: Mapping[str, str]) -> Processes:
    return _one_job(started) | {"closer": lambda: closes(PARENT, BATCH)}


def _growing(started: Mapping[str, str]) -> Processes:
    return {
        "adder": lambda: adds("0", started["b.0"]),
        "closer": lambda: closes(BATCH),
        "runner": lambda: runs("b.1"),
    }


def _cancelled(started: Mapping[str, str]) -> Processes:
    return {
        "one": lambda: ends("b.0", started["b.0"], "done"),
        "adder": lambda: adds(),
        "canceller": lambda: closes(BATCH, how="cancelled"),
    }


PLANS: Final[Mapping[str, Plan]] = {
    "batch": Plan(2, 2, _two_jobs),
    "batch in a batch": Plan(1, 1, _of_parent, parent=True),
    "batch on another server": Plan(1, 1, _one_job, far=True),
    "batch that grows": Plan(1, 1, _growing),
    "batch that is cancelled": Plan(2, 1, _cancelled),
}
"""By name. All have two keepers besides."""

KEEPERS: Final = ("Y", "Z")


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
    assert not old, "the previous release has no batches"
    plan = PLANS[name]
    start, started = _start(redis, plan.jobs, plan.started, parent=plan.parent)
    processes, recovery = plan.processes(started), Recovery(far=plan.far)
    return scene_of(
        redis, start, processes, check, recovery, faults=faults, kinds=kinds, epochs=epochs, without=without
    )


def scene_of(
    redis: SavedRedis,
    start: Snapshot,
    processes: Processes,
    check: Callable[[State | None, State, str], str | None],
    recovery: Recovery,
    *,
    without: Sequence[str],
    **scope: Any,
) -> Scene:
    """Return a scene of some processes and two keepers."""
    keepers = {one: lambda: keeper(Keeper(far=recovery.far, starter=recovery.starter)) for one in KEEPERS}
    present = {one: process for one, process in (processes | keepers).items() if one not in without}
    return Scene(
        redis,
        start,
        present,
        check,
        lambda states: recovery.recover(redis, states),
        mortal=tuple(one for one in present if one not in KEEPERS),
        twins=None if without and {*without} & {*KEEPERS} else ("Y", "Z"),
        **scope,
    )
