"""The HTTP interface and the client, for operators. Each answer is held against the document (tests/support/api.py)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import date
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, Filter, InUse, JobMissing, events
from evsched.client.client import Client, SyncClient
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.store.client_calls import New
from evsched.store.gate_limits import Limits
from evsched.top import collector
from evsched.transport.embedded import EmbeddedRedis
from tests.support.api import LATER, READ, WRITE, Caller, calling
from tests.support.patience import PATIENCE
from tests.support.snapshot import snapshot
from tests.support.system import system


@pytest.fixture
def path(queue: str, raw: Any) -> str:
    """Return the path of a queue that is in use."""
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"later": LATER})
    return f"/v1/queues/{queue}"


def bury(raw: Any, queue: str, names: Sequence[str], task: str = "mail") -> None:
    """Make dead jobs."""
    for name in names:
        record = {"payload": f'{{"task":"{task}"}}', "reason": "attempt 1 of 1: no", "outcome": "dead", "finished": "5"}
        raw.hset(f"evsched:{{{queue}}}:job:{name}", mapping=record)
        raw.zadd(f"evsched:{{{queue}}}:dead", {name: 5})


def dead(raw: Any, queue: str) -> list[str]:
    return [name.decode() for name in raw.zrange(f"evsched:{{{queue}}}:dead", 0, -1)]


async def test_why_a_job_has_not_run_yet(api: Caller, path: str) -> None:
    await api.ask("PATCH", f"{path}/limits", {"group": "alice", "concurrency": 1})
    await api.ask("POST", f"{path}/jobs", {"task": "t", "id": "later", "due": LATER, "group": "alice"})
    found = (await api.ask("GET", f"{path}/jobs/later/explain", token=READ)).json()
    assert (found["id"], found["sentence"][:7], found["facts"]["group"]) == ("later", "due in ", "alice")
    await api.ask("PUT", f"{path}/recurrences/nightly", {"rule": "0 2 * * *", "task": "report"})
    nightly = (await api.ask("GET", f"{path}/jobs/nightly/explain")).json()
    assert "a dispatcher plans its next occurrence" in nightly["sentence"]
    missing = await api.ask("GET", f"{path}/jobs/nobody/explain")
    assert missing.status_code == 404
    assert "and no recurrence of this name" in missing.json()["detail"]


async def test_python_explains_as_the_http_interface_does(
    api: Caller, path: str, queue: str, raw: Any, config: Config
) -> None:
    await api.ask("POST", f"{path}/jobs", {"task": "t", "id": "later", "due": LATER})
    await api.ask("PUT", f"{path}/recurrences/nightly", {"rule": "0 2 * * *", "task": "report"})
    app = App(config.url, queue=queue)
    client, sync = app.client, app.client.without_loop()
    for name in ("later", "nightly"):
        known = (await api.ask("GET", f"{path}/jobs/{name}/explain")).json()
        for found in (await client.explain(queue, name), sync.explain(queue, name)):
            assert found.sentence[:20] == known["sentence"][:20]
            assert {*found.facts} == {*known["facts"]}
    with pytest.raises(JobMissing, match="and no recurrence of this name"):
        await client.explain(queue, "nobody")
    sync.close()
    await app.close()


async def test_python_asks_the_workers_about_a_ready_job(
    config: Config, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PATIENCE", "_DEADLINE"):
        monkeypatch.setattr(collector, name, PATIENCE)
    app, begun, go = App(queue=queue), asyncio.Event(), asyncio.Event()

    @app.task
    async def wait() -> None:
        begun.set()
        await go.wait()

    async with system(replace(config, concurrency=1), app) as running:
        await running.recorder.wait(events.ControlOpened)
        await wait.enqueue()
        await begun.wait()
        job = await wait.using(id="second").enqueue()
        await running.recorder.wait(events.Dispatched, count=2)
        running.workers[0].stop()
        sync = app.client.without_loop()
        for found in (await app.client.explain(queue, job.id), await asyncio.to_thread(sync.explain, queue, job.id)):
            assert "it starts when another worker serves this queue" in found.sentence
        sync.close()
        go.set()


async def test_dead_jobs_are_revived_and_dropped(api: Caller, path: str, queue: str, raw: Any) -> None:
    bury(raw, queue, ["a", "b", "c", "d"])
    bury(raw, queue, ["x", "y"], task="report")
    revived = await api.ask("POST", f"{path}/dead/revive", {"ids": ["a", "b", "a"]})
    assert revived.json() == {"changed": 2, "complete": True}
    assert dead(raw, queue) == ["c", "d", "x", "y"]
    assert (await api.ask("GET", f"{path}/jobs/a")).json()["place"] == "schedule"
    dropped = await api.ask("POST", f"{path}/dead/drop", {"task": "report", "older": 60})
    assert dropped.json() == {"changed": 2, "complete": True}
    assert (await api.ask("POST", f"{path}/dead/drop", {"ids": ["c", "a"]})).status_code == 404
    assert dead(raw, queue) == ["c", "d"], "none was dropped"
    assert (await api.ask("POST", f"{path}/dead/revive", {"all": True})).json() == {"changed": 2, "complete": True}
    assert (await api.ask("POST", f"{path}/dead/revive", {"all": True})).json() == {"changed": 0, "complete": True}


async def test_dead_jobs_are_listed_and_revived_by_their_tags(api: Caller, path: str, queue: str, raw: Any) -> None:
    bury(raw, queue, ["a", "b", "c"])
    for job, tags in (("a", ["patient:42"]), ("b", ["patient:42", "vip"])):
        payload = json.dumps({"task": "t", "tags": tags})
        raw.hset(f"evsched:{{{queue}}}:job:{job}", "payload", payload)
    listed = (await api.ask("GET", f"{path}/jobs?tags=vip,patient:42")).json()
    assert [(job["id"], job["tags"]) for job in listed["jobs"]] == [("b", ["patient:42", "vip"])]
    for wrong in ("a%20b", "", "a,,b"):
        assert (await api.ask("GET", f"{path}/jobs?tags={wrong}")).status_code == 422
    revived = await api.ask("POST", f"{path}/dead/revive", {"tags": ["patient:42"]})
    assert revived.json() == {"changed": 2, "complete": True}
    assert (await api.ask("POST", f"{path}/dead/revive", {"tags": []})).status_code == 422
    assert dead(raw, queue) == ["c"]


@pytest.mark.parametrize(
    "body", [{}, {"all": False}, {"ids": []}, {"ids": ["a"], "all": True}, {"task": "t", "all": True}]
)
async def test_request_without_dead_job_ids_is_refused(
    api: Caller, path: str, queue: str, raw: Any, body: dict[str, Any]
) -> None:
    bury(raw, queue, ["a"])
    for verb in ("revive", "drop"):
        assert (await api.ask("POST", f"{path}/dead/{verb}", body)).status_code == 422
    assert dead(raw, queue) == ["a"]


async def test_a_calendar_is_set_listed_and_removed(api: Caller, path: str) -> None:
    body = {"days": ["2096-12-26", "2096-12-24..2096-12-25", "2097-01-01"]}
    assert (await api.ask("PUT", f"{path}/calendars/de", body)).json() == {"name": "de", "planned": 0}
    daily = {"rule": "@daily", "task": "report", "skip": "de"}
    assert (await api.ask("PUT", f"{path}/recurrences/daily", daily)).status_code == 201
    assert (await api.ask("PUT", f"{path}/calendars/de", body)).json() == {"name": "de", "planned": 1}
    assert (await api.ask("GET", f"{path}/calendars")).json() == {"calendars": [{"name": "de", **body}]}
    used = await api.ask("DELETE", f"{path}/calendars/de")
    assert (used.status_code, used.json()["code"]) == (409, "in-use")
    assert (await api.ask("DELETE", f"{path}/recurrences/daily")).status_code == 204
    assert (await api.ask("DELETE", f"{path}/calendars/de")).status_code == 204
    assert (await api.ask("DELETE", f"{path}/calendars/de")).status_code == 404
    for days in ([], ["soon"], ["2097-02-01..2097-01-01"], [" "]):
        assert (await api.ask("PUT", f"{path}/calendars/de", {"days": days})).status_code == 422
    assert (await api.ask("PUT", f"{path}/calendars/a:b", body)).status_code == 422


async def test_changing_or_removing_a_window_updates_waiting_jobs(api: Caller, path: str, queue: str, raw: Any) -> None:
    name, root = f"{path}/windows/nights", f"evsched:{{{queue}}}:"
    assert (await api.ask("PUT", name, {"window": "22:00-06:00 Europe/Berlin"})).json() == {
        "name": "nights",
        "checked": 0,
    }
    due = time.time() + 5000
    raw.hset(f"{root}job:a", "payload", '{"task":"t","window":"nights"}')
    for key in ("schedule", "deferred:nights"):
        raw.zadd(root + key, {"a": due})
    assert (await api.ask("PUT", name, {"window": "00:00-24:00 UTC"})).json() == {"name": "nights", "checked": 1}
    assert raw.zscore(root + "schedule", "a") < due
    listed = {"windows": [{"name": "nights", "window": "00:00-24:00 UTC"}]}
    assert (await api.ask("GET", f"{path}/windows")).json() == listed
    assert (await api.ask("DELETE", name)).status_code == 204
    assert (await api.ask("DELETE", name)).status_code == 404
    assert (await api.ask("PUT", name, {"window": "at night"})).status_code == 422


async def test_a_queue_is_paused_and_resumed(api: Caller, path: str) -> None:
    paused = await api.ask("POST", f"{path}/pause", {"until": LATER, "why": "the provider is down"})
    counts = (await api.ask("GET", path)).json()
    assert (counts["paused_until"], counts["paused_why"]) == (LATER, "the provider is down")
    assert (await api.ask("POST", f"{path}/resume")).json() == paused.json()
    assert (await api.ask("POST", f"{path}/resume")).json()["since"] is None
    for body in ({"until": 5}, {"why": "x" * 501}):
        assert (await api.ask("POST", f"{path}/pause", body)).status_code == 422
    assert (await api.ask("GET", path)).json()["paused"] is None


@pytest.mark.parametrize(
    ("method", "of", "body"),
    [
        ("POST", "pause", {}),
        ("PATCH", "limits", {"rate": 1}),
        ("PUT", "calendars/de", {"days": ["2096-12-26"]}),
        ("PUT", "windows/nights", {"window": "22:00-06:00 UTC"}),
    ],
)
async def test_unused_queue_is_refused_unless_the_request_creates_it(
    api: Caller, path: str, raw: Any, queue: str, method: str, of: str, body: Any
) -> None:
    before, misspelt = snapshot(raw, queue), f"{path[:-1]}xx"
    refused = await api.ask(method, f"{misspelt}/{of}", body)
    assert (refused.status_code, refused.json()["code"]) == (404, "no-such-queue")
    assert f"has no jobs, no workers and no recurrences: did you mean {queue}?" in refused.json()["detail"]
    assert "with create=true" in refused.json()["detail"]
    assert snapshot(raw, queue) == before
    assert not raw.keys(f"*{misspelt.rpartition('/')[2]}*")
    assert (await api.ask(method, f"{misspelt}/{of}?create=true", body)).status_code == 200
    assert (await api.ask(method, f"{misspelt}/{of}", body)).status_code == 200, "it can be changed"


async def test_a_queue_that_was_never_used_is_not_resumed(api: Caller) -> None:
    refused = await api.ask("POST", "/v1/queues/defualt/resume")
    assert (refused.status_code, refused.json()["code"]) == (404, "no-such-queue")


async def test_a_queue_that_the_server_is_started_for_need_not_be_created(server: EmbeddedRedis, queue: str) -> None:
    async with calling(server.url, queues=(queue,)) as api:
        assert (await api.ask("POST", f"/v1/queues/{queue}/pause", {})).status_code == 200


async def test_limits_are_set_listed_and_removed(api: Caller, path: str) -> None:
    def rows(response: Any) -> set[tuple[str | None, str, float | None]]:
        return {(row["group"], row["limit"], row["value"]) for row in response.json()["limits"]}

    await api.ask("PATCH", f"{path}/limits", {"concurrency": 20, "rate": 2.5})
    await api.ask("PATCH", f"{path}/limits", {"group": "origin:*", "concurrency": 5})
    every = await api.ask("PATCH", f"{path}/limits", {"task": "mail", "rate": 1})
    wanted = {
        (None, "concurrency", 20),
        (None, "rate", 2.5),
        ("origin:*", "concurrency", 5),
        ("task:mail", "rate", 1),
    }
    assert rows(every) == rows(await api.ask("GET", f"{path}/limits", token=READ)) == wanted
    left = await api.ask("PATCH", f"{path}/limits", {"concurrency": None})
    assert rows(left) == wanted - {(None, "concurrency", 20)}
    elsewhere = {"group": "origin:127.0.0.1:8002", "rate": 1}
    for body in ({}, {"group": "a"}, {"rate": -1}, {"weight": 2}, {"task": "t", "group": "g", "rate": 1}, elsewhere):
        assert (await api.ask("PATCH", f"{path}/limits", body)).status_code == 422
    assert rows(await api.ask("GET", f"{path}/limits")) == rows(left)


@pytest.mark.parametrize(
    ("method", "of", "body"),
    [
        ("POST", "pause", {}),
        ("POST", "resume", None),
        ("PATCH", "limits", {"rate": 1}),
        ("POST", "dead/revive", {"all": True}),
        ("POST", "dead/drop", {"all": True}),
        ("PUT", "calendars/de", {"days": ["2096-12-26"]}),
        ("DELETE", "calendars/de", None),
        ("PUT", "windows/nights", {"window": "22:00-06:00 UTC"}),
        ("DELETE", "windows/nights", None),
    ],
)
async def test_a_token_that_may_read_changes_nothing(api: Caller, path: str, method: str, of: str, body: Any) -> None:
    refused = await api.ask(method, f"{path}/{of}", body, token=READ)
    assert (refused.status_code, refused.json()["code"]) == (403, "missing-right")


async def test_python_client_manages_windows_limits_and_pauses(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    app = App(server.url, queue=queue)
    client = app.client
    bury(raw, queue, ["a", "b", "c"])
    assert (await client.revive(queue, ["a"]), await client.drop(queue, ["b", "c"])) == (1, 2)
    with pytest.raises(JobMissing):
        await client.drop(queue, ["a"])
    since = await client.pause(queue, until=LATER, why="the provider is down")
    limits = await client.limit(queue, group="alice", concurrency=2, weight=3)
    assert (limits.paused, limits.paused_why, limits.groups) == (
        since,
        "the provider is down",
        {"alice": {"concurrency": 2, "weight": 3}},
    )
    assert await client.resume(queue) == since
    await client.limit(queue, group="alice", concurrency=None, weight=None)
    assert await client.limits(queue) == Limits()
    assert await client.set_calendar(queue, "de", [date(2096, 12, 26)]) == 0
    assert await client.calendars(queue) == {"de": "2096-12-26"}
    await client.remove_calendar(queue, "de")
    with pytest.raises(ConfigError, match="has no days"):
        await client.set_calendar(queue, "de", [])
    for wrong in (["2096-12-26"], [date(2096, 12, 26), 5], 5):
        with pytest.raises(ConfigError, match=r"write date\(2030, 1, 1\)"):
            await client.set_calendar(queue, "de", wrong)  # pyright: ignore[reportArgumentType] - the mistake
    assert await client.set_window(queue, "nights", "22:00-06:00 UTC") == 0
    assert await client.windows(queue) == {"nights": "22:00-06:00 UTC"}
    raw.hset(f"evsched:{{{queue}}}:recurrence:r", mapping={"rule": "@daily", "window": "nights", "payload": "{}"})
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"r": 4e9})
    with pytest.raises(InUse, match="window nights is in use by r"):
        await client.remove_window(queue, "nights")
    await app.close()


@pytest.mark.parametrize("loop", [True, False])
async def test_python_is_about_shards_that_the_app_does_not_declare(
    server: EmbeddedRedis, queue: str, raw: Any, loop: bool
) -> None:
    raw.zadd("evsched:{}:shards", {queue: 2})
    parts = [f"{queue}:0", f"{queue}:1", queue]
    app = App(server.url, queue="another")
    client: Client | SyncClient = app.client if loop else app.client.without_loop()

    async def ask(method: str, *args: Any, **kwargs: Any) -> Any:
        answer = getattr(client, method)(queue, *args, **kwargs)
        return await answer if loop else answer

    def paused() -> list[str]:
        return [part for part in parts if raw.hexists(f"evsched:{{{part}}}:limits", "paused")]

    await ask("pause")
    assert paused() == parts
    await ask("resume")
    assert paused() == []
    assert (await ask("limit", concurrency=7)).queue == {"concurrency": 7}
    assert [raw.hget(f"evsched:{{{part}}}:limits", "concurrency") for part in parts] == [b"3", b"2", b"2"]
    assert (await ask("limits")).queue == {"concurrency": 7}
    for part in parts:
        raw.zadd(f"evsched:{{{part}}}:schedule", {f"waits-{part}": LATER})
        raw.hset(f"evsched:{{{part}}}:job:waits-{part}", "payload", '{"task":"mail"}')
        bury(raw, part, [f"{name}-{part}" for name in "abc"])
    dead_of_all = {f"{name}-{part}" for part in parts for name in "abc"}
    assert {match.id for match in await ask("find", Filter(task="mail"), "dead")} == dead_of_all
    assert (await ask("cancel_matching", Filter(task="mail"))).changed == 3
    assert (await ask("revive", [f"a-{part}" for part in parts]), await ask("drop", [f"b-{parts[0]}"])) == (3, 1)
    with pytest.raises(JobMissing):
        await ask("drop", [f"c-{parts[0]}", f"b-{parts[0]}"])
    assert (await ask("drop_matching", Filter(task="mail"))).changed == 5
    await ask("set_window", "nights", "22:00-06:00 UTC")
    assert app.shards.counts == {"another": 0}
    raw.zrem("evsched:{}:shards", queue)
    client.close() if isinstance(client, SyncClient) else None
    await app.close()


async def test_non_string_argument_is_refused_with_a_sentence(server: EmbeddedRedis, queue: str) -> None:
    app = App(server.url, queue=queue)
    client = app.client
    with pytest.raises(ConfigError, match="why is 5: give a string"):
        await client.pause(queue, why=5)  # pyright: ignore[reportArgumentType] - the mistake
    for method in (client.explain, client.status, client.cancel, client.reschedule):
        with pytest.raises(ConfigError, match="id is 5: give a string"):
            await method(queue, 5)  # pyright: ignore[reportArgumentType] - the mistake
    await app.close()


async def test_acts_of_callers_are_listed_with_the_digest_of_their_token(
    api: Caller, path: str, queue: str, raw: Any
) -> None:
    await api.ask("POST", f"{path}/pause", {"why": "the provider is down"})
    await api.ask("DELETE", f"{path}/jobs/nobody")
    await api.ask("DELETE", f"{path}/jobs/later")
    bury(raw, queue, ["d1", "d2", "d3"])
    await api.ask("POST", f"{path}/dead/drop", {"ids": ["d1", "d2"]})
    await api.ask("POST", f"{path}/dead/revive", {"task": "mail"})
    await api.ask("POST", f"{path}/jobs", {"task": "t", "due": LATER})
    found = (await api.ask("GET", f"{path}/audit", token=READ)).json()
    rows = [(act["act"], act["count"], act["ids"], act["from"]) for act in found["acts"]]
    assert rows == [
        ("revive", 1, ["d3"], "api"),
        ("drop", 2, ["d1", "d2"], "api"),
        ("cancel", 1, ["later"], "api"),
        ("pause", None, [], "api"),
    ]
    who = f"token {sha256(WRITE.encode()).hexdigest()[:8]}"
    assert ({act["who"] for act in found["acts"]}, found["complete"]) == ({who}, True)
    some = (await api.ask("GET", f"{path}/audit?limit=1&id=d2&since=1000000000&until=2100-01-01T00:00:00Z")).json()
    assert [act["act"] for act in some["acts"]] == ["drop"]
    assert (await api.ask("GET", f"{path}/audit?who=eve")).json() == {"acts": [], "complete": True}
    assert (await api.ask("GET", f"{path}/audit?act=pause&limit=1")).json()["acts"][0]["what"] == {
        "why": "the provider is down"
    }
    assert (await api.ask("GET", f"{path}/audit?limit=1")).json()["complete"] is False


@pytest.fixture
async def ended(config: Config, queue: str) -> None:
    """End three jobs: a, b and c, of the tasks t, u and t."""
    client = Client(config.url)
    for name, task in (("a", "t"), ("b", "u"), ("c", "t")):
        payload = f'{{"task":"{task}","tags":["patient:{name}"]}}'.encode()
        await client.enqueue(queue, [New(name, payload, due=LATER, group=name)])
        await client.cancel(queue, name)
    await client.close()


@pytest.mark.usefixtures("ended")
async def test_jobs_that_have_ended_are_listed_in_pages(api: Caller, path: str) -> None:
    first = (await api.ask("GET", f"{path}/history?limit=2", token=READ)).json()
    assert [(job["id"], job["outcome"]) for job in first["jobs"]] == [("c", "cancelled"), ("b", "cancelled")]
    rest = (await api.ask("GET", f"{path}/history?limit=2&cursor={first['cursor']}")).json()
    assert ([job["id"] for job in rest["jobs"]], rest["cursor"]) == (["a"], None)
    for condition, ids in (
        ("task=t", ["c", "a"]),
        ("id=b", ["b"]),
        ("group=a", ["a"]),
        ("tag=patient:c", ["c"]),
        ("outcome=done", []),
        ("error=Timeout", []),
        ("until=1000000000", []),
        ("since=2001-09-09T01:46:40Z", ["c", "b", "a"]),
    ):
        found = (await api.ask("GET", f"{path}/history?{condition}")).json()
        assert [job["id"] for job in found["jobs"]] == ids, condition
    for wrong in ("cursor=x", "outcome=failed", "since=soon", "limit=0"):
        refused = await api.ask("GET", f"{path}/history?{wrong}")
        assert (refused.status_code, wrong.partition("=")[0] in refused.json()["detail"]) == (422, True)


@pytest.mark.usefixtures("ended")
async def test_jobs_that_have_ended_are_counted_by_task(api: Caller, path: str) -> None:
    found = (await api.ask("GET", f"{path}/history/counts", token=READ)).json()
    assert [(one["task"], one["ended"], one["cancelled"]) for one in found["counts"]] == [("t", 2, 2), ("u", 1, 1)]
    some = (await api.ask("GET", f"{path}/history/counts?task=u&since=1000000000&until=2100-01-01T00:00:00Z")).json()
    assert [one["task"] for one in some["counts"]] == ["u"]
    assert (await api.ask("GET", f"{path}/history/counts?until=1000000000")).json() == {"counts": []}


async def test_acts_of_callers_without_tokens_are_those_of_anyone(config: Config, path: str) -> None:
    async with calling(config.url, api_read_tokens=(), api_write_tokens=(), api_open_hosts=("*",)) as api:
        await api.ask("POST", f"{path}/pause", {}, token=None)
        (act,) = (await api.ask("GET", f"{path}/audit", token=None)).json()["acts"]
    assert (act["who"], act["from"], act["act"]) == ("anyone", "api", "pause")
