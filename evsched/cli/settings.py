"""The flags of the services, made from the fields of `Config`, and the command for the setting that Redis keeps."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from cyclopts import Group
from cyclopts import Parameter
from cyclopts import Token
from evsched import keys
from evsched.cli import output
from evsched.cli.options import Json
from evsched.cli.options import Url
from evsched.cli.options import client
from evsched.cli.options import settings
from evsched.cli.options import whole
from evsched.cli.usage import UsageError
from evsched.config import Config
from evsched.config import LISTS
from evsched.config import RANGES
from evsched.config import SETTINGS
from evsched.config import out_of_range
from evsched.config import variable
from evsched.display import format_duration
from evsched.errors import EvschedError
from evsched.lease import DEFAULT
from evsched.lease import LeaseLength
from evsched.store import server
from typing import Annotated
from typing import Any
from typing import Final
from typing import TypeVar
from typing import get_type_hints
import inspect


R = TypeVar("R")

_PANEL: Final = Group("Settings", sort_key=1)

_TYPES: Final = get_type_hints(Config)
_DEFAULTS: Final = Config()


def flag(name: str) -> str:
    """Return the flag of a setting. A setting that only `evsched api` has is called api_..., and its flag is not."""
    return f"--{(name.removesuffix('s') if name in LISTS else name).removeprefix('api_').replace('_', '-')}"


def default(name: str) -> str:
    """Return the default of a setting as its help says it."""
    if name == "queues":
        return "all queues for a dispatcher and the API, for a worker those of its app, its tasks and its recurrences"
    if name == "process_pool":
        return "the number of processors"
    if name == "lease":
        return f"the one in Redis, or else {DEFAULT:g}"
    value = getattr(_DEFAULTS, name)
    if value in (None, ()):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def takes_settings(command: Callable[..., R]) -> Callable[..., R]:
    """Give a service a flag for each setting that it has, in place of its parameter `config`.

    A flag that the service declares by itself is a setting too: it also gets what was given for it.
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

    def with_flags(*args: object, **given: Any) -> R:
        flags = {name: given.pop(name, None) for name in names} | {name: given.get(name) for name in declared}
        return command(*args, **given, config=settings(**flags))

    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
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


def lease(
    seconds: Annotated[
        float | None, Parameter(help="The new lease. Without it, the command shows the lease there is.")
    ] = None,
    /,
    *,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show or change the lease: the seconds without a heartbeat after which a worker's jobs start elsewhere.

    All processes read it from Redis, within five minutes of a change; none needs a restart, and no job is lost.

    Example: evsched lease 30
    """
    if seconds is not None and not RANGES["lease"].least <= seconds <= RANGES["lease"].most:
        raise UsageError(out_of_range("lease", seconds).removeprefix("EVSCHED_"))
    with client(url) as redis:
        found, now = redis.send(server.lease()), redis.send(server.clock(keys.LEASE))
        left = 0.0 if found is None else found.settles_in(now)
        if seconds is not None and (found is None or seconds != found.seconds):
            if left:
                raise EvschedError(
                    f"some processes may still have the lease before the last change: repeat the command in "
                    f"{format_duration(left)}"
                )
            found = LeaseLength(seconds) if found is None else LeaseLength(seconds, found.seconds, now)
            redis.send(server.set_lease(found))
            left = found.settles_in(now)
    value, before = (DEFAULT, None) if found is None else (found.seconds, found.before)
    if json:
        output.as_json({"lease": value, "before": before if left else None, "settles_in": left})
        return
    rest = f"; the change from {before:g} s settles in {format_duration(left)}" if left else ""
    print(f"the lease is {value:g} s{rest}")
