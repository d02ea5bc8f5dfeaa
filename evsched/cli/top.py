"""The command `top`: a page of queues and workers, drawn again each second."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from evsched.cli import output
from evsched.cli.options import Json, Queues, Url, check_queues, client, settings
from evsched.cli.queues import report
from evsched.cli.unknown_queues import note_unknown
from evsched.errors import StoreDown, StoreRefused
from evsched.top.collector import Top
from evsched.top.snapshot import Page
from evsched.transport.address import hide_password

if TYPE_CHECKING:
    from rich.console import Console

_LEAVE: Final = b"qQ\x03"
"""Ctrl-C too, in case the terminal sends it as a character."""

_WIDTH: Final = 200
"""Columns of a page in a file or a pipe: wide enough that nothing is cut."""


def top(*, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """Show queues, workers, throughput, lateness and running jobs, refreshed each second. q or Ctrl-C quits.

    With --json, or if the output is not a terminal, it measures for one second, prints one page, and exits.

    Exit code 1: a queue cannot be read or does not exist.

    Example: evsched top --queue mail
    """
    check_queues(queue)
    found = settings(url)
    queues = tuple(queue or found.queues)
    with client(found.url) as redis:
        code = note_unknown(redis, queues)
    return code or asyncio.run(_top(found.url, queues, json))


async def _top(url: str, queues: tuple[str, ...], json: bool) -> int:
    """Show it; return the exit code."""
    from evsched.cli.console import PipeConsole

    on_terminal = sys.stdout.isatty()
    console, looks = PipeConsole(highlight=False, width=None if on_terminal else _WIDTH), Top(url, queues)
    title = hide_password(url)
    try:
        async with aclosing(looks.pages()) as pages:
            if not json and on_terminal and not console.is_dumb_terminal:
                await _live(console, pages, title)
                return 0
            page = await _measured(pages)
            if json:
                output.as_json(page)
            else:
                from evsched.cli.render import draw

                console.print(draw(page, title, console.width, None))
            problems = (f"queue {queue} cannot be read: {why}" for queue, why in page.refused.items())
            return report(problems, page.nodes_down)
    except StoreRefused as error:
        hint = " (top needs the rights of the user `observer` in redis.conf)" if "permissions" in str(error) else ""
        raise StoreRefused(f"{error}{hint}") from None
    finally:
        await looks.close()


async def _measured(pages: AsyncGenerator[Page]) -> Page:
    """Return the second page: rates and lateness are measured between two."""
    await anext(pages)
    page = await anext(pages)
    if page.down is not None:
        raise StoreDown(page.down.reason)
    return page


async def _live(console: Console, pages: AsyncGenerator[Page], title: str) -> None:
    """Draw pages until a key or a signal ends it; then restore the terminal."""
    from rich.live import Live

    from evsched.cli.render import draw

    first = await anext(pages)  # before the screen is switched, so that an error stays visible
    leave = asyncio.Event()

    async def show() -> None:
        page = first
        with Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while True:
                live.update(draw(page, f"q leaves  {title}", console.width, console.height), refresh=True)
                page = await anext(pages)

    with _signals(leave.set), _keys(leave.set):
        showing, leaving = asyncio.ensure_future(show()), asyncio.ensure_future(leave.wait())
        try:
            await asyncio.wait([showing, leaving], return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()
        finally:
            showing.cancel()
            leaving.cancel()
            await asyncio.gather(showing, leaving, return_exceptions=True)


@contextmanager
def _signals(leave: Callable[[], None]) -> Generator[None]:
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def _keys(leave: Callable[[], None]) -> Generator[None]:
    """Read single keys, if stdin is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        try:
            pressed = os.read(keyboard, 1024)
        except OSError:
            pressed = b""
        # End of file: the terminal is closed.
        if not pressed or any(key in _LEAVE for key in pressed):
            leave()

    try:
        tty.setcbreak(keyboard)
        now = termios.tcgetattr(keyboard)
        for key in (termios.VSUSP, termios.VQUIT):
            now[6][key] = b"\0"  # Ctrl-Z and Ctrl-\ would end it without restoring the terminal
        termios.tcsetattr(keyboard, termios.TCSANOW, now)
        loop.add_reader(keyboard, read)
        yield
    finally:
        loop.remove_reader(keyboard)
        with suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
