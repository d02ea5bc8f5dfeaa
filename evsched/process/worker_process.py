"""One worker process of the supervisor: how it is started and ended, and the socket over which it reports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from evsched.events import ChildEnded, ChildStarted, Emit
from evsched.process import child_link

OnReport = Callable[[bytes], None]
"""Called with each byte that the process sends (`child_link.py`)."""


class WorkerProcess:
    """The worker process with this number. `run` starts it; after its end, `run` may start it again."""

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], port: socket.socket | None
    ) -> None:
        self.number = number
        self.wanted = False
        """The process should run."""
        self._command = command
        self._environment = environment
        self._port = port
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The id of the process; 0 = it was never started."""
        return self._process.pid if self._process else 0

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def run(self, emit: Emit, on_report: OnReport) -> int:
        """Start the process and wait for its end; return its exit code."""
        ours, theirs = socket.socketpair()
        inherited = [theirs.fileno()]
        environment = {**os.environ, **self._environment, child_link.LINK: str(theirs.fileno())}
        if self._port is not None:
            inherited.append(self._port.fileno())
            environment[child_link.METRICS] = str(self._port.fileno())
        # A group of its own: so Ctrl-C on the terminal reaches the parent alone, which passes it on once.
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "evsched", *self._command, pass_fds=inherited, env=environment, process_group=0
        )
        theirs.close()
        emit(ChildStarted(number=self.number, pid=process.pid))
        if not self.wanted:
            self.terminate()
        # The end of the link is not the end of the process: what the process started may hold the link for long after.
        receiving = asyncio.ensure_future(_receive(ours, on_report))
        code = await process.wait()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        emit(ChildEnded(number=self.number, pid=process.pid, code=code))
        return code

    def terminate(self) -> None:
        """Ask the process to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once. For any thread."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # asyncio's own methods may take the exit code of a process that has just ended, and then report 255.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


async def _receive(link: socket.socket, on_report: OnReport) -> None:
    reader, writer = await asyncio.open_connection(sock=link)
    try:
        while report := await reader.read(1):
            on_report(report)
    except OSError:
        pass
    finally:
        writer.close()
