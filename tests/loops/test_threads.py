"""Programs without an event loop may have many threads and forked processes: each call gets its own reply."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from evsched import App
from evsched.config import Config
from evsched.errors import StoreRefused
from evsched.store import server as about
from evsched.transport.call import Call, raw
from evsched.transport.connection import Connection
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender, SyncSender
from tests.support.patience import PATIENCE
from tests.support.plain import on_primaries
from tests.support.proxy import BOTH, Proxy
from tests.support.system import system

FORKS = """
import os, sys, threading
from evsched.transport.call import Call, raw
from evsched.transport.senders import SyncSender

sender = SyncSender(sys.argv[1])

def echoes(name):
    for n in range(100):
        text = f"{name}-{n}".encode()
        assert sender.send(Call(("ECHO", text), raw)) == text

def in_threads(name):
    failures = []
    threading.excepthook = failures.append
    threads = [threading.Thread(target=echoes, args=(f"{name}-{n}",)) for n in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return len(failures)

before = in_threads("before")
waiting = threading.Thread(target=lambda: sender.send(Call(("BLPOP", "gate", 20), raw, near="gate"), 20))
waiting.start()
while not sender.send(Call(("CLIENT", "LIST"), raw, near="gate")).count(b"cmd=blpop"): pass
children = []
for n in range(3):
    if not (child := os.fork()):
        os._exit(in_threads(n))
    children.append(child)
in_parent = in_threads("parent")
ended = [os.waitpid(child, 0)[1] for child in children]
sender.send(Call(("LPUSH", "gate", 1), raw, near="gate"))
waiting.join()
print(before, in_parent, ended)
"""


def echoes(sender: SyncSender, thread: int) -> list[bytes]:
    return [sender.send(Call(("ECHO", f"{thread}-{n}"), raw)) for n in range(50)]


def test_threads_that_share_a_sender_get_their_own_replies(server: EmbeddedRedis) -> None:
    sender = SyncSender(server.url)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(echoes, [sender] * 8, range(8)))
    sender.close()
    assert found == [[f"{thread}-{n}".encode() for n in range(50)] for thread in range(8)]


def clients(raw: Any) -> set[str]:
    return {client["id"] for client in raw.client_list()}


def wait_until_closed(raw: Any, opened: set[str]) -> None:
    """Wait until Redis has noticed that these clients have closed their connections, which it does after a moment."""
    end = time.monotonic() + PATIENCE
    while opened & clients(raw):
        assert time.monotonic() < end


@pytest.mark.one_server
def test_a_sender_opens_no_more_connections_than_are_in_use_at_once(server: EmbeddedRedis, raw: Any) -> None:
    before = clients(raw)
    sender = SyncSender(server.url)
    assert clients(raw) <= before  # the first call opens the first one
    for thread in range(3):
        with ThreadPoolExecutor(1) as alone:
            alone.submit(echoes, sender, thread).result()
    opened = clients(raw) - before
    assert len(opened) == 1
    sender.close()
    wait_until_closed(raw, opened)


@pytest.mark.one_server
def test_many_calls_are_one_batch_whose_first_error_is_raised(server: EmbeddedRedis, raw: Any, queue: str) -> None:
    raw.set(queue, "text")
    sender = SyncSender(server.url)
    sender.send(Call(("ECHO", "1"), int))
    reads = raw.info("stats")["total_reads_processed"]
    assert sender.send_all([Call(("ECHO", str(n)), int) for n in range(300)]) == [*range(300)]
    assert raw.info("stats")["total_reads_processed"] < reads + 20
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        sender.send_all([Call(("ECHO", "1"), int), Call(("HGETALL", queue), len)])
    assert sender.send(Call(("ECHO", "2"), int)) == 2
    sender.close()


@pytest.mark.one_server
def test_connection_in_use_outlives_its_closed_sender_until_its_call_ends(
    server: EmbeddedRedis, raw: Any, queue: str
) -> None:
    before = clients(raw)
    sender = SyncSender(server.url)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sender.send, Call(("BLPOP", queue, PATIENCE), lambda reply: reply[1]), PATIENCE)
        while not any(client["cmd"] == "blpop" for client in raw.client_list()):
            assert not waiting.done()
        opened = clients(raw) - before
        sender.close()
        raw.lpush(queue, "go")
        assert waiting.result() == b"go"
    assert len(opened) == 1
    wait_until_closed(raw, opened)


def test_a_sender_that_threads_share_survives_fork(server: EmbeddedRedis) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout.strip(), done.stderr) == ("0 0 [0, 0, 0]", "")


async def test_threads_that_share_one_client_wait_for_their_own_results(config: Config, app: App) -> None:
    @app.task
    async def same(n: int) -> int:
        return n

    def program() -> list[list[int]]:
        with app.sync() as client, ThreadPoolExecutor(8) as threads:

            def results(thread: int) -> list[int]:
                return [client.enqueue(same, thread * 1000 + n).result(PATIENCE) for n in range(50)]

            return list(threads.map(results, range(8)))

    async with system(config, app):
        found = await asyncio.to_thread(program)
    assert found == [[thread * 1000 + n for n in range(50)] for thread in range(8)]


async def echoes_of_tasks(sender: BatchingSender, thread: int) -> list[bytes]:
    calls = [Call(("ECHO", f"{thread}-{n}"), raw) for n in range(50)]
    try:
        return [found for _ in range(5) for found in await asyncio.gather(*map(sender.send, calls))]
    finally:
        await sender.close()


def test_event_loops_in_several_threads_may_share_a_sender(server: EmbeddedRedis) -> None:
    sender = BatchingSender(server.url)

    def program(thread: int) -> list[bytes]:
        return asyncio.run(echoes_of_tasks(sender, thread))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(program, range(8)))
    assert found == [[f"{thread}-{n}".encode() for n in range(50)] * 5 for thread in range(8)]


async def test_a_reply_that_comes_while_the_loop_is_blocked_is_read(server: EmbeddedRedis, raw: Any) -> None:
    sender = BatchingSender(server.url, reply_timeout=0.1)
    await sender.send(about.clock())
    raw.client_pause(500, **on_primaries(raw))
    answer = asyncio.ensure_future(sender.send(about.clock()))
    for _ in range(20):
        await checkpoint()  # until the call is on its way
    raw.ping()  # blocks the loop; Redis answers both calls when the pause ends
    assert await answer > 0
    await sender.close()


async def test_links_that_wait_for_their_turn_do_not_time_out(own: EmbeddedRedis) -> None:
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
        proxy.delay(0.2, *BOTH)
        links = [Connection(f"redis://127.0.0.1:{proxy.port}/1") for _ in range(80)]
        replies = await asyncio.gather(*(link.exchange([("PING",)], 1.0) for link in links))
        assert replies == [[b"PONG"]] * len(links)
        for link in links:
            await link.close()
