"""The log: a line for each event that an operator needs to know.

log_lines.py has the lines, log_format.py their two forms.
"""

from __future__ import annotations

import logging
import signal
import time
from typing import Any, Final

from evsched import events
from evsched.errors import FULL
from evsched.events import Event
from evsched.telemetry.log_format import handler
from evsched.telemetry.log_lines import BLOCKER, FULL_LINES, LINES, LOST_ENDS, NEEDS

_logger: Final = logging.getLogger("evsched")

_ABSENT: Final = ("connection", "timeout")
"""The kinds of errors that mean that Redis cannot be reached."""

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
        """Log the event, if it is one that has a line."""
        if self._jobs and isinstance(event, events.Started | events.Completed):
            _log_each(event)
            return
        level, line = (FULL_LINES if getattr(event, "kind", "") == FULL else LINES).get(type(event), (0, ""))
        if isinstance(event, events.JobsRequeued) and event.cause == "busy":
            level = logging.DEBUG  # another worker fetches it at once: no action is needed
        if isinstance(event, events.JobDeferred) and event.cause != "window":
            level = logging.DEBUG  # HandlerNotFound or TaskUnknown was logged, once for all of them
        if isinstance(event, events.LeaseLost) and not event.held:
            level = logging.WARNING  # nothing is lost, but it sent no heartbeat for long
        if isinstance(event, events.ChildEnded) and event.code not in (0, -signal.SIGTERM):
            level = logging.WARNING  # it was not asked to end, or could not
        if not self._is_news(event) or not line or not _logger.isEnabledFor(level):
            return
        if isinstance(event, events.RedisUp):
            event = events.RedisUp(who=event.who, seconds=time.monotonic() - self._since)
        values = {name: _show(getattr(event, name)) for name in event.__struct_fields__}
        if isinstance(event, events.RedisDown):
            values["is_down"] = "is down" if event.kind in _ABSENT else "cannot serve now"
        elif isinstance(event, events.WorkerBlocked):
            one_of = f"one of {values['running']}" if event.running else "the app"
            values["blocker"] = BLOCKER.format_map(values) if event.id else one_of
        elif isinstance(event, events.ParentWoken):
            values["why"] = NEEDS.get(event.need, event.need)
        elif isinstance(event, events.LeaseLost):
            cancelled = ": its jobs are cancelled here and start elsewhere"
            values["effect"] = cancelled if event.held else ", and held no jobs"
        elif isinstance(event, events.RunLost):
            values["but"] = LOST_ENDS[event.end]
        elif isinstance(event, events.CallRefused | events.CallAccepted):
            values["of_queue"] = f", queue {event.queue}" if event.queue else ""
        _logger.log(level, line.format_map(values), extra={"event": event})

    def _is_news(self, event: Event) -> bool:
        """Return whether to log an event: of an outage, only the first loop's loss and the last loop's recovery.

        The same of a time in which Redis's memory is full.
        """
        if isinstance(event, events.RedisDown):
            first = not self._down
            self._down.add(event.who)
            if first:
                self._since = time.monotonic()
            return first
        if isinstance(event, events.RedisUp | events.NodeReleased):
            self._down.discard(event.who)
            return not self._down
        if isinstance(event, events.CallRefused | events.CallAccepted) and event.kind == FULL:
            was, refused = bool(self._full), isinstance(event, events.CallRefused)
            (self._full.add if refused else self._full.discard)((event.who, event.queue))
            return was is not bool(self._full)
        return True


def _log_each(event: events.Started | events.Completed) -> None:
    """Log a line for each job of a batch."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    name = type(event).__name__
    is_start = isinstance(event, events.Started)
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
