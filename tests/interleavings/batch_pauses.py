"""Scenes of a batch that programs pause and resume, while a worker fetches a job of it and a keeper does the chores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

from evsched.store.batch_pauses import BatchPause, Hold
from evsched.store.client_calls import New
from evsched.transport.call import Call, raw
from tests.interleavings.batches import (
    BATCH,
    FIELDS,
    RESERVED,
    Process,
    Processes,
    Recovery,
    Setup,
    check,
    closes,
    do_chores,
    end_run,
    record_of,
    repeat,
    scene_of,
)
from tests.interleavings.keepers import Keeper
from tests.interleavings.processes import CAP
from tests.interleavings.releases import LEASE, QUEUE, STORE
from tests.interleavings.search import FAULTS, LOST, Do, Note, Operation, Scene, State
from tests.interleavings.server import SavedRedis, Snapshot

_JOB: Final = f"{BATCH}.0"
_ROOT: Final = f"evsched:{{{QUEUE}}}:"


def changes(*held: str) -> Process:
    """Pause the batch for each reason, and resume it for each that is empty, as `evsched/batches/pausing.py` does.

    A call that comes after its repetition pauses the batch anew: so only the calls to the queue may come late.
    """
    for why in held:
        change = STORE.batch_pause(BATCH, held=why != "", after=RESERVED, why=why)
        paused = yield from repeat(change, ("lost", "unsent", "dead"))
        if not isinstance(paused, BatchPause):
            return  # the batch has ended
        hold = Hold(f"{QUEUE}/{BATCH}", paused.stamp, "1" if paused.is_paused else "")
        if (yield from repeat(STORE.batch_hold(paused.now + RESERVED, [hold]))) is True:
            yield Note(f"applied {paused.stamp}")
            yield from repeat(STORE.end_chores([f"hold {BATCH} {paused.stamp} 0"]))
        change = paused = hold = None


def fetches() -> Process:
    """Make a worker fetch the job by BLMOVE, start it and end it."""
    yield Do(STORE.dispatch(limit=100, cap=CAP), ())
    yield Do(Call(("LMOVE", f"{_ROOT}ready", f"{_ROOT}processing:V", "LEFT", "LEFT"), raw), ())
    begun = None
    while begun is None:
        held = yield Do(STORE.held("V"), ())
        reply = yield Do(STORE.start("V", held, hold=1, lease=LEASE, cap=CAP), ("lost", "unsent"))
        if reply != LOST:
            begun = next(iter(reply.jobs), None)
        held = reply = None
    yield from repeat(end_run("V", begun, "done"))


def check_pause(before: State | None, state: State, step: str) -> str | None:
    """Return what is wrong: a job starts although the pause that is in force has been applied."""
    if before is not None:
        record = record_of(before.snapshot, BATCH)
        if "paused" in record and before.noted(f"applied {record['stamp']}"):
            attempts = [one.snapshot.pairs(f"job:{_JOB}").get("attempt", "0") for one in (before, state)]
            if attempts[1] > attempts[0]:
                return f"{_JOB} starts, although its batch is paused"
    return check(before, state, step)


class PauseRecovery(Recovery):
    """An hour later, the queue holds the jobs if the batch is paused. Then it is resumed, and its jobs run."""

    def _recovery(self, snapshot: Snapshot) -> Generator[Operation, Any, str | None]:
        yield from do_chores(Keeper())
        paused, held = (yield Do(STORE.batch_pause_of(BATCH))), (yield Do(STORE.held_batches()))
        if paused.is_paused != any(hold.held == "1" for hold in held):
            return f"the home says {paused}, the queue {held}"
        yield Do(STORE.batch_pause(BATCH, held=False, after=0.0))
        wrong = yield from super()._recovery(snapshot)
        limits = yield Do(STORE.limits())
        return wrong or (f"{limits.batches} are held" if limits.batches else None)


PLANS: Final[Mapping[str, Callable[[], Processes]]] = {
    "batch that is paused": lambda: {"pauser": lambda: changes("x", ""), "runner": fetches},
    "batch that two pause": lambda: {
        "pauser": lambda: changes("x", ""),
        "other": lambda: changes("y"),
        "runner": fetches,
    },
    "paused batch that is cancelled": lambda: {
        "pauser": lambda: changes("x"),
        "canceller": lambda: closes(BATCH, how="cancelled"),
    },
}
"""The processes by the names of the scenes. All have two keepers besides."""


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
    assert not old, "the previous release has no pauses of batches"
    setup = Setup(redis)
    setup.make(STORE.batch_open(BATCH, "x", retention=9e5, fields=FIELDS))
    now = setup.make(STORE.batch_add(BATCH, "x", 1, QUEUE)).now
    setup.make(STORE.batch_add(BATCH, "confirm", 0, confirms="x"))
    setup.make(STORE.enqueue([New(_JOB, b'{"task":"t"}')], batch=f"{QUEUE}/{BATCH}/0/{now + RESERVED:.6f}"))
    setup.run(0)
    scope: dict[str, Any] = {"faults": faults, "kinds": kinds, "epochs": epochs, "without": without}
    return scene_of(redis, setup.snapshot, PLANS[name](), check_pause, PauseRecovery(), **scope)
