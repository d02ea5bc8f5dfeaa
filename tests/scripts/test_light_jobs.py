"""Light jobs: what changes of them is in a hash of the queue, and they have a record only where something else is said.

That verbs and readers find no difference is tested in `test_inline_jobs.py` and by the random walks.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from evsched.jobs.job import Done, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import folder, script
from tests.scripts.conftest import Send
from tests.support.snapshot import light_fields

NOW = 1_900_000_000.0
MEMBER = '{"task":"t","args":[1]}'
INLINE = hashlib.sha1(MEMBER.encode()).hexdigest()
KEPT, UNKEPT = Done(b"1", 300.0, False), Done(b"1", 0.0, False)


@pytest.fixture
def root(queue: str) -> str:
    return f"evsched:{{{queue}}}:"


def dispatch(send: Send, store: Store, *jobs: New) -> None:
    send(store.at(NOW).heartbeat("w", 60, busy=15, fresh=True))
    if jobs:
        send(store.at(NOW).enqueue(jobs))
    send(store.at(NOW).dispatch(limit=100, cap=4096))


def record(raw: Any, root: str, job: str) -> dict[bytes, bytes]:
    return dict(raw.hgetall(f"{root}job:{job}"))


def test_inline_job_has_no_record_from_dispatch_to_its_end(send: Send, store: Store, raw: Any, root: str) -> None:
    raw.zadd(f"{root}schedule", {MEMBER: NOW - 5})
    dispatch(send, store)
    assert light_fields(raw.hget(f"{root}light", INLINE).decode()) == {"payload": MEMBER, "due": "1899999995"}
    (job,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    assert (job.id, job.payload, job.due) == (INLINE, MEMBER.encode(), NOW - 5)
    assert light_fields(raw.hget(f"{root}light", INLINE).decode())["worker"] == "w"
    assert not record(raw, root, INLINE)
    assert send(store.at(NOW).complete("w", [(job, UNKEPT)])) == []
    assert not raw.exists(f"{root}light", f"{root}job:{INLINE}")


def test_job_with_a_long_traceback_keeps_its_attempts(send: Send, store: Store, raw: Any, root: str) -> None:
    dispatch(send, store, New("a", MEMBER.encode(), due=NOW))
    (job,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    assert send(store.at(NOW).retry("w", [(job, Retried(0.0, "no", traceback="x" * 4096))])) == []
    send(store.at(NOW).dispatch(limit=100, cap=4096))
    assert not raw.exists(f"{root}light")
    (again,) = send(store.at(NOW + 1).start("w", (), hold=1, lease=15)).jobs
    assert (again.attempt, again.planned) == (2, NOW)


@pytest.mark.parametrize("end", [KEPT, UNKEPT], ids=["kept", "not kept"])
def test_record_of_a_plain_job_is_written_once_at_its_end(
    send: Send, store: Store, raw: Any, root: str, end: Done
) -> None:
    dispatch(send, store, New("a", MEMBER.encode(), due=NOW))
    (job,) = send(store.at(NOW + 1).start("w", (), hold=1, lease=15)).jobs
    assert record(raw, root, "a").keys() == {b"payload", b"created"}
    assert send(store.at(NOW + 2).complete("w", [(job, end)])) == []
    assert not raw.exists(f"{root}light")
    assert {name.decode(): value.decode() for name, value in record(raw, root, "a").items()} == (
        {}
        if end == UNKEPT
        else {
            "payload": MEMBER,
            "created": "1900000000",
            "due": "1900000000",
            "attempt": "1",
            "worker": "w",
            "started": "1900000001.000000",
            "outcome": "done",
            "result": "1",
            "finished": "1900000002.000000",
        }
    )


def test_first_write_to_the_record_ends_being_light(send: Send, store: Store, raw: Any, root: str) -> None:
    raw.zadd(f"{root}schedule", {MEMBER: NOW})
    dispatch(send, store)
    (job,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    assert send(store.begin("w", [(job, "1")])) == []
    assert not raw.exists(f"{root}light")
    assert record(raw, root, INLINE)[b"started"] == b"1900000000.000000"
    assert send(store.at(NOW).complete("w", [(job, UNKEPT)])) == []
    assert not record(raw, root, INLINE)


def test_late_end_of_a_run_does_not_end_a_later_one(send: Send, store: Store, raw: Any, root: str) -> None:
    runs = list[FetchedJob]()
    send(store.at(NOW).heartbeat("w", 60, busy=15, fresh=True))
    for n in range(2):
        raw.zadd(f"{root}schedule", {MEMBER: NOW + n})
        send(store.at(NOW + n).dispatch(limit=100, cap=4096))
        (job,) = send(store.at(NOW + n).start("w", (), hold=1, lease=15)).jobs
        runs.append(job)
        if n == 0:
            assert send(store.at(NOW).complete("w", [(job, UNKEPT)])) == []
    assert send(store.at(NOW + 1).complete("w", [(runs[0], UNKEPT)])) == [INLINE]
    assert raw.lrange(f"{root}processing:w", 0, -1) == [INLINE.encode()]
    assert send(store.at(NOW + 1).complete("w", [(runs[1], UNKEPT)])) == []


@pytest.mark.parametrize(
    ("member", "light"),
    [
        ('{"task":"t"}', True),
        ('{"task":"t","args":[{"id":1}]}', False),
        ('{"task":"t","id":"a"}', False),
        ('{"task":"t","priority":3}', False),
        ('{"task":"t","group":"g"}', False),
        ('{"task":"t","\\u0069d":"a"}', False),
        ('{"task":"t","args":["' + "x" * 2048 + '"]}', False),
    ],
)
def test_inline_job_that_may_name_itself_or_is_long_has_a_record(
    send: Send, store: Store, raw: Any, root: str, member: str, light: bool
) -> None:
    raw.zadd(f"{root}schedule", {member: NOW})
    dispatch(send, store)
    assert len(raw.keys(f"{root}job:*")) == (0 if light else 1)


def test_long_backlog_does_not_hold_payloads_twice(send: Send, store: Store, raw: Any, root: str) -> None:
    send(store.pause())
    raw.zadd(f"{root}backlog", {f"b{n}": n - 5e12 for n in range(100_000)})
    dispatch(send, store, New("a", MEMBER.encode(), due=NOW))
    assert not raw.exists(f"{root}light")
    assert record(raw, root, "a")[b"due"] == b"1900000000"


@pytest.mark.parametrize("workers", [[], ["old"], ["w", "old"]], ids=["none", "an old one", "an old one too"])
def test_no_job_is_light_while_a_worker_may_not_know_light_jobs(
    send: Send, store: Store, raw: Any, root: str, workers: list[str]
) -> None:
    """Workers of the release before do not say how long their lease is while they hold jobs."""
    for worker in workers:
        send(store.at(NOW).heartbeat(worker, 60, busy=15 if worker == "w" else None, fresh=True))
    raw.zadd(f"{root}schedule", {MEMBER: NOW})
    send(store.at(NOW).dispatch(limit=100, cap=4096))
    assert not raw.exists(f"{root}light")
    assert record(raw, root, INLINE)[b"payload"] == MEMBER.encode()


def test_job_runs_from_its_record_if_another_program_has_written_to_the_hash(
    send: Send, store: Store, raw: Any, root: str
) -> None:
    send(store.at(NOW).enqueue([New("a", MEMBER.encode(), due=NOW), New("b", MEMBER.encode(), due=NOW)]))
    send(store.at(NOW).dispatch(limit=100, cap=4096))
    raw.hset(f"{root}light", "a", "malformed")
    jobs = send(store.at(NOW).start("w", (), hold=2, lease=15)).jobs
    assert [(job.id, job.payload, job.due) for job in jobs] == [(name, MEMBER.encode(), NOW) for name in "ab"]
    assert send(store.at(NOW).complete("w", [(job, KEPT) for job in jobs])) == []
    assert [record(raw, root, job)[b"outcome"] for job in "ab"] == [b"done"] * 2


@pytest.mark.parametrize("first", [INLINE, MEMBER], ids=["its id", "the member"])
def test_job_that_is_due_under_its_id_and_as_a_member_is_one(
    send: Send, store: Store, raw: Any, root: str, first: str
) -> None:
    raw.hset(f"{root}job:{INLINE}", "payload", '{"task":"other"}')
    raw.zadd(f"{root}schedule", {INLINE: NOW - 1, MEMBER: NOW - 1, first: NOW - 2})
    dispatch(send, store)
    (job,) = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    assert (job.id, job.payload) == (INLINE, MEMBER.encode())
    assert not raw.exists(f"{root}light")


@pytest.mark.parametrize(
    "verb", [path.stem for path in folder().glob("[a-z]*.lua") if "no-writes" in path.read_text().partition("\n")[0]]
)
def test_reader_does_not_write_the_record_of_a_light_job(verb: str) -> None:
    assert "local function record(" not in script(verb).source
