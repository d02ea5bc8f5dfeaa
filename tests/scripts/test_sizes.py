"""A value that is too long is not read, and a call reads a bounded number of bytes: the rest is left for the next."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.jobs.job import Done
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

CAP = 262_144
MOST = 1_048_576
LONG = b'{"task":"t","args":["%s"]}' % (b"x" * 200_000)
IDS = [f"j{n:02}" for n in range(12)]


def put(send: Send, store: Store, payload: bytes = LONG) -> None:
    send(store.at(NOW).enqueue([New(job_id, payload, due=NOW) for job_id in IDS]))
    send(store.at(NOW).dispatch(limit=500, cap=CAP))


def test_start_returns_the_jobs_that_fit_in_a_reply_and_reports_more(send: Send, store: Store, state: State) -> None:
    put(send, store)
    seen: list[str] = []
    while len(seen) < len(IDS):
        reply = send(store.at(NOW).start("w", (), hold=100, lease=15))
        assert 0 < sum(len(job.payload) for job in reply.jobs) <= MOST
        seen += [job.id for job in reply.jobs]
        assert state()["processing:w"] == seen
        assert reply.more == (len(seen) < len(IDS))
    assert seen == IDS


def test_given_ids_that_do_not_fit_stay_in_the_list_for_the_next_call(send: Send, store: Store, state: State) -> None:
    put(send, store)
    left = [send(store.fetch("w", 1)) for _ in IDS]
    while left:
        jobs = send(store.at(NOW).start("w", left, hold=100, lease=15)).jobs
        assert jobs
        assert state()["processing:w"] == IDS
        left = left[len(jobs) :]
    assert state()["job:j11"]["attempt"] == "1"


def test_a_payload_of_the_longest_allowed_size_is_handed_out_alone(send: Send, store: Store) -> None:
    cap = 3 * MOST
    payload = b'{"task":"t","args":["%s"]}' % (b"x" * 2 * MOST)
    send(store.at(NOW).enqueue([New("a", payload, due=NOW), New("b", payload, due=NOW)]))
    send(store.at(NOW).dispatch(limit=500, cap=cap))
    for job_id in "ab":
        assert [job.id for job in send(store.at(NOW).start("w", (), hold=9, lease=15, cap=cap)).jobs] == [job_id]


def test_a_payload_that_grew_too_long_after_dispatch_is_not_read(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    put(send, store, b'{"task":"t"}')
    raw.hset(f"evsched:{{{store.queue}}}:job:j05", "payload", b"x" * 2 * MOST)
    raw.hdel(f"evsched:{{{store.queue}}}:light", "j05")
    reply = send(store.at(NOW).start("w", (), hold=100, lease=15))
    assert [job.id for job in reply.jobs] == [job_id for job_id in IDS if job_id != "j05"]
    ((job_id, reason),) = reply.buried
    assert (job_id, list(state()["dead"])) == ("j05", ["j05"])
    assert f"{2 * MOST} bytes, more than {CAP}" in reason


@pytest.mark.parametrize("field", ["priority", "group", "worker", "awaited", "due", "parked", "recurrence"])
def test_long_fields_of_some_jobs_do_not_cost_a_second_dispatch(send: Send, store: Store, raw: Any, field: str) -> None:
    send(store.at(NOW).enqueue([New(job_id, b'{"task":"t"}', due=NOW) for job_id in IDS]))
    for job_id in IDS[:8]:
        raw.hset(f"evsched:{{{store.queue}}}:job:{job_id}", field, b"x" * MOST)
    step = send(store.at(NOW).dispatch(limit=500, cap=CAP))
    assert len(step.moved) + len(step.buried) == len(IDS)
    jobs = send(store.at(NOW).start("w", (), hold=100, lease=15)).jobs
    assert {job.id for job in jobs} >= set(IDS[8:])


def test_start_reads_a_bounded_number_of_bytes(send: Send, store: Store, raw: Any) -> None:
    put(send, store, b'{"task":"t"}')
    for job_id in IDS[:8]:
        raw.hset(f"evsched:{{{store.queue}}}:job:{job_id}", "attempt", b"x" * MOST)
    done: list[str] = []
    for _ in range(9):
        jobs = send(store.at(NOW).start("w", (), hold=100, lease=15)).jobs
        assert send(store.at(NOW).complete("w", [(job, Done(b"1", 0, False)) for job in jobs])) == []
        done += [job.id for job in jobs]
    assert done == IDS


def test_long_inline_jobs_are_dispatched_a_few_at_a_time(send: Send, store: Store, raw: Any) -> None:
    for n in range(20):
        raw.zadd(f"evsched:{{{store.queue}}}:schedule", {LONG + b" " * n: NOW + n / 100})
    calls, moved = 0, 0
    sleep = 0.0
    while sleep == 0:
        step = send(store.at(NOW + 1).dispatch(limit=500, cap=CAP))
        assert len(step.moved) <= MOST // len(LONG)
        calls, moved, sleep = calls + 1, moved + len(step.moved), step.sleep
    assert (calls, moved) == (4, 20)


@pytest.mark.extra
@pytest.mark.parametrize("limit", [20, 500])
def test_long_members_among_short_ones_are_read_one_by_one(send: Send, store: Store, raw: Any, limit: int) -> None:
    """Copying a member into a script takes Redis about 5 ms for each MB."""
    schedule = f"evsched:{{{store.queue}}}:schedule"
    raw.zadd(schedule, {f'{{"task":"t","id":"short{n}"}}': NOW - 2 + n / 100 for n in range(40)})
    raw.zadd(schedule, {b"%d" % n + b"x" * 2 * MOST: NOW - 1 + n / 100 for n in range(20)})
    while length := raw.zcard(schedule):
        members = raw.zrange(schedule, 0, -1)
        with raw.monitor() as monitor:
            send(store.at(NOW).dispatch(limit=limit, cap=CAP))
            raw.echo("the end of the call")
            read = 0
            for seen in monitor.listen():
                words = seen["command"].split()
                if words[0] == "ECHO":
                    break
                if words[:2] == ["ZRANGE", schedule]:
                    read += sum(map(len, members[int(words[2]) : int(words[3]) + 1]))
        assert read < 5 * MOST
        assert raw.zcard(schedule) < length


def test_an_inline_job_that_is_far_too_long_is_not_kept(send: Send, store: Store, state: State, raw: Any) -> None:
    members = [b'{"task":"t","x":"%s"}' % (bytes([letter]) * 2 * MOST) for letter in b"ab"]
    for member in members:
        raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: NOW - 1})
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {'{"task":"t","id":"good"}': NOW})
    buried: list[tuple[str, str]] = []
    for _ in range(3):
        buried += send(store.at(NOW).dispatch(limit=500, cap=CAP)).buried
    after = state()
    assert {job_id for job_id, _ in buried} == set(after["dead"])
    assert len(buried) == 2
    for job_id, reason in buried:
        assert f"{len(members[0])} bytes, more than {CAP}" in reason
        assert len(after[f"job:{job_id}"]["member"]) == 1024
    assert after["ready"] == ["good"]


@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_an_inline_job_that_is_nested_too_deep_is_dead_and_no_script_fails(
    send: Send, store: Store, state: State, raw: Any, depth: int
) -> None:
    member = b'{"task":"t","args":' + b"[" * depth + b"]" * depth + b"}"
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: NOW})
    ((_, reason),) = send(store.at(NOW).dispatch(limit=9, cap=CAP)).buried or ((None, None),)
    assert (reason is None) == (depth < 1000)
    assert reason is None or "not valid JSON" in reason
    assert "schedule" not in state()
