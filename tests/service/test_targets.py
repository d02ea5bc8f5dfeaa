"""The worker of evsched.targets as a command: its required settings, and the flags of its processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.endpoint import Endpoint, Reply, always
from tests.support.patience import PATIENCE

APP = "evsched.targets:app"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NODE = Path(__file__).parent / "node"


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_SHUTDOWN_GRACE": "1"}
    return cli


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    async with Endpoint(always(Reply(body=b"hello"))) as endpoint:
        yield endpoint


def allowed(endpoint: Endpoint) -> tuple[str, ...]:
    return ("--http-host", f"127.0.0.1:{endpoint.port}", "--http-network", "127.0.0.0/8", "--http-network", "::1/128")


def schedule(raw: Any, queue: str, job: str = "one", **kwargs: Any) -> str:
    """Schedule a request; return the key of its record."""
    record = f"evsched:{{{queue}}}:job:{job}"
    raw.hset(record, "payload", json.dumps({"task": "evsched.http", "kwargs": kwargs, "reply": True}))
    raw.zadd(f"evsched:{{{queue}}}:schedule", {job: 0})
    return record


@pytest.mark.extra
@pytest.mark.parametrize("words", [(), ("--burst",), ("--processes", "1")], ids=" ".join)
def test_http_worker_does_not_start_without_an_allowed_host(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli.run("worker", APP, *words, "--http-network", "10.0.0.0/8")
    assert done.returncode == 2
    line = next(line for line in done.stderr.splitlines() if line.startswith("evsched: "))
    assert "none is allowed: name each with --http-host or in EVSCHED_HTTP_HOSTS" in line


@pytest.mark.extra
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--http-host", "http://a"), "EVSCHED_HTTP_HOSTS has 'http://a'"),
        (("--http-host", "a", "--http-network", "10.0.0.1/8"), "EVSCHED_HTTP_NETWORKS has '10.0.0.1/8'"),
        (("--http-host", "a", "--http-network", "nat64:fd00::/95"), "EVSCHED_HTTP_NETWORKS has 'nat64:fd00::/95'"),
        (("--http-host", "a", "--http-redirects", "21"), "EVSCHED_HTTP_REDIRECTS is 21: a whole number from 0 to 20"),
    ],
)
def test_a_flag_that_is_not_valid_is_named(cli: Cli, flags: tuple[str, ...], words: str) -> None:
    done = cli.run("worker", APP, *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr


@pytest.mark.extra
def test_a_secret_that_is_not_valid_is_named_and_not_shown(cli: Cli) -> None:
    done = cli.run("worker", APP, "--http-host", "a", EVSCHED_SECRET_ORDERS="hidden")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "EVSCHED_SECRET_ORDERS is not a secret for signatures" in done.stderr
    assert "hidden" not in done.stderr


@pytest.mark.extra
@pytest.mark.parametrize("missing", ["aiohttp", "aiodns", "standardwebhooks"])
def test_http_target_without_its_libraries_names_the_package_to_install(cli: Cli, missing: str) -> None:
    cli.run_first(f"import sys; sys.modules[{missing!r}] = None")
    done = cli.run("worker", APP, "--http-host", "a")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'evsched[http]'" in done.stderr


@pytest.mark.extra
async def test_a_request_is_sent(cli: Cli, raw: Any, queue: str, endpoint: Endpoint) -> None:
    record = schedule(raw, queue, url=endpoint.url, response=True)
    done = await asyncio.to_thread(cli.run, "worker", APP, "--burst", *allowed(endpoint))
    assert done.returncode == 0, done.stderr
    assert json.loads(raw.hget(record, "result"))["body"] == "hello"


@pytest.mark.extra
async def test_requests_to_more_hosts_than_open_files_all_succeed(cli: Cli, raw: Any, queue: str) -> None:
    cli.run_first("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))")
    hosts = tuple(f"127.0.1.{n}" for n in range(1, 251))
    async with Endpoint(hosts=hosts) as endpoint:
        records = [schedule(raw, queue, host, url=f"http://{host}:{endpoint.port}/") for host in hosts]
        flags = ("--concurrency", "40", "--http-host", f"*:{endpoint.port}", "--http-network", "127.0.0.0/8")
        done = await asyncio.to_thread(cli.run, "worker", APP, "--burst", *flags)
    assert done.returncode == 0, done.stderr
    assert {(raw.hget(record, "outcome"), raw.hget(record, "attempt")) for record in records} == {(b"done", b"1")}
    assert len(endpoint.requests) == len(hosts)


@pytest.mark.extra
async def test_isolated_process_can_send_a_request(cli: Cli, raw: Any, queue: str, endpoint: Endpoint) -> None:
    record = schedule(raw, queue, url=endpoint.url, response=True)
    raw.hset(f"evsched:{{{queue}}}:suspects", "one", "2 0")  # two workers have died that held it
    done = await asyncio.to_thread(cli.run, "worker", APP, "--burst", *allowed(endpoint))
    assert done.returncode == 0, done.stderr
    assert json.loads(raw.hget(record, "result"))["body"] == "hello"


@pytest.mark.extra
@pytest.mark.parametrize("words", [("worker", APP, "--processes", "1"), ("dev", APP)], ids=" ".join)
async def test_each_process_has_the_flags(
    cli: Cli, raw: Any, queue: str, endpoint: Endpoint, words: tuple[str, ...]
) -> None:
    with (
        cli.running("dispatcher", until="DispatcherStarted"),
        cli.running(*words, *allowed(endpoint), until="WorkerStarted"),
    ):
        schedule(raw, queue, url=endpoint.url)
        reply = await asyncio.to_thread(raw.blpop, [f"evsched:{{{queue}}}:reply:one"], PATIENCE)
        assert json.loads(reply[1])["outcome"] == "done"


@pytest.mark.extra
async def test_a_receiver_in_node_accepts_the_signature(cli: Cli, raw: Any, queue: str, endpoint: Endpoint) -> None:
    if not (NODE / "node_modules/standardwebhooks").is_dir():
        pytest.skip("not installed: npm install --prefix tests/service/node standardwebhooks")
    schedule(raw, queue, url=endpoint.url, json={"total": 7, "name": "Zoë"}, sign="ORDERS")
    burst = ("worker", APP, "--burst", *allowed(endpoint))
    done = await asyncio.to_thread(cli.run, *burst, EVSCHED_SECRET_ORDERS=SECRET)
    assert done.returncode == 0, done.stderr
    (received,) = endpoint.requests

    def verify(body: str) -> subprocess.CompletedProcess[str]:
        text = json.dumps({"headers": received.headers, "body": body})
        words = ["node", "webhook.mjs", SECRET, text]
        return subprocess.run(words, cwd=NODE, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert verify(received.body.decode()).stdout == '{"total":7,"name":"Zoë"}\n'
    assert "No matching signature found" in verify(received.body.decode() + " ").stderr
