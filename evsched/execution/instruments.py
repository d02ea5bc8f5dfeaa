"""The instruments of an app, such as tracing, around one enqueue or one run.

They never decide its result: what an instrument raises is logged once, and the work goes on. An exception of the work
itself passes through unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_logger: Final = logging.getLogger("evsched")

_LINE: Final = (
    "an instrument of the app, such as tracing, raised %s: %s; jobs and enqueues go on without it, and no further "
    "exception from this place is logged"
)

_logged: Final = set[tuple[type[BaseException], str, int]]()
"""The exceptions that were logged: class, file and line."""


class Instrumented(Generic[T]):
    """Some work as instruments see it: enters the context that each makes for it, the first one outermost."""

    def __init__(self, makers: Sequence[Callable[[T], AbstractContextManager[Any]]], work: T) -> None:
        self._makers, self._work = makers, work
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        for make in self._makers:
            guarded(self._enter, make)

    def _enter(self, make: Callable[[T], AbstractContextManager[Any]]) -> None:
        context = make(self._work)
        context.__enter__()
        self._entered.append(context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for context in reversed(self._entered):
            guarded(context.__exit__, kind, error, trace)
            if error is not None:  # an instrument that raises while it is thrown adds its frames
                BaseException.with_traceback(error, trace)


def guarded(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Call an instrument, and return None if it raises. That is logged once for each place that raises."""
    try:
        return call(*args, **kwargs)
    # An SDK, its processors and its exporters may raise anything.
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        *_, (frame, line) = walk_tb(error.__traceback__)
        place = type(error), frame.f_code.co_filename, line
        if place not in _logged:
            _logged.add(place)
            with suppress(Exception):  # the handler of the log may be an instrument too
                _logger.error(_LINE, type(error).__name__, error, exc_info=error)
        return None
