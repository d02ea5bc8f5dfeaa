"""The addresses of hosts, as the system knows them.

The system's resolver blocks, for half a minute if no DNS server answers, and cannot be stopped. So each lookup has a
thread of its own, one for each name: a request for a name that is being looked up waits for that lookup.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Final

_LOOKUPS: Final = 512
"""Names that are looked up at one time. It is twice the jobs that a worker runs unless told otherwise, so that names
whose DNS servers do not answer, and whose jobs have given up meanwhile, leave room for others."""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host. It may block."""

_Found = Sequence[str] | Exception


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, as the system knows them.

    Raises:
        OSError: there are none, or it cannot be found out.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Names:
    """Looks up names, each once at a time. Nothing is remembered: the next request looks it up again."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._room = asyncio.Semaphore(_LOOKUPS)
        self._running = dict[str, asyncio.Future[_Found]]()

    async def find(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host. It takes as long as the system does.

        Raises:
            OSError: there are none, or it cannot be found out.
        """
        if (running := self._running.get(host)) is None:
            await self._room.acquire()
            if (running := self._running.get(host)) is None:
                running = self._start(host, port)
            else:  # another request has begun it meanwhile
                self._room.release()
        found = await asyncio.shield(running)
        if isinstance(found, Exception):
            raise found
        return found

    def _start(self, host: str, port: int) -> asyncio.Future[_Found]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Found] = loop.create_future()

        def end(found: _Found) -> None:
            del self._running[host]
            self._room.release()
            done.set_result(found)

        def look_up() -> None:
            try:
                found: _Found = self._resolve(host, port)
            except Exception as error:  # noqa: BLE001 - those who wait get it
                found = error
            with suppress(RuntimeError):  # the worker has stopped
                loop.call_soon_threadsafe(end, found)

        # A daemon: a worker that stops does not wait for DNS servers.
        thread = Thread(target=look_up, name=f"look up {host}", daemon=True)
        self._running[host] = done
        try:
            thread.start()
        except RuntimeError:
            end(OSError(errno.EAGAIN, "the system allows no more threads"))
        return done
