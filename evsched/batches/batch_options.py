"""The options with which a batch is opened, and what its callbacks get."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, cast

from msgspec import Struct, to_builtins

from evsched.client.option_values import lasting_seconds
from evsched.client.task_handle import Enqueuer
from evsched.errors import ConfigError
from evsched.jobs import option_checks as check
from evsched.jobs.job import encode

ID_MOST: Final = 180
"""Characters of a batch's id: the ids of its jobs have it, and a number."""

RETENTION: Final = 7 * 86400.0
"""Seconds for which a batch is kept after its end, by default."""

EXPIRES: Final = 30 * 86400.0
"""Seconds after which a batch has failed if it has not ended, by default."""


class EndedBatch(Struct, frozen=True):
    """A batch, for the handler of a callback whose parameter has this annotation; others get a dict."""

    batch: str
    queue: str
    """The home of the batch."""
    outcome: Literal["done", "failed", "progress"]
    total: int
    done: int
    dead: int
    cancelled: int
    expired: int
    stopped: int = 0
    """How many nodes of a graph did not run, since one before them has failed."""


SAMPLE: Final = to_builtins(EndedBatch("b", "q", "done", 0, 0, 0, 0, 0))
"""An argument of a callback, to check that its task takes it."""


class BatchOptions(TypedDict, total=False):
    """How a batch is opened."""

    on_done: Enqueuer[..., Any] | None
    """The task that gets a job when all jobs of the batch are done; or when all have ended, see `complete_on`."""
    on_failed: Enqueuer[..., Any] | None
    """The task that gets a job when all have ended, and some are not done. Again if one is revived and fails again."""
    on_progress: Enqueuer[..., Any] | None
    """The task that gets a job when another tenth of the jobs has ended, once the batch is closed."""
    complete_on: Literal["done", "all"]
    """"done": the batch is done when all of its jobs are; "all": when all have ended."""
    expires: timedelta | float | None
    """Seconds after which its jobs are cancelled, and it has failed: 30 days by default; None = never."""
    retention: timedelta | float
    """Seconds for which it is kept after its end, 7 days by default."""
    tags: Sequence[str]
    """At most 5 short labels."""


_CALLBACKS: Final = ("on_done", "on_failed", "on_progress")
_OPTIONS: Final = {
    **dict.fromkeys(_CALLBACKS, None),
    "complete_on": check.one_of("done", "all"),
    "expires": lasting_seconds,
    "retention": lasting_seconds,
    "tags": check.tags,
}


def read_options(options: BatchOptions) -> tuple[dict[str, bytes | str], float | None, float]:
    given = cast("dict[str, Any]", dict(options))
    for name, value in given.items():
        if name not in _OPTIONS:
            raise TypeError(f"a batch has no option {name!r}: it has {', '.join(_OPTIONS)}")
        checked = _OPTIONS[name]
        if checked is not None and value is not None:
            checked(name, value)
        elif checked is None and value is not None and not isinstance(value, Enqueuer):
            raise ConfigError(f"{name}: give a task of the app, or task.using(...), and not {value!r:.100}")
    fields: dict[str, bytes | str] = {
        name: encode(given[name].template(SAMPLE)) for name in _CALLBACKS if given.get(name) is not None
    }
    if given.get("complete_on") == "all":
        fields["complete_on"] = "all"
    if given.get("tags"):
        fields["tags"] = encode(list(given["tags"]))
    expires = given.get("expires", EXPIRES)
    retention = lasting_seconds("retention", given.get("retention", RETENTION))
    return fields, None if expires is None else lasting_seconds("expires", expires), retention
