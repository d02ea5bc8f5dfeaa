"""The HTTP interface as HTTP: its document, paths and methods, hostile requests, limits, and Redis that is down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.applications import Starlette
from starlette.routing import Mount

from evsched.api import application, endpoints, request_body
from evsched.api.application import create
from evsched.api.endpoints import OPERATIONS
from evsched.client import operations
from evsched.config import Config
from evsched.transport.embedded import EmbeddedRedis
from tests.support.api import LATER, READ, WORK, WRITE, Caller, calling, check
from tests.support.patience import PATIENCE

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def jobs(queue: str) -> str:
    return f"/v1/queues/{queue}/jobs"


@pytest.mark.extra
async def test_the_document_is_openapi_and_has_every_operation(api: Caller) -> None:
    found = await api.ask("GET", "/openapi.json", token=None)
    document = found.json()
    OpenAPIV31SpecValidator(document).validate()
    listed = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(one.path, one.method) for one in OPERATIONS}
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids))
    assert all(one["summary"] for methods in document["paths"].values() for one in methods.values())


async def test_api_can_be_mounted_in_another_application(server: EmbeddedRedis, queue: str) -> None:
    inner = create(Config(url=server.url, api_open_hosts=("x",)))
    transport = httpx.ASGITransport(Starlette(routes=[Mount("/scheduler", inner)]))
    async with (
        inner.router.lifespan_context(inner),
        httpx.AsyncClient(transport=transport, base_url="http://x") as http,
    ):
        made = await http.post(f"/scheduler/v1/queues/{queue}/jobs", json={"task": "t", "due": LATER})
        assert made.status_code == 201
        assert (await http.get(made.headers["location"])).json()["due"] == LATER
        assert (await http.get("/scheduler/openapi.json")).json()["servers"] == [{"url": "/scheduler"}]
        missing = await http.get("/scheduler/v1/nothing")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/queues/", "/v2/queues", "/v1/queues/q/jobs/a/b", "/V1/queues"]
)
async def test_unknown_path_is_404(api: Caller, path: str) -> None:
    assert (await api.ask("GET", path)).json()["code"] == "no-such-path"


async def test_unsupported_method_is_405(api: Caller, jobs: str) -> None:
    for path, methods in (
        (jobs, {"GET", "HEAD", "POST"}),
        (f"{jobs}/a", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("/v1/queues", {"GET", "HEAD"}),
        ("/openapi.json", {"GET", "HEAD"}),
    ):
        refused = await api.client.put(path, json={})
        assert refused.status_code == 405
        assert {name.strip() for name in refused.headers["allow"].split(",")} == methods
        check("PUT", path, refused)


async def test_head_answers_as_get_does(api: Caller, jobs: str) -> None:
    head = await api.client.head(jobs, headers={"Authorization": f"Bearer {READ}"})
    assert head.status_code == 200
    assert (await api.client.head(jobs)).status_code == 401


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1", 400),
        (b'{"task":5', 400),
        (b'{"no-field":1', 400),
        (b'{"no-field":' + b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b'{"task":"\xff"}', 400),
        (b'{"task":"\\ud800"}', 400),
        (b'{"task":"t","args":[NaN]}', 400),
        (b'{"task":"t","args":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"task":"t","due":1e999}', 422),
        (b'{"task":"t"} {"task":"t"}', 400),
        (b"null", 422),
        (b'"task"', 422),
        (b'{"task":"t","args":[' + b"9" * 5000 + b"]}", 422),
    ],
    ids=range(16),
)
async def test_a_body_that_is_not_json_is_refused(
    api: Caller, jobs: str, content: bytes, status: int, raw: Any
) -> None:
    refused = await api.ask("POST", jobs, content=content, headers=JSON)
    assert refused.status_code == status
    assert raw.dbsize() == 0


async def test_an_id_that_is_not_valid_is_refused_in_words(api: Caller, jobs: str) -> None:
    refused = await api.ask("POST", jobs, {"task": "t", "id": "a/b"})
    assert refused.status_code == 422
    assert refused.json()["detail"] == (
        "the body does not fit: Expected `str` of 1 to 200 of A-Z a-z 0-9 . _ : @ -, and not . or .. - at `$.id`"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (rb'{"task":"\ud800"}', "half of a surrogate pair"),
        (rb'{"task":"\udc00 and more"}', "half of a surrogate pair"),
        (rb'{"task":"\ud83d\ude00\uD83D"}', "half of a surrogate pair"),
        (rb'{"task":"\ud83d\ude00', "truncated"),
        (rb'{"task":"\\ud800', "truncated"),
        (b"", "the request has no body"),
    ],
)
async def test_malformed_body_is_refused_with_the_reason(api: Caller, jobs: str, content: bytes, words: str) -> None:
    refused = await api.ask("POST", jobs, content=content, headers=JSON)
    assert (refused.status_code, refused.json()["code"]) == (400, "not-json")
    assert words in refused.json()["detail"]
    accepted = await api.ask("POST", jobs, content=rb'{"task":"\ud83d\ude00 \\ud800"}', headers=JSON)
    assert accepted.status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_a_body_in_another_format_is_refused(api: Caller, jobs: str, headers: dict[str, str]) -> None:
    refused = await api.ask("POST", jobs, content=b'{"task":"t"}', headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (415, "not-json")
    accepted = {"Content-Type": 'Application/JSON; charset="UTF-8"'}
    assert (await api.ask("POST", jobs, content=b'{"task":"t"}', headers=accepted)).status_code == 201


async def test_a_body_that_is_too_long_is_refused_and_discarded(
    server: EmbeddedRedis, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "_MOST", 8192)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1024
            yield b" " * 1024

    async with calling(server.url, api_body_cap=4096) as api:
        refused = await api.ask("POST", jobs, content=endless(), headers=JSON)
        assert (refused.status_code, refused.json()["code"]) == (413, "too-long")
        assert refused.headers["connection"] == "close"
        assert 4096 + 8192 <= sent <= 4096 + 8192 + 3072, "what is read has a limit"
        for length in ("4097", "9" * 30):
            long = await api.ask("POST", jobs, content=b"", headers={**JSON, "Content-Length": length})
            assert long.status_code == 413
        exact = b'{"task":"t"}'.ljust(4096)
        assert (await api.ask("POST", jobs, content=exact, headers=JSON)).status_code == 201


async def test_wait_for_the_rest_of_a_body_has_a_limit(
    server: EmbeddedRedis, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "_SECONDS", 0.05)

    async def silent() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with calling(server.url) as api:
        refused = await api.ask("POST", jobs, content=silent(), token=None)
        assert (refused.status_code, refused.headers["connection"]) == (401, "close")


async def test_a_small_body_that_was_not_read_costs_no_connection(api: Caller, jobs: str) -> None:
    refused = await api.ask("POST", jobs, {"task": "t"}, token=None)
    assert (refused.status_code, "connection" in refused.headers) == (401, False)
    waits = await api.ask("POST", jobs, {"task": "t"}, token=None, headers={"Expect": "100-continue"})
    assert (waits.status_code, waits.headers["connection"]) == (401, "close"), "it is not asked for"


async def test_callers_without_a_token_are_limited_and_do_not_slow_others(server: EmbeddedRedis, jobs: str) -> None:
    async with calling(server.url, api_unknown_rate=3) as api:
        guesses = [await api.ask("GET", jobs, token=f"guess-{n}-is-not-a-token") for n in range(8)]
        assert [one.status_code for one in guesses[:3]] == [401] * 3
        late = [one for one in guesses if one.status_code == 429]
        assert late
        assert late[0].headers["retry-after"] == "1"
        assert (await api.ask("GET", jobs)).status_code == 200
        for path in ("/healthz", "/readyz"):
            assert (await api.ask("GET", path, token=None)).status_code == 200


async def test_without_tokens_pages_of_other_origins_are_refused(server: EmbeddedRedis, queue: str) -> None:
    trigger = f"/v1/queues/{queue}/recurrences/r/trigger"
    async with calling(server.url, api_open_hosts=("api",)) as api:
        for origin, status in (("http://evil.example", 403), ("null", 403), ("http://api", 404)):
            assert (await api.ask("POST", trigger, headers={"Origin": origin})).status_code == status
        assert (await api.ask("POST", trigger, token=None)).status_code == 404
    async with calling(server.url) as api:
        assert (await api.ask("POST", trigger, headers={"Origin": "http://evil.example"})).status_code == 404


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        ("evil.example:8421", ("localhost",), 403),
        ("127.0.0.1.evil.example", ("localhost",), 403),
        ("localhost.evil.example", ("localhost",), 403),
        ("", ("localhost",), 403),
        ("[::1", ("localhost",), 403),
        ("evil.example", ("jobs.example",), 403),
        ("127.0.0.1:8420", ("localhost",), 404),
        ("[::1]:8420", ("localhost",), 404),
        ("LocalHost:8420", ("localhost",), 404),
        ("jobs.example", ("jobs.example",), 404),
        ("evil.example", ("*",), 404),
    ],
)
async def test_without_tokens_it_answers_to_known_names_alone(
    server: EmbeddedRedis, queue: str, host: str, allowed: tuple[str, ...], status: int
) -> None:
    """A page whose name leads to this machine has the same origin, so its browser would send anything."""
    path, headers = f"/v1/queues/{queue}/recurrences/r/trigger", {"Host": host, "Origin": f"http://{host}"}
    async with calling(server.url, api_open_hosts=allowed) as api:
        answer = await api.ask("POST", path, token=None, headers=headers)
    assert answer.status_code == status
    assert (answer.json()["code"] == "other-host") is (status == 403)


@pytest.mark.parametrize(("token", "path"), [(None, "jobs"), ("guess-of-a-stranger-000", "jobs"), (WRITE, "nothing")])
async def test_unauthorized_endless_body_is_cut_off_early(
    server: EmbeddedRedis, queue: str, token: str | None, path: str
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    async with calling(server.url) as api:
        refused = await api.ask("POST", f"/v1/queues/{queue}/{path}", content=endless(), token=token, headers=JSON)
        assert (refused.status_code, refused.headers["connection"]) == (404 if path == "nothing" else 401, "close")
    assert 1024 * 1024 <= sent <= 1024 * 1024 + 131072


async def test_a_token_has_a_rate(server: EmbeddedRedis, jobs: str) -> None:
    async with calling(server.url, api_rate=2) as api:
        statuses = [(await api.ask("GET", jobs, token=READ)).status_code for _ in range(20)]
        assert statuses[:2] == [200, 200]
        assert 429 in statuses
        assert (await api.ask("GET", jobs, token=WRITE)).status_code == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(
    sorted(
        {field.name for one in OPERATIONS if one.body is not None for field in msgspec.structs.fields(one.body)}
        - {"wait"}  # for a job that never comes
    )
)
WRITES = [one for one in OPERATIONS if one.body is not None]


@pytest.mark.extra
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(operation=st.sampled_from(WRITES), body=st.dictionaries(names, json_values, max_size=6), task=st.booleans())
async def test_no_body_makes_the_server_fail(api: Caller, operation: Any, body: dict[str, Any], task: bool) -> None:
    path = operation.path.format(queue="hostile", id="a", name="r", batch="b", worker="w")
    token = WORK if operation.needs == "work" else WRITE
    given_body = {**body, "task": "t", "rule": "@daily"} if task else body
    content = json.dumps(given_body).encode()
    answer = await api.ask(operation.method, path, content=content, headers=JSON, token=token)
    assert answer.status_code in (200, 201, 202, 204, 404, 409, 422), answer.text


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60))
async def test_no_bytes_make_the_server_fail(api: Caller, content: bytes) -> None:
    answer = await api.ask("POST", "/v1/queues/hostile/jobs", content=content, headers=JSON)
    assert answer.status_code in (400, 422)


@pytest.mark.extra
async def test_many_callers_at_once(api: Caller, jobs: str, queue: str, raw: Any) -> None:
    async def one(n: int) -> int:
        made = await api.ask("POST", jobs, {"task": "t", "id": f"j{n % 150}", "due": LATER})
        seen = await api.ask("GET", f"{jobs}/j{n % 150}", token=READ)
        assert seen.status_code == 200
        return made.status_code

    statuses = await asyncio.gather(*(one(n) for n in range(300)))
    assert sorted(statuses) == [201] * 150 + [409] * 150, "of two with the same id, one is made"
    assert raw.zcard(f"evsched:{{{queue}}}:schedule") == 150


async def test_unreachable_redis_is_503_until_it_returns(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = f"/v1/queues/{queue}/jobs"
    with EmbeddedRedis() as server:
        async with calling(server.url) as api:
            assert (await api.ask("POST", jobs, {"task": "t", "id": "a", "due": LATER})).status_code == 201
            assert (await api.ask("GET", "/readyz", token=None)).json() == {"ok": True, "reason": None}
            server.kill()
            monkeypatch.setattr(operations, "_PATIENCE", 0.1)
            monkeypatch.setattr(application, "_KEPT", 0.0)
            away = await api.ask("POST", jobs, {"task": "t", "id": "b", "due": LATER})
            assert (away.status_code, away.json()["code"], away.headers["retry-after"]) == (503, "redis-away", "2")
            assert server.url.removeprefix("unix://") not in away.text
            not_ready = await api.ask("GET", "/readyz", token=None)
            assert (not_ready.status_code, not_ready.json()["ok"]) == (503, False)
            assert server.url.removeprefix("unix://") not in not_ready.text
            assert (await api.ask("GET", "/healthz", token=None)).status_code == 200
            monkeypatch.setattr(operations, "_PATIENCE", PATIENCE)
            waiting = [asyncio.ensure_future(api.ask("POST", jobs, {"task": "t", "due": LATER})) for _ in range(20)]
            await asyncio.to_thread(server.start)
            assert [(await one).status_code for one in waiting] == [201] * 20, "requests wait for Redis for a time"
            assert (await api.ask("GET", jobs)).status_code == 200


async def test_call_refused_by_redis_is_500_without_its_message(api: Caller, jobs: str, queue: str, raw: Any) -> None:
    raw.set(f"evsched:{{{queue}}}:schedule", "not a sorted set")
    refused = await api.ask("POST", jobs, {"task": "t"})
    assert (refused.status_code, refused.json()["code"]) == (500, "redis-refused")
    assert "evsched:{" not in refused.text
    raw.delete(f"evsched:{{{queue}}}:schedule")


async def test_a_bug_is_500_without_a_traceback(api: Caller, jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("the secret of the house")

    monkeypatch.setattr("evsched.client.client.Client.status", fail)
    failed = await api.ask("GET", f"{jobs}/a")
    assert (failed.status_code, failed.json()["code"]) == (500, "failed")
    assert "secret" not in failed.text


def test_the_document_is_json() -> None:
    assert json.loads(json.dumps(endpoints.document("/x")))["servers"] == [{"url": "/x"}]
