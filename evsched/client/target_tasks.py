"""The tasks of evsched.targets as programs enqueue them: their names, arguments and results, without their code.

Workers of evsched.targets run their jobs. The handles are not registered in the app: a worker that serves it must not
run the functions here in place of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeVar

from msgspec import UNSET, Meta, Struct

from evsched.client.task_handle import Outlet, TaskHandle
from evsched.jobs.tasks import define

P = ParamSpec("P")
R = TypeVar("R")

QUEUE: Final = "targets"
"""A queue of its own: workers of other apps do not know these tasks."""

TIMEOUT: Final = 30.0
"""Seconds for a request, unless its payload says otherwise."""

TIMEOUT_MOST: Final = 1800.0
"""Seconds: after these the task's own timeout ends a run."""

_WHOLE: Final = 2**53

HttpMethod = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
Seconds = Annotated[float, Meta(gt=0, le=TIMEOUT_MOST)]
Most = Annotated[int, Meta(ge=1, le=_WHOLE)]


class HttpResponse(Struct, frozen=True):
    """The answer to a request, as the result of its job."""

    status: int
    headers: dict[str, str]
    """Several of one name are joined by a comma."""
    body: str
    """Decoded as UTF-8; bytes that are not are replaced by U+FFFD."""
    cut: bool
    """There was more of the body, or it broke off, or it did not end in time."""


async def http(
    url: str,
    method: HttpMethod = "POST",
    headers: dict[str, str] | None = None,
    body: str | None = None,
    json: Any = UNSET,
    timeout: Seconds = TIMEOUT,
    sign: str | None = None,
    response: bool = False,
) -> HttpResponse | None:
    """Have the arguments and the result of the task `evsched.http` (targets/http.py)."""
    raise NotImplementedError("only workers of evsched.targets run this task")


async def forward(
    to: str,
    message: Any,
    most: Most | None = None,
    end: Literal["left", "right"] | None = None,
    bare: bool | None = None,
    routing_key: str | None = None,
) -> None:
    """Have the arguments of the task `evsched.forward` (targets/forward.py)."""
    raise NotImplementedError("only workers of evsched.targets run this task")


def target(app: Outlet, function: Callable[P, Coroutine[Any, Any, R]]) -> TaskHandle[P, R]:
    """Return a handle of one of these tasks, which is not registered in the app."""
    return TaskHandle(app, define(function, name=f"evsched.{function.__name__}", queue=QUEUE))
