"""Workers that speak HTTP: what they fetch, how their runs end, and what is refused when a run is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from evsched import App, Retry
from evsched.codec import Codec
from evsched.config import Config
from evsched.events import Completed, Dispatched, JobBuried, JobsRequeued, Retrying, RunLost, Started
from evsched.jobs.sealed import MARK, About, Sealed
from evsched.store import server as server_calls
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.loops.test_rekey import rekey
from tests.loops.test_sealed_jobs import put
from tests.support.api import READ, WORK, WRITE, Caller, calling
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.sealed_jobs import NEW, OLD
from tests.support.system import System, system


class Remote:
    """A worker of another language, which has some tasks."""

    def __init__(self, api: Caller, queue: str, name: str = "web1", *tasks: str) -> None:
        self.api = api
        self.path = f"/v1/queues/{queue}/workers/{name}"
        self.tasks = list(tasks or ("t",))

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.api.ask("POST", f"{self.path}/{path}", body, token=WORK)

    async def fetch(self, **body: Any) -> list[dict[str, Any]]:
        found = await self.post("fetch", tasks=self.tasks, **{"wait": 60, **body})
        assert found.status_code == 200, found.text
        return found.json()["jobs"]

    async def end(self, how: str, job: dict[str, Any], **body: Any) -> int:
        return (await self.post(f"jobs/{job['id']}/{how}", run=job["run"], **body)).status_code

    async def heartbeat(self, *jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
        runs = [{"id": job["id"], "run": job["run"], **more} for job in jobs]
        kept = await self.post("heartbeat", tasks=self.tasks, runs=runs)
        assert kept.status_code == 200, kept.text
        return {name: kept.json()[name] for name in ("stop", "lost")}

    async def leave(self) -> None:
        assert (await self.api.ask("DELETE", self.path, token=WORK)).status_code == 204


@pytest.fixture
async def running(config: Config, app: App) -> AsyncGenerator[System]:
    """A dispatcher, and no worker of ours."""
    async with system(config, app, workers=0) as running:
        yield running


@pytest.fixture
async def worker(api: Caller, queue: str, running: System) -> Remote:
    return Remote(api, queue)


async def enqueue(api: Caller, queue: str, *ids: str, **more: Any) -> None:
    jobs = [{"task": "t", "id": job_id, **more} for job_id in ids]
    made = await api.ask("POST", f"/v1/queues/{queue}/batches", {"jobs": jobs})
    assert made.status_code == 201, made.text


async def status(api: Caller, queue: str, job_id: str) -> dict[str, Any]:
    return (await api.ask("GET", f"/v1/queues/{queue}/jobs/{job_id}")).json()


async def test_a_job_is_fetched_and_completed(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a", args=[1, "ä"], kwargs={"x": None}, meta={"m": [1]}, timeout=7)
    (job,) = await worker.fetch()
    assert (job["id"], job["task"], job["args"], job["kwargs"]) == ("a", "t", [1, "ä"], {"x": None})
    assert (job["attempt"], job["attempts"], job["timeout"], job["meta"]) == (1, 5, 7, {"m": [1]})
    seen = await status(api, queue, "a")
    assert (seen["place"], seen["worker"]) == ("processing", "http:web1")
    assert await worker.end("complete", job, result={"n": 1}) == 204
    seen = await status(api, queue, "a")
    assert (seen["outcome"], seen["result"]) == ("done", {"n": 1})
    assert await worker.end("complete", job, result={"n": 1}) == 204, "a repetition finds that it is done"
    assert await worker.end("retry", job, reason="x") == 409


async def test_arguments_arrive_byte_by_byte_and_redacted_ones_too(
    worker: Remote, api: Caller, queue: str, raw: Any
) -> None:
    payload = (
        '{"task":"t","args":[9007199254740993,1.0,"\\u00e4"],"kwargs":{"pin": 1234567890123456789},"redact":["pin"]}'
    )
    raw.hset(f"evsched:{{{queue}}}:job:a", "payload", payload)
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 0})
    found = await worker.post("fetch", tasks=["t"], wait=60)
    assert '"args":[9007199254740993,1.0,"\\u00e4"],"kwargs":{"pin": 1234567890123456789}' in found.text
    assert await worker.end("complete", found.json()["jobs"][0]) == 204
    seen = await status(api, queue, "a")
    assert (seen["payload"]["kwargs"], seen["result"]) == ({"pin": "[redacted]"}, None)


async def test_an_empty_array_in_place_of_an_object_arrives_as_an_object(worker: Remote, queue: str, raw: Any) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"t","args":{},"kwargs":[],"meta":[]}': 0})
    (job,) = await worker.fetch()
    assert (job["args"], job["kwargs"], job["meta"]) == ([], {}, {})
    assert await worker.end("complete", job) == 204


async def test_the_next_fetch_returns_jobs_whose_reply_was_lost(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a", "b", "c")
    lost = await worker.fetch(slots=2)
    assert len(lost) == 2
    again = await worker.fetch(slots=2)
    assert sorted(job["run"] for job in again) == sorted(job["run"] for job in lost), "the same runs"
    rest = await worker.fetch(slots=3, holding=["a", "b"])
    assert [job["id"] for job in rest] == ["c"]
    full = await worker.post("fetch", tasks=["t"], slots=3, holding=["a", "b", "c"])
    assert (full.status_code, full.json()["code"]) == (422, "invalid")
    assert [await worker.end("complete", job) for job in (*lost, *rest)] == [204] * 3


@pytest.mark.one_server
async def test_a_fetch_waits_for_a_job(worker: Remote, api: Caller, queue: str, raw: Any) -> None:
    waiting = asyncio.ensure_future(worker.fetch())
    while not any(client["cmd"] == "blmove" for client in raw.client_list()):
        await asyncio.to_thread(raw.ping)
    await enqueue(api, queue, "a")
    (job,) = await asyncio.wait_for(waiting, PATIENCE)
    assert await worker.end("complete", job) == 204
    assert await worker.fetch(wait=0) == []


@pytest.mark.one_server
async def test_waiting_fetches_share_a_connection_and_each_job_wakes_one(
    api: Caller, queue: str, running: System, raw: Any
) -> None:
    def blocked() -> int:
        return sum(client["cmd"] == "blmove" for client in raw.client_list())

    workers = {asyncio.create_task(one.fetch()): one for one in (Remote(api, queue, f"web{n}") for n in range(3))}
    for left in (3, 2, 1):
        while raw.hlen(f"evsched:{{{queue}}}:busy_leases") < 3 or not blocked():
            await asyncio.to_thread(raw.ping)
        assert blocked() == 1
        await enqueue(api, queue, f"j{left}")
        done, waiting = await asyncio.wait(workers, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, left - 1)
        (job,) = done.copy().pop().result()
        assert await workers.pop(done.pop()).end("complete", job) == 204


async def test_runs_have_the_events_of_runs_of_our_own_workers(
    worker: Remote, api: Caller, queue: str, recorder: Recorder
) -> None:
    api.events.subscribe(recorder)
    await enqueue(api, queue, "a", retry={"attempts": 2})
    (job,) = await worker.fetch()
    assert await worker.end("retry", job, reason="no", delay=0) == 204
    (again,) = await worker.fetch()
    assert await worker.end("retry", again, reason="no") == 204
    await enqueue(api, queue, "b")
    (done,) = await worker.fetch()
    assert await worker.end("complete", done) == 204
    assert await worker.end("complete", done) == 204
    assert await worker.end("complete", again) == 409
    kinds = [type(event) for event in recorder.events]
    assert kinds == [Started, Retrying, Started, JobBuried, Started, Completed, RunLost]
    completed = next(event for event in recorder.events if isinstance(event, Completed))
    assert (completed.worker, completed.tasks, completed.seconds[0] > 0) == ("http:web1", ["t"], True)


async def test_waiting_fetches_are_limited(server: EmbeddedRedis, queue: str) -> None:
    async with calling(server.url, api_fetching_cap=0) as api:
        refused = await Remote(api, queue).post("fetch", tasks=["t"], wait=1)
    assert (refused.status_code, refused.json()["code"]) == (503, "too-many-waiting")


async def test_a_failed_run_is_tried_again_and_dead_after_the_last(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a", retry={"attempts": 2, "interval": 3000})
    (job,) = await worker.fetch()
    failed: Any = {"reason": "Error: no", "error": "Error", "traceback": "at f\n" * 5000}
    assert await worker.end("retry", job, **failed, delay=0) == 204
    (again,) = await worker.fetch()
    assert (again["attempt"], again["attempts"], again["planned"]) == (2, 2, job["planned"])
    assert await worker.end("complete", job) == 409, "that run has ended"
    assert await worker.end("retry", again, **failed) == 204
    seen = await status(api, queue, "a")
    assert (seen["place"], seen["reason"], seen["error"]) == ("dead", "attempt 2 of 2: Error: no", "Error")
    assert 4000 < len(seen["traceback"]) <= 4096


async def test_without_a_delay_the_policy_decides(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a", retry={"interval": 3000, "jitter": 0})
    (job,) = await worker.fetch()
    assert await worker.end("retry", job, reason="no") == 204
    seen = await status(api, queue, "a")
    assert (seen["place"], seen["reason"]) == ("schedule", "attempt 1 of 5: no")
    assert seen["due"] - float(job["run"].split()[1]) > 2999


async def test_the_policy_of_a_python_task_holds_for_other_workers(
    worker: Remote, api: Caller, queue: str, store: Store, sender: BatchingSender
) -> None:
    policy = '{"attempts":1,"interval":1,"factor":2,"max_interval":9,"jitter":0}'
    await sender.send(store.set_policies({"t": policy}))
    await enqueue(api, queue, "a")
    (job,) = await worker.fetch()
    assert job["attempts"] == 1
    assert await worker.end("retry", job, reason="no", delay=0) == 204
    assert (await status(api, queue, "a"))["reason"] == "attempt 1 of 1: no"


async def test_a_job_that_is_given_up_is_dead(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a")
    (job,) = await worker.fetch()
    assert await worker.end("give-up", job, reason="no such account") == 204
    assert await worker.end("give-up", job, reason="no such account") == 204, "a repetition"
    seen = await status(api, queue, "a")
    assert (seen["outcome"], seen["reason"]) == ("dead", "no such account")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("1e999", "not JSON that all readers accept"),
        ("9" * 400, "larger than any float"),
        ('"' + "x" * 1_048_576 + '"', "more than 1048576"),
    ],
    ids=["infinite", "integer", "long"],
)
async def test_a_result_that_cannot_be_kept_is_no_reason_to_run_again(
    worker: Remote, api: Caller, queue: str, result: str, words: str
) -> None:
    await enqueue(api, queue, "a")
    (job,) = await worker.fetch()
    content = f'{{"run":"{job["run"]}","result":{result}}}'
    headers = {"Content-Type": "application/json"}
    path = f"{worker.path}/jobs/a/complete"
    assert (await api.ask("POST", path, content=content, headers=headers, token=WORK)).status_code == 204
    seen = await status(api, queue, "a")
    assert seen["outcome"] == "dead"
    assert words in seen["reason"]


async def test_a_heartbeat_writes_progress_and_names_jobs_to_stop(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a", "b")
    a, b = sorted(await worker.fetch(slots=2), key=lambda job: job["id"])
    assert await worker.heartbeat(a, b, progress={"done": 1, "total": 3, "note": "x"}) == {"stop": [], "lost": []}
    assert (await status(api, queue, "a"))["progress"] == {"done": 1, "total": 3, "note": "x"}
    assert (await api.ask("DELETE", f"/v1/queues/{queue}/jobs/b")).status_code == 202
    assert await worker.heartbeat(a, b) == {"stop": ["b"], "lost": []}
    assert await worker.end("retry", b, reason="aborted") == 204
    assert (await status(api, queue, "b"))["outcome"] == "cancelled"
    assert await worker.heartbeat(a, b) == {"stop": [], "lost": ["b"]}
    assert await worker.end("complete", a) == 204


async def test_the_jobs_of_a_worker_that_leaves_start_elsewhere(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a")
    await enqueue(api, queue, "only", retry={"attempts": 1})
    jobs = await worker.fetch(slots=2)
    while len(jobs) < 2:
        jobs += await worker.fetch(slots=2, holding=[job["id"] for job in jobs])
    await worker.leave()
    assert {await worker.end("complete", job) for job in jobs} == {409}
    assert await worker.heartbeat(*jobs) == {"stop": [], "lost": [job["id"] for job in jobs]}
    (again,) = await Remote(api, queue, "web2").fetch()
    assert (again["id"], again["attempt"]) == ("a", 1), "it costs no attempt"
    assert await worker.end("complete", again) == 409, "the run is that of another worker"
    assert await Remote(api, queue, "web2").end("complete", again) == 204
    seen = await status(api, queue, "only")
    assert seen["reason"] == "attempt 1 of 1: worker http:web1 was stopped while it ran"


async def test_the_jobs_of_a_dead_worker_start_elsewhere(
    worker: Remote, api: Caller, queue: str, running: System, sender: BatchingSender
) -> None:
    await sender.send(server_calls.set_lease(0.2))
    await enqueue(api, queue, "a", retry={"attempts": 2})
    (job,) = await worker.fetch()
    await running.recorder.wait(JobsRequeued)
    other = Remote(api, queue, "web2")
    (again,) = await other.fetch()
    assert (again["id"], again["attempt"]) == ("a", 2)
    assert await worker.end("complete", job, result=1) == 409
    assert await worker.heartbeat(job) == {"stop": [], "lost": ["a"]}
    await running.recorder.wait(JobsRequeued, count=2)
    assert await other.fetch(wait=0) == []
    seen = await status(api, queue, "a")
    assert seen["place"] == "dead"
    assert "the last of its 2 attempts began and never ended" in seen["reason"]


async def test_the_waiting_fetch_of_a_worker_that_hangs_gets_no_job(
    worker: Remote, api: Caller, queue: str, running: System, sender: BatchingSender
) -> None:
    await sender.send(server_calls.set_lease(1.0))
    await enqueue(api, queue, "a")
    (held,) = await worker.fetch()
    waiting = asyncio.create_task(worker.fetch(slots=2, holding=["a"]))
    await running.recorder.wait(JobsRequeued)
    assert await asyncio.wait_for(waiting, PATIENCE) == [], "it sent no heartbeat"
    await sender.send(server_calls.set_lease(14.0))
    (again,) = await Remote(api, queue, "web2").fetch()
    assert (again["id"], again["attempt"]) == ("a", 2)
    assert await worker.end("complete", held) == 409
    assert await Remote(api, queue, "web2").end("complete", again) == 204


async def test_another_worker_gets_a_job_whose_task_one_does_not_have(worker: Remote, api: Caller, queue: str) -> None:
    await enqueue(api, queue, "a")
    other = Remote(api, queue, "web2", "other")
    assert await other.fetch(wait=0.1) == []
    (job,) = await worker.fetch()
    assert (job["id"], job["attempt"]) == ("a", 1)
    assert await worker.end("complete", job) == 204


async def test_a_task_that_nobody_has_is_given_up(server: EmbeddedRedis, queue: str, running: System) -> None:
    async with calling(server.url, unknown_task_grace=0) as api:
        await enqueue(api, queue, "a")
        assert await Remote(api, queue, "web2", "tt").fetch(wait=0.1) == []
        await running.recorder.wait(Dispatched)
        while (await status(api, queue, "a"))["place"] != "dead":
            assert await Remote(api, queue, "web2", "tt").fetch(wait=0.1) == []
        assert "unknown task 't': did you mean 'tt'?" in (await status(api, queue, "a"))["reason"]


async def test_jobs_that_cannot_run_are_not_handed_out(worker: Remote, api: Caller, queue: str, raw: Any) -> None:
    await enqueue(api, queue, "late", expires=1)
    await enqueue(api, queue, "shut", window="00:00-00:01 UTC", due=0)
    raw.hset(f"evsched:{{{queue}}}:job:bad", "payload", '{"task":"t","arg":1}')
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"bad": 0})
    await enqueue(api, queue, "good", priority=0)
    jobs = list[dict[str, Any]]()
    while not jobs:
        jobs = await worker.fetch(slots=5)
    places = {job_id: await status(api, queue, job_id) for job_id in ("late", "bad")}
    while not all(one["place"] == "dead" for one in places.values()):
        await worker.fetch(slots=5, holding=["good", "shut"], wait=0.1)
        places = {job_id: await status(api, queue, job_id) for job_id in places}
    assert places["late"]["outcome"] == "expired"
    assert "unknown field `arg`" in places["bad"]["reason"]
    assert {job["id"] for job in jobs} <= {"good", "shut"}
    for job in await worker.fetch(slots=5, wait=0):
        assert await worker.end("complete", job) == 204


async def test_runs_in_shards_are_found_by_their_token(
    server: EmbeddedRedis, config: Config, queue: str, sender: BatchingSender
) -> None:
    app = App(queue=queue, shards=2)
    config = replace(config, queues=tuple(app.shards.all_of(queue)))
    await sender.send(server_calls.set_shards(queue, 2))
    async with system(config, app, workers=0), calling(server.url) as api:
        await enqueue(api, queue, *(f"j{n}" for n in range(6)))
        worker, jobs = Remote(api, queue), list[dict[str, Any]]()
        while len(jobs) < 6:
            jobs += await worker.fetch(slots=6, holding=[job["id"] for job in jobs])
        assert len({job["run"].split()[2] for job in jobs}) == 2
        assert await worker.heartbeat(*jobs) == {"stop": [], "lost": []}
        assert [await worker.end("complete", job) for job in jobs[:5]] == [204] * 5
        await worker.leave()
        assert await worker.end("complete", jobs[5]) == 409
        (again,) = await worker.fetch()
        assert await worker.end("complete", again) == 204


@pytest.mark.parametrize("run", ["", "x", "1 2 elsewhere", "99999999999 1", "\x00 1"])
async def test_a_token_that_no_fetch_has_returned_is_refused(api: Caller, queue: str, run: str) -> None:
    worker = Remote(api, queue)
    assert await worker.end("complete", {"id": "a", "run": run}) == 422
    assert (await worker.post("heartbeat", tasks=["t"], runs=[{"id": "a", "run": run}])).status_code == 422
    assert await worker.end("complete", {"id": "a", "run": "1 2"}) == 409


async def test_a_worker_needs_a_token_that_may_work_and_that_may_do_nothing_else(api: Caller, queue: str) -> None:
    path = f"/v1/queues/{queue}/workers/w/fetch"
    for token in (READ, WRITE):
        refused = await api.ask("POST", path, {"tasks": ["t"]}, token=token)
        assert (refused.status_code, refused.json()["code"]) == (403, "missing-right")
    assert (await api.ask("GET", "/v1/queues", token=WORK)).status_code == 403
    assert (await api.ask("POST", f"/v1/queues/{queue}/jobs", {"task": "t"}, token=WORK)).status_code == 403


async def test_the_runs_of_our_own_workers_cannot_be_reached(
    worker: Remote, api: Caller, queue: str, store: Store, sender: BatchingSender
) -> None:
    await enqueue(api, queue, "a")
    while not (found := await sender.send(store.start("web1", [], hold=1, lease=60))).jobs:
        assert await sender.send(store.await_ready(1)) in (True, False)
    run = {"id": "a", "run": found.jobs[0].run}
    assert await worker.end("complete", run) == 409
    assert await worker.heartbeat(run) == {"stop": [], "lost": ["a"]}
    await worker.leave()
    assert await sender.send(store.held("web1")) == ["a"]
    assert await worker.fetch(wait=0) == []


async def test_names_that_are_not_allowed_are_refused(api: Caller, queue: str) -> None:
    too_long = await Remote(api, queue, "w" * 196).post("fetch", tasks=["t"])
    assert (too_long.status_code, too_long.json()["detail"]) == (
        422, "the name of a worker is 1 to 195 of A-Z a-z 0-9 . _ : @ -, and not . or ..",
    )  # fmt: skip
    assert (await Remote(api, queue).post("fetch", tasks=["evsched.http"])).status_code == 422
    assert (await Remote(api, queue).post("fetch", tasks=[])).status_code == 422


@pytest.fixture
async def sealing(config: Config, queue: str, running: System) -> AsyncGenerator[tuple[App, Any]]:
    """An app that seals, and its task `t`."""
    app = App(config.url, queue=queue, codec=Codec({"old": OLD}))

    @app.task(name="t", retry=Retry(interval=0, jitter=0))
    async def shorten(text: str, most: int = 5) -> dict[str, int]: ...

    yield app, shorten
    await app.close()


async def test_job_with_sealed_arguments_is_dead_if_the_worker_does_not_open_them(
    worker: Remote, api: Caller, queue: str, running: System, sealing: tuple[App, Any]
) -> None:
    _, shorten = sealing
    await shorten.using(id="a").enqueue("x" * 100)
    await running.recorder.wait(Dispatched)
    assert await worker.fetch(wait=0) == []
    found = await status(api, queue, "a")
    assert found["place"] == "dead"
    assert found["reason"].startswith(
        "its arguments are sealed, [encrypted with key old], and this worker has no codec"
    )


async def test_worker_opens_sealed_arguments_itself_after_each_change_of_the_key(
    worker: Remote, api: Caller, queue: str, sealing: tuple[App, Any]
) -> None:
    app, shorten = sealing
    codec = Codec({"old": OLD, "new": NEW}, write="new")

    def opened(job: dict[str, Any]) -> Any:
        assert (job["args"], job["kwargs"]) == ([], {})
        return json.loads(codec.open(About("arguments", "t", "a"), msgspec.convert(job["sealed"], Sealed)))

    handle = await shorten.using(id="a").enqueue("x", most=3)
    (job,) = await worker.fetch(sealed=True)
    assert (opened(job), job["sealed"]["key"]) == ([["x"], {"most": 3}], "old")
    assert await worker.fetch(sealed=True) == [job], "its reply was lost"
    await rekey(app, codec)
    assert await worker.end("retry", job, reason="no", delay=0) == 204
    (again,) = await worker.fetch(sealed=True)
    assert (again["attempt"], opened(again), again["sealed"]["key"]) == (2, [["x"], {"most": 3}], "new")
    result = {MARK: codec.seal(About("result", of="a"), b'{"short":1}')}
    assert await worker.end("complete", again, result=msgspec.to_builtins(result)) == 204
    assert (await status(api, queue, "a"))["result"] == "[encrypted with key new]"
    app.client.with_codec(codec)
    assert await handle.result() == {"short": 1}


async def test_arguments_beside_sealed_ones_arrive_as_they_are(
    worker: Remote, api: Caller, queue: str, raw: Any
) -> None:
    put(raw, queue, b'{"task":"t","args":[1.0],"kwargs":{"k": {}},"sealed":{"data":"AAAA","key":"k"}}', "a")
    put(raw, queue, b'{"task":"t","sealed":{"data":5}}', "b")
    put(raw, queue, b'{"task":"t"}', "c")
    found = list[dict[str, Any]]()
    while len(found) < 2 or (await status(api, queue, "b"))["place"] != "dead":
        found += await worker.fetch(slots=3, holding=[job["id"] for job in found], sealed=True, wait=0.1)
    a, c = sorted(found, key=lambda job: job["id"])
    assert (a["args"], a["kwargs"], a["sealed"], c["sealed"]) == ([1.0], {"k": {}}, {"data": "AAAA", "key": "k"}, None)
    assert "Expected `bytes`, got `int` - at `$.sealed.data`" in (await status(api, queue, "b"))["reason"]
    assert [await worker.end("complete", job) for job in found] == [204, 204]
