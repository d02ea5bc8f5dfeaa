"""One process: opens the connections, starts the loops in one task group, hears the signals, drains."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import evsched
from evsched import log
from evsched.address import hide_password
from evsched.app import App
from evsched.config import Config
from evsched.dispatcher import Dispatcher
from evsched.embedded import read_version
from evsched.errors import CannotStart, ConfigError, StoreDown, StoreRefused
from evsched.events import DispatcherStarted, Events
from evsched.janitor import Janitor
from evsched.load import LINK, METRICS, Load, inherited
from evsched.sender import Commands
from evsched.server import info
from evsched.supervisor import Span, Supervisor
from evsched.telemetry import Telemetry
from evsched.worker import Worker

_BURST_LOOK: Final = 0.2
"""Seconds between two looks of a burst whether all is done. A burst is not a service: it may look."""


def find_app(name: str) -> App:
    """Import MODULE:APP.

    Raises:
        ConfigError: that is not the form of a name.
        CannotStart: there is no such app; the message says why.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{name!r} names no app: write MODULE:APP, such as tasks:app")
    if "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        hint = " (looked in this folder and in the installed packages)" if error.name == module_name else ""
        raise CannotStart(f"module {module_name!r} does not import: {error}{hint}") from None
    # Whatever a user's module does while it is imported is the user's mistake, told in one line.
    except Exception as error:  # noqa: BLE001
        raise CannotStart(f"module {module_name!r} does not import: {type(error).__name__}: {error}") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        there = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f": it has {', '.join(there)}" if there else ": make one with app = evsched.App()"
        raise CannotStart(f"module {module_name!r} has no app {attribute!r}{hint}")
    return app


async def check_server(commands: Commands, url: str) -> str:
    """Return which server answers, such as "Redis 7.0.15".

    Raises:
        CannotStart: none answers, or it is too old.
    """
    try:
        told = await commands.send(info())
    except StoreDown as error:
        raise CannotStart(
            f"no Redis at {hide_password(url)} ({error}): start one, or name another with --url or EVSCHED_URL"
        ) from None
    except StoreRefused as error:
        raise CannotStart(f"Redis at {hide_password(url)} refuses: {error}") from None
    kind, version, least = read_version(told)
    if least is not None:
        raise CannotStart(
            f"{kind} {version} at {hide_password(url)} is too old: evsched needs {kind} {least[0]}.{least[1]} or newer"
        )
    return f"{kind.capitalize()} {version}"


class _Process:
    """What the loops of one process share."""

    def __init__(self, config: Config, commands: Commands, server: str) -> None:
        self.config = config
        self.commands = commands
        self.server = server
        self.events = Events(log.Log().listen)
        self.telemetry = Telemetry(config, commands, self.events, evsched.__version__, inherited(METRICS))

    @classmethod
    async def begin(cls, config: Config) -> _Process:
        """Look whether Redis is there.

        Raises:
            CannotStart: it is not, or it is too old.
        """
        commands = Commands(config.url)
        return cls(config, commands, await check_server(commands, config.url))


async def run_dispatcher(config: Config) -> None:
    """Run a dispatcher and a janitor until SIGTERM or SIGINT."""
    process = await _Process.begin(config)
    async with process.telemetry:
        await _until_signal(_dispatch(process))


async def run_worker(config: Config, app: App, *, burst: bool = False) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain. `burst`: dispatch too, and end when nothing is due."""
    process = await _Process.begin(config)
    if burst:
        await _both(process, app, burst=True)
        return
    async with process.telemetry:
        lingering = await _work(process, app)
    _leave(lingering)


async def run_workers(config: Config, span: Span, command: Sequence[str], targets: Path | None) -> int:
    """Run worker processes, whose command line is `command`, until SIGTERM or SIGINT; return the exit code."""
    return await Supervisor(config, span, command, Events(log.Log().listen).emit, targets).run()


async def run_dev(config: Config, app: App) -> None:
    """Run a dispatcher, a janitor and a worker in one process, until SIGTERM or SIGINT."""
    await _both(await _Process.begin(config), app)


async def _both(process: _Process, app: App, *, burst: bool = False) -> None:
    async with process.telemetry:
        dispatching = asyncio.ensure_future(_dispatch(process))
        working = asyncio.ensure_future(_work(process, app, burst=burst))
        try:
            await asyncio.wait([dispatching, working], return_when=asyncio.FIRST_COMPLETED)
            if dispatching.done():
                dispatching.result()
            lingering = await working
        finally:
            for half in (dispatching, working):
                half.cancel()
            await asyncio.gather(dispatching, working, return_exceptions=True)
    _leave(lingering)


def _leave(lingering: bool) -> None:
    """End the process at once when a job's thread goes on past its grace: Python would wait for it for ever."""
    if lingering:
        os._exit(0)


async def _dispatch(process: _Process) -> None:
    config, commands, events = process.config, process.commands, process.events
    dispatcher = Dispatcher(config, commands, events.emit)
    janitor = Janitor(config, commands, events.emit, lambda: dispatcher.queues)
    events.listen(janitor.listen)
    try:
        await dispatcher.find_queues()
    except StoreRefused as error:
        raise CannotStart(f"the queues cannot be found: {error}: name them with --queue") from None
    process.telemetry.of_dispatcher(dispatcher)
    events.emit(DispatcherStarted(process.server, dispatcher.queues))
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatcher.run())
        group.create_task(janitor.run())


async def _work(process: _Process, app: App, *, burst: bool = False) -> bool:
    """Run a worker until it is stopped; return whether threads of it go on that cannot be ended."""
    config = process.config
    app.move_to(config.url)
    queues = list(config.queues or (app.queue,))
    worker = Worker(config, process.commands, process.events.emit, app.program, queues)
    process.telemetry.of_worker(worker)
    link, load = inherited(LINK), None
    if link is not None:
        load = Load(link, config.idle_end, worker)
        process.events.listen(load.listen)
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, worker.stop)
    try:
        running = asyncio.ensure_future(worker.run())
        if burst:
            while not running.done() and not await worker.idle():
                await asyncio.wait([running], timeout=_BURST_LOOK)
            worker.stop()
        await running
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        if load is not None:
            load.close()
        await app.close()
        await process.commands.close()
    return worker.lingering


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    running, stop = asyncio.ensure_future(work), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        stopping.cancel()
        running.result()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
