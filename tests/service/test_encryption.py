"""Encrypted jobs as operators meet them, with the key and without it; and a client in another language."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import events
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.codec import Codec
from evsched.config import Config
from evsched.jobs.job import encode
from evsched.jobs.sealed import About, put_value
from evsched.recurrence.recurrence import Declared
from evsched.transport.embedded import EmbeddedRedis
from tests.crash_points.injection import FOLDER, VARIABLE
from tests.loops.test_sealed_jobs import everything
from tests.service.test_console_edit import fields_of
from tests.support import sealed_jobs
from tests.support.api import calling
from tests.support.browsing import browsing, words
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.sealed_jobs import NEW, OLD, SECRET
from tests.support.system import system

NODE = Path(__file__).parent / "node"
APP = "tests.support.sealed_jobs:app"
KEYED = {"EVSCHED_CODEC": APP}
MARK = "[encrypted with key old]"

ROTATED = """
from evsched import App
from evsched.codec import Codec

app = App(codec=Codec({"old": bytes([1]) * 32, "new": bytes([2]) * 32}, write="new"))
wrong = App(codec=Codec({"old": bytes([3]) * 32}))
"""


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    (tmp_path / "rotated.py").write_text(ROTATED)
    monkeypatch.syspath_prepend(tmp_path)
    return Cli(server.url, tmp_path)


def test_commands_open_and_seal_only_with_the_key(cli: Cli, queue: str, raw: Any) -> None:
    words = "enqueue", "pay", json.dumps(SECRET), "--queue", queue, "--id", "a", "--in", "1h"
    assert cli.run(*words, **KEYED).returncode == 0
    assert SECRET.encode() not in everything(raw)
    shown = json.loads(cli.run("show", "a", "--queue", queue, "--json").stdout)
    assert (shown["payload"], shown["sealed"]) == ({"task": "pay", "sealed": MARK}, True)
    opened = json.loads(cli.run("show", "a", "--queue", queue, "--json", **KEYED).stdout)
    assert (opened["payload"]["args"], opened["sealed"]) == ([SECRET], False)
    refused = cli.run("edit", "a", '"other"', "--queue", queue)
    assert (refused.returncode, "need EVSCHED_CODEC" in refused.stderr) == (2, True)
    assert cli.run("edit", "a", "--priority", "9", "--queue", queue).returncode == 0
    assert cli.run("edit", "a", '"other"', "--queue", queue, **KEYED).returncode == 0
    opened = json.loads(cli.run("show", "a", "--queue", queue, "--json", **KEYED).stdout)
    assert (opened["payload"]["args"], opened["priority"]) == (["other"], 9)
    assert b"other" not in everything(raw)


def test_rekey_seals_again_and_names_the_keys_that_are_missing(cli: Cli, queue: str) -> None:
    enqueue = "enqueue", "pay", "1", "--queue", queue, "--in", "1h"
    assert cli.run(*enqueue, **KEYED).returncode == 0
    rotated = {"EVSCHED_CODEC": "rotated:app"}
    done = cli.run("rekey", "--queue", queue, **rotated)
    assert (done.returncode, done.stdout) == (0, "1 values were sealed again, with key new\n")
    again = json.loads(cli.run("rekey", "--json", **rotated).stdout)
    assert again == {"key": "new", "done": 0, "changed": 0, "missing": {}}
    missing = cli.run("rekey", **KEYED)
    assert (missing.returncode, missing.stdout) == (1, "0 values were sealed again, with key old\n")
    assert "1 values of key new cannot be opened; the reason of one: key 'new' is missing, and this" in missing.stderr
    misspelt = cli.run("rekey", "--queue", queue, "--queue", f"{queue}x", **rotated)
    assert (misspelt.returncode, misspelt.stdout) == (1, "")
    assert f"queue {queue}x has no jobs, no workers and no recurrences: did you mean {queue}?" in misspelt.stderr


STORE = """
from evsched import App
from evsched.codec import Codec

async def put(name, data):
    raise OSError("disk full")

async def get(name):
    return {"gone": {}, "None": {name: None}}[name][name] if name in ("gone", "None") else 1 / 0

app = App(codec=Codec({"old": bytes([1]) * 32, "new": bytes([2]) * 32}, write="new", put=put, get=get, put_above=0))
"""


@pytest.mark.parametrize(
    ("ref", "code", "why"),
    [
        ("", 1, "evsched: the store does not take a value: OSError: disk full"),
        ("gone", 1, "1 values of key old cannot be opened; the reason of one: the store has nothing under 'gone' any"),
        ("None", 1, "evsched: get returned NoneType for 'None': return bytes, or raise LookupError"),
        ("away", 1, "evsched: the store does not give 'away': ZeroDivisionError: division by zero"),
    ],
)
def test_rekey_explains_what_the_store_does(cli: Cli, queue: str, raw: Any, ref: str, code: int, why: str) -> None:
    (cli.folder / "stored.py").write_text(STORE)
    sealed = Codec({"old": OLD}).seal(About("arguments", "pay", "a"), b"[[],{}]")
    payload = encode({"task": "pay", "sealed": replace(sealed, data=b"", ref=ref) if ref else sealed})
    raw.hset(f"evsched:{{{queue}}}:job:a", "payload", payload)
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 4e9})
    done = cli.run("rekey", "--queue", queue, EVSCHED_CODEC="stored:app")
    assert (done.returncode, why in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
    assert raw.hget(f"evsched:{{{queue}}}:job:a", "payload") == payload


@pytest.mark.extra
def test_rekey_that_was_killed_is_finished_by_the_next_one(cli: Cli, queue: str, raw: Any) -> None:
    client = SyncClient(cli.environment["EVSCHED_URL"])
    client.client.with_codec(Codec({"old": OLD, "new": NEW}, write="old"))
    options: list[JobOptions] = [{"id": f"j{n}", "delay": 5000} for n in range(120)]
    client.enqueue(queue, [new_job("pay", [one], {}, one) for one in options])
    client.declare(queue, Declared(name="r", payload=encode({"task": "pay", "args": [SECRET]}), rule="@daily"))
    cli.run_first("from tests.crash_points.injection import arm\narm()\n")
    command = cli.command("rekey", "--queue", queue, "--json")
    counts, printed = list[int](), b""
    for n, point in enumerate(
        ("reseal 1 before kill", "reseal 1 after kill", "reseal 2 before kill", "never 1 after kill")
    ):
        folder = cli.folder / str(n)
        folder.mkdir()
        environment = {**cli.environment, "EVSCHED_CODEC": "rotated:app", VARIABLE: point, FOLDER: str(folder)}
        done = subprocess.run(command, env=environment, cwd=cli.folder, capture_output=True, check=False)
        assert done.returncode == (0 if point.startswith("never") else -signal.SIGKILL), done.stderr
        statuses = [client.status(queue, f"j{n}") for n in range(120)]
        assert [one and one.payload["args"] for one in statuses] == [[one] for one in options], "all are readable"
        counts.append(everything(raw).count(b'"key":"new"'))
        printed = done.stdout
    assert counts == [0, 50, 100, 121]
    assert json.loads(printed) == {"key": "new", "done": 21, "changed": 0, "missing": {}}
    client.client.with_codec(Codec({"new": NEW}))
    assert all((found := client.status(queue, f"j{n}")) and not found.sealed for n in range(120))
    client.close()


@pytest.mark.parametrize(
    ("codec", "code", "why"),
    [
        ("", 2, "rekey: set EVSCHED_CODEC to MODULE:APP"),
        ("tests.support.long_jobs:app", 2, "EVSCHED_CODEC is tests.support.long_jobs:app, and that app has no codec"),
        ("nowhere:app", 1, "module 'nowhere' does not import"),
    ],
)
def test_wrong_codec_of_a_command_is_explained(cli: Cli, codec: str, code: int, why: str) -> None:
    done = cli.run("rekey", **({"EVSCHED_CODEC": codec} if codec else {}))
    assert (done.returncode, why in done.stderr, "Traceback" in done.stderr) == (code, True, False)


async def seeded(raw: Any, queue: str) -> None:
    """Put a job that has ended into a queue."""
    codec = Codec({"old": OLD})
    result = await put_value(codec, About("result", of="a"), encode({"paid": SECRET}))
    fields = {"payload": b'{"task":"pay"}', "outcome": "done", "result": result, "finished": "1900000000", "attempt": 1}
    raw.hset(f"evsched:{{{queue}}}:job:a", mapping=fields)


@pytest.mark.anyio
async def test_http_interface_opens_and_seals_only_with_the_key(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    await seeded(raw, queue)
    jobs = f"/v1/queues/{queue}/jobs"
    async with calling(server.url, codec=APP) as keyed, calling(server.url) as keyless:
        one = {"task": "pay", "args": [SECRET], "id": "b", "delay": 3600}
        assert (await keyed.ask("POST", jobs, one)).status_code == 201
        assert (await keyed.ask("POST", jobs, one | {"id": "c"}, headers={"Idempotency-Key": "x"})).status_code == 201
        assert SECRET.encode() not in everything(raw)
        for caller, args, result in ((keyed, [SECRET], {"paid": SECRET}), (keyless, None, MARK)):
            for job in ("b", "c"):
                assert (await caller.ask("GET", f"{jobs}/{job}")).json()["payload"].get("args") == args
            assert (await caller.ask("GET", f"{jobs}/a")).json()["result"] == result
            assert (await caller.ask("GET", f"{jobs}/a/result")).json()["result"] == result


@pytest.fixture
async def declared(server: EmbeddedRedis, queue: str) -> AsyncGenerator[None]:
    client = SyncClient(server.url)
    client.client.with_codec(Codec({"old": OLD}))
    payload = encode({"task": "pay", "args": [SECRET]})
    await asyncio.to_thread(client.declare, queue, Declared(name="r", payload=payload, rule="@daily"))
    yield
    client.close()


@pytest.mark.anyio
@pytest.mark.parametrize("codec", [None, APP])
async def test_console_shows_values_only_with_the_key(
    server: EmbeddedRedis, queue: str, raw: Any, declared: None, codec: str | None
) -> None:
    await seeded(raw, queue)
    async with browsing(server.url, codec=codec) as browser:
        pages = [
            await browser.words("/job", queue=queue, id="a"),
            await browser.words("/recurrence", queue=queue, name="r"),
        ]
    for page in pages:
        assert (SECRET in page, MARK in page) == ((True, False) if codec else (False, True))


@pytest.mark.anyio
@pytest.mark.parametrize("codec", [None, "rotated:wrong"])
async def test_console_without_the_key_edits_all_but_the_arguments(
    server: EmbeddedRedis, queue: str, cli: Cli, codec: str | None
) -> None:
    cli.run("enqueue", "pay", json.dumps(SECRET), "--queue", queue, "--id", "a", "--in", "1h", **KEYED)
    async with browsing(server.url, codec=codec) as browser:
        for path, priority in (("/job", "7"), ("/edit", "9")):
            page = await browser.page(path, queue=queue, id="a")
            assert f"Its arguments are sealed, {MARK}, and this console has no codec that opens them." in words(page)
            assert 'in a Django site, set OPTIONS["codec"]' in words(page)
            assert '"args"' not in page
            said = await browser.send(page, "edit", **fields_of(page) | {"priority": priority, "tags": f"t{priority}"})
            assert "Job a has changed: its tags, its priority." in said
        fields = fields_of(await browser.page("/edit", queue=queue, id="a"))
        assert "the arguments of a " in await browser.send(page, "edit", **fields | {"args": "[]"})
    opened = json.loads(cli.run("show", "a", "--queue", queue, "--json", **KEYED).stdout)
    assert (opened["payload"]["args"], opened["priority"]) == ([SECRET], 9)


@pytest.mark.anyio
@pytest.mark.one_server
async def test_node_enqueues_an_encrypted_job_and_reads_its_result(
    server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("node") is None or not (NODE / "node_modules/redis").is_dir():
        pytest.skip("node or its package redis is not installed (npm install --prefix tests/service/node redis)")
    app, accounts = sealed_jobs.app, [SECRET, "ü" * 500]
    words = "node", str(NODE / "sealed.mjs"), str(server.socket), queue, base64.b64encode(OLD).decode(), *accounts
    async with system(Config(url=server.url, queues=(queue,), shutdown_grace=0.2), app) as running:
        child = await asyncio.create_subprocess_exec(*words, stdout=-1, stderr=-1)
        out, err = await asyncio.wait_for(child.communicate(), 2 * PATIENCE)
        assert (child.returncode, err) == (0, b"")
        *replies, member = out.decode().splitlines()
        assert [json.loads(line) for line in replies] == [
            ["done", True, {"paid": account, "cents": 7}] for account in accounts
        ]
        raw.zadd(f"evsched:{{{queue}}}:schedule", {member: 0})
        completed = lambda: sum(len(event.tasks) for event in running.recorder.of(events.Completed))  # noqa: E731
        await running.recorder.until(lambda: completed() == 3)
        assert SECRET.encode() not in everything(raw)
