"""Scenes of batches: their jobs, ends, additions, cancels and revivals, and the keepers, whose own code runs here.

The home of the batch is the queue of its jobs; callbacks are scheduled in another queue, where nobody runs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from types import coroutine
from typing import Any, Final, NamedTuple, cast

from msgspec import structs

from evsched.batches.keeper import BatchKeeper
from evsched.client.client import Client
from evsched.client.operations import Nodes, Send, SendMany, Step
from evsched.config import Config
from evsched.errors import JobExists, JobLate, JobMissing, StoreRefused
from evsched.jobs.job import Buried, Done, FetchedJob
from evsched.runtime.loops import Runtime
from evsched.store.client_calls import New
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender
from tests.interleavings.processes import CAP
from tests.interleavings.releases import LEASE, QUEUE, STORE
from tests.interleavings.search import FAULTS, LOST, Do, Epoch, Operation, Process, Scene, State
from tests.interleavings.server import BASE, EPOCH, NOW, Clock, SavedRedis, Snapshot

BATCH: Final = "b"
PARENT: Final = "o"
"""The batch that the other one is a member of, in some scenes."""
CALLBACKS: Final = "c"
"""The queue of callbacks."""

_PAYLOAD: Final = b'{"task":"t"}'
_FIELDS: Final = {
    f"on_{outcome}": json.dumps({"queue": CALLBACKS, "payload": {"task": outcome}}) for outcome in ("done", "failed")
}
_RESERVED: Final = 5.0
_SETTLED: Final = 10.0
"""Seconds of a reservation: shorter than an epoch, since only the order of times is compared."""
_LOOK: Final = 8.0
"""When a keeper reads the clock, in seconds after the begin of an epoch: after its steps."""
_OVER: Final = ("done", "failed", "cancelled")
_CODES: Final = {"open": 0, "done": 1, "dead": 2, "cancelled": 3, "expired": 4}
_COUNTS: Final = ("done", "dead", "cancelled", "expired", "missing")


# The keeper's own code, whose calls the search makes.


class _Asked(NamedTuple):
    call: Call[Any]


@coroutine
def _ask(call: Call[Any]) -> Generator[_Asked, Any, Any]:
    reply = yield _Asked(call)
    if isinstance(reply, str) and reply.startswith("refused: "):
        code = reply.removeprefix("refused: ").partition(" ")[0]
        raise {"MISSING": JobMissing, "EXISTS": JobExists, "LATE": JobLate}.get(code, StoreRefused)(reply)
    return reply


class _Sender(BatchingSender):
    """Has the search make its calls; a moment of Redis's clock is one of the epoch."""

    epoch = 0

    async def send(self, call: Call[Any]) -> Any:
        if call.words[0] == "TIME":
            return BASE + self.epoch * EPOCH + _LOOK
        words = call.words
        if call.script is not None and words[2] == "":
            words = (*words[:2], NOW, *words[3:])
        return await _ask(structs.replace(call, words=words))

    async def send_all(self, calls: Any) -> list[Any]:
        return [await self.send(call) for call in calls]


class _Client(Client):
    def __init__(self, sender: _Sender, nodes: list[Any]) -> None:
        super().__init__("redis://127.0.0.1")
        self._driven = sender
        self._nodes = nodes

    async def perform(self, step: Step) -> Any:
        match step:
            case Send(call):
                return await self._driven.send(call)
            case SendMany(calls):
                return await self._driven.send_all(calls)
            case Nodes():
                return self._nodes
            case _:
                raise AssertionError(f"the keeper makes a step of another kind: {step}")


class Keeper:
    """A keeper of batches, one call after another."""

    def __init__(self, *, far: bool = False) -> None:
        """`far`: the home of the batch is on another server of a cluster."""
        self._sender = _Sender("redis://127.0.0.1")
        runtime = Runtime(Config(), self._sender, lambda _event: None)
        if far:
            runtime = structs.replace(runtime, part=structs.replace(runtime.part, node=cast(Any, "here")))
        self._keeper = BatchKeeper(runtime, lambda: [QUEUE])
        cast(Any, self._keeper)._client = _Client(self._sender, ["there" if far else None])
        self._step: Coroutine[Any, Any, Any] | None = None

    def begin(self, epoch: int) -> Call[Any] | None:
        """Begin a step; return its first call."""
        self._sender.epoch = epoch
        if self._step is not None:
            self._step.close()
        self._step = self._keeper.step(QUEUE)
        return self.go_on(None)

    def go_on(self, reply: Any) -> Call[Any] | None:
        """Give the step a reply; return its next call, None at its end."""
        assert self._step is not None
        try:
            return self._step.send(reply).call
        except StopIteration:
            return None


def keeper(real: Keeper) -> Process:
    """`evsched/batches/keeper.py`. When a reply is lost, it begins again, as another one does after a crash."""
    while True:
        epoch = yield Epoch()
        call, replies = real.begin(epoch), ()
        while call is not None:  # where it is follows from the replies of this step
            reply = yield Do(call, ("lost", "late", "unsent") if call.writes else ())
            if reply == LOST:
                break
            call, replies = real.go_on(reply), (*replies, reply)
            reply = None
        epoch = call = replies = reply = None


# Programs and workers.


def _repeat(call: Call[Any], faults: tuple[str, ...] = FAULTS) -> Generator[Operation, Any, Any]:
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
    yield from _repeat(_end("U", FetchedJob(job, 1, 0.0, b"", run=run), outcome))


def _end(worker: str, job: FetchedJob, outcome: str) -> Call[Any]:
    if outcome == "done":
        return STORE.complete(worker, [(job, Done(b"1", 300.0, False))])
    return STORE.bury(worker, [(job, Buried("it failed", False))])


def runs(job: str) -> Process:
    """Make a worker wait for a job, run it, and end it."""
    reply, begun = None, None
    while begun is None:
        reply = yield Do(STORE.dispatch(limit=100, cap=CAP), ())
        held = yield Do(STORE.held("V"), ())
        reply = yield Do(STORE.start("V", held, hold=1, lease=LEASE, cap=CAP), ("lost", "unsent"))
        if reply != LOST:
            begun = next((one for one in reply.jobs if one.id == job), None)
        reply = held = None
    yield from _repeat(_end("V", begun, "done"))


def revives(job: str) -> Process:
    """Revive a job when it is dead, and run it again."""
    reply = "refused"
    while str(reply).startswith("refused"):
        reply = yield from _repeat(STORE.revive([job]))
    yield from runs(job)


def closes(*batches: str, how: Any = "") -> Process:
    """Close batches, or cancel them."""
    for batch in batches:
        yield from _repeat(STORE.batch_close(batch, how=how))


def adds(member: str = "", run: str = "") -> Process:
    """Add a job to the batch: as another program, or in the run of a member, which ends then."""
    call = STORE.batch_add(BATCH, "t", 1, QUEUE, member=member)
    reserved = yield from _repeat(_settled_soon(call))
    if reserved.first is not None:
        until = reserved.now + _RESERVED
        job = New(f"{BATCH}.{reserved.first}", _PAYLOAD)
        put = STORE.enqueue([job], batch=f"{QUEUE}/{BATCH}/{reserved.first}/{until:.6f}")
        # One that comes after its repetition, and after the cancel of that job, enqueues it again: see lua/enqueue.lua.
        enqueued = yield from _repeat(put, ("lost", "unsent"))
        if not str(enqueued).startswith("refused"):
            yield from _repeat(STORE.batch_add(BATCH, "confirm", 0, confirms="t"))
    if member:
        yield from _repeat(_end("U", FetchedJob(f"{BATCH}.{member}", 1, 0.0, b"", run=run), "done"))


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
    record, codes = _record(snapshot, batch), _codes(snapshot, batch)
    counted = {name: codes.count(code) for code, name in enumerate(_COUNTS, 1)}
    said = {name: int(record.get(name, 0)) for name in _COUNTS}
    if said != counted:
        return f"says {said}, its ordinals {counted}"
    open_ = [field for field in record if field.startswith("adding:")]
    if int(record["adding"]) != len(open_):
        return f"says {record['adding']} reservations, it has {open_}"
    for ordinal, code in enumerate(codes):
        fates = _fates(snapshot, batch, ordinal)
        if code in (1, 2, 3, 4) and code not in fates:
            return f"counts member {ordinal} as {_COUNTS[code - 1]}, it has been {fates}"
        if code == 5 and batch == BATCH and f"job:{batch}.{ordinal}" in snapshot.keys:
            return f"counts member {ordinal} as missing, it is there"
    called = _called(snapshot, batch)
    if len({number for _, number in called}) != len(called) or any(n > int(record["round"]) for _, n in called):
        return f"has ended {record['round']} times, it has called {called}"
    if record["state"] in _OVER and (open_ or 0 in codes or not record.get("closed")):
        return f"is {record['state']}, with {codes} and {open_}"
    return None


def _record(snapshot: Snapshot, batch: str) -> dict[str, str]:
    return snapshot.pairs(f"batch:{batch}")


def _codes(snapshot: Snapshot, batch: str) -> list[int]:
    total = int(_record(snapshot, batch)["total"])
    found = [ord(char) % 8 for char in "".join(snapshot.items(f"batch_ends:{batch}"))]
    return found[:total] + [0] * (total - len(found))


def _called(snapshot: Snapshot, batch: str) -> list[tuple[str, int]]:
    """Return the callbacks that have been scheduled: the outcome, and of which end."""
    prefix = f"evsched:{{{CALLBACKS}}}:job:{batch}."
    found = [name.removeprefix(prefix).split(".") for name in snapshot.keys if name.startswith(prefix)]
    return [(outcome, int(number)) for outcome, number in found]


def _fates(snapshot: Snapshot, batch: str, ordinal: int) -> list[int]:
    """Return how a member has ended so far, by its codes; the last one last."""
    if batch == PARENT:
        child = _record(snapshot, BATCH)
        last = {"done": [1], "failed": [2], "cancelled": [3]}.get(child.get("state", ""), [])
        return [2] * (int(child.get("round", 0)) - len(last)) + last  # only one that has failed is opened again
    job = f"{batch}.{ordinal}"
    rows = [row.split(" ") for row in snapshot.items("history")]
    return sorted(_CODES[outcome] for one, outcome in rows if one == job)[::-1]


# Recovery.


def recover(redis: SavedRedis, states: list[State], *, far: bool) -> list[str | None]:
    """Recover from many states: an hour later, all jobs are run, and one keeper does the chores that are left."""
    results: list[str | None] = ["recovery does not end"] * len(states)
    waiting = [(at, state.snapshot, _recovery(state.snapshot, far=far), None) for at, state in enumerate(states)]
    turn = 0
    while waiting and turn < 150:
        calls, going = list[tuple[Snapshot, Call[Any], Clock]](), list[tuple[int, Process]]()
        for index, snapshot, process, reply in waiting:
            try:
                operation = process.send(reply)
                while isinstance(operation, Epoch):
                    operation = process.send(200 + turn)
            except StopIteration:
                results[index] = _check_end(snapshot)
                continue
            going.append((index, process))
            calls.append((snapshot, cast(Do, operation).call, Clock(200 + turn)))
        done = redis.make(calls)
        waiting = [
            (index, snapshot, process, reply) for (index, process), (snapshot, reply) in zip(going, done, strict=True)
        ]
        turn += 1
    return results


def _recovery(snapshot: Snapshot, *, far: bool) -> Process:
    real, elsewhere = Keeper(far=far), [name for name in snapshot.keys if name.startswith(f"evsched:{{{CALLBACKS}}}:")]
    if far and elsewhere:
        yield Do(Call(("DEL", *elsewhere), int))  # that server has failed over, and has lost its last writes
    for batch in (BATCH, PARENT):
        yield Do(STORE.batch_close(batch))
    for worker in ("U", "V"):
        lease = yield Do(Call((*("ZSCORE", f"evsched:{{{QUEUE}}}:leases"), worker), lambda reply: reply or b"none"))
        yield Do(STORE.requeue(worker, "died", lease=lease, limit=100))
    yield from _chores(real)  # before jobs run that are to be cancelled
    for _ in range(2):
        yield Do(STORE.dispatch(limit=100, cap=CAP))
        yield Do(STORE.heartbeat("w", 1e6, fresh=True))
        reply = yield Do(STORE.start("w", [], hold=10, lease=1e6, cap=CAP))
        for job in reply.jobs:
            yield Do(_end("w", job, "done"))
    yield from _chores(real)


def _chores(real: Keeper) -> Process:
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
        record = _record(snapshot, batch)
        if not record:
            continue
        codes = _codes(snapshot, batch)
        if record["state"] not in _OVER:
            return f"batch {batch} does not end: {record}, {codes}"
        for ordinal, code in enumerate(codes):
            fates = _fates(snapshot, batch, ordinal)
            if code != (_last(snapshot, batch, ordinal, fates) if fates else 5):
                return f"batch {batch} counts member {ordinal} as {code}, it has been {fates}"
        called = sorted(_called(snapshot, batch), key=lambda one: one[1])
        rounds = int(record["round"]) - (record["state"] == "cancelled")
        outcomes = ["failed"] * (rounds - 1) + [record["state"] if record["state"] != "cancelled" else "failed"]
        if called != [(outcome, number) for number, outcome in enumerate(outcomes[:rounds], 1)]:
            return f"batch {batch} is {record['state']}, has ended {record['round']} times, and has called {called}"
        if rounds and record["state"] != "cancelled":
            said = json.loads(snapshot.pairs(_callback(batch, *called[-1]))["payload"])["args"][0]
            counts = {name: int(record.get(name, 0)) for name in _COUNTS[:4]}
            counts["total"] = int(record["total"]) - int(record.get("missing", 0))
            if {name: said[name] for name in counts} != counts:
                return f"the callback of batch {batch} says {said}, the batch {counts}"
    return None


def _callback(batch: str, outcome: str, number: int) -> str:
    return f"evsched:{{{CALLBACKS}}}:job:{batch}.{outcome}.{number}"


def _last(snapshot: Snapshot, batch: str, ordinal: int, fates: Sequence[int]) -> int:
    if batch == PARENT:
        return fates[-1]
    outcome = snapshot.pairs(f"job:{batch}.{ordinal}").get("outcome")
    return _CODES[outcome] if outcome else max(fates, key=lambda code: code == 3)


# The scenes.


def _start(redis: SavedRedis, jobs: int, started: int, *, parent: bool) -> tuple[Snapshot, dict[str, str]]:
    """Return the state in which a batch has jobs, of which some run, and the names of their runs."""
    snapshot, reply = redis.setup([("SET", "x", "")]), None

    def make(call: Call[Any]) -> Any:
        nonlocal snapshot, reply
        ((snapshot, reply),) = redis.make([(snapshot, call, Clock())])
        return reply

    def add(batch: str, count: int, ids: Sequence[str] = ()) -> float:
        found = make(STORE.batch_add(batch, "x", count, QUEUE, ids=ids))
        make(STORE.batch_add(batch, "confirm", 0, confirms="x"))
        return found.now

    if parent:
        make(STORE.batch_open(PARENT, "x", retention=9e5, fields=_FIELDS))
        add(PARENT, 1, [f"/{BATCH}"])
    address = f"{QUEUE}/{PARENT}/0" if parent else ""
    make(STORE.batch_open(BATCH, "x", retention=9e5, fields=_FIELDS, parent=address))
    now = add(BATCH, jobs)
    rows = [New(f"{BATCH}.{n}", _PAYLOAD) for n in range(jobs)]
    make(STORE.enqueue(rows, batch=f"{QUEUE}/{BATCH}/0/{now + _RESERVED:.6f}"))
    make(STORE.heartbeat("U", LEASE, fresh=True))
    make(STORE.heartbeat("V", LEASE, fresh=True))
    if started:
        make(STORE.dispatch(limit=started, cap=CAP))
    found = make(STORE.start("U", [], hold=2, lease=LEASE, cap=CAP))
    return snapshot, {job.id: job.run for job in found.jobs}


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
    processes = plan.processes(started)
    for one in KEEPERS:
        processes[one] = lambda: keeper(Keeper(far=plan.far))
    present = {one: process for one, process in processes.items() if one not in without}
    return Scene(
        redis,
        start,
        present,
        check,
        lambda states: recover(redis, states, far=plan.far),
        faults=faults,
        kinds=kinds,
        epochs=epochs,
        mortal=tuple(one for one in present if one not in KEEPERS),
        twins=None if without and {*without} & {*KEEPERS} else ("Y", "Z"),
    )
