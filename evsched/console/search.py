"""The language of the search box: words such as `task:mail place:dead older:2h`, all of which must hold.

Its text is in the address of the page, so a search can be shared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from evsched.client.sweep import SEARCHED, Filter, Waiting
from evsched.client.time_texts import parse_length, parse_past, parse_time
from evsched.console.words import PageClock
from evsched.errors import ConfigError
from evsched.jobs.record import Place
from evsched.keys import check_queue
from evsched.recurrence.cron import find_zone
from evsched.store.operator_calls import Match

QUALIFIERS: Final = {
    "queue": "in this queue; queue:mail,sms for several",
    "place": "schedule, backlog, ready, running, dead or ended; place:ready,running for several",
    "task": "of this task",
    "group": "of this group",
    "tag": "with this tag; give it twice for jobs that have both",
    "arg": "with this argument: arg:patient=42; looks at each job, and shows how far it is",
    "reason": "whose reason contains this text, in any case",
    "error": "whose handler raised this class last: Timeout, or requests.exceptions.Timeout",
    "by": "that this Redis user enqueued",
    "older": "that were created, or died, longer ago: 30s, 5m, 2h, 7d",
    "since": "that were created, or died, then or later: 2h, 14:00, 2030-01-31T09:00",
    "until": "that were created, or died, then or earlier",
    "id": "of this id, or whose ids begin so; a word without a colon is an id as well",
}
"""The jobs that each finds, as the end of a sentence that begins with `jobs`."""

_WORD: Final = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')

_PLACES: Final[dict[str, Place]] = {
    "schedule": "schedule",
    "backlog": "backlog",
    "ready": "ready",
    "running": "processing",
    "processing": "processing",
    "dead": "dead",
    "ended": "finished",
    "finished": "finished",
}


class Search(Struct, frozen=True):
    """A search. `problem`: why its text cannot be read; empty if it can."""

    text: str
    words: list[tuple[str, str]] = []
    """The qualifiers with their values, as they were given."""
    queues: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    filter: Filter = Filter()
    by: str = ""
    id: str = ""
    begins: str = ""
    """How the ids of the jobs begin."""
    problem: str = ""
    offers: list[str] = []
    """Searches that may have been meant, if this one cannot be read."""

    @property
    def searched(self) -> Sequence[Place]:
        """The places that are searched."""
        return self.places or (SEARCHED if self.words else get_args(Waiting))

    @property
    def timed(self) -> bool:
        """Whether it is about a span of time."""
        return any(name in ("since", "until", "older") for name, _ in self.words)

    def takes(self, job: Match) -> bool:
        """Return whether a job that matches the filter matches the rest, too."""
        return (
            (not self.by or job.by == self.by) and (not self.id or job.id == self.id) and job.id.startswith(self.begins)
        )

    def with_word(self, name: str, value: str | None) -> str:
        """Return the text of a search with another value of a qualifier, or without it."""
        words = [(known, given) for known, given in self.words if known != name]
        if value is not None:
            words.append((name, value))
        return written_words(words)

    def typed_span(self, zone: str) -> str:
        """Return the text of the form that picks its span; empty if its ends are not moments."""
        ends = [at if isinstance(at, float | int) else None for at in (self.filter.since, self.filter.until)]
        return typed_span(ends[0], ends[1], find_zone(zone))

    def spanning(self, since: str | None, until: str | None = None) -> str:
        """Return the text of a search in another span of time, or in none."""
        words = [(name, value) for name, value in self.words if name not in ("since", "until")]
        words += [(name, value) for name, value in (("since", since), ("until", until)) if value is not None]
        return written_words(words)


_PLACE_WORDS: Final[dict[Place, str]] = {
    "schedule": "on the schedule",
    "backlog": "in the backlog",
    "ready": "ready",
    "processing": "running",
    "dead": "dead",
    "finished": "ended",
}
_CONDITIONS: Final = {
    "task": "of task {}",
    "group": "of group {}",
    "tag": "with the tag {}",
    "arg": "called with {}",
    "reason": "with “{}” in their reason",
    "error": "that raised {}",
    "by": "enqueued by {}",
}
"""How a sentence names the conditions of a search."""


def in_words(search: Search, clock: PageClock) -> str:
    """Return which jobs a search finds, as a part of a sentence: `jobs that are dead, of task mail, in queue web`."""
    found = [_CONDITIONS[name].format(value) for name, value in search.words if name in _CONDITIONS]
    given = dict(search.words)
    if search.places:
        found.insert(0, f"that are {' or '.join(_PLACE_WORDS[place] for place in search.places)}")
    if search.queues:
        found.append(f"in {'queue' if len(search.queues) == 1 else 'the queues'} {', '.join(search.queues)}")
    happened = "died" if search.places == ("dead",) else "were created, or died,"
    if "older" in given:
        found.append(f"that {happened} more than {given['older']} ago")
    for name, word in (("since", "from"), ("until", "until")):
        if name in given:
            moment = getattr(search.filter, name)
            at = f"{given[name]} ago" if isinstance(moment, timedelta) else clock.text(moment)
            found.append(f"{word} {at}" if word == "until" and "since" in given else f"that {happened} {word} {at}")
    return f"jobs {', '.join(found)}" if found else "all jobs"


class PickedSpan(Struct, frozen=True):
    """A span of time that a person has picked, by a link or a form, in Unix seconds; None = without this end."""

    name: str = ""
    """The name of the link; empty = there is none, or the form was used."""
    since: float | None = None
    until: float | None = None
    problem: str = ""
    """Why the form cannot be read."""

    def words(self, zone: tzinfo) -> dict[str, str]:
        """Return the qualifiers that find jobs of this span."""
        ends = {"since": self.since, "until": self.until}
        return {name: written(at, zone) for name, at in ends.items() if at is not None}

    @property
    def ends(self) -> dict[str, float | None]:
        """The ends by the parameters of a page."""
        return {"from": self.since, "to": self.until}

    def typed(self, zone: tzinfo) -> str:
        """Return the text of the form that picks this span."""
        return typed_span(self.since, self.until, zone)


MOST: Final = 253_402_214_400.0
"""The last day of the year 9999: later times are not written as dates."""

_LEAST: Final = -2_209_075_200.0
"""The last day of the year 1899; the first and the last years of the calendar are not the same ones in all zones."""

SPANS: Final = {"1h": "last hour", "noon": "since noon", "today": "today", "24h": "24 hours", "7d": "7 days"}
"""Spans of time that links offer, by their names."""


def offered_spans(zone: str) -> dict[str, str]:
    """Return the spans that links offer now: noon may be yet to come."""
    noon = datetime.now(find_zone(zone)).hour >= 12
    return {name: words for name, words in SPANS.items() if noon or name != "noon"}


def written(moment: float, zone: tzinfo) -> str:
    """Return a moment as the search box takes it, with its offset."""
    local = datetime.fromtimestamp(moment, zone)
    return local.isoformat(timespec="seconds" if moment % 60 else "minutes")


_BETWEEN: Final = re.compile(r"\s+(?:to|until|-)\s+|\s*[\u2013\u2014]\s*|(?<=:\d\d)-(?=\d)")
"""Separates two times: 02:00-02:30, 02:00 to 02:30."""


def typed_span(since: float | None, until: float | None, zone: tzinfo) -> str:
    """Return the text of a span, as the form takes it: 2030-01-31 14:00 to 14:30; empty if it has no beginning."""
    if since is None or not 0 <= since < MOST or (until is not None and not 0 <= until < MOST):
        return ""
    first = datetime.fromtimestamp(since, zone)
    text = first.strftime("%Y-%m-%d %H:%M" if since % 60 == 0 else "%Y-%m-%d %H:%M:%S")
    if until is None:
        return text
    last = datetime.fromtimestamp(until, zone)
    day = "" if last.date() == first.date() else "%Y-%m-%d "
    return f"{text} to {last.strftime(day + ('%H:%M' if until % 60 == 0 else '%H:%M:%S'))}"


def _typed_ends(text: str, zone: str, now: float) -> tuple[float, float | None]:
    """Return the ends of a span that somebody typed. The end may be a time of day: the next one after the beginning.

    Raises:
        ConfigError: it cannot be read.
    """
    begins, *rest = _BETWEEN.split(text, maxsplit=1)
    moment = parse_past(begins, zone)
    since = now - moment.total_seconds() if isinstance(moment, timedelta) else moment
    if not rest:
        return _in_range(since, begins), None
    if not re.fullmatch(r"\d\d?:\d\d(:\d\d)?", rest[0]):
        ends = parse_past(rest[0], zone)
        until = now - ends.total_seconds() if isinstance(ends, timedelta) else ends
        return _in_range(since, begins), _in_range(until, rest[0])
    first = datetime.fromtimestamp(_in_range(since, begins), find_zone(zone))
    of_day = rest[0] if rest[0][2] == ":" else f"0{rest[0]}"
    until = parse_time(f"{first:%Y-%m-%d}T{of_day}", zone)
    if until < since:
        until = parse_time(f"{first + timedelta(days=1):%Y-%m-%d}T{of_day}", zone)
    return since, until


def pick_span(name: str, since: str, until: str, zone: str, now: float, *, typed: str = "") -> PickedSpan:
    """Return the span of a link, by its name or its ends, or of a form. Times without an offset are in `zone`.

    It begins at a whole minute, so that a list, and a page that acts on it, name the same moment. `typed`: the text of
    the form.
    """
    if since or until or typed:
        try:
            first, last = (_end_of_span(text, zone) if text else None for text in (since, until))
            if typed:
                first, last = _typed_ends(typed, zone, now)
        except ConfigError as error:
            return PickedSpan(problem=str(error))
        if first is not None and last is not None and first > last:
            return PickedSpan(problem="the span ends before it begins: exchange both times")
        return PickedSpan("", first, last)
    if name not in SPANS:
        return PickedSpan()
    if name not in ("noon", "today"):
        return PickedSpan(name, (now - parse_length(name)) // 60 * 60)
    local = datetime.fromtimestamp(now, find_zone(zone))
    begins = local.replace(hour=12 if name == "noon" else 0, minute=0, second=0, microsecond=0)
    return PickedSpan(name, min(begins.timestamp(), now))


def _end_of_span(text: str, zone: str) -> float:
    return _in_range(parse_time(text, zone), text)


def _in_range(moment: float, text: str) -> float:
    if not _LEAST <= moment < MOST:
        raise ConfigError(f"{text!r:.60} is out of range: give a time from 1900 to 9999")
    return moment


def written_words(words: Iterable[tuple[str, str]]) -> str:
    """Return the text of a search."""
    return " ".join(f"{name}:{quoted(value)}" for name, value in words)


def quoted(value: str) -> str:
    """Return a value as the search box takes it."""
    return msgspec.json.encode(value).decode() if not value or re.search(r'[\s"\\]', value) else value


def read_search(text: str, zone: str | None = None) -> Search:
    """Read the text of a search. One that cannot be read finds nothing, and says why.

    `zone`: that of times without an offset; None = this machine's.
    """
    words = list[tuple[str, str]]()
    try:
        for word in _WORD.findall(text):
            name, colon, value = word.partition(":")
            if not colon or name not in QUALIFIERS:
                if colon and re.fullmatch(r"[a-z]+", name) and not value.startswith("/"):
                    offers = _offers(text, word) if value else []
                    problem = f"{name}: is not a qualifier; these are: {', '.join(QUALIFIERS)}"
                    return Search(text, words, problem=problem, offers=offers)
                name, value = "id", word
            words.append((name, _unquoted(value)))
        return _searched(text, words, zone)
    except ConfigError as error:
        ids = [value for name, value in words if name == "id"]
        offers = (
            [written_words([("task", ids[0]), ("group", ids[1])]), f"reason:{quoted(' '.join(ids))}"]
            if len(ids) == 2
            else []
        )
        return Search(text, words, problem=str(error), offers=offers)


def _offers(text: str, word: str) -> list[str]:
    """Return the searches that a word with an unknown qualifier may stand for: pages show tags without one."""
    name, _, value = word.partition(":")
    return [text.replace(word, meant, 1) for meant in (f"tag:{word}", f"arg:{name}={value}", f"id:{word}")]


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.MsgspecError:
        return value.strip('"')


def _searched(text: str, words: Sequence[tuple[str, str]], zone: str | None) -> Search:
    one, tags, arguments = dict[str, str](), list[str](), dict[str, Any]()
    for name, value in words:
        if not value:
            raise ConfigError(f"{name}: has no value: write {name}:SOMETHING")
        if name == "tag":
            tags.append(value)
        elif name == "arg":
            argument, equals, given = value.partition("=")
            if not equals:
                raise ConfigError(f"arg:{value} has no value: write arg:{argument}=42")
            arguments[argument] = _json(given)
        elif name in one and name == "id":
            raise ConfigError("only one word can be an id: write task:NAME, group:NAME or reason:TEXT")
        elif name in one:
            raise ConfigError(f"{name}: is given twice: give it once")
        else:
            one[name] = value
    places = list[Place]()
    for place in one.get("place", "").split(",") if "place" in one else ():
        if place not in _PLACES:
            raise ConfigError(f"{place} is no place: write schedule, backlog, ready, running, dead or ended")
        places.append(_PLACES[place])
    matching = Filter(
        task=one.get("task"),
        group=one.get("group"),
        reason=one.get("reason"),
        error=one.get("error"),
        tags=tags,
        arguments=arguments,
        older=parse_length(one["older"]) if "older" in one else None,
        since=parse_past(one["since"], zone) if "since" in one else None,
        until=parse_past(one["until"], zone) if "until" in one else None,
    )
    queues = tuple(map(check_queue, one["queue"].split(","))) if "queue" in one else ()
    return Search(text, [*words], queues, tuple(places), matching, one.get("by", ""), one.get("id", ""))


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text
