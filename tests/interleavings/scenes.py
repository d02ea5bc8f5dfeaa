"""The scenes: two workers, a dispatcher, a janitor and a client; two jobs, one with a record and one inline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from evsched.client.edit import digest_of
from evsched.jobs.tasks import Hook
from evsched.recurrence.recurrence import Declared
from evsched.store.client_calls import Edit, New
from evsched.transport.call import Call
from tests.interleavings import batch_pauses, batches, graphs
from tests.interleavings.processes import SIGNAL, Handlers, client, dispatcher, janitor, recurring, worker
from tests.interleavings.releases import STORE, THIS, previous
from tests.interleavings.rules import INLINE, INLINE_PAYLOAD, PAYLOAD, RECORD, Rules
from tests.interleavings.search import FAULTS, Process, Result, Scene, search
from tests.interleavings.server import BASE, EPOCH, ROOT, SavedRedis

_JOBS: Final = (
    ("HSET", f"{ROOT}job:{RECORD}", "payload", PAYLOAD, "group", "g"),
    ("ZADD", f"{ROOT}schedule", BASE - 1, RECORD, BASE - 1, INLINE_PAYLOAD),
)

DISPATCHER: Final = ("dispatcher", "janitor", "recurring")
"""The processes of the search that are loops of a dispatcher."""


def _make(
    redis: SavedRedis,
    *,
    rules: Rules = Rules(),  # noqa: B008 - it is frozen
    jobs: Sequence[tuple[Any, ...]] = _JOBS,
    setup: Sequence[tuple[Any, ...]] = (),
    calls: Sequence[Call[Any]] = (),
    recurs: bool = False,
    without: Sequence[str] = (),
    old: Sequence[str] = (),
    excuses: bool = True,
    kinds: tuple[str, ...] = FAULTS,
    faults: int,
    epochs: int,
) -> Scene:
    rules = replace(rules, old=frozenset(old if excuses else ()), history=not old)
    release = {name: previous() if name in old else THIS for name in (*DISPATCHER, "U", "V")}
    processes: Mapping[str, Callable[[], Process]] = {
        "dispatcher": lambda: dispatcher(release["dispatcher"]),
        "janitor": lambda: janitor(release["janitor"]),
        "client": lambda: client(calls),
        "recurring": lambda: recurring(release["recurring"]),
        "U": lambda: worker("U", rules.handlers, release["U"]),
        "V": lambda: worker("V", rules.handlers, release["V"]),
    }
    absent = {*without, *([] if calls else ["client"]), *([] if recurs else ["recurring"])}
    present = {name: process for name, process in processes.items() if name not in absent}
    workers = tuple(name for name in ("U", "V") if name in present)
    return Scene(
        redis,
        redis.setup([*jobs, *setup]),
        present,
        rules.check,
        lambda states: rules.recover(redis, states),
        excused=rules.excuse,
        faults=faults,
        kinds=kinds,
        epochs=epochs,
        mortal=workers,
        twins=("U", "V") if len(workers) == 2 and release["U"] is release["V"] else None,
    )


_RECURRENCE: Final = Declared(name="r", rule="every 20", payload=b'{"task":"r"}', overlap="wait")
_RECURS: Final = (
    ("HSET", f"{ROOT}recurrence:r", *(word for pair in _RECURRENCE.fields().items() if pair[1] != "" for word in pair)),
    ("ZADD", f"{ROOT}recurrences", BASE, "r"),
)


def _recurrence(overlap: str) -> dict[str, Any]:
    return {
        "jobs": [*_RECURS, ("HSET", f"{ROOT}recurrence:r", "overlap", overlap)],
        "recurs": True,
        "rules": Rules(jobs=frozenset(), alone="r@"),
    }


_EDIT: Final = Edit(
    digest_of({"payload": PAYLOAD.encode(), "group": b"g"}), b'{"task":"t","reply":true,"args":[1]}', None, "h", "k", ()
)

_FAILS: Final = {RECORD: ("retry", "bury"), INLINE: ("snooze", "done")}

SCENES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "one slot": {"rules": Rules(Handlers(slots=1, shared=True))},
    "once": {"rules": Rules(Handlers(once=frozenset({RECORD})))},
    "one attempt of one job": {
        "setup": [("ZREM", f"{ROOT}schedule", INLINE_PAYLOAD)],
        "rules": Rules(Handlers(once=frozenset({RECORD})), jobs=frozenset({RECORD})),
    },
    "limit": {
        "setup": [("HSET", f"{ROOT}limits", "concurrency", "1")],
        "rules": Rules(limited=lambda jobs: len(jobs) <= 1),
    },
    "group": {
        "setup": [
            ("HSET", f"{ROOT}limits", "concurrency:g", "1"),
            ("HSET", f"{ROOT}job:b", "payload", PAYLOAD, "group", "g"),
            ("ZADD", f"{ROOT}schedule", BASE - 1, "b"),
            ("ZREM", f"{ROOT}schedule", INLINE_PAYLOAD),
        ],
        "rules": Rules(jobs=frozenset({RECORD, "b"}), limited=lambda jobs: len({RECORD, "b"} & {*jobs}) <= 1),
    },
    "fails": {"rules": Rules(Handlers(outcomes=_FAILS))},
    "hook": {"rules": Rules(Handlers(hook=Hook("h", "t")))},
    "hook of a dead job": {"rules": Rules(Handlers({RECORD: ("bury",)}, hook=Hook("h", "t")))},
    "cancel": {"calls": [STORE.cancel(RECORD)], "rules": Rules(cancelled=frozenset({RECORD}))},
    "reschedule": {"calls": [STORE.reschedule(RECORD, BASE + 1.0)]},
    "edit": {
        "setup": [("HSET", f"{ROOT}limits", "concurrency:g", "1", "concurrency:h", "1")],
        "calls": [STORE.reschedule(RECORD, None, delay=None, edit=_EDIT)],
    },
    "replace": {
        "calls": [STORE.replace([New(RECORD, PAYLOAD.encode(), due=BASE - 1.0)])],
        "rules": Rules(again=frozenset({RECORD})),
    },
    "unique": {
        "calls": [STORE.enqueue([New(RECORD, PAYLOAD.encode(), due=BASE - 1.0)], keep=True, within=0.0)],
        "rules": Rules(again=frozenset({RECORD})),
    },
    "again": {
        "calls": [Call(("ZADD", f"{ROOT}schedule", BASE - 1, INLINE_PAYLOAD), int)],
        "rules": Rules(Handlers(retention=0.0), again=frozenset({INLINE})),
    },
    "again with a record": {
        "calls": [Call(("ZADD", f"{ROOT}schedule", BASE - 1, RECORD), int)],
        "rules": Rules(again=frozenset({RECORD})),
    },
    "pause": {
        "calls": [STORE.pause(), STORE.resume()],
    },
    "recurrence that waits": _recurrence("wait"),
    "recurrence that skips": _recurrence("skip"),
}
"""By name, what each scene has beside the two jobs, the dispatcher, the janitor and the workers."""

_ALONE: Final = [("ZREM", f"{ROOT}schedule", INLINE_PAYLOAD)]


def _signal(timeout: float | None) -> dict[str, Any]:
    return {
        "setup": _ALONE,
        "rules": Rules(Handlers(waits={RECORD: timeout}), jobs=frozenset({RECORD})),
        "calls": [STORE.signal(RECORD, SIGNAL, b"1"), STORE.signal(RECORD, SIGNAL, b"2")],
    }


SIGNALS: Final[Mapping[str, Mapping[str, Any]]] = {"signal": _signal(None), "signal in time": _signal(EPOCH / 2)}
"""The scenes of a job that waits for a signal, which the previous release does not know."""

BATCHES: Final = (*batches.PLANS, *batch_pauses.PLANS)
"""The scenes of batches, by name."""

GRAPHS: Final = tuple(graphs.PLANS)
"""The scenes of graphs, by name."""


def run(name: str, redis: SavedRedis, *, most: int = 10_000_000, failures: int = 1, **scope: Any) -> Result:
    """Search a scene.

    `scope`: `faults`, `epochs`, `without`, the processes that are left out, and `old`, those of the previous release.
    `excuses`: whether these may do the harm that is documented. `kinds`: the kinds of faults.
    """
    if found := next((plans for plans in (batches, batch_pauses, graphs) if name in plans.PLANS), None):
        scene = found.make(name, redis, **scope)
    else:
        scene = _make(redis, **{**SCENES, **SIGNALS}[name], **scope)
    return search(scene, most=most, failures=failures)
