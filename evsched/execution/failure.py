"""A failure: the description of an exception that a handler raised, for operators. Pure: exception -> text.

The reason is one line: the exception, the place in the user's own code, and the causes. The traceback is Python's
own, cut to a bound. Both are about the user's code, so frames of evsched and of the pools under it are left out.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any, Final, cast

from msgspec import Struct

from evsched.jobs.retry import class_name

TRACEBACK_MOST: Final = 4096
"""Bytes of a traceback that are kept: some twenty frames. Dead jobs are kept for months, and there may be many."""

_MESSAGES_MOST: Final = 1600
"""Characters of all messages of one reason; with the places it stays within the limit of `job.shorten`."""

_LINE_MOST: Final = 600
"""Characters of a message in a traceback: it leaves room for the frames."""

_CAUSES_MOST: Final = 4
"""Exceptions that one reason names."""

_CHAIN_MOST: Final = 32
"""Exceptions of a chain that are read: a loop that retries for hours may chain thousands."""

_LINKS: Final = {
    "": ("", ""),
    "cause": ("; caused by ", "\nThe above exception was the direct cause of the following exception:\n\n"),
    "context": ("; while handling ", "\nDuring handling of the above exception, another exception occurred:\n\n"),
    "member": ("; of the group: ", "\nThe above exception is one of the following group:\n\n"),
}
"""How an exception goes with the one before it: in the reason, in front; in the traceback, behind."""

_HEAD, _TAIL = 8, 24
"""Frames that are kept at the ends of a long stack, such as of an endless recursion."""

_OWN: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - as code objects have it
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class Failure(Struct, frozen=True):
    """The description of an exception."""

    reason: str
    traceback: str = ""
    """At most `TRACEBACK_MOST` bytes of UTF-8; empty when no code but evsched's was running."""
    error: str = ""
    """The name of its class."""


class Stack(Struct, frozen=True):
    """The description of code that still runs."""

    place: str = ""
    """The innermost line of the user's code, such as ` (tasks.py:7 in pay)`; empty when none runs."""
    traceback: str = ""
    """As in a failure."""


_Frame = tuple[FrameType, int]
"""A frame, and the line that it was in."""


def failure_of(error: BaseException, module: str = "") -> Failure:
    """Describe an exception that a handler of `module` raised. Never raises."""
    try:
        return _describe(error, module)
    # A user's class may raise anything, wherever it is looked at.
    except BaseException as broken:  # noqa: BLE001
        return Failure(f"{type(error).__name__}: it cannot be described: {type(broken).__name__}")


def release(error: BaseException) -> None:
    """Drop the tracebacks of an exception that has been described, and of those before it. Never raises.

    A frame that refers to the exception which left it is a circle, and keeps all of the handler's variables alive
    until the garbage collector runs. asyncio and many libraries have such frames, and so have handlers.
    """
    with contextlib.suppress(BaseException):
        for one, _ in list(_chain(error)):
            BaseException.with_traceback(one, None)


def _describe(error: BaseException, module: str) -> Failure:
    chain = list(_chain(error))
    most = _MESSAGES_MOST // min(len(chain), _CAUSES_MOST)
    parts = [_LINKS[link][0] + _line(one, most) + where(one, module) for one, link in chain[:_CAUSES_MOST]]
    if len(chain) > _CAUSES_MOST:
        parts.append(f"; and {len(chain) - _CAUSES_MOST} more")
    return Failure("".join(parts), cut_traceback(_traceback(chain, module)), class_name(error))


def where(error: BaseException, module: str = "") -> str:
    """Return the place in the user's code from which an exception came, such as ` (tasks.py:7 in pay)`, or nothing."""
    return _place(list(walk_tb(error.__traceback__)), module)


def stack_of(frame: FrameType, module: str = "") -> Stack:
    """Describe the code that a thread runs for a handler of `module`; `frame` is its innermost. For any thread."""
    return stack_of_frames([*walk_stack(frame)][::-1], module)


def stack_of_frames(frames: Sequence[_Frame], module: str = "") -> Stack:
    """Describe the code of frames, the outermost first, as `stack_of`."""
    # The frames before evsched's own belong to the program that started it.
    own = next((n for n, (one, _) in enumerate(frames) if _is_own(one)), 0)
    first = next((n for n, (one, _) in enumerate(frames) if n >= own and _is_users(one, module)), None)
    if first is None:
        return Stack()
    lines = ("Stack (most recent call last):\n", *_drawn([*frames[first:]]))
    return Stack(_place(frames[first:], module), cut_traceback("".join(lines)))


def _place(frames: Sequence[_Frame], module: str) -> str:
    found = [one for one in frames if _is_users(one[0], module)]
    if not found:
        return ""
    frame, line = found[-1]
    return f" ({frame.f_code.co_filename}:{line} in {frame.f_code.co_name})"


def message(error: BaseException) -> str:
    """Return an exception's own text as UTF-8 can hold it, whatever its class makes of that."""
    try:
        text = plain(str(error))
    # A user's class may raise anything here.
    except BaseException as broken:  # noqa: BLE001
        return f"its message cannot be read: {type(broken).__name__} in __str__"
    return text


def plain(text: str) -> str:
    """Return a text as UTF-8 can hold it."""
    return text.encode(errors="backslashreplace").decode()


def _line(error: BaseException, most: int) -> str:
    text = message(error)
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-(most // 2) :]}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield an exception and those before it, each with how it is linked: the members of a group count as causes."""
    seen, left = set[int](), [(error, "")]
    while left and len(seen) < _CHAIN_MOST:
        one, link = left.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one, link
        if isinstance(one, BaseExceptionGroup):
            left += [(member, "member") for member in one.exceptions]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        looked_at = cast(BaseException, one)
        cause, context = _attribute(looked_at, "__cause__"), _attribute(looked_at, "__context__")
        if isinstance(cause, BaseException):
            left.append((cause, "cause"))
        elif isinstance(context, BaseException) and not one.__suppress_context__:
            left.append((context, "context"))


def _attribute(error: BaseException, name: str) -> Any:
    """Return an attribute; None if the user's class raises instead."""
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001
        return None


def _notes(error: BaseException) -> list[str]:
    notes = _attribute(error, "__notes__")
    return [note for note in cast(list[object], notes) if type(note) is str] if type(notes) is list else []


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OWN)


def _is_users(frame: FrameType, module: str) -> bool:
    """Tell whether it is the user's code: not a library's, or in the package of the handler, which may be installed.

    The tasks that come with evsched are not: their exceptions say what to do, and their lines would not help.
    """
    name = str(frame.f_globals.get("__name__", ""))
    package = module.partition(".")[0]
    if package not in ("", "evsched") and name.partition(".")[0] == package:
        return True
    return not _is_foreign(frame.f_code.co_filename)


@cache
def _is_foreign(path: str) -> bool:
    return (
        path.startswith((_OWN, "<frozen ", *_LIBRARIES))
        or f"{os.sep}site-packages{os.sep}" in path
        or f"{os.sep}dist-packages{os.sep}" in path
    )


def _traceback(chain: Sequence[tuple[BaseException, str]], module: str) -> str:
    """Return the traceback as Python writes it, the first cause first; frames before the user's first are left out."""
    parts = list[str]()
    for one, link in chain:
        frames = list(walk_tb(one.__traceback__))
        first = next((n for n, (frame, _) in enumerate(frames) if _is_users(frame, module)), None)
        lines = list(_drawn(frames[first:] if first is not None else [at for at in frames if not _is_own(at[0])]))
        if lines:
            lines.insert(0, "Traceback (most recent call last):\n")
        elif not parts:
            return ""
        notes = (f"{note}\n" for note in _notes(one))
        parts.append("".join([*lines, _line(one, _LINE_MOST), "\n", *notes, _LINKS[link][1]]))
    return "".join(reversed(parts))


def _drawn(frames: list[_Frame]) -> Iterator[str]:
    left_out = len(frames) - _HEAD - _TAIL
    for n, (frame, line) in enumerate(frames):
        if left_out > 0 and _HEAD <= n < _HEAD + left_out:
            if n == _HEAD:
                yield f"  ... {left_out} more calls ...\n"
            continue
        path = frame.f_code.co_filename
        yield f'  File "{path}", line {line}, in {frame.f_code.co_name}\n'
        linecache.lazycache(path, frame.f_globals)
        if source := linecache.getline(path, line).strip():
            yield f"    {source}\n"


def cut_traceback(text: str) -> str:
    """Return the text as it may be stored: as UTF-8, and its two ends alone when it is long."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= TRACEBACK_MOST:
        return data.decode()
    gap = "\n  ... left out ...\n"
    half = (TRACEBACK_MOST - len(gap)) // 2
    return data[:half].decode(errors="ignore") + gap + data[-half:].decode(errors="ignore")
