"""The examples of the documentation: the blocks of Python on a page, which tests run as they are printed, with a worker
that runs what they enqueue.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from textwrap import dedent
from types import CodeType
from typing import Any, Final

from msgspec import Struct

from evsched import App, Filter, JobMissing
from evsched.config import Config
from evsched.events import JobBuried, Retrying
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.system import system

ROOT: Final = Path(__file__).parents[2]


class Example(Struct, frozen=True):
    """A block of Python. `line`: its first line in the page."""

    page: Path
    line: int
    text: str

    @property
    def file(self) -> str | None:
        """The name of its file, if its first line is a comment that says it."""
        found = re.match(r"# ([\w/]+\.py)\n", self.text)
        return found and found[1]

    @property
    def is_for_pytest(self) -> bool:
        """Whether it has tests or fixtures."""
        return re.search(r"^(async )?def test_|^@pytest\.fixture", self.text, re.M) is not None

    def compiled(self) -> CodeType:
        """Compile it, so that tracebacks show the lines of the page."""
        text = "\n" * (self.line - 1) + self.text
        return compile(text, self.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)

    def run(self, names: dict[str, Any]) -> Any:
        """Run it; return a coroutine if it has an `await` outside of functions."""
        return eval(self.compiled(), names)


def examples(page: str) -> list[Example]:
    """Return the examples of a page, in their order. `page`: its path in the repository."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    found = re.finditer(r"^( *)```python\n(.*?)^ *```$", text, re.M | re.S)
    return [Example(path, text[: one.start(2)].count("\n") + 1, dedent(one[2])) for one in found]


@asynccontextmanager
async def working(url: str, app: App | None) -> AsyncGenerator[None]:
    """Run a dispatcher and a worker of an app, if there is one yet, and expect that no run fails."""
    recorder = Recorder()
    if app is None:
        yield
        return
    await app.close()  # it gets other connections
    async with system(Config(url=url), app, recorder):
        yield
    failed = [*recorder.of(Retrying), *recorder.of(JobBuried)]
    assert not failed, failed


async def run_jobs(url: str, app: App) -> None:
    """Run each recurrence of an app once, and all of its jobs, also those that are due later."""
    async with working(url, app):
        for queue, declared in app.program.recurrences:
            await app.client.declare(queue, declared)  # the worker may not have come to this queue yet
            await app.client.trigger(queue, declared.name)
        for queue in app.queues:
            await app.client.reschedule_matching(queue, Filter(since=1.0))
            while jobs := await _begun(app, queue):
                for job in jobs:
                    with suppress(JobMissing):  # it has ended and is not kept
                        await app.job(job, queue=queue).result(PATIENCE)


async def _begun(app: App, queue: str) -> list[str]:
    """Return the jobs that are due, run or are dead."""
    found = await app.client.find(queue, Filter()) + await app.client.find(queue, Filter(), "processing")
    return [match.id for match in found if match.place != "schedule" or (match.at or 0) <= time.time()]
