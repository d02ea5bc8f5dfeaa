"""The scripts that read many queues in one call: `queue_stats`, `survey`, `find`, `roster`, `hashes` and the like."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from evsched import keys
from evsched.errors import StoreError, StoreRefused
from evsched.store import many_queues
from evsched.store.client_calls import New
from evsched.store.dispatcher_calls import Fronts
from evsched.store.history_calls import EndCount
from evsched.store.operator_calls import FindPart, WantedArgument, condition
from evsched.store.queue import as_texts
from evsched.store.recurrence_calls import RosterPart
from evsched.store.store import Store
from evsched.transport.call import Call, Word
from evsched.transport.embedded import EmbeddedRedis, find_server
from evsched.transport.links import finish
from evsched.transport.senders import SyncSender
from tests.scripts.conftest import NOW, Send
from tests.support.cluster import Cluster

NO_FRONTS = Fronts(None, (b"",) * 4, None, None)


@pytest.fixture
def queues(send: Send, raw: Any, queue: str) -> list[str]:
    """Four queues: one with jobs, workers and limits; one with nothing; one with a key of another type; one paused."""
    busy, empty, wrong, paused = (f"{queue}-{name}" for name in ("busy", "empty", "wrong", "paused"))
    store = Store(busy).at(NOW)
    send(store.limit({"concurrency": 4, "concurrency:g": 1}))
    due = b'{"task":"t"}'
    send(store.enqueue([New(f"j{n}", due, due=NOW - 7) for n in range(3)]))
    send(store.enqueue([New(f"g{n}", due, due=NOW - 7, group="g") for n in range(3)]))
    send(store.dispatch(limit=99, cap=1000))
    send(store.start("w", (), hold=2, lease=15))
    send(store.enqueue([New("later", due, due=NOW + 60), New("now", due, due=NOW - 1)]))
    raw.set(keys.root(wrong) + "leases", "wrong")
    send(Store(paused).at(NOW - 5).pause(until=NOW + 50, why="stock-taking"))
    return [busy, empty, wrong, paused]


def places(schedule: int = 0, backlog: int = 0, ready: int = 0, processing: int = 0, dead: int = 0) -> dict[str, int]:
    return {"schedule": schedule, "backlog": backlog, "ready": ready, "processing": processing, "dead": dead}


def test_stats_of_many_queues_are_those_of_each(send: Send, queues: list[str]) -> None:
    busy, empty, wrong, paused = queues
    found = send(Store("any").at(NOW).many_queue_stats(queues))
    assert found == [send(Store(busy).at(NOW).queue_stats()), send(Store(empty).at(NOW).queue_stats()), None, found[3]]
    assert found[0] is not None
    assert found[3] is not None
    assert (found[0].places, found[0].due, found[0].workers) == (places(2, 2, 2, 2), 1, 1)
    assert (found[0].next_due, found[0].oldest, found[0].now) == (NOW - 1, 7.0, NOW)
    assert found[1] is not None
    assert (found[1].places, found[1].next_due, found[1].oldest) == (places(), None, 0.0)
    assert (found[3].paused, found[3].paused_until, found[3].paused_why) == (NOW - 5, NOW + 50, "stock-taking")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(Store(wrong).at(NOW).queue_stats())
    (over,) = send(Store("any").at(NOW + 51).many_queue_stats([paused]))
    assert over is not None
    assert over.paused is None


@pytest.mark.extra
def test_surveys_of_many_queues_are_those_of_each(send: Send, queues: list[str]) -> None:
    found = send(Store("any").at(NOW).many_surveys(queues))
    alone = [send(Store(queue).at(NOW).survey()) for queue in queues if "wrong" not in queue]
    assert found == [alone[0], alone[1], None, alone[2]]
    assert [(lease.worker, lease.left, lease.held) for lease in alone[0].leases] == [("w", 15.0, 2)]
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(Store(queues[2]).at(NOW).survey())


@pytest.mark.parametrize("read", [Store.many_queue_stats, pytest.param(Store.many_surveys, marks=pytest.mark.extra)])
def test_call_ends_after_many_workers(
    send: Send, raw: Any, queue: str, read: Callable[[Store, list[str]], Call[list[Any]]]
) -> None:
    names = [f"{queue}-{n}" for n in range(5)]
    for name in names:
        raw.zadd(keys.root(name) + "leases", {f"w{n}": NOW + 9 for n in range(900)})
    found = send(read(Store("any").at(NOW), names))
    assert 0 < len(found) < len(names)


def test_hours_of_many_queues_are_read_up_to_a_number_of_counts(send: Send, raw: Any, queue: str) -> None:
    other = f"{queue}-other"
    raw.hset(f"{keys.root(queue)}hour:5", mapping={"done 1 2 t": 3, "dead - - t": 1})
    raw.hset(f"{keys.root(other)}hour:6", "done 0 0 u", 2)
    raw.set(f"{keys.root(other)}hour:5", "wrong")
    rows = [(queue, 5), (queue, 6), (other, 5), (other, 6)]
    one = [EndCount("t", "done", 1, 2, 3), EndCount("t", "dead", None, None, 1)]
    assert send(Store("any").hours(rows)) == [one, [], None, [EndCount("u", "done", 0, 0, 2)]]
    assert send(Store("any").hours(rows, most=2)) == [one]


def test_all_workers_of_many_queues_are_asked(send: Send, raw: Any, queue: str) -> None:
    names, channels = [f"{queue}-{n}" for n in range(3)], list[str]()
    with raw.pubsub() as listener:
        listener.subscribe(keys.status_requests(names[0]), keys.status_requests(names[2]))
        listener.get_message(timeout=5)
        listener.get_message(timeout=5)
        assert send(Store("any").request_statuses("me", names)) == [1, 0, 1]
        while len(channels) < 2:
            message = listener.get_message(timeout=5)
            channels += [message["data"].decode()] if message and message["type"] == "message" else []
    assert channels == [keys.status_replies(name, "me") for name in (names[0], names[2])]


def test_slices_of_many_queues_are_those_of_each(send: Send, raw: Any, queues: list[str]) -> None:
    busy, empty, wrong, paused = queues
    raw.set(keys.root(wrong) + "ready", "wrong")
    parts = [FindPart(busy), FindPart(empty), FindPart(wrong), FindPart(paused, "0", ["j", "k"])]
    found = send(Store("any").find_many("ready", condition(), parts, limit=99))
    alone = send(Store(busy).find("ready", condition()))
    assert len(alone.found) == 2
    assert found[:3] == [alone, send(Store(empty).find("ready", condition())), None]
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(Store(wrong).find("ready", condition()))
    for one in parts[::3]:
        ids = [job.id for job in alone.found]
        (named,) = send(
            Store("any").find_many("ready", condition(), [FindPart(one.queue, "7 x", [*ids, "gone"])], limit=9)
        )
        assert named is not None
        assert (named.cursor, len(named.found)) == ("7 x", 3)


def test_jobs_of_many_queues_are_examined_up_to_a_number(send: Send, raw: Any, queue: str) -> None:
    names = [f"{queue}-{n}" for n in range(9)]
    for name in names:
        for job in ("a", "b", "c"):
            raw.hset(keys.job(name, job), "payload", '{"task":"t"}')
            raw.rpush(keys.ready(name), job)
    read = send(Store("any").find_many("ready", condition(), [FindPart(name) for name in names], limit=6))
    counts = [(one.cursor, len(one.found)) for one in read if one is not None]
    assert counts == [("0", 3), ("1 a", 2)], "the second gets what is left, and a queue counts as a job"


@pytest.mark.extra
def test_redacted_arguments_of_one_queue_are_not_those_of_another(send: Send, raw: Any, queue: str) -> None:
    names = [f"{queue}-{n}" for n in range(3)]
    for name in names:
        raw.hset(keys.job(name, "a"), "payload", '{"task":"t","kwargs":{"pin":1}}')
        raw.zadd(keys.root(name) + "dead", {"a": 1.0})
    raw.hset(keys.root(names[1]) + "redactions", "t", '["pin"]')
    matching = condition(arguments=[WantedArgument("pin", 1)])
    read = send(Store("any").find_many("dead", matching, [FindPart(name) for name in names], limit=99))
    assert [one and len(one.found) for one in read] == [1, 0, 1]


def test_recurrences_of_many_queues_are_those_of_each(send: Send, raw: Any, queue: str) -> None:
    first, empty, wrong, last = names = [f"{queue}-{n}" for n in range(4)]
    for name, most in ((first, 3), (last, 2)):
        for n in range(most):
            raw.hset(f"{keys.root(name)}recurrence:r{n}", mapping={"rule": "@daily", "current_due": NOW})
            raw.zadd(f"{keys.root(name)}recurrences", {f"r{n}": NOW + n})
    raw.set(f"{keys.root(wrong)}recurrences", "wrong")
    parts = [RosterPart(first, 1), RosterPart(empty), RosterPart(wrong), RosterPart(last, 0, 1)]
    read = send(Store("any").at(NOW).rosters(parts, ["rule", "zone"], limit=99))
    rows = [None if one is None else (one.total, [(name, at) for name, at, _ in one.rows]) for one in read]
    assert rows == [(3, [("r1", NOW + 1), ("r2", NOW + 2)]), (0, []), None, (2, [("r0", NOW)])]
    assert read[0] is not None
    assert read[0].rows[0][2] == {"rule": b"@daily"}
    assert len(send(Store("any").rosters([RosterPart(first), RosterPart(last)], ["rule"], limit=3))) == 1
    stats = send(Store("any").many_recurrence_stats(names))
    assert [None if one is None else len(one) for one in stats] == [3, 0, 0, 2]
    assert stats[0] == send(Store(first).recurrence_stats())


@pytest.mark.extra
def test_fronts_of_many_queues_are_those_of_each(send: Send, queues: list[str]) -> None:
    busy, _, _, paused = queues
    found = send(Store("any").many_fronts(queues))
    assert found == [send(Store(busy).fronts()), NO_FRONTS, found[2], send(Store(paused).fronts())]
    assert found[0] is not None
    assert found[0].due == ("now", NOW - 1)
    assert found[0].ready == "j1"


@pytest.mark.extra
def test_recurrences_are_read_although_a_call_ends_early(send: Send, raw: Any, queue: str) -> None:
    counted, names = Counted(send), [f"{queue}-{n}" for n in range(6)]
    for name in names:
        raw.zadd(f"{keys.root(name)}recurrences", {f"r{n}": NOW + n for n in range(1500)})
    read = finish(many_queues.read_all_recurrence_stats(counted.send, counted.find_node, names))
    assert [len(one) for one in read] == [0] * 6, "they have too many"
    rows = [(name, key) for name in names for key in ("hour:1", "hour:2")]
    raw.hset(f"{keys.root(names[0])}hour:1", mapping={"a": "x" * 900_000, "b": "x" * 900_000})
    counted.calls = 0
    found = finish(many_queues.read_hashes(counted.send, counted.find_node, rows, as_texts))
    assert (len(found), counted.calls) == (12, 2), "long values count"


class Counted:
    """Sends calls, and counts them."""

    def __init__(self, send: Callable[[Call[Any]], Any]) -> None:
        self._send, self.calls = send, 0

    async def send(self, call: Call[Any], /) -> Any:
        self.calls += 1
        return self._send(call)

    async def find_node(self, key: Word, /) -> None:
        return None


def test_queue_that_redis_refuses_does_not_hide_the_others(send: Send, queues: list[str]) -> None:
    counted = Counted(send)
    found = finish(many_queues.read_queue_stats(counted.send, counted.find_node, queues))
    assert [*found] == queues
    assert [isinstance(found[queue], StoreError) for queue in queues] == [False, False, True, False]
    assert "WRONGTYPE" in str(found[queues[2]])
    assert counted.calls == 2, "one for all, and one that says why"


@pytest.mark.extra
def test_all_queues_are_read_although_a_call_ends_early(send: Send, raw: Any, queue: str) -> None:
    counted, names = Counted(send), [f"{queue}-{n}" for n in range(130)]
    for name in names[:5]:
        raw.zadd(keys.root(name) + "leases", {f"w{n}": NOW + 9 for n in range(900)})
    found = finish(many_queues.read_queue_stats(counted.send, counted.find_node, names))
    assert [stats.workers for stats in found.values() if not isinstance(stats, StoreError)] == [900] * 5 + [0] * 125
    assert counted.calls == 3


@pytest.mark.extra
def test_slice_that_redis_refuses_does_not_hide_the_others(send: Send, raw: Any, queues: list[str]) -> None:
    counted, (busy, empty, wrong, paused) = Counted(send), queues
    raw.set(keys.root(wrong) + "ready", "wrong")
    parts = [FindPart(name) for name in queues]
    found = finish(many_queues.find_slices(counted.send, counted.find_node, "ready", condition(), parts, limit=99))
    assert {name for name, one in found.items() if isinstance(one, StoreError)} == {wrong}
    assert {*found} == {busy, empty, wrong, paused}
    assert counted.calls == 2
    found = finish(many_queues.find_slices(counted.send, counted.find_node, "ready", condition(), parts, limit=1))
    assert {*found} == {busy}, "the others are read next time"


@pytest.mark.extra
@pytest.mark.parametrize("newest", [False, True])
def test_scripts_read_several_slots_without_blocking_others(server: EmbeddedRedis, *, newest: bool) -> None:
    """As `glance`: Valkey 9 refuses all scripts of a node after a command in a script that has keys of two slots."""
    with Cluster(find_server("valkey") if newest else server.server, primaries=2) as cluster:
        node, other = cluster.nodes
        names = (f"q{number}" for number in count())
        first, ready = (next(name for name in names if cluster.primary(name) is node) for _ in range(2))
        elsewhere = next(name for name in names if cluster.primary(name) is other)
        client = cluster.client(node)
        for queue in (first, ready):
            client.zadd(keys.schedule(queue), {"x": 12.5})
            client.hset(f"{keys.root(queue)}hour:5", "done 0 0 u", 2)
        with closing(SyncSender(node.url)) as sender:
            asked = [ready, elsewhere, first]
            stats = sender.send(Store(first).many_queue_stats(asked))
            assert [one and one.places["schedule"] for one in stats] == [1, None, 1]
            surveys = sender.send(Store(first).many_surveys(asked))
            assert [one is None for one in surveys] == [False, True, False]
            hours = sender.send(Store(first).hours([(name, 5) for name in asked]))
            assert [one is None for one in hours] == [False, True, False]
            found = sender.send(Store(first).find_many("schedule", condition(), [*map(FindPart, asked)], limit=9))
            assert [one and len(one.found) for one in found] == [1, None, 1]
            rosters = sender.send(Store(first).rosters([*map(RosterPart, asked)], ["rule"], limit=9))
            assert [one is None for one in rosters] == [False, True, False]
            latest = sender.send(Store(first).many_recurrence_stats(asked))
            assert [one is None for one in latest] == [False, True, False]
            fronts = sender.send(Store(first).many_fronts(asked))
            assert [one is None for one in fronts] == [False, True, False]
            assert sender.send(Store(first).request_statuses("me", asked)) == [0, 0, 0]
            for queue in (first, ready):
                sender.send(Store(queue).dispatch(limit=1, cap=1000))
