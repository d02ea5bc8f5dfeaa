"""The scenes: which processes run, which programs, and how their jobs must end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.inline import id_of


@dataclass(frozen=True)
class Expected:
    """How a job ends if no process strikes."""

    outcome: str | None = "done"
    """None: the job is gone."""
    attempts: int = 1
    free: int = 0
    """Runs that count as no attempt."""
    hook: bool = True
    only: bool = False
    """It has one attempt: a run that is cut short ends it."""
    doubts: int = 0
    """Doubtful runs from before the scene: they count once a process dies in which the job runs alone."""


@dataclass(frozen=True)
class Scene:
    """Services run all the time; programs run one after the other, each until it has ended in order."""

    strikers: tuple[str, ...]
    """The names of the services and programs that strike, one at a time."""
    services: Mapping[str, Sequence[str]]
    """The command lines by name."""
    programs: Mapping[str, str | Sequence[str]]
    """By name: a function of programs.py, or a command line."""
    jobs: Mapping[str, Expected]
    unnamed: int = 0
    """Jobs whose ids are made of their arguments, which end as `Expected()`."""
    occurrences: int = 0
    late: frozenset[str] = frozenset()
    """The services that start after all programs but the last."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    shards: int = 0
    ledger: bool = False


QUEUE: Final = "EVSCHED_TEST_QUEUE"
SHARDS: Final = "EVSCHED_TEST_SHARDS"
RECURS: Final = "EVSCHED_TEST_RECURS"
"""Variables of the app: its queue, its number of shards, and whether it declares a recurrence and a limit."""

OCCURRENCES: Final = 2
ROWS: Final = 4
FAR: Final = 24
"""Occurrences of the recurrence, rows of the ledger, and jobs that are due much later."""

ONCE: Final = ("once-1", "once-2", "once-3", "once-4", "once-5", "once-6")
"""Jobs with one attempt, of which a worker marks several together."""

INLINE: Final = (
    '{"retention":600,"task":"work"}',
    '{"retention":600,"task":"work","args":[0.2]}',
    '{"retention":600,"task":"work_in_thread"}',
    '{"retention":600,"task":"fail_at_first"}',
    '{"retention":600,"task":"snooze_at_first"}',
    '{"retention":600,"task":"give_up"}',
    '{"retention":600,"task":"report"}',
)
"""Inline jobs without ids of their own, as a client without a library schedules them; their records are kept."""
SUSPECT: Final = '{"retention":600,"task":"work","args":[0.05]}'
FAR_INLINE: Final = tuple(f'{{"retention":600,"task":"work","kwargs":{{"seconds":{n}e-6}}}}' for n in range(12))
"""Further ones: of a job that a worker held when it died, and of jobs that are due much later."""


_DISPATCHER: Final = ("dispatcher", "--queue", "{queue}")
_APP: Final = "tests.crash_points.witness:app"
_WORKER: Final = ("worker", _APP)
_PLAIN: Final = Expected(hook=False)

SCENES: Final[Mapping[str, Scene]] = {
    "jobs": Scene(
        strikers=("client", "dispatcher", "worker"),
        services={"dispatcher": _DISPATCHER, "worker": _WORKER},
        programs={"client": "schedule"},
        jobs={
            "plain": Expected(),
            "thread": _PLAIN,
            **{name: Expected(only=True) for name in ONCE},
            "fails": Expected(attempts=2),
            "snoozes": Expected(free=1, hook=False),
            "dies": Expected("dead"),
            "sends": _PLAIN,
            "reports": _PLAIN,
            "expires": Expected("expired", attempts=0),
            "group-1": Expected(),
            "group-2": Expected(),
            "replaced": Expected(),
            "moved": Expected(),
            "gone": Expected(None, attempts=0, hook=False),
            "cancelled": Expected("cancelled", hook=False),
            "revived": Expected(free=1, hook=False),
            "inline": Expected(),
            **{id_of(member.encode()): _PLAIN for member in INLINE},
            **{id_of(member.encode()): Expected() for member in INLINE[:2]},
            id_of(INLINE[3].encode()): Expected(attempts=2),
            id_of(INLINE[4].encode()): Expected(free=1, hook=False),
            id_of(INLINE[5].encode()): Expected("dead"),
        },
        unnamed=3,
        occurrences=OCCURRENCES,
        environment={RECURS: "1"},
    ),
    "suspects": Scene(
        strikers=("worker",),
        services={"dispatcher": _DISPATCHER, "worker": _WORKER},
        programs={"client": "schedule_suspects"},
        jobs={
            "isolated": Expected(),
            "alone": Expected(doubts=1),
            "doubtful": Expected(doubts=1),
            "isolated-once": Expected(only=True),
            "process": _PLAIN,
            id_of(SUSPECT.encode()): Expected(),
        },
    ),
    "processes": Scene(
        strikers=("parent",),
        services={"dispatcher": _DISPATCHER, "parent": (*_WORKER, "--processes", "0:1")},
        programs={"client": "schedule_killer"},
        jobs=dict.fromkeys(("held-0", "held-1", "held-2", "kills", "last"), Expected()),
        environment={"EVSCHED_TEST_SCALE_DOWN_AFTER": "0.3"},
    ),
    "ledger": Scene(
        strikers=("relay",),
        services={"dispatcher": _DISPATCHER, "worker": _WORKER, "relay": ("ledger", "run")},
        programs={"client": "insert_rows"},
        jobs={
            **{f"row-{n}": Expected() for n in range(ROWS)},
            "row-moved": Expected(),
            "row-gone": Expected(None, attempts=0, hook=False),
            "row-dies": Expected("dead"),
        },
        ledger=True,
    ),
    "shards": Scene(
        strikers=("mover",),
        services={"dispatcher": _DISPATCHER, "worker": _WORKER},
        programs={"client": "schedule_far", "mover": ("queues", "shard", "{queue}", "2"), "last": "run_far"},
        jobs=dict.fromkeys(
            [*(f"far-{n}" for n in range(FAR)), *(id_of(member.encode()) for member in FAR_INLINE)], Expected()
        ),
        late=frozenset({"dispatcher", "worker"}),
        shards=2,
    ),
}
