"""`evsched.http` in a real worker: its requests to a real server, and the outcome of the job for each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from standardwebhooks import Webhook

from evsched import App, BadArguments, events
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.store.store import Store
from evsched.targets.targets_app import make_app
from evsched.transport.senders import BatchingSender
from tests.support.endpoint import Received, Reply, always, in_turn
from tests.support.patience import PATIENCE
from tests.support.site import Site, site
from tests.support.system import system

ORDERS = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEXT = "whsec_bmV4dF9zZWNyZXRfb2ZfMjRfYnl0ZXMh"
SECRETS = {"EVSCHED_SECRET_ORDERS": f"{ORDERS} {NEXT}", "HOME": ORDERS}
Run = Callable[..., AbstractAsyncContextManager[Site]]
SOON = {"attempts": 3, "interval": 0.01, "jitter": 0}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def run(config: Config, raw: Any) -> Run:
    return partial(site, config, raw, secrets=SECRETS)


async def test_a_request_is_sent_as_the_payload_says(run: Run) -> None:
    async with run() as shop:
        assert (
            await shop.requests.result(
                url=f"{shop.url}/orders/7?x=1#part", method="PUT", headers={"X-Kind": "a b"}, json={"ä": [1, None]}
            )
            is None
        )
        (received,) = shop.received
    assert (received.method, received.path, received.body) == ("PUT", "/orders/7?x=1", '{"ä":[1,null]}'.encode())
    assert received.headers["host"] == f"shop.test:{shop.endpoint.port}"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["x-kind"] == "a b"
    assert received.headers["user-agent"].startswith("evsched/")
    assert "cookie" not in received.headers


async def test_an_origin_that_does_not_answer_leaves_slots_to_the_others(config: Config, raw: Any) -> None:
    """Jobs that wait for it hold no slot and lose no attempt, and continue when it answers."""
    released, asked = asyncio.Event(), asyncio.Semaphore(0)

    async def answer(received: Received) -> Reply:
        if received.headers["host"].startswith("silent."):
            asked.release()
            await released.wait()
        return Reply()

    async with site(replace(config, concurrency=8, origin_concurrency=2), raw, answer) as shop:
        silent = [shop.requests.schedule(f"silent-{n}", url=shop.url.replace("shop", "silent")) for n in range(20)]
        for _ in range(2):
            await asked.acquire()
        for n in range(8):
            await shop.requests.result(f"good-{n}", url=shop.url)
        assert asked.locked(), "a third request was sent to the origin that does not answer"
        released.set()
        for name in silent:
            assert await shop.requests.end(name) is None
    assert not shop.requests.recorder.of(events.Retrying)


async def test_the_worker_that_starts_last_sets_the_concurrency_of_an_origin(
    config: Config, queue: str, sender: BatchingSender
) -> None:
    """It is a setting, and no revision of the code: an earlier number can be set again."""
    found = list[float | None]()
    for number in (64, 500, 64, 500):
        app = make_app(replace(config, http_hosts=("a",), origin_concurrency=number), {})
        async with system(config, app, dispatch=False) as running:
            found.append((await sender.send(Store(queue).limits())).fields()["concurrency:origin:*"])
            assert not running.recorder.of(events.RevisionOutdated)
    assert found == [64, 500, 64, 500]


async def test_manual_origin_limit_holds_until_a_worker_brings_another_value(
    config: Config, queue: str, sender: BatchingSender
) -> None:
    found = list[float | None]()
    for number in (64, 64, 32):
        app = make_app(replace(config, http_hosts=("a",), origin_concurrency=number), {})
        async with system(config, app, dispatch=False):
            found.append((await sender.send(Store(queue).limits())).fields()["concurrency:origin:*"])
            await sender.send(Store(queue).limit({"concurrency:origin:*": 5}))
    assert found == [64, 5, 32]


def test_origin_concurrency_does_not_depend_on_worker_slots() -> None:
    small, large = (make_app(Config(http_hosts=("a",), concurrency=slots), {}) for slots in (4, 256))
    assert small.program.limits == large.program.limits == [("", "concurrency:origin:*", 64.0)]


async def test_a_program_in_python_enqueues_a_request_without_a_task_of_its_own(
    run: Run, config: Config, queue: str
) -> None:
    app = App(config.url, queue="other")
    async with run(always(Reply(201, body=b"made"))) as shop:
        job = await app.http.using(queue=queue, id="invoice-7").enqueue(f"{shop.url}/7", json={"n": 7}, response=True)
        answer = await job.result(PATIENCE)
        with app.sync() as client:
            again = client.enqueue(app.http.using(queue=queue), f"{shop.url}/8", "PUT", body="x")
            assert await asyncio.to_thread(again.result, PATIENCE) is None
        with pytest.raises(BadArguments, match="headers"):
            await app.http.enqueue(shop.url, headers=["a"])  # pyright: ignore[reportArgumentType]
    await app.close()
    assert answer is not None
    assert (answer.status, answer.body, answer.cut) == (201, "made", False)
    assert [(one.method, one.path, one.body) for one in shop.received] == [
        ("POST", "/7", b'{"n":7}'),
        ("PUT", "/8", b"x"),
    ]
    assert shop.received[0].headers["idempotency-key"].startswith("invoice-7:")
    assert "evsched.http" not in app.tasks, "a worker of the app would run it and send nothing"


def test_app_cannot_define_a_task_with_a_reserved_name() -> None:
    for name in ("evsched.http", "evsched.forward", "evsched.mine"):
        with pytest.raises(ConfigError, match=rf"task {name}: the names that begin with evsched\. are evsched's own"):
            App().task(name=name)


async def test_headers_may_be_an_empty_array(run: Run) -> None:
    """PHP writes an empty object so."""
    async with run() as shop:
        await shop.requests.result(url=shop.url, headers=[])
        assert len(shop.received) == 1


async def test_the_answer_is_the_result_if_the_payload_asks_for_it(run: Run) -> None:
    reply = Reply(201, {"x-id": "7", "content-type": "text/plain"}, "fü".encode() + b"\xff\x00")
    async with run(always(reply)) as shop:
        found = await shop.requests.result(url=shop.url, body="hello", response=True)
    assert (found["status"], found["body"], found["cut"]) == (201, "fü�\x00", False)
    assert found["headers"]["x-id"] == "7"


@pytest.mark.parametrize(("size", "cut"), [(65536, False), (65537, True), (3_000_000, True)])
async def test_a_body_is_read_up_to_its_bound(run: Run, size: int, cut: bool) -> None:
    async with run(always(Reply(body=b"x" * size))) as shop:
        found = await shop.requests.result(url=shop.url, response=True)
        assert (len(found["body"]), found["cut"]) == (65536, cut)
        assert (await shop.requests.result("two", url=shop.url, response=True))["cut"] is cut


async def test_a_body_that_does_not_end_in_time_is_cut(run: Run) -> None:
    """The status has already decided the outcome of the job."""

    async def answer(received: Received) -> Reply:
        return Reply(int(received.path[1:]), {"retry-after": "7"}, b"abcd", after_half="stall")

    async with run(answer) as shop:
        found = await shop.requests.result(url=f"{shop.url}/200", response=True, timeout=0.5)
        assert (found["status"], found["body"], found["cut"]) == (200, "ab", True)
        assert "answered 404 Not Found" in await shop.requests.reason("two", url=f"{shop.url}/404", timeout=0.5)
        shop.requests.schedule("three", url=f"{shop.url}/503", timeout=0.5)
        assert (await shop.requests.recorder.wait(events.Retrying)).delay == 7
    assert len(shop.received) == 3


async def test_the_reason_is_true_of_the_last_attempt(run: Run) -> None:
    async with run(always(Reply(503, {"retry-after": "0"}))) as shop:
        why = await shop.requests.reason(url=shop.url, payload={"retry": SOON})
    assert "attempt 3 of 3" in why
    assert "answered 503 Service Unavailable, with a Retry-After of 0 s" in why


async def test_a_redirect_whose_body_takes_all_of_the_time_is_not_followed(run: Run) -> None:
    reply = Reply(307, {"location": "/other"}, b"abcd", after_half="stall")
    async with run(always(reply), redirects=1) as shop:
        why = await shop.requests.reason(url=shop.url, timeout=0.5, payload={"retry": {"attempts": 1}})
    assert f"redirects to http://shop.test:{shop.endpoint.port}: no time was left for it within 0.5 s" in why
    assert len(shop.received) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_a_server_that_is_not_ready_is_asked_again_with_the_same_key(run: Run, status: int) -> None:
    async with run(in_turn(Reply(status), Reply(status), Reply())) as shop:
        await shop.requests.result(url=shop.url, payload={"retry": SOON})
        assert [event.attempt for event in shop.requests.recorder.of(events.Retrying)] == [1, 2]
        assert (
            f"http://shop.test:{shop.endpoint.port} answered {status}"
            in shop.requests.recorder.of(events.Retrying)[0].reason
        )
        keys = {received.headers["idempotency-key"] for received in shop.received}
    assert len(shop.received) == 3
    assert len(keys) == 1
    assert keys.pop().startswith("one:")


async def test_the_server_says_when_it_is_to_be_asked_again(run: Run) -> None:
    date = {"date": "Sun, 22 Nov 2026 10:00:00 GMT", "retry-after": "Sun, 22 Nov 2026 10:02:05 GMT"}
    async with run(in_turn(Reply(503, {"retry-after": "77"}), Reply(429, date))) as shop:
        for n, seconds in enumerate((77, 125)):
            shop.requests.schedule(f"job-{n}", url=shop.url)
            event = await shop.requests.recorder.wait(events.Retrying, count=n + 1)
            assert event.delay == seconds


@pytest.mark.parametrize("status", [300, 301, 304, 400, 401, 404, 410, 422])
async def test_any_other_answer_ends_the_job(run: Run, status: int) -> None:
    async with run(always(Reply(status))) as shop:
        why = await shop.requests.reason(url=f"{shop.url}/secret?token=abc")
        assert f"answered {status}" in why
        assert "which is not tried again" in why
        assert (await shop.requests.recorder.wait(events.JobBuried)).traceback == ""
        assert "secret" not in why
        assert len(shop.received) == 1


async def test_a_server_that_hangs_up_or_is_not_there_is_asked_again(run: Run) -> None:
    async with run(in_turn(Reply(hang_up=True), Reply(headers={"connection": "close"}))) as shop:
        await shop.requests.result(url=shop.url, payload={"retry": SOON})
        (event,) = shop.requests.recorder.of(events.Retrying)
        assert "closed the connection before it had answered" in event.reason
        shop.endpoint.stop_listening()
        why = await shop.requests.reason("two", url=shop.url, payload={"retry": SOON})
        assert "attempt 3 of 3" in why
        assert "cannot be connected to: Connection refused" in why


async def test_a_server_that_does_not_answer_in_time_is_asked_again(run: Run) -> None:
    silent = asyncio.Event()

    async def answer(received: Received) -> Reply:
        if received.path == "/slow":
            await silent.wait()
        return Reply()

    async with run(answer) as shop:
        why = await shop.requests.reason(url=f"{shop.url}/slow", timeout=0.5, payload={"retry": SOON})
        assert "attempt 3 of 3" in why
        assert "did not answer within 0.5 s" in why
        await shop.requests.result("two", url=shop.url)  # its connections are not mixed up


async def test_the_context_of_a_trace_is_passed_on(run: Run) -> None:
    async with run() as shop:
        await shop.requests.result(url=shop.url, payload={"meta": {"traceparent": TRACE, "tracestate": "a=1"}})
        await shop.requests.result("two", url=shop.url, payload={"meta": {"traceparent": f"{TRACE}\r\nx: y"}})
        await shop.requests.result("three", url=shop.url, payload={"meta": {"traceparent": 7}})
    first, *others = shop.received
    assert (first.headers["traceparent"], first.headers["tracestate"]) == (TRACE, "a=1")
    assert not any("traceparent" in received.headers for received in others)


async def test_a_request_is_signed_with_each_secret_of_the_name(run: Run) -> None:
    async with run(in_turn(Reply(500), Reply())) as shop:
        await shop.requests.result(url=shop.url, json={"a": 1}, sign="ORDERS", payload={"retry": SOON})
    assert len({received.headers["webhook-id"] for received in shop.received}) == 1
    assert "." not in shop.received[0].headers["webhook-id"]
    for received in shop.received:
        for secret in (ORDERS, NEXT):
            assert Webhook(secret).verify(received.body, received.headers) == {"a": 1}


async def test_request_is_signed_again_after_a_redirect(run: Run) -> None:
    async with run(in_turn(Reply(303, {"location": "/other"}), Reply()), redirects=1) as shop:
        await shop.requests.result(url=shop.url, body="a", sign="ORDERS")
    for received, body in zip(shop.received, (b"a", b""), strict=True):
        assert received.body == body
        Webhook(ORDERS).verify(received.body, received.headers, json_parse=False)


@pytest.mark.parametrize("name", ["NOTHING", "HOME", "../ORDERS", "", "EVSCHED_SECRET_ORDERS"])
async def test_a_secret_that_the_worker_does_not_have_ends_the_job(run: Run, name: str) -> None:
    async with run() as shop:
        why = await shop.requests.reason(url=shop.url, sign=name)
        assert "a secret that this worker does not have" in why
        assert ORDERS not in why
        assert shop.endpoint.connections == 0


@pytest.mark.extra
@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"url": "ftp://shop.test/"}, "does not begin with http://"),
        ({"url": "http://user:hidden@shop.test/"}, "has a user or a password"),
        ({"headers": {"Host": "other"}}, "a payload may not set the header host"),
        ({"headers": {"a": "hidden\r\nx: y"}}, "the value of the header a is not valid"),
        ({"headers": {"hidden: x": "y"}}, "the name of header 1 is not valid"),
        ({"body": "a", "json": 1}, "a body and json"),
        ({"method": "CONNECT"}, "the arguments do not fit"),
        ({"timeout": 0}, "the arguments do not fit"),
        ({"url": 7}, "the arguments do not fit"),
        ({"url": ""}, "the url is empty"),
        ({"headers": ["hidden"]}, "the arguments do not fit"),
        ({"colour": 7}, "takes no 'colour'"),
    ],
)
async def test_a_request_that_is_not_valid_ends_the_job(run: Run, kwargs: dict[str, Any], words: str) -> None:
    async with run() as shop:
        why = await shop.requests.reason(**{"url": shop.url, **kwargs})
        assert words in why
        assert "hidden" not in why
        assert shop.endpoint.connections == 0


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"url": "http://sekret.example.com/x"}, "requests to [redacted] are not allowed"),
        ({"url": "http://sekret:x/"}, "a host or a port that is not valid: write HOST or HOST:PORT"),
        ({"url": "http://sekret.test:{port}/missing"}, "[redacted] answered 404"),
        ({"url": "http://sekret.test:{port}/moved"}, "[redacted] redirects to [redacted]"),
        ({"sign": "SEKRET"}, "set EVSCHED_SECRET_[redacted] for the workers"),
        ({"headers": {"webhook-sekret": "x"}}, "a payload may not set the header number 1"),
    ],
)
async def test_no_part_of_a_redacted_argument_is_in_a_reason(run: Run, kwargs: dict[str, Any], words: str) -> None:
    async def answer(received: Received) -> Reply:
        return Reply(301, {"location": "http://sekret.test/"}) if received.path == "/moved" else Reply(404)

    async with run(answer) as shop:
        given = {"url": shop.url, **kwargs}
        given["url"] = given["url"].replace("{port}", str(shop.endpoint.port))
        options = {"redact": [*kwargs], "retry": {"attempts": 1}}
        why = await shop.requests.reason(payload=options, **given)
    assert words in why
    assert "sekret" not in why.lower()


async def test_refused_call_does_not_quote_a_redacted_argument() -> None:
    app = App("redis://127.0.0.1:1")
    for url in ("http://sekret:x/", "http://sekret..test/", "http://[sekret]/"):
        with pytest.raises(BadArguments) as refused:
            await app.http.using(redact=("url",)).enqueue(url)
        assert "sekret" not in str(refused.value)
    with pytest.raises(BadArguments) as refused:
        await app.forward.using(redact=("to",)).enqueue("queue:sekret", 1)
    assert "sekret" not in str(refused.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_unless_that_is_allowed(run: Run, status: int) -> None:
    async with run(always(Reply(status, {"location": "/other"}))) as shop:
        why = await shop.requests.reason(url=shop.url)
        assert "start the worker with --http-redirects" in why
        assert len(shop.received) == 1


async def test_a_redirect_that_names_no_other_url_is_not_followed(run: Run) -> None:
    async with run(always(Reply(302, {"location": ""})), redirects=2) as shop:
        assert "answered 302 Found, which is not tried again" in await shop.requests.reason(url=shop.url)
        assert len(shop.received) == 1


async def test_one_redirect_too_many_is_not_followed(run: Run) -> None:
    async with run(always(Reply(302, {"location": "/other"})), redirects=2) as shop:
        why = await shop.requests.reason(url=shop.url)
        assert "after 2 redirects" in why
        assert "a larger number for --http-redirects" in why
        assert len(shop.received) == 3


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [(301, "POST", "GET"), (302, "PUT", "PUT"), (303, "PUT", "GET"), (307, "POST", "POST"), (308, "POST", "POST")],
)
async def test_a_redirect_is_followed(run: Run, status: int, method: str, then: str) -> None:
    async with run(in_turn(Reply(status, {"location": "/other?a=1"}), Reply()), redirects=1) as shop:
        await shop.requests.result(url=f"{shop.url}/first", method=method, headers={"Authorization": "x"}, json=[1])
    first, second = shop.received
    assert (first.method, second.method, second.path) == (method, then, "/other?a=1")
    assert (second.body, second.headers.get("content-type")) == (
        (b"[1]", "application/json") if then == method else (b"", None)
    )
    assert second.headers["authorization"] == "x"  # the same origin
    assert second.headers["idempotency-key"] == first.headers["idempotency-key"]


async def test_another_origin_gets_no_header_of_the_payload_and_no_signature(run: Run) -> None:
    async def answer(received: Received) -> Reply:
        other = f"http://other.test:{received.headers['host'].rpartition(':')[2]}/"
        return Reply(307, {"location": other}) if received.headers["host"].startswith("shop") else Reply()

    async with run(answer, redirects=3) as shop:
        headers = {"Authorization": "x", "Cookie": "y", "X-Api-Key": "z", "Content-Type": "text/csv"}
        await shop.requests.result(url=shop.url, headers=headers, body="a,b", sign="ORDERS")
    first, second = shop.received
    assert {"authorization", "cookie", "x-api-key", "webhook-signature"} <= first.headers.keys()
    assert not {"authorization", "cookie", "x-api-key", "webhook-signature"} & second.headers.keys()
    assert (second.headers["content-type"], second.body) == ("text/csv", b"a,b")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (
            "http://elsewhere.example/",
            "redirects to http://elsewhere.example: requests to http://elsewhere.example are",
        ),
        ("http://elsewhere.example/", "--http-host elsewhere.example, then run evsched dead revive"),
        ("//inside.test:1/", "requests to http://inside.test:1 are not allowed"),
        ("ftp://shop.test/", "redirects to a URL that is not valid"),
        ("http://a:b@shop.test/", "redirects to a URL that is not valid"),
        ("/again", "redirects to http://shop.test"),
    ],
)
async def test_each_hop_is_checked_separately(run: Run, location: str, words: str) -> None:
    async with run(always(Reply(302, {"location": location})), redirects=2) as shop:
        assert words in await shop.requests.reason(url=shop.url, method="GET")
        assert len(shop.received) == (3 if location == "/again" else 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "none is allowed: name each with --http-host or in EVSCHED_HTTP_HOSTS"),
        ({"http_hosts": ("a b",)}, "EVSCHED_HTTP_HOSTS has 'a b'"),
        ({"http_hosts": ("http://a",)}, "EVSCHED_HTTP_HOSTS has 'http://a'"),
        ({"http_hosts": ("a:0",)}, "EVSCHED_HTTP_HOSTS has 'a:0'"),
        ({"http_hosts": ("*a",)}, "EVSCHED_HTTP_HOSTS has '"),
        ({"http_hosts": ("",)}, "EVSCHED_HTTP_HOSTS has ''"),
        ({"http_hosts": ("*:x",)}, "every public host, on ports 80 and 443, or with a port such as *:8443"),
        ({"http_hosts": ("a",), "http_networks": ("10.0.0.1/8",)}, "EVSCHED_HTTP_NETWORKS has '10.0.0.1/8'"),
    ],
)
def test_invalid_http_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_app(Config(**settings), {})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
        ("SSL_CERT_FILE", ""),
        ("SSL_CERT_FILE", "/"),
        ("SSL_CERT_FILE", __file__),
        ("SSL_CERT_DIR", "/nowhere"),
        ("SSL_CERT_DIR", "/:/nowhere"),
        ("SSL_CERT_DIR", ""),
    ],
)
def test_missing_certificate_authorities_are_refused(name: str, value: str) -> None:
    """OpenSSL says nothing, and each server would be called not valid."""
    with pytest.raises(ConfigError, match=f"{name} is {value!r}") as error:
        make_app(Config(http_hosts=("a",)), {name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("secret", ["short", "whsec_c2hvcnQ=", "whsk_" + ORDERS[6:], "ünd", f"{ORDERS} x"])
def test_invalid_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigError, match="EVSCHED_SECRET_A is not a secret") as error:
        make_app(Config(http_hosts=("a",)), {"EVSCHED_SECRET_A": secret})
    assert secret not in str(error.value)


def test_the_app_has_a_queue_of_its_own() -> None:
    app: App = make_app(Config(http_hosts=("a",)), {})
    assert (app.queue, list(app.tasks), app.program.owner) == ("targets", ["evsched.http"], "evsched.targets")
