"""The examples for FastAPI and Litestar: a job survives its worker, the console is mounted, a request commits once."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psycopg
import pytest

from evsched.client import operations
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli, Log, terminate
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
pytestmark = [
    pytest.mark.one_server,
    pytest.mark.parametrize("name", ["fastapi", "litestar"]),
]


@pytest.fixture(autouse=True)
def installed(name: str) -> None:
    pytest.importorskip(name)


def blocks(name: str) -> list[str]:
    """Return the Python of the page about a framework."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / f"docs/{name}.md").read_text(), re.M | re.S)


def transaction_of(name: str) -> str:
    (found,) = [block for block in blocks(name) if "enqueue_in" in block]
    return found


def test_page_shows_the_example(name: str) -> None:
    example = (EXAMPLES / f"{name}_app.py").read_text()
    assert [block for block in blocks(name) if block not in example] == [transaction_of(name)]


@contextmanager
def serving(cli: Cli, name: str) -> Generator[httpx.Client]:
    """Run uvicorn with an example; yield a client of it."""
    command = [sys.executable, "-m", "uvicorn", f"{name}_app:web", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, env=cli.environment, cwd=EXAMPLES, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = None
            while found is None:
                line = server.stderr.readline()
                assert line, "uvicorn ended"
                found = re.search(r"http://127\.0\.0\.1:\d+", line)
            with httpx.Client(base_url=found[0], timeout=PATIENCE) as client:
                yield client
            server.terminate()
            assert "Application shutdown complete" in server.communicate(timeout=PATIENCE)[1]
        finally:
            server.kill()


def pages_of(worker: subprocess.Popen[str], until: str = "") -> list[str]:
    """Return what a worker has printed, up to a line."""
    assert worker.stdout is not None
    found = list[str]()
    while until not in found:
        found.append(worker.stdout.readline().strip())
        assert found[-1], "the worker ended"
    return found


def test_report_is_finished_after_its_worker_was_killed(cli: Cli, name: str) -> None:
    cli.folder = EXAMPLES
    cli.environment |= {"EVSCHED_LEASE": "1", "STAFF_SECRET": "s3cret"}
    worker = ("worker", f"{name}_app:app")
    with cli.started("dispatcher"), serving(cli, name) as web:
        with cli.started(*worker, stdout=subprocess.PIPE) as (first, _):
            order = {"id": "first", "pages": 12}
            begun, again = web.post("/reports", json=order), web.post("/reports", json=order)
            assert (begun.status_code, again.status_code, again.json()) == (202, 202, {"id": "first"})
            report = "/reports/first"
            assert pages_of(first, "page 3") == ["page 1", "page 2", "page 3"]
            assert web.get(report).json()["place"] == "processing"
        with cli.started(*worker, stdout=subprocess.PIPE) as (second, log):
            done = web.get(report, params={"wait": 30}).json()
            assert done["pages"] == [f"the text of page {page}" for page in range(1, 13)]
            rest = pages_of(second, "page 12")
            assert int(rest[0].removeprefix("page ")) >= 3, "the pages before it were not written twice"
            ended = web.delete(report)
            assert (ended.status_code, ended.json()["detail"]) == (409, "report first has ended")
            check_requests(web)
            assert terminate(second) == 0
            assert isinstance(log, Log)


def check_requests(web: httpx.Client) -> None:
    assert web.get("/reports/nobody").status_code == 404
    assert web.post("/reports", json={"id": "second", "pages": 0}).status_code in (400, 422)
    assert web.post("/reports", json={"id": "a b", "pages": 1}).status_code in (400, 422)
    assert web.get("/console/").status_code == 403
    web.cookies.set("staff", "s3cret")
    page = web.get("/console/")
    assert page.status_code == 200
    assert "staff, operator" in page.text
    assert set(re.findall(r'(?:href|src|action)="(/\w*)', page.text)) == {"/console"}
    for path in ("/console/jobs", *re.findall(r'href="(/console/static/[^"]+)"', page.text)):
        assert web.get(path).status_code == 200, path


@pytest.fixture
def example(name: str, own: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> Generator[ModuleType]:
    """The module of an example, in this process, on a Redis of its own."""
    monkeypatch.setenv("EVSCHED_URL", own.url)
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module(f"{name}_app")
    del sys.modules[f"{name}_app"]


def asking(web: Any, root: str = "") -> httpx.AsyncClient:
    """Return a client of an application. `root`: a prefix of the path, as of `uvicorn --root-path`."""
    transport = httpx.ASGITransport(web, raise_app_exceptions=False, root_path=root)
    return httpx.AsyncClient(transport=transport, base_url=f"http://web{root}", follow_redirects=True)


async def test_console_works_behind_a_prefix_of_the_path(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAFF_SECRET", "s3cret")
    async with asking(example.web, "/pre") as client:
        client.cookies.set("staff", "s3cret")
        page = await client.get("/console")
        assert page.status_code == 200
        assert set(re.findall(r'(?:href|src|action)="(/\w*/\w*)', page.text)) == {"/pre/console"}
        assert (await client.get("/console/jobs")).status_code == 200
    await example.console.state.console.close()
    await example.app.close()


async def test_outage_of_redis_is_503(example: Any, own: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_PATIENCE", 0.0)
    async with asking(example.web) as client:
        own.stop()
        answer = await client.post("/reports", json={"id": "first", "pages": 1})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    await example.app.close()


@pytest.mark.extra
async def test_order_and_its_job_are_committed_together_or_not_at_all(
    example: ModuleType, name: str, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVSCHED_LEDGER_URL", ledger_url.replace("postgresql:", "postgresql+psycopg:"))
    exec(transaction_of(name), vars(example))
    web: Any = example.web if name == "fastapi" else example.Litestar([example.buy])
    with psycopg.connect(ledger_url, autocommit=True) as database:
        database.execute("CREATE TABLE orders (id text PRIMARY KEY, pages int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

        def rows() -> tuple[int, int]:
            found = database.execute("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM evsched_job)")
            return found.fetchone() or (-1, -1)

        async with asking(web) as client:
            for _ in range(2):
                assert (await client.post("/orders", json={"id": "first", "pages": 7})).status_code == 202
                assert rows() == (1, 1)
            other = await client.post("/orders", json={"id": "other", "pages": 7})
            assert other.status_code == 500, "the commit fails"
            assert rows() == (1, 1)
    await example.engine.dispose()
    await example.app.close()
