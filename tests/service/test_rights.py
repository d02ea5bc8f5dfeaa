"""The users of redis.conf: each part of a system has the rights that it needs, and no others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from evsched import App, JobDead, StoreRefused, current_job, events, keys
from evsched.api.replies import Problem
from evsched.client.client import SyncClient
from evsched.config import Config
from evsched.mcp.tools import ToolCalls
from evsched.store.store import Store
from evsched.top.collector import Top
from evsched.transport.call import Call
from evsched.transport.call import raw as raw_reply
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.subscription import Subscription
from tests.support.api import calling
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.system import system

CONF = Path(__file__).parents[2] / "redis.conf"
USERS = re.findall(r"^# user (\w+) (.*)$", CONF.read_text(), re.MULTILINE)


@pytest.fixture
def own() -> Generator[EmbeddedRedis]:
    """A server that has the users of redis.conf."""
    with EmbeddedRedis() as server:
        raw = plain_client(server.url)
        for name, rules in USERS:
            if name != "default":
                raw.execute_command("ACL", "SETUSER", name, *words_of(rules))
        raw.close()
        yield server


@contextmanager
def as_user(server: EmbeddedRedis, user: str) -> Generator[Any]:
    """Connect as a user, '' = as an administrator, with a client that does not send CLIENT SETINFO."""
    link = plain_client(url(server, user) if user else server.url, single_connection_client=True)
    try:
        yield link
    finally:
        link.close()


def words_of(rules: str) -> list[str]:
    """Split rules, a parenthesis as one word."""
    return re.findall(r"\([^)]*\)|\S+", rules)


def url(server: EmbeddedRedis, user: str) -> str:
    return server.url.replace("unix://", f"unix://{user}:change-me@")


@pytest.mark.parametrize("named", [False, True], ids=["all queues", "one queue"])
async def test_each_part_works_under_its_own_user(own: EmbeddedRedis, queue: str, named: bool) -> None:
    app = App(url(own, "client"), queue=queue)

    @app.task
    async def hang() -> None:
        await current_job().progress(1, 2)
        await asyncio.Event().wait()

    @app.task
    async def noop() -> int:
        return 1

    dispatching = Config(url=url(own, "dispatcher"), queues=(queue,) if named else ())
    working = Config(url=url(own, "worker"), queues=(queue,), shutdown_grace=0.2, kill_grace=0.2)
    client = SyncClient(url(own, "client"))
    observer = SyncClient(url(own, "observer"))
    async with system(dispatching, App(queue=queue), workers=0), system(working, app, dispatch=False) as whole:
        await whole.recorder.wait(events.WorkerStarted)
        app.move_to(url(own, "client"))
        client.send(Store(queue).limit({"concurrency": 5, "rate": 100, "rate:alice": 50, "concurrency:alice": 2}))
        jobs = await noop.using(group="alice").enqueue_many([()] * 9)
        assert [await job.result(PATIENCE) for job in jobs] == [1] * 9
        client.send(Store(queue).pause())
        later = await noop.enqueue()
        client.send(Store(queue).resume())
        assert await later.result(PATIENCE) == 1
        job = await hang.enqueue()
        await whole.recorder.wait(events.Started, lambda event: job.id in event.ids)
        assert observer.send(Store(queue).explain(job.id)).holder == whole.workers[0].id
        assert len(observer.send(Store(queue).survey()).leases) == 1
        top = Top(url(own, "observer"), (queue,) if named else ())
        (status,) = (await top.look()).statuses
        assert [run.id for run in status.runs] == [job.id]
        await top.close()
        await job.cancel()
        with pytest.raises(JobDead, match="cancelled"):
            await job.result(PATIENCE)
    with pytest.raises(StoreRefused, match=r"^pause: .*; the ACL of this Redis user lacks a right") as refusal:
        observer.send(Store(queue).pause())
    assert "script: " not in str(refusal.value)
    for channel in (keys.control(queue, "w"), keys.status_replies(queue, "me"), keys.gate(queue)):
        with pytest.raises(StoreRefused, match="channel"):
            observer.send(Call(("PUBLISH", channel, "x"), raw_reply))
    for channel in (keys.status_requests(queue), keys.progress(queue, "x"), keys.control(queue, "w")):
        subscription = Subscription(url(own, "observer"))
        with pytest.raises(StoreRefused, match="channel"):
            await subscription.open([], [channel])
    client.close()
    observer.close()
    raw = plain_client(own.url)
    refused = raw.execute_command("ACL", "LOG")
    raw.close()
    assert {entry[entry.index(b"username") + 1] for entry in refused} <= {b"observer"}


@pytest.mark.parametrize("user", ["worker", "dispatcher"])
async def test_the_api_works_as_the_users_that_its_page_names(own: EmbeddedRedis, queue: str, user: str) -> None:
    jobs, recurrence = f"/v1/queues/{queue}/jobs", f"/v1/queues/{queue}/recurrences/r"
    async with calling(url(own, user), queues=(queue,) if user == "worker" else ()) as api:
        assert (await api.ask("GET", "/readyz", token=None)).status_code == 200
        assert (await api.ask("GET", f"/v1/queues/{queue}/scale")).status_code == 404, "it is not used yet"
        for method, path, body in (
            ("POST", jobs, {"task": "t", "id": "a", "delay": 99}),
            ("GET", f"/v1/queues/{queue}/scale", None),
            ("POST", jobs, {"task": "t", "delay": 99, "unique": {"within": 9}}),
            ("GET", f"{jobs}?task=t", None),
            ("GET", jobs, None),
            ("GET", f"{jobs}/a/result?wait=0.01", None),
            ("PATCH", f"{jobs}/a", {"delay": 98}),
            ("DELETE", f"{jobs}/a", None),
            ("PUT", recurrence, {"rule": "@daily", "task": "t"}),
            ("POST", f"{recurrence}/pause", {"why": "w"}),
            ("POST", f"{recurrence}/resume", None),
            ("POST", f"{recurrence}/trigger", None),
            ("DELETE", recurrence, None),
            ("GET", "/v1/queues", None),
        ):
            assert (await api.ask(method, path, body)).is_success, path
    raw = plain_client(own.url)
    assert raw.execute_command("ACL", "LOG") == []
    raw.close()


async def test_tools_of_a_language_model_work_as_the_observer_that_can_change_nothing(
    own: EmbeddedRedis, queue: str
) -> None:
    async with calling(own.url) as api:
        assert (await api.ask("POST", f"/v1/queues/{queue}/jobs", {"task": "t", "id": "a", "delay": 99})).is_success
    calls = ToolCalls(Config(url=url(own, "observer")), "model", write=True)
    try:
        assert [row["queue"] for row in (await calls.call("list_queues", {}))["queues"]] == [queue]
        for tool in ("find_jobs", "history", "history_counts", "list_recurrences", "show_limits", "doctor"):
            await calls.call(tool, {"queue": queue})
        for tool in ("show_job", "explain"):
            await calls.call(tool, {"queue": queue, "id": "a"})
        for tool in ("run_now", "cancel"):
            with pytest.raises(Problem, match="Redis refused this"):
                await calls.call(tool, {"queue": queue, "id": "a"})
        with pytest.raises(Problem, match="Redis refused this"):
            await calls.call("pause_queue", {"queue": queue})
        assert (await calls.call("show_job", {"queue": queue, "id": "a"}))["place"] == "schedule"
    finally:
        await calls.close()


DENIED: dict[str, str] = {
    "producer": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · MONITOR · KEYS * · SCAN 0 · RANDOMKEY · DBSIZE
        ZRANGE {q}schedule 0 -1 · ZSCORE {q}schedule x · ZRANGESTORE {q}schedule {q}schedule 0 -1 · ZCARD {q}schedule
        WATCH {q}schedule · DEL {q}schedule · RENAME {q}job:x {q}job:y · RESTORE {q}job:y 0 x · COPY {q}job:x {q}job:y
        DEL {q}job:x · HDEL {q}job:x payload · TYPE {q}job:x · ZADD {q}dead 0 x · ZADD {q}backlog 0 x
        ZADD {q}recurrences 0 x · ZADD {q}leases 0 x · HSET {q}limits paused 1 · HSET {q}windows w x
        HSET {q}recurrence:r rule x · LRANGE {q}ready 0 -1 · LPUSH {q}ready x · DEL {q}ready · BLPOP {q}ready 1
        BLPOP {q}processing:w 1 · DEL {q}processing:w · LPUSH {q}reply:x y · LRANGE {q}reply:x 0 -1
        EVAL return{} 1 {q} · EVALSHA 00 1 {q} · SCRIPT LOAD return{} · FUNCTION LIST · SUBSCRIBE {q}progress:x
        PSUBSCRIBE * · PUBLISH {q}gate 1 · PUBLISH {q}control:w x · CONFIG GET * · CONFIG SET maxmemory 1 · ACL LIST
        FLUSHALL · SHUTDOWN · SET other x · GET other · SORT {q}schedule
    """,
    "client": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · CLIENT UNBLOCK 1 · MONITOR · KEYS * · SCAN 0
        RANDOMKEY · INFO · CONFIG GET * · CONFIG SET maxmemory 1 · ACL LIST · FLUSHALL · SHUTDOWN · SET other x
        GET other · DEL other · RENAME {q}job:x other · EVAL return(redis.call('SET','other','x')) 0
        PUBLISH other x · SUBSCRIBE other · PSUBSCRIBE * · SCRIPT FLUSH · SCRIPT KILL · FUNCTION LIST
    """,
    "worker": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · MONITOR · KEYS * · SCAN 0 · RANDOMKEY
        CONFIG GET * · CONFIG SET maxmemory 1 · ACL LIST · FLUSHALL · SHUTDOWN · SET other x · GET other
        BLMOVE {q}ready other LEFT LEFT 1 · EVAL return(redis.call('SET','other','x')) 0 · PUBLISH other x
        SUBSCRIBE other · PSUBSCRIBE * · SCRIPT FLUSH · SCRIPT KILL
    """,
    "dispatcher": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · CLIENT UNBLOCK 1 · MONITOR · KEYS * · RANDOMKEY
        CONFIG SET maxmemory 1 · ACL LIST · FLUSHALL · SHUTDOWN · SET other x · GET other
        EVAL return(redis.call('SET','other','x')) 0 · PUBLISH other x · PSUBSCRIBE * · PSUBSCRIBE __keyspace@0__:*
        SCRIPT FLUSH · SCRIPT KILL
    """,
    "console": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · CLIENT UNBLOCK 1 · MONITOR · KEYS * · RANDOMKEY
        CONFIG GET * · CONFIG SET maxmemory 1 · ACL LIST · FLUSHALL · SHUTDOWN · SET other x · GET other · DEL other
        EVAL return(redis.call('SET','other','x')) 0 · PUBLISH other x · SUBSCRIBE other · PSUBSCRIBE *
        SCRIPT FLUSH · SCRIPT KILL · FUNCTION LIST
    """,
    "ledger": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · CLIENT UNBLOCK 1 · MONITOR · KEYS * · SCAN 0
        RANDOMKEY · CONFIG GET * · CONFIG SET maxmemory 1 · ACL LIST · FLUSHALL · SHUTDOWN · SET other x · GET other
        XADD other * x y · XREAD STREAMS other 0 · EVAL return(redis.call('SET','other','x')) 0 · PUBLISH other x
        SUBSCRIBE {q}progress:x · PSUBSCRIBE * · SCRIPT FLUSH · SCRIPT KILL
    """,
    "observer": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · MONITOR · KEYS * · CONFIG GET * · ACL LIST
        FLUSHALL · SHUTDOWN · SET other x · GET other · HSET {q}job:x payload y · DEL {q}job:x · ZADD {q}schedule 0 x
        SET {q} x · DEL {q} · EVAL return(redis.call('SET',KEYS[1],'x')) 1 {q} · LPUSH {q}ready x
        EVAL return(redis.call('DEL',KEYS[1]..'ready')) 1 {q} · EVAL return(redis.call('GET','other')) 0
        PUBLISH {q}control:w x · PUBLISH {q}gate 1 · SUBSCRIBE {q}control:w · PSUBSCRIBE * · SCRIPT FLUSH · SCRIPT KILL
    """,
    "doctor": """
        CLIENT TRACKING ON BCAST · CLIENT LIST · CLIENT KILL ID 1 · MONITOR · KEYS * · CONFIG SET maxmemory 1
        ACL LIST · ACL SETUSER x · FLUSHALL · SHUTDOWN · GET other · HSET {q}job:x payload y · DEL {q}job:x
        ZADD {q}schedule 0 x · ZADD {q}dead 0 x · EVAL return(redis.call('ZADD',KEYS[1]..'dead',0,'x')) 1 {q}
        EVAL return(redis.call('DEL',KEYS[1]..'ready')) 1 {q} · PUBLISH {q}control:w x · PSUBSCRIBE * · SCRIPT FLUSH
    """,
}
"""By user, commands that it may not run."""

CONNECT = "HELLO 2 · CLIENT SETNAME me · CLIENT GETNAME · CLIENT ID · COMMAND COUNT · PING · SELECT 0 · ECHO x"
"""What clients of all languages send when they connect."""


def commands(text: str, queue: str) -> list[list[str]]:
    """Return the commands in a text, each as a list of words."""
    return [
        line.split() for line in text.replace("·", "\n").replace("{q}", keys.root(queue)).splitlines() if line.split()
    ]


def outcome(client: Any, words: list[str]) -> str:
    """Send a command; return "done", or how it was refused."""
    try:
        client.connection.send_command(*words)
        client.connection.read_response()
    except NoPermissionError:
        return "refused"
    except ResponseError as error:
        return "refused" if "The user executing the script can't" in str(error) else str(error)
    return "done"


@pytest.mark.parametrize("user", DENIED)
def test_a_user_can_do_nothing_beyond_its_role(own: EmbeddedRedis, queue: str, user: str) -> None:
    with as_user(own, "") as raw:
        raw.execute_command("HSET", keys.job(queue, "x"), "payload", "{}")
        raw.execute_command("SET", "other", "theirs")
        before = {key: raw.execute_command("DUMP", key) for key in sorted(raw.execute_command("KEYS", "*"))}
        for words in commands(DENIED[user], queue):
            with as_user(own, user) as client:
                assert outcome(client, words) == "refused", words
        assert {key: raw.execute_command("DUMP", key) for key in sorted(raw.execute_command("KEYS", "*"))} == before


@pytest.mark.parametrize("user", DENIED)
def test_user_may_send_the_commands_of_connecting_clients(own: EmbeddedRedis, queue: str, user: str) -> None:
    with as_user(own, user) as client:
        for words in commands(CONNECT, queue):
            assert outcome(client, words) == "done", words
        assert "permission" not in outcome(client, ["CLIENT", "SETINFO", "LIB-NAME", "x"])


def test_a_producer_schedules_in_a_transaction_and_clears_a_reply(own: EmbeddedRedis, queue: str) -> None:
    reply, record, schedule = keys.reply(queue, "42"), keys.job(queue, "42"), keys.schedule(queue)
    with as_user(own, "producer") as client:
        pipe = client.pipeline(transaction=True)
        pipe.delete(reply)
        pipe.hset(record, mapping={"payload": '{"task":"noop"}'})
        pipe.zadd(schedule, {"42": 1900000000})
        assert pipe.execute() == [0, 1, 1]
        assert client.unlink(reply) == 0
        client.execute_command("INFO")
        pipe = client.pipeline(transaction=True)
        pipe.zadd(schedule, {"43": 1})
        pipe.zrange(schedule, 0, -1)
        with pytest.raises(NoPermissionError):
            pipe.execute()
        assert client.zrem(schedule, "43") == 0  # the refused transaction has done nothing


def test_a_producer_that_knows_an_id_learns_no_more_than_the_docs_say(own: EmbeddedRedis, queue: str) -> None:
    with as_user(own, "producer") as client:
        client.zadd(keys.schedule(queue), {"42": 1900000000})
        assert client.execute_command("ZADD", keys.schedule(queue), "XX", "INCR", "0", "42") == 1900000000
        assert client.execute_command("ZADD", keys.schedule(queue), "XX", "INCR", "0", "43") is None


def test_a_producer_with_a_queue_of_its_own_can_touch_no_other_key(own: EmbeddedRedis) -> None:
    rules = dict(USERS)["producer"].replace("{*}", "{mail}")
    root = "evsched:{mail}:"
    with as_user(own, "") as raw:
        raw.execute_command("ACL", "SETUSER", "producer", "reset", *words_of(rules))
    with as_user(own, "producer") as client:
        assert outcome(client, ["ZADD", root + "schedule", "1", "x"]) == "done"
        for words in (
            ["ZADD", "evsched:{other}:schedule", "1", "x"],
            ["ZADD", root + "processing:e}:schedule", "1", "x"],
            ["HSET", root + "backlog:}:job:x", "a", "1"],
            ["DEL", root + "processing:}:reply:x"],
        ):
            assert outcome(client, words) == "refused", words
