"""The two forms of a line of the log: text for a terminal, else JSON."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import msgspec

from evsched.events import Event
from evsched.jobs.current_job import JobLogFilter
from evsched.telemetry.printable import escape, json_text

_LONGEST: Final = 8192
"""Characters of a line: collectors cut longer ones, which breaks the JSON."""

_CUTS: Final = ((4000, 300), (1000, 50), (150, 5))
"""The characters of a text and the items of a list that are shown: the first pair with which the line is short enough
is used."""


def handler(level: int = logging.NOTSET) -> logging.Handler:
    """Return what writes lines of a level and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(_Human() if sys.stderr.isatty() else _Json())
    return handler


def _cut(text: str, most: int) -> str:
    """Return the text as valid UTF-8; only its beginning and its end if it is long."""
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return text.encode(errors="backslashreplace").decode()


def _bounded(value: object, characters: int, items: int) -> object:
    if isinstance(value, str):
        return _cut(value, characters)
    if isinstance(value, list):
        shown = [_bounded(item, characters, items) for item in value[:items]]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        more = len(value) - items  # pyright: ignore[reportUnknownArgumentType]
        return [*shown, f"and {more} more"] if more > 0 else shown
    return value


def _job_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that `JobLogFilter` adds to lines logged in a run; empty outside of one."""
    names = ("job_id", "job_queue", "job_task", "job_attempt")
    return {name: getattr(record, name) for name in names} if getattr(record, "job_attempt", 0) else {}


def _traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback that a library or a handler logs; empty when there is none."""
    return formatter.formatException(record.exc_info) if record.exc_info else ""


class _Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = _cut(escape(record.getMessage()), _LONGEST - 700)
        job = escape(" ".join(map(str, _job_of(record).values())))
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():8} {message}"
        line = f"{line} [{_cut(job, 600)}]" if job else line
        traceback = getattr(getattr(record, "event", None), "traceback", "") or _traceback_of(self, record)
        return "\n".join([line, *(f"  {escape(part)}" for part in traceback.splitlines())])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": record.created, "level": record.levelname.lower(), "message": record.getMessage()}
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            line["event"] = type(event).__name__
            line.update(msgspec.to_builtins(event))
        line.update(getattr(record, "fields", {}))
        line.update(_job_of(record))
        if traceback := _traceback_of(self, record):
            line["traceback"] = traceback
        text = ""
        for characters, items in _CUTS:
            text = json_text({name: _bounded(value, characters, items) for name, value in line.items()})
            if len(text) <= _LONGEST:
                break
        return text
