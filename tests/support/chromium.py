"""A real Chromium, and a console for it: each test process has one browser, in a thread of its own.

Playwright's blocking interface cannot be used in a thread that has an event loop, as those of other tests do. So the
tests in tests/browser run in that thread, see their conftest.py.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import uvicorn
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import BrowserContext, Page, sync_playwright

from evsched.config import Config
from evsched.console import create
from tests.support.patience import PATIENCE

PROGRAMS: Final = ("chromium-headless-shell", "chromium")
"""Debian's. Playwright brings none for every system, and what it downloads is not what users have."""


def find_chromium() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name)) is not None), None)


@contextmanager
def chromium(program: str) -> Generator[Chromium]:
    flags = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # it refuses to start otherwise
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


class ServedConsole:
    """A console on a port of this machine, without tokens: everybody is an admin."""

    def __init__(self, url: str) -> None:
        self.redis = url
        self.app = create(Config(url=url, console_name="test"), alone=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_config=None, ws="none", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]})

    @property
    def open_pages(self) -> int:
        return self.app.state.console.hub.open

    def __enter__(self) -> ServedConsole:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.app.state.console.hub.stop()
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        self._listening.close()


class Tab:
    """A page of the browser, and what went wrong in it."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        context.set_default_timeout(PATIENCE * 1000)
        # The names of what a policy has refused are else in the console of the browser only, in words.
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => "
            "console.error('refused by the policy: ' + event.violatedDirective + ' ' + event.blockedURI))"
        )
        self.page: Page = context.new_page()
        self.problems = list[str]()
        self.page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self._base = base

    def open(self, path: str) -> int:
        """Open a page, and return its status."""
        answer = self.page.goto(self._base + path)
        assert answer is not None
        return answer.status

    def hindrances(self) -> list[str]:
        """Return what hinders people with disabilities, as axe sees it, if it is serious."""
        script = Path(str(import_module("axe_playwright_python").__file__)).with_name("axe.min.js").read_text()
        self.page.evaluate(script)
        found: Any = self.page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html'][:200]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is too wide."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
