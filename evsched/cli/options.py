"""Shared by commands: options that many of them take, and the flags of the services.

The flags of the services are made from the fields of `Config`.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import cache, wraps
from typing import Annotated, Any, Final, TypeVar, get_type_hints

from cyclopts import Group, Parameter, Token

from evsched import environment
from evsched.cli.commands import UsageError
from evsched.client.time_texts import check_to_come, parse_future, parse_length
from evsched.config import LISTS, SETTINGS, Config, variable
from evsched.display import escape
from evsched.keys import check_queue
from evsched.lease import DEFAULT
from evsched.store.acts import NAME_MOST
from evsched.transport import address


def whole(_: Any, tokens: Sequence[Token]) -> int:
    """Read a whole number in decimal digits: cyclopts alone would take 2.5, 0x3 and 1_0.

    Raises:
        ValueError: it is not valid.
    """
    text = tokens[0].value
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text} is not a whole number, such as 12")
    return int(text)


_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,4000}")
Url = Annotated[str | None, Parameter(help="The Redis to use. Default: EVSCHED_URL, or else redis://localhost:6379/0.")]
UrlOrPrivate = Annotated[str | None, Parameter(help="The Redis to use. Default: EVSCHED_URL, or else a private Redis.")]
Queue = Annotated[str, Parameter(help="The queue.")]
QueueOfJob = Annotated[
    str | None, Parameter(name="--queue", help="The queue of the job. Default: the queue that has a job of this id.")
]
Queues = Annotated[
    list[str] | None,
    Parameter(name="--queue", negative="", help="A queue; repeat the flag for several. Default: all queues."),
]
RecurrenceName = Annotated[str, Parameter(help="The name of the recurrence.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON with all fields.")]
Ids = Annotated[list[str] | None, Parameter(help="The ids of the jobs.", negative="")]


LIST_MOST: Final = 1_000_000
"""Rows that a list has at the most, whatever its --limit."""


def check_limit(limit: int) -> None:
    """Refuse a --limit that is out of range.

    Raises:
        UsageError
    """
    if not 1 <= limit <= LIST_MOST:
        raise UsageError(f"--limit is {limit}: from 1 to {LIST_MOST}")


def check_queues(names: Sequence[str] | None) -> None:
    """Refuse a --queue that is not a queue's name. It has no weight.

    Raises:
        ConfigError
    """
    for name in names or ():
        check_queue(name)


def settings(url: str | None = None, **flags: Any) -> Config:
    """Return the settings of this process.

    Raises:
        ConfigError: one of them is not valid.
    """
    _warn()
    found = environment.load(os.environ, url=url, **flags)
    address.parse(found.url)
    return found


@cache
def _warn() -> None:
    """Print one line, once, about variables EVSCHED_... that are not settings."""
    if not (line := environment.warning(os.environ)):
        return
    from evsched.services.worker_process import LINK

    if LINK not in os.environ:  # a child of --processes: its parent has printed the line
        print(f"evsched: warning: {escape(line)}", file=sys.stderr)


R = TypeVar("R")

_PANEL: Final = Group("Settings", sort_key=1)

_TYPES: Final = get_type_hints(Config)
_DEFAULTS: Final = Config()


def flag(name: str) -> str:
    """Return the flag of a setting. One that only `evsched api` or `console` has is called api_..., its flag is not."""
    if name in LISTS:
        name = re.sub(r"(ie)?s$", lambda found: "y" if found[1] else "", name)
    return f"--{name.removeprefix('api_').removeprefix('console_').replace('_', '-')}"


def default(name: str) -> str:
    """Return the default of a setting as its help says it."""
    if name == "queues":
        return "all queues for a dispatcher and the API, for a worker those of its app, its tasks and its recurrences"
    if name == "process_pool":
        return "the number of processors"
    if name == "lease":
        return f"the one in Redis, or else {DEFAULT:g}"
    value = getattr(_DEFAULTS, name)
    if value in (None, (), ""):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def takes_settings(command: Callable[..., R]) -> Callable[..., R]:
    """Give a service a flag for each setting that it has, in place of its parameter `config`, and configure the log.

    A flag that the service declares by itself is a setting too: it also gets the given value.
    """
    hints = get_type_hints(command, include_extras=True)
    own = [
        one.replace(annotation=hints[one.name])
        for one in inspect.signature(command).parameters.values()
        if one.name != "config"
    ]
    declared = [one.name for one in own if one.name in SETTINGS]
    names = [
        name
        for name, setting in SETTINGS.items()
        if command.__name__ in setting.commands and name not in declared and not setting.secret
    ]
    made = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name))
        for name in names
    ]

    @wraps(command)
    def with_flags(*args: object, **given: Any) -> R:
        from evsched.telemetry import log  # other commands do without it

        flags = {name: given.pop(name, None) for name in names} | {name: given.get(name) for name in declared}
        config = settings(**flags)
        log.configure(config.log_level)
        return command(*args, **given, config=config)

    with_flags.__annotations__ = {one.name: one.annotation for one in (*own, *made)}
    setattr(with_flags, "__signature__", inspect.Signature([*own, *made]))  # noqa: B010 - pyright knows no such field
    return with_flags


def _annotation(name: str) -> Any:
    setting, kind = SETTINGS[name], _TYPES[name]
    if name in LISTS:
        kind = list[str]
    described = Parameter(
        name=flag(name),
        help=f"{setting.help}. Variable: {variable(name)}. Default: {default(name)}.",
        negative="",
        show_default=False,
        group=_PANEL,
        converter=_upper if name == "log_level" else whole if kind in (int, int | None) else None,
    )
    return Annotated[kind | None, described]


def _upper(_kind: Any, tokens: Sequence[Token]) -> str:
    return tokens[0].value.upper()


OperatorName = Annotated[
    str | None,
    Parameter(
        name="--as",
        help="Your name in the audit trail. Default: EVSCHED_AS, or else the Redis user. It proves nothing.",
    ),
]

_named = ContextVar[str | None]("_named", default=None)
"""The name that --as gives."""


def acting(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the flag --as, because what it changes is in the audit trail."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    own = [one.replace(annotation=hints[one.name]) for one in signature.parameters.values()]
    flag = inspect.Parameter("as_", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=OperatorName)

    @wraps(command)
    def with_name(*args: object, as_: str | None = None, **given: Any) -> R:
        before = _named.set(as_ or "")
        try:
            return command(*args, **given)
        finally:
            _named.reset(before)

    with_name.__annotations__ = {one.name: one.annotation for one in (*own, flag)}
    setattr(with_name, "__signature__", signature.replace(parameters=[*own, flag]))  # noqa: B010 - as above
    return with_name


def who_acts(url: str) -> str:
    """Return the name of who gives this command."""
    given = _named.get()
    name = given or os.environ.get(environment.OPERATOR) or ""
    if given is None:  # it changes nothing, so it must not fail because of a name that is not valid
        name = name.encode(errors="replace").decode()[:NAME_MOST].strip()
    return name or address.user(url)[:NAME_MOST] or "default"


def parse_due(at: str | None, after: str | None, *, to_come: bool = False) -> tuple[float | None, float | None]:
    """Return (due, delay) of --at and --in, of which at most one may be given. `to_come`: --at may not have passed.

    Raises:
        UsageError: both are given, or one does not parse.
    """
    if at is not None and after is not None:
        raise UsageError("--at and --in: give one of them")
    if at is None:
        return None, None if after is None else parse_length(after)
    moment = parse_future(at)
    if isinstance(moment, timedelta):
        return None, moment.total_seconds()
    if to_come:
        check_to_come(moment, at)
    return moment, None
