"""The procedures of docs/operate.md, on real servers: backup and restore, rotation of passwords and of certificates."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from evsched import App, JobExists, StoreDown, StoreRefused, events, process_events
from evsched.client.task_handle import AsyncTask
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.transport.call import Call, raw
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.certificates import make_certificates
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.system import system
from tests.support.topology import tls_settings

pytestmark = pytest.mark.anyio

PING = Call(("PING",), raw)


def adding(url: str, queue: str) -> tuple[App, AsyncTask[[int], int]]:
    app = App(url, queue=queue)

    @app.task
    async def add(number: int) -> int:
        return number + 1

    return app, add


# --- backup and restore


@pytest.fixture
def restored(own: EmbeddedRedis) -> Generator[EmbeddedRedis]:
    """A second server, which does not run yet."""
    server = EmbeddedRedis(own.server)
    yield server
    server.close()


@pytest.mark.extra
async def test_a_copy_of_the_append_only_folder_is_a_backup(
    own: EmbeddedRedis, restored: EmbeddedRedis, client: Any, queue: str, tmp_path: Path
) -> None:
    app, add = adding(own.url, queue)
    async with system(Config(url=own.url, queues=(queue,)), app):
        waits = await add.using(delay=3600, id="waits").enqueue(1)
        ended = await add.using(id="ended").enqueue(1)
        assert await ended.result(PATIENCE) == 2
        runs_later = await add.using(id="later", delay=1).enqueue(2)
        stop = threading.Event()
        load = asyncio.create_task(asyncio.to_thread(_write_until, stop, app, add))
        client.config_set("auto-aof-rewrite-percentage", 0)
        assert client.info("persistence")["aof_rewrite_in_progress"] == 0
        shutil.copytree(own.folder / "appendonlydir", restored.folder / "appendonlydir")
        assert await runs_later.result(PATIENCE) == 3
        stop.set()
        await load
        await waits.cancel()
    own.stop()
    restored.start()
    app, add = adding(restored.url, queue)
    async with system(Config(url=restored.url, queues=(queue,)), app) as running:
        await running.recorder.wait(events.Completed, lambda event: "later" in event.ids)  # ended since, and runs again
        with pytest.raises(JobExists):  # cancelled since, and back
            await add.using(id="waits").enqueue(1)
        done = await asyncio.to_thread(Cli(restored.url, tmp_path).run, "doctor")
        assert done.returncode == 0, done.stdout
        assert not any("ended" in event.ids for event in running.recorder.of(events.Completed))


def _write_until(stop: threading.Event, app: App, add: AsyncTask[[int], int]) -> None:
    with app.sync() as client:
        while not stop.is_set():
            client.enqueue(add.using(delay=3600), 1)


# --- passwords


async def test_a_password_is_rotated_while_processes_run(own: EmbeddedRedis, client: Any, queue: str) -> None:
    def set_user(*rules: str) -> None:
        client.execute_command("ACL", "SETUSER", "someone", *rules)

    def url(password: str) -> str:
        return f"redis://someone:{password}@127.0.0.1:{own.port}/0"

    def cut() -> None:
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub", skipme=True)

    set_user("on", "~*", "&*", "+@all", ">old")
    app, add = adding(url("old"), queue)
    renewed, again = adding(url("new"), queue)
    async with system(Config(url=url("old"), queues=(queue,)), app) as running:
        set_user(">new")
        cut()  # both passwords are valid
        assert await (await add.enqueue(1)).result(PATIENCE) == 2
        assert await (await again.enqueue(1)).result(PATIENCE) == 2
        set_user("<old")
        continues = await add.enqueue(2)  # on its open connection
        await running.recorder.wait(events.Completed, lambda event: continues.id in event.ids)
        cut()
        await running.recorder.wait(process_events.CallRefused, lambda event: "password" in event.reason)
        with pytest.raises(StoreRefused, match="password"):
            await add.enqueue(3)
        waits = await again.enqueue(3)
        assert client.acl_log()
        set_user(">old")  # the way back
        assert await waits.result(PATIENCE) == 4
    await renewed.close()


# --- certificates


@pytest.mark.extra
async def test_a_certificate_and_its_ca_are_rotated_while_processes_run(queue: str, tmp_path: Path) -> None:
    old, new, bundle = tmp_path / "old", tmp_path / "new", tmp_path / "ca.crt"
    for folder in (old, new):
        folder.mkdir()
        make_certificates(folder)
    settings = tls_settings(old)
    bundle.write_bytes((old / "ca.crt").read_bytes())
    server = EmbeddedRedis(port=0, **settings)
    try:
        server.start()
    except ConfigError as error:
        server.close()
        pytest.skip(f"this server has no TLS: {error}")
    sender = BatchingSender(f"rediss://localhost:{settings['tls_port']}/0?ssl_ca_certs={bundle}")
    try:
        assert await sender.send(PING) == b"PONG"
        bundle.write_bytes((old / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes())
        await _config_set(server, "tls-cert-file", new / "server.crt", "tls-key-file", new / "server.key")
        assert await sender.send(PING) == b"PONG"  # an open connection continues
        await sender.close()
        assert await sender.send(PING) == b"PONG"
        bundle.write_bytes((old / "ca.crt").read_bytes())
        await sender.close()
        with pytest.raises(StoreDown, match="certificate verify failed"):
            await sender.send(PING)
    finally:
        await sender.close()
        server.close()


async def _config_set(server: EmbeddedRedis, *words: str | Path) -> None:
    sender = BatchingSender(server.url)
    assert await sender.send(Call(("CONFIG", "SET", *map(str, words)), raw)) == b"OK"
    await sender.close()
