"""`evsched api` as a process: how it starts and ends, a real HTTP server, and the commands of docs/api.md."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest

from evsched.api.endpoints import OPERATIONS
from evsched.transport.embedded import EmbeddedRedis
from tests.support.api import READ, WRITE
from tests.support.cli import Cli, Log, terminate
from tests.support.patience import PATIENCE
from tests.support.web import ask

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text()
LATER = 4_000_000_000.0


@pytest.fixture
def cli(cli: Cli) -> Cli:
    return with_tokens(cli)


def with_tokens(cli: Cli) -> Cli:
    cli.environment |= {
        "EVSCHED_API_WRITE_TOKENS": WRITE,
        "EVSCHED_API_READ_TOKENS": READ,
        "EVSCHED_API_RATE": "100000",
    }
    return cli


@contextmanager
def serving(cli: Cli, *flags: str) -> Generator[tuple[str, subprocess.Popen[str], Log]]:
    """Run `evsched api` on a free port; yield its URL, the process and its log."""
    with cli.started("api", "--port", "0", *flags) as (child, log):
        yield log.until("ApiStarted")["url"], child, log


def caller(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {WRITE}"}, timeout=PATIENCE)


@pytest.mark.extra
async def test_api_serves_until_it_is_asked_to_stop(cli: Cli, queue: str) -> None:
    with serving(cli) as (url, child, log):
        async with caller(url) as http:
            jobs = f"/v1/queues/{queue}/jobs"
            assert (await http.post(jobs, json={"task": "t", "id": "a", "due": LATER})).status_code == 201
            waiting = asyncio.ensure_future(http.get(f"{jobs}/a/result?wait=60"))
            assert (await http.get("/readyz")).json() == {"ok": True, "reason": None}
            assert "server" not in (await http.get("/healthz")).headers
            assert (await http.delete(f"{jobs}/a")).status_code == 204
            assert (await waiting).status_code in (200, 404)
        assert await asyncio.to_thread(terminate, child) == 0
    assert WRITE not in str(log.lines)
    assert READ not in str(log.lines)


@pytest.mark.extra
@pytest.mark.one_server
async def test_requests_that_wait_are_answered_when_it_stops(cli: Cli, queue: str, raw: Any) -> None:
    with serving(cli) as (url, child, log):
        async with caller(url) as http:
            await http.post(f"/v1/queues/{queue}/jobs", json={"task": "t", "id": "a", "due": LATER})
            waiting = asyncio.ensure_future(http.get(f"/v1/queues/{queue}/jobs/a/result?wait=60"))
            while not any(client["cmd"] == "blmove" for client in raw.client_list()):
                await asyncio.to_thread(raw.ping)
            child.send_signal(signal.SIGTERM)
            answer = await waiting
            assert (answer.status_code, answer.json()["outcome"]) == (202, None)
            assert answer.headers["connection"] == "close", "a client that reused the connection would find it closed"
        assert await asyncio.to_thread(child.wait, PATIENCE) == 0
        log.rest()
        assert [line for line in log.lines if line.get("level") != "info"] == []


@pytest.mark.extra
@pytest.mark.one_server
async def test_a_request_whose_caller_has_gone_waits_no_longer(cli: Cli, queue: str, raw: Any) -> None:
    with serving(cli) as (url, _, _):
        async with caller(url) as http:
            await http.post(f"/v1/queues/{queue}/jobs", json={"task": "t", "id": "a", "due": LATER})
            waiting = asyncio.ensure_future(http.get(f"/v1/queues/{queue}/jobs/a/result?wait=60"))
            while not any(client["cmd"] == "blmove" for client in raw.client_list()):
                await asyncio.to_thread(raw.ping)
            waiting.cancel()
            async with asyncio.timeout(PATIENCE):
                while any(client["cmd"] == "blmove" for client in raw.client_list()):
                    await asyncio.to_thread(raw.ping)


@pytest.mark.extra
async def test_a_request_that_is_under_way_is_answered_before_the_end(cli: Cli, queue: str) -> None:
    """Its body is sent after SIGTERM."""
    with serving(cli) as (url, child, _):
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body = json.dumps({"task": "t", "due": LATER}).encode()
        head = (
            f"POST /v1/queues/{queue}/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRITE}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write(head.encode())
        begun = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert b" 100 " in begun, "the server reads the body now"
        child.send_signal(signal.SIGTERM)
        writer.write(body)
        assert b" 201 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), PATIENCE)
        writer.close()
        assert await asyncio.to_thread(child.wait, PATIENCE) == 0


@pytest.mark.extra
async def test_api_listens_while_redis_is_down(tmp_path: Path, queue: str) -> None:
    with EmbeddedRedis() as server:
        server.kill()
        with serving(with_tokens(Cli(server.url, tmp_path))) as (url, child, log):
            async with caller(url) as http:
                assert (await http.get("/healthz")).status_code == 200
                assert (await http.get("/readyz")).status_code == 503
                log.until("RedisDown")
                await asyncio.to_thread(server.start)
                log.until("RedisUp")
                async with asyncio.timeout(PATIENCE):
                    while (await http.get("/readyz")).status_code != 200:
                        pass
                made = await http.post(f"/v1/queues/{queue}/jobs", json={"task": "t", "due": LATER})
                assert made.status_code == 201
            assert await asyncio.to_thread(terminate, child) == 0


@pytest.mark.extra
def test_api_stops_while_redis_is_down(tmp_path: Path) -> None:
    with EmbeddedRedis() as server:
        server.kill()
        cli = with_tokens(Cli(server.url, tmp_path))
        with serving(cli) as (_, child, _):
            assert terminate(child) == 0
        done = cli.process("api", "--port", "0", "--require-redis")
    assert (done.returncode, "no Redis at" in done.stderr, "ApiStarted" in done.stderr) == (1, True, False)


@pytest.mark.extra
def test_api_exits_when_redis_refuses_it(cli: Cli, server: EmbeddedRedis) -> None:
    done = cli.process("api", "--port", "0", "--url", f"{server.url}?db=99")
    assert done.returncode == 1
    assert "refuses" in done.stderr


@pytest.mark.extra
async def test_an_upload_that_does_not_end_is_answered_when_it_stops(cli: Cli, queue: str) -> None:
    cli.run_first("import evsched.services.api_server as server; server.GRACE = 1.0")
    with serving(cli) as (url, child, log):
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = (
            f"POST /v1/queues/{queue}/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRITE}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write(head.encode())
        assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        writer.write(b'{"task":')
        child.send_signal(signal.SIGTERM)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        status, _, rest = answer.partition(b"\r\n")
        assert b" 503 " in status
        assert b"application/problem+json" in rest.lower()
        assert json.loads(rest.partition(b"\r\n\r\n")[2])["code"] == "stopping"
        assert await asyncio.to_thread(child.wait, PATIENCE) == 0
        log.rest()
    assert "Traceback" not in str(log.lines)
    assert "Exception" not in str(log.lines)


@pytest.mark.extra
def test_a_caller_that_sends_all_before_it_reads_gets_the_response(cli: Cli, queue: str) -> None:
    """As Python's http.client does, and the libraries built on it."""
    long, short, json_type = b" " * 10_000_000, b" " * 1_000_000, "application/json"
    with serving(cli) as (url, _, _):
        for token, media, body, status in (
            (WRITE, json_type, long, 413),
            (WRITE, "text/plain", long, 415),
            (READ, json_type, long, 403),
            ("unknown", json_type, short, 401),
        ) * 3:
            connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": media}
            connection.request("POST", f"/v1/queues/{queue}/jobs", body, headers)
            response = connection.getresponse()
            assert (response.status, json.loads(response.read())["status"]) == (status, status)
            connection.close()


@pytest.mark.extra
async def test_many_callers_on_many_connections(cli: Cli, queue: str, raw: Any) -> None:
    with serving(cli) as (url, _, _):

        async def one(n: int) -> list[int]:
            async with caller(url) as http:
                bodies = ({"task": "t", "id": f"{n}-{k}", "due": LATER} for k in range(10))
                return [(await http.post(f"/v1/queues/{queue}/jobs", json=body)).status_code for body in bodies]

        assert await asyncio.gather(*(one(n) for n in range(30))) == [[201] * 10] * 30
    assert raw.zcard(f"evsched:{{{queue}}}:schedule") == 300


async def test_restart_of_redis_neither_loses_nor_doubles_a_request(tmp_path: Path, queue: str) -> None:
    """Each request has an Idempotency-Key, and is repeated until it is answered with 201."""
    with EmbeddedRedis() as server, serving(with_tokens(Cli(server.url, tmp_path))) as (url, _, _):
        restarted, begun, path = asyncio.Event(), asyncio.Event(), f"/v1/queues/{queue}/jobs"

        async def one(n: int) -> set[str]:
            ids, k = set[str](), 0
            async with caller(url) as http:
                while not restarted.is_set() or k < 5:
                    key = {"Idempotency-Key": f"{n}-{k}"}
                    made = await http.post(path, json={"task": "t", "due": LATER}, headers=key)
                    assert made.status_code in (201, 503)
                    if made.status_code == 201:
                        ids.add(made.json()["id"])
                        k += 1
                        begun.set()
            return ids

        sending = [asyncio.ensure_future(one(n)) for n in range(10)]
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await asyncio.to_thread(server.restart)
        restarted.set()
        ids = set[str]().union(*[await each for each in sending])
        async with caller(url) as http:
            counts = (await http.get(f"/v1/queues/{queue}")).json()
            assert counts["schedule"] == len(ids), "each request made one job"
            for job in sorted(ids)[:20]:
                assert (await http.get(f"{path}/{job}")).status_code == 200


@pytest.mark.extra
@pytest.mark.parametrize(
    ("environment", "flags", "words"),
    [
        ({"EVSCHED_API_WRITE_TOKENS": "", "EVSCHED_API_READ_TOKENS": ""}, (), "the API has no token"),
        ({"EVSCHED_API_WRITE_TOKENS": "short"}, (), "EVSCHED_API_WRITE_TOKENS: token 1 is not valid"),
        ({}, ("--open-host", "localhost"), "leave out one of both"),
        ({"EVSCHED_API_WRITE_TOKENS": "file:/nowhere"}, (), "/nowhere cannot be read"),
        ({}, ("--port", "70000"), "EVSCHED_API_PORT is 70000"),
    ],
)
def test_api_does_not_start_with_invalid_settings(
    cli: Cli, environment: dict[str, str], flags: tuple[str, ...], words: str
) -> None:
    done = cli.process("api", *flags, **environment)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert words in done.stderr


@pytest.mark.extra
def test_api_needs_tokens_unless_it_is_explicitly_open(server: EmbeddedRedis, tmp_path: Path) -> None:
    cli = Cli(server.url, tmp_path)
    done = cli.process("api")
    assert (done.returncode, done.stdout) == (2, "")
    assert "set EVSCHED_API_WRITE_TOKENS" in done.stderr
    with serving(cli, "--open-host", "localhost") as (url, _, _):
        assert httpx.get(f"{url}/v1/queues").status_code == 200


@pytest.mark.extra
def test_occupied_port_is_reported(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = cli.process("api", "--port", port)
    assert done.returncode == 1
    assert f"API on 127.0.0.1:{port}: Address already in use: choose another --port" in done.stderr
    assert "or a --host of this machine" in cli.process("api", "--host", "203.0.113.7").stderr


@pytest.mark.extra
@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_api_without_its_extra_names_the_package_to_install(cli: Cli, library: str) -> None:
    cli.run_first(f"import sys; sys.modules[{library!r}] = None")
    done = cli.process("api")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "pip install 'evsched[api]'" in done.stderr
    assert cli.process("api", "--help").returncode == 0


@pytest.mark.extra
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /v1/queues HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000,
        b"POST /v1/queues/q/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxx",
    ],
    ids=["TLS", "long", "lengths"],
)
async def test_non_http_input_is_refused_and_does_not_affect_others(cli: Cli, sent: bytes) -> None:
    with serving(cli) as (url, _, _):
        assert b" 400 " in (await ask(url, sent))[:20]
        async with caller(url) as http:
            assert (await http.get("/v1/queues")).status_code == 200


def like(found: Any, documented: Any) -> bool:
    """Tell whether a reply is as documented, except for moments that lie near now."""
    if isinstance(documented, dict):
        values = cast("dict[str, Any]", documented)
        return found.keys() == values.keys() and all(like(found[name], value) for name, value in values.items())
    if isinstance(documented, list):
        rows = cast("list[Any]", documented)
        return len(found) == len(rows) and all(map(like, found, rows))
    if isinstance(documented, float) and documented < 2e9:
        return isinstance(found, float)
    return found == documented


@pytest.mark.extra
def test_the_commands_of_the_documentation_work(cli: Cli) -> None:
    blocks = re.findall(r"^```(sh|json)\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) > 15
    with serving(cli) as (url, _, _):
        shell = {**cli.environment, "API": url, "AUTH": f"Authorization: Bearer {WRITE}"}
        printed = ""
        for kind, text in blocks:
            if kind == "json":
                assert like(json.loads(printed), json.loads(text)), f"{printed} instead of {text}"
                continue
            done = subprocess.run(
                ["bash", "-ec", text], env=shell, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            assert done.returncode == 0, done.stderr
            printed = done.stdout
            assert ('"code":"not-found"' in printed) is ("no-such-job" in text), printed
            assert '"code":' not in printed or "no-such-job" in text, printed


@pytest.mark.extra
def test_the_program_of_the_documentation_works(cli: Cli) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    words = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(words, env=cli.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_documentation_names_every_path_and_every_code() -> None:
    for one in OPERATIONS:
        assert one.path.rpartition("/")[2].strip("{}") in PAGE.lower(), one.path
    sources = "\n".join(path.read_text() for path in (ROOT / "evsched/api").glob("*.py"))
    codes = re.findall(r'HTTPStatus\.\w+,\s*"([a-z-]+)"', sources) + re.findall(
        r'Problem\(status, "([a-z-]+)"', sources
    )
    table = PAGE.partition("| status | `code`")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| \d+ \| (.+?) \|", table, re.M)
    assert set(codes) == {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}
