"""How a long command ends when it is asked to: between two steps, so that it can say what it has done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

_ENDS: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that ask a command to end."""


@contextmanager
def asked_to_end() -> Generator[Callable[[], int]]:
    """Yield a function that returns which signal came, 0 = none. The step at hand is finished. A second one kills."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    came, before = list[int](), {number: signal.getsignal(number) for number in _ENDS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        came.append(number)
        restore()

    for number in _ENDS:
        signal.signal(number, note)
    try:
        yield lambda: came[0] if came else 0
    finally:
        restore()
