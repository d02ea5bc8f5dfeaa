"""The HTTP interface: jobs and queues. Each answer is held against the OpenAPI document (tests/support/api.py)."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from evsched import App, Filter, Retry, current_job, events, keys
from evsched.client.option_values import id_of_arguments, id_of_key
from evsched.config import Config
from evsched.transport.embedded import EmbeddedRedis
from tests.support import heavy
from tests.support.api import LATER, READ, WRITE, Caller, calling
from tests.support.patience import PATIENCE
from tests.support.system import system


@pytest.fixture
def jobs(queue: str) -> str:
    return f"/v1/queues/{queue}/jobs"


async def test_a_job_is_scheduled_with_all_its_options(api: Caller, jobs: str, queue: str, raw: Any) -> None:
    body = {
        "task": "send_mail",
        "args": ["bob"],
        "kwargs": {"subject": "hi"},
        "id": "welcome:42@x",
        "due": LATER,
        "priority": 7,
        "group": "alice",
        "timeout": 30,
        "retry": {"attempts": 3},
        "retention": 0,
        "expires": "2096-10-02T07:06:40+00:00",
        "reply": True,
        "meta": {"a": [1]},
        "tags": ["patient:42", "vip"],
        "window": "mon-fri 08:00-18:00 UTC",
    }
    made = await api.ask("POST", jobs, body)
    assert (made.status_code, made.headers["location"]) == (201, f"{jobs}/welcome:42@x")
    assert made.json() == {"id": "welcome:42@x", "queue": queue, "due": LATER}
    record = raw.hgetall(f"evsched:{{{queue}}}:job:welcome:42@x")
    assert msgspec.json.decode(record[b"payload"]) == {
        "task": "send_mail",
        "args": ["bob"],
        "kwargs": {"subject": "hi"},
        "timeout": 30,
        "retry": {"attempts": 3},
        "retention": 0,
        "expires": 4_000_000_000,
        "reply": True,
        "meta": {"a": [1]},
        "tags": ["patient:42", "vip"],
        "window": "mon-fri 08:00-18:00 UTC",
    }
    assert (record[b"priority"], record[b"group"]) == (b"7", b"alice")
    seen = (await api.ask("GET", made.headers["location"], token=READ)).json()
    assert (seen["place"], seen["due"], seen["task"], seen["priority"]) == ("schedule", LATER, "send_mail", 7)
    assert seen["tags"] == ["patient:42", "vip"]


async def test_a_due_is_a_moment_or_a_delay(api: Caller, jobs: str) -> None:
    now = datetime.now(UTC).timestamp()
    for body, due in (({"due": "2030-01-01T01:00:00+01:00"}, 1893456000), ({"due": 1893456000.25}, 1893456000.25)):
        assert (await api.ask("POST", jobs, {"task": "t", **body})).json()["due"] == due
    assert (await api.ask("POST", jobs, {"task": "t", "delay": 1000})).json()["due"] > now + 900
    assert (await api.ask("POST", jobs, {"task": "t"})).json()["due"] < now + 900


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "missing required field `task`"),
        ({"task": ""}, "$.task"),
        ({"task": 5}, "Expected `str`, got `int` - at `$.task`"),
        ({"task": "t", "arg": []}, "unknown field `arg`"),
        ({"task": "t", "args": {}}, "$.args"),
        ({"task": "t", "id": "a b"}, "$.id"),
        ({"task": "t", "id": "x" * 201}, "$.id"),
        ({"task": "t", "id": "."}, "$.id"),
        ({"task": "t", "id": ".."}, "$.id"),
        ({"task": "t", "due": "2030-01-01T00:00:00"}, "$.due"),
        ({"task": "t", "due": "soon"}, "$.due"),
        ({"task": "t", "due": 1, "delay": 1}, "due and delay: give one of them"),
        ({"task": "t", "priority": 10}, "$.priority"),
        ({"task": "t", "group": "}"}, "$.group"),
        ({"task": "t", "group": "ü" * 101}, "1 to 200 bytes"),
        ({"task": "t", "timeout": 0}, "$.timeout"),
        ({"task": "t", "retry": {"attempts": 0}}, "attempts is 0, must be 1 to 1000"),
        ({"task": "t", "retry": {"tries": 1}}, "unknown field `tries`"),
        ({"task": "t", "retention": -1}, "$.retention"),
        ({"task": "t", "window": "mon-fri 22:00-30:00 UTC"}, "30:00"),
        ({"task": "t", "tags": ["a b"]}, "$.tags[0]"),
        ({"task": "t", "tags": ["a\n"]}, "tags is"),
        ({"task": "t", "tags": ["a"] * 6}, "$.tags"),
        ({"task": "t", "on_conflict": "ignore"}, "$.on_conflict"),
        ({"task": "t", "id": "a", "unique": {}}, "id and unique: give one of them"),
        ({"task": "t", "unique": {"within": 0}}, "$.unique.within"),
        ({"task": "t", "unique": {"key": None}}, "the key of a unique job is None"),
        ({"task": "t", "args": ["x" * 300_000]}, "more than 262144"),
        ([], "Expected `object`, got `array`"),
    ],
)
async def test_a_job_that_is_not_valid_is_refused(api: Caller, jobs: str, body: Any, words: str, raw: Any) -> None:
    refused = await api.ask("POST", jobs, body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert words in refused.json()["detail"]
    assert raw.dbsize() == 0


async def test_an_id_that_is_taken_is_refused_kept_or_replaced(api: Caller, jobs: str) -> None:
    first = {"task": "t", "id": "a", "args": [1], "due": LATER}
    assert (await api.ask("POST", jobs, first)).status_code == 201
    again = await api.ask("POST", jobs, first)
    assert (again.status_code, again.json()["code"]) == (409, "job-exists")
    kept = await api.ask("POST", jobs, {**first, "args": [2], "due": LATER + 1, "on_conflict": "keep"})
    assert (kept.status_code, kept.json()["due"]) == (200, LATER)
    assert (await api.ask("GET", f"{jobs}/a")).json()["payload"]["args"] == [1]
    replaced = await api.ask("POST", jobs, {**first, "args": [3], "due": LATER + 2, "on_conflict": "replace"})
    assert (replaced.status_code, replaced.json()["due"]) == (200, LATER + 2)
    assert (await api.ask("GET", f"{jobs}/a")).json()["payload"]["args"] == [3]


async def test_unique_jobs_have_the_ids_of_other_clients(api: Caller, jobs: str) -> None:
    one = {"task": "t", "args": [1], "kwargs": {"b": 2}, "due": LATER, "unique": {"within": 300}}
    assert (await api.ask("POST", jobs, one)).json()["id"] == id_of_arguments("t", [1], {"b": 2})
    assert (await api.ask("POST", jobs, one)).status_code == 409
    by_key = {**one, "unique": {"key": {"customer": 5}}}
    assert (await api.ask("POST", jobs, by_key)).json()["id"] == id_of_key("t", {"customer": 5})
    assert (await api.ask("POST", jobs, {**by_key, "args": [2]})).status_code == 409


async def test_batch_is_scheduled_whole_or_not_at_all(api: Caller, queue: str, raw: Any) -> None:
    batches, schedule = f"/v1/queues/{queue}/batches", f"evsched:{{{queue}}}:schedule"
    made = await api.ask("POST", batches, {"jobs": [{"task": "t", "id": f"j{n}", "due": LATER} for n in range(1000)]})
    assert made.status_code == 201
    assert [job["id"] for job in made.json()["jobs"]] == [f"j{n}" for n in range(1000)]
    assert raw.zcard(schedule) == 1000
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({"jobs": [{"task": "t"}, {"task": "t", "id": "j5"}]}, 409),
        ({"jobs": [{"task": "t", "due": LATER}, {"task": "t", "due": 1, "delay": 1}]}, 422),
        ({"jobs": [{"task": "t"}] * 1001}, 422),
        ({"jobs": []}, 422),
    )
    for bad, status in cases:
        assert (await api.ask("POST", batches, bad)).status_code == status
    second = {"jobs": [{"task": "t"}, {"task": "t", "group": "ü" * 150}]}
    assert (await api.ask("POST", batches, second)).json()["detail"].startswith("jobs[1]: group is ")
    assert raw.zcard(schedule) == 1000
    unique: dict[str, Any] = {"jobs": [{"task": "t", "args": [n], "due": LATER} for n in range(2)], "unique": {}}
    assert [(await api.ask("POST", batches, unique)).status_code for _ in range(2)] == [201, 409]
    assert (await api.ask("POST", batches, {**unique, "on_conflict": "keep"})).status_code == 200


async def test_a_waiting_job_is_rescheduled_and_cancelled(api: Caller, jobs: str) -> None:
    await api.ask("POST", jobs, {"task": "t", "id": "a", "due": LATER})
    assert (await api.ask("PATCH", f"{jobs}/a", {"due": LATER + 5})).json()["due"] == LATER + 5
    assert (await api.ask("PATCH", f"{jobs}/a", {"delay": 100})).json()["due"] < LATER
    assert (await api.ask("PATCH", f"{jobs}/a", {})).status_code == 422
    assert (await api.ask("PATCH", f"{jobs}/a", {"due": 1, "delay": 1})).status_code == 422
    assert (await api.ask("DELETE", f"{jobs}/a")).status_code == 204
    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"delay": 1})):
        gone = await api.ask(method, f"{jobs}/a", body)
        assert (gone.status_code, gone.json()["code"]) == (404, "not-found")
    assert (await api.ask("GET", f"{jobs}/a/result")).status_code == 404


async def test_waiting_job_is_edited_if_it_is_as_it_was_read(api: Caller, jobs: str) -> None:
    await api.ask("POST", jobs, {"task": "t", "id": "a", "due": LATER, "args": [1], "kwargs": {"b": 2}, "group": "g"})
    version = (await api.ask("GET", f"{jobs}/a")).json()["version"]
    body = {"args": [2], "priority": 9, "group": None, "tags": ["x"], "version": version}
    assert (await api.ask("PATCH", f"{jobs}/a", body)).json()["due"] == LATER
    job = (await api.ask("GET", f"{jobs}/a")).json()
    assert (job["payload"]["args"], job["payload"]["kwargs"], job["tags"]) == ([2], {"b": 2}, ["x"])
    assert (job["priority"], job["group"], job["due"]) == (9, None, LATER)
    late = await api.ask("PATCH", f"{jobs}/a", {"kwargs": {}, "version": version})
    assert (late.status_code, late.json()["code"]) == (409, "job-changed")
    large = await api.ask("PATCH", f"{jobs}/a", {"args": ["x" * 300_000]})
    assert (large.status_code, large.json()["code"]) == (422, "invalid")
    assert (await api.ask("GET", f"{jobs}/a")).json() == job
    assert (await api.ask("PATCH", f"{jobs}/nobody", {"args": []})).status_code == 404


@pytest.mark.extra
async def test_due_of_a_dead_job_is_not_edited(api: Caller, jobs: str, queue: str, raw: Any) -> None:
    await api.ask("POST", jobs, {"task": "t", "id": "a", "due": LATER, "args": [1]})
    raw.zrem(keys.schedule(queue), "a")
    raw.zadd(f"{keys.root(queue)}dead", {"a": 1e9})
    refused = await api.ask("PATCH", f"{jobs}/a", {"args": [2], "due": LATER})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert "a dead job has no due: revive it, then reschedule it" in refused.json()["detail"]
    assert (await api.ask("PATCH", f"{jobs}/a", {"delay": 0})).status_code == 404
    for args in ([2], [2]):  # the second one changes nothing
        assert (await api.ask("PATCH", f"{jobs}/a", {"args": args})).json()["due"] is None
    assert (await api.ask("PATCH", f"{jobs}/a", {"args": [2]})).status_code == 200


async def test_a_job_runs_and_its_result_is_waited_for(
    server: EmbeddedRedis, api: Caller, jobs: str, queue: str
) -> None:
    app, hangs = App(server.url, queue=queue), asyncio.Event()

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def fail() -> None:
        raise ValueError("no such account")

    @app.task
    async def hang() -> None:
        hangs.set()
        await asyncio.Event().wait()

    async with system(Config(url=server.url, queues=(queue,)), app):
        await api.ask("POST", jobs, {"task": "double", "id": "d", "args": [21]})
        ended = await api.ask("GET", f"{jobs}/d/result?wait=60", token=READ)
        assert (ended.status_code, ended.json()) == (
            200,
            {"id": "d", "outcome": "done", "result": 42, "reason": None},
        )
        assert (await api.ask("GET", f"{jobs}/d")).json()["result"] == 42
        await api.ask("POST", jobs, {"task": "fail", "id": "f", "retry": {"attempts": 1}})
        dead = (await api.ask("GET", f"{jobs}/f/result?wait=60")).json()
        assert (dead["outcome"], "no such account" in dead["reason"]) == ("dead", True)
        await api.ask("POST", jobs, {"task": "hang", "id": "h"})
        await asyncio.wait_for(hangs.wait(), PATIENCE)
        assert (await api.ask("GET", f"{jobs}/h/result")).status_code == 202, "it has not ended"
        running_job = await api.ask("PATCH", f"{jobs}/h", {"delay": 5})
        assert (running_job.status_code, running_job.json()["code"]) == (409, "job-running")
        stopping = await api.ask("DELETE", f"{jobs}/h")
        assert (stopping.status_code, stopping.json()) == (202, {"id": "h", "place": "processing"})
        cancelled = (await api.ask("GET", f"{jobs}/h/result?wait=60")).json()
        assert cancelled["outcome"] == "cancelled"


@pytest.mark.parametrize("query", ["wait=61", "wait=-1", "wait=x", "wait=nan", "wait=1&wait=2", "until=5"])
async def test_a_wait_has_a_limit(api: Caller, jobs: str, query: str) -> None:
    assert (await api.ask("GET", f"{jobs}/a/result?{query}")).status_code == 422


@pytest.mark.one_server
async def test_number_of_waiting_requests_is_limited(server: EmbeddedRedis, jobs: str, raw: Any) -> None:
    async with calling(server.url, api_waiting_cap=1) as api:
        await api.ask("POST", jobs, {"task": "t", "id": "a", "due": LATER})
        waiting = asyncio.ensure_future(api.ask("GET", f"{jobs}/a/result?wait=60"))
        while not any(client["cmd"] == "blmove" for client in raw.client_list()):
            await asyncio.to_thread(raw.ping)
        too_many = await api.ask("GET", f"{jobs}/a/result?wait=60")
        assert (too_many.status_code, too_many.headers["retry-after"]) == (503, "1")
        assert (await api.ask("GET", f"{jobs}/a/result")).status_code == 202, "this one does not wait"
        await api.ask("DELETE", f"{jobs}/a")
        assert (await waiting).json()["outcome"] == "cancelled"
        assert (await api.ask("GET", f"{jobs}/a/result?wait=1")).status_code in (200, 404), "there is room again"


async def test_jobs_are_listed_by_place_and_by_a_filter(api: Caller, jobs: str, queue: str, raw: Any) -> None:
    batch = [{"task": f"t{n % 2}", "id": f"j{n}", "due": LATER + n, "group": f"g{n % 3}"} for n in range(12)]
    await api.ask("POST", f"/v1/queues/{queue}/batches", {"jobs": batch})
    raw.zadd(f"evsched:{{{queue}}}:dead", {"d": 5})
    raw.hset(
        f"evsched:{{{queue}}}:job:d",
        mapping={"payload": '{"task":"t0"}', "reason": "ValueError: no", "error": "ValueError"},
    )

    async def listed(query: str = "") -> tuple[list[str], bool]:
        found = (await api.ask("GET", f"{jobs}{query}", token=READ)).json()
        return [job["id"] for job in found["jobs"]], found["complete"]

    assert await listed() == ([*(f"j{n}" for n in range(12)), "d"], True)
    assert await listed("?place=dead") == (["d"], True)
    assert await listed("?limit=3") == (["j0", "j1", "j2"], False)
    assert await listed("?place=schedule&limit=12") == ([f"j{n}" for n in range(12)], True)
    ids, complete = await listed("?task=t0&group=g0")
    assert (sorted(ids), complete) == (["j0", "j6"], True)
    assert await listed("?reason=valueerror") == (["d"], True)
    ids, complete = await listed("?task=t1&limit=2")
    assert (len(ids), complete) == (2, False)
    assert await listed("?older=1e9") == (["d"], True)
    assert await listed("?until=1e9&since=2000-01-01T00:00:00Z") == ([], True)
    assert await listed("?until=2001-01-01T00:00:00Z") == (["d"], True)
    assert await listed("?error=ValueError") == (["d"], True)
    assert (await api.ask("POST", jobs, {"task": "t", "id": "called", "args": [[1]], "delay": 9})).status_code == 201
    assert await listed('?arguments={"1":[1]}') == (["called"], True)
    raw.hset(f"evsched:{{{queue}}}:job:past", mapping={"payload": '{"task":"t0"}', "finished": "5", "outcome": "done"})
    raw.expire(f"evsched:{{{queue}}}:job:past", 300)
    assert await listed("?place=finished") == (["past"], True)
    assert await listed("?place=processing") == ([], True)
    for query in (
        "?place=gone",
        "?arguments=x",
        "?arguments=[1]",
        "?limit=0",
        "?limit=x",
        "?task=",
        "?older=-1",
        "?name=x",
        "?task=a&task=b",
    ):
        assert (await api.ask("GET", f"{jobs}{query}")).status_code == 422, query


async def test_a_list_is_bounded_by_the_server(server: EmbeddedRedis, jobs: str, queue: str) -> None:
    async with calling(server.url, api_list_cap=2) as api:
        for n in range(3):
            await api.ask("POST", jobs, {"task": "t", "id": f"j{n}", "due": LATER})
        found = (await api.ask("GET", f"{jobs}?limit=1000")).json()
        assert (len(found["jobs"]), found["complete"]) == (2, False)
        found = (await api.ask("GET", f"{jobs}?limit=1000&task=t")).json()
        assert (len(found["jobs"]), found["complete"]) == (2, False)


async def test_queues_are_counted(api: Caller, jobs: str, queue: str) -> None:
    assert (await api.ask("GET", "/v1/queues")).json() == {"queues": [], "complete": True}
    await api.ask("POST", jobs, {"task": "t", "due": LATER})
    (only,) = (await api.ask("GET", "/v1/queues", token=READ)).json()["queues"]
    assert (only["queue"], only["schedule"], only["next_due"]) == (queue, 1, LATER)
    assert (await api.ask("GET", f"/v1/queues/{queue}")).json() == only
    assert (await api.ask("GET", "/v1/queues/never-used")).json()["schedule"] == 0


async def test_only_the_queues_that_are_named_can_be_reached(server: EmbeddedRedis, queue: str) -> None:
    async with calling(server.url, queues=(queue, "other")) as api:
        assert (await api.ask("POST", f"/v1/queues/{queue}/jobs", {"task": "t", "due": LATER})).status_code == 201
        for method, path in (("POST", "jobs"), ("GET", "jobs"), ("GET", "recurrences")):
            refused = await api.ask(method, f"/v1/queues/secret/{path}", {"task": "t"} if method == "POST" else None)
            assert (refused.status_code, refused.json()["code"]) == (403, "queue-not-allowed")
        listed = (await api.ask("GET", "/v1/queues")).json()["queues"]
        assert [one["queue"] for one in listed] == sorted([queue, "other"])


@pytest.mark.parametrize("queue_or_id", ["a b", "x" * 201, "a}b", "é", "%00", "a\n", "%2E", "%2e%2e"])
async def test_a_name_that_is_not_valid_is_refused(api: Caller, queue_or_id: str) -> None:
    name = queue_or_id if "%" in queue_or_id else quote(queue_or_id)
    for path in (f"/v1/queues/{name}/jobs", f"/v1/queues/q/jobs/{name}", f"/v1/queues/q/recurrences/{name}"):
        assert (await api.ask("GET", path)).status_code == 422
    refused = await api.ask("PUT", f"/v1/queues/q/recurrences/{name}", {"rule": "@daily", "task": "t"})
    assert refused.status_code == 422


@pytest.mark.parametrize("job_id", ["...", ".a", "..-", "a.", "a..", ".:.", "x" * 200, "-", "@_:"])
async def test_the_location_of_a_job_leads_to_it(api: Caller, jobs: str, job_id: str) -> None:
    made = await api.ask("POST", jobs, {"task": "t", "id": job_id, "due": LATER})
    assert (made.status_code, made.headers["location"]) == (201, f"{jobs}/{job_id}")
    assert (await api.ask("GET", made.headers["location"])).json()["id"] == job_id


async def test_a_result_that_cannot_be_read_is_in_the_log(
    api: Caller, jobs: str, queue: str, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    deep = "[" * 1000 + "]" * 1000
    for result, words in ((deep, "a: its result is nested too deeply"), ("{", "a: its result is not JSON")):
        ended = {"payload": '{"task":"t"}', "outcome": "done", "finished": LATER, "result": result}
        raw.hset(f"evsched:{{{queue}}}:job:a", mapping=ended)
        failed = await api.ask("GET", f"{jobs}/a/result")
        assert (failed.status_code, failed.json()["code"]) == (500, "failed")
        assert words in failed.json()["detail"]
        assert words in caplog.text
    raw.delete(f"evsched:{{{queue}}}:job:a")


async def test_write_tokens_are_needed_to_write(api: Caller, jobs: str, queue: str, raw: Any) -> None:
    for method, path, body in (
        ("POST", jobs, {"task": "t"}),
        ("POST", f"/v1/queues/{queue}/batches", {"jobs": [{"task": "t"}]}),
        ("PATCH", f"{jobs}/a", {"delay": 1}),
        ("DELETE", f"{jobs}/a", None),
    ):
        assert (await api.ask(method, path, body, token=READ)).status_code == 403
        for token in (None, WRITE + "x"):
            refused = await api.ask(method, path, body, token=token)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="evsched"')
            assert WRITE not in refused.text
    assert raw.dbsize() == 0


async def test_redacted_argument_reaches_only_the_handler(
    server: EmbeddedRedis, api: Caller, jobs: str, queue: str, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = App(server.url, queue=queue), list[str]()

    @app.task(redact=("card",), retry=Retry(attempts=1))
    async def pay(amount: int, card: str) -> None:
        seen.append(card)
        raise ValueError(f"no credit for {amount}")

    caplog.set_level(logging.DEBUG)
    secret, texts = "4111-1111", list[str]()
    inline = f'{{"task":"pay","args":[1,"{secret}"],"redact":["2"]}}'
    raw.zadd(f"evsched:{{{queue}}}:schedule", {inline: LATER})
    async with system(Config(url=server.url, queues=(queue,)), app) as running:
        made = [await pay.enqueue(1, secret), await pay.enqueue(2, card=secret)]
        by_api = {"task": "pay", "kwargs": {"amount": 1, "card": [secret]}, "redact": ["card"]}
        made.append(app.job((await api.ask("POST", jobs, by_api)).json()["id"]))
        await running.recorder.until(lambda: len(running.recorder.of(events.JobBuried)) == len(made))
        for job in made:
            texts += [repr(await job.status()), (await api.ask("GET", f"{jobs}/{job.id}")).text]
            texts.append((await api.ask("GET", f"{jobs}/{job.id}/explain")).text)
    texts += [(await api.ask("GET", jobs)).text, (await api.ask("GET", f"{jobs}?task=pay")).text, caplog.text]
    assert seen == [secret, secret]
    assert "[redacted]" in texts[0]
    assert [text for text in texts if secret in text] == []
    await app.close()


async def test_reader_without_the_app_does_not_get_what_a_worker_redacts(
    server: EmbeddedRedis, api: Caller, jobs: str, queue: str, raw: Any
) -> None:
    """The jobs were enqueued by a program that does not know the task, so their payloads name no arguments."""
    app, secret = App(server.url, queue=queue), "4111-1111"

    @app.task(redact=("card",))
    async def pay(amount: int, card: str) -> None: ...

    async def texts() -> list[str]:
        paths = (jobs, f"{jobs}?task=pay", f"{jobs}/a", f"{jobs}/b", f"{jobs}/a/explain")
        return [(await api.ask("GET", path)).text for path in paths]

    body = {"task": "pay", "due": LATER}
    await api.ask("POST", jobs, {**body, "id": "a", "args": [1, secret]})
    await api.ask("POST", jobs, {**body, "id": "b", "kwargs": {"amount": 1, "card": secret}})
    raw.zadd(f"evsched:{{{queue}}}:schedule", {f'{{"task":"pay","args":[1,"{secret}"]}}': LATER})
    assert sum(secret in text for text in await texts()) == 4
    async with system(Config(url=server.url, queues=(queue,)), app):
        pass
    assert [text for text in await texts() if secret in text] == []
    assert (await api.ask("GET", f"{jobs}/a")).json()["payload"]["args"] == [1, "[redacted]"]
    known = App(server.url, queue=queue)
    known.task(name="pay")(pay.handler)  # a later deploy, which redacts nothing
    async with system(Config(url=server.url, queues=(queue,)), known):
        pass
    assert secret in (await api.ask("GET", f"{jobs}/a")).text
    await app.close()
    await known.close()


@pytest.mark.parametrize("redact", ["card", "2"])
async def test_argument_is_redacted_however_it_is_passed(
    server: EmbeddedRedis, api: Caller, jobs: str, queue: str, redact: str
) -> None:
    app = App(server.url, queue=queue)

    @app.task
    async def charge(order: int, card: str) -> None: ...

    using, secret = charge.using(delay=600, redact=(redact,)), "4111-1111"
    await using.enqueue_many([(1, secret), charge.arguments(1, card=secret)])
    for args, kwargs in (([1, secret], {}), ([1], {"card": secret})):
        made = await api.ask("POST", jobs, {"task": "charge", "args": args, "kwargs": kwargs, "redact": [redact]})
        assert made.status_code == 201
    shown = [repr(await app.job(job.id).status()) for job in await app.client.find(queue, Filter())]
    assert [secret in text for text in shown] == [False] * 4
    for name in ("2", "card"):
        assert await app.client.find(queue, Filter(arguments={name: secret})) == []
    await app.close()


async def test_name_that_redacts_nothing_is_refused(api: Caller, jobs: str) -> None:
    refused = await api.ask("POST", jobs, {"task": "charge", "kwargs": {"card": "4111"}, "redact": ["Card"]})
    assert refused.status_code == 422
    assert refused.json()["detail"] == (
        "task charge: redact names 'Card', and the job has no such argument: its arguments are 'card'"
    )


async def test_handler_receives_id_meta_and_tags_of_the_request(
    server: EmbeddedRedis, api: Caller, jobs: str, queue: str
) -> None:
    app = App(server.url, queue=queue)

    @app.task
    async def look() -> dict[str, Any]:
        job = current_job()
        return {"meta": job.meta, "id": job.id, "tags": job.tags}

    app.task(on="process")(heavy.read_tags.handler)
    async with system(Config(url=server.url, queues=(queue,)), app):
        made = (await api.ask("POST", jobs, {"task": "look", "meta": {"trace": "x"}, "tags": ["vip"]})).json()["id"]
        ended = (await api.ask("GET", f"{jobs}/{made}/result?wait=60")).json()
        made_too = (await api.ask("POST", jobs, {"task": "read_tags", "tags": ["vip", "night"]})).json()["id"]
        in_process = (await api.ask("GET", f"{jobs}/{made_too}/result?wait=60")).json()
    assert ended["result"] == {"meta": {"trace": "x"}, "id": made, "tags": ["vip"]}
    assert in_process["result"] == ["vip", "night"]
