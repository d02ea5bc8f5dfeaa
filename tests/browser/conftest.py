"""One browser for each test process. The tests run in its thread, in which there is no event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.patience import PATIENCE

THREAD = ThreadPoolExecutor(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test in the browser's thread."""
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]
    THREAD.submit(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}).result()
    return True


@pytest.fixture(scope="session")
def browser() -> Generator[Any]:
    """Chromium; the tests are skipped if it is not installed."""
    pytest.importorskip("playwright", reason="playwright is not installed (pip install -r requirements.lock)")
    from tests.support.chromium import chromium, find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian: chromium-headless-shell)")
    stack = ExitStack()
    yield THREAD.submit(stack.enter_context, chromium(program)).result(PATIENCE)
    THREAD.submit(stack.close).result(PATIENCE)


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path) -> Cli:
    return Cli(server.url, tmp_path)


@pytest.fixture
def console(server: EmbeddedRedis) -> Generator[Any]:
    from tests.support.chromium import ServedConsole

    with ServedConsole(server.url) as served:
        yield served


@pytest.fixture
def tab(browser: Any, console: Any) -> Generator[Callable[..., Any]]:
    """Open tabs, with options of a browser context."""
    from tests.support.chromium import Tab

    contexts = list[Any]()

    def make(**options: Any) -> Tab:
        contexts.append(browser.new_context(**options))
        return Tab(contexts[-1], console.url)

    yield make
    for context in contexts:
        THREAD.submit(context.close).result(PATIENCE)
