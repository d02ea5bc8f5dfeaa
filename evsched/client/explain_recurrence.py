"""Explains what a recurrence does next, or why it makes no jobs. Pure: the caller reads its record from Redis."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evsched.client.explain import Explanation
from evsched.client.recurrence_status import no_record
from evsched.durations import format_duration
from evsched.errors import ConfigError
from evsched.jobs.record import number, whole
from evsched.recurrence.look_ahead import Standing, next_time
from evsched.recurrence.windows import read_window

_SHOWN = ("rule", "zone", "after", "skip", "window", "overlap", "misfire")
"""The fields of the declaration that are listed."""

_OVERDUE = 5.0
"""Seconds after its planned time by which a dispatcher that serves the queue has moved a recurrence on: it does so 15 s
before that time."""


def explain_recurrence(
    name: str,
    queue: str,
    standing: Standing,
    fields: Mapping[str, bytes],
    requests: int,
    now: float,
    dispatchers: int | None = None,
    window: str | None = None,
) -> Explanation:
    """Explain what a recurrence does next.

    `requests`: how many requested runs wait. `dispatchers`: how many are connected; None = that is not known.
    `window`: the present definition of the window that it names.
    """
    sentence = _why_not(name, queue, fields, now)
    if not sentence:
        sentence = _when(standing, now) + _opening(standing, window or _text(fields, "window"), now)
        if dispatchers == 0:
            sentence += "; but no dispatcher is connected, so nothing starts: start one with `evsched dispatcher`"
    if requests:
        sentence += f"; {requests} requested runs wait" if requests > 1 else "; 1 requested run waits"
    return Explanation(sentence, _list_facts(fields, now))


def _text(fields: Mapping[str, bytes], field: str) -> str:
    return fields.get(field, b"").decode(errors="backslashreplace")


def _why_not(name: str, queue: str, fields: Mapping[str, bytes], now: float) -> str:
    """Return why a recurrence makes no jobs, '' = it does."""
    if not fields:
        return f"it makes no jobs: {no_record(queue, name)}"
    if "retired" in fields:
        return "stopped: the code no longer declares it" + (f"; {_paused(fields, now)}" if "paused" in fields else "")
    if "paused" in fields:
        return f"{_paused(fields, now)}; resume it with `evsched recurrences resume {name} --queue {queue}`"
    return f"it makes no jobs: {_text(fields, 'reason')}" if "reason" in fields else ""


def _paused(fields: Mapping[str, bytes], now: float) -> str:
    since, until = number(fields.get("paused")), number(fields.get("paused_until"))
    sentence = "paused" if since is None else f"paused for {format_duration(max(now - since, 0.0))}"
    if until is not None:
        sentence += f", and for {format_duration(max(until - now, 0.0))} more"
    return f"{sentence}: {_text(fields, 'paused_why')}" if "paused_why" in fields else sentence


def _when(standing: Standing, now: float) -> str:
    next_ = next_time(standing, now)
    if next_ is None and standing.under_way and standing.next < math.inf:
        return "its next occurrence is counted from the end of the run that is under way"
    if next_ is None and standing.next <= 0:
        return "it is about to begin: a dispatcher plans its next occurrence"
    if next_ is None:
        return "it is over: its end or its count is reached, or its rule has no more times"
    if next_ < now - _OVERDUE:
        late = format_duration(now - next_)
        return f"its next occurrence was planned {late} ago, and no dispatcher has made it: `evsched doctor` says why"
    return f"its next occurrence is planned in {format_duration(max(next_ - now, 0.0))}"


def _opening(standing: Standing, window: str, now: float) -> str:
    """Say when the next occurrence can start, if its window is closed at its planned time."""
    next_ = next_time(standing, now)
    if not window or next_ is None or next_ < now - _OVERDUE:
        return ""
    try:
        opens = read_window(window).next_open(next_)
    except ConfigError:
        return ""  # its record has the reason
    if opens is None or opens <= next_:
        return ""
    return f", and starts in {format_duration(max(opens - now, 0.0))}, when its window {window} opens"


def _list_facts(fields: Mapping[str, bytes], now: float) -> dict[str, str]:
    found = {field: _text(fields, field) for field in _SHOWN if fields.get(field)}
    found.update(
        {field: str(whole(fields[field])) for field in ("runs", "done", "failed", "missed") if field in fields}
    )
    if "last_id" in fields:
        ended = number(fields.get("last_finished"))
        ago = "" if ended is None else f", {format_duration(max(now - ended, 0.0))} ago"
        found["last run"] = f"{_text(fields, 'last_id')}: {_text(fields, 'last_outcome')}{ago}"
    return found
