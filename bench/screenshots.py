"""Pictures of the console for README.md and docs/: `make screenshots`. Nothing in them is drawn by hand.

It starts a Redis, a dispatcher and a worker of bench/clinic.py, has them work for some minutes, does what an operator
does, starts a console, and takes the pictures with Debian's Chromium. With pngquant, they are a third of the size.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from playwright.sync_api import Browser, sync_playwright

from bench.figures import Failed
from bench.processes import CHECKOUT, running
from bench.server import until
from evsched.client.client import SyncClient
from evsched.transport.embedded import EmbeddedRedis


class Picture(Struct, frozen=True):
    """A picture. `path`: of the page; {dead} is the id of a job that died. `wait`: an element that must be there."""

    path: str
    wait: str = "main h1"
    dark: bool = False
    phone: bool = False
    height: int = 800


PICTURES: Final = {
    "console-now": Picture("/", wait="[data-live=queues] tbody tr"),
    "console-now-dark": Picture("/", wait="[data-live=queues] tbody tr", dark=True),
    "console-now-phone": Picture("/", wait="[data-live=queues] tbody tr", phone=True),
    "console-queue": Picture("/queue?name=webhooks", height=1000),
    "console-jobs": Picture("/jobs?q=queue:webhooks+place:dead", wait="tbody a"),
    "console-job": Picture("/job?queue=webhooks&id={dead}"),
    "console-bulk": Picture("/bulk?verb=revive&q=queue:webhooks+place:dead+task:deliver_webhook", height=600),
    "console-failures": Picture("/failures"),
    "console-recurrences": Picture("/recurrences"),
    "console-agenda": Picture("/agenda"),
    "console-workers": Picture("/workers"),
    "console-history": Picture("/history"),
    "console-audit": Picture("/audit"),
}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _scene(minutes: float) -> Generator[tuple[str, str]]:
    """Have the company work for some minutes; yield the id of a job that died, and the URL of its console."""
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis(port=_free_port()))
        url = f"redis://127.0.0.1:{redis.port}/0"
        program = (sys.executable, "-m", "evsched")
        variables = {"EVSCHED_URL": url}
        commands = [("dispatcher",), ("worker", "bench.clinic:app", "--concurrency", "40")]
        children = [stack.enter_context(running((*program, *command), variables)) for command in commands]
        load = ("-c", f"import asyncio; from bench import clinic; asyncio.run(clinic.load({minutes * 60 + 600}))")
        children.append(stack.enter_context(running((sys.executable, *load), variables)))
        client = SyncClient(url)
        stack.callback(client.close)
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            for child in children:
                child.check()
            time.sleep(1)
        act = client.as_operator("ann.keller", "console")
        act.limit("mail", rate=200)
        act.pause("reminders", why="the SMS gateway is being updated", until=time.time() + 1800)
        dead = client.send(client.store("webhooks").front("dead", 1, last=True))
        if not dead:
            raise Failed("no job has died yet: take more --minutes")
        port = _free_port()
        console = ("console", "--port", str(port), "--name", "clinic production", "--zone", "Europe/Berlin")
        stack.enter_context(running((*program, *console), variables))
        until(lambda: _listens(port))
        yield dead[0][0], f"http://127.0.0.1:{port}"


def _take(browser: Browser, base: str, name: str, picture: Picture, dead: str, folder: Path) -> None:
    context = browser.new_context(
        viewport={"width": 400 if picture.phone else 1280, "height": picture.height},
        color_scheme="dark" if picture.dark else "light",
        locale="en-GB",
        timezone_id="Europe/Berlin",
    )
    page = context.new_page()
    answer = page.goto(base + picture.path.format(dead=dead))
    if answer is None or answer.status != 200:
        raise Failed(f"{name}: {picture.path} was answered with {answer and answer.status}")
    page.wait_for_selector(picture.wait)
    if page.locator("#live").count():
        page.wait_for_selector("#live:not([hidden])")
    path = folder / f"{name}.png"
    page.screenshot(path=path)
    context.close()
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--skip-if-larger", "--output", path, "128", "--", path], check=False)
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m bench.screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(PICTURES)}")
    parser.add_argument("--minutes", type=float, default=5.0, help="for which the jobs run before (5)")
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "docs", help="where the pictures are written (docs)")
    given = parser.parse_args()
    if unknown := {*given.names} - {*PICTURES}:
        parser.error(f"there is no picture {', '.join(sorted(unknown))}")
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        parser.error("Chromium is not installed (Debian: chromium-headless-shell)")
    given.folder.mkdir(parents=True, exist_ok=True)
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with _scene(given.minutes) as (dead, base), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        for name, picture in PICTURES.items():
            if not given.names or name in given.names:
                _take(browser, base, name, picture, dead, given.folder)
        browser.close()


if __name__ == "__main__":
    main()
