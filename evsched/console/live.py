"""Open pages: each is read again while somebody looks at it, and the parts that have changed are sent.

The pages with the same address, drawn for the same role, share one reader. It ends with the last of them, so a closed
page costs nothing. A reader counts its commands and rests accordingly: one page costs Redis at most 2 commands a
second, and all open pages together at most 20.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from evsched.errors import EvschedError

PAGE_RATE: Final = 2.0
"""Commands a second of one open page."""

TOTAL_RATE: Final = 20.0
"""Commands a second of all open pages."""

_BEAT: Final = 15.0
"""Seconds after which a stream sends a comment, if nothing has changed, so that proxies keep it open."""


class PageReading(Struct, frozen=True):
    """The result of one reading: the HTML of each region, or why it failed; and how many commands it took."""

    regions: dict[str, str]
    problem: str = ""
    commands: int = 0


Reread = Callable[[], Awaitable[PageReading]]


class _PageReader:
    """Reads one page again and again, for all who look at it."""

    def __init__(self, hub: Hub, reread: Reread, every: float) -> None:
        self._hub, self._reread, self._every = hub, reread, every
        self.latest = PageReading({})
        self.changed = asyncio.Event()
        self.lookers = 0
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            await self._read_on()
        finally:  # it was cancelled, or has a bug: its lookers must not wait for it
            self.changed.set()

    async def _read_on(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                reading = await self._reread()
            except EvschedError as error:
                reading = PageReading({}, str(error))
            self.latest = reading
            self.changed.set()
            self.changed = asyncio.Event()
            rate = min(PAGE_RATE, TOTAL_RATE / max(self._hub.open, 1))
            rest = max(self._every, reading.commands / rate)
            await asyncio.sleep(max(begun + rest - time.monotonic(), 0.05))


class Hub:
    """The readers of all open pages of a console."""

    def __init__(self) -> None:
        self._readers = dict[str, _PageReader]()
        self._stopped = False

    @property
    def open(self) -> int:
        """How many different pages are open."""
        return len(self._readers)

    async def stream(
        self, key: str, reread: Reread, every: float, still: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of a page as text/event-stream, until its looker leaves or is not allowed to look any more.

        `key`: the same for pages that are the same. `still`: asked at times whether the looker is still signed in.
        """
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = _PageReader(self, reread, every)
        reader.lookers += 1
        sent, asked = dict[str, str](), time.monotonic()
        try:
            changed = reader.changed
            if not reader.latest.regions and not reader.latest.problem:
                await changed.wait()
            while not self._stopped and not reader.task.done():
                changed = reader.changed
                yield _events(reader.latest, sent)
                try:
                    async with asyncio.timeout(_BEAT):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                if time.monotonic() - asked > _BEAT:
                    asked = time.monotonic()
                    if not await still():
                        yield _event("ended", "", "")
                        return
        finally:
            reader.lookers -= 1
            if not reader.lookers:
                reader.task.cancel()
                self._readers.pop(key, None)

    def stop(self) -> None:
        """End all readers and streams: the process ends."""
        self._stopped = True
        for reader in self._readers.values():
            reader.task.cancel()
            reader.changed.set()


def _events(reading: PageReading, sent: dict[str, str]) -> bytes:
    """Return the events of the regions that have changed, and note them in `sent` by their digests."""
    if reading.problem:
        return _event("problem", "", reading.problem)
    parts = [_event("read", "", str(int(time.time() * 1000)))]
    for name, html in reading.regions.items():
        mark = sha256(html.encode()).hexdigest()[:12]
        if sent.get(name) != mark:
            sent[name] = mark
            parts.append(_event("region", mark, msgspec.json.encode({"name": name, "html": html}).decode()))
    return b"".join(parts)


def _event(name: str, mark: str, data: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{f'id: {mark}' + chr(10) if mark else ''}{lines}\n".encode(errors="backslashreplace")
