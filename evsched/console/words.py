"""How values are written on a page: times, lengths, counts, text from jobs, and small charts."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

import msgspec
from markupsafe import Markup

from evsched.display import format_duration
from evsched.keys import read_id

NONE: Final = "\N{EN DASH}"
"""There is no value. 0 is zero."""

_MOST: Final = 20_000
"""Characters of one value on a page. Payloads may have 512 MiB."""

_YEAR_10000: Final = 253_402_300_800.0


def visible(text: str) -> str:
    """Return text with escapes for characters that cannot be seen, such as NUL, or that turn the text around."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> Any:
    """Return a value as a page writes it. The templates pass each value through this."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return NONE if value is None else value
    return visible(shortened(value))


_CODE: Final = re.compile("`([^`]+)`")


def with_code(text: str) -> Markup:
    """Return a sentence in which what stands in backticks is drawn as code."""
    parts = _CODE.split(shown(text))
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def shortened(text: str, most: int = _MOST) -> str:
    return text if len(text) <= most else f"{text[:most]}… and {len(text) - most:,} characters more"


def bare_reason(reason: str, location: str | None = None) -> str:
    """Return the reason of an attempt without what stands beside it: its number, and the line that raised."""
    text = re.sub(r"^attempt \d+ of \d+: ", "", reason, count=1)
    return text.removesuffix(f" ({location})") if location else text


def fitting(text: str, most: int) -> str:
    """Return a name that fits into a box: of a long one, the first and the last letters."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - 1 - most // 2) :]}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def length(seconds: float | None) -> str:
    """Return a length of time with two digits, or as a person would say it: 4.9 ms, 37 ms, 1.2 s, 65 s, 4m 05s."""
    if seconds is None or math.isnan(seconds):
        return NONE
    size = abs(seconds)
    if 0.00995 <= size < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if size < 0.00995:
        return f"{seconds * 1e3:.2g} ms"
    return f"{seconds:.0f} s" if 9.95 <= size < 99.5 else format_duration(seconds)


def age(seconds: float) -> str:
    """Return how long ago something was, in whole seconds."""
    return f"{seconds:.0f} s" if seconds < 99.5 else length(seconds)


def rounded(sentence: str) -> str:
    """Return a sentence of `explain` with whole seconds from 10 s on, up to the text of a reason."""
    first, colon, rest = sentence.partition(": ")
    return re.sub(r"\b(\d\d\.\d) s\b", lambda found: f"{float(found[1]):.0f} s", first) + colon + rest


def process(worker: str) -> str:
    """Return the host and the process of a worker, without what tells it from those before it: vm-4711."""
    known = read_id(worker)
    return worker if known is None else f"{known[0]}-{known[1]}"


def percent(part: float, whole: float) -> str:
    """Return a share. It is 100 % only if it is whole, and 0 % only if there is none."""
    if not whole:
        return NONE
    exact = 100 * part / whole
    if part == whole or not part:
        return f"{exact:.0f} %"
    return f"{min(max(exact, 0.01), 99.99):.2f} %"


def as_json(value: Any) -> str:
    """Return a value as indented JSON."""
    text = msgspec.json.encode(value)
    return msgspec.json.format(text, indent=2).decode()


EDITABLE_MOST: Final = 200_000
"""Characters of JSON in a form."""


def editable(value: Any) -> str:
    """Return a value as JSON for a form: whole, and with escapes for characters that cannot be seen."""
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in as_json(value))


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


class PageClock:
    """Writes times in one zone."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone

    def moment(self, unix: float | None, *, exact: bool = False) -> Markup | str:
        """Return a time, with its date if that is not today. The browser may show it in the zone of the reader."""
        if unix is None or math.isnan(unix) or not 0 <= unix < _YEAR_10000:
            return self.text(unix)
        fraction = f".{int(unix % 1 * 1000):03}" if exact else ""
        utc = datetime.fromtimestamp(unix, tz=UTC)
        return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
            utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            f"{utc:%Y-%m-%d %H:%M:%S}{fraction}",
            self.text(unix) + fraction,
        )

    def text(self, unix: float | None) -> str:
        """Return a time as plain text, with its date if that is not today."""
        if unix is None or math.isnan(unix):
            return NONE
        if not 0 <= unix < _YEAR_10000:
            return "never" if unix > 0 else "at once"
        local, now = datetime.fromtimestamp(unix, self.zone), datetime.fromtimestamp(time.time(), self.zone)
        text = local.strftime("%H:%M:%S")
        if local.date() != now.date():
            text = f"{local.day} {local:%b}" + (f" {local.year}" if local.year != now.year else "") + f" {text}"
        return text

    def ago(self, unix: float | None, now: float) -> Markup | str:
        """Return how long ago a time was, or in how long it will be. The page counts on by itself."""
        if unix is None or not 0 <= unix < _YEAR_10000:
            return self.moment(unix)
        text = f"{age(now - unix)} ago" if now >= unix else f"in {age(unix - now)}"
        utc = datetime.fromtimestamp(unix, tz=UTC)
        stamp = utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return Markup('<time class="age" datetime="{}" title="{} UTC">{}</time>').format(
            stamp, f"{utc:%Y-%m-%d %H:%M:%S}", text
        )


# Shapes of small charts, as paths of SVG. Words and axes are HTML beside them; a label says what it shows.


def bars(values: Sequence[float], width: float, height: float, most: float | None = None) -> str:
    """Return the path of a bar for each value, from the left; none for 0. `most`: the value of the full height."""
    top, step, path = most or max(values, default=0.0), width / max(len(values), 1), list[str]()
    for at, value in enumerate(values):
        if value > 0 and top > 0:
            tall = max(1.0, height * min(value / top, 1.0))
            path.append(f"M{at * step:.4g},{height:.4g}h{step * 0.8:.4g}v{-tall:.4g}h{-step * 0.8:.4g}z")
    return "".join(path)


def ticks(outcomes: Sequence[str], width: float, wanted: str) -> str:
    """Return the path of the ticks of those runs that had an outcome: done above the line, failed below, none hollow.

    `outcomes`: of all runs, the last at the right: done, failed or missed.
    """
    top, tall = {"done": (2, 12), "failed": (10, 12), "missed": (3, 10)}[wanted]
    step, first = 6.0, width - 6.0 * len(outcomes)
    return "".join(
        f"M{first + at * step:.4g},{top}h3v{tall}h-3z" for at, outcome in enumerate(outcomes) if outcome == wanted
    )
