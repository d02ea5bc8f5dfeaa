"""The open links of a process, by the server they go to, so that those to a server that lost its place can be cut.

A server that hangs, or whose machine is down, would hold its links until they time out, long after another server has
taken its place.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from weakref import ref

from evsched.transport.address import Host
from evsched.transport.links import AsyncLink, abort


class OpenLinks:
    """Links of any event loops."""

    def __init__(self) -> None:
        self._links: dict[int, tuple[ref[AsyncLink], asyncio.AbstractEventLoop]] = {}
        """By `id`, each with the event loop that it belongs to."""

    def add(self, link: AsyncLink) -> None:
        """Note a link that is being opened, by the event loop that runs."""
        name = id(link)
        gone = ref(link, lambda _: self._links.pop(name, None))
        self._links[name] = (gone, asyncio.get_running_loop())

    def cut(self, host: Host) -> None:
        """Close the sockets of the links to a server. For any thread."""
        for weak, loop in list(self._links.values()):
            link: Any = weak()
            if link is not None and (link.host, link.port) == host:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(abort, link)
