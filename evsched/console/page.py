"""A page: what it is read from, how it is drawn, and what all pages have in common.

A view reads the data of a page, with a client that counts its commands. Its template extends `frame.html`. A block of
the template whose name begins with `live_` is a region that an open page replaces when it has changed: `live_queues`
has an element with `data-live="queues"`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, Self
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import escape
from msgspec import Struct
from starlette.datastructures import QueryParams

from evsched.client.client import Client
from evsched.client.operations import Send, SendMany, Step, Wait, node_of
from evsched.client.time_texts import check_to_come, parse_future, parse_past
from evsched.config import Config
from evsched.console import words
from evsched.console.search import PickedSpan, pick_span, quoted
from evsched.console.users import Role, Users, Visitor
from evsched.recurrence.cron import find_zone
from evsched.transport.address import Host
from evsched.transport.call import Word

STATIC: Final = Path(__file__).with_name("static")

REGION: Final = "live_"
"""Begins the names of the blocks that are regions."""


class MeteredClient(Client):
    """A client that counts its commands, so that an open page asks Redis no oftener than it may."""

    commands = 0

    def metered(self) -> Self:
        """Return a client with a count of its own. Both share their connections."""
        found = copy(self)
        found.commands = 0
        return found

    async def find_node(self, key: Word) -> Host | None:
        """Return the node of a cluster that has a key."""
        return await self.run(node_of(key))

    async def perform(self, step: Step) -> Any:
        """Perform one step, and count it if Redis is asked."""
        if isinstance(step, Send | Wait):
            self.commands += 1
        elif isinstance(step, SendMany):
            self.commands += len(step.calls)
        return await super().perform(step)


class KnownAct(Protocol):
    """An act that a console remembers: see `ActRun`."""

    title: str
    by: str
    draft: dict[str, str]


class KnownActs(Protocol):
    """The acts that a console remembers."""

    def find(self, run_id: str, /) -> KnownAct | None: ...


class Shared(Protocol):
    """The parts of a console that its views use."""

    config: Config
    access: Users
    memory: dict[str, Any]
    pages: Pages

    @property
    def acts(self) -> KnownActs: ...
    async def queues(self, client: MeteredClient, /) -> list[str]: ...


class Visit(Struct, frozen=True):
    """A request for a page, as its view gets it."""

    console: Shared
    client: MeteredClient
    visitor: Visitor
    query: QueryParams
    prefix: str
    """The path below which the console is mounted."""

    def get(self, name: str) -> str:
        """Return a parameter of the address, without spaces around it; empty if it is not given."""
        return self.query.get(name, "").strip()

    @property
    def zone(self) -> str:
        """The time zone of the console: that of the times on its pages, and of the times that people type there."""
        return self.console.config.console_zone

    def typed_time(self, text: str, *, past: bool = False) -> float | None:
        """Return a time that somebody typed, in Unix seconds; None if the field is empty.

        A time without an offset is in the zone of the console. `past`: 17:00 is the last one that has passed, and 10m
        is ten minutes ago; else both are to come.

        Raises:
            ConfigError: it is not a time.
        """
        if not text:
            return None
        found = (parse_past if past else parse_future)(text, self.zone)
        if isinstance(found, timedelta):
            return time.time() + (-1 if past else 1) * found.total_seconds()
        return found

    def typed_due(self, text: str) -> float | None:
        """Return when a job is to be due, as `typed_time`.

        Raises:
            ConfigError: it is not a time, or has passed.
        """
        moment = self.typed_time(text)
        if moment is not None:
            check_to_come(moment, text)
        return moment

    def picked_span(self) -> PickedSpan:
        """Return the span of time that a link or the form of the page has picked."""
        typed, since, until = (self.get(name) for name in ("when", "from", "to"))
        return pick_span(self.get("span"), since, until, self.zone, time.time(), typed=typed)

    def url(self, path: str, /, **parameters: str | int | None) -> str:
        return address(self.prefix, path, **parameters)


Read = Callable[[Visit], Awaitable[dict[str, Any]]]


class View(Struct, frozen=True):
    """A page of one address."""

    path: str
    name: str
    """That of its template, without `.html`."""
    read: Read
    """Returns the values of the template. One that is named `data` is what the page answers with to `?as=json`."""
    part: str = ""
    """The page of the navigation to which it belongs; empty = its name."""
    every: float | None = None
    """Seconds between two readings while it is open, at least; None = it does not change by itself."""
    needs: Role = "viewer"
    follow: Read | None = None
    """Returns the values of the regions while it is open; None = `read` does. A search is not repeated."""


NAVIGATION: Final = (
    ("now", "Now", "n"),
    ("jobs", "Jobs", "j"),
    ("failures", "Failures", "f"),
    ("recurrences", "Recurrences", "r"),
    ("agenda", "Agenda", "a"),
    ("batches", "Batches", "b"),
    ("workers", "Workers", "w"),
    ("history", "History", "h"),
    ("audit", "Audit", "u"),
)
"""Each page that the navigation names: its view, its title, and the key that opens it."""


def address(prefix: str, path: str, /, **parameters: str | int | None) -> str:
    """Return the address of a page. Parameters that are None or empty are left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return quote(prefix + path) + (f"?{urlencode(given)}" if given else "")


class Pages:
    """Draws pages. `prefix`: the path below which the console is mounted is that of each request."""

    def __init__(self, config: Config) -> None:
        self.clock = words.PageClock(find_zone(config.console_zone))
        self._environment = Environment(
            loader=PackageLoader("evsched.console"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=words.shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Any] = self._environment.filters  # jinja2 types them by what it puts there itself
        filters |= {
            "moment": self.clock.moment,
            "ago": self.clock.ago,
            "figure": words.count,
            "duration": words.length,
            "process": words.process,
            "bare_reason": words.bare_reason,
            "json": words.as_json,
            "short": words.shortened,
            "fit": words.fitting,
            "code": words.with_code,
        }
        known: dict[str, Any] = self._environment.globals
        known |= {
            "percent": words.percent,
            "quoted": quoted,
            "whole": escape,
            "bars": words.bars,
            "ticks": words.ticks,
            "name": config.console_name,
            "zone": config.console_zone,
            "navigation": NAVIGATION,
        }
        known["parts"] = self._environment.get_template("parts.html").module

    @cached_property
    def assets(self) -> str:
        """A digest of the style sheet and the script, so that browsers load a new release's at once."""
        return sha256(b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()))).hexdigest()[:12]

    def template(self, name: str) -> Template:
        return self._environment.get_template(f"{name}.html")

    def draw(self, name: str, values: Mapping[str, Any]) -> str:
        """Return a page as HTML."""
        return self.template(name).render(values, assets=self.assets)

    def regions(self, name: str, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the HTML of the live regions of a page by their names."""
        template, found = self.template(name), dict[str, str]()
        for block, draw in template.blocks.items():
            if block.startswith(REGION):
                found[block.removeprefix(REGION)] = "".join(
                    draw(template.new_context({**values, "assets": ""}))
                ).strip()
        return found
