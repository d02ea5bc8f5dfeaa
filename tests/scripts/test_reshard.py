"""A job moves from one queue to another in three steps: each may be repeated, and between any two all may end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from evsched.client.operations import Operation, Send
from evsched.client.reshard import Reshard, id_of
from evsched.client.spread import Parts, of_job, status
from evsched.errors import ConfigError, EvschedError, JobExists, JobMissing, StoreDown
from evsched.jobs.job import Buried, Deferred, Done, FetchedJob, Retried, Snoozed
from evsched.shards import Shards
from evsched.store import server
from evsched.store.client_calls import New
from evsched.store.moves import Arrival, MovingBatch, Vacated
from evsched.store.relay_calls import RowJob
from evsched.store.store import Store
from evsched.transport.call import Call, T
from tests.scripts.conftest import NOW, State
from tests.scripts.conftest import Send as SendCall
from tests.support.snapshot import snapshot

FAR = NOW + 1000
DONE = Done(b"1", 300.0, False)
PAYLOAD = b'{"task":"t","args":["\xc3\xbc"],"reply":true}'


@pytest.fixture
def other(queue: str) -> Store:
    return Store(f"{queue}:7")


@pytest.fixture
def there(raw: Any, other: Store) -> State:
    """Return a function that reads the whole state of the other queue."""
    return lambda: snapshot(raw, other.queue)


def new(*ids: str, due: float = FAR) -> list[New]:
    return [New(job_id, PAYLOAD, priority=7, group="g", due=due) for job_id in ids]


def leave(send: SendCall, store: Store, other: Store, *members: str, token: str = "a", now: float = NOW) -> MovingBatch:
    left = send(store.at(now).depart(other.queue, token, [member.encode() for member in members]))
    assert left.batch is not None, left
    return left.batch


def move(send: SendCall, store: Store, other: Store, *members: str, now: float = NOW) -> Vacated:
    batch = leave(send, store, other, *members, token=f"{now}", now=now)
    return send(store.vacate(batch, send(other.at(now).arrive(store.queue, batch))))


def start(send: SendCall, store: Store, now: float) -> list[FetchedJob]:
    send(store.at(now).dispatch(limit=100, cap=100_000))
    return send(store.at(now).start("w", (), hold=100, lease=15)).jobs


def test_a_job_moves_with_all_that_is_known_of_it(
    send: SendCall, store: Store, other: Store, state: State, there: State
) -> None:
    send(Store(store.queue, by="billing").at(NOW).enqueue(new("a", "b")))
    before = state()
    batch = leave(send, store, other, "a", "b")
    assert "schedule" not in state()
    assert set(state()["moving"]) == {"*", "a", "b"}
    assert send(other.at(NOW).arrive(store.queue, batch)) == Arrival(False, int(batch.number), [])
    assert send(store.vacate(batch, Arrival(False, 0, []))) == Vacated(2, 0)
    assert state() == {}
    after = there()
    after.pop("arrived")
    assert after == before
    assert before["job:a"]["by"] == "billing"


def test_each_step_may_be_repeated(send: SendCall, store: Store, other: Store, state: State, there: State) -> None:
    send(store.at(NOW).enqueue(new("a", "b")))
    batch = leave(send, store, other, "a", "b")
    before = state()
    assert leave(send, store, other, "a", "b") == batch
    assert leave(send, store, other, "a", "b", token="z") == batch  # another program, which finishes it
    assert send(store.at(NOW).depart()).batch == batch
    assert state() == before
    arrival = send(other.at(NOW).arrive(store.queue, batch))
    arrived = there()
    assert send(other.at(NOW).arrive(store.queue, batch)) == arrival
    assert there() == arrived
    assert send(store.vacate(batch, arrival)) == Vacated(2, 0)
    assert send(store.vacate(batch, arrival)) == Vacated(0, 0)
    assert send(other.at(NOW).arrive(store.queue, batch)) == arrival
    assert there() == arrived
    assert state() == {}


@pytest.mark.parametrize("later", ["the same batch", "another batch"])
def test_late_call_does_not_bring_back_a_job_that_has_run(
    send: SendCall, store: Store, other: Store, there: State, later: str
) -> None:
    send(store.at(NOW).enqueue(new("a", "b")))
    batch = leave(send, store, other, "a")
    arrival = send(other.at(NOW).arrive(store.queue, batch))
    send(store.vacate(batch, arrival))
    (job,) = start(send, other, FAR)
    assert send(other.at(FAR).complete("w", [(job, Done(b"1", 0.0, False))])) == []
    if later == "another batch":
        move(send, store, other, "b", now=NOW + 1)
    before = there()
    late = send(other.at(FAR).arrive(store.queue, batch))
    assert late.over is (later == "another batch")
    assert send(store.vacate(batch, late)) == Vacated(0, 0)
    assert there() == before


def test_batch_repeated_before_its_arrival_keeps_changes_made_meanwhile(
    send: SendCall, store: Store, other: Store, raw: Any, there: State
) -> None:
    send(store.at(NOW).enqueue(new("a")))
    leave(send, store, other, "a")
    raw.hset(f"evsched:{{{store.queue}}}:job:a", "payload", b'{"task":"u"}')
    batch = send(store.at(NOW).depart()).batch
    assert batch is not None
    send(other.at(NOW).arrive(store.queue, batch))
    assert there()["job:a"]["payload"] == '{"task":"u"}'


def test_batch_with_a_number_too_low_after_a_clock_set_back_moves_later(
    send: SendCall, store: Store, other: Store, state: State, there: State
) -> None:
    send(store.at(NOW).enqueue(new("a", "b")))
    move(send, store, other, "a", now=NOW)
    batch = leave(send, store, other, "b", now=NOW - 500)
    arrival = send(other.at(NOW - 500).arrive(store.queue, batch))
    assert arrival.over
    assert send(store.vacate(batch, arrival)) == Vacated(0, 1)
    assert state()["schedule"] == {"b": FAR}
    again = send(store.at(NOW - 500).depart(other.queue, "z", [b"b"], above=arrival.last)).batch
    assert again is not None
    arrival = send(other.at(NOW - 500).arrive(store.queue, again))
    assert send(store.vacate(again, arrival)) == Vacated(1, 0)
    assert there()["schedule"] == {"a": FAR, "b": FAR}


def test_two_batches_with_one_number_are_distinguished(
    send: SendCall, store: Store, other: Store, state: State, there: State
) -> None:
    send(store.at(NOW).enqueue(new("a", "b")))
    batch = leave(send, store, other, "a", token="one")
    send(store.vacate(batch, send(other.at(NOW).arrive(store.queue, batch))))
    same = leave(send, store, other, "b", token="two")
    assert same.number == batch.number
    arrival = send(other.at(NOW).arrive(store.queue, same))
    assert arrival.over
    send(store.vacate(same, arrival))
    assert (state()["schedule"], there()["schedule"]) == ({"b": FAR}, {"a": FAR})


# What stays.


def test_only_jobs_that_wait_for_their_time_move(
    send: SendCall, store: Store, other: Store, raw: Any, state: State
) -> None:
    root = f"evsched:{{{store.queue}}}:"
    send(store.at(NOW).enqueue(new("runs", "waits", "dead", due=NOW)))
    jobs = {job.id: job for job in start(send, store, NOW)}
    send(store.at(NOW).bury("w", [(jobs["dead"], Buried("x", False))]))
    send(store.at(NOW).limit({"concurrency": 1}))
    send(store.at(NOW).requeue("w", "x", runs=[("waits", "")]))
    send(store.at(NOW).enqueue(new("soon", due=NOW + 60)))
    send(store.at(NOW).enqueue(new("ended", due=NOW - 1)))
    send(store.at(NOW).relay([RowJob("row", PAYLOAD, None, None, FAR, 9)]))
    raw.hset(f"{root}job:r@1", mapping={"payload": PAYLOAD, "recurrence": "r"})
    raw.hset(f"{root}job:leaves", mapping={"payload": PAYLOAD, "recurrence": "other"})
    raw.hset(f"{root}job:many", mapping={"payload": PAYLOAD} | {f"f{n}": n for n in range(100)})
    raw.hset(f"{root}job:expires", "payload", PAYLOAD)
    raw.expire(f"{root}job:expires", 1000)
    raw.set(f"{root}job:text", "x")
    members = ["runs", "waits", "dead", "row", "r@1", "leaves", "many", "expires", "text", "bare", "not an id", "{no"]
    raw.zadd(f"{root}schedule", dict.fromkeys(members, FAR))
    before = state()
    left = send(store.at(NOW).depart(other.queue, "a", [m.encode() for m in [*members, "soon", "nobody"]]))
    assert left.batch is not None
    assert [member for member, _ in left.batch.jobs] == [b"leaves"]
    why = {member.decode(): reason for member, reason in left.stay}
    assert why == {
        "soon": "soon",
        "row": "ledger",
        "r@1": "recurrence",
        "nobody": "gone",
        **dict.fromkeys(
            ["runs", "waits", "dead", "many", "expires", "text", "bare", "not an id", "{no"],
            "other",
        ),
    }
    send(store.vacate(left.batch, Arrival(True, 0, [])))
    assert state() == before


def test_job_whose_id_exists_at_the_destination_returns(
    send: SendCall, store: Store, other: Store, raw: Any, state: State, there: State
) -> None:
    inline = '{"task":"t","id":"inline"}'
    same = '{"task":"same"}'
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {inline: FAR, same: FAR})
    raw.zadd(f"evsched:{{{other.queue}}}:schedule", {same: FAR + 1})
    send(store.at(NOW).enqueue(new("waits", "dead", "runs", "ended", "free")))
    send(other.at(NOW).enqueue(new("waits", "inline")))
    send(other.at(NOW).enqueue(new("dead", "runs", "ended", due=NOW)))
    jobs = {job.id: job for job in start(send, other, NOW)}
    send(other.at(NOW).bury("w", [(jobs["dead"], Buried("x", False))]))
    send(other.at(NOW).complete("w", [(jobs["ended"], DONE)]))
    here, where = state(), there()
    members = ["waits", "dead", "runs", "ended", "free", inline, same]
    batch = leave(send, store, other, *members)
    arrival = send(other.at(NOW).arrive(store.queue, batch))
    stays = {"waits", "dead", "runs", inline, same}
    assert {member.decode() for member in arrival.stay} == stays
    assert send(other.at(NOW).arrive(store.queue, batch)).stay == arrival.stay
    assert send(store.vacate(batch, arrival)) == Vacated(2, 5)
    after = there()
    assert set(state()["schedule"]) == stays
    assert {name for name in here if name not in state()} == {"job:ended", "job:free"}
    assert set(after["schedule"]) - set(where["schedule"]) == {"ended", "free"}
    assert "outcome" not in after["job:ended"]
    assert after["job:runs"] == where["job:runs"]


# Each kind of state.


def test_an_inline_job_moves_as_it_is(
    send: SendCall, store: Store, other: Store, raw: Any, state: State, there: State
) -> None:
    member = '{"task":"t", "args":[1]}'
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: FAR})
    assert move(send, store, other, member) == Vacated(1, 0)
    assert state() == {}
    assert there()["schedule"] == {member: FAR}
    (job,) = start(send, other, FAR)
    assert job.id == id_of(member.encode())


ENDS: dict[str, Callable[[Store, FetchedJob], Any]] = {
    "retry": lambda store, job: store.at(NOW).retry("w", [(job, Retried(500.0, "ValueError: no"))]),
    "snooze": lambda store, job: store.at(NOW).snooze("w", [(job, Snoozed("later", 500.0))]),
    "defer": lambda store, job: store.at(NOW).defer("w", [(job, Deferred(FAR, "closed"))]),
    "unknown": lambda store, job: store.at(NOW).defer("w", [(job, Deferred(FAR, "x", unknown_since=NOW))]),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_has_run_moves_with_its_attempts_and_its_reason(
    send: SendCall, store: Store, other: Store, state: State, there: State, end: str
) -> None:
    send(store.at(NOW).enqueue(new("a", due=NOW)))
    (job,) = start(send, store, NOW)
    send(store.ask("a"))
    assert send(ENDS[end](store, job)) == []
    before = state()
    assert move(send, store, other, "a") == Vacated(1, 0)
    after = there()
    assert (after["schedule"], after["job:a"]) == (before["schedule"], before["job:a"])
    (again,) = start(send, other, FAR)
    assert again.attempt == (2 if end == "retry" else 1)
    send(other.at(FAR).complete("w", [(again, DONE)]))
    assert json.loads(there()["reply:a"][0])["outcome"] == "done"


def test_a_suspect_stays_a_suspect(send: SendCall, store: Store, other: Store, state: State, there: State) -> None:
    send(store.at(NOW).enqueue(new("a", due=NOW)))
    start(send, store, NOW)
    (lease,) = send(store.at(NOW).survey()).leases
    send(store.at(NOW).requeue("w", "it died", lease=lease.end))
    send(store.at(NOW).reschedule("a", FAR))
    before = state()["suspects"]
    assert before == {"a": "1 1"}
    assert move(send, store, other, "a") == Vacated(1, 0)
    assert there()["suspects"] == before
    assert "suspects" not in state()
    (job,) = start(send, other, FAR)
    assert (job.deaths, job.doubts) == (1, 1)


def test_the_id_of_a_unique_job_is_taken_as_long_as_it_was(
    send: SendCall, store: Store, other: Store, raw: Any
) -> None:
    send(store.enqueue(new("a", due=FAR), within=5000.0))
    left = raw.pttl(f"evsched:{{{store.queue}}}:unique:a")
    assert move(send, store, other, "a") == Vacated(1, 0)
    assert left - 60_000 < raw.pttl(f"evsched:{{{other.queue}}}:unique:a") <= left
    send(other.cancel("a"))
    send(other.enqueue(new("a", due=FAR), within=9000.0))
    for_longer = raw.pttl(f"evsched:{{{other.queue}}}:unique:a")
    assert for_longer > left
    with pytest.raises(JobExists):  # a program that does not know of the shards yet
        send(store.enqueue(new("a"), within=1.0))


def test_moved_job_is_due_when_its_named_window_changes(
    send: SendCall, store: Store, other: Store, there: State
) -> None:
    for part in (store, other):
        send(part.set_window("night", "22:00-06:00"))
    send(store.at(NOW).enqueue([New("a", b'{"task":"t","window":"night"}', due=NOW)]))
    (job,) = start(send, store, NOW)
    assert send(store.at(NOW).defer("w", [(job, Deferred(FAR, "closed", "night", "22:00-06:00"))])) == []
    assert move(send, store, other, "a") == Vacated(1, 0)
    assert there()["deferred:night"] == {"a": FAR}
    assert send(other.at(NOW).reopen("night")) == (1, 0)


def test_late_job_arrives_without_a_note_of_its_window(
    send: SendCall, store: Store, other: Store, there: State
) -> None:
    send(store.set_window("night", "22:00-06:00"))
    send(store.at(NOW).enqueue([New("a", b'{"task":"t","window":"night"}', due=NOW)]))
    (job,) = start(send, store, NOW)
    send(store.at(NOW).defer("w", [(job, Deferred(FAR, "closed", "night", "22:00-06:00"))]))
    batch = leave(send, store, other, "a")
    send(other.at(FAR + 1).arrive(store.queue, batch))
    assert there()["schedule"] == {"a": FAR}
    assert "deferred:night" not in there()


def test_job_whose_record_is_deleted_during_the_move_arrives_without_one(
    send: SendCall, store: Store, other: Store, raw: Any, state: State, there: State
) -> None:
    send(store.at(NOW).enqueue(new("a")))
    leave(send, store, other, "a")
    raw.delete(f"evsched:{{{store.queue}}}:job:a")
    batch = send(store.at(NOW).depart()).batch
    assert batch is not None
    assert send(store.vacate(batch, send(other.at(NOW).arrive(store.queue, batch)))) == Vacated(1, 0)
    assert state() == {}
    after = there()
    after.pop("arrived")
    assert after == {"schedule": {"a": FAR}}


def test_moving_a_job_replaces_an_old_reply_and_record_of_its_id(
    send: SendCall, store: Store, other: Store, there: State
) -> None:
    send(other.at(NOW).enqueue(new("a", due=NOW)))
    (job,) = start(send, other, NOW)
    send(other.at(NOW).complete("w", [(job, Done(b"1", 300.0, True))]))
    send(store.at(NOW).enqueue([New("a", PAYLOAD, due=FAR)]))
    assert move(send, store, other, "a") == Vacated(1, 0)
    assert "reply:a" not in there()
    assert "group" not in there()["job:a"]


# Other programs in the middle of a move.


def test_moving_job_is_shown_as_scheduled_and_its_changes_wait(
    send: SendCall, store: Store, other: Store, state: State
) -> None:
    send(store.at(NOW).enqueue(new("a")))
    batch = leave(send, store, other, "a")
    before = state()
    found = send(store.at(NOW).look("a"))
    assert found is not None
    assert (found.place, found.due) == ("schedule", FAR)
    with pytest.raises(JobExists):
        send(store.at(NOW).enqueue(new("a")))
    assert send(store.at(NOW).enqueue(new("a", due=NOW), keep=True)) == [FAR]
    calls: list[Call[Any]] = [
        store.cancel("a"),
        store.reschedule("a", NOW),
        store.ask("a"),
        store.replace(new("a")),
    ]
    for call in calls:
        with pytest.raises(StoreDown, match="a is being moved to another shard: try again") as refusal:
            send(call)
        assert refusal.value.kind == "moving"
    assert send(store.at(NOW).cancel_matching(["a"], b"{}")) == 0
    assert send(store.at(NOW).audit([b"a"])) == []
    assert state() == before
    arrival = send(other.at(NOW).arrive(store.queue, batch))
    assert send(other.at(NOW).audit([b"a"])) == []
    assert send(other.at(NOW).cancel("a")).place == "schedule"
    assert send(store.vacate(batch, arrival)) == Vacated(1, 0)
    assert send(store.look("a")) is send(other.look("a")) is None


def test_moving_id_scheduled_by_a_foreign_client_keeps_its_record(
    send: SendCall, store: Store, other: Store, raw: Any, state: State
) -> None:
    send(store.at(NOW).enqueue(new("a", "b")))
    batch = leave(send, store, other, "a", "b")
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW, "b": NOW + 5})
    (run,) = start(send, store, NOW)
    assert send(store.vacate(batch, send(other.at(NOW).arrive(store.queue, batch)))) == Vacated(2, 0)
    assert set(state()) >= {"job:a", "job:b"}
    assert send(store.at(NOW).complete("w", [(run, DONE)])) == []
    assert [job.id for job in start(send, store, NOW + 5)] == ["b"]


def test_dispatcher_leaves_departed_jobs_out_until_they_return(
    send: SendCall, store: Store, other: Store, state: State
) -> None:
    send(store.at(NOW).enqueue([*new("a"), *new("b", due=NOW + 100)]))
    batch = leave(send, store, other, "a")
    assert [job.id for job in start(send, store, FAR + 1)] == ["b"]
    send(store.vacate(batch, Arrival(True, 0, [])))
    assert state()["schedule"] == {"a": FAR}
    assert [job.id for job in start(send, store, FAR + 1)] == ["a"]


def test_a_batch_is_bounded_by_its_bytes(send: SendCall, store: Store, other: Store) -> None:
    big = b'{"task":"t","args":["%s"]}' % (b"x" * 200_000)
    send(store.enqueue([New(f"j{n}", big, due=FAR) for n in range(4)]))
    left = send(store.at(NOW).depart(other.queue, "a", [b"j0", b"j1", b"j2", b"j3"]))
    assert left.batch is not None
    assert [member for member, _ in left.batch.jobs] == [b"j0", b"j1"]
    assert left.stay == []


# The whole pass.


class Run:
    """Performs an operation; `stop` is called with each call, and may end it there."""

    def __init__(self, send: SendCall) -> None:
        self._send = send
        self.calls = 0
        self.end_after = -1
        self.lose = False

    def __call__(self, operation: Operation[T]) -> T:
        value: Any = None
        error: EvschedError | None = None
        while True:
            try:
                step = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as end:
                return end.value
            value, error = None, None
            if isinstance(step, Send):
                if self.calls == self.end_after and not self.lose:
                    raise Killed
                try:
                    value = self._send(step.call)
                except EvschedError as failure:
                    error = failure
                self.calls += 1
                if self.calls == self.end_after and self.lose:
                    raise Killed


class Killed(BaseException):
    """The program ends here."""


@pytest.fixture
def shards(send: SendCall) -> Callable[[str, int], None]:
    return lambda queue, count: send(server.set_shards(queue, count))


def pass_over(run: Run, queue: str, count: int, was: int) -> Reshard:
    return _to_the_end(run, Reshard(queue, count, was))


def _to_the_end(run: Run, work: Reshard) -> Reshard:
    while run(work.step()):
        pass
    return work


def everything(raw: Any, queue: str, most: int) -> dict[str, set[str]]:
    found = {part: set(snapshot(raw, part).get("schedule", {})) for part in Shards({queue: most}).all_of(queue)}
    return {part: jobs for part, jobs in found.items() if jobs}


def at_home(queue: str, jobs: set[str], count: int) -> dict[str, set[str]]:
    homes = Shards({queue: count})
    found = dict[str, set[str]]()
    for job in jobs:
        found.setdefault(homes.home(queue, id_of(job.encode())), set()).add(job)
    return found


JOBS = {f"job-{n}" for n in range(230)} | {f'{{"task":"t","id":"in-{n}"}}' for n in range(20)}


@pytest.fixture
def filled(send: SendCall, store: Store, raw: Any) -> set[str]:
    now = send(server.clock())
    send(store.enqueue([New(job, PAYLOAD, due=now + 5000) for job in JOBS if job.startswith("job")]))
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {job: now + 5000 for job in JOBS if job.startswith("{")})
    return JOBS


def test_a_pass_brings_each_job_to_its_home(
    send: SendCall, queue: str, raw: Any, filled: set[str], shards: Callable[[str, int], None]
) -> None:
    run, was = Run(send), 0
    for count in (3, 12, 5, 0):
        shards(queue, max(count, was))
        work = pass_over(run, queue, count, was)
        assert work.moved > 0
        assert not work.stay
        assert everything(raw, queue, 12) == at_home(queue, filled, count)
        assert pass_over(run, queue, count, was).moved == 0
        shards(queue, count)
        was = count
    assert not [name for name in snapshot(raw, queue) if name == "moving"]


@pytest.mark.extra
@pytest.mark.parametrize("lose", [False, True], ids=["before a call", "its reply is lost"])
def test_interrupted_pass_is_finished_by_another(
    send: SendCall, queue: str, raw: Any, filled: set[str], shards: Callable[[str, int], None], lose: bool
) -> None:
    shards(queue, 2)
    ended = 0
    for number in range(1, 40):
        run = Run(send)
        run.end_after, run.lose = number, lose
        try:
            pass_over(run, queue, 2 if number % 2 else 0, 2)
        except Killed:
            ended += 1
        held = [
            set(snapshot(raw, part)["moving"]) - {"*"}
            for part in Shards({queue: 2}).all_of(queue)
            if "moving" in snapshot(raw, part)
        ]
        there = everything(raw, queue, 2)
        assert set().union(*there.values(), *held) == filled
        assert sum(map(len, there.values())) >= len(filled) - 100
    assert ended > 20
    pass_over(Run(send), queue, 2, 2)
    assert everything(raw, queue, 2) == at_home(queue, filled, 2)


def test_a_batch_that_was_on_its_way_elsewhere_comes_home_too(
    send: SendCall, queue: str, store: Store, raw: Any, shards: Callable[[str, int], None]
) -> None:
    now = send(server.clock())
    send(store.enqueue([New(job, PAYLOAD, due=now + 5000) for job in ("a", "b")]))
    shards(queue, 3)
    assert send(store.at(now).depart(f"{queue}:1", "killed", [b"a", b"b"])).batch
    assert pass_over(Run(send), queue, 0, 3).moved == 2
    assert everything(raw, queue, 3) == {queue: {"a", "b"}}


def test_a_pass_stops_when_somebody_else_changes_the_number(
    send: SendCall, queue: str, filled: set[str], shards: Callable[[str, int], None]
) -> None:
    shards(queue, 3)
    work, run = Reshard(queue, 3, 0), Run(send)
    while not work.moved:
        assert run(work.step())
    shards(queue, 2)
    with pytest.raises(ConfigError, match="has 2 shards now"):
        _to_the_end(run, work)


def test_a_pass_that_only_counts_changes_nothing(send: SendCall, queue: str, state: State, filled: set[str]) -> None:
    before = state()
    work = _to_the_end(Run(send), Reshard(queue, 3, 0, only_count=True))
    assert (work.moved, work.total) == (len(filled), len(filled))
    assert state() == before


def test_pass_counts_jobs_that_cannot_move(
    send: SendCall, queue: str, store: Store, raw: Any, shards: Callable[[str, int], None]
) -> None:
    now = send(server.clock())
    send(store.enqueue([New(f"soon-{n}", PAYLOAD, due=now + 30) for n in range(5)]))
    raw.hset(f"evsched:{{{queue}}}:job:r@1", mapping={"payload": PAYLOAD, "recurrence": "r"})
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"r@1": now + 5000})
    taken = Store(Shards({queue: 3}).home(queue, "taken"))
    for part in (store, taken):
        send(part.enqueue([New("taken", PAYLOAD, due=now + 5000)]))
    shards(queue, 3)
    work = pass_over(Run(send), queue, 3, 0)
    assert (work.moved, work.stay) == (0, {"soon": 5, "recurrence": 1, "taken": 1})


def test_job_that_moves_between_two_lookups_is_still_found(send: SendCall, store: Store, other: Store) -> None:
    send(store.at(NOW).enqueue(new("a")))
    asked = list[str]()

    def look(part: Store) -> Operation[str]:
        asked.append(part.queue)
        if len(asked) == 2:
            move(send, store, other, "a")
        found = yield Send(part.reschedule("a", FAR + 1))
        return str(found)

    parts = Parts(store.queue, Store, [other, store])
    # The home is asked first, then the queue that it has just left.
    assert Run(send)(of_job(parts, look)) == str(FAR + 1)
    assert asked == [other.queue, store.queue, other.queue]
    with pytest.raises(JobMissing):
        Run(send)(of_job(parts, lambda part: _cancel(part, "nobody")))
    found = Run(send)(status(parts, "a"))
    assert found is not None


def _cancel(part: Store, job: str) -> Operation[Any]:
    return (yield Send(part.cancel(job)))
