"""A field that is too long to be valid is not read, so no record that a producer writes can slow a script down.

Copying a value into a script takes Redis about 5 ms for each MB. What a script reads is counted by MONITOR, which shows
the commands inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.client.edit import digest_of
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Retried, Snoozed
from evsched.store.client_calls import Edit, New
from evsched.store.store import Store
from evsched.transport.call import Call
from tests.scripts.conftest import NOW, Send
from tests.support.hostile import FIELDS, VALID

CAP = 262_144
LONG = b"x" * 1_048_576
MOST = 20_000
"""Bytes that a script may read of records in these tests: those of small records are read as they are."""

READ = digest_of({"payload": VALID, "created": b"%d" % NOW})
"""The digest of a job whose other fields are too long."""

VERBS: dict[str, Callable[[Store], Call[Any]]] = {
    "dispatch": lambda store: store.at(NOW).dispatch(limit=100, cap=CAP),
    "start": lambda store: store.at(NOW).start("w", (), hold=100, lease=15),
    "start-fetched": lambda store: store.at(NOW).start("w", ("held",), hold=1, lease=15),
    "heartbeat": lambda store: store.at(NOW).heartbeat("w", 15, fresh=False),
    "requeue": lambda store: store.at(NOW).requeue("w", "it stops"),
    "cancel": lambda store: store.at(NOW).cancel("ready"),
    "cancel-held": lambda store: store.at(NOW).cancel("held"),
    "replace": lambda store: store.at(NOW).replace([New("ready", VALID, due=NOW)]),
    "enqueue-keep": lambda store: store.at(NOW).enqueue([New("ready", VALID, due=NOW)], keep=True),
    "reschedule": lambda store: store.at(NOW).reschedule("due", NOW),
    "edit": lambda store: store.at(NOW).reschedule("due", NOW, edit=Edit(READ, VALID, None, None, "k", ())),
    "queue-stats": lambda store: store.at(NOW).queue_stats(),
    "audit": lambda store: store.at(NOW).audit([b"ready", b"held", b"due"]),
}


def record_bytes(raw: Any, send: Send, call: Call[Any]) -> int:
    """Send a call; return how many bytes of records its script reads."""
    sizes = {key: {name: len(value) for name, value in raw.hgetall(key).items()} for key in raw.keys("*:job:*")}
    read = 0
    with raw.monitor() as monitor:
        send(call)
        raw.echo("the end of the call")
        for seen in monitor.listen():
            words = seen["command"].split()
            if words[0] == "ECHO":
                return read
            fields = sizes.get(words[1].encode(), {}) if seen["client_type"] == "lua" else {}
            if words[0] == "HGETALL":
                read += sum(fields.values())
            elif words[0] in ("HGET", "HMGET"):
                read += sum(fields.get(field.encode(), 0) for field in words[2:])
    raise AssertionError("the monitor ended")


@pytest.mark.extra
@pytest.mark.parametrize("limited", [False, True], ids=["", "limited"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_reads_a_field_that_is_too_long(
    send: Send, store: Store, raw: Any, queue: str, verb: str, limited: bool
) -> None:
    if limited:
        send(store.limit({"concurrency": 9, "concurrency:g": 2}))
    for job_id, worker in (("held", "w"), ("ready", None)):
        send(store.at(NOW).enqueue([New(job_id, VALID, due=NOW, group="k")]))  # so it is no light job
        send(store.at(NOW).dispatch(limit=100, cap=CAP))
        if worker:
            send(store.at(NOW).start(worker, (), hold=1, lease=15))
    send(store.at(NOW).enqueue([New("due", VALID, due=NOW)]))
    for job_id in ("held", "ready", "due"):
        raw.hset(f"evsched:{{{queue}}}:job:{job_id}", mapping=dict.fromkeys(FIELDS[1:], LONG))
    assert record_bytes(raw, send, VERBS[verb](store)) < MOST


ENDS: dict[str, Callable[[Store, FetchedJob], Call[Any]]] = {
    "complete": lambda store, run: store.at(NOW).complete("w", [(run, Done(b"1", 300.0, True))]),
    "retry": lambda store, run: store.at(NOW).retry("w", [(run, Retried(1.0, "x"))]),
    "bury": lambda store, run: store.at(NOW).bury("w", [(run, Buried("x", True))]),
    "abort": lambda store, run: store.at(NOW).abort("w", [(run, Aborted(300.0, True))]),
    "defer": lambda store, run: store.at(NOW).defer("w", [(run, Deferred(NOW + 9, "x"))]),
    "snooze": lambda store, run: store.at(NOW).snooze("w", [(run, Snoozed("x", 1.0))]),
    "begin": lambda store, run: store.begin("w", [(run, "1")]),
    "progress": lambda store, run: store.progress("w", [(run, Progress(1, 2))]),
}


@pytest.mark.extra
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
def test_no_end_of_a_run_reads_a_field_that_is_too_long(
    send: Send, store: Store, raw: Any, queue: str, end: str, cancelled: bool
) -> None:
    send(store.at(NOW).enqueue([New("a", VALID, due=NOW, group="k")]))  # so it is no light job
    send(store.at(NOW).dispatch(limit=100, cap=CAP))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    record = f"evsched:{{{queue}}}:job:a"
    raw.hset(record, mapping=dict.fromkeys(set(FIELDS[1:]) - {b"worker", b"attempt"}, LONG))
    if not cancelled:
        raw.hdel(record, "stop")
    assert record_bytes(raw, send, ENDS[end](store, run)) < MOST
    if end not in ("begin", "progress"):
        assert not raw.exists(f"evsched:{{{queue}}}:processing:w")


def test_job_with_long_fields_is_dead_and_its_reason_names_the_first(
    send: Send, store: Store, raw: Any, queue: str
) -> None:
    for field in ("priority", "group"):
        raw.hset(f"evsched:{{{queue}}}:job:{field}", mapping={"payload": VALID, field: LONG})
        raw.zadd(f"evsched:{{{queue}}}:schedule", {field: 1})
    buried = dict(send(store.at(NOW).dispatch(limit=100, cap=CAP)).buried)
    assert buried["priority"].startswith("the priority is not a whole number")
    assert buried["group"].startswith("the group has more than 200 bytes")


@pytest.mark.parametrize("fields", [100, 600])
def test_one_long_field_among_many_short_ones_is_noticed(
    send: Send, store: Store, raw: Any, queue: str, fields: int
) -> None:
    """MEMORY USAGE samples a part of the fields only."""
    record = f"evsched:{{{queue}}}:job:many"
    raw.hset(record, mapping={str(n): "" for n in range(fields)} | {"payload": VALID, "group": LONG})
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"many": 1})
    call = store.at(NOW).dispatch(limit=100, cap=CAP)
    assert record_bytes(raw, send, call) < MOST
    assert raw.zscore(f"evsched:{{{queue}}}:dead", "many") == NOW


def test_small_record_costs_only_one_memory_usage_and_one_read(send: Send, store: Store, raw: Any, queue: str) -> None:
    send(store.at(NOW).enqueue([New("a", VALID, due=NOW, priority=3, group="g")]))
    raw.config_resetstat()
    send(store.at(NOW).dispatch(limit=100, cap=CAP))
    send(store.at(NOW).start("w", (), hold=9, lease=15))
    stats = raw.info("commandstats")
    assert {
        name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        for name in ("memory|usage", "hgetall", "hmget", "hget")
    } == {
        "memory|usage": 2,
        "hgetall": 1,
        "hmget": 2,  # one whether the job is light
        "hget": 0,
    }
    assert "cmdstat_hstrlen" not in stats


@pytest.mark.parametrize("kind", ["string", "list"])
def test_long_key_of_another_type_in_the_place_of_a_record_costs_only_its_job(
    send: Send, store: Store, raw: Any, queue: str, kind: str
) -> None:
    key = f"evsched:{{{queue}}}:job:bad"
    send(store.enqueue([New(job_id, VALID, due=NOW) for job_id in ("bad", "good")]))
    raw.delete(key)
    raw.set(key, LONG) if kind == "string" else raw.rpush(key, *[b"x" * 100] * 200)
    step = send(store.at(NOW).dispatch(limit=9, cap=CAP))
    assert [reason for _, reason in step.buried] == [
        "the key of its record is not a hash: DEL it and schedule the job again"
    ]
    assert [job.id for job in send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs] == ["good"]


def test_record_of_too_many_fields_is_not_read_whole(send: Send, store: Store, raw: Any, queue: str) -> None:
    send(store.enqueue([New("a", VALID, due=NOW)]))
    raw.hset(f"evsched:{{{queue}}}:job:a", mapping={f"f{n}": "x" for n in range(100)})
    status = send(store.at(NOW).look("a"))
    assert status is not None
    assert status.place == "schedule"
    assert status.reason == "its record has more than 100 fields: DEL it and schedule the job again"
