"""The tasks of evsched.targets as programs enqueue them: their arguments and results, without their code.

Workers of evsched.targets run their jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args

from msgspec import UNSET, Meta, Struct
from msgspec.structs import asdict, replace

from evsched.client.target_destination import check_options, destination_of
from evsched.client.target_request import SECRET_NAME, HttpMethod, Request, read_request
from evsched.jobs.arguments import check
from evsched.jobs.retry import Retry
from evsched.jobs.steering import GiveUp
from evsched.jobs.tasks import Task, define

R = TypeVar("R")
A = TypeVar("A", bound=Struct)

QUEUE: Final = "targets"
"""A queue of its own: workers of other apps do not know these tasks."""

TIMEOUT: Final = 30.0
"""Seconds for a request, unless its payload says otherwise."""

TIMEOUT_MOST: Final = 1800.0
"""Seconds: after these the task's own timeout ends a run."""

_WHOLE: Final = 2**53

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


class TargetJob(Struct, Generic[R], frozen=True):
    """The arguments of a task of evsched.targets, whose result is an R."""

    def check(self) -> None:
        """Refuse what no worker can do.

        Raises:
            GiveUp: the reason names the argument.
        """


class HttpJob(TargetJob[HttpResponse | None], frozen=True):
    """The arguments of the task `evsched.http` (targets/http.py)."""

    url: str
    method: HttpMethod = "POST"
    headers: dict[str, str] | tuple[()] | None = None
    """PHP writes an empty object as an empty array."""
    body: str | None = None
    json: Any = UNSET
    timeout: Seconds = TIMEOUT
    """Seconds for all of it."""
    sign: str | None = None
    """The name of the secret."""
    response: bool = False
    """Return the answer."""

    def request(self) -> Request:
        """Return the request. Raises as `check`."""
        return read_request(self.url, self.method, self.headers or {}, self.body, self.json)

    def check(self) -> None:
        """See `TargetJob`."""
        self.request()
        if self.sign is not None and not SECRET_NAME.fullmatch(self.sign):
            raise GiveUp("sign is not the name of a secret: it has A-Z, 0-9 and _ alone, as ORDERS")


class ForwardJob(TargetJob[None], frozen=True):
    """The arguments of the task `evsched.forward` (targets/forward.py)."""

    to: str
    message: Any
    most: Most | None = None
    """About how many entries a stream keeps."""
    end: Literal["left", "right"] | None = None
    """Where a list gets the message."""
    bare: bool | None = None
    """A list or a channel gets the message alone, without the job's id."""
    routing_key: str | None = None
    """For an exchange."""

    def check(self) -> None:
        """See `TargetJob`."""
        check_options(destination_of(self.to), asdict(self))


_ARGUMENTS: Final[dict[str, type[TargetJob[Any]]]] = {"evsched.http": HttpJob, "evsched.forward": ForwardJob}


@cache
def definition(name: str) -> Task:
    """Return one of these tasks as programs see it: with its arguments and its result, and without its code."""
    arguments = _ARGUMENTS[name]

    def refuse(*args: Any, **kwargs: Any) -> None:
        arguments(*args, **kwargs).check()

    task = define(arguments, name=name, queue=QUEUE)
    (returns,) = get_args(vars(arguments)["__orig_bases__"][0])
    return replace(task, signature=replace(task.signature, returns=returns), check=refuse)


def is_target(name: str) -> bool:
    """Return whether a task is one of these."""
    return name in _ARGUMENTS


def check_target(name: str, args: Sequence[Any], kwargs: dict[str, Any], payload: bytes) -> None:
    """Refuse a call of one of these tasks that no worker can do; other tasks are not looked at.

    Raises:
        BadArguments
    """
    if is_target(name):
        task = definition(name)
        check(task.signature, task.check, args, kwargs, payload)


def target_task(
    name: str, arguments: Callable[..., A], run: Callable[[A], Coroutine[Any, Any, Any]], retry: Retry | None = None
) -> Task:
    """Return one of these tasks for a worker. `run` gets the arguments of a job."""

    async def handler(*args: Any, **kwargs: Any) -> Any:
        return await run(arguments(*args, **kwargs))

    return replace(define(arguments, name=name, retry=retry), on="loop", handler=handler)
