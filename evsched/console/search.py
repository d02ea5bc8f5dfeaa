"""The language of the search box: words such as `task:mail place:dead older:2h`, all of which must hold.

Its text is in the address of the page, so a search can be shared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from evsched.client.sweep import SEARCHED, Filter, Waiting
from evsched.client.time_texts import parse_length, parse_past
from evsched.errors import ConfigError
from evsched.jobs.record import Place
from evsched.keys import check_queue
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
    "id": "of this id; a word without a colon is an id as well",
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
    problem: str = ""

    @property
    def searched(self) -> Sequence[Place]:
        """The places that are searched."""
        return self.places or (SEARCHED if self.words else get_args(Waiting))

    def takes(self, job: Match) -> bool:
        """Return whether a job that matches the filter matches the rest, too."""
        return (not self.by or job.by == self.by) and (not self.id or job.id == self.id)

    def with_word(self, name: str, value: str | None) -> str:
        """Return the text of a search with another value of a qualifier, or without it."""
        words = [(known, given) for known, given in self.words if known != name]
        if value is not None:
            words.append((name, value))
        return " ".join(f"{known}:{quoted(given)}" for known, given in words)


def quoted(value: str) -> str:
    """Return a value as the search box takes it."""
    return msgspec.json.encode(value).decode() if not value or re.search(r'[\s"\\]', value) else value


def read_search(text: str) -> Search:
    """Read the text of a search. One that cannot be read finds nothing, and says why."""
    words = list[tuple[str, str]]()
    try:
        for word in _WORD.findall(text):
            name, colon, value = word.partition(":")
            if not colon or name not in QUALIFIERS:
                if colon and re.fullmatch(r"[a-z]+", name) and not value.startswith("/"):
                    raise ConfigError(f"{name}: is not a qualifier; these are: {', '.join(QUALIFIERS)}")
                name, value = "id", word
            words.append((name, _unquoted(value)))
        return _searched(text, words)
    except ConfigError as error:
        return Search(text, words, problem=str(error))


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.MsgspecError:
        return value.strip('"')


def _searched(text: str, words: Sequence[tuple[str, str]]) -> Search:
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
        since=parse_past(one["since"]) if "since" in one else None,
        until=parse_past(one["until"]) if "until" in one else None,
    )
    queues = tuple(map(check_queue, one["queue"].split(","))) if "queue" in one else ()
    return Search(text, [*words], queues, tuple(places), matching, one.get("by", ""), one.get("id", ""))


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text
