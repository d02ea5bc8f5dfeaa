"""Hostile writes of a producer cost one job: with any content in its record, the other jobs of the queue run."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from redis.exceptions import NoPermissionError, ResponseError

from evsched.errors import JobChanged, JobExists, JobMissing, JobRunning
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Outcome, Retried, Snoozed
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.client_calls import New
from evsched.store.operator_calls import Violation
from evsched.store.store import Store
from evsched.transport.call import CHECK, Call, arguments, script
from evsched.transport.embedded import EmbeddedRedis
from tests.scripts.conftest import NOW, Send, State
from tests.scripts.test_edit import edit_of
from tests.support import hostile
from tests.support.headers import VERBS, read_header
from tests.support.hostile import ON_RUNNING, VALID, WAYS

IDS = [b"a", b"b", b"r@1"]
GOOD = [f"good-{n}" for n in range(5)]
DONE = Done(b"1", 300.0, False)
CAP = 262_144


@pytest.fixture
def producer(raw: Any, server: EmbeddedRedis) -> Generator[Any]:
    client = hostile.producer(raw, server.url)
    yield client
    client.close()


def write(client: Any, commands: list[hostile.Command]) -> None:
    """Send commands; ignore errors of Redis, except missing rights."""
    for command in commands:
        try:
            client.execute_command(*command)
        except NoPermissionError:
            raise
        except redis.ResponseError:
            pass


def work(send: Send, store: Store, rounds: int = 6, worker: str = "w") -> set[str]:
    """Dispatch and run all jobs, round by round; return the ids of the completed ones."""
    done: set[str] = set()
    for n in range(rounds):
        now = NOW + n
        step = send(store.at(now).dispatch(limit=100, cap=CAP))
        assert step.sleep >= 0
        reply = send(store.at(now).start(worker, (), hold=50, lease=15))
        assert all(math.isfinite(job.due) and math.isfinite(job.planned) and job.attempt >= 1 for job in reply.jobs)
        lost = send(store.at(now).complete(worker, [(job, DONE) for job in reply.jobs]))
        done |= {job.id for job in reply.jobs} - set(lost)
        send(store.at(now).heartbeat(worker, 15, fresh=True))
    return done


@pytest.mark.parametrize("attempt", [None, "", "x", "-1"])
def test_start_counts_the_attempt_of_a_job_that_names_its_worker(
    send: Send, store: Store, producer: Any, attempt: str | None
) -> None:
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}')]))
    fields = {"worker": "w"} if attempt is None else {"worker": "w", "attempt": attempt}
    send(store.at(NOW).dispatch(limit=100, cap=CAP))
    producer.hset(f"evsched:{{{store.queue}}}:job:a", mapping=fields)
    assert [(job.id, job.attempt) for job in send(store.at(NOW).start("w", (), hold=50, lease=15)).jobs] == [("a", 1)]


def requeue_held(send: Send, store: Store, died: bool) -> None:
    """Requeue the jobs of worker "w", which stops or has died."""
    lease = (
        next((one.end for one in send(store.at(NOW).survey()).leases if one.worker == "w"), b"none") if died else b""
    )
    assert send(store.at(NOW).requeue("w", "x", lease=lease)).rest == "all"


def read_all(send: Send, store: Store, ids: list[str]) -> None:
    """Call every verb that only reads: it must reply, and Python must be able to read the reply."""
    send(store.at(NOW).queue_stats())
    send(store.at(NOW).survey())
    send(store.recount([b"e}:schedule", b"}:job:x", b"e"]))
    for job_id in ids:
        send(store.at(NOW).look(job_id))
        send(store.at(NOW).explain(job_id))
        for violation in send(store.at(NOW).audit([job_id.encode()])):
            send(store.at(NOW).mend([violation]))
    send(store.at(NOW).mend([Violation(b"", "in_flight", "", b"")]))


def change_each_way(send: Send, store: Store, job_id: str) -> None:
    """Call every verb that changes one job: it must do its work or refuse with an error of its own."""
    calls: list[Call[Any]] = [
        store.ask(job_id),
        store.at(NOW).reschedule(job_id, NOW),
        store.at(NOW).reschedule(job_id, NOW, edit=edit_of(send, store, job_id)),
        store.at(NOW).enqueue([New(job_id, VALID, due=NOW)], keep=True),
        store.at(NOW).enqueue([New(job_id, VALID, due=NOW)]),
        store.at(NOW).replace([New(job_id, VALID, due=NOW)]),
        store.at(NOW).cancel(job_id),
        store.at(NOW).revive([job_id]),
        store.drop([job_id]),
    ]
    for call in calls:
        try:
            send(call)
        except (JobChanged, JobExists, JobMissing, JobRunning):
            pass


def schedule_good(send: Send, store: Store) -> None:
    send(store.enqueue([New(job_id, VALID, due=NOW - 1, group="g") for job_id in GOOD]))


@pytest.mark.extra
@pytest.mark.parametrize("limited", [False, True], ids=["", "limited"])
@pytest.mark.parametrize("way", WAYS)
def test_a_malformed_record_stops_one_job_only(
    send: Send, store: Store, state: State, producer: Any, queue: str, way: str, limited: bool
) -> None:
    if limited:
        send(store.limit({"concurrency": 20, "concurrency:g": 2, "rate:}:job:x": 1}))
    write(producer, WAYS[way](queue))
    schedule_good(send, store)
    read_all(send, store, ["bad", *GOOD])
    assert work(send, store) >= set(GOOD)
    read_all(send, store, ["bad", *GOOD])
    after = state()
    assert "schedule" not in after
    assert "ready" not in after
    assert "processing:w" not in after


@pytest.mark.parametrize("way", WAYS)
def test_each_verb_answers_about_a_job_with_a_malformed_record(
    send: Send, store: Store, producer: Any, queue: str, way: str
) -> None:
    write(producer, WAYS[way](queue))
    change_each_way(send, store, "bad")
    write(producer, WAYS[way](queue))
    send(store.at(NOW).dispatch(limit=100, cap=CAP))
    change_each_way(send, store, "bad")
    schedule_good(send, store)
    assert work(send, store) >= set(GOOD)


@pytest.mark.parametrize("way", WAYS)
def test_malformed_record_does_not_stop_others_from_moving_to_a_shard(
    send: Send, store: Store, raw: Any, producer: Any, queue: str, way: str
) -> None:
    other = Store(f"{queue}:1")
    send(store.enqueue([New(job_id, VALID, due=NOW + 3, group="g") for job_id in GOOD]))
    write(producer, WAYS[way](queue))
    key = f"evsched:{{{queue}}}:schedule"
    members: list[bytes] = raw.zrange(key, 0, -1) if raw.type(key) == b"zset" else []
    left = send(store.at(NOW).depart(other.queue, "t", [*members, b"bad"], calm=0.0))
    assert left.batch is not None
    assert {member for member, _ in left.batch.jobs} >= {job_id.encode() for job_id in GOOD}
    read_all(send, store, ["bad", *GOOD])
    change_each_way(send, other, "bad")
    write(producer, WAYS[way](queue))  # while they are on their way
    batch = send(store.at(NOW).depart()).batch
    assert batch is not None
    arrival = send(other.at(NOW).arrive(queue, batch))
    assert send(store.vacate(batch, arrival)).back == len(arrival.stay)
    for part in (store, other):
        read_all(send, part, ["bad", *GOOD])
    assert work(send, other, 9) >= set(GOOD)
    work(send, store, 9)


ENDS: dict[str, tuple[Callable[[Store], Callable[..., Any]], Outcome]] = {
    "complete": (lambda store: store.complete, DONE),
    "retry": (lambda store: store.retry, Retried(1.0, "x")),
    "bury": (lambda store: store.bury, Buried("x", False)),
    "abort": (lambda store: store.abort, Aborted(300.0, False)),
    "defer": (lambda store: store.defer, Deferred(NOW + 9, "x")),
    "snooze": (lambda store: store.snooze, Snoozed("x", 1.0)),
}


@pytest.mark.extra
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", ON_RUNNING)
def test_fields_written_into_the_record_of_a_run_do_not_stop_its_end(
    send: Send, store: Store, state: State, producer: Any, queue: str, way: str, end: str
) -> None:
    schedule_good(send, store)
    send(store.at(NOW).dispatch(limit=100, cap=CAP))
    jobs: list[FetchedJob] = send(store.at(NOW).start("w", (), hold=5, lease=15)).jobs
    write(producer, [hostile.hset(queue, GOOD[1].encode(), *ON_RUNNING[way])])
    read_all(send, store, GOOD)
    verb, outcome = ENDS[end]
    lost = send(verb(store.at(NOW))("w", [(job, outcome) for job in jobs]))
    # A run whose attempt was overwritten looks like another run: the heartbeat finds it, and it runs again.
    assert lost == ([GOOD[1]] if way == "attempt-other" else [])
    if lost:
        again = send(store.at(NOW).start("w", lost, hold=5, lease=15)).jobs
        assert send(verb(store.at(NOW))("w", [(again[0], outcome)])) == []
    assert "processing:w" not in state()
    assert len(work(send, store, 12)) >= {"retry": 4, "defer": 4, "snooze": 4}.get(end, 0)


@pytest.mark.parametrize("died", [False, True], ids=["stops", "died"])
@pytest.mark.parametrize("way", ON_RUNNING)
def test_fields_written_into_the_record_of_a_run_do_not_stop_its_requeue(
    send: Send, store: Store, state: State, producer: Any, queue: str, way: str, died: bool
) -> None:
    schedule_good(send, store)
    send(store.at(NOW).dispatch(limit=100, cap=CAP))
    send(store.at(NOW).start("w", (), hold=5, lease=15))
    write(producer, [hostile.hset(queue, GOOD[1].encode(), *ON_RUNNING[way])])
    requeue_held(send, store, died)
    assert len(work(send, store, worker="v")) >= 4
    assert "processing:w" not in state()


def test_a_worker_owns_the_runs_in_its_list_and_no_stale_ones(
    send: Send, store: Store, producer: Any, queue: str
) -> None:
    """Stale runs are fenced off if only the scripts have written to the record."""
    schedule_good(send, store)
    send(store.at(NOW).dispatch(limit=100, cap=CAP))
    (job,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    send(store.at(NOW).requeue("w", "x"))
    assert send(store.fetch("w", 1)) == job.id
    assert send(store.at(NOW).complete("w", [(job, DONE)])) == [job.id]  # in its list again, but not started
    write(producer, [hostile.hset(queue, job.id.encode(), b"finished", b"1")])
    assert send(store.at(NOW).complete("w", [(job, DONE)])) == [job.id]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    commands=hostile.commands("grammar", IDS),
    end=st.sampled_from(list(ENDS)),
    died=st.booleans(),
    limits=st.sampled_from([{}, {"concurrency": 20, "concurrency:g": 2}, {"rate": 1000, "rate:g": 50, "weight:g": 2}]),
)
def test_other_jobs_run_beside_anything_a_producer_may_write(
    send: Send, producer: Any, raw: Any, commands: list[hostile.Command], end: str, died: bool, limits: dict[str, float]
) -> None:
    """It writes before the dispatch, before the start, and while the jobs run; then every verb is called."""
    store, ids = Store("grammar"), ["a", "b", "r@1"]
    try:
        send(store.limit(limits))
        send(store.declare(Declared(name="r", payload=VALID, rule="@daily")))
        send(store.recur("r", b"0", [Occurrence("r@1", NOW, NOW, 60.0)], next_=NOW + 86400))
        third = len(commands) // 3
        write(producer, commands[:third])
        schedule_good(send, store)
        send(store.at(NOW).dispatch(limit=100, cap=CAP))
        write(producer, commands[third : 2 * third])
        jobs = send(store.at(NOW).start("w", (), hold=50, lease=15)).jobs
        write(producer, commands[2 * third :])
        assert not {*send(store.begin("w", [(job, "1") for job in jobs]))} & {*GOOD}
        read_all(send, store, ids)
        send(store.progress("w", [(job, Progress(1, 2)) for job in jobs]))
        verb, outcome = ENDS[end]
        lost = send(verb(store.at(NOW))("w", [(job, outcome) for job in jobs]))
        assert not {*lost} & {*GOOD}
        send(store.at(NOW).start("w", lost, hold=50, lease=15))
        requeue_held(send, store, died)
        done = work(send, store, 12, worker="v")
        if end in ("complete", "bury", "abort"):
            done |= {job.id for job in jobs}
        assert done >= set(GOOD)
        send(store.at(NOW - 99999).rewind(9, 0, 9))
        for job_id in ids:
            change_each_way(send, store, job_id)
        send(store.at(NOW).pause())
        send(store.at(NOW).resume())
    finally:
        for key in raw.scan_iter(match="evsched:{grammar}:*", count=1000):
            raw.delete(key)


def _words(verb: str) -> tuple[list[str], list[str]]:
    """Return valid words for the arguments of a script, those that come once and those of a row."""
    values = {"filter": "{}", "act": "", "now": str(NOW), "place": "schedule"}
    once, row = (arguments("\n".join(read_header(verb)[0]), mark) for mark in ("ARGV", "ROWS"))
    return [values.get(name, "1") for name, *_ in once], [values.get(name, "1") for name, *_ in row]


def _is_refused(raw: Any, store: Store, verb: str, words: list[Any], error: str) -> None:
    with pytest.raises(ResponseError, match=f"{error}.*, so nothing was written"):
        raw.execute_command("EVAL", script(verb).source, 1, f"evsched:{{{store.queue}}}:", *words)


@pytest.mark.parametrize("verb", VERBS)
def test_wrong_number_of_words_is_refused_before_anything_is_written(
    raw: Any, store: Store, send: Send, state: State, verb: str
) -> None:
    send(store.enqueue([New("a", b"{}", due=NOW)]))
    before = state()
    once, row = _words(verb)
    for words in [once[:-1], *([[*once, "1"]] if len(row) != 1 else []), *([[*once, *row[:-1]]] if row[1:] else [])]:
        _is_refused(raw, store, verb, words, f"{len(words)} words are not {len(once)} argument")
    assert state() == before


MALFORMED = {
    "number": ("", "soon", "nan", "inf", "1e400", "1 x"),
    "count": ("", "soon", "nan", "inf", "-1", "1.5", "0x10", " 1", "9" * 17),
    "score": ("", "soon", "nan", "1e400", "0x10", " 1", "1e", "infinity"),
}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if CHECK in script(verb).source])
def test_argument_that_is_not_of_its_kind_is_refused_before_anything_is_written(
    raw: Any, store: Store, send: Send, state: State, verb: str
) -> None:
    send(store.enqueue([New("a", b"{}", due=NOW)]))
    before = state()
    header = "\n".join(read_header(verb)[0])
    once, row = _words(verb)
    for at, (name, kind, empty) in enumerate([*arguments(header, "ARGV"), *arguments(header, "ROWS")]):
        if name == "now":
            kind, empty = "number", "or"
        for malformed in MALFORMED.get(kind, ()):
            if malformed or not empty:
                words = [*once, *row]
                words[at] = malformed
                _is_refused(raw, store, verb, words, f"the argument {name} is not a valid {kind}")
    assert state() == before


DUE = str(NOW)
SUSPICION = [0, 0, 0]
PACKED: list[Any] = [
    1,
    [NOW],
    [NOW, []],
    [DUE, 1, "", 1, SUSPICION, ""],
    [DUE, ["payload"], "", 1, SUSPICION, ""],
    [DUE, ["payload", []], "", 1, SUSPICION, ""],
    [DUE, [], "", 1.5, SUSPICION, ""],
    [DUE, [], "", 1, SUSPICION[1:], ""],
    [DUE, [], "", 1, ["0", 0, 0], ""],
    [DUE, [], 1, 1, SUSPICION, ""],
    [DUE, [], "", 1, SUSPICION, 1],
]
FORMS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("revive", "filter"): (
        *("{", "null", '{"task":1}', '{"before":"x"}', '{"tags":[1]}', '{"arguments":[1]}'),
        '{"arguments":[{"positions":1}]}',
    ),
    ("find", "cursor"): ("", "x", "-1", "3 a", "9" * 20),
    ("settle", "report"): ("x", "1", "1-" + "9" * 20, "9" * 20 + "-1"),
    ("arrive", "content"): (
        b"\xc1",
        *map(msgpack.encode, PACKED),
    ),
}


@pytest.mark.parametrize(("verb", "argument"), FORMS)
def test_argument_that_has_not_its_form_is_refused_before_anything_is_written(
    raw: Any, store: Store, send: Send, state: State, verb: str, argument: str
) -> None:
    send(store.enqueue([New("a", b"{}", due=NOW)]))
    before = state()
    once, row = _words(verb)
    names = [name for mark in ("ARGV", "ROWS") for name in read_header(verb)[2][mark]]
    for malformed in FORMS[verb, argument]:
        words = [*once, *row]
        words[names.index(argument)] = malformed
        _is_refused(raw, store, verb, words, f"the argument {argument} is not ")
    assert state() == before


def test_settle_without_reports_does_nothing(raw: Any, store: Store, state: State) -> None:
    assert raw.execute_command("EVAL", script("settle").source, 1, f"evsched:{{{store.queue}}}:", "relays") == 0
    assert state() == {}
