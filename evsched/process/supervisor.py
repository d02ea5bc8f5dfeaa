"""The parent of worker processes: starts them, starts another when they are behind, ends one that is idle.

It knows no Redis and asks nobody: its children tell it (`child_link.py`). Each has a metrics port of its own, one after
the other from the first; the sockets are opened here, so a child that is started anew has its predecessor's. A file
names the ports of those that should run for Prometheus (`file_sd_configs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from evsched.config import Config, as_environment
from evsched.errors import CannotStart, ConfigError
from evsched.events import ChildCannotStart, ChildEnded, ChildKilled, ChildStarted, Emit
from evsched.process import child_link
from evsched.runtime.shutdown import FORCED, Shutdown, bound
from evsched.transport.backoff import reconnect_delay

_APART: Final = 2.0
"""Seconds between two starts for want of room: the last one must have had time to take jobs."""


_CANNOT_START: Final = (1, 2)
"""The exit codes of a command that has said why it cannot do its work (cli). All else may pass at the next start."""

_MARGIN: Final = 1.0
"""Seconds for a child to end after its own bound: then it is stopped, or the machine is."""

_ALL: Final = ("0.0.0.0", "::")  # noqa: S104
"""Every address of this host: none that Prometheus could ask, so its name stands for them."""


class Span(Struct, frozen=True):
    """How many processes there are, at least and at most."""

    least: int
    most: int


def read_span(text: str) -> Span:
    """Read `4` or `2:8`.

    Raises:
        ConfigError: it is neither.
    """
    low, colon, high = text.partition(":")
    try:
        span = Span(int(low), int(high if colon else low))
    except ValueError:
        span = Span(0, 0)
    if not 1 <= span.least <= span.most <= 256:
        raise ConfigError(f"processes {text!r}: a number such as 4, or MIN:MAX such as 2:8, from 1 to 256")
    return span


class Child:
    """One place for a worker process, with its port; processes come and go in it."""

    def __init__(self, number: int, port: socket.socket | None) -> None:
        self.number = number
        self.port = port
        self.process: asyncio.subprocess.Process | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.wanted = False


class Supervisor:
    """Keeps `span` worker processes of a command line."""

    def __init__(
        self,
        config: Config,
        span: Span,
        command: Sequence[str],
        emit: Emit,
        shutdown: Shutdown,
        targets: Path | None = None,
    ) -> None:
        self._config = config
        self._span = span
        self._command = command
        self._emit = emit
        self._shutdown = shutdown
        self._targets = targets
        self._stop = asyncio.Event()
        self._children: list[Child] = []
        self._ready = False
        self._last = 0.0
        self._code = 0

    async def run(self) -> int:
        """Keep the processes until asked to end, or until the first cannot start; return the exit code.

        It is that of the first, or FORCED when a child was killed, or held past its bounds, after the signal.

        Raises:
            CannotStart: a metrics port is taken, or the targets' file cannot be written.
        """
        self._shutdown.request.attach()
        self._shutdown.kill_children = self._kill
        asked = asyncio.ensure_future(self._shutdown.request.wait())
        asked.add_done_callback(lambda _: self._stop.set())
        self._children = [Child(number, self._bind(number)) for number in range(self._span.most)]
        try:
            for child in self._children[: self._span.least]:
                self._begin(child)
            await self._stop.wait()
            for child in self._children:
                self._end(child)
            await self._outlive([child.keeper for child in self._children if child.keeper])
        finally:
            asked.cancel()
            if self._targets is not None:
                self._targets.unlink(missing_ok=True)
            for child in self._children:
                if child.port is not None:
                    child.port.close()
        return self._code

    async def _outlive(self, keepers: list[asyncio.Task[None]]) -> None:
        """Wait for the children's end; one that hangs is killed, and the janitor puts back what it held."""
        if keepers:
            await asyncio.wait(keepers, timeout=bound(self._config.shutdown_grace) + _MARGIN)
        for child in self._kill():
            self._emit(ChildKilled(number=child.number, pid=child.process.pid if child.process else 0))
        await asyncio.gather(*keepers)

    def _kill(self) -> list[Child]:
        """Kill the children that live, and return them. For any thread."""
        living = [child for child in self._children if child.process is not None and child.process.returncode is None]
        for child in living:
            if child.process is not None:
                _signal(child.process, signal.SIGKILL)
        return living

    def _bind(self, number: int) -> socket.socket | None:
        first, host = self._config.metrics_port, self._config.metrics_host
        if first is None:
            return None
        port = first + number if first else 0
        try:
            return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, OverflowError) as error:
            raise CannotStart(f"metrics on {host}:{port}: {error}: choose another first port") from None

    def _write_targets(self) -> None:
        """Write the ports of the processes that should run: one that died is down, one that is not needed is not."""
        path = self._targets
        if path is None:
            return
        host = self._config.metrics_host
        if host in _ALL:
            host = socket.gethostname()
        ports = [child.port.getsockname()[1] for child in self._children if child.port and child.wanted]
        text = msgspec.json.encode([{"targets": [f"{host}:{port}" for port in ports], "labels": {}}])
        try:
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_bytes(text + b"\n")
            part.replace(path)  # Prometheus never reads half a file
        except OSError as error:
            raise CannotStart(f"metrics targets {path}: {error.strerror}") from None

    def _begin(self, child: Child) -> None:
        child.wanted = True
        self._write_targets()
        if child.keeper is None or child.keeper.done():
            child.keeper = asyncio.ensure_future(self._keep(child))

    def _end(self, child: Child) -> None:
        child.wanted = False
        self._write_targets()
        if child.process is not None and child.process.returncode is None:
            _signal(child.process, signal.SIGTERM)

    async def _keep(self, child: Child) -> None:
        """Run a process while one is wanted here; one that ends by itself is started anew."""
        failures = 0
        while child.wanted and not self._stop.is_set():
            began = time.monotonic()
            code = await self._live(child)
            if not child.wanted:
                if self._stop.is_set() and code not in (0, -signal.SIGTERM):  # the signal came before all else
                    self._code = self._code or FORCED  # the first that cannot start has said why
                return
            if not self._ready and code in _CANNOT_START:
                # The very first did not come up: the others would not either.
                self._emit(ChildCannotStart(number=child.number, code=code))
                self._code = code
                self._stop.set()
                return
            failures = 0 if time.monotonic() - began > 60 else failures + 1
            wait = reconnect_delay(failures) if failures else 0.0
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait)

    async def _live(self, child: Child) -> int:
        ours, theirs = socket.socketpair()
        given = [theirs.fileno()]
        environment = {**os.environ, **as_environment(self._config), child_link.LINK: str(theirs.fileno())}
        if child.port is not None:
            given.append(child.port.fileno())
            environment[child_link.METRICS] = str(child.port.fileno())
        # A group of its own: Ctrl-C on the terminal reaches the parent, which tells its children once.
        process = child.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "evsched", *self._command, pass_fds=given, env=environment, process_group=0
        )
        theirs.close()
        self._emit(ChildStarted(number=child.number, pid=process.pid))
        if not child.wanted:
            _signal(process, signal.SIGTERM)
        # The process itself says when it has ended: what it started may hold its end of the link for long after.
        hearing = asyncio.ensure_future(self._hear(child, ours))
        code = await process.wait()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        self._emit(ChildEnded(number=child.number, pid=process.pid, code=code))
        return code

    async def _hear(self, child: Child, link: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=link)
        try:
            while word := await reader.read(1):
                self._heard(child, word)
        except OSError:
            pass
        finally:
            writer.close()

    def _heard(self, child: Child, word: bytes) -> None:
        running = [one for one in self._children if one.wanted]
        now = time.monotonic()
        if word == child_link.READY:
            self._ready = True
        elif word == child_link.FULL and now - self._last > _APART and not self._stop.is_set():
            free = [one for one in self._children if not one.wanted]
            if free:
                self._last = now
                self._begin(free[0])
        elif word == child_link.IDLE and len(running) > self._span.least:
            self._end(child)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Send a signal.

    asyncio's own methods may take the exit code of a process that has just ended, which is then reported as 255.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
