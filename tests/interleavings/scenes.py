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
from tests.interleavings import batch_pauses, batches, graphs, hand_over
from tests.interleavings.processes import SIGNAL, Handlers, client, dispatcher, janitor, recurring, worker
from tests.interleavings.releases import STORE, THIS, previous
from tests.interleavings.rules import INLINE, INLINE_PAYLOAD, MEMBERS, PAYLOAD, RECORD, SECOND, Rules
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


_PAYLOADS: Final = {RECORD: PAYLOAD, INLINE: INLINE_PAYLOAD}
_WITHOUT: Final[Mapping[str, Sequence[tuple[Any, ...]]]] = {
    RECORD: [("ZREM", f"{ROOT}schedule", RECORD), ("DEL", f"{ROOT}job:{RECORD}")],
    INLINE: [("ZREM", f"{ROOT}schedule", INLINE_PAYLOAD)],
}
"""The commands that take one of the two jobs away."""
_OTHER: Final = {RECORD: INLINE, INLINE: RECORD}


def _edit(job: str) -> Edit:
    """Return an edit of a job as it is at first."""
    was = {"payload": _PAYLOADS[job].encode(), **({"group": b"g"} if job == RECORD else {})}
    return Edit(digest_of(was), b'{"task":"t","reply":true,"args":[1]}', None, "h", "k", ())


def _schedule(job: str) -> Call[int]:
    """Return the command of a foreign client that schedules an inline job, or a job whose record is there."""
    return Call(("ZADD", f"{ROOT}schedule", BASE - 1, MEMBERS.get(job, job)), int)


def _about(job: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the scenes about one of the two jobs, by name."""
    payload, other = _PAYLOADS[job].encode(), _OTHER[job]
    return {
        "once": {"rules": Rules(Handlers(once=frozenset({job})))},
        "one attempt of one job": {
            "setup": _WITHOUT[other],
            "rules": Rules(Handlers(once=frozenset({job})), jobs=frozenset({job})),
        },
        "fails": {"rules": Rules(Handlers(outcomes={job: ("retry", "bury"), other: ("snooze", "done")}))},
        "hook of a dead job": {"rules": Rules(Handlers({job: ("bury",)}, hook=Hook("h", "t")))},
        "cancel": {"calls": [STORE.cancel(job)], "rules": Rules(cancelled=frozenset({job}))},
        "reschedule": {"calls": [STORE.reschedule(job, BASE + 1.0)]},
        "edit": {
            "setup": [("HSET", f"{ROOT}limits", "concurrency:g", "1", "concurrency:h", "1")],
            "calls": [STORE.reschedule(job, None, delay=None, edit=_edit(job))],
        },
        "replace": {
            "calls": [STORE.replace([New(job, payload, due=BASE - 1.0)])],
            "rules": Rules(again=frozenset({job})),
        },
        "unique": {
            "calls": [STORE.enqueue([New(job, payload, due=BASE - 1.0)], keep=True, within=0.0)],
            "rules": Rules(again=frozenset({job})),
        },
        "again and kept": {"calls": [_schedule(job)], "rules": Rules(again=frozenset({job}))},
    }


_TASK_LIMIT: Final = "concurrency:task:i"

SCENES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "one slot": {"rules": Rules(Handlers(slots=1, shared=True))},
    "limit": {
        "setup": [("HSET", f"{ROOT}limits", "concurrency", "1")],
        "rules": Rules(limited=lambda jobs: len(jobs) <= 1),
    },
    "group": {
        "setup": [
            ("HSET", f"{ROOT}limits", "concurrency:g", "1"),
            ("HSET", f"{ROOT}job:b", "payload", PAYLOAD, "group", "g"),
            ("ZADD", f"{ROOT}schedule", BASE - 1, "b"),
            *_WITHOUT[INLINE],
        ],
        "rules": Rules(jobs=frozenset({RECORD, "b"}), limited=lambda jobs: len({RECORD, "b"} & {*jobs}) <= 1),
    },
    "hook": {"rules": Rules(Handlers(hook=Hook("h", "t")))},
    **_about(RECORD),
    "again": {
        "calls": [_schedule(INLINE)],
        "rules": Rules(Handlers(retention=0.0), again=frozenset({INLINE})),
    },
    "pause": {
        "calls": [STORE.pause(), STORE.resume()],
    },
    "recurrence that waits": _recurrence("wait"),
    "recurrence that skips": _recurrence("skip"),
}
"""By name, what each scene has beside the two jobs, the dispatcher, the janitor and the workers."""

_LIMIT_THAT_COMES: Final = {
    "setup": _WITHOUT[RECORD],
    "calls": [STORE.limit({_TASK_LIMIT: 1.0}), _schedule(SECOND), STORE.limit({_TASK_LIMIT: None})],
    "rules": Rules(jobs=frozenset({INLINE}), limit=_TASK_LIMIT),
}

INLINES: Final[Mapping[str, Mapping[str, Any]]] = {
    **{f"{name}, inline": scene for name, scene in _about(INLINE).items()},
    "alone, inline": {"setup": _WITHOUT[RECORD], "rules": Rules(jobs=frozenset({INLINE}))},
    "alone and not kept, inline": {
        "setup": _WITHOUT[RECORD],
        "rules": Rules(Handlers(retention=0.0), jobs=frozenset({INLINE})),
    },
    "limit of a task that comes and goes, inline": _LIMIT_THAT_COMES,
}
"""The scenes about the inline job."""


def _signal(job: str, timeout: float | None) -> dict[str, Any]:
    return {
        "setup": _WITHOUT[_OTHER[job]],
        "rules": Rules(Handlers(waits={job: timeout}), jobs=frozenset({job})),
        "calls": [STORE.signal(job, SIGNAL, b"1"), STORE.signal(job, SIGNAL, b"2")],
    }


SIGNALS: Final[Mapping[str, Mapping[str, Any]]] = {
    "signal": _signal(RECORD, None),
    "signal in time": _signal(RECORD, EPOCH / 2),
    "signal, inline": _signal(INLINE, None),
    "signal in time, inline": _signal(INLINE, EPOCH / 2),
}
"""The scenes of a job that waits for a signal, which the previous release does not know."""

BATCHES: Final = (*batches.PLANS, *batch_pauses.PLANS)
"""The scenes of batches, by name."""

HAND_OVERS: Final = tuple(hand_over.PLANS)
"""The scenes of jobs that are handed over to workers, by name."""

GRAPHS: Final = tuple(graphs.PLANS)
"""The scenes of graphs, by name."""


def run(name: str, redis: SavedRedis, *, most: int = 10_000_000, failures: int = 1, **scope: Any) -> Result:
    """Search a scene.

    `scope`: `faults`, `epochs`, `without`, the processes that are left out, and `old`, those of the previous release.
    `excuses`: whether these may do the harm that is documented. `kinds`: the kinds of faults.
    """
    if found := next((plans for plans in (batches, batch_pauses, graphs, hand_over) if name in plans.PLANS), None):
        scene = found.make(name, redis, **scope)
    else:
        scene = _make(redis, **{**SCENES, **INLINES, **SIGNALS}[name], **scope)
    return search(scene, most=most, failures=failures)
