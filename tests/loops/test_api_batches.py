"""The HTTP interface: batches. Each answer is held against the OpenAPI document (tests/support/api.py)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evsched import App
from evsched.api import batch_handlers
from evsched.batches.node import StoredNode, read_node
from evsched.config import Config
from evsched.errors import StoreDown
from evsched.jobs.job import encode
from evsched.store.batch_calls import Counted, PlanRow
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.api import READ, Caller, calling
from tests.support.patience import PATIENCE
from tests.support.system import system

ROOT = Path(__file__).parents[2]
KEY = {"Idempotency-Key": "8e03978e-40d5-43dd"}
JOB = {"task": "load", "delay": 5000}


@pytest.fixture
def batches(queue: str) -> str:
    return f"/v1/queues/{queue}/batches"


async def opened(api: Caller, batches: str, batch: str = "b", **body: Any) -> str:
    """Open a batch; return its path."""
    made = await api.ask("PUT", f"{batches}/{batch}", body)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == f"{batches}/{batch}"
    return f"{batches}/{batch}"


async def test_a_batch_is_opened_filled_closed_and_ends(
    api: Caller, batches: str, queue: str, sender: BatchingSender
) -> None:
    call = {"task": "summarize", "priority": 7, "tags": ["x"]}
    path = await opened(api, batches, on_done=call, on_failed={"task": "alarm", "queue": "ops"}, tags=["nightly"])
    added = await api.ask("POST", f"{path}/jobs", {"jobs": [JOB, {**JOB, "args": [1]}]})
    assert added.status_code == 201
    assert [one["id"] for one in added.json()["jobs"]] == ["b.0", "b.1"]
    found = (await api.ask("GET", path, token=READ)).json()
    assert (found["state"], found["total"], found["open"], found["tags"]) == ("open", 2, 2, ["nightly"])
    assert (await api.ask("POST", f"{path}/close")).json()["state"] == "running"
    store = Store(queue)
    assert await sender.send(store.batch_count([("b", 0, b"\x01\x01")])) == [Counted("b", "done")]
    assert (await api.ask("GET", path)).json()["state"] == "done"
    record = await sender.send(store.batch("b"))
    assert record is not None
    assert [(one.outcome, one.task, one.queue) for one in record.callbacks] == [
        ("done", "summarize", queue),
        ("failed", "alarm", "ops"),
    ]
    late = await api.ask("POST", f"{path}/jobs", {"jobs": [JOB]})
    assert (late.status_code, late.json()["code"]) == (409, "batch-over")


async def test_a_batch_is_paused_and_resumed(api: Caller, batches: str) -> None:
    path = await opened(api, batches)
    paused = await api.ask("POST", f"{path}/pause", {"why": "the disk is full"})
    assert (paused.status_code, paused.json()["paused_why"]) == (200, "the disk is full")
    since = paused.json()["paused"]
    assert (await api.ask("GET", batches, token=READ)).json()["batches"][0]["paused"] == since > 0
    assert (await api.ask("POST", f"{path}/pause", {"until": since - 1})).status_code == 422
    assert (await api.ask("POST", f"{path}/resume")).json()["paused"] is None
    assert (await api.ask("POST", f"{path}/pause", {}, token=READ)).status_code == 403
    await api.ask("POST", f"{path}/close")
    late = await api.ask("POST", f"{path}/pause", {})
    assert (late.status_code, late.json()["code"]) == (409, "batch-over")


async def test_opening_a_batch_again_changes_nothing_and_another_of_its_id_is_refused(
    api: Caller, batches: str
) -> None:
    path = await opened(api, batches, tags=["a"])
    await api.ask("POST", f"{path}/jobs", {"jobs": [JOB]})
    again = await api.ask("PUT", path, {"tags": ["a"]})
    assert (again.status_code, again.json()["total"]) == (200, 1)
    other = await api.ask("PUT", path, {"tags": ["b"]})
    assert (other.status_code, other.json()["code"]) == (409, "job-exists")


async def test_batches_and_their_jobs_are_listed_in_pages(
    api: Caller, batches: str, queue: str, sender: BatchingSender
) -> None:
    for name in ("old", "mid", "new"):
        await opened(api, batches, name)
    first = (await api.ask("GET", f"{batches}?limit=2")).json()
    rest = (await api.ask("GET", f"{batches}?limit=2&cursor={first['cursor']}")).json()
    assert [one["id"] for one in first["batches"] + rest["batches"]] == ["new", "mid", "old"]
    assert rest["cursor"] is None
    await api.ask("POST", f"{batches}/new/jobs", {"jobs": [JOB] * 3 + [{**JOB, "id": "mine"}]})
    await sender.send(Store(queue).batch_add("new", "x", 1, queue, ids=["/inner"]))
    await sender.send(Store(queue).batch_count([("new", 1, b"\x02")]))
    page = (await api.ask("GET", f"{batches}/new/jobs?limit=2")).json()
    assert [(one["ordinal"], one["outcome"]) for one in page["jobs"]] == [(0, "open"), (1, "dead")]
    page = (await api.ask("GET", f"{batches}/new/jobs?cursor={page['cursor']}")).json()
    assert [(one["id"], one["batch"]) for one in page["jobs"]][1:] == [("mine", False), ("inner", True)]
    assert page["cursor"] is None
    dead = (await api.ask("GET", f"{batches}/new/jobs?outcome=dead")).json()
    assert [one["ordinal"] for one in dead["jobs"]] == [1]


async def test_nodes_of_a_graph_are_listed_in_pages(
    api: Caller, batches: str, queue: str, sender: BatchingSender
) -> None:
    path, store = await opened(api, batches, "g"), Store(queue)
    payload: dict[str, Any] = {"task": "t", "args": [], "kwargs": {}, "retention": 1.0}
    rows = [
        PlanRow(encode(StoredNode(name, queue, payload, 1.0)), f"g.{name}", queue, after)
        for name, after in (("a", ()), ("b", ()), ("c", (0, 1)))
    ]
    await sender.send(store.batch_plan("g", 0, rows))
    await api.ask("POST", f"{path}/close")
    await sender.send(store.batch_count([("g", 0, b"\x01")]))
    first = (await api.ask("GET", f"{path}/nodes?limit=2", token=READ)).json()
    rest = (await api.ask("GET", f"{path}/nodes?limit=2&cursor={first['cursor']}")).json()
    assert [(node["name"], node["outcome"]) for node in first["nodes"]] == [("a", "done"), ("b", "open")]
    (last,) = rest["nodes"]
    assert (last["id"], last["ordinal"], last["after"], last["outcome"]) == ("g.c", 2, [0, 1], "waiting")
    assert (last["task"], last["queue"], rest["cursor"]) == ("t", queue, None)
    assert (await api.ask("GET", path)).json()["nodes"] == 3
    plain = await opened(api, batches)
    assert (await api.ask("GET", f"{plain}/nodes")).json() == {"nodes": [], "cursor": None}
    assert (await api.ask("GET", f"{batches}/never/nodes")).status_code == 404


async def test_a_batch_is_cancelled(api: Caller, batches: str) -> None:
    path = await opened(api, batches)
    await api.ask("POST", f"{path}/jobs", {"jobs": [JOB]})
    found = await api.ask("DELETE", path)
    assert (found.status_code, found.json()["stop"]) == (202, "cancelled")
    empty = await opened(api, batches, "empty")
    assert (await api.ask("DELETE", empty)).status_code == 200
    (act, _) = (await api.ask("GET", f"{batches.removesuffix('/batches')}/audit")).json()["acts"]
    assert (act["act"], act["from"], act["what"]) == ("cancel", "api", {"batch": "empty"})


async def test_repeated_request_adds_its_jobs_once_whatever_became_of_the_batch(
    api: Caller, batches: str, queue: str, sender: BatchingSender
) -> None:
    path, body = await opened(api, batches), {"jobs": [JOB, {**JOB, "id": "mine"}]}
    first = await api.ask("POST", f"{path}/jobs", body, headers=KEY)
    assert first.status_code == 201
    for job in first.json()["jobs"]:
        assert (await api.ask("DELETE", f"/v1/queues/{queue}/jobs/{job['id']}")).status_code == 204
    again = await api.ask("POST", f"{path}/jobs", body, headers=KEY)
    assert (again.status_code, again.text) == (201, first.text)
    assert (await api.ask("GET", path)).json()["total"] == 2
    await api.ask("POST", f"{path}/close")
    await sender.send(Store(queue).batch_count([("b", 0, b"\x03\x03")]))
    assert (await api.ask("GET", path)).json()["state"] == "failed", "no reservation is left"
    assert (await api.ask("POST", f"{path}/jobs", body, headers=KEY)).text == first.text
    other = await api.ask("POST", f"{path}/jobs", {"jobs": [JOB]}, headers=KEY)
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")


async def test_requests_of_one_key_at_the_same_time_add_their_jobs_once(
    server: EmbeddedRedis, api: Caller, batches: str
) -> None:
    path, body = await opened(api, batches), {"jobs": [JOB] * 5}
    async with calling(server.url) as other:
        asked = (caller.ask("POST", f"{path}/jobs", body, headers=KEY) for caller in (api, other) * 5)
        answers = await asyncio.gather(*asked)
    assert len({answer.text for answer in answers}) == 1
    jobs = (await api.ask("GET", f"{path}/jobs?limit=99")).json()["jobs"]
    ids = [one["id"] for one in answers[0].json()["jobs"]]
    assert {one["id"] for one in jobs} == {*ids}


@pytest.mark.extra
async def test_key_with_an_id_that_is_taken_keeps_the_other_job(api: Caller, batches: str, queue: str) -> None:
    path, taken = await opened(api, batches), {**JOB, "id": "taken"}
    await api.ask("POST", f"/v1/queues/{queue}/jobs", taken)
    refused = await api.ask("POST", f"{path}/jobs", {"jobs": [taken]}, headers=KEY)
    assert (refused.status_code, refused.json()["code"]) == (409, "job-exists")
    body = {"jobs": [taken, JOB], "on_conflict": "keep"}
    first = await api.ask("POST", f"{path}/jobs", body, headers=KEY)
    assert first.status_code == 200
    assert (await api.ask("POST", f"{path}/jobs", body, headers=KEY)).text == first.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/never", None, 404, "not-found"),
        ("POST", "/never/close", None, 404, "not-found"),
        ("DELETE", "/never", None, 404, "not-found"),
        ("POST", "/never/jobs", {"jobs": [JOB]}, 404, "not-found"),
        ("GET", "/never/jobs", None, 404, "not-found"),
        ("PUT", "/" + "x" * 181, {}, 422, "invalid"),
        ("PUT", "/b", {"expires": -1}, 422, "invalid"),
        ("PUT", "/b", {"on_done": {"task": ""}}, 422, "invalid"),
        ("PUT", "/b", {"on_end": {"task": "t"}}, 422, "invalid"),
        ("POST", "/b/jobs", {"jobs": [JOB], "on_conflict": "replace"}, 422, "invalid"),
        ("POST", "/b/jobs", {"jobs": []}, 422, "invalid"),
        ("GET", "/b/jobs?outcome=missing", None, 422, "invalid"),
    ],
)
async def test_wrong_request_about_a_batch_is_refused(
    api: Caller, batches: str, method: str, path: str, body: Any, status: int, code: str
) -> None:
    refused = await api.ask(method, batches + path, body)
    assert (refused.status_code, refused.json()["code"]) == (status, code)


@pytest.mark.extra
async def test_api_that_serves_some_queues_refuses_others_in_the_body(
    server: EmbeddedRedis, batches: str, queue: str
) -> None:
    async with calling(server.url, queues=(queue,)) as api:
        refused = await api.ask("PUT", f"{batches}/b", {"on_done": {"task": "t", "queue": "other"}})
        assert (refused.status_code, refused.json()["code"]) == (403, "queue-not-allowed")
        path = await opened(api, batches)
        refused = await api.ask("POST", f"{path}/jobs", {"jobs": [JOB], "queue": "other"})
        assert (refused.status_code, refused.json()["code"]) == (403, "queue-not-allowed")
        refused = await api.ask("PUT", f"{batches}/c", {}, token=READ)
        assert refused.status_code == 403


GRAPH = re.search(r"--json '({\"nodes\": .*?)'\n```", (ROOT / "docs/api.md").read_text(), re.S)
"""The example of the page of the API."""


async def test_graph_of_the_example_runs(config: Config, app: App, api: Caller, batches: str) -> None:
    @app.task
    async def fetch(url: str) -> list[str]:  # pyright: ignore[reportUnusedFunction]
        return [f"{url}/{at}" for at in range(2)]

    @app.task
    async def check(page: str, strict: bool = False) -> int:  # pyright: ignore[reportUnusedFunction]
        return len(page) + strict

    @app.task
    async def report(title: str, errors: list[int], pages: list[str]) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"{title}: {errors} {pages}"

    assert GRAPH is not None
    body = msgspec.json.decode(GRAPH[1])
    async with system(config, app):
        path = await opened(api, batches, "site-42", **body)
        run = app.known_batch("site-42")
        assert await run.result("report", timeout=PATIENCE) == (
            "January: [22, 22] ['https://example.com/0', 'https://example.com/1']"
        )
        await run.wait(PATIENCE)
        again = await api.ask("PUT", path, body)
        assert (again.status_code, again.json()["state"], again.json()["nodes"]) == (200, "done", 3)
    nodes = (await api.ask("GET", f"{path}/nodes")).json()["nodes"]
    assert [(one["name"], one["after"], one["each"]) for one in nodes] == [
        ("pages", [], False),
        ("errors", [0], True),
        ("report", [1, 0], False),
    ]


async def test_repeated_request_finishes_a_graph_that_the_first_did_not_write(
    api: Caller, batches: str, queue: str, sender: BatchingSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"nodes": [{"name": "a", "task": "t"}, {"name": "b", "task": "t", "after": {"x": "a"}, "delay": 9}]}

    async def fail(*_: object) -> None:
        raise StoreDown(kind="timeout", unsure=True)

    with monkeypatch.context() as patch:
        patch.setattr(batch_handlers, "write_nodes", fail)
        assert (await api.ask("PUT", f"{batches}/g", body)).status_code == 503
    again = await api.ask("PUT", f"{batches}/g", body)
    assert (again.status_code, again.json()["state"], again.json()["total"]) == (200, "running", 2)
    (text,) = await sender.send(Store(queue).batch_nodes("g", [1]))
    node = read_node(text)
    assert node is not None
    assert (node.delay, node.limit, [(take.node, take.name) for take in node.takes]) == (9.0, 0, [("a", "x")])
    assert node.payload == {"task": "t", "args": [], "kwargs": {}, "retention": node.payload["retention"]}
    other = await api.ask("PUT", f"{batches}/g", {"nodes": body["nodes"][:1]})
    assert (other.status_code, other.json()["code"]) == (409, "job-exists")


NODE: dict[str, Any] = {"name": "a", "task": "t"}


@pytest.mark.parametrize(
    ("nodes", "detail"),
    [
        ([NODE, NODE], "nodes[1]: node a is added twice"),
        ([NODE | {"name": "7"}], "nodes[0]: node '7': its name must have"),
        ([NODE | {"after": "b"}], "node a stands after b, which is not a node"),
        ([NODE | {"after": ["a"]}], "the graph has a circle: a -> a"),
        ([NODE | {"after": ["b"], "take": ["c"]}], "nodes[0]: node a: take names c"),
        ([NODE | {"after": ["b"], "kwargs": {"b": 1}}], "nodes[0]: node a: the argument b is given"),
        ([NODE | {"over": "b", "despite_failure": True}], "nodes[0]: over and despite_failure"),
        ([NODE | {"window": "whenever else"}], "nodes[0]: "),
        ([NODE | {"id": "x"}], "unknown field `id`"),
        ([NODE | {"over": "b", "limit": 10_001}], "limit"),
        ([], "length >= 1"),
        ([NODE | {"name": f"n{at}"} for at in range(1001)], "the request has 1001 nodes, more than 1000"),
    ],
)
async def test_wrong_graph_is_refused_and_nothing_is_written(
    api: Caller, batches: str, nodes: list[dict[str, Any]], detail: str
) -> None:
    refused = await api.ask("PUT", f"{batches}/g", {"nodes": nodes})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert detail in refused.json()["detail"]
    assert (await api.ask("GET", f"{batches}/g")).status_code == 404


@pytest.mark.extra
async def test_api_that_serves_some_queues_refuses_nodes_of_others(
    server: EmbeddedRedis, batches: str, queue: str
) -> None:
    async with calling(server.url, queues=(queue,)) as api:
        refused = await api.ask("PUT", f"{batches}/g", {"nodes": [NODE | {"queue": "other"}]})
        assert (refused.status_code, refused.json()["code"]) == (403, "queue-not-allowed")
