"""The history: each end of a job exactly once, counts by the hour, bounds; and the runs of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from evsched import keys
from evsched.client import history
from evsched.client.history import HistoryFilter, TaskCounts
from evsched.client.operations import Operation, Send, SendMany, Step
from evsched.errors import ConfigError, StoreRefused
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Mark, Retried, Snoozed
from evsched.jobs.record import JobRun
from evsched.store.client_calls import New
from evsched.store.history_calls import EndCount, PastJob
from evsched.store.operator_calls import condition
from evsched.store.run_ends import NO_LEASE
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.call import Call, T
from tests.scripts.conftest import NOW, State, status_of
from tests.scripts.conftest import Send as SendCall

PAYLOAD = b'{"task":"t","tags":["patient:42","x"]}'


@pytest.fixture
def run(send: SendCall, store: Store) -> Callable[..., FetchedJob]:
    """Enqueue a job and start it 0.25 s after its due."""

    def begin(job_id: str = "a", payload: bytes = PAYLOAD, at: float = NOW, **more: Any) -> FetchedJob:
        send(store.at(at).enqueue([New(job_id, payload, due=at, **more)]))
        send(store.at(at).dispatch(limit=10, cap=10_000))
        (job,) = send(store.at(at + 0.25).start("w", (), hold=9, lease=15)).jobs
        return job

    return begin


def past(send: SendCall, store: Store) -> list[PastJob]:
    return [job for entry in send(store.ended()).entries for job in entry.jobs]


def ended(send: SendCall, store: Store) -> list[tuple[str, str, str]]:
    return [(job.id, job.task, job.outcome) for job in past(send, store)]


def perform(step_by: Callable[[Step], Any], operation: Operation[T]) -> T:
    value: Any = None
    while True:
        try:
            step = operation.send(value)
        except StopIteration as end:
            return end.value
        value = step_by(step)


def search(send: SendCall, operation: Operation[T]) -> T:
    def perform_step(step: Step) -> Any:
        assert isinstance(step, Send | SendMany)
        return send(step.call) if isinstance(step, Send) else [send(call) for call in step.calls]

    return perform(perform_step, operation)


def test_job_that_is_done_is_one_row(send: SendCall, store: Store, run: Callable[..., FetchedJob]) -> None:
    job = run(group="g")
    send(store.at(NOW + 1).complete("w", [(job, Done(b"1", 300.0, False, label=b'["t"]'))]))
    assert past(send, store) == [
        PastJob(
            queue=store.queue,
            id="a",
            task="t",
            outcome="done",
            due=NOW,
            started=NOW + 0.25,
            ended=NOW + 1,
            attempt=1,
            worker="w",
            group="g",
        )
    ]


def test_the_ends_of_one_call_are_one_entry(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str
) -> None:
    jobs = [run(f"j{n}") for n in range(9)]
    send(store.at(NOW + 1).complete("w", [(job, Done(b"1", 0.0, False, label=b'["t"]')) for job in jobs]))
    assert raw.xlen(f"evsched:{{{queue}}}:history") == 1
    assert [job.id for job in past(send, store)] == [f"j{n}" for n in reversed(range(9))]


def test_jobs_of_one_call_keep_their_own_times_and_fields(
    send: SendCall, store: Store, run: Callable[..., FetchedJob]
) -> None:
    first = [run("a"), run("b"), run("c", group="g")]
    again = run("d")
    send(store.at(NOW + 1).retry("w", [(again, Retried(0.0, "x"))]))
    send(store.at(NOW + 1).dispatch(limit=10, cap=10_000))
    (again,) = send(store.at(NOW + 1.25).start("w", (), hold=9, lease=15)).jobs
    late = [run("e", at=NOW + 2), again, run("f", at=NOW + 2)]
    done = [(job, Done(b"1", 0.0, False, label=b'["t","x"]')) for job in (*first, *late)]
    assert send(store.at(NOW + 9).complete("w", done)) == []
    found = [(job.id, job.due, job.started, job.attempt, job.group, job.tags) for job in past(send, store)]
    assert found[::-1] == [
        ("a", NOW, NOW + 0.25, 1, "", ["x"]),
        ("b", NOW, NOW + 0.25, 1, "", ["x"]),
        ("c", NOW, NOW + 0.25, 1, "g", ["x"]),
        ("e", NOW + 2, NOW + 2.25, 1, "", ["x"]),
        ("d", NOW + 1, NOW + 1.25, 2, "", ["x"]),
        ("f", NOW + 2, NOW + 2.25, 1, "", ["x"]),
    ]
    counts = sorted(send(store.hour(int(NOW // 3600))), key=lambda count: count.run or 0)
    assert counts == [EndCount("t", "done", 8, 13, 3), EndCount("t", "done", 8, 14, 3)]


def test_jobs_of_one_call_are_counted_by_their_own_delays(send: SendCall, store: Store) -> None:
    dues = {"a": NOW, "b": NOW, "c": NOW - 0.1, "d": NOW - 5, "e": NOW - 0.1, "f": NOW + 0.5}
    send(store.at(NOW - 9).enqueue([New(job_id, PAYLOAD, due=due) for job_id, due in dues.items()]))
    send(store.at(NOW + 1).dispatch(limit=10, cap=10_000))
    jobs = send(store.at(NOW + 1).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW + 1.5).complete("w", [(job, Done(b"1", 0.0, False, label=b'["t"]')) for job in jobs]))
    counts = {(one.late, one.run, one.jobs) for one in send(store.hour(int(NOW // 3600)))}
    assert counts == {(9, 9, 1), (10, 9, 2), (11, 9, 2), (13, 9, 1)}
    assert {job.id: job.due for job in past(send, store)} == dues


@pytest.mark.parametrize("name", ['say "no"', pytest.param("a\\b\nc", marks=pytest.mark.extra)])
def test_id_of_another_client_that_is_done_is_readable(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str, name: str
) -> None:
    job = run("a")
    raw.hset(f"evsched:{{{queue}}}:job:{name}", mapping={"payload": PAYLOAD})
    raw.rpush(f"evsched:{{{queue}}}:ready", name)
    (other,) = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW + 1).complete("w", [(one, Done(b"1", 0.0, False, label=b'["t"]')) for one in (job, other)]))
    assert [one.id for one in past(send, store)] == [name, "a"]


@pytest.mark.parametrize("task", ["a/b", 'say "no"', pytest.param("a\\b", marks=pytest.mark.extra)])
def test_name_of_a_task_with_escapes_is_counted_as_it_is(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], task: str
) -> None:
    done, dead = (run(job_id, json.dumps({"task": task}).encode()) for job_id in ("done", "dead"))
    send(store.at(NOW).complete("w", [(done, Done(b"1", 0.0, False, label=json.dumps([task]).encode()))]))
    send(store.at(NOW).bury("w", [(dead, Buried("x", False))]))
    assert {(one.task, one.outcome) for one in send(store.hour(int(NOW // 3600)))} == {(task, "done"), (task, "dead")}


def test_each_kind_of_end_is_in_the_history(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str
) -> None:
    inline = '{"task":"i","id":"inline"}'
    raw.zadd(f"evsched:{{{queue}}}:schedule", {inline: NOW + 99, "no-record": NOW - 9})
    send(store.at(NOW).bury("w", [(run("dead"), Buried("x", False, error="E", location="t.py:1 in f"))]))
    send(store.at(NOW).bury("w", [(run("late"), Buried("x", False, outcome="expired", began=False))]))
    send(store.at(NOW).abort("w", [(run("stopped"), Aborted(9.0, False))]))
    stopping = run("stopping")
    send(store.at(NOW).cancel("stopping"))
    send(store.at(NOW).retry("w", [(stopping, Retried(1.0, "x"))]))
    send(store.at(NOW).enqueue([New("waits", PAYLOAD, due=NOW + 5)]))
    send(store.at(NOW).cancel("waits"))
    send(store.at(NOW).cancel_matching([inline], condition(task="i")))
    send(store.at(NOW + 5).dispatch(limit=10, cap=1000))
    assert ended(send, store) == [
        ("no-record", "", "dead"),
        ("inline", "i", "cancelled"),
        ("waits", "t", "cancelled"),
        ("stopping", "t", "cancelled"),
        ("stopped", "t", "cancelled"),
        ("late", "t", "expired"),
        ("dead", "t", "dead"),
    ]
    dead, late = past(send, store)[-1], past(send, store)[-2]
    assert (dead.error, dead.location, dead.tags) == ("E", "t.py:1 in f", ["patient:42", "x"])
    assert (dead.attempt, late.attempt, late.started) == (1, 0, None)


def test_run_that_is_lost_or_goes_on_is_no_end(send: SendCall, store: Store, run: Callable[..., FetchedJob]) -> None:
    job = run()
    send(store.at(NOW).retry("w", [(job, Retried(1.0, "x"))]))
    again = send(store.at(NOW).complete("w", [(job, Done(b"1", 300.0, False, label=b'["t"]'))]))
    other = run("b")
    send(store.at(NOW).snooze("w", [(other, Snoozed("x", 1.0))]))
    third = run("c")
    send(store.at(NOW).defer("w", [(third, Deferred(NOW + 9, "x"))]))
    assert (again, ended(send, store)) == (["a"], [])


def test_dead_job_that_is_revived_ends_once_more(send: SendCall, store: Store, run: Callable[..., FetchedJob]) -> None:
    send(store.at(NOW).bury("w", [(run(), Buried("x", False))]))
    send(store.at(NOW).revive(["a"]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (job,) = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW).complete("w", [(job, Done(b"1", 0.0, False, label=b'["t"]'))]))
    assert ended(send, store) == [("a", "t", "done"), ("a", "t", "dead")]


def end_many(send: SendCall, store: Store, run: Callable[..., FetchedJob], first: int, count: int, at: float) -> None:
    for n in range(first, first + count):
        send(store.at(at).complete("w", [(run(f"j{n}", at=at), Done(b"1", 0.0, False, label=b'["t"]'))]))


def test_no_more_ends_are_kept_than_the_limit_says(
    send: SendCall, store: Store, run: Callable[..., FetchedJob]
) -> None:
    send(store.limit({"history": 3}))
    end_many(send, store, run, 0, 5, NOW)
    assert [job.id for job in past(send, store)] == ["j4", "j3", "j2"]
    send(store.limit({"history": 1}))
    end_many(send, store, run, 5, 1, NOW)
    assert [job.id for job in past(send, store)] == ["j5"]


@pytest.mark.parametrize("declared", [False, pytest.param(True, marks=pytest.mark.extra)])
def test_queue_that_is_to_keep_no_history_has_none(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str, declared: bool
) -> None:
    end_many(send, store, run, 0, 2, NOW)
    hour = send(store.hour(int(NOW // 3600)))
    call: Call[Any] = store.declare_limits("app", None, {"history": 0.0}) if declared else store.limit({"history": 0})
    send(call)
    assert not raw.exists(f"evsched:{{{queue}}}:history")
    end_many(send, store, run, 2, 1, NOW)
    send(store.at(NOW).enqueue([New("a", PAYLOAD)]))
    send(store.at(NOW).cancel("a"))
    assert past(send, store) == []
    assert send(store.hour(int(NOW // 3600))) == hour  # nor is it counted
    send(store.limit({"history": 3}))
    end_many(send, store, run, 3, 1, NOW)
    assert [job.id for job in past(send, store)] == ["j3"]


@pytest.mark.extra
def test_key_of_another_program_is_not_deleted_as_the_history(send: SendCall, store: Store, raw: Any) -> None:
    raw.set(f"evsched:{{{store.queue}}}:history", "x")
    send(store.limit({"history": 0}))
    assert raw.get(f"evsched:{{{store.queue}}}:history") == b"x"


def test_a_history_that_is_made_again_goes_on_with_greater_ids(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str
) -> None:
    def ids() -> list[tuple[int, int]]:
        found = [entry.decode().split("-") for entry, _ in raw.xrange(f"evsched:{{{queue}}}:history")]
        return [(int(number) - int(mark), int(mark)) for number, mark in found]

    end_many(send, store, run, 0, 2, NOW)
    before = ids()
    raw.delete(f"evsched:{{{queue}}}:history")
    end_many(send, store, run, 2, 1, NOW + 1)
    assert before == [(1, NOW * 1e6), (2, NOW * 1e6)]
    assert ids() == [(1, (NOW + 1) * 1e6)]


def test_the_history_is_deleted_some_time_after_the_last_end(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str
) -> None:
    end_many(send, store, run, 0, 1, NOW)
    assert 86_000 < raw.ttl(f"evsched:{{{queue}}}:history") <= 86_400
    send(store.limit({"history_age": 60}))
    end_many(send, store, run, 1, 1, NOW)
    assert 0 < raw.ttl(f"evsched:{{{queue}}}:history") <= 60


def test_an_hour_counts_no_more_names_than_4000(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str
) -> None:
    hour = f"evsched:{{{queue}}}:hour:{int(NOW // 3600)}"
    end_many(send, store, run, 0, 1, NOW)
    counted = raw.hgetall(hour)
    raw.hset(hour, mapping={f"done 0 0 {n}": 1 for n in range(4000)})
    send(store.at(NOW).bury("w", [(run("dead"), Buried("no", False))]))
    assert raw.hlen(hour) == 4000 + len(counted)


@pytest.mark.parametrize("key", ["history", "hour"])
def test_a_key_of_another_type_keeps_no_job_from_its_end(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str, state: State, key: str
) -> None:
    name = f"hour:{int(NOW // 3600)}" if key == "hour" else key
    raw.set(f"evsched:{{{queue}}}:{name}", "x")
    for job_id in ("a", "b"):
        send(store.at(NOW).complete("w", [(run(job_id), Done(b"1", 300.0, False, label=b'["t"]'))]))
    assert state()["job:b"]["outcome"] == "done"


@pytest.mark.parametrize("key", ["history", pytest.param("audit", marks=pytest.mark.extra)])
def test_refusal_names_the_key_of_another_type(send: SendCall, store: Store, raw: Any, key: str) -> None:
    name = f"evsched:{{{store.queue}}}:{key}"
    raw.set(name, "x")
    call: Call[Any] = store.ended() if key == "history" else store.acts("+", None, 9)
    with pytest.raises(StoreRefused, match=re.escape(f"{name} has the wrong type: `evsched doctor`")):
        send(call)


def test_entries_that_another_client_wrote_are_left_out(send: SendCall, store: Store, raw: Any, queue: str) -> None:
    name = f"evsched:{{{queue}}}:history"
    raw.xadd(name, {"x": "y"})
    raw.xadd(name, {"outcome": b"\xff", "ended": "nan", "jobs": '[["a","t",null,null,1],[7]]'})
    raw.xadd(name, {"outcome": "done", "jobs": "[" * 9999})
    raw.hset(
        f"evsched:{{{queue}}}:hour:{int(NOW // 3600)}",
        mapping={"": "x", "late": "1", "done 999 x t": "1", "done 1 2 t": b"\xff"},
    )
    assert past(send, store) == []
    assert {(one.task, one.late, one.jobs) for one in send(store.hour(int(NOW // 3600)))} >= {("", None, 0)}


def test_names_that_are_long_or_not_utf_8_are_readable(
    send: SendCall, store: Store, run: Callable[..., FetchedJob]
) -> None:
    task = "ü" * 400
    payload = json.dumps({"task": task, "tags": ["é" * 300, 7, "x", "a b"]}, ensure_ascii=False).encode()
    send(store.at(NOW).bury("w", [(run("a", payload), Buried("x", False, error='"\n\0', location="\x7f"))]))
    (job,) = past(send, store)
    assert (job.task, job.error, job.location) == ("ü" * 150, '"\n\0', "\x7f")


def test_search_finds_by_each_condition(send: SendCall, store: Store, run: Callable[..., FetchedJob]) -> None:
    send(store.at(NOW).complete("w", [(run("a", group="g"), Done(b"1", 0.0, False, label=b'["t"]'))]))
    send(store.at(NOW + 9).bury("w", [(run("b"), Buried("x", False, error="lib.Timeout"))]))

    def found(**conditions: Any) -> list[str]:
        return [job.id for job in search(send, history.search([store], HistoryFilter(**conditions), 50)).jobs]

    assert found() == ["b", "a"]
    assert (found(id="a"), found(task="t"), found(task="x"), found(group="g")) == (["a"], ["b", "a"], [], ["a"])
    assert (found(outcome="dead"), found(error="Timeout"), found(error="lib.Timeout")) == (["b"], ["b"], ["b"])
    assert (found(tag="patient:42"), found(error="imeout")) == (["b"], [])
    assert (found(since=NOW + 1), found(until=NOW + 1)) == (["b"], ["a"])
    assert len(search(send, history.search([store], HistoryFilter(), 1)).jobs) == 1


def test_pages_have_each_end_once(send: SendCall, store: Store) -> None:
    shard = Store(f"{store.queue}:0")
    for n in range(60):  # more entries than one call reads
        send(store.at(NOW + n).enqueue([New(f"j{n}", PAYLOAD)]))
        send(store.at(NOW + n).cancel(f"j{n}"))
    send(store.at(NOW + 90).enqueue([New(f"k{n}", PAYLOAD) for n in range(7)]))
    assert send(store.at(NOW + 91).cancel_matching([f"k{n}" for n in range(7)], condition(task="t"))) == 7  # one entry
    for n in range(3):
        send(shard.at(NOW + n).enqueue([New(f"s{n}", PAYLOAD)]))
        send(shard.at(NOW + 20 * n).cancel(f"s{n}"))
    found, cursor, sizes = list[PastJob](), None, list[int]()
    while cursor is not None or not found:
        page = search(send, history.search([shard, store], HistoryFilter(), 5, cursor))
        found += page.jobs
        sizes.append(len(page.jobs))
        cursor = page.cursor
    names = [*(f"j{n}" for n in range(60)), *(f"k{n}" for n in range(7)), *(f"s{n}" for n in range(3))]
    assert sorted(job.id for job in found) == sorted(names)
    assert [job.ended for job in found] == sorted((job.ended for job in found), reverse=True)
    assert sizes == [5] * 14
    few = search(send, history.search([store], HistoryFilter(id="j0"), 5, None, most=1))
    assert (few.jobs, few.cursor is None) == ([], False)
    rest = search(send, history.search([store], HistoryFilter(id="j0"), 5, few.cursor))
    assert ([job.id for job in rest.jobs], rest.cursor) == (["j0"], None)


@pytest.mark.parametrize("cursor", ["x", "é", "e30x", "W10", "eyJhIjpbLTEsMF19", "eyJhIjpbMSwxZTk5XX0"])
def test_cursor_of_another_form_is_refused(send: SendCall, store: Store, cursor: str) -> None:
    with pytest.raises(ConfigError, match="cursor is not valid"):
        search(send, history.search([store], HistoryFilter(), 5, cursor))


def test_cursor_is_refused_together_with_a_ledger(send: SendCall, store: Store) -> None:
    with pytest.raises(ConfigError, match="cursor: a search in the ledger has no pages"):
        search(send, history.search([store], HistoryFilter(), 5, "e30", ledger=object()))


def test_counts_are_read_in_few_round_trips(store: Store) -> None:
    sizes = list[int]()

    def count(step: Step) -> Any:
        if isinstance(step, Send):
            return 30 * 86400.0  # the time
        assert isinstance(step, SendMany)
        sizes.append(len(step.calls))
        return [list[EndCount]()] * len(step.calls)

    assert perform(count, history.counts([store], since=timedelta(days=30))) == []
    assert (sum(sizes), len(sizes)) == (8 * 24 + 1, 4)


def test_counts_of_a_week_by_task(send: SendCall, store: Store, run: Callable[..., FetchedJob]) -> None:
    now = send(clock(keys.root(store.queue)))
    for n in range(10):
        job = run(f"j{n}", at=now)
        send(
            store.at(now + 0.25 + (20 if n == 9 else 0.01)).complete(
                "w", [(job, Done(b"1", 0.0, False, label=b'["t"]'))]
            )
        )
    send(store.at(now).bury("w", [(run("x", at=now), Buried("x", False))]))
    (counts,) = search(send, history.counts([store]))
    assert (counts.task, counts.ended, counts.done, counts.dead) == ("t", 11, 10, 1)
    assert isinstance(counts, TaskCounts)
    assert counts.late_p50 == counts.late_p99 == 0.256
    assert (counts.run_p50, counts.run_p99) == (0.016, 32.768)


def test_the_runs_of_a_job_are_in_its_record(
    send: SendCall, store: Store, run: Callable[..., FetchedJob], raw: Any, queue: str
) -> None:
    send(store.at(NOW + 1).retry("w", [(run(), Retried(1.0, "attempt 1 of 3: E", error="E", location="t.py:1 in f"))]))
    send(store.at(NOW + 2).dispatch(limit=10, cap=1000))
    (job,) = send(store.at(NOW + 2).start("w", (), hold=9, lease=15)).jobs
    send(store.begin("w", [(job, "1")]))
    raw.zrem(f"evsched:{{{queue}}}:leases", "w")
    send(store.at(NOW + 3).requeue("w", "its worker died", lease=NO_LEASE))
    (job,) = send(store.at(NOW + 4).start("v", (), hold=9, lease=15)).jobs
    send(store.at(NOW + 5).complete("v", [(job, Done(b"1", 300.0, False, label=b'["t"]'))]))
    assert status_of(send, store, "a").runs == [
        JobRun(1, "w", NOW + 0.25, NOW + 1, "failed", "E", "t.py:1 in f", "attempt 1 of 3: E"),
        JobRun(2, "w", NOW + 2, NOW + 3, "lost", reason="its worker died"),
        JobRun(3, "v", NOW + 4, NOW + 5, "done"),
    ]


@pytest.mark.parametrize(
    ("marks", "last"),
    [
        (("1", None), JobRun(2, "w", None, NOW + 3, "lost before it began", reason="its worker died")),
        (("1", "soon"), JobRun(2, "w", NOW + 2, NOW + 3, "lost", reason="its worker died")),
        pytest.param(
            ("1", "1"), JobRun(2, "w", NOW + 2, NOW + 3, "lost", reason="its worker died"), marks=pytest.mark.extra
        ),
        pytest.param((None,), JobRun(1, "w", NOW, NOW + 3, "lost", reason="its worker died"), marks=pytest.mark.extra),
    ],
)
def test_run_that_was_lost_before_it_began_says_so(
    send: SendCall, store: Store, raw: Any, queue: str, marks: tuple[Mark | None, ...], last: JobRun
) -> None:
    send(store.at(NOW).enqueue([New("a", PAYLOAD, due=NOW)]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    for n, mark in enumerate(marks):
        (job,) = send(store.at(NOW + 2 * n).start("w", (), hold=9, lease=15)).jobs
        if mark is not None:
            send(store.begin("w", [(job, mark)]))
        raw.zrem(f"evsched:{{{queue}}}:leases", "w")
        send(store.at(NOW + 3).requeue("w", "its worker died", lease=NO_LEASE))
    assert status_of(send, store, "a").runs[-1] == last


def test_job_that_ends_before_a_run_begins_has_no_run_then(
    send: SendCall, store: Store, run: Callable[..., FetchedJob]
) -> None:
    send(store.at(NOW + 1).retry("w", [(run(), Retried(0.0, "attempt 1 of 3: E"))]))
    send(store.at(NOW + 1).dispatch(limit=10, cap=1000))
    (job,) = send(store.at(NOW + 1).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW + 9).bury("w", [(job, Buried("too late", False, outcome="expired", began=False))]))
    assert [one.outcome for one in status_of(send, store, "a").runs] == ["failed"]
    (end,) = past(send, store)
    assert (end.outcome, end.attempt, end.started) == ("expired", 1, None)


def test_the_first_and_the_last_ten_runs_are_kept(send: SendCall, store: Store, run: Callable[..., FetchedJob]) -> None:
    job = run()
    for n in range(1, 31):
        send(store.at(NOW + n).retry("w", [(job, Retried(0.0, f"attempt {n}"))]))
        send(store.at(NOW + n).dispatch(limit=10, cap=1000))
        (job,) = send(store.at(NOW + n).start("w", (), hold=9, lease=15)).jobs
    runs = status_of(send, store, "a").runs
    assert [one.attempt for one in runs] == [*range(1, 11), *range(21, 31)]


def test_inline_job_that_is_cancelled_by_itself_is_listed_with_its_task(send: SendCall, store: Store, raw: Any) -> None:
    member = '{"task":"charge","args":["x"],"group":"g","tags":["a"]}'
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: NOW + 60})
    assert send(store.at(NOW).cancel(member)).place == "schedule"
    (job,) = past(send, store)
    assert (job.task, job.group, job.tags, job.outcome) == ("charge", "g", ["a"], "cancelled")
    assert [(one.task, one.jobs) for one in send(store.hour(int(NOW // 3600)))] == [("charge", 1)]


def test_id_of_any_bytes_does_not_hide_the_ends_beside_it(send: SendCall, store: Store, raw: Any) -> None:
    root, ids = f"evsched:{{{store.queue}}}:", ['x"y', "back\\slash", "new\nline", "plain"]
    for job in ids:
        raw.hset(f"{root}job:{job}", "payload", '{"task":"t"}')
        raw.zadd(f"{root}schedule", {job: NOW + 60})
    assert send(store.at(NOW).cancel_matching(ids, condition())) == 4
    assert {job.id for job in past(send, store)} == {*ids}
