"""The header Idempotency-Key: a repeated request gets the first reply and does nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from evsched import App
from evsched.config import Config
from evsched.transport.embedded import EmbeddedRedis
from tests.support.api import LATER, WRITE, Caller, calling
from tests.support.proxy import Proxy
from tests.support.snapshot import snapshot
from tests.support.system import system

KEY = {"Idempotency-Key": "8e03978e-40d5-43dd"}


@pytest.fixture
def jobs(queue: str) -> str:
    return f"/v1/queues/{queue}/jobs"


@pytest.fixture
def batches(queue: str) -> str:
    return f"/v1/queues/{queue}/batches"


@pytest.fixture
def recurrences(queue: str) -> str:
    return f"/v1/queues/{queue}/recurrences"


def reply(response: httpx.Response) -> tuple[int, str, str | None]:
    return response.status_code, response.text, response.headers.get("location")


async def test_repeated_request_gets_the_same_reply_in_any_state_of_the_job(
    api: Caller, jobs: str, queue: str, raw: Any
) -> None:
    body = {"task": "t", "delay": 5000}
    first = await api.ask("POST", jobs, body, headers=KEY)
    assert first.status_code == 201
    path = f"{jobs}/{first.json()['id']}"
    assert first.headers["location"] == path
    assert (await api.ask("PATCH", path, {"due": LATER})).status_code == 200
    assert reply(await api.ask("POST", jobs, body, headers=KEY)) == reply(first)
    assert (await api.ask("GET", path)).json()["due"] == LATER, "it was not moved back"
    assert (await api.ask("DELETE", path)).status_code == 204
    assert reply(await api.ask("POST", jobs, body, headers=KEY)) == reply(first)
    assert (await api.ask("GET", path)).status_code == 404, "it was not made again"
    assert raw.zcard(f"evsched:{{{queue}}}:schedule") == 0


async def test_a_job_that_ended_and_was_not_kept_runs_once(
    server: EmbeddedRedis, api: Caller, jobs: str, queue: str
) -> None:
    app, runs = App(server.url, queue=queue), list[int]()

    @app.task
    async def work() -> None:
        runs.append(1)

    body = {"task": "work", "retention": 0, "reply": True}
    async with system(Config(url=server.url, queues=(queue,)), app):
        first = await api.ask("POST", jobs, body, headers=KEY)
        path = f"{jobs}/{first.json()['id']}"
        assert (await api.ask("GET", f"{path}/result?wait=60")).json()["outcome"] == "done"
        assert reply(await api.ask("POST", jobs, body, headers=KEY)) == reply(first)
        assert (await api.ask("GET", path)).status_code == 404
    assert runs == [1]


async def test_a_key_belongs_to_a_token(server: EmbeddedRedis, jobs: str) -> None:
    """Another caller who knows the key neither gets the reply nor uses the key up."""
    other = "a-token-of-another-caller"
    async with calling(server.url, api_write_tokens=(WRITE, other)) as api:
        stolen = await api.ask("POST", jobs, {"task": "t", "delay": 9000}, headers=KEY, token=other)
        mine = await api.ask("POST", jobs, {"task": "t", "delay": 5000}, headers=KEY)
        assert (stolen.status_code, mine.status_code) == (201, 201)
        assert reply(await api.ask("POST", jobs, {"task": "t", "delay": 5000}, headers=KEY)) == reply(mine)


async def test_another_request_with_the_same_key_is_refused(
    api: Caller, jobs: str, batches: str, queue: str, raw: Any
) -> None:
    one = {"task": "t", "args": [1], "due": LATER}
    assert (await api.ask("POST", batches, {"jobs": [one]}, headers=KEY)).status_code == 201
    before = snapshot(raw, queue)
    for path, body in (
        (batches, {"jobs": [one] * 3}),
        (batches, {"jobs": [{**one, "args": [2]}]}),
        (batches, {"jobs": [{**one, "due": LATER + 1}]}),
        (batches, {"jobs": [one], "on_conflict": "replace"}),
        (jobs, one),
        (jobs, {**one, "args": [2]}),
    ):
        refused = await api.ask("POST", path, body, headers=KEY)
        assert (refused.status_code, refused.json()["code"]) == (422, "key-reused"), body
    assert snapshot(raw, queue) == before
    elsewhere = await api.ask("POST", "/v1/queues/elsewhere/jobs", one, headers=KEY)
    assert elsewhere.status_code == 201, "a key belongs to a queue"
    assert (await api.ask("POST", jobs, one, headers={"Idempotency-Key": "another"})).status_code == 201


async def test_the_same_request_may_be_written_in_another_way(api: Caller, jobs: str) -> None:
    texts = ('{"task": "t", "kwargs": {"a": 1, "b": "\\u00e4"}}', '{"kwargs":{"b":"ä","a":1},"id":null,"task":"t"}')
    quoted = {"Idempotency-Key": f'"{KEY["Idempotency-Key"]}"', "Content-Type": "application/json"}
    headers = (KEY | {"Content-Type": "application/json"}, quoted)
    first, second = [
        await api.ask("POST", jobs, content=text.encode(), headers=each)
        for text, each in zip(texts, headers, strict=True)
    ]
    assert first.status_code == 201
    assert reply(second) == reply(first)


@pytest.mark.parametrize("more", [{"id": "a"}, {"unique": {}}, {"unique": {"within": 60}}])
@pytest.mark.parametrize("on_conflict", [None, "keep", "replace"])
async def test_a_key_goes_with_all_other_options(
    api: Caller, jobs: str, queue: str, raw: Any, more: dict[str, Any], on_conflict: str | None
) -> None:
    body = {"task": "t", "delay": 5000, "on_conflict": on_conflict, **more}
    first = await api.ask("POST", jobs, body, headers=KEY)
    before = snapshot(raw, queue)
    assert reply(await api.ask("POST", jobs, body, headers=KEY)) == reply(first)
    assert snapshot(raw, queue) == before
    second = await api.ask("POST", jobs, body, headers={"Idempotency-Key": "another"})
    assert second.status_code == (409 if on_conflict is None else 200), "a key of its own does not free the id"


async def test_a_request_that_is_refused_does_not_use_up_its_key(api: Caller, jobs: str) -> None:
    body = {"task": "t", "id": "a", "due": LATER}
    assert (await api.ask("POST", jobs, body)).status_code == 201
    assert (await api.ask("POST", jobs, body, headers=KEY)).status_code == 409
    assert (await api.ask("POST", jobs, {"task": ""}, headers=KEY)).status_code == 422
    assert (await api.ask("POST", jobs, {**body, "id": "b"}, headers=KEY)).status_code == 201


@pytest.mark.parametrize("key", ["", '""', "x" * 256])
async def test_a_key_that_is_not_valid_is_refused(api: Caller, jobs: str, raw: Any, key: str) -> None:
    refused = await api.ask("POST", jobs, {"task": "t"}, headers={"Idempotency-Key": key})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
    assert raw.dbsize() == 0


async def test_a_key_that_is_sent_twice_is_refused(api: Caller, jobs: str, raw: Any) -> None:
    headers = [("Authorization", f"Bearer {WRITE}"), ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    refused = await api.client.post(jobs, json={"task": "t"}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
    assert raw.dbsize() == 0


REFUSED = {"Idempotency-Key": "x" * 256}


async def test_a_key_that_is_not_valid_is_refused_by_every_operation(
    api: Caller, jobs: str, recurrences: str, raw: Any
) -> None:
    for method, path, body in (
        ("PATCH", f"{jobs}/a", {"due": LATER}),
        ("DELETE", f"{jobs}/a", None),
        ("GET", f"{jobs}/a", None),
        ("PUT", f"{recurrences}/r", {"rule": "@daily", "task": "t"}),
        ("DELETE", f"{recurrences}/r", None),
        ("POST", f"{recurrences}/r/pause", {}),
        ("POST", f"{recurrences}/r/resume", None),
        ("POST", f"{recurrences}/r/trigger", None),
    ):
        refused = await api.ask(method, path, body, headers=REFUSED)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid"), path
        assert "Idempotency-Key" in refused.json()["detail"]
    assert raw.dbsize() == 0


async def test_a_key_does_not_make_a_delay_safe_to_repeat(api: Caller, jobs: str) -> None:
    await api.ask("POST", jobs, {"task": "t", "id": "a", "due": LATER})
    for delay in (0, 60):
        refused = await api.ask("PATCH", f"{jobs}/a", {"delay": delay}, headers=KEY)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
        assert "send `due` instead" in refused.json()["detail"]
    assert (await api.ask("GET", f"{jobs}/a")).json()["due"] == LATER
    for _ in range(2):
        moved = await api.ask("PATCH", f"{jobs}/a", {"due": LATER + 1}, headers=KEY)
        assert (moved.status_code, moved.json()["due"]) == (200, LATER + 1)


async def test_a_recurrence_is_triggered_once(api: Caller, recurrences: str, queue: str, raw: Any) -> None:
    for name in ("r", "s"):
        await api.ask("PUT", f"{recurrences}/{name}", {"rule": "@daily", "task": "t"})
    assert (await api.ask("POST", f"{recurrences}/q/trigger", headers=KEY)).status_code == 404, "the key is not used up"
    answers = await asyncio.gather(*(api.ask("POST", f"{recurrences}/r/trigger", headers=KEY) for _ in range(20)))
    (only,) = {reply(one) for one in answers}
    assert (only[0], answers[0].json()["begun"]) == (202, True)
    runs = [
        job for job in raw.zrange(f"evsched:{{{queue}}}:schedule", 0, -1) if job == answers[0].json()["id"].encode()
    ]
    assert len(runs) == 1
    assert raw.zcard(f"evsched:{{{queue}}}:requested:r") == 1

    waits = {"Idempotency-Key": "another"}
    second = await api.ask("POST", f"{recurrences}/r/trigger", headers=waits)
    assert second.json()["begun"] is False
    other = await api.ask("POST", f"{recurrences}/s/trigger", headers=KEY)
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    assert raw.exists(f"evsched:{{{queue}}}:requested:s") == 0
    await api.ask("DELETE", f"{recurrences}/r")
    assert reply(await api.ask("POST", f"{recurrences}/r/trigger", headers=KEY)) == only
    assert reply(await api.ask("POST", f"{recurrences}/r/trigger", headers=waits)) == reply(second)


async def test_many_at_once_with_one_key_make_one_job(api: Caller, jobs: str, queue: str, raw: Any) -> None:
    bodies = [{"task": "t", "args": [n % 2], "due": LATER} for n in range(50)]
    got = await asyncio.gather(*(api.ask("POST", jobs, body, headers=KEY) for body in bodies))
    done = {reply(one) for one in got if one.status_code == 201}
    assert len(done) == 1
    assert sorted(one.status_code for one in got) == [201] * 25 + [422] * 25
    assert raw.zcard(f"evsched:{{{queue}}}:schedule") == 1


async def test_a_lost_reply_of_redis_and_a_lost_server_cost_no_reply(jobs: str, queue: str) -> None:
    """The API's first call is done and its reply is lost; then another process gets the repetition."""
    body = {"jobs": [{"task": "t", "delay": 5000}] * 3}
    batches = jobs.removesuffix("jobs") + "batches"
    with EmbeddedRedis(port=0) as own:
        async with Proxy(("127.0.0.1", own.port or 0)) as proxy, calling(f"redis://127.0.0.1:{proxy.port}/0") as api:
            assert (await api.ask("GET", jobs)).status_code == 200  # it is connected
            received = proxy.received["down"]
            proxy.swallow("down")
            asking = asyncio.ensure_future(api.ask("POST", batches, body, headers=KEY))
            await proxy.until(lambda: proxy.received["down"] > received)
            proxy.heal()
            proxy.reset()
            first = await asking
            assert first.status_code == 201
        async with calling(f"redis://127.0.0.1:{own.port}/0") as api:
            assert reply(await api.ask("POST", batches, body, headers=KEY)) == reply(first)
            assert (await api.ask("GET", f"/v1/queues/{queue}")).json()["schedule"] == 3
