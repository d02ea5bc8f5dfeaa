"""Forwarding: the script that ends a run sends its message too, or does neither."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evsched.errors import StoreDown
from evsched.jobs.job import FetchedJob, Forwarded, Into, Message, Retried
from evsched.jobs.tasks import Hook
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.client_calls import New
from evsched.store.run_ends import NotEnded
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.scripts.conftest import NOW, Send, State
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.snapshot import snapshot

OTHERWISE = Retried(1.0, "x")


def forwarded(
    into: Into, name: str, text: bytes = b"1", most: int | None = None, retention: float = 300.0, *, reply: bool = False
) -> Forwarded:
    return Forwarded(b"null", retention, reply, message=Message(into, name, text, most), otherwise=OTHERWISE)


@pytest.fixture
def name(queue: str) -> str:
    """The name of a key or a channel that is nothing of evsched."""
    return f"{queue}:news"


@pytest.fixture
def runs(send: Send, store: Store) -> list[FetchedJob]:
    """Three runs of worker "w" in the group "g"."""
    send(store.at(NOW).enqueue([New(job_id, b'{"task":"t"}', group="g", due=NOW) for job_id in "abc"]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    return send(store.at(NOW).start("w", (), hold=3, lease=15)).jobs


def test_entries_of_a_stream_have_the_ids_of_the_jobs(
    runs: list[FetchedJob], send: Send, store: Store, state: State, raw: Any, name: str
) -> None:
    rows = [(run, forwarded("stream", name, b'{"n":%d}' % n)) for n, run in enumerate(runs)]
    assert send(store.at(NOW + 1).forward("w", rows)) == NotEnded([])
    assert [fields for _, fields in raw.xrange(name)] == [
        {b"id": b"a", b"message": b'{"n":0}'},
        {b"id": b"b", b"message": b'{"n":1}'},
        {b"id": b"c", b"message": b'{"n":2}'},
    ]
    after = state()
    assert (after["job:a"]["outcome"], after["job:a"]["result"]) == ("done", "null")
    assert after["job:a"]["finished"] == "1900000001.000000"
    assert "processing:w" not in after


def test_a_stream_is_trimmed(runs: list[FetchedJob], send: Send, store: Store, raw: Any, name: str) -> None:
    for _ in range(500):
        raw.xadd(name, {"x": "y"})
    send(store.at(NOW).forward("w", [(runs[0], forwarded("stream", name, most=10))]))
    assert 10 <= raw.xlen(name) < 200  # Redis removes whole nodes, of 100 entries each


def test_a_list_grows_at_the_end_that_is_asked_for(
    runs: list[FetchedJob], send: Send, store: Store, raw: Any, name: str
) -> None:
    a, b, c = runs
    rows = [
        (a, forwarded("right", name, b"a")),
        (b, forwarded("left", name, b"b")),
        (c, forwarded("right", name, b"c")),
    ]
    assert send(store.at(NOW).forward("w", rows)) == NotEnded([])
    assert raw.lrange(name, 0, -1) == [b"b", b"a", b"c"]


def test_subscribers_of_a_channel_receive_the_message(
    runs: list[FetchedJob], send: Send, store: Store, state: State, raw: Any, name: str
) -> None:
    with raw.pubsub() as subscription:
        subscription.subscribe(name)
        assert subscription.get_message(timeout=PATIENCE)["type"] == "subscribe"
        assert send(store.at(NOW).forward("w", [(runs[0], forwarded("channel", name, b"hi"))])) == NotEnded([])
        assert subscription.get_message(timeout=PATIENCE)["data"] == b"hi"
    assert state()["job:a"]["outcome"] == "done"


def test_stopped_run_sends_nothing_and_ends_as_cancelled(
    runs: list[FetchedJob], send: Send, store: Store, state: State, raw: Any, name: str
) -> None:
    send(store.at(NOW).cancel("b"))
    assert send(store.at(NOW).forward("w", [(run, forwarded("right", name, run.id.encode())) for run in runs])) == (
        NotEnded([])
    )
    assert raw.lrange(name, 0, -1) == [b"a", b"c"]
    assert state()["job:b"]["outcome"] == "cancelled"


def test_an_id_that_was_scheduled_again_during_the_run_runs_again(
    runs: list[FetchedJob], send: Send, store: Store, state: State, raw: Any, name: str
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 9})
    assert send(store.at(NOW).forward("w", [(runs[0], forwarded("right", name))])) == NotEnded([])
    after = state()
    assert (raw.llen(name), after["schedule"], after["processing:w"]) == (1, {"a": NOW + 9}, ["b", "c"])
    assert "attempt" not in after["job:a"]


def test_job_without_retention_is_replied_to_and_calls_its_hook(
    runs: list[FetchedJob], send: Send, store: Store, state: State, raw: Any, name: str
) -> None:
    row = (runs[0], forwarded("right", name, retention=0.0, reply=True))
    assert send(store.at(NOW).forward("w", [row], Hook("tell", "t"))) == NotEnded([])
    after = state()
    assert [json.loads(item) for item in after["reply:a"]] == [{"id": "a", "outcome": "done", "result": None}]
    assert ("job:a" in after, [*after["schedule"]], raw.llen(name)) == (False, [f"a.done.{NOW:.6f}"], 1)


@pytest.mark.parametrize("into", ["stream", "left", "right"])
def test_refused_message_leaves_its_run_unchanged_and_affects_no_other(
    runs: list[FetchedJob], send: Send, store: Store, state: State, raw: Any, name: str, into: Into
) -> None:
    send(store.at(NOW).limit({"concurrency": 9, "concurrency:g": 3}))
    raw.set(name, "a string")
    before = state()
    a, b, c = runs
    rows = [(a, forwarded("channel", name)), (b, forwarded(into, name, reply=True)), (c, forwarded("channel", name))]
    not_ended = send(store.at(NOW).forward("w", rows, Hook("tell", "t")))
    assert (not_ended.lost, [*not_ended.refused]) == ([], ["b"])
    assert not_ended.refused["b"].startswith("WRONGTYPE")
    after = state()
    assert after["job:b"] == before["job:b"]
    assert (after["processing:w"], after["in_flight"]) == (["b"], {"b": "g", "*": "1", "#g": "1"})
    assert {after[f"job:{job}"]["outcome"] for job in "ac"} == {"done"}
    assert len(after["schedule"]) == 2  # the jobs of the hook
    assert "reply:b" not in after
    # The worker ends it in another way.
    assert send(store.at(NOW).retry("w", [(b, OTHERWISE)])) == []
    assert (state()["schedule"]["b"], state()["job:b"]["attempt"]) == (NOW + 1, "1")


def test_the_end_of_an_occurrence_is_counted_when_its_message_is_sent(
    send: Send, store: Store, state: State, raw: Any, name: str
) -> None:
    send(store.declare(Declared(name="r", payload=b'{"task":"t"}', rule="@hourly")))
    send(store.recur("r", b"0", [Occurrence("r@1", NOW, NOW, None)], next_=NOW + 9))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    call = store.at(NOW).forward("w", [(run, forwarded("right", name))])
    raw.set(name, "a string")
    assert [*send(call).refused] == ["r@1"]
    assert "runs" not in state()["recurrence:r"]
    raw.delete(name)
    assert send(call) == NotEnded([])
    recurrence = state()["recurrence:r"]
    assert (recurrence["runs"], recurrence["done"], recurrence["last_outcome"]) == ("1", "1", "done")


def test_a_run_that_is_not_this_workers_sends_nothing(
    runs: list[FetchedJob], send: Send, store: Store, state: State, raw: Any, name: str
) -> None:
    before = state()
    assert send(store.at(NOW).forward("v", [(run, forwarded("right", name)) for run in runs])) == NotEnded([*"abc"])
    assert (state(), raw.exists(name)) == (before, 0)


def test_while_memory_is_full_nothing_is_written() -> None:
    with EmbeddedRedis() as server:
        raw, sender, store = plain_client(server.url), SyncSender(server.url), Store("full")
        sender.send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
        sender.send(store.at(NOW).dispatch(limit=10, cap=1000))
        (run,) = sender.send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
        call = store.at(NOW).forward("w", [(run, forwarded("stream", "news"))])
        before = snapshot(raw, "full")
        raw.config_set("maxmemory", 1)
        with pytest.raises(StoreDown) as refusal:
            sender.send(call)
        assert refusal.value.kind == "oom"
        assert (snapshot(raw, "full"), raw.exists("news")) == (before, 0)
        raw.config_set("maxmemory", 0)
        assert sender.send(call) == NotEnded([])
        assert raw.xlen("news") == 1
        sender.close()
        raw.close()


def test_missing_right_to_a_destination_refuses_only_that_message() -> None:
    with EmbeddedRedis() as server:
        raw, sender, store = plain_client(server.url), SyncSender(server.url), Store("acl")
        sender.send(store.at(NOW).enqueue([New(job_id, b'{"task":"t"}', due=NOW) for job_id in "abcd"]))
        sender.send(store.at(NOW).dispatch(limit=10, cap=1000))
        runs = sender.send(store.at(NOW).start("w", (), hold=4, lease=15)).jobs
        rights = ("resetkeys", "resetchannels", "~evsched:{*}:*", "&evsched:{*}:*", "&news", "(~news +xadd)")
        raw.execute_command("ACL", "SETUSER", "default", *rights)  # as docs/rights.md says
        to: list[tuple[Into, str]] = [
            ("stream", "secrets"),
            ("stream", "news"),
            ("channel", "secrets"),
            ("channel", "news"),
        ]
        rows = [(run, forwarded(*one)) for run, one in zip(runs, to, strict=True)]
        not_ended = sender.send(store.at(NOW).forward("w", rows))
        assert (not_ended.lost, [*not_ended.refused]) == ([], ["a", "c"])
        assert "can't access at least one of the keys" in not_ended.refused["a"]
        assert "can't publish to the channel" in not_ended.refused["c"]
        raw.execute_command("ACL", "SETUSER", "default", "~*")
        assert (raw.xlen("news"), raw.exists("secrets")) == (1, 0)
        assert raw.lrange("evsched:{acl}:processing:w", 0, -1) == [b"a", b"c"]
        sender.close()
        raw.close()
