"""The executor by itself: whatever a job or its handler does, its outcome can be written to Redis."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evsched.codec import Codec
from evsched.execution.deferral import RunStore
from evsched.execution.executor import Executor
from evsched.execution.failure import Stack, stack_of
from evsched.execution.program import Program
from evsched.execution.run import RESULT_MOST, Delivery, Run, StopReason
from evsched.jobs.current_job import CurrentJob, current_job
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Outcome, Retried, Snoozed, encode
from evsched.jobs.retry import Retry
from evsched.jobs.sealed import seal_payload
from evsched.jobs.steering import GiveUp, RetryLater, Snooze
from evsched.jobs.tasks import Tasks, define
from tests.support import heavy

USUAL = Retry(attempts=9, jitter=0)


async def run(
    handler: Any, payload: bytes = b'{"task":"t"}', attempt: int = 1, *, on: Any = None, retry: Retry = USUAL
) -> Outcome:
    tasks = Tasks()
    tasks.add(define(handler, name="t", on=on, retry=retry))
    found = Run(FetchedJob("a", attempt, 1.0, payload), Delivery("q", 1.0, time.monotonic()))
    async with Executor(Program(tasks), 1) as executor:
        found.work = asyncio.ensure_future(executor.run(found))
        await found.work
    assert found.outcome is not None
    return found.outcome


class Odd(BaseException):
    """Such as the panic of an extension written in Rust."""


ODD = [
    Odd("no luck"),
    GeneratorExit(),
    KeyboardInterrupt(),
    SystemExit(3),
    BaseExceptionGroup("all", [Odd("one")]),
]


@pytest.mark.parametrize("error", ODD, ids=[type(error).__name__ for error in ODD])
@pytest.mark.parametrize("on", ["loop", "thread"])
async def test_any_exception_of_a_handler_is_a_failed_attempt(error: BaseException, on: str) -> None:
    async def in_loop() -> None:
        raise error

    def in_thread() -> None:
        raise error

    outcome = await run(in_loop if on == "loop" else in_thread)
    assert isinstance(outcome, Retried)
    assert outcome.reason.startswith(f"attempt 1 of 9: {type(error).__name__}")


async def open_from_store(
    get: Any, stop: StopReason | None = None, timeout: float = 60, *, before: bool = False
) -> Run:
    """Run a job whose arguments are in a store. It is stopped when `get` has begun, or `before` that."""
    begun, tasks = asyncio.Event(), Tasks()

    async def put(name: str, data: bytes) -> None: ...

    async def noted(name: str) -> bytes:
        begun.set()
        return await get()

    async def never() -> None:
        raise AssertionError("its arguments were not there")

    tasks.add(define(never, name="t"))
    codec = Codec(put=put, get=noted, put_above=0)
    payload = await seal_payload(codec, encode({"task": "t", "timeout": timeout}), "a")
    found = Run(FetchedJob("a", 1, 1.0, payload), Delivery("q", 1.0, time.monotonic()))
    async with Executor(Program(tasks, codec=codec), 1) as executor:
        found.work = work = asyncio.ensure_future(executor.run(found))
        if not before:
            await begun.wait()
        if stop is not None:
            found.stop(stop)
        await asyncio.wait([work])
    return found


@pytest.mark.parametrize("error", [*ODD, asyncio.CancelledError()], ids=lambda error: type(error).__name__)
async def test_job_waits_whatever_the_function_raises_that_gets_its_arguments(error: BaseException) -> None:
    async def get() -> None:
        raise error

    found = await open_from_store(get)
    assert isinstance(found.outcome, Deferred)
    assert found.outcome.cause == "store"
    assert found.outcome.reason.startswith(f"its arguments cannot be read: {type(error).__name__}")


async def hang() -> None:
    await asyncio.Event().wait()


async def hang_and_fail() -> None:
    try:
        await hang()
    finally:
        raise OSError("cut short")


@pytest.mark.parametrize("get", [hang, hang_and_fail])
async def test_job_whose_arguments_do_not_come_can_be_stopped_and_waits_after_its_timeout(get: Any) -> None:
    for before in (False, True):
        assert isinstance((await open_from_store(get, "cancelled", before=before)).outcome, Aborted)
        assert (await open_from_store(get, "lost", before=before)).outcome is None
    late = (await open_from_store(get, timeout=0.01)).outcome
    assert isinstance(late, Deferred)
    assert get is hang_and_fail or late.reason == (
        "its arguments cannot be read: its timeout, 10 ms, passed before its store gave them"
    )


async def test_run_that_is_cancelled_before_it_begins_although_nobody_asked_for_it_begins_later() -> None:
    class Cancelled(RunStore):
        async def unknown_since(self, run: Run) -> None:
            raise asyncio.CancelledError

    found = Run(FetchedJob("a", 1, 1.0, b'{"task":"t"}'), Delivery("q", 1.0, time.monotonic()))
    async with Executor(Program(Tasks()), 1, store=Cancelled()) as executor:
        await executor.run(found)
    assert isinstance(found.outcome, Deferred)


class Refused(ValueError):
    pass


def charge_card(how: str) -> None:
    raise {"refused": Refused, "fail": ValueError, "away": ConnectionResetError, "odd": Odd, "exit": GeneratorExit}[
        how
    ]("no luck")


async def charge_card_in_loop(how: str) -> None:
    charge_card(how)


BY_EXCEPTION = [
    ("fail", Retry(), ""),
    ("fail", Retry(give_up_on=(Refused,)), ""),
    ("fail", Retry(give_up_on=(LookupError, ValueError)), "give_up_on includes its class"),
    ("refused", Retry(give_up_on=(ValueError,)), "give_up_on includes its class"),
    ("away", Retry(retry_on=(TimeoutError, ConnectionError)), ""),
    ("fail", Retry(retry_on=(TimeoutError, ConnectionError)), "retry_on does not include its class"),
    ("fail", Retry(retry_on=()), "retry_on does not include its class"),
    ("fail", Retry(retry_on=(ValueError,), give_up_on=(Refused,)), ""),
    ("refused", Retry(retry_on=(ValueError,), give_up_on=(Refused,)), "give_up_on includes its class"),
    ("odd", Retry(retry_on=(Exception,)), "retry_on does not include its class"),
    ("exit", Retry(retry_on=(Exception,)), "retry_on does not include its class"),
    ("exit", Retry(retry_on=(GeneratorExit,)), ""),
]


CLASSES = {
    "refused": f"{__name__}.Refused",
    "fail": "ValueError",
    "away": "ConnectionResetError",
    "odd": f"{__name__}.Odd",
    "exit": "GeneratorExit",
}
"""What the record says of the errors of `charge_card`."""


@pytest.mark.extra
@pytest.mark.parametrize(("how", "policy", "refused"), BY_EXCEPTION)
@pytest.mark.parametrize("on", ["loop", "thread", "process"])
async def test_policy_retries_or_buries_by_exception(on: Any, how: str, policy: Retry, refused: str) -> None:
    handler = charge_card_in_loop if on == "loop" else charge_card
    payload = encode({"task": "t", "args": [how], "retry": {"attempts": 5}})
    outcome = await run(handler, payload, on=None if on == "loop" else on, retry=policy)
    assert isinstance(outcome, Buried if refused else Retried)
    assert outcome.reason.startswith("attempt 1 of 5: ")
    assert "in charge_card)" in outcome.reason
    assert outcome.reason.partition("; not run again: ")[2] == refused
    assert outcome.error == CLASSES[how]
    assert "in charge_card" in outcome.traceback


@pytest.mark.parametrize("policy", [Retry(retry_on=()), Retry(give_up_on=(BaseException,))])
async def test_policy_by_exception_does_not_apply_to_timeouts_and_retry_later(policy: Retry) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def wait_and_fail() -> None:
        try:
            await wait()
        finally:
            raise ValueError("cut short")

    async def later() -> None:
        raise RetryLater(5)

    for handler, error in ((wait, ""), (wait_and_fail, ""), (later, "evsched.jobs.steering.RetryLater")):
        outcome = await run(handler, b'{"task":"t","timeout":0.01}', retry=policy)
        assert isinstance(outcome, Retried)
        assert outcome.error == error


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        (Retry(retry_on=(ConnectionError,)), "retry_on does not include its class"),
        (Retry(give_up_on=(asyncio.CancelledError,)), "give_up_on includes its class"),
        (Retry(retry_on=(asyncio.CancelledError,)), ""),
    ],
)
async def test_a_policy_by_exception_decides_about_a_cancellation_from_inside(policy: Retry, refused: str) -> None:
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    outcome = await run(cancel_itself, b'{"task":"t"}', retry=policy)
    assert isinstance(outcome, Buried if refused else Retried)
    assert outcome.reason.partition("; not run again: ")[2] == refused


async def test_a_policy_by_exception_does_not_decide_about_a_process_that_dies() -> None:
    payload = encode({"task": "t", "args": ["die"]})
    outcome = await run(heavy.steer.handler, payload, on="process", retry=Retry(retry_on=()))
    assert isinstance(outcome, Retried)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("5", "TypeError: RetryLater: the delay is a timedelta or a number of seconds, not '5'"),
        (b"5", "TypeError: RetryLater"),
        (1j, "TypeError: RetryLater"),
        (math.inf, "ValueError: RetryLater: the delay is infinite"),
    ],
)
async def test_an_invalid_delay_is_a_failed_attempt(asked: Any, reason: str) -> None:
    async def later() -> None:
        raise RetryLater(asked)

    outcome = await run(later)
    assert isinstance(outcome, Retried)
    assert outcome.reason.startswith(f"attempt 1 of 9: {reason}")


class Busy(RetryLater):
    def __init__(self) -> None:
        pass


class Missing(Snooze):
    def __init__(self) -> None:
        pass


def steer_by_a_subclass(how: str) -> None:
    raise Busy if how == "busy" else Missing


@pytest.mark.extra
@pytest.mark.parametrize("on", ["thread", "process"])
async def test_a_subclass_steers_even_if_it_does_not_call_the_constructor(on: Any) -> None:
    outcome = await run(steer_by_a_subclass, b'{"task":"t","args":["busy"]}', on=on)
    assert isinstance(outcome, Retried)
    assert outcome.delay == USUAL.interval
    outcome = await run(steer_by_a_subclass, b'{"task":"t","args":["missing"]}', on=on)
    assert isinstance(outcome, Snoozed)
    assert (outcome.delay, outcome.until) == (0.0, None)


@pytest.mark.parametrize("figures", [(object(),), (1, 2j), ("1",), (math.nan,), (1, math.inf)])
async def test_invalid_progress_is_a_failed_attempt(figures: tuple[Any, ...]) -> None:
    async def handler() -> None:
        current_job().progress(*figures)

    outcome = await run(handler)
    assert isinstance(outcome, Retried)
    assert "Error: " in outcome.reason


async def test_progress_can_always_be_written_as_json() -> None:
    reported = list[Any]()

    async def handler() -> None:
        job = current_job()
        given: list[Any] = [(3, "half"), (2**70, "\ud800"), (True, 7), (0.5, "x" * 300)]
        for done, note in given:
            await job.progress(done, note=note)
            reported.append(found.progress)

    tasks = Tasks()
    tasks.add(define(handler, name="t", retry=Retry(attempts=1)))
    found = Run(FetchedJob("a", 1, 1.0, b'{"task":"t"}'), Delivery("q", 1.0, time.monotonic()))
    await Executor(Program(tasks), 1).run(found)
    assert isinstance(found.outcome, Done)
    assert [(one.done, one.note) for one in reported] == [
        (3, "half"),
        (float(2**70), "\\ud800"),
        (1, "7"),
        (0.5, "x" * 200),
    ]
    assert all(json.loads(encode(one)) for one in reported)


async def test_a_handler_that_blocked_the_loop_past_its_timeout_has_failed() -> None:
    async def block() -> None:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass

    outcome = await run(block, b'{"task":"t","timeout":0.01}')
    assert isinstance(outcome, Retried)
    assert outcome.reason == "attempt 1 of 9: timeout: it ran longer than its limit"


@pytest.mark.parametrize(
    ("asked", "delay"), [(2.5, 2.5), (0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (timedelta(minutes=1), 60.0)]
)
async def test_requested_delay_is_clamped_to_the_range_of_redis(asked: Any, delay: float) -> None:
    async def later() -> None:
        raise RetryLater(asked)

    assert await run(later) == Retried(
        delay, "attempt 1 of 9: the handler asked for another attempt", error="evsched.jobs.steering.RetryLater"
    )


def wait_for_file(how: str) -> None:
    asked: dict[str, Any] = {
        "delay": lambda: Snooze(60),
        "timedelta": lambda: Snooze(timedelta(minutes=1), "no file"),
        "past": lambda: Snooze(-5),
        "until": lambda: Snooze(until=datetime(2030, 1, 1, tzinfo=UTC), reason="no file"),
        "unix": lambda: Snooze(until=1893456000),
    }
    raise asked[how]()


async def wait_for_file_in_loop(how: str) -> None:
    wait_for_file(how)


@pytest.mark.extra
@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("delay", Snoozed("snoozed for at least 60.0 s", 60.0)),
        ("timedelta", Snoozed("snoozed for at least 60.0 s: no file", 60.0)),
        ("past", Snoozed("snoozed for at least 0 ms", 0.0)),
        ("until", Snoozed("snoozed until at least 2030-01-01T00:00:00Z: no file", until=1893456000.0)),
        ("unix", Snoozed("snoozed until at least 2030-01-01T00:00:00Z", until=1893456000.0)),
    ],
)
@pytest.mark.parametrize("on", ["loop", "thread", "process"])
async def test_a_handler_may_snooze_also_in_its_last_attempt(on: Any, how: str, outcome: Outcome) -> None:
    handler = wait_for_file_in_loop if on == "loop" else wait_for_file
    payload = encode({"task": "t", "args": [how]})
    for attempts in (9, 1):
        assert await run(handler, payload, on=None if on == "loop" else on, retry=Retry(attempts=attempts)) == outcome


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "TypeError: Snooze: give either a delay or until="),
        ({"delay": 1, "until": 2}, "TypeError: Snooze: give either a delay or until="),
        ({"delay": "5"}, "TypeError: Snooze: the delay is a timedelta or a number of seconds, not '5'"),
        ({"delay": math.inf}, "ValueError: Snooze: the delay is infinite"),
        ({"delay": math.nan}, "ValueError: Snooze: the delay is nan, not a number of seconds up to 1e+10"),
        ({"until": 1e11}, "ValueError: Snooze: until is 1e+11, not a number of seconds up to 1e+10"),
        ({"until": datetime(2030, 1, 1)}, "TypeError: Snooze: until is an aware datetime or Unix seconds"),  # noqa: DTZ001
        ({"until": "tomorrow"}, "TypeError: Snooze: until is an aware datetime or Unix seconds, not 'tomorrow'"),
    ],
)
async def test_an_invalid_snooze_is_a_failed_attempt(asked: Any, reason: str) -> None:
    async def snooze() -> None:
        raise Snooze(**asked)

    outcome = await run(snooze)
    assert isinstance(outcome, Retried)
    assert outcome.reason.startswith(f"attempt 1 of 9: {reason}")


@pytest.mark.parametrize("timeout", ["0", "-0.0", "-1"])
async def test_an_invalid_timeout_is_refused_before_the_handler_begins(timeout: str) -> None:
    def handler() -> None:
        raise AssertionError("it began")

    outcome = await run(handler, f'{{"task":"t","timeout":{timeout},"reply":true}}'.encode())
    assert isinstance(outcome, Buried)
    assert (
        outcome.reason
        == f"the payload's timeout is {timeout.removesuffix('.0')}, must be over 0 s: correct the payload"
    )
    assert outcome.reply


def charge() -> Any:
    return json.loads("{")


async def test_reason_names_the_handlers_frame_and_has_the_traceback() -> None:
    async def on_loop() -> None:
        charge()

    for handler in (on_loop, charge):
        outcome = await run(handler)
        assert isinstance(outcome, Retried)
        assert outcome.reason.startswith("attempt 1 of 9: JSONDecodeError: ")
        assert f"({__file__}:{charge.__code__.co_firstlineno + 1} in charge)" in outcome.reason
        assert "json/decoder.py" in outcome.traceback
        assert "evsched/execution/" not in outcome.traceback
        last = await run(handler, attempt=9)
        assert isinstance(last, Buried)
        assert last.traceback == outcome.traceback


@pytest.mark.parametrize("on", ["loop", "thread"])
async def test_stack_of_a_handler_begins_with_the_users_code(on: str) -> None:
    found = list[Stack]()

    def deeper() -> None:
        found.append(stack_of(sys._getframe()))  # pyright: ignore[reportPrivateUsage]

    async def on_loop() -> None:
        deeper()

    def in_thread() -> None:
        deeper()

    await run(on_loop if on == "loop" else in_thread)
    (stack,) = found
    first, *lines = stack.traceback.splitlines()
    assert first == "Stack (most recent call last):"
    names = [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")]
    assert names == ["on_loop" if on == "loop" else "in_thread", "deeper"]
    assert stack.place.endswith(" in deeper)")


async def test_the_reason_of_a_timeout_says_where_the_handler_waited() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    outcome = await run(wait, b'{"task":"t","timeout":0.01}')
    assert isinstance(outcome, Retried)
    assert f"ran longer than its limit ({__file__}:{wait.__code__.co_firstlineno + 1} in wait)" in outcome.reason
    assert "await asyncio.Event().wait()" in outcome.traceback


async def test_an_exception_without_a_readable_message_does_not_end_the_worker() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    class BrokenLater(RetryLater):
        __str__ = Broken.__str__

    async def raise_broken() -> None:
        raise Broken

    async def later() -> None:
        raise BrokenLater(1)

    for handler in (raise_broken, later):
        outcome = await run(handler)
        assert isinstance(outcome, Retried)
        assert "its message cannot be read: TypeError in __str__" in outcome.reason


@pytest.mark.parametrize(
    ("retry", "delay"),
    [
        (b'{"factor":1e200,"max_interval":60}', 60.0),
        (b'{"factor":1e200,"interval":0}', 0.0),
        (b'{"interval":1e300,"factor":1e300,"max_interval":7}', 7.0),
    ],
)
async def test_a_backoff_that_overflows_is_capped(retry: bytes, delay: float) -> None:
    async def fail() -> None:
        raise ValueError("no luck")

    outcome = await run(fail, b'{"task":"t","retry":' + retry + b"}", attempt=4)
    assert isinstance(outcome, Retried)
    assert outcome.delay == delay


async def test_a_result_that_is_too_long_buries_the_job() -> None:
    async def long(more: int) -> str:
        return "x" * (RESULT_MOST - 2 + more)

    outcome = await run(long, b'{"task":"t","args":[0]}')
    assert isinstance(outcome, Done)
    outcome = await run(long, b'{"task":"t","args":[1]}')
    assert isinstance(outcome, Buried)
    assert outcome.reason == f"the result has {RESULT_MOST + 1} bytes, more than {RESULT_MOST}: return a reference"


@pytest.mark.extra
@pytest.mark.parametrize("on", ["loop", "thread", "process"])
@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("nan", "the result has a number that JSON cannot hold, NaN or infinite: return None or a string for it"),
        ("nested", "the result has a number that JSON cannot hold, NaN or infinite: return None or a string for it"),
        (
            "object",
            "the result is not JSON: Encoding objects of type object is unsupported: return a value that JSON can hold",
        ),
        ("surrogate", "the result is not JSON: 'utf-8' codec can't encode"),
        ("deep", "the result is not JSON: maximum recursion depth exceeded"),
    ],
)
async def test_a_result_that_json_cannot_hold_buries_the_job(on: str, result: str, reason: str) -> None:
    async def in_loop(which: str) -> Any:
        return heavy.odd_result.handler(which)

    def in_thread(which: str) -> Any:
        return heavy.odd_result.handler(which)

    handler = {"loop": in_loop, "thread": in_thread, "process": heavy.odd_result.handler}[on]
    outcome = await run(handler, encode({"task": "t", "args": [result]}), on=None if on == "loop" else on)
    assert isinstance(outcome, Buried)
    assert outcome.reason.startswith(reason)


async def test_a_result_may_have_none_and_finite_numbers() -> None:
    async def found() -> Any:
        return {"a": [None, 1.5, {"b": None}], "c": "null"}

    outcome = await run(found)
    assert isinstance(outcome, Done)
    assert json.loads(outcome.result) == {"a": [None, 1.5, {"b": None}], "c": "null"}


@pytest.mark.parametrize("raised", [GiveUp, GiveUp(), GiveUp("")], ids=["the class", "an instance", "no text"])
async def test_give_up_without_a_reason_is_reported_as_such(raised: Any) -> None:
    async def give_up() -> None:
        raise raised

    outcome = await run(give_up)
    assert isinstance(outcome, Buried)
    assert outcome.reason == "the handler gave up, and gave no reason"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_job_that_is_cancelled_in_a_middleware_began_if_its_handler_did(before: bool) -> None:
    there = asyncio.Event()

    async def wait(_: CurrentJob, call: Callable[[], Awaitable[Any]]) -> None:
        if not before:
            await call()
        there.set()
        await asyncio.Event().wait()

    async def handler() -> None: ...

    tasks = Tasks()
    tasks.add(define(handler, name="t", retry=Retry(attempts=9)))
    found = Run(FetchedJob("a", 1, 1.0, b'{"task":"t"}'), Delivery("q", 1.0, time.monotonic()))
    found.work = work = asyncio.ensure_future(Executor(Program(tasks, [wait]), 1).run(found))
    await there.wait()
    found.stop("cancelled")
    await asyncio.wait_for(work, 10)
    assert isinstance(found.outcome, Aborted)
    assert found.outcome.began is not before
