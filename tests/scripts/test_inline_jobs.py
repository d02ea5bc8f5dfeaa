"""An inline job is, from its dispatch on, what a job with a record is: to each verb, to each reader and in its end.

Each case is played twice, with a job that a client wrote into a record, and with the same job as a member of the
schedule; the id of the first is the SHA-1 of the second. After each step, all that readers see must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import pytest

from evsched.client.edit import digest_of
from evsched.errors import EvschedError
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Forwarded, Message, Retried, Snoozed
from evsched.store.client_calls import Edit, New
from evsched.store.moves import Arrival
from evsched.store.operator_calls import Violation, condition
from evsched.store.store import Store
from evsched.transport.call import Call
from tests.scripts.conftest import NOW, Send
from tests.support.inline import id_of

TASK: Final = "evsched.http"
PAYLOAD: Final = b'{"task":"evsched.http","reply":true,"args":["https://a.test/x"],"tags":["x"]}'
"""It counts in the limits of its task and of the origin, too."""
JOB: Final = id_of(PAYLOAD)
HOWS: Final = ("a record", "inline")


class Twin:
    """One of the two jobs, in a queue of its own; and what was seen of it."""

    def __init__(self, raw: Any, send: Send, queue: str, how: str) -> None:
        self.raw, self._send, self.queue, self.how = raw, send, queue, how
        self.now, self._store = NOW, Store(queue)
        self.root = f"evsched:{{{queue}}}:"
        self.run = FetchedJob(JOB, 1, NOW, PAYLOAD, run=f"1 {NOW:.6f}")
        """Its last run."""
        self.seen = list[str]()

    @property
    def store(self) -> Store:
        return self._store.at(self.now)

    def note(self, what: object) -> None:
        self.seen.append(repr(what).replace(self.queue, "q"))

    def send(self, call: Call[Any]) -> Any:
        """Make a call, and note its reply or why it was refused."""
        try:
            reply = self._send(call)
        except EvschedError as error:
            reply = f"{type(error).__name__}: {error}"
        self.note((call.name, reply))
        return reply

    def schedule(self) -> None:
        """Schedule the job, as a client without a library does."""
        if self.how == "a record":
            self.raw.hset(f"{self.root}job:{JOB}", "payload", PAYLOAD)
            self.raw.persist(f"{self.root}job:{JOB}")
        self.raw.zadd(f"{self.root}schedule", {JOB if self.how == "a record" else PAYLOAD: self.now})

    def dispatch(self) -> None:
        self.send(self.store.dispatch(limit=9, cap=1000))

    def fetch(self) -> None:
        self.send(self.store.heartbeat("w", 15.0, busy=15.0, fresh=True))
        self.raw.lmove(f"{self.root}ready", f"{self.root}processing:w", "LEFT", "RIGHT")

    def start(self) -> None:
        """Let the worker take what is in its list, and one more."""
        held = self.send(self.store.held("w"))
        for job in self.send(self.store.start("w", held, hold=9, lease=15.0)).jobs:
            self.run = job

    def look(self) -> None:
        """Note all that readers see."""
        store, send = self.store, self.send
        for call in (store.look(JOB), store.explain(JOB), store.last_run(JOB), store.replied(JOB)):
            send(call)
        for place in ("schedule", "backlog", "ready", "dead", "processing:w"):
            send(store.find(place, condition(task=TASK)))
        send(store.find("ready", condition(group="g", tags=["x"])))
        for call in (
            store.audit([JOB.encode()]),
            store.recount(),
            store.in_flight(),
            store.limits(),
            store.queue_stats(),
        ):
            send(call)
        for place in (b"processing:w", b"ready", b"dead", b"backlog"):
            send(store.audit([JOB.encode()], met=place) if place == b"processing:w" else store.members(place, 0, 9))
        self.note([one.jobs for one in self._send(store.ended()).entries])
        self.note(self.raw.hgetall(f"{self.root}suspects"))
        self.note(self.raw.pttl(f"{self.root}job:{JOB}") > 0)


Step = Callable[[Twin], object]


def call(make: Callable[[Store, FetchedJob], Call[Any]]) -> Step:
    """Return the step that makes a call."""
    return lambda twin: twin.send(make(twin.store, twin.run))


def backlog(twin: Twin) -> None:
    twin.send(twin.store.pause())
    ready(twin)


def ready(twin: Twin) -> None:
    twin.schedule()
    twin.dispatch()


def fetched(twin: Twin) -> None:
    ready(twin)
    twin.fetch()


def running(twin: Twin) -> None:
    ready(twin)
    twin.send(twin.store.heartbeat("w", 15.0, busy=15.0, fresh=True))
    twin.start()


def counted(twin: Twin) -> None:
    twin.send(twin.store.limit({f"concurrency:task:{TASK}": 1.0}))
    running(twin)


def marked(twin: Twin) -> None:
    running(twin)
    twin.send(twin.store.begin("w", [(twin.run, "1")]))


def lost_reply(twin: Twin) -> None:
    running(twin)
    twin.start()


def ended(how: Callable[[Store, FetchedJob], Call[Any]]) -> Step:
    def end(twin: Twin) -> None:
        running(twin)
        twin.send(how(twin.store, twin.run))

    return end


ORIGIN: Final = "concurrency:origin:https://a.test"
KEPT: Final = Done(b"[1]", 300.0, True, b'["t","x"]')
STAGES: Final[Mapping[str, Step]] = {
    "running": running,
    "ready": ready,
    "backlog": backlog,
    "fetched": fetched,
    "counted": counted,
    "marked": marked,
    "handed out twice": lost_reply,
    "retried": ended(lambda store, run: store.retry("w", [(run, Retried(5.0, "it failed", error="E"))])),
    "dead": ended(lambda store, run: store.bury("w", [(run, Buried("it failed", True, error="E"))])),
    "done": ended(lambda store, run: store.complete("w", [(run, KEPT)])),
    "done and not kept": ended(lambda store, run: store.complete("w", [(run, Done(b"1", 0.0, False))])),
}
"""Where the job is when the verb comes."""


def forward(store: Store, run: FetchedJob) -> Call[Any]:
    message = Message("right", f"evsched:{{{store.queue}}}:sent", b"x")
    return store.forward("w", [(run, Forwarded(b"null", 9.0, True, message=message, otherwise=Retried(1.0, "x")))])


def move_away(twin: Twin) -> None:
    batch = twin.send(twin.store.depart("other", "t", [JOB.encode(), PAYLOAD], calm=0.0)).batch
    if batch is not None:
        twin.send(twin.store.vacate(batch, Arrival(False, 0, [])))


def edit(twin: Twin) -> None:
    was = digest_of({"payload": PAYLOAD})
    change = Edit(was, b'{"task":"t","args":[2]}', None, "g", "k", ())
    twin.send(twin.store.reschedule(JOB, None, delay=None, edit=change))


def mend(twin: Twin) -> None:
    """Take the id out of its place, and repair what the audit finds; then what it does not."""
    twin.raw.lrem(f"{twin.root}ready", 0, JOB)
    found = twin.send(twin.store.audit([JOB.encode()]))
    twin.send(twin.store.mend([*found, Violation(JOB.encode(), "no-record", "", b"")]))
    twin.send(twin.store.mend(twin.send(twin.store.recount())))


def again(twin: Twin) -> None:
    """Schedule the same job once more."""
    twin.schedule()
    twin.dispatch()


def requeued(*, died: bool = False, named: bool = False) -> Step:
    """Return the step that puts the worker's jobs back: a janitor does, or the worker, which may name the run."""

    def requeue(twin: Twin) -> None:
        leases = {lease.worker: lease.end for lease in twin.send(twin.store.survey()).leases}
        lease = leases.get("w", b"none") if died else b""
        runs = [(JOB, twin.run.run)] if named else ()
        twin.send(twin.store.requeue("w", "it was away", lease=lease, runs=runs))

    return requeue


def limited(*limits: Mapping[str, float | None]) -> Step:
    def limit(twin: Twin) -> None:
        for one in limits:
            twin.send(twin.store.limit(one))

    return limit


NEW: Final = New(JOB, PAYLOAD, group="g", due=NOW + 1)
OTHER: Final = New("other", PAYLOAD, due=NOW)
VERBS: Final[Mapping[str, Step]] = {
    "nothing": lambda _twin: None,
    "again": again,
    "again, and a start": lambda twin: (again(twin), twin.start()),
    "cancel": call(lambda store, _: store.cancel(JOB)),
    "cancel by filter": call(lambda store, _: store.cancel_matching([JOB], condition(task=TASK))),
    "cancel those that wait": call(lambda store, _: store.cancel_waiting([JOB])),
    "reschedule": call(lambda store, _: store.reschedule(JOB, NOW + 2)),
    "reschedule by filter": call(lambda store, _: store.reschedule_matching([JOB], condition(tags=["x"]), NOW + 2)),
    "edit": edit,
    "enqueue": call(lambda store, _: store.enqueue([NEW])),
    "keep the one that is there": call(lambda store, _: store.enqueue([NEW], keep=True)),
    "unique": call(lambda store, _: store.enqueue([NEW], keep=True, within=60.0)),
    "replace": call(lambda store, _: store.replace([NEW])),
    "revive": call(lambda store, _: store.revive([JOB])),
    "drop": call(lambda store, _: store.drop([JOB])),
    "ask": call(lambda store, _: store.ask(JOB)),
    "signal": call(lambda store, _: store.signal(JOB, "s", b"1")),
    "begin": call(lambda store, run: store.begin("w", [(run, "1")])),
    "begin alone": call(lambda store, run: store.begin("w", [(run, "alone")])),
    "progress": call(lambda store, run: store.progress("w", [(run, Progress(1, 2, "x"))])),
    "keep a step": call(lambda store, run: store.keep("w", run, '"one"', b"1")),
    "recall": call(lambda store, run: store.recall("w", run)),
    "wait": call(lambda store, run: store.wait_for("w", run, "s", 60.0)),
    "complete": call(lambda store, run: store.complete("w", [(run, KEPT)])),
    "complete, not kept": call(lambda store, run: store.complete("w", [(run, Done(b"1", 0.0, True))])),
    "complete of another worker": call(lambda store, run: store.complete("v", [(run, KEPT)])),
    "forward": call(forward),
    "retry": call(lambda store, run: store.retry("w", [(run, Retried(0.0, "it failed", error="E"))])),
    "retry, killed": call(lambda store, run: store.retry("w", [(run, Retried(0.0, "it died", True))])),
    "bury": call(lambda store, run: store.bury("w", [(run, Buried("it failed", True, error="E"))])),
    "bury, not begun": call(lambda store, run: store.bury("w", [(run, Buried("late", True, "expired", began=False))])),
    "abort": call(lambda store, run: store.abort("w", [(run, Aborted(60.0, True))])),
    "defer": call(lambda store, run: store.defer("w", [(run, Deferred(NOW + 3, "closed", "night", ""))])),
    "snooze": call(lambda store, run: store.snooze("w", [(run, Snoozed("not yet", 3.0))])),
    "snooze for a signal": call(lambda store, run: store.snooze("w", [(run, Snoozed("", 0.0, NOW + 60, "s"))])),
    "snooze for a signal that comes": lambda twin: (
        VERBS["wait"](twin),
        VERBS["snooze for a signal"](twin),
        VERBS["signal"](twin),
    ),
    "handed back": requeued(),
    "handed back, named": requeued(named=True),
    "taken from a dead worker": requeued(died=True),
    "taken twice": lambda twin: (requeued(died=True)(twin), twin.fetch(), twin.start(), requeued(died=True)(twin)),
    "limit of the task": limited({f"concurrency:task:{TASK}": 1.0}, {f"concurrency:task:{TASK}": None}),
    "limit of the task that stays": lambda twin: (limited({f"concurrency:task:{TASK}": 1.0})(twin), other(twin)),
    "limit of the origin that stays": lambda twin: (
        limited({ORIGIN: 1.0})(twin),
        other(twin),
        limited({ORIGIN: None})(twin),
    ),
    "limit of all": lambda twin: (limited({"concurrency": 1.0})(twin), other(twin)),
    "rate of the task": lambda twin: (limited({f"rate:task:{TASK}": 1.0})(twin), other(twin)),
    "pause": call(lambda store, _: store.pause()),
    "pause and resume": lambda twin: (twin.send(twin.store.pause()), twin.send(twin.store.resume())),
    "mend": mend,
    "move away": move_away,
}


def other(twin: Twin) -> None:
    """Have another job of the task come."""
    twin.send(twin.store.enqueue([OTHER]))
    twin.dispatch()
    twin.start()


def bring_to_its_end(twin: Twin) -> None:
    """Let the job, and what else is due, run until it has ended."""
    twin.send(twin.store.resume())
    for _ in range(3):
        twin.now += 100.0
        twin.dispatch()
        for job in twin.send(twin.store.start("w", twin.send(twin.store.held("w")), hold=9, lease=15.0)).jobs:
            twin.send(twin.store.complete("w", [(job, KEPT)]))
    twin.look()


def play(twin: Twin, stage: str, verb: str) -> list[str]:
    STAGES[stage](twin)
    twin.look()
    twin.now += 0.5
    VERBS[verb](twin)
    twin.look()
    bring_to_its_end(twin)
    with suppress(EvschedError):
        twin.send(twin.store.revive([JOB]))
    return twin.seen


@pytest.mark.parametrize("stage", ["running", *(pytest.param(one, marks=pytest.mark.extra) for one in [*STAGES][1:])])
def test_inline_job_is_as_a_job_with_a_record(raw: Any, send: Send, queue: str, stage: str) -> None:
    for n, verb in enumerate(VERBS):
        record, inline = (play(Twin(raw, send, f"{queue}-{n}-{how[:1]}", how), stage, verb) for how in HOWS)
        different = [pair for pair in zip(record, inline, strict=False) if pair[0] != pair[1]]
        assert not different, f"{stage}, {verb}: a record, and inline:\n" + "\n".join(different[0])
        assert len(record) == len(inline)
