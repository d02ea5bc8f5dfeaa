"""Sentinel: the primary is found, and followed through failovers, by dispatchers, workers and clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evsched import App, StoreDown, StoreRefused, keys, process_events
from evsched.client.client import SyncClient
from evsched.client.job_handle import Job, SyncJob
from evsched.client.task_handle import AsyncTask
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.transport import connection
from evsched.transport.call import Call, raw
from evsched.transport.connection import primary
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.links import new_link
from evsched.transport.senders import BatchingSender, DirectSender
from tests.support.certificates import make_certificates
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.sentinels import NAME, Sentinels
from tests.support.system import system

pytestmark = pytest.mark.anyio

PING = Call(("PING",), raw)
JOBS = 100


@pytest.fixture
def sentinels(server: EmbeddedRedis) -> Generator[Sentinels]:
    with Sentinels(server.server) as found:
        yield found


class Handled:
    """How often each job was handled."""

    def __init__(self) -> None:
        self.counts = Counter[int]()
        self._changed = asyncio.Event()

    def add(self, number: int) -> None:
        self.counts[number] += 1
        self._changed.set()

    async def all_of(self, numbers: range) -> None:
        async with asyncio.timeout(PATIENCE):
            while not set(numbers) <= self.counts.keys():
                self._changed.clear()
                await self._changed.wait()


class Scene(NamedTuple):
    recorder: Recorder
    app: App
    handle: AsyncTask[[int], None]
    handled: Handled


@asynccontextmanager
async def serving(url: str, queue: str) -> AsyncGenerator[Scene]:
    app, handled = App(url, queue=queue), Handled()

    @app.task
    async def handle(number: int) -> None:
        handled.add(number)

    async with system(Config(url=url, queues=(queue,)), app) as running:
        yield Scene(running.recorder, app, handle, handled)


async def nothing() -> None: ...


def kill(sentinels: Sentinels, primary: EmbeddedRedis) -> None:
    primary.kill()


def freeze(sentinels: Sentinels, primary: EmbeddedRedis) -> None:
    """Connections to it stay open, and nothing on them is answered."""
    os.kill(primary.pid, signal.SIGSTOP)


def order(sentinels: Sentinels, primary: EmbeddedRedis) -> None:
    """The operator's own failover. The old primary lives on, as a replica."""
    sentinels.order_failover()


@pytest.mark.parametrize("lose", [kill, order, pytest.param(freeze, marks=pytest.mark.extra)])
async def test_work_continues_at_the_new_primary_after_a_failover(
    sentinels: Sentinels, queue: str, lose: Callable[[Sentinels, EmbeddedRedis], None]
) -> None:
    async with serving(sentinels.url, queue) as (recorder, app, handle, handled):
        with app.sync() as client:
            for number in range(JOBS):  # due before, during and after the failover
                client.enqueue(handle.using(delay=6 * number / JOBS), number)
            old = sentinels.primary()
            assert await asyncio.to_thread(sentinels.client(old).wait, 2, 5000) == 2
            lose(sentinels, old)
            new = await asyncio.to_thread(sentinels.wait_for_failover, old)
            await handled.all_of(range(JOBS))
            client.enqueue(handle, JOBS)
            await handled.all_of(range(JOBS + 1))
        # The flags are not part of what is replicated.
        assert set("Kzg") <= set(sentinels.client(new).config_get("notify-keyspace-events").popitem()[1])
        assert sentinels.client(new).exists(keys.QUEUES)
        assert not recorder.of(process_events.NotificationsMissing)


@pytest.fixture
def old(sentinels: Sentinels) -> EmbeddedRedis:
    """The primary before a failover. The sentinels may not demote it: it accepts writes for as long as it lives."""
    found = sentinels.primary()
    sentinels.client(found).acl_setuser("default", enabled=True, commands=["+@all", "-replicaof", "-slaveof"])
    return found


def written(client: Any, queue: str, job: Job[None] | SyncJob[None]) -> bool:
    return bool(client.exists(keys.job(queue, job.id)))


async def test_a_program_leaves_an_old_primary_that_still_accepts_writes(
    sentinels: Sentinels, old: EmbeddedRedis, queue: str
) -> None:
    app = App(sentinels.url, queue=queue)
    handle = app.task(nothing)
    await handle.enqueue()
    order(sentinels, old)
    new = sentinels.client(await asyncio.to_thread(sentinels.wait_for_failover, old))
    async with asyncio.timeout(PATIENCE):
        while not written(new, queue, await handle.enqueue()):
            pass
    await app.close()


def test_a_program_without_an_event_loop_leaves_such_a_primary(
    sentinels: Sentinels, old: EmbeddedRedis, queue: str
) -> None:
    app = App(sentinels.url, queue=queue)
    handle = app.task(nothing)
    with app.sync() as client:
        client.enqueue(handle)
        order(sentinels, old)
        new, until = sentinels.client(sentinels.wait_for_failover(old)), time.monotonic() + PATIENCE
        while not written(new, queue, client.enqueue(handle)):
            assert time.monotonic() < until, "it still writes to the old primary"


async def test_a_planned_failover_behind_a_pause_loses_nothing(
    sentinels: Sentinels, old: EmbeddedRedis, queue: str
) -> None:
    """The procedure of docs/deploy.md."""
    app = App(sentinels.url, queue=queue)
    handle, ids, stop = app.task(nothing), list[str](), threading.Event()

    async def write() -> None:
        while not stop.is_set():
            ids.append((await handle.using(delay=3600).enqueue()).id)

    def write_without_loop() -> None:
        with app.sync() as client:
            while not stop.is_set():
                ids.append(client.enqueue(handle.using(delay=3600)).id)

    async with asyncio.TaskGroup() as writers:
        writers.create_task(write())
        writers.create_task(asyncio.to_thread(write_without_loop))
        try:
            new = await asyncio.to_thread(sentinels.fail_over_behind_a_pause, old)
            written = len(ids)
            await asyncio.to_thread(sentinels.until, lambda: len(ids) > written + 10, "nobody writes")
        finally:
            stop.set()
    found = sentinels.client(new).zrange(keys.schedule(queue), 0, -1)
    assert set(ids) <= set(found)
    await app.close()


async def test_open_connections_are_checked_unless_the_process_listens(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CHECK_INTERVAL", 0.0)
    sender = BatchingSender(sentinels.url)
    assert await sender.send(PING) == b"PONG"
    link = new_link("redis", host="127.0.0.1", port=sentinels.primary().port)
    assert primary(sentinels.url).is_due(link)
    async with primary(sentinels.url).followed():
        assert not primary(sentinels.url).is_due(link)
    assert primary(sentinels.url).is_due(link)
    for process in sentinels.processes:
        process.kill()
        process.wait()
    assert await sender.send(PING) == b"PONG"
    assert not primary(sentinels.url).is_due(link)  # they are left alone for a while
    await sender.close()


@pytest.mark.parametrize("lives", [True, False])
async def test_a_sentinel_that_names_no_primary_is_passed_over(sentinels: Sentinels, lives: bool) -> None:
    replica = next(server for server in sentinels.servers if server is not sentinels.primary())
    stale = sentinels.start_stale(replica)
    if not lives:
        replica.kill()
    url = sentinels.url.replace("//", f"//127.0.0.1:{stale},")
    assert (await _role(BatchingSender(url)))[0] == b"master"
    connection.primary.cache_clear()
    with closing(SyncClient(url)) as client:
        assert client.now()
    assert _asked_first(url) != stale
    with pytest.raises(StoreDown, match="is a replica" if lives else "Error 111"):
        await _role(BatchingSender(f"redis+sentinel://127.0.0.1:{stale}/{NAME}"))


async def _role(sender: BatchingSender) -> Any:
    try:
        return await sender.send(Call(("ROLE",), raw))
    finally:
        await sender.close()


def _asked_first(url: str) -> int:
    asker: Any = primary(url)._asker  # pyright: ignore[reportPrivateUsage]
    return asker.hosts[0][1]


def test_the_doctor_names_sentinels_that_do_not_name_the_primary(sentinels: Sentinels, tmp_path: Path) -> None:
    stale = sentinels.start_stale(next(server for server in sentinels.servers if server is not sentinels.primary()))
    sentinels.processes[0].kill()
    sentinels.processes[0].wait()
    done = Cli(sentinels.url.replace("//", f"//127.0.0.1:{stale},"), tmp_path).run("doctor", "--json")
    found = [finding for finding in json.loads(done.stdout) if finding["check"] == "sentinel"]
    assert {finding["where"] for finding in found} == {f"127.0.0.1:{stale}", f"127.0.0.1:{sentinels.ports[0]}"}


async def test_a_stale_sentinel_cuts_no_connection(sentinels: Sentinels) -> None:
    """It is asked because the others are down, and its answer is not believed."""
    stale = sentinels.start_stale(next(server for server in sentinels.servers if server is not sentinels.primary()))
    url = sentinels.url.replace(f"/{NAME}", f",127.0.0.1:{stale}/{NAME}")
    waiting, late = DirectSender(url, reply_timeout=60), BatchingSender(url)
    await waiting.open()
    await waiting.send(Call(("RPUSH", "list", "value"), raw), 1)
    for process in sentinels.processes:
        process.kill()
        process.wait()
    with pytest.raises(StoreDown, match="is a replica"):
        await late.send(PING)
    assert await waiting.send(Call(("BLPOP", "list", 1), raw), 1)
    await waiting.close()


async def test_connection_to_a_hung_old_primary_is_cut_once_the_new_one_is_found(
    sentinels: Sentinels,
) -> None:
    waiting, other = DirectSender(sentinels.url, reply_timeout=60), DirectSender(sentinels.url, reply_timeout=0.2)
    try:
        await waiting.open()
        await other.attempt_all([PING])
        hangs = asyncio.create_task(waiting.send(Call(("BLPOP", "nothing", 60), raw), 60))
        old = sentinels.primary()
        freeze(sentinels, old)
        await asyncio.to_thread(sentinels.wait_for_failover, old)
        assert await other.attempt_all([PING]) == [b"PONG"]
        with pytest.raises(StoreDown):
            async with asyncio.timeout(PATIENCE):
                await hangs
    finally:
        await waiting.close()
        await other.close()


async def test_waiting_connection_learns_of_a_failover_from_the_sentinels(
    sentinels: Sentinels,
) -> None:
    waiting = DirectSender(sentinels.url, reply_timeout=60)
    async with primary(sentinels.url).followed():
        await waiting.open()
        hangs = asyncio.create_task(waiting.send(Call(("BLPOP", "nothing", 60), raw), 60))
        old = sentinels.primary()
        freeze(sentinels, old)
        await asyncio.to_thread(sentinels.wait_for_failover, old)
        with pytest.raises(StoreDown):
            async with asyncio.timeout(PATIENCE):
                await hangs
        await waiting.open()
    await waiting.close()


async def test_only_new_connections_fail_when_no_sentinel_answers(
    sentinels: Sentinels,
) -> None:
    sender, late = BatchingSender(sentinels.url), BatchingSender(sentinels.url)
    assert await sender.send(PING) == b"PONG"
    for process in sentinels.processes:
        process.kill()
        process.wait()
    assert await sender.send(PING) == b"PONG"
    with pytest.raises(StoreDown, match="no sentinel answers: 127"):
        await late.send(PING)
    await sender.close()


async def test_one_live_sentinel_is_enough(sentinels: Sentinels) -> None:
    for process in sentinels.processes[:2]:
        process.kill()
        process.wait()
    sender = BatchingSender(sentinels.url)
    assert await sender.send(PING) == b"PONG"
    await sender.close()
    with closing(SyncClient(sentinels.url)) as client:
        assert client.now()


async def test_system_runs_with_passwords_of_redis_and_sentinels(server: EmbeddedRedis, queue: str) -> None:
    with Sentinels(server.server, replicas=1, password="secret", login=("asker", "hidden")) as sentinels:
        async with serving(sentinels.url, queue) as (_, _, handle, handled):
            await handle.enqueue(1)
            await handled.all_of(range(1, 2))
        without = sentinels.url.partition("?")[0]
        with pytest.raises(StoreRefused, match="sentinel_username") as raised, closing(SyncClient(without)) as client:
            client.now()
        assert "secret" not in str(raised.value)


@pytest.mark.extra
async def test_system_runs_over_tls_to_redis_and_sentinels(queue: str, tmp_path: Path) -> None:
    make_certificates(tmp_path, "DNS:localhost,IP:127.0.0.1")
    try:
        sentinels = Sentinels(replicas=1, certificates=tmp_path).__enter__()
    except ConfigError as error:
        pytest.skip(f"this server has no TLS: {error}")
    with ExitStack() as stack:
        stack.push(sentinels)
        async with serving(sentinels.url, queue) as (_, app, handle, handled):
            with app.sync() as client:
                client.enqueue(handle, 1)
                await handled.all_of(range(1, 2))
                old = sentinels.primary()
                old.kill()
                await asyncio.to_thread(sentinels.wait_for_failover, old)
                client.enqueue(handle, 2)
            await handled.all_of(range(1, 3))


def test_a_name_that_the_sentinels_do_not_know_is_refused_by_name(sentinels: Sentinels, tmp_path: Path) -> None:
    url = sentinels.url.replace(NAME, "other")
    done = Cli(url, tmp_path).run("queues")
    assert done.returncode == 1
    assert "no primary 'other'" in done.stderr
    assert "Traceback" not in done.stderr
