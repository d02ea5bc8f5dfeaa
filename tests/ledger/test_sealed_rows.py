"""Rows of an app with a codec: their arguments are sealed in PostgreSQL, and get another key there."""

from __future__ import annotations

from typing import Any

import psycopg

from evsched import App
from evsched.codec import Codec
from evsched.codec.rekey import rekey_rows
from evsched.config import Config
from tests.ledger.conftest import Running
from tests.support.patience import PATIENCE
from tests.support.sealed_jobs import NEW, OLD, SECRET
from tests.support.system import system


def payloads(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT payload::text FROM evsched_job ORDER BY id").fetchall()]


async def test_row_is_sealed_gets_another_key_and_runs(
    config: Config, relaying: Running, ledger_url: str, queue: str
) -> None:
    apps, tasks = list[App](), list[Any]()
    for codec in (Codec({"old": OLD}), Codec({"old": OLD, "new": NEW}, write="new"), Codec({"new": NEW})):
        app = App(config.url, queue=queue, codec=codec)

        @app.task
        async def pay(account: str) -> str:
            return account

        apps.append(app)
        tasks.append(pay)
    async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
        await tasks[0].using(id="a").enqueue_in(connection, SECRET)
    with psycopg.connect(ledger_url) as connection:
        tasks[1].using(id="b").enqueue_in_sync(connection, SECRET)
    assert ['"key":"old"' in text for text in payloads(ledger_url)] == [True, False]
    assert SECRET not in str(payloads(ledger_url))
    codec = apps[1].codec
    assert isinstance(codec, Codec)
    result = await rekey_rows(ledger_url, codec)
    assert (result.done, result.changed, dict(result.missing)) == (1, 0, {})
    assert (await rekey_rows(ledger_url, codec)).done == 0
    assert dict((await rekey_rows(ledger_url, Codec({"other": OLD}))).missing) == {"new": 2}
    async with system(config, apps[2]), relaying():
        for number, job in enumerate(("a", "b"), 1):
            assert await apps[2].client.result(queue, job, PATIENCE, row=number) == SECRET
    for app in apps[:2]:
        await app.close()
