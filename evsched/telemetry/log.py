"""The log: a line for each event that an operator needs to know, as text for a terminal, else as JSON.

`escape` and `json_text` make any text from Redis safe on a terminal.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Final

import msgspec

from evsched.display import escape, json_text
from evsched.errors import FULL
from evsched.events import Completed, Event, Started
from evsched.jobs.current_job import JobLogFilter
from evsched.process_events import CallAccepted, CallRefused, NodeReleased, RedisDown, RedisUp

_LONGEST: Final = 8192
"""Characters of a line: collectors cut longer ones, which breaks the JSON."""

_CUTS: Final = ((4000, 300), (1000, 50), (150, 5))
"""The characters of a text and the items of a list that are shown: the first pair with which the line is short enough
is used."""


def handler(level: int = logging.NOTSET) -> logging.Handler:
    """Return a handler that writes lines of a level and above to stderr."""
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


_logger: Final = logging.getLogger("evsched")

_MOST: Final = 8
"""Items of a list that a line for a terminal shows. The JSON has more."""


class Log:
    """The log of one process. It logs once that Redis is down, although every loop notices it.

    `jobs`: also log the start and the end of each job, whose events cover batches.
    """

    def __init__(self, *, jobs: bool = False) -> None:
        self._jobs = jobs
        self._down = set[str]()
        """The loops that Redis does not serve."""
        self._full = set[tuple[str, str]]()
        """The loops, and their queues, that Redis refuses because its memory is full."""
        self._since = 0.0
        """When the first of them lost Redis, by the monotonic clock."""

    def on_event(self, event: Event) -> None:
        """Log the event, if it has a line."""
        if self._jobs and isinstance(event, Started | Completed):
            _log_each(event)
            return
        level, line = event.log_line()
        if not line or not self._is_news(event) or not _logger.isEnabledFor(level):
            return
        if isinstance(event, RedisUp):
            event = RedisUp(who=event.who, seconds=time.monotonic() - self._since)
        values = {name: _show(getattr(event, name)) for name in event.__struct_fields__}
        _logger.log(level, line.format_map(values), extra={"event": event})

    def _is_news(self, event: Event) -> bool:
        """Return False for an event that repeats a line: an outage is logged at its first loss and its last recovery.

        So is the time in which Redis's memory is full.
        """
        if isinstance(event, RedisDown):
            first = not self._down
            self._down.add(event.who)
            if first:
                self._since = time.monotonic()
            return first
        if isinstance(event, RedisUp | NodeReleased):
            self._down.discard(event.who)
            return not self._down
        if isinstance(event, CallRefused | CallAccepted) and event.kind == FULL:
            was, refused = bool(self._full), isinstance(event, CallRefused)
            (self._full.add if refused else self._full.discard)((event.who, event.queue))
            return was is not bool(self._full)
        return True


def _log_each(event: Started | Completed) -> None:
    """Log a line for each job of a batch."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    name = type(event).__name__
    is_start = isinstance(event, Started)
    lengths = event.lateness if is_start else event.seconds
    for job_id, task, attempt, length in zip(event.ids, event.tasks, event.attempts, lengths, strict=True):
        done = f"started {length * 1e3:.1f} ms late" if is_start else f"done in {length:.3f} s"
        fields: dict[str, Any] = {
            "id": job_id,
            "queue": event.queue,
            "task": task,
            "attempt": attempt,
            "worker": event.worker,
        }
        fields["lateness" if is_start else "seconds"] = length
        message = f"job {job_id} of {event.queue}, task {task}, attempt {attempt}, {done}"
        _logger.info("%s", message, extra={"fields": {"event": name, **fields}})


def _show(value: object) -> object:
    if isinstance(value, list):
        items = [str(item) for item in value[:_MOST]]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        more = len(value) - _MOST  # pyright: ignore[reportUnknownArgumentType]
        return ", ".join(items) + (f" and {more} more" if more > 0 else "")
    return value


def configure(level: str = "INFO") -> None:
    """Write the log to stderr. Called by the commands; a program that embeds evsched configures logging itself.

    The warnings of libraries and handlers have the same form, as long as the app sets up no logging of its own.
    """
    logging.lastResort = handler(logging.WARNING)
    # It logs tracebacks when a broker ends or cannot be reached, which the reasons of the jobs say in a sentence.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    _logger.handlers = [handler()]
    _logger.setLevel(level)
    _logger.propagate = False


def level() -> str:
    """Return the level that `configure` set; empty in a program that configures logging itself."""
    return "" if _logger.propagate else logging.getLevelName(_logger.level)
