"""`step`: runs a function once in a job, and keeps its result for later runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, ParamSpec, TypeVar, get_type_hints, overload

import msgspec

from evsched.jobs.job import decode
from evsched.jobs.kept import Keep
from evsched.jobs.steering import GiveUp
from evsched.steps.memory import as_json, ask, ask_sync, name_in_record, recall, recall_sync, run_of

P = ParamSpec("P")
T = TypeVar("T")


class StepRunner:
    """The type of `step`."""

    @overload
    async def __call__(self, name: str, code: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def __call__(self, name: str, code: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def __call__(self, name: str, code: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function and keep its result with the job, as JSON; in a later run, return that without a call.

        The result is converted to the return type of the function, if it has an annotation. If the function raises,
        nothing is kept. If the worker dies before the result is written, the function is called again: it is called at
        least once. Each name is used once in a run.

        Raises:
            GiveUp: the name was used before, or the result is no JSON or too long: another attempt cannot change that.
            Snooze: the worker stops; the job goes on from here in another one.
            RunStopped: the run must stop, or has lost its job.
            LookupError: the caller is not inside a run.
        """
        job, key = run_of("step", name), name_in_record(name)
        value = (await recall(job)).get(key)
        if value is None:
            result = code(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            value = as_json(f"step {name!r}", result)
            await ask(job, Keep(key, value))
        return _typed(name, value, code)

    def sync(self, name: str, code: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a step as `await step(...)`, in a plain handler: in a thread, or in a process."""
        job, key = run_of("step", name), name_in_record(name)
        value = recall_sync(job).get(key)
        if value is None:
            result = code(*args, **kwargs)
            if inspect.isawaitable(result):
                raise GiveUp(f"step {name!r}: step.sync takes a plain function, and this one is async")
            value = as_json(f"step {name!r}", result)
            ask_sync(job, Keep(key, value))
        return _typed(name, value, code)


def _typed(name: str, value: bytes, code: Callable[..., Any]) -> Any:
    """Return a result as the function's annotation has it, in the first run and in later ones alike."""
    found = decode(value)
    try:
        wanted: Any = get_type_hints(code).get("return", Any)
    # A lambda or a partial function has no annotations, and those of a user's module may not be readable.
    except Exception:  # noqa: BLE001
        return found
    try:
        return msgspec.convert(found, wanted)
    except msgspec.ValidationError as error:
        function = getattr(code, "__name__", type(code).__name__)
        raise GiveUp(f"step {name!r}: its result does not fit the return type of {function}: {error}") from None
    except TypeError:  # a type that msgspec does not know
        return found


step: Final = StepRunner()
