"""Scenes of the hand-over: workers that wait for messages, the connections that bring them, and what must hold.

The messages on their way are lists in the store, and so is the set of workers that Redis counts as receivers: the two
commands for messages are replaced by commands for these keys. `RULES` are the rules by which a worker takes a message;
without any of them, the search finds a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha1
from typing import Any, Final, NamedTuple

from evsched.store.worker_calls import read_handed
from evsched.transport.call import Call, Script, raw
from tests.interleavings.processes import CAP, Handlers, dispatcher, janitor
from tests.interleavings.releases import HANDED_BACK, IDLE_LEASE, LEASE, THIS
from tests.interleavings.rules import INLINE, INLINE_PAYLOAD, PAYLOAD, RECORD, Rules
from tests.interleavings.search import DEAD, FAULTS, LOST, Do, Epoch, Note, Pick, Process, Scene, State
from tests.interleavings.server import BASE, EPOCH, NOW, ROOT, SavedRedis, unix

RULES: Final = {
    "ticket": "a message counts only with the ticket of the last question",
    "age": "a run of an old message begins only after `start` has confirmed it",
    "look": "a worker that knows of fewer jobs than its list holds reads the list",
    "slot": "a worker without a free slot hands back what it was given",
    "endless": "a ticket never comes again",
    "back": "a run that is being put back does not begin, since the call may come later",
    "watch": "a message begins nothing once the watch of the event loop has ended the wait",
}

_HEARD: Final = "redis.call('SISMEMBER', root .. 'heard', worker)"
_SENT: Final = "redis.call('RPUSH', root .. 'inbox:' .. worker, message)"
_NETWORK: Final = (
    ("*", "redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)", f"{{ channel, {_HEARD} }}"),
    ("*", "redis.pcall('SPUBLISH', channel, message)", f"{_HEARD} == 1 and {_SENT}"),
)

_FIRST: Final = 1_999_990_000
"""The first ticket. It looks like a time far ahead, so the search compares tickets by their order alone."""

_RECEIVE: Final = """#!lua
local root, worker, now = KEYS[1], ARGV[1], ARGV[2]
local message = redis.call('LPOP', root .. 'inbox:' .. worker)
local lines = {}
for line in ((message or '') .. '\\n'):gmatch('([^\\n]*)\\n') do
  lines[#lines + 1] = line
end
local id = lines[4] or ''
local run = redis.call('HMGET', root .. 'job:' .. id, 'worker', 'attempt', 'started')
local light = redis.call('HGET', root .. 'light', id)
if light then
  run[3], run[1] = light:match('^(%S+) (%S+)')
  run[2] = '1'
end
local held = redis.call('LPOS', root .. 'processing:' .. worker, id)
local ours = held and run[1] == worker and run[2] == lines[5] and run[3] == lines[2]
return { message, now, ours and '1' or '' }
"""
_CUT: Final = """#!lua
redis.call('DEL', KEYS[1] .. 'inbox:' .. ARGV[1])
return redis.call('SREM', KEYS[1] .. 'heard', ARGV[1])
"""
_SUBSCRIBE: Final = """#!lua
redis.call('DEL', KEYS[1] .. 'inbox:' .. ARGV[1])
return redis.call('SADD', KEYS[1] .. 'heard', ARGV[1])
"""
_LOSE: Final = """#!lua
return redis.call('LPOP', KEYS[1] .. 'inbox:' .. ARGV[1])
"""


class Received(NamedTuple):
    """A message, and what is true at the moment at which it is received."""

    message: bytes | None
    now: float
    ours: bool
    """The run is this worker's."""


def _received(reply: list[Any]) -> Received:
    message, now, ours = reply
    return Received(message, float(now), ours == b"1")


def _scripted(name: str, source: str, worker: str, *words: str, read: Callable[[Any], Any] = raw) -> Call[Any]:
    script = Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())
    return Call((1, ROOT, worker, *words), read, script)


def network(worker: str, *, loses: bool) -> Process:
    """Cut the connection of a worker, or lose a message on it although Redis counts it as a receiver."""
    yield Do(_scripted("lose", _LOSE, worker) if loses else _scripted("cut", _CUT, worker), ())


def worker(name: str, handlers: Handlers, rules: frozenset[str], *, reconnects: bool) -> Process:
    """`evsched/worker/consumer.py`, `fetcher.py` and `loop_watch.py`, with messages that come between the exchanges."""
    runs: dict[str, str] = {}  # id -> the run
    ended: dict[str, str] = {}  # the same, for runs whose end is to be written
    fetched: tuple[str, ...] = ()
    ticket, valid, unsure, heartbeat = _FIRST, False, True, -1
    back: tuple[str, ...] = ()  # ids that are being put back: the call may come later
    other = 0  # slots that another queue of this worker has taken
    while True:
        rests = valid and not (runs or ended or fetched or unsure)
        now = yield Epoch()
        del rests
        options = ["beat"] if now != heartbeat else []
        if heartbeat >= 0:
            options += [*(f"end {job}" for job in sorted(runs)), "receive"]
            if unsure or ended or fetched or (not valid and len(runs) + other < handlers.slots):
                options.append("exchange")
            if handlers.shared:
                options.append("other")
            if handlers.blocked and valid:
                options.append("end the wait")
            if reconnects:
                options.append("subscribe")
        act = yield Pick(tuple(options))
        options = None
        if act == "beat":
            lease = LEASE if runs or ended else IDLE_LEASE
            renewed = yield Do(THIS.heartbeat(name, lease, fresh=heartbeat < 0), ("unsent",))
            if renewed != LOST and not renewed.kept:
                runs, ended, fetched, valid, unsure = {}, {}, (), False, True
                renewed = yield Do(THIS.heartbeat(name, LEASE, fresh=True), ("unsent",))
            elif renewed != LOST and heartbeat < 0:
                yield Do(_scripted("subscribe", _SUBSCRIBE, name), ())
            elif (
                renewed != LOST
                and "look" in rules
                and (renewed.held > _known(runs, ended, fetched) or (valid and not renewed.waits))
            ):
                valid, unsure = False, True
            if renewed != LOST:
                heartbeat = now
            renewed = lease = None
        elif act == "subscribe":
            yield Do(_scripted("subscribe", _SUBSCRIBE, name), ())
            valid, unsure = False, "look" in rules
        elif act == "other":
            yield Do(Call(("PING",), raw), ())
            other = 1 - other if other or len(runs) + len(fetched) < handlers.slots else 0
        elif act == "end the wait":
            valid = "watch" not in rules
            yield Do(THIS.store.requeue(name, HANDED_BACK, ticket=ticket))
        elif act.startswith("end "):
            job = act[4:]
            ended[job] = runs.pop(job)
            yield Note(f"end {job}")
            job = None
        elif act == "receive":
            found = yield Do(_scripted("receive", _RECEIVE, name, NOW, read=_received), ())
            if found.message:
                handed = read_handed(found.message)
                job, run, sent, of = handed.job.id, handed.job.run, handed.now, handed.ticket
                handed = None
                if ("ticket" in rules and not (valid and of == ticket)) or job in {*runs, *ended, *fetched}:
                    pass
                elif "slot" in rules and len(runs) + len(fetched) + other >= handlers.slots:
                    valid, found, back = False, None, (*back, job) if "back" in rules else ()
                    if (yield Do(THIS.hand_back(name, [(job, run)]))) == LOST:
                        unsure = True
                    else:
                        back = tuple(one for one in back if one != job)
                elif "age" in rules and (found.now - BASE) // EPOCH != (sent - BASE) // EPOCH:
                    valid, fetched = False, (*fetched, job)
                else:
                    valid, runs[job] = False, run
                    yield Note(f"begin {job}")
                    if not found.ours:
                        yield Note(f"{name} begins {job}, which is not its run")
                    if len(runs) + len(fetched) + other > handlers.slots:
                        yield Note(f"{name} has more runs than slots")
                job = run = sent = of = None
            elif found.message == b"":
                valid = False
            found = None
        else:
            failed = False
            if unsure:
                valid = False
                held = yield Do(THIS.store.held(name), ())
                unknown = [job for job in dict.fromkeys(held) if job not in {*runs, *ended, *fetched}]
                keep = max(0, handlers.slots - len(runs) - len(fetched) - other)
                kept = [job for job in unknown if job not in back][:keep]
                fetched += tuple(kept)
                surplus = list[tuple[str, str]]()
                for job in unknown:
                    if job not in kept:
                        last = yield Do(THIS.store.last_run(job), ())
                        surplus.append((job, last.run if last.worker == name else ""))
                        back = (*back, job) if "back" in rules and job not in back else back
                held = unknown = keep = kept = last = job = None
                if surplus:
                    failed = (yield Do(THIS.hand_back(name, surplus))) == LOST
                back = back if failed else ()
                unsure, surplus = failed, None
            if not failed and ended:
                rows = sorted(ended.items())
                lost = yield Do(handlers.end(THIS, name, "done", rows))
                if lost == LOST:
                    failed = unsure = True
                else:
                    ended = {}
                rows = lost = None
            if not failed and (fetched or len(runs) + other < handlers.slots):
                if "endless" in rules or ticket == _FIRST:
                    ticket += 1
                valid = True
                hold = handlers.slots - other
                reply = yield Do(THIS.store.start(name, fetched, hold=hold, lease=LEASE, cap=CAP, ticket=ticket))
                if reply == LOST:
                    unsure = True
                else:
                    if not reply.leased and (runs or ended):
                        runs, ended, unsure = {}, {}, True
                    new = [run for run in THIS.runs(reply) if run[0] not in runs and run[0] not in ended]
                    known = {*runs, *ended, *(job for job, _ in new), *(job for job, _ in reply.buried)}
                    unsure = unsure or not {*fetched} <= known
                    fetched, known, job = (), None, None
                    for job, run in new:
                        runs[job] = run
                        yield Note(f"begin {job}")
                    valid = valid and reply.waits
                    if "look" in rules and reply.held > len({*runs, *ended}):
                        unsure = True
                reply = new = known = job = run = hold = _ = None
            failed = None
        act = now = None


def _known(*jobs: Sequence[str] | Mapping[str, str]) -> int:
    return len({job for some in jobs for job in some})


class HandOverRules(Rules):
    """The rules of each scene, and those about seats and messages."""

    def check(self, before: State | None, state: State, step: str) -> str | None:
        """Return what is wrong in a state, or in the step that led to it."""
        for text, _ in state.notes:
            if "not its run" in text or "more runs" in text:
                return text
        snapshot, now = state.snapshot, unix(state.clock)
        seats, idle, leases = snapshot.pairs("seats"), snapshot.pairs("idle"), snapshot.pairs("leases")
        waiting = {name for name, seat in seats.items() if seat.count(" ") == 2}  # otherwise a job was handed over
        if waiting - idle.keys():
            return f"{seats} are seats of workers that do not wait"
        heard = snapshot.items("heard")
        served = [name for name in idle if name in heard and float(leases.get(name, 0)) >= now]
        if snapshot.items("ready") and served and step != "time":
            return f"a job is ready, and {served} wait"
        for name in ("U", "V"):
            held = snapshot.items(f"processing:{name}")
            if held and float(leases.get(name, 0)) > now + LEASE:
                return f"{name} holds {held}, and its lease is long"
            new = before is not None and name in leases and name not in before.snapshot.pairs("leases")
            if new and not step.startswith((f"{name}:", "late:")):
                return f"the lease of {name} has begun again"
        return super().check(before, state, step)


def _stuck(names: Sequence[str], rules: Rules) -> Callable[[State | None, State, str], str | None]:
    """Return a check that also finds jobs in the list of a worker that waits for a message which will not come."""

    def check(before: State | None, state: State, step: str) -> str | None:
        for name, position in zip(names, state.positions, strict=False):
            waits = position is not DEAD and "'rests':True" in position.place and name in state.snapshot.items("heard")
            held = state.snapshot.items(f"processing:{name}")
            if waits and held and not state.snapshot.items(f"inbox:{name}"):
                return f"{held} are in the list of {name}, which waits for a message"
        return rules.check(before, state, step)

    return check


_JOBS: Final = (
    ("HSET", f"{ROOT}job:{RECORD}", "payload", PAYLOAD, "group", "g"),
    ("ZADD", f"{ROOT}schedule", BASE - 1, RECORD, BASE - 1, INLINE_PAYLOAD),
)
_ONE: Final = ("ZADD", f"{ROOT}schedule", BASE - 1, INLINE_PAYLOAD)

_TWO_SLOTS: Final = HandOverRules(Handlers(slots=2), jobs=frozenset({INLINE}))

PLANS: Final[Mapping[str, Mapping[str, Any]]] = {
    "hand-over": {},
    "hand-over, one job": {"jobs": [_ONE], "rules": HandOverRules(Handlers(slots=1), jobs=frozenset({INLINE}))},
    "hand-over, a limit": {
        "jobs": [*_JOBS, ("HSET", f"{ROOT}limits", "concurrency", "1")],
        "rules": HandOverRules(Handlers(slots=1), limited=lambda jobs: len(jobs) <= 1),
    },
    "hand-over, a cut connection": {"jobs": [_ONE], "cut": True, "rules": _TWO_SLOTS},
    "hand-over, a half-open connection": {"jobs": [_ONE], "loses": True, "stuck": False, "rules": _TWO_SLOTS},
    "hand-over, shared slots": {"rules": HandOverRules(Handlers(slots=1, shared=True))},
    "hand-over, a blocked event loop": {
        "jobs": [_ONE],
        "rules": HandOverRules(Handlers(slots=1, blocked=True), jobs=frozenset({INLINE})),
    },
    "hand-over, an id that is used again": {
        "jobs": [_ONE],
        "again": True,
        "rules": HandOverRules(Handlers(slots=1, retention=0.0), jobs=frozenset({INLINE}), again=frozenset({INLINE})),
    },
}
"""By name, what each scene has besides a dispatcher, a janitor and two workers that wait for messages."""


def make(
    name: str,
    redis: SavedRedis,
    *,
    faults: int,
    epochs: int,
    without: Sequence[str] = (),
    old: Sequence[str] = (),
    kinds: tuple[str, ...] = FAULTS,
    lacks: str = "",
) -> Scene:
    """Return a scene; `without`: processes that are left out. `lacks`: one of `RULES` that workers do not follow."""
    assert not old, "the previous release hands over no jobs"
    plan = PLANS[name]
    jobs = plan.get("jobs", _JOBS)
    rules: Rules = plan.get("rules") or HandOverRules(
        Handlers(slots=1), jobs=frozenset({INLINE} if jobs == [_ONE] else {RECORD, INLINE})
    )
    kept = frozenset(RULES) - {lacks}
    redis.change(_NETWORK)
    redis.hands_over = True
    processes: dict[str, Callable[[], Process]] = {
        "U": lambda: worker("U", rules.handlers, kept, reconnects="network" in processes),
        "V": lambda: worker("V", rules.handlers, kept, reconnects=False),
        "dispatcher": dispatcher,
        "janitor": janitor,
    }
    if plan.get("cut") or plan.get("loses"):
        processes["network"] = lambda: network("U", loses="loses" in plan)
    if plan.get("again"):
        processes["client"] = lambda: _schedules_again()
    present = {name: process for name, process in processes.items() if name not in without}
    workers = tuple(name for name in ("U", "V") if name in present)
    check = _stuck(workers, rules) if plan.get("stuck", True) and "late" not in kinds else rules.check
    return Scene(
        redis,
        redis.setup(jobs),
        present,
        check,
        lambda states: rules.recover(redis, states),
        faults=faults,
        kinds=kinds,
        epochs=epochs,
        mortal=workers,
        twins=("U", "V") if len(workers) == 2 and "network" not in present else None,
    )


def _schedules_again() -> Process:
    yield Do(Call(("ZADD", f"{ROOT}schedule", BASE - 1, INLINE_PAYLOAD), int), ())
