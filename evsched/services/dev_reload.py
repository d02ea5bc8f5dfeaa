"""`evsched dev --reload`: runs the command in a process of its own, and starts it again when code changes.

Otherwise than a parent of workers (`supervisor.py`), it ends the old process before it starts the new one: only one may
have the metrics port and the app's lifespan on a developer's machine. It imports neither the app nor the worker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from evsched.config import Config
from evsched.errors import CannotStart, ConfigError
from evsched.events import Emit, Events
from evsched.process_events import ChildKilled, CodeChanged, DevWaits
from evsched.runtime.loops import background, ended_loop, first_of
from evsched.runtime.shutdown import Shutdown, bound
from evsched.services.worker_process import Launch, WorkerProcess, working_directory
from evsched.telemetry import log
from evsched.transport.call import read_scripts


class DevReload:
    """Keeps one process with the newest code."""

    def __init__(self, config: Config, launch: Launch, emit: Emit, shutdown: Shutdown) -> None:
        self._launch = launch
        self._emit = emit
        self._shutdown = shutdown
        self._changed = asyncio.Event()
        self._bound = bound(config.shutdown_grace)

    async def run(self) -> int:
        """Run until asked to end, or until the process ends by itself without an error; return the exit code.

        Raises:
            CannotStart: files cannot be watched.
        """
        self._shutdown.request.attach()
        async with background(self._shutdown.request.wait(), self._watch()) as (asked, watching):
            while True:
                self._changed.clear()
                child = WorkerProcess(0, self._launch, None)
                child.unwanted.clear()
                self._shutdown.kill_children = child.kill
                async with background(child.run(self._emit, lambda _: None), self._changed.wait()) as (
                    running,
                    changed,
                ):
                    await first_of((asked, watching, running, changed))
                    await self._end(child, running)
                    code = running.result()
                    if watching.done():
                        watching.result()
                        raise ended_loop("reload", watching)
                    if asked.done():
                        return 0 if code == -signal.SIGTERM else code  # it came before the process handled signals
                    if code == 0 and not changed.done():
                        return 0  # as `evsched workers stop` asked
                    if not changed.done():
                        self._emit(DevWaits(code=code))
                        await first_of((asked, watching, changed))

    async def _end(self, child: WorkerProcess, running: asyncio.Task[int]) -> None:
        """End the process if it still runs, and kill it if it hangs."""
        if not running.done():
            child.unwanted.set()
            child.terminate()
            await asyncio.wait([running], timeout=self._bound)
            if not running.done():
                self._emit(ChildKilled(number=child.number, pid=child.pid))
                child.kill()
                await running

    async def _watch(self) -> None:
        """Note changes of Python files below the working folder. Other files may be written by the app itself.

        Raises:
            CannotStart: the system refuses.
        """
        from watchfiles import PythonFilter, awatch  # pyright: ignore[reportUnknownVariableType] - trio's event

        folder = Path.cwd()
        try:
            async for changes in awatch(folder, watch_filter=PythonFilter()):
                files = sorted({str(Path(path).relative_to(folder)) for _, path in changes})
                self._emit(CodeChanged(files=files))
                self._changed.set()
        except OSError as error:  # such as a limit of the system on how many folders are watched
            hint = "set WATCHFILES_FORCE_POLLING=true to poll them instead"
            raise CannotStart(f"the files below {folder} cannot be watched: {error}; {hint}") from None


def check_installed() -> None:
    """Check that the package is installed that watches files.

    Raises:
        ConfigError
    """
    if find_spec("watchfiles") is None:
        raise ConfigError("evsched dev --reload needs the package watchfiles: pip install 'evsched[reload]'")


def run_reloading(config: Config, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command of evsched, and again whenever code changes, until SIGTERM or SIGINT; return the exit code.

    `environment`: the variables that are added to this process's own for it.
    """
    read_scripts()  # before files change
    launch = Launch(command, environment, working_directory())
    emit = Events(log.Log(jobs=config.log_jobs).on_event).emit
    with Shutdown(bound(config.shutdown_grace), emit) as shutdown:
        return asyncio.run(DevReload(config, launch, emit, shutdown).run())
