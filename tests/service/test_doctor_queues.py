"""The doctor finds keys of a wrong type, recurrences that cannot make jobs, and batches that cannot end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from evsched import keys
from evsched.diagnostics.audit import TYPES, Audit
from evsched.diagnostics.batch_checks import stuck_batches
from evsched.diagnostics.doctor import examine
from evsched.diagnostics.queue_checks import broken_recurrences
from evsched.shards import NONE
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import folder
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender

JOB = '{"task":"t"}'


KEYS = [f"{name}x" if name.endswith(":") else name for name in sorted(TYPES)]


@pytest.mark.parametrize("place", [*KEYS, "unique:/x"])
async def test_each_key_of_a_wrong_type_is_named(sender: BatchingSender, queue: str, raw: Any, place: str) -> None:
    if (TYPES.get(place) or TYPES[place[: place.index(":") + 1]]) == "string":
        raw.rpush(f"evsched:{{{queue}}}:{place}", "x")
    else:
        raw.pfadd(f"evsched:{{{queue}}}:{place}", "x")  # a string
    found = await Audit(sender, [queue], pause=0).run()
    (finding,) = [finding for finding in found if finding.check in ("place-type", "key-type")]
    assert (finding.level, place in finding.where) == ("fault", True)
    assert finding.mend == f"RENAME or DEL evsched:{{{queue}}}:{place}"
    raw.delete(f"evsched:{{{queue}}}:{place}")
    assert not [one for one in await Audit(sender, [queue], pause=0).run() if one.check.endswith("-type")]


def test_types_are_known_of_all_keys_that_scripts_name() -> None:
    named = {key for path in folder().glob("*.lua") for key in re.findall(r"root \.\. '(\w+:?)'", path.read_text())}
    channels = {"gate", "control:", "idle:", "progress:"}
    assert named - channels - {"job:", "batch_"} <= TYPES.keys()


@pytest.mark.parametrize("key", ["light", "seats"])
async def test_nothing_else_is_said_of_a_queue_whose_jobs_a_key_holds_up(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, raw: Any, key: str
) -> None:
    raw.set(f"evsched:{{{store.queue}}}:{key}", "x")
    found = [one.check for one in (await examine(server.url, sender, [store.queue])).found if store.queue in one.where]
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {JOB: 1})
    with_a_job = (await examine(server.url, sender, [store.queue])).found
    assert found == ["place-type" if key == "light" else "key-type"]
    expected = found if key == "light" else ["not-dispatched", *found]
    assert [one.check for one in with_a_job if store.queue in one.where] == expected


@pytest.mark.parametrize(
    "key",
    [
        keys.LEASE,
        keys.audit(""),
        *(
            pytest.param(key, marks=pytest.mark.extra)
            for key in (
                *(keys.QUEUES, keys.SHARDS, keys.LAYOUT_KEY, keys.EPOCH, keys.LEDGER),
                *(keys.CONSOLE_TOKENS, keys.CONSOLE_SECRET),
            )
        ),
    ],
)
async def test_shared_key_of_a_wrong_type_is_named(sender: BatchingSender, queue: str, raw: Any, key: str) -> None:
    before = raw.dump(key)
    raw.delete(key)
    raw.rpush(key, "v")
    try:
        (finding,) = await Audit(sender, [queue], pause=0).run()
        assert (finding.check, finding.level, finding.where) == ("key-type", "fault", key)
        assert "is a list, not a" in finding.what
        assert finding.mend == f"RENAME or DEL {key}"
    finally:
        raw.delete(key)
        if before is not None:
            raw.restore(key, 0, before)
    assert await Audit(sender, [queue], pause=0).run() == []


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"rule": "61 * * * *", "payload": JOB}, "the minute"),
        ({"rule": "0 0 30 2 *", "payload": JOB}, "it never falls due"),
        ({"rule": "@daily", "zone": "Europe/Berln", "payload": JOB}, "did you mean Europe/Berlin?"),
        ({"rule": "@daily"}, "no payload"),
        ({"rule": "@daily", "payload": "tick"}, "its payload is not valid: JSON is malformed"),
        ({"rule": "@daily", "payload": '{"args":[1]}'}, "payload is not valid: Object missing required field `task`"),
        ({"rule": "@daily", "payload": JOB, "count": "many"}, "$.count"),
        ({"rule": "@daily", "payload": JOB, "skip": "holidays"}, "no calendar holidays: evsched calendars set"),
        ({"rule": "@daily", "payload": '{"task":"t","window":"nights"}'}, "no window nights: evsched windows set"),
        (None, "no record"),
    ],
)
async def test_a_recurrence_that_cannot_recur_is_found(
    sender: BatchingSender, queue: str, raw: Any, record: dict[str, str] | None, words: str
) -> None:
    root = f"evsched:{{{queue}}}:"
    for name, fields in (("good", {"rule": "@daily", "payload": JOB}), ("bad", record)):
        raw.zadd(root + "recurrences", {name: 0})
        if fields:
            raw.hset(f"{root}recurrence:{name}", mapping=fields)
    raw.zadd(root + "recurrences", {"typed": 0})
    raw.set(root + "recurrence:typed", "of a wrong type: the audit reports it")
    (found,) = await broken_recurrences(sender, [queue], pause=0)
    assert (found.check, found.level, found.where) == ("recurrence-broken", "fault", f"queue {queue}, bad")
    assert words in found.what
    assert f"ZADD {root}recurrences 0 bad" in found.mend
    # A new rule and ZADD, as the finding says, repair it.
    raw.delete(f"{root}recurrence:bad")
    raw.hset(f"{root}recurrence:bad", mapping={"rule": "@daily", "zone": "UTC", "payload": JOB, "count": 9})
    assert await broken_recurrences(sender, [queue], pause=0) == []


async def test_recurrences_of_a_wrong_type_are_left_to_the_audit(sender: BatchingSender, queue: str, raw: Any) -> None:
    raw.set(f"evsched:{{{queue}}}:recurrences", "x")
    assert await broken_recurrences(sender, [queue], pause=0) == []


async def put_batch(sender: BatchingSender, queue: str, batch: str, count: int) -> Store:
    """Open a batch with jobs that are due later, and close it."""
    store = Store(queue)
    await sender.send(store.batch_open(batch, "t", retention=9.0))
    reserved = await sender.send(store.batch_add(batch, "r", count, queue))
    jobs = [New(f"{batch}.{at}", JOB.encode(), delay=3600) for at in range(count)]
    await sender.send(store.enqueue(jobs, batch=reserved.address(queue, batch)))
    await sender.send(store.batch_close(batch, confirms="r"))
    return store


async def test_batch_whose_jobs_were_deleted_is_found(sender: BatchingSender, queue: str, raw: Any) -> None:
    store = await put_batch(sender, queue, "b", 9)
    await put_batch(sender, queue, "whole", 2)
    assert await stuck_batches(sender, [queue], NONE) == []
    for job in ("b.1", "b.7"):
        raw.delete(keys.job(queue, job))
        raw.zrem(f"{keys.root(queue)}schedule", job)
    (finding,) = await stuck_batches(sender, [queue], NONE)
    assert (finding.check, finding.level, finding.where) == ("batch-stuck", "fault", f"queue {queue}, batch b")
    assert "2 of its jobs are gone, and did not end: b.1 of queue" in finding.what
    assert f"evsched batches cancel b --queue {queue}" in finding.mend
    # An end that was reported, or will be looked for, is not lost.
    for chore in (f"end {queue}/b {1.0:.6f} 1d 7d", "settle b 0 8 -"):
        await sender.send(store.add_chore(chore, 0.0))
        assert await stuck_batches(sender, [queue], NONE) == []
        await sender.send(store.end_chores([chore]))
    await sender.send(store.batch_count([("b", 1, b"\x05"), ("b", 7, b"\x01")]))
    assert await stuck_batches(sender, [queue], NONE) == []


@pytest.mark.extra
async def test_batch_in_a_batch_that_was_deleted_is_found(sender: BatchingSender, queue: str, raw: Any) -> None:
    store = await put_batch(sender, queue, "b", 1)
    await sender.send(store.batch_add("b", "inner", 1, queue, ids=["/inner"], member="0/"))
    await sender.send(store.batch_open("inner", "t", retention=9.0, parent=f"{queue}/b/1"))
    assert await stuck_batches(sender, [queue], NONE) == [], "a job of it may be about to be enqueued"
    await sender.send(store.batch_add("b", "x", 0, confirms="inner"))
    assert await stuck_batches(sender, [queue], NONE) == []
    raw.delete(f"{keys.root(queue)}batch:inner")
    (finding,) = await stuck_batches(sender, [queue], NONE)
    assert "1 of its jobs is gone, and did not end: inner of queue" in finding.what
    raw.delete(f"{keys.root(queue)}batches")
    raw.set(f"{keys.root(queue)}batches", "x")
    assert await stuck_batches(sender, [queue], NONE) == [], "the audit reports it"
