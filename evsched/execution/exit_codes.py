"""The exit code of a child process, which only asyncio may read.

asyncio waits for its child processes in threads. But before it signals a process or closes the pipes to it, it calls
`Popen.poll`, which reads the exit code of a process that has just ended. The thread then finds no such process, logs
`Unknown child process`, and the exit code becomes 255.
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any
from weakref import WeakSet

_prepared = WeakSet[asyncio.AbstractEventLoop]()


class _ReadByAsyncio(subprocess.Popen[bytes]):
    """A process whose exit code asyncio reads, and sets here."""

    def poll(self) -> int | None:
        """Return the exit code if asyncio has read it. A signal to a process that has ended does nothing."""
        return self.returncode


def leave_to_asyncio() -> None:
    """From now on, leave the exit codes of child processes of the running event loop to asyncio's threads."""
    loop = asyncio.get_running_loop()
    if loop in _prepared:
        return
    _prepared.add(loop)
    start = loop.subprocess_exec

    async def subprocess_exec(*args: Any, **options: Any) -> tuple[asyncio.SubprocessTransport, Any]:
        transport, protocol = await start(*args, **options)
        process: object = transport.get_extra_info("subprocess")
        if type(process) is subprocess.Popen:
            process.__class__ = _ReadByAsyncio
        return transport, protocol

    loop.subprocess_exec = subprocess_exec
