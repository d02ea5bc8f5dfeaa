"""One process: opens the connections, starts the loops in one task group, hears the signals, drains."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from evsched import log
from evsched.app import App
from evsched.config import Config
from evsched.connection import hide_password
from evsched.dispatcher import Dispatcher
from evsched.embedded import read_version
from evsched.errors import ConfigError, StoreDown, StoreRefused
from evsched.events import DispatcherStarted, Events
from evsched.janitor import Janitor
from evsched.sender import Commands
from evsched.server import info
from evsched.worker import Worker

_BURST_LOOK: Final = 0.2
"""Seconds between two looks of a burst whether all is done. A burst is not a service: it may look."""


def find_app(name: str) -> App:
    """Import MODULE:APP.

    Raises:
        ConfigError: it cannot be; the message says why.
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
        raise ConfigError(f"module {module_name!r} does not import: {error}{hint}") from None
    # Whatever a user's module does while it is imported is the user's mistake, told in one line.
    except Exception as error:  # noqa: BLE001
        raise ConfigError(f"module {module_name!r} does not import: {type(error).__name__}: {error}") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        there = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f": it has {', '.join(there)}" if there else ": make one with app = evsched.App()"
        raise ConfigError(f"module {module_name!r} has no app {attribute!r}{hint}")
    return app


async def check_server(commands: Commands, url: str) -> str:
    """Return which server answers, such as "Redis 7.0.15".

    Raises:
        ConfigError: none answers, or it is too old.
    """
    try:
        told = await commands.send(info())
    except StoreDown as error:
        raise ConfigError(
            f"no Redis at {hide_password(url)} ({error}): start one, or name another with --url or EVSCHED_URL"
        ) from None
    except StoreRefused as error:
        raise ConfigError(f"Redis at {hide_password(url)} refuses: {error}") from None
    kind, version, least = read_version(told)
    if least is not None:
        raise ConfigError(
            f"{kind} {version} at {hide_password(url)} is too old: evsched needs {kind} {least[0]}.{least[1]} or newer"
        )
    return f"{kind.capitalize()} {version}"


async def run_dispatcher(config: Config) -> None:
    """Run a dispatcher and a janitor until SIGTERM or SIGINT."""
    commands, events = Commands(config.url), Events(log.listen)
    server = await check_server(commands, config.url)
    await _until_signal(_dispatch(config, commands, events, server))


async def run_worker(config: Config, app: App, *, burst: bool = False) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain. `burst`: dispatch too, and end when nothing is due."""
    commands, events = Commands(config.url), Events(log.listen)
    server = await check_server(commands, config.url)
    if burst:
        await _both(config, commands, events, app, server, burst=True)
    else:
        _leave(await _work(config, commands, events, app))


async def run_dev(config: Config, app: App) -> None:
    """Run a dispatcher, a janitor and a worker in one process, until SIGTERM or SIGINT."""
    commands, events = Commands(config.url), Events(log.listen)
    await _both(config, commands, events, app, await check_server(commands, config.url))


async def _both(
    config: Config, commands: Commands, events: Events, app: App, server: str, *, burst: bool = False
) -> None:
    dispatching = asyncio.ensure_future(_dispatch(config, commands, events, server))
    working = asyncio.ensure_future(_work(config, commands, events, app, burst=burst))
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


async def _dispatch(config: Config, commands: Commands, events: Events, server: str) -> None:
    dispatcher = Dispatcher(config, commands, events.emit)
    janitor = Janitor(config, commands, events.emit, lambda: dispatcher.queues)
    events.listen(janitor.listen)
    try:
        await dispatcher.find_queues()
    except StoreRefused as error:
        raise ConfigError(f"the queues cannot be found: {error}: name them with --queue") from None
    events.emit(DispatcherStarted(server, dispatcher.queues))
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatcher.run())
        group.create_task(janitor.run())


async def _work(config: Config, commands: Commands, events: Events, app: App, *, burst: bool = False) -> bool:
    """Run a worker until it is stopped; return whether threads of it go on that cannot be ended."""
    app.move_to(config.url)
    worker = Worker(config, commands, events.emit, app.program, list(config.queues or (app.queue,)))
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
        await app.close()
        await commands.close()
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
