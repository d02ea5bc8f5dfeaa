"""Jobs by a filter from Python, with an event loop and without one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest

from evsched import ConfigError, Filter, Swept, keys
from evsched.client.client import Client, SyncClient
from evsched.client.operations import Send, Step
from evsched.client.sweep import Sweep
from evsched.errors import StoreDown
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender

FAR = 2e9
PAY = Filter(task="pay")


@pytest.fixture
async def client(server: EmbeddedRedis) -> AsyncGenerator[Client]:
    client = Client(server.url)
    yield client
    await client.close()


def jobs(count: int, due: float = FAR) -> list[New]:
    return [New(f"j{n}", b'{"task":"%s"}' % (b"mail" if n % 2 else b"pay"), due=due) for n in range(count)]


async def test_jobs_are_found_rescheduled_and_cancelled(client: Client, queue: str) -> None:
    await client.enqueue(queue, jobs(1000))
    assert {match.id for match in await client.find(queue, PAY)} == {f"j{n}" for n in range(0, 1000, 2)}
    assert await client.find(queue, PAY, "dead") == []
    assert await client.reschedule_matching(queue, PAY, FAR + 9) == Swept(500, 500)
    assert {match.at for match in await client.find(queue, PAY)} == {FAR + 9}
    assert await client.cancel_matching(queue, PAY) == Swept(500, 500)
    assert await client.find(queue, PAY) == []
    assert len(await client.find(queue, Filter())) == 500


async def test_dead_jobs_are_revived_and_dropped(client: Client, queue: str, raw: Any) -> None:
    await client.enqueue(queue, jobs(4))
    raw.zadd(f"evsched:{{{queue}}}:dead", {f"j{n}": 1.0 for n in range(4)})
    raw.delete(f"evsched:{{{queue}}}:schedule")
    assert await client.revive_matching(queue, Filter(task="pay", older=timedelta(hours=2))) == Swept(2, 2)
    assert await client.drop_matching(queue, Filter(older=60)) == Swept(2, 2)
    assert await client.find(queue, Filter(since=timedelta(hours=1)), "dead") == []
    assert {match.id for match in await client.find(queue, Filter())} == {"j0", "j2"}


def test_the_client_without_an_event_loop_does_the_same(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    client = SyncClient(server.url)
    client.enqueue(queue, jobs(10))
    assert client.reschedule_matching(queue, PAY, FAR + 9) == Swept(5, 5)
    assert client.cancel_matching(queue, PAY) == Swept(5, 5)
    raw.rename(f"evsched:{{{queue}}}:schedule", f"evsched:{{{queue}}}:dead")
    assert {match.place for match in client.find(queue, Filter(task="mail"))} == {"dead"}
    raw.zadd(f"evsched:{{{queue}}}:dead", {f"j{n}": raw.time()[0] if n > 1 else 1.0 for n in range(1, 10, 2)})
    assert client.revive_matching(queue, Filter(older=60)) == Swept(1, 1)
    assert client.drop_matching(queue, Filter(task="mail")) == Swept(4, 4)
    client.close()


@pytest.mark.one_server
async def test_a_user_is_named_in_the_record_of_a_job(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    raw.acl_setuser("billing", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all"])
    where, _, option = server.url.partition("?")
    client = Client(f"{where}?username=billing&password=x{option and '&' + option}")
    await client.enqueue(queue, jobs(1))
    assert [match.by for match in await client.find(queue, Filter())] == ["billing"]
    await client.close()
    raw.acl_deluser("billing")


class Moved(Client):
    """Does something else just before a call."""

    def __init__(self, url: str, before: str, do: Callable[[], Any]) -> None:
        super().__init__(url)
        self._before, self._do = before, do

    async def perform(self, step: Step) -> Any:
        if isinstance(step, Send) and step.call.name == self._before:
            self._do()
        return await super().perform(step)


async def test_a_job_that_starts_after_it_was_found_is_left_and_counted(
    server: EmbeddedRedis, queue: str, raw: Any
) -> None:
    root = f"evsched:{{{queue}}}:"

    def fetch() -> None:
        raw.zrem(f"{root}schedule", "j0")
        raw.rpush(f"{root}processing:w", "j0")

    client = Moved(server.url, "cancel", fetch)
    await client.enqueue(queue, jobs(10))
    swept = await client.cancel_matching(queue, PAY)
    assert (swept, swept.left) == (Swept(5, 4), 1)
    assert raw.exists(f"{root}job:j0")
    raw.delete(f"{root}processing:w", f"{root}job:j0")
    await client.close()


async def test_a_job_that_is_met_again_in_another_place_is_rescheduled_once(
    server: EmbeddedRedis, queue: str, raw: Any
) -> None:
    """Otherwise a command could run for as long as jobs move."""
    sender, store = SyncSender(server.url), Store(queue)
    client = Moved(server.url, "find", lambda: sender.send(store.dispatch(limit=500, cap=999)))
    await client.enqueue(queue, jobs(100))
    assert await client.reschedule_matching(queue, PAY) == Swept(50, 50)
    waiting = raw.zcard(f"evsched:{{{queue}}}:backlog") + raw.llen(f"evsched:{{{queue}}}:ready")
    assert waiting == 50, "they stay where the dispatcher has moved them"
    await client.close()
    sender.close()


@pytest.mark.extra
@pytest.mark.parametrize("before", ["find", "cancel"])
async def test_no_job_is_missed_when_redis_restarts_in_the_middle(own: EmbeddedRedis, queue: str, before: str) -> None:
    """A scan that another server began passes over jobs."""
    calls = list[str]()

    def restart() -> None:
        calls.append(before)
        if len(calls) == 5:
            own.restart()

    moved = Moved(own.url, before, restart)
    await moved.enqueue(queue, jobs(3000))
    swept = await moved.cancel_matching(queue, PAY)
    assert (swept.matched, swept.changed, swept.left) == (1500, 1500, 0)
    assert {match.task for match in await moved.find(queue, Filter())} == {"mail"}
    await moved.close()


class Losing(Client):
    """Loses the reply to its first call of a verb, and then does something."""

    def __init__(self, url: str, verb: str, then: Callable[[], Any] = lambda: None) -> None:
        super().__init__(url)
        self._verb, self._then, self._lost = verb, then, False

    async def perform(self, step: Step) -> Any:
        done = await super().perform(step)
        if isinstance(step, Send) and step.call.name == self._verb and not self._lost:
            self._lost = True
            self._then()
            raise StoreDown("the connection was closed", kind="connection", unsure=True)
        return done


async def test_a_change_whose_answer_is_lost_is_counted_apart(own: EmbeddedRedis, queue: str) -> None:
    losing = Losing(own.url, "cancel")
    await losing.enqueue(queue, jobs(300))
    swept = await losing.cancel_matching(queue, PAY)
    assert (swept.matched, swept.left) == (150, 0)
    assert 0 < swept.unknown < 150
    assert {match.task for match in await losing.find(queue, Filter())} == {"mail"}
    await losing.close()


@pytest.mark.parametrize("verb", ["reschedule", pytest.param("cancel", marks=pytest.mark.extra)])
async def test_audit_counts_a_job_once_that_is_changed_again(server: EmbeddedRedis, queue: str, verb: str) -> None:
    losing = Losing(server.url, verb)
    await losing.enqueue(queue, jobs(1000))
    acting: Any = losing.as_operator("ann")
    await acting.reschedule_matching(queue, PAY, FAR) if verb == "reschedule" else await acting.cancel_matching(
        queue, PAY
    )
    (act,) = await losing.audit(queue)
    assert (act.act, act.count, len(act.ids)) == (verb, 500, len(set(act.ids)))
    await losing.close()


@pytest.mark.parametrize("verb", ["revive", pytest.param("drop", marks=pytest.mark.extra)])
@pytest.mark.parametrize("by", ["filter", "id"])
async def test_job_that_dies_again_after_a_lost_reply_stays_dead(
    server: EmbeddedRedis, queue: str, raw: Any, verb: str, by: str
) -> None:
    root = f"evsched:{{{queue}}}:"

    def die() -> None:
        raw.zrem(f"{root}schedule", "j0")
        raw.hset(f"{root}job:j0", mapping={"payload": '{"task":"pay"}'})
        raw.zadd(f"{root}dead", {"j0": raw.time()[0] + 1})

    losing = Losing(server.url, verb, die)
    raw.hset(f"{root}job:j0", mapping={"payload": '{"task":"pay"}'})
    raw.zadd(f"{root}dead", {"j0": raw.time()[0] - 9})
    client: Any = losing
    if by == "filter":
        await getattr(client, f"{verb}_matching")(queue, PAY)
    else:
        assert await getattr(client, verb)(queue, ["j0"]) == 1
    assert [match.id for match in await losing.find(queue, PAY, "dead")] == ["j0"]
    assert await losing.find(queue, PAY, "schedule") == []
    await losing.close()


@pytest.mark.parametrize("name", ["cancel", "reschedule", "revive", "drop"])
async def test_a_filter_without_a_condition_changes_nothing(client: Client, queue: str, name: str) -> None:
    with pytest.raises(ConfigError, match="every job would match"):
        await getattr(client, f"{name}_matching")(queue, Filter())


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": ""},
        {"tags": "vip"},
        {"arguments": {"a": object()}},
        {"arguments": {"a": [2**53]}},
        {"arguments": {"": 1}},
        {"group": 5},
        {"reason": ""},
        {"older": -1},
        {"older": float("inf")},
    ],
)
def test_a_wrong_condition_is_refused_where_it_is_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Filter(**wrong)


@pytest.mark.parametrize("name", ["task", "group", "reason"])
def test_a_condition_that_cannot_be_sent_is_refused(name: str) -> None:
    conditions: Any = {name: "\ud800"}
    with pytest.raises(ConfigError, match=f"{name} is .*UTF-8"):
        Filter(**conditions)


@pytest.mark.parametrize(
    ("method", "args", "options", "words"),
    [
        ("find", (None,), {}, "matching is None: give a Filter"),
        ("history", (Filter(task="a"),), {}, "matching is Filter.*: give a HistoryFilter"),
        ("history", ("a",), {}, "matching is 'a': give a HistoryFilter"),
        ("history", (), {"limit": "5"}, "limit is '5': give a whole number, 1 or more"),
        ("history", (), {"limit": 0}, "limit is 0"),
        ("history_page", (), {"limit": None}, "limit is None"),
        ("history_page", (), {"cursor": 5}, "cursor is not valid"),
        ("history_counts", (), {"task": 5}, "task is 5: give a string"),
        ("audit", (), {"limit": "a"}, "limit is 'a'"),
        ("audit", (), {"act": "reviv"}, "act is 'reviv', did you mean 'revive'"),
        ("audit", (), {"who": 5}, "who is 5: give a string"),
        ("audit", (), {"id": ""}, "id is ''"),
        ("revive", ("abc",), {}, "ids is 'abc': give a list of ids"),
        ("revive", (None,), {}, "ids is None: give a list of ids"),
        ("drop", ([5],), {}, r"ids is \[5\]: give a list of ids"),
        ("limit", (), {"history_age": timedelta(days=1000)}, "history_age is 86,400,000 s: must be from 60 to"),
        ("limit", (), {"rate": timedelta(1)}, "rate is datetime.timedelta"),
        ("limit", (), {"group": "", "rate": None}, "group is ''"),
        ("limit", (), {"group": "\x00", "rate": 1}, "group is '.x00': give"),
    ],
)
async def test_argument_of_another_type_is_refused_by_its_name(
    client: Client, queue: str, method: str, args: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        await getattr(client, method)(queue, *args, **options)


async def test_name_of_an_operator_that_cannot_be_sent_is_refused(client: Client) -> None:
    with pytest.raises(ConfigError, match="an operator's name is a text"):
        client.as_operator("\ud800")


async def test_age_of_the_history_may_be_a_timedelta(client: Client, queue: str) -> None:
    assert (await client.limit(queue, history_age=timedelta(days=1))).queue == {"history_age": 86400.0}


async def test_jobs_are_found_in_places_that_exist(client: Client, queue: str) -> None:
    place: Any = "procesing"
    with pytest.raises(ConfigError, match="place is 'procesing', did you mean 'processing'"):
        await client.find(queue, PAY, place)


async def test_ended_jobs_of_many_queues_are_found_by_one_walk(client: Client, queue: str, raw: Any) -> None:
    stores = [client.store(f"{queue}-{n}") for n in range(20)]
    for store in stores:
        for n in range(30):
            fields = {"payload": '{"task":"pay"}' if n % 3 else '{"task":"mail"}', "finished": 1.7e9 + n}
            raw.hset(keys.job(store.queue, f"j{n}"), mapping=fields)
        raw.zadd(keys.root(store.queue) + "dead", {"j1": 1.0})
    raw.hset(keys.job(f"{queue}-other", "j1"), mapping={"payload": '{"task":"pay"}', "finished": 1.7e9})
    sweep, sent, perform = Sweep(stores, PAY, ["finished"]), list[str](), client.perform

    async def counted(step: Step) -> Any:
        sent.append(step.call.name if isinstance(step, Send) else "")
        return await perform(step)

    client.perform = counted
    await client.run(sweep.finish())
    wanted = {(store.queue, f"j{n}") for store in stores for n in range(30) if n % 3 and n != 1}
    assert {(found_in, match.id) for found_in, match in sweep.found_in} == wanted
    assert len(sweep.found) == len(wanted)
    nodes, size = sent.count("DBSIZE"), len(raw.keys("*"))
    assert sent.count("SCAN") <= nodes * (size / 500 + 2)
    assert sent.count("find") == len(stores), "records are examined when the walk has met many, or is over"


@pytest.mark.extra
async def test_places_without_jobs_are_not_searched(client: Client, queue: str, raw: Any) -> None:
    stores = [client.store(f"{queue}-{n}") for n in range(20)]
    await client.enqueue(stores[3].queue, jobs(3))
    sweep, sent, perform = Sweep(stores, PAY, ["schedule", "backlog", "ready", "dead"]), list[str](), client.perform

    async def counted(step: Step) -> Any:
        sent.append(step.call.name if isinstance(step, Send) else "")
        return await perform(step)

    client.perform = counted
    await client.run(sweep.finish())
    assert [(found_in, match.id) for found_in, match in sweep.found_in] == [
        (stores[3].queue, "j0"),
        (stores[3].queue, "j2"),
    ]
    assert sent.count("find") == 4
    assert sent.count("queue_stats") <= 3, "one for each node"
