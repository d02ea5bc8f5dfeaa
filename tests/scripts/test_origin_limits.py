"""The limits of origins: a job counts in the group of the place that its request or message is for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evsched.client.explain import explain
from evsched.errors import ConfigError
from evsched.jobs.job import Done
from evsched.store.client_calls import New
from evsched.store.gate_limits import field
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

DONE = Done(b"null", 60, False)
EACH = "concurrency:origin:*"


def request(url: Any, **more: Any) -> bytes:
    return json.dumps({"task": "evsched.http", "kwargs": {"url": url}, **more}).encode()


def due(send: Send, store: Store, jobs: dict[str, bytes], **options: Any) -> None:
    send(store.enqueue([New(name, text, due=NOW, **options) for name, text in jobs.items()]))
    send(store.at(NOW).dispatch(limit=999, cap=300_000))


def start(send: Send, store: Store) -> dict[str, Any]:
    return {job.id: job for job in send(store.at(NOW).start("w", (), hold=999, lease=15)).jobs}


def test_each_origin_has_its_own_room_and_each_end_lets_its_next_job_pass(
    send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW).limit({EACH: 2}))
    due(send, store, {f"dead{n:02}": request("http://dead.test/") for n in range(50)})
    due(send, store, {f"good{n}": request("http://good.test/") for n in range(2)})
    jobs = start(send, store)
    assert sorted(jobs) == ["dead00", "dead01", "good0", "good1"]
    assert explain(store.queue, send(store.at(NOW).explain("dead02"))).sentence == (
        "the gate is closed to origin http://dead.test by the concurrency limit: 2 of 2"
    )
    assert send(store.at(NOW).complete("w", [(jobs["good0"], DONE), (jobs["dead01"], DONE)])) == []
    assert list(start(send, store)) == ["dead02"]
    assert send(store.recount()) == []
    assert state()["in_flight"]["#origin:http://dead.test"] == "2"
    send(store.at(NOW).limit({EACH: None}))
    assert len(start(send, store)) == 47
    assert not {"limits", "throttled", "in_flight", "backlog:origin:http://dead.test"} & state().keys()


def test_an_origin_may_have_a_limit_of_its_own(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({EACH: 1, "concurrency:origin:https://big.test": 3}))
    due(send, store, {f"{host}{n}": request(f"https://{host}.test/{n}") for n in range(4) for host in ("big", "small")})
    assert sorted(start(send, store)) == ["big0", "big1", "big2", "small0"]


@pytest.mark.parametrize(
    ("payload", "origin"),
    [
        (request("HTTP://Shop.test:80?x"), "http://shop.test"),
        (request("https://shop.test:443/a"), "https://shop.test"),
        (request("https://shop.test:80#a"), "https://shop.test:80"),
        (request("http://[2001:db8::1]:8080/"), "http://[2001:db8::1]:8080"),
        (b'{"task":"evsched.http","args":["http://a.test/"]}', "http://a.test"),
        (b'{"task":"evsched\\u002ehttp","args":["http://a.test/"]}', "http://a.test"),
        (request(f"http://{'a.' * 120}test/"), f"http://{'a.' * 120}test"[-193:]),
        (b'{"task":"evsched.forward","args":["queue@rabbit:orders", 1]}', "rabbit"),
        (b'{"task":"evsched.forward","kwargs":{"to":"stream@b_2:x"}}', "b_2"),
        (b'{"task":"evsched.forward","args":["stream:orders", 1]}', None),
        (request("http://user@shop.test/"), None),
        (request("http://a}b/"), None),
        (request("ftp://a/"), None),
        (request(7), None),
        (request(None), None),
        (b'{"task":"evsched.http","kwargs":null,"args":null}', None),
        (b'{"task":"evsched.http","kwargs":"x","args":{"1":2}}', None),
        (b'{"task":"other","kwargs":{"url":"http://a.test/"},"meta":"evsched.http"}', None),
        (b'{"task":["evsched.http"]}', None),
        (b'"evsched.http"', None),
        (b'{"task":"evsched.http"', None),
    ],
)
def test_origin_of_a_payload_is_read(
    send: Send, store: Store, state: State, payload: bytes, origin: str | None
) -> None:
    send(store.at(NOW).limit({EACH: 1}))
    due(send, store, {"one": payload, "two": payload})
    counts = {name: count for name, count in state()["in_flight"].items() if name.startswith("#")}
    assert counts == ({"#": "2"} if origin is None else {f"#origin:{origin}": "1"})
    assert [*state().get("throttled", ())] == ([] if origin is None else [f"origin:{origin}"])
    assert send(store.recount()) == []


def test_job_counts_in_its_own_group_its_task_and_its_origin(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({EACH: 9, "concurrency:*": 9, "concurrency:task:evsched.http": 1}))
    due(send, store, {f"job{n}": request("http://a.test") for n in range(2)}, group="alice")
    (job,) = start(send, store).values()
    groups = ("alice", "task:evsched.http", "origin:http://a.test")
    assert {name: state()["in_flight"][f"#{name}"] for name in groups} == dict.fromkeys(groups, "1")
    send(store.at(NOW).complete("w", [(job, DONE)]))
    assert list(start(send, store)) == ["job1"]
    assert send(store.recount()) == []


def test_jobs_in_flight_are_counted_when_the_limit_is_set(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"concurrency": 99}))
    due(send, store, {f"job{n}": request("http://a.test") for n in range(3)})
    start(send, store)
    send(store.at(NOW).limit({EACH: 2}))
    assert state()["in_flight"]["#origin:http://a.test"] == "3"
    send(store.at(NOW).limit({"rate:origin:http://a.test": 1}))
    send(store.at(NOW).limit({EACH: None}))
    assert state()["limits"]["origins"] == "1"
    send(store.at(NOW).limit({"rate:origin:http://a.test": None}))
    assert state()["limits"] == {"concurrency": "99"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("HTTP://API.example.com:80", "http://api.example.com"),
        ("https://api.example.com:443/", "https://api.example.com"),
        ("https://api.example.com:80", "https://api.example.com:80"),
        ("http://[2001:DB8::1]:8080/", "http://[2001:db8::1]:8080"),
        (f"http://{'a.' * 80}test", f"http://{'a.' * 80}test"),
        (("x" * 200)[-193:], ("x" * 200)[-193:]),
        ("rabbit", "rabbit"),
        ("*", "*"),
    ],
)
def test_the_group_of_an_origin_is_written_as_its_jobs_have_it(given: str, wanted: str) -> None:
    assert field("rate", f"origin:{given}", 5) == f"rate:origin:{wanted}"
    assert field("rate", f"origin:{wanted}", 5) == f"rate:origin:{wanted}"


@pytest.mark.parametrize(
    "given",
    [
        "127.0.0.1:8002",
        "api.example.com",
        "http://",
        "http://a.test/x",
        "http://u@a.test",
        "ftp://a.test",
        "",
        "http://*",
    ],
)
def test_impossible_origin_group_is_refused_and_can_be_removed(given: str) -> None:
    with pytest.raises(ConfigError, match=r"write origin:https://HOST"):
        field("rate", f"origin:{given}", 5)
    assert field("rate", f"origin:{given}", None) == f"rate:origin:{given}"
