"""The audit finds exactly the planted violation, names its remedy, and repairs it if that needs no guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from evsched.diagnostics.audit import Audit
from evsched.diagnostics.finding import Finding
from evsched.errors import StoreRefused
from evsched.jobs.job import Buried, Done, FetchedJob
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store import server
from evsched.store.client_calls import New
from evsched.store.operator_calls import Violation
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from tests.scripts.conftest import Send, State

FAR = 4e9
PAYLOAD = b'{"task":"t"}'


class Seeded(Struct):
    """A queue with a job in each place, and shortcuts to change it."""

    raw: Any
    send: Send
    store: Store
    root: str

    def key(self, name: str) -> str:
        return self.root + name

    def run(self, job_id: str) -> FetchedJob:
        """Let worker "w" start a job."""
        self.send(self.store.enqueue([New(job_id, PAYLOAD, due=1.0)]))
        self.send(self.store.dispatch(limit=100, cap=1000))
        return self.send(self.store.start("w", (), hold=9, lease=60)).jobs[0]

    async def audit(self, sender: BatchingSender, *, repair: bool = False) -> list[Finding]:
        return await Audit(sender, [self.store.queue], pause=0.0).run(repair=repair)


@pytest.fixture
def seeded(raw: Any, send: Send, store: Store) -> Seeded:
    """Jobs: dead, done, running; o, r00 to r14 ready; r15, r16 in the backlog; p set aside; scheduled, one inline."""
    seeded = Seeded(raw, send, store, f"evsched:{{{store.queue}}}:")
    send(store.limit({"concurrency": 100, "concurrency:g": 1}))
    send(store.bury("w", [(seeded.run("dead"), Buried("x", False))]))
    send(store.complete("w", [(seeded.run("done"), Done(b"1", 300.0, True))]))
    seeded.run("running")
    jobs = [New("o", PAYLOAD, group="g", due=1.0, priority=9), New("p", PAYLOAD, group="g", due=2.0, priority=9)]
    send(store.enqueue([*jobs, *(New(f"r{n:02}", PAYLOAD, due=3.0 + n) for n in range(17))]))
    send(store.dispatch(limit=100, cap=1000))
    send(store.enqueue([New("scheduled", PAYLOAD, due=FAR)]))
    raw.zadd(seeded.key("schedule"), {'{"task":"t","args":["inline"]}': FAR})
    return seeded


def stuck(at: Seeded) -> None:
    """An occurrence waits for the end of one whose record somebody deletes."""
    recurrence = Declared(name="n", rule="* * * * *", payload=PAYLOAD, overlap="wait", misfire="all")
    at.send(at.store.declare(recurrence))
    rows = [Occurrence(f"n@{due}", due, due, None) for due in (5.0, 6.0)]
    at.send(at.store.recur("n", b"0", rows, next_=FAR))
    at.send(at.store.start("w", (), hold=99, lease=60))  # makes room
    at.send(at.store.dispatch(limit=100, cap=1000))
    assert at.raw.zscore(at.key("schedule"), "n@6.0") == float("inf")
    at.send(at.store.start("w", (), hold=99, lease=60))
    at.raw.lrem(at.key("processing:w"), 1, "n@5.0")
    at.raw.delete(at.key("job:n@5.0"))
    at.raw.delete(at.key("in_flight"))


def stray(at: Seeded) -> None:
    at.raw.zrem(at.key("leases"), "w")


def stuck_move(at: Seeded) -> None:
    now = at.send(server.clock())
    at.send(at.store.enqueue([New("leaves", PAYLOAD, due=now + 5000)]))
    assert at.send(at.store.at(now - 301).depart("there", "t", [b"leaves"])).batch


def type_of_ready(at: Seeded) -> None:
    at.raw.delete(at.key("ready"))
    at.raw.set(at.key("ready"), "wrong")


FAULTS: dict[str, tuple[Callable[[Seeded], object], str, str, str, bool]] = {
    # what is planted: how; the check; a part of `where`; a part of the remedy; is it repaired?
    "lost in the backlog": (
        lambda at: at.raw.zrem(at.key("backlog"), "r16"),
        "orphan",
        "job r16",
        "DEL evsched:{",
        True,
    ),
    "lost from ready": (lambda at: at.raw.lrem(at.key("ready"), 1, "r03"), "orphan", "job r03", "--repair", True),
    "lost from a worker's list": (
        lambda at: at.raw.lrem(at.key("processing:w"), 1, "running"),
        "orphan",
        "job running",
        "--repair",
        True,
    ),
    "a group's backlog deleted": (lambda at: at.raw.delete(at.key("backlog:g")), "orphan", "job p", "--repair", True),
    "cancelled by ZREM alone": (
        lambda at: at.raw.zrem(at.key("schedule"), "scheduled"),
        "unscheduled",
        "job scheduled",
        "DEL evsched:{",
        False,
    ),
    "scheduled without a record": (
        lambda at: at.raw.zadd(at.key("schedule"), {"ghost": FAR}),
        "no-record",
        "job ghost",
        "HSET evsched:{",
        True,
    ),
    "ready without a record": (
        lambda at: at.raw.rpush(at.key("ready"), "ghost"),
        "no-record",
        "job ghost",
        "--repair",
        True,
    ),
    "fetched without a record": (
        lambda at: (at.raw.delete(at.key("job:running")), at.raw.hdel(at.key("light"), "running")),
        "no-record",
        "job running",
        "HSET evsched:{",
        False,
    ),
    "a record of the wrong type": (
        lambda at: (at.raw.delete(at.key("job:scheduled")), at.raw.set(at.key("job:scheduled"), "x")),
        "record-type",
        "job scheduled",
        "schedule the job again",
        False,
    ),
    "in ready and in the backlog": (
        lambda at: at.raw.zadd(at.key("backlog"), {"r00": -5e12}),
        "two-places",
        "job r00",
        "evsched cancel r00",
        False,
    ),
    "finished and in ready": (
        lambda at: at.raw.rpush(at.key("ready"), "done"),
        "two-places",
        "job done",
        "evsched cancel done",
        False,
    ),
    "set aside for a group that does not exist": (
        lambda at: at.raw.hset(at.key("job:r16"), "parked", "nobody"),
        "parked",
        "job r16",
        "--repair",
        True,
    ),
    "set aside without a field that says so": (
        lambda at: at.raw.hdel(at.key("job:p"), "parked"),
        "unparked",
        "job p",
        "--repair",
        True,
    ),
    "dead without a record": (
        lambda at: at.raw.delete(at.key("job:dead")),
        "dead-without-record",
        "job dead",
        "--repair",
        True,
    ),
    "dead and running": (
        lambda at: at.raw.zadd(at.key("dead"), {"running": 1}),
        "stale-dead",
        "running",
        "--rep",
        True,
    ),
    "dead and done": (lambda at: at.raw.zadd(at.key("dead"), {"done": 1}), "stale-dead", "done", "--repair", True),
    "expires while it waits": (
        lambda at: at.raw.expire(at.key("job:r16"), 100),
        "record-expires",
        "job r16",
        "PERSIST evsched:{",
        True,
    ),
    "expires while it is dead": (
        lambda at: at.raw.expire(at.key("job:dead"), 100),
        "record-expires",
        "job dead",
        "PERSIST evsched:{",
        True,
    ),
    "scheduled again, and expires before": (
        lambda at: at.raw.zadd(at.key("schedule"), {"done": FAR}),
        "record-expires",
        "job done",
        "PERSIST evsched:{",
        True,
    ),
    "kept for ever": (lambda at: at.raw.persist(at.key("job:done")), "no-ttl", "job done", "EXPIRE evsched:{", False),
    "waits for a run that has already ended": (stuck, "stuck", "n@6.0", "--repair", True),
    "a list without a lease": (stray, "stray", ", w", "restart a dispatcher", True),
    "one too many counted": (
        lambda at: at.raw.hincrby(at.key("in_flight"), "*", 1),
        "in_flight",
        "queue",
        "--repair",
        True,
    ),
    "one counted that has left": (
        lambda at: at.raw.hset(at.key("in_flight"), "nobody", "g"),
        "in_flight",
        "queue",
        "--repair",
        True,
    ),
    "one not counted": (lambda at: at.raw.hdel(at.key("in_flight"), "running"), "in_flight", "queue", "--repair", True),
    "a group that is never reopened": (
        lambda at: at.raw.delete(at.key("throttled")),
        "stranded",
        ", g",
        "--repair",
        True,
    ),
    "a group held back without a job": (
        lambda at: at.raw.zadd(at.key("throttled"), {"nobody": float("inf")}),
        "throttled",
        "nobody",
        "--repair",
        True,
    ),
    "a move that does not end": (stuck_move, "stuck-move", "queue", "run a dispatcher", False),
    "a place of the wrong type": (type_of_ready, "place-type", "ready", "RENAME or DEL", False),
}


async def test_a_queue_with_a_job_in_each_place_has_no_violations(seeded: Seeded, sender: BatchingSender) -> None:
    for place in ("backlog", "backlog:g", "ready", "processing:w", "dead", "in_flight", "throttled"):
        assert seeded.raw.exists(seeded.key(place)), place
    assert await seeded.audit(sender) == []


@pytest.mark.extra
@pytest.mark.parametrize("planted", FAULTS)
async def test_each_planted_violation_is_found_and_repaired(
    seeded: Seeded, sender: BatchingSender, state: State, planted: str
) -> None:
    plant, check, where, mend, repairable = FAULTS[planted]
    plant(seeded)
    before = state()
    found = [finding for finding in await seeded.audit(sender) if finding.check == check]
    assert state() == before
    (finding,) = found
    assert (where in finding.where, mend in finding.mend, finding.repaired) == (True, True, False), finding
    (finding,) = [f for f in await seeded.audit(sender, repair=True) if f.check == check]
    assert finding.repaired is repairable
    again = [finding.check for finding in await seeded.audit(sender)]
    assert (check in again) is not repairable
    if repairable:
        assert again == []
    else:
        # What was put into ready by hand was not counted in in_flight either.
        assert {**state(), "in_flight": None} == {**before, "in_flight": None}


async def test_lost_job_runs_at_once_and_keeps_its_attempt_count(seeded: Seeded, sender: BatchingSender) -> None:
    seeded.raw.lrem(seeded.key("processing:w"), 1, "running")
    await seeded.audit(sender, repair=True)
    seeded.send(seeded.store.dispatch(limit=100, cap=1000))
    runs = seeded.send(seeded.store.start("v", (), hold=99, lease=60)).jobs
    assert {run.id: run.attempt for run in runs}["running"] == 2


async def test_a_job_that_moves_between_two_checks_is_not_reported(seeded: Seeded, sender: BatchingSender) -> None:
    """A record after its ZADD, and a ZADD after its record."""

    def write_the_rest(done: int, total: int) -> None:
        seeded.raw.hset(seeded.key("job:late"), "payload", PAYLOAD)
        seeded.raw.zadd(seeded.key("schedule"), {"early": FAR})

    seeded.raw.zadd(seeded.key("schedule"), {"late": FAR})
    seeded.raw.hset(seeded.key("job:early"), "payload", PAYLOAD)
    audit = Audit(sender, [seeded.store.queue], pause=0.0)
    assert await audit.run(on_progress=lambda done, total: write_the_rest(done, total) if done == total else None) == []


async def test_legitimate_states_are_not_reported(seeded: Seeded, sender: BatchingSender) -> None:
    """Ids that are scheduled again in every place, and a job of no recurrence that is never due."""
    for job_id in ("running", "dead", "r00", "r16", "p"):
        seeded.raw.zadd(seeded.key("schedule"), {job_id: FAR})
    seeded.raw.hset(seeded.key("job:never"), "payload", PAYLOAD)
    seeded.raw.zadd(seeded.key("schedule"), {"never": float("inf")})
    seeded.raw.lmove(seeded.key("ready"), seeded.key("processing:w"), "LEFT", "RIGHT")  # fetched, not started
    inline = '{"task":"t"}'
    seeded.raw.zadd(seeded.key("schedule"), {inline: FAR})
    seeded.send(seeded.store.enqueue([New("leaves", PAYLOAD, due=FAR)]))
    assert seeded.send(seeded.store.at(FAR - 99).depart("there", "t", [b"leaves", inline.encode()])).batch
    assert await seeded.audit(sender) == []


async def test_too_many_entries_to_count_in_one_call_are_reported(seeded: Seeded, send: Send) -> None:
    assert [violation.code for violation in send(seeded.store.recount(most=5))] == ["uncounted"]


async def test_all_queues_are_audited(seeded: Seeded, sender: BatchingSender) -> None:
    seeded.raw.zadd(seeded.key("dead"), {"nobody": 1})
    audit = Audit(sender, pause=0.0)
    found = await audit.run()
    assert seeded.store.queue in audit.queues
    assert [finding.where for finding in found if seeded.store.queue in finding.where] == [
        f"queue {seeded.store.queue}, job nobody"
    ]


def test_resolved_violation_is_not_repaired(seeded: Seeded, send: Send, state: State) -> None:
    before = state()
    codes = (
        "orphan",
        "parked",
        "stale-dead",
        "record-expires",
        "dead-without-record",
        "stuck",
        "in_flight",
        "throttled",
    )
    assert send(seeded.store.mend([Violation(b"running", code, "") for code in codes])) == []
    assert state() == before


def test_second_repair_changes_nothing(seeded: Seeded, send: Send, state: State) -> None:
    seeded.raw.lrem(seeded.key("processing:w"), 1, "running")
    violations = [Violation(b"running", "orphan", "")]
    assert send(seeded.store.mend(violations)) == [(b"running", "orphan")]
    before = state()
    assert send(seeded.store.mend(violations)) == []
    assert state() == before


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "dead"])
def test_place_of_the_wrong_type_stops_a_repair_before_it_writes(
    seeded: Seeded, send: Send, state: State, place: str
) -> None:
    seeded.raw.lrem(seeded.key("processing:w"), 1, "running")
    seeded.raw.delete(seeded.key(place))
    seeded.raw.set(seeded.key(place), "wrong")
    before = state()
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(seeded.store.mend([Violation(b"running", "orphan", "")]))
    assert state() == before


def test_second_row_about_the_counts_repairs_nothing_again(seeded: Seeded, send: Send, state: State, raw: Any) -> None:
    raw.hset(seeded.key("in_flight"), "*", "99")
    counts = Violation(b"", "in_flight", "", b"")
    assert len(send(seeded.store.mend([counts, counts]))) == 2
    assert state()["in_flight"]["*"] != "99"
    assert send(seeded.store.mend([counts])) == []


def test_fetched_job_of_a_worker_without_a_lease_is_held(seeded: Seeded, send: Send, raw: Any) -> None:
    raw.hset(seeded.key("job:x"), mapping={"payload": PAYLOAD, "due": "1"})
    raw.rpush(seeded.key("processing:gone"), "x")
    assert [found.code for found in send(seeded.store.audit([b"x"]))] == ["orphan"]
    assert send(seeded.store.audit([b"x"], strays=["other", "gone"])) == []
