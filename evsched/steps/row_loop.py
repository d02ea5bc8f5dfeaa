"""`resumable`: a loop over rows that saves its place."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from evsched.jobs.current_job import CurrentJob
from evsched.jobs.job import decode, encode
from evsched.jobs.kept import Keep
from evsched.jobs.steering import GiveUp
from evsched.steps.memory import ask, ask_sync, leave_if_stopping, name_in_record, recall, recall_sync, run_of

T = TypeVar("T")

_KEY_MOST: Final = 1024
"""Bytes of a row's key as JSON: it is written every second."""


class Place(Generic[T]):
    """The place of one loop: behind the last row whose loop body has ended."""

    def __init__(self, job: CurrentJob, name: str, key: Callable[[T], Any], every: timedelta | float) -> None:
        self._job = job
        self._name = "@" + name_in_record(name)
        self._key = key
        self._every = every.total_seconds() if isinstance(every, timedelta) else float(every)
        self._saved = time.monotonic()
        self._last: bytes | None = None
        """The last place that was not saved yet."""
        self._skipping: bytes | None = None

    def begin(self, rows: Any, kept: dict[str, bytes]) -> Any:
        """Return the rows: those behind the place, if the source can begin there."""
        after = kept.get(self._name)
        if callable(rows):
            return rows(None if after is None else decode(after))
        self._skipping = after
        return rows

    def is_handled(self, row: T) -> bool:
        """Return whether an earlier run has handled a row of a source that begins at the first one."""
        if self._skipping is None:
            leave_if_stopping(self._job)
            return False
        if self._encode(row) == self._skipping:
            self._skipping = None
        return True

    def passed(self, row: T) -> Keep | None:
        """Note that the loop body of a row has ended; return the place if it is to be saved now."""
        self._last = self._encode(row)
        if time.monotonic() - self._saved >= self._every:
            return self.unsaved()
        if self._job.keeper is not None:
            self._job.keeper.note_position(self._name, self._last)
        return None

    def unsaved(self) -> Keep | None:
        """Return the last place if it is not saved yet, to be saved now."""
        last, self._last, self._saved = self._last, None, time.monotonic()
        return None if last is None else Keep(self._name, last)

    def end(self) -> Keep | None:
        """Return as `unsaved`, when all rows are handled.

        Raises:
            GiveUp: the row was not found behind which the loop was to go on.
        """
        if self._skipping is not None:
            raise GiveUp(
                f"no row has the key {self._skipping.decode()!r:.200}, behind which the loop {self._name[1:]} was to "
                "go on: give rows=lambda after: ... if rows may disappear, or run the job again from the beginning"
            )
        return self.unsaved()

    def _encode(self, row: T) -> bytes:
        key = self._key(row)
        try:
            text = encode(key)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise GiveUp(f"resumable: the key of a row is not JSON: {error}") from None
        if text == b"null" or len(text) > _KEY_MOST:
            raise GiveUp(
                f"resumable: the key of a row is {key!r:.100}: it must have a value, of {_KEY_MOST} bytes at most"
            )
        return text


class Resumable:
    """The type of `resumable`."""

    async def __call__(
        self,
        rows: AsyncIterable[T] | Iterable[T] | Callable[[Any], AsyncIterable[T] | Iterable[T]],
        *,
        key: Callable[[T], Any],
        every: timedelta | float = 1.0,
        name: str = "rows",
    ) -> AsyncGenerator[T]:
        """Loop over rows; in a later run of the job, go on behind the last row whose loop body had ended.

        `rows`: always the same rows in the same order. Or a function: it is called with the key behind which to begin,
        as JSON has it, or with None, and returns the rows behind it. Otherwise rows are skipped until that key comes.
        `key`: of a row, a JSON value that no other row has. `every`: seconds between two saves; the place is also saved
        when the run ends, so only after a crash are rows repeated, those of the last `every` seconds. `name`: tells the
        loops of a handler apart.

        Raises:
            GiveUp: a key is not valid or, without a function, no row has the key behind which to go on.
            Snooze, RunStopped, LookupError: as `step`.
        """
        job = run_of("resumable", name)
        place = Place[T](job, name, key, every)
        async for row in _each(place.begin(rows, await recall(job))):
            if place.is_handled(row):
                continue
            yield row
            if save := place.passed(row):
                await ask(job, save)
        if save := place.end():
            await ask(job, save)

    def sync(
        self,
        rows: Iterable[T] | Callable[[Any], Iterable[T]],
        *,
        key: Callable[[T], Any],
        every: timedelta | float = 1.0,
        name: str = "rows",
    ) -> Generator[T]:
        """Loop as `async for row in resumable(...)`, in a plain handler: in a thread, or in a process."""
        job = run_of("resumable", name)
        place = Place[T](job, name, key, every)
        for row in cast("Iterable[T]", place.begin(rows, recall_sync(job))):
            if place.is_handled(row):
                continue
            yield row
            if save := place.passed(row):
                ask_sync(job, save)
        if save := place.end():
            ask_sync(job, save)


async def _each(rows: AsyncIterable[T] | Iterable[T]) -> AsyncGenerator[T]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


resumable: Final = Resumable()
