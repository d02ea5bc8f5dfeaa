"""The Python of README.md and of the pages in docs/ runs as it is printed, against a real Redis and a real worker.

The examples of a page run one after the other, as one module; an `await` outside of functions is allowed. An example
that begins with the name of a file is that file: `tasks.py` is the module itself, another one is a program, or is for
pytest. At the end of a page, a worker runs all jobs of the app, however late they are due, and each recurrence once.
Requests to other hosts, and jobs of a database's transaction, are only enqueued.
"""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, Final

import anyio
import httpx
import pytest
import sentry_sdk

from evsched import App
from evsched.testing import Clock
from evsched.transport.embedded import EmbeddedRedis
from tests.support.doc_examples import ROOT, Example, examples, run_jobs, working
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

TUTORIAL: Final = examples("docs/tutorial.md")[0].text

GIVEN: Final = {
    "docs/celery.md": """
        from evsched import App, EndedBatch

        app, url = App(), "https://example.com/"

        @app.task
        async def row(number: int) -> int:
            return number

        @app.task
        async def summary(batch: EndedBatch) -> None: ...

        @app.task
        async def numbers(count: int) -> list[int]:
            return list(range(count))

        @app.task
        async def total(rows: list[int]) -> int:
            return sum(rows)

        @app.task
        async def fetch(url: str) -> str:
            return f"the text of {url}"

        @app.task
        async def parse(text: str) -> list[str]:
            return text.split()

        @app.task
        async def save(words: list[str]) -> None: ...
    """,
    "docs/console.md": """
        from types import SimpleNamespace

        async def user_of(session: str | None) -> SimpleNamespace:
            return SimpleNamespace(name=session, is_staff=True)
    """,
    "docs/encryption.md": """
        class s3:
            @staticmethod
            async def put_object(Bucket, Key, Body):
                objects[Key] = Body

        async def read_or_raise_key_error(bucket, name):
            return objects[name]

        objects = {}
    """,
    "docs/ledger.md": f"""{TUTORIAL}
import os
from datetime import UTC, datetime

import psycopg

url, at = os.environ["EVSCHED_LEDGER_URL"], datetime(2040, 1, 31, 9, tzinfo=UTC)

async with await psycopg.AsyncConnection.connect(url) as connection:
    await connection.execute("CREATE TABLE orders (id int)")
    await connection.execute("CREATE TABLE visits (id int, at timestamptz)")
    for id in ("remind-7", "bill-7"):
        await send_mail.using(id=id, due=at).enqueue_in(connection, "bob@example.com")
""",
    "docs/recurrences.md": """
        from evsched import App

        app = App()
        await app.client.set_calendar("default", "de-holidays", "2030-01-01")
    """,
    "docs/steps.md": """
        from types import SimpleNamespace

        def fetch_rows(customer: int) -> list[str]:
            return ["a row"]

        def render(rows: list[str]) -> str:
            return "a file"

        def send_mail(pdf: str) -> None: ...

        async def read_rows(file: str, after: int | None):
            for id in range((after or 0) + 1, 10):
                yield SimpleNamespace(id=id)

        async def save(row: object) -> None: ...

        def make_quote(id: int) -> int:
            return 100

        def mail_to_boss(id: int, quote: int) -> None: ...

        def buy(quote: int, by: str) -> None: ...
    """,
    "docs/tasks.md": TUTORIAL,
    "docs/testing.md": """
        from evsched import App

        app = App()

        @app.task
        async def remind(to: str) -> None: ...

        @app.task
        async def confirm(to: str) -> None: ...

        async def place_order(session, to: str) -> None:
            await confirm.enqueue_in(session, to)

        async def send_invoice(number: int) -> None:
            await app.http.enqueue("https://api.example.com/invoices", json={"order": number})
    """,
}
"""What the reader of a page has of his own: it comes before the first example."""

THEN: Final = {
    "docs/api.md": """
        import os

        import httpx

        api = app.routes[0].app
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://web")
        async with api.router.lifespan_context(api), web:
            web.headers["Authorization"] = f"Bearer {os.environ['EVSCHED_API_WRITE_TOKENS']}"
            (await web.get("/scheduler/v1/queues")).raise_for_status()
    """,
    "docs/batches.md": """
        await load_all([1, 2, 3])
        async with app.batch(on_done=summarize) as batch:
            await batch.add(load_page, 2)
        assert (await batch.wait()).done == 101
    """,
    "docs/console.md": """
        import httpx

        async with httpx.AsyncClient(transport=httpx.ASGITransport(console), base_url="http://web") as web:
            web.cookies["session"] = "ann"
            assert "ann, operator" in (await web.get("/")).text
        await console.state.console.close()
    """,
    "docs/encryption.md": """
        @app.task
        async def count(text: str) -> int:
            return len(text)

        assert await (await count.enqueue(os.urandom(100_000).hex())).result(120) == 200_000
        assert len(objects) == 1
    """,
    "docs/forward.md": """
        from evsched.config import Config
        from evsched.targets.targets_app import make_app

        app = make_app(Config(url=app.url, forward_destinations=("stream:orders",)), {})
    """,
    "docs/graphs.md": """
        assert await check_site("https://example.com") == "January: 0 errors in 2 pages"
        await check_page("https://example.com")
    """,
    "docs/sentry.md": """
        from evsched import App

        app = App()

        @app.task
        async def work() -> None: ...

        with app.sync() as client:
            client.enqueue(work)
    """,
    "docs/steps.md": """
        assert await (await report.enqueue(7)).result(120) == "a file"
        await import_rows.enqueue("rows.csv")
    """,
    "docs/tasks.md": """
        @app.task
        async def fetch() -> bool:
            return isinstance(current_job().state, httpx.AsyncClient)

        assert await (await fetch.enqueue()).result(120)
    """,
    "docs/testing.md": """
        import os

        import psycopg

        from tasks import place_order


        @pytest.fixture
        async def session():
            async with await psycopg.AsyncConnection.connect(os.environ["EVSCHED_LEDGER_URL"]) as connection:
                yield connection
    """,
}
"""What the reader then does with what a page only defines: it comes after the last example."""

NOT_RUN: Final = {
    ("docs/celery.md", "chord([row.s(number) for number in range(1000)])(summary.s())"): "is Celery's",
    ("docs/celery.md", "chord([row.s(number) for number in range(1000)])(total.s())"): "is Celery's",
    ("docs/celery.md", "chain(fetch.s(url), parse.s(), save.s()).delay()"): "is Celery's",
    ("docs/from-apscheduler.md", "# program.py"): "is APScheduler's",
    ("docs/from-rq.md", "# jobs.py"): "is RQ's",
    ("docs/from-rq.md", "# signup.py"): "is RQ's",
}
"""The examples that do not run here, by their page and first line, and the reason."""

ELSEWHERE: Final = {
    "docs/django.md": "tests/django/test_site.py",
    "docs/fastapi.md": "tests/service/test_web_frameworks.py",
    "docs/litestar.md": "tests/service/test_web_frameworks.py",
}
"""The pages whose examples another test runs."""

COSTLY: Final = (
    "docs/from-apscheduler.md",
    "docs/from-bullmq.md",
    "docs/from-sidekiq.md",
    "docs/testing.md",
    "docs/tutorial.md",
)
"""Pages that start Python or pytest once more, as README.md and docs/from-rq.md do."""

PAGES: Final = {
    page: examples(page) for page in ("README.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")))
}


class Reader:
    """Follows a page, in a folder of his own, with a Redis and a worker."""

    def __init__(self, url: str, folder: Path, module: ModuleType) -> None:
        self._url = url
        self._folder = folder
        self._names = vars(module)
        self._app: App | None = None

    async def follow(self, shown: Sequence[Example]) -> None:
        """Run the examples of a page, and then the jobs that they have enqueued."""
        for example in shown:
            if example.file not in (None, "tasks.py"):
                self._append(example.file, example.text)
                if not example.is_for_pytest:
                    await self._run_program(example)
            elif example.is_for_pytest and (self._folder / "conftest.py").exists():
                self._append("test_tasks.py", example.text)
            elif example.is_for_pytest:
                await self._run_tests(example)
            else:
                await self._run(example)
        if self._app is not None:
            await run_jobs(self._url, self._app)
        if (self._folder / "conftest.py").exists():
            await self._python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", ".")

    def _append(self, file: str, text: str) -> None:
        with (self._folder / file).open("a") as out:
            out.write(f"{text}\n\n")

    async def _run(self, example: Example) -> None:
        """Run a part of the module; if it makes another app, also run the jobs of the one before."""
        waiting = example.run(self._names)
        if waiting is None:
            self._append("tasks.py", example.text)
        else:
            async with working(self._url, self._app):
                await waiting
        app = self._names.get("app")
        if self._app is not None and self._app is not app:
            await run_jobs(self._url, self._app)
        self._app = app if isinstance(app, App) and app.url == self._url else None

    async def _run_tests(self, example: Example) -> None:
        """Run the tests of a page that leaves the rest of their file to another page."""
        assert self._app is not None
        tests = dict[str, Any](tasks=sys.modules["tasks"])
        example.run(tests)
        await run_jobs(self._url, self._app)
        with closing(Clock(self._app, self._url)) as clock:
            for name in [name for name in tests if name.startswith("test_")]:
                await tests[name](clock)

    async def _run_program(self, example: Example) -> None:
        if self._app is None:  # it serves for ever, so not in a process
            example.run({})
            return
        async with working(self._url, self._app):
            printed = await self._python(example.file or "")
        promised = re.search(rf"`{example.file}` prints\s+`(.+)`", example.page.read_text())
        assert promised is None or printed == f"{promised[1]}\n"

    async def _python(self, *words: str) -> str:
        """Run Python in the folder, and return what it prints."""
        done = await anyio.run_process([sys.executable, "-W", "error", *words], cwd=self._folder, check=False)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        return done.stdout.decode()


class ShortServer(HTTPServer):
    """A server on a free port that ends after one request, which comes from here."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        super().__init__((address[0], 0), handler)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        with self, ThreadPoolExecutor(1) as thread:
            address = f"http://127.0.0.1:{self.server_port}/"
            answer = thread.submit(httpx.post, address, json={"order": 7}, headers={"Idempotency-Key": "invoice-7"})
            self.handle_request()
            assert answer.result(PATIENCE).status_code == 204


@pytest.fixture
def reader(
    page: str, server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Generator[Reader]:
    variables = {
        "EVSCHED_URL": server.url,
        "EVSCHED_API_WRITE_TOKENS": "w" * 32,
        "BUILD_NUMBER": "7",
        "PAYLOAD_KEY": b64encode(bytes(32)).decode(),
        "PYTHONPATH": str(ROOT),
    }
    if page in ("docs/ledger.md", "docs/testing.md"):
        variables["EVSCHED_LEDGER_URL"] = request.getfixturevalue("ledger_url")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    module = ModuleType("tasks")
    monkeypatch.setitem(sys.modules, "tasks", module)
    monkeypatch.setattr("http.server.HTTPServer", ShortServer)
    alone = partial(sentry_sdk.init, default_integrations=False, auto_enabling_integrations=False)
    monkeypatch.setattr("sentry_sdk.init", alone)
    yield Reader(server.url, tmp_path, module)
    sentry_sdk.get_global_scope().set_client(None)


def title(example: Example) -> tuple[str, str]:
    """Return the page and the first line of an example."""
    return str(example.page.relative_to(ROOT)), example.text.partition("\n")[0]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.extra if page in COSTLY else ())
        for page, found in PAGES.items()
        if found and page not in ELSEWHERE
    ],
)
async def test_examples_run_as_printed(page: str, reader: Reader) -> None:
    given, then = (Example(Path(__file__), 1, dedent(table.get(page, ""))) for table in (GIVEN, THEN))
    await reader.follow([given, *(one for one in PAGES[page] if title(one) not in NOT_RUN), then])


def test_every_example_that_does_not_run_here_exists() -> None:
    others = [one for found in PAGES.values() for one in found if title(one) in NOT_RUN]
    assert len(others) == len(NOT_RUN)
    for one in others:
        assert one.compiled()
    assert all(PAGES[page] for page in {*GIVEN, *THEN, *ELSEWHERE})
    for page, test in ELSEWHERE.items():
        assert Path(page).stem in (ROOT / test).read_text()
