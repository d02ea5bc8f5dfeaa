"""The HTTP interface treats a queue and its shards as one queue. Each answer is held against the OpenAPI document."""

from __future__ import annotations

from typing import Any

import pytest

from evsched import keys
from evsched.api import api_request
from evsched.client.client import Client
from evsched.jobs.job import Buried
from evsched.shards import Shards, unread
from evsched.store import server as about
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.api import LATER, Caller, calling

JOB = b'{"task":"t"}'


@pytest.fixture
async def shards(sender: BatchingSender, queue: str) -> Shards:
    await sender.send(about.set_shards(queue, 3))
    return Shards({queue: 3})


@pytest.fixture
def path(queue: str) -> str:
    return f"/v1/queues/{queue}"


def scheduled(raw: Any, shards: Shards, queue: str) -> dict[str, list[str]]:
    """Return the ids on each non-empty schedule of a queue and its shards."""
    found = {part: raw.zrange(keys.schedule(part), 0, -1) for part in shards.all_of(queue)}
    return {part: sorted(job.decode() for job in jobs) for part, jobs in found.items() if jobs}


def elsewhere(shards: Shards, queue: str, job_id: str) -> str:
    return next(part for part in shards.all_of(queue) if part != shards.home(queue, job_id))


async def test_jobs_are_scheduled_at_their_homes(api: Caller, path: str, queue: str, shards: Shards, raw: Any) -> None:
    made = await api.ask("POST", f"{path}/jobs", {"task": "t", "id": "a", "due": LATER})
    assert made.json()["queue"] == queue
    many = {"jobs": [{"task": "t", "id": name, "due": LATER} for name in "bcdefg"]}
    made = await api.ask("POST", f"{path}/batches", many)
    assert [job["id"] for job in made.json()["jobs"]] == list("bcdefg")
    homes = dict[str, list[str]]()
    for name in "abcdefg":
        homes.setdefault(shards.home(queue, name), []).append(name)
    assert len(homes) > 1
    assert scheduled(raw, shards, queue) == homes


@pytest.mark.parametrize("at_home", [True, False])
async def test_job_is_found_in_any_shard(
    api: Caller, path: str, queue: str, shards: Shards, sender: BatchingSender, at_home: bool
) -> None:
    part = shards.home(queue, "a") if at_home else elsewhere(shards, queue, "a")
    await sender.send(Store(part).enqueue([New("a", JOB, due=LATER)]))
    assert (await api.ask("GET", f"{path}/jobs/a")).json()["queue"] == part
    assert (await api.ask("GET", f"{path}/jobs/a/result?wait=0")).status_code == 202
    moved = await api.ask("PATCH", f"{path}/jobs/a", {"due": LATER + 1})
    assert moved.json() == {"id": "a", "queue": queue, "due": LATER + 1}
    assert (await api.ask("DELETE", f"{path}/jobs/a")).status_code == 204
    assert (await api.ask("GET", f"{path}/jobs/a")).status_code == 404
    assert (await api.ask("GET", f"{path}/jobs/a/result?wait=0")).json()["outcome"] == "cancelled"


async def test_the_end_of_a_job_in_a_shard_is_waited_for(
    api: Caller, path: str, queue: str, shards: Shards, sender: BatchingSender
) -> None:
    store = Store(elsewhere(shards, queue, "a"))
    await sender.send(store.enqueue([New("a", JOB)]))
    await sender.send(store.dispatch(limit=1, cap=1000))
    (run,) = (await sender.send(store.start("w", (), hold=1, lease=15))).jobs
    await sender.send(store.bury("w", [(run, Buried("no luck", reply=False))]))
    ended = await api.ask("GET", f"{path}/jobs/a/result?wait=5")
    assert (ended.json()["outcome"], ended.json()["reason"]) == ("dead", "no luck")


async def test_jobs_and_counts_cover_all_shards(
    api: Caller, path: str, queue: str, shards: Shards, sender: BatchingSender
) -> None:
    for at, part in enumerate(shards.all_of(queue)):
        await sender.send(Store(part).enqueue([New("a", JOB, due=LATER - at), New(f"b{at}", JOB, due=LATER + at)]))
    await sender.send(Store(f"{queue}:7").enqueue([New("c", JOB, due=LATER)]))  # a queue of its own
    listed = (await api.ask("GET", f"{path}/jobs?place=schedule&limit=5")).json()
    assert [job["at"] for job in listed["jobs"]] == [LATER - 3, LATER - 2, LATER - 1, LATER, LATER]
    assert not listed["complete"]
    matching = (await api.ask("GET", f"{path}/jobs?task=t")).json()
    assert (len(matching["jobs"]), matching["complete"]) == (8, True)
    assert (await api.ask("GET", path)).json()["schedule"] == 8
    rows = (await api.ask("GET", "/v1/queues")).json()["queues"]
    assert {row["queue"]: row["schedule"] for row in rows} == {queue: 8, f"{queue}:7": 1}
    assert (await api.ask("GET", f"/v1/queues/{queue}:1")).json()["schedule"] == 2


async def test_keyed_request_is_done_once_across_shards(
    api: Caller, path: str, queue: str, shards: Shards, raw: Any
) -> None:
    jobs = [{"task": "t", "due": LATER, **({"id": name} if name else {})} for name in ("a", "", "b", "", "g", "")]
    asked: dict[str, Any] = {"headers": {"Idempotency-Key": "once"}}
    first = (await api.ask("POST", f"{path}/batches", {"jobs": jobs}, **asked)).json()
    before = scheduled(raw, shards, queue)
    assert sum(map(len, before.values())) == 6
    assert [job["id"] for job in first["jobs"]][::2] == ["a", "b", "g"]
    assert all(name in before[shards.home(queue, name)] for name in "abg")
    assert (await api.ask("POST", f"{path}/batches", {"jobs": jobs}, **asked)).json() == first
    assert scheduled(raw, shards, queue) == before
    other = await api.ask("POST", f"{path}/batches", {"jobs": [*jobs, *jobs[1:2]]}, **asked)
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    single: dict[str, Any] = {"headers": {"Idempotency-Key": "single"}}
    made = [(await api.ask("POST", f"{path}/jobs", {"task": "t", "due": LATER}, **single)).json() for _ in range(2)]
    assert made[0] == made[1]


async def test_repeated_request_after_resharding_is_refused(
    path: str, queue: str, sender: BatchingSender, server: EmbeddedRedis
) -> None:
    jobs = {"jobs": [{"task": "t", "due": LATER, "id": name} for name in "abcdefgh"]}
    asked: dict[str, Any] = {"headers": {"Idempotency-Key": "once"}}
    for count, expected in ((2, 201), (3, 409)):
        await sender.send(about.set_shards(queue, count))
        async with calling(server.url) as api:
            made = await api.ask("POST", f"{path}/batches", jobs, **asked)
            assert made.status_code == expected, made.text
    assert made.json()["code"] == "shards-changed"


async def test_an_api_of_one_queue_serves_its_shards_and_no_other_queue(
    server: EmbeddedRedis, queue: str, shards: Shards
) -> None:
    async with calling(server.url, queues=(queue,)) as api:
        assert (await api.ask("GET", f"/v1/queues/{queue}:2")).status_code == 200
        assert (await api.ask("GET", f"/v1/queues/{queue}:3")).status_code == 403
        assert [row["queue"] for row in (await api.ask("GET", "/v1/queues")).json()["queues"]] == [queue]


async def test_shard_counts_are_read_again_by_a_later_request(
    api: Caller, path: str, queue: str, sender: BatchingSender, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    await sender.send(Store(f"{queue}:0").enqueue([New("a", JOB, due=LATER)]))
    assert (await api.ask("GET", f"{path}/jobs/a")).status_code == 404
    assert (await api.ask("GET", path)).json()["schedule"] == 0
    await sender.send(about.set_shards(queue, 2))
    assert (await api.ask("GET", f"{path}/jobs/a")).status_code == 200  # read again for a job that is missing
    monkeypatch.setattr(api_request, "_KEPT", 0.0)
    assert (await api.ask("GET", path)).json()["schedule"] == 1
    raw.delete(keys.SHARDS)
    raw.set(keys.SHARDS, "a string")
    assert (await api.ask("GET", f"{path}/jobs/a")).status_code == 200  # Redis refuses: what was known before holds
    raw.delete(keys.SHARDS)  # the audit after each test would report it


async def test_shard_counts_that_redis_refuses_to_return_count_as_known(own: EmbeddedRedis, client: Any) -> None:
    """Also if their node did not answer before: then there is nothing to wait for."""
    client.set(keys.SHARDS, "a string")
    numbers = api_request.KnownShards(caller := Client(own.url))
    caller.shards = unread()
    await numbers.refresh()
    assert numbers.known
    numbers.check()
    await caller.close()
