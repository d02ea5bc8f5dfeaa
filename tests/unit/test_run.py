"""A run that is stopped: for which reason, and how its handler notices."""

from __future__ import annotations

import asyncio
import time

import pytest
from anyio.lowlevel import checkpoint

from evsched.execution.handlers import RunningRuns
from evsched.execution.run import Delivery, Prepared, Run, StopReason
from evsched.jobs.current_job import CurrentJob
from evsched.jobs.job import Aborted, FetchedJob, Payload
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import define


def begun(seconds_ago: float = 0.0, timeout: float | None = None) -> Run:
    run = Run(FetchedJob("a", 1, 1.0, b""), Delivery("q", 1.0, time.monotonic()))
    run.prepared = Prepared(Payload("t"), define(print, name="t", timeout=timeout), Retry(), [], {})
    run.current = CurrentJob("a", "q", "t", 1, 1.0, 1.0, 0.0, {})
    run.began = time.monotonic() - seconds_ago
    run.cancellable = True
    return run


@pytest.mark.parametrize(
    ("reasons", "kept"),
    [
        (["timeout", "cancelled"], "cancelled"),
        (["cancelled", "timeout"], "cancelled"),
        (["cancelled", "lost"], "lost"),
        (["lost", "cancelled", "timeout"], "lost"),
    ],
)
def test_the_stronger_reason_is_kept(reasons: list[StopReason], kept: StopReason) -> None:
    run = begun()
    for reason in reasons:
        run.stop(reason)
    assert run.current is not None
    assert (run.stop_reason, run.current.stopped, run.current.cancelled) == (kept, kept, True)


async def test_each_stop_cancels_a_handler_that_can_be_cancelled() -> None:
    run, times = begun(), 0

    async def handler() -> None:
        nonlocal times
        while times < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                times += 1

    run.work = asyncio.create_task(handler())
    await checkpoint()
    run.stop("cancelled")
    await checkpoint()
    run.cancellable = False
    run.stop("timeout")
    await checkpoint()
    assert times == 1
    run.cancellable = True
    run.stop("timeout")
    await run.work
    assert (times, run.stop_reason) == (2, "cancelled")


def test_a_run_that_has_not_begun_keeps_the_reason() -> None:
    run = Run(FetchedJob("a", 1, 1.0, b""), Delivery("q", 1.0, time.monotonic()))
    run.stop("cancelled")
    assert run.stop_reason == "cancelled"


async def test_a_run_that_ended_past_its_deadline_has_timed_out() -> None:
    late, in_time, endless, cancelled, isolated = runs = [
        begun(2.0, timeout) for timeout in (1.0, 60.0, None, 1.0, 1.0)
    ]
    running = RunningRuns()
    cancelled.stop("cancelled")
    for run in (late, in_time, endless, cancelled):
        running.add(run)
    running.add(isolated, 60.0)
    assert running.stuck(kill_grace=0.5) is late
    assert running.stuck(kill_grace=60.0) is None
    for run in runs:
        running.remove(run, time.monotonic())
    assert [run.stop_reason for run in runs] == ["timeout", None, None, "cancelled", None]
    assert len(running) == 0


async def test_the_timer_stops_each_run_once() -> None:
    running, first, second = RunningRuns(), begun(timeout=0.001), begun(timeout=0.01)
    stopped = asyncio.Event()

    async def wait(run: Run, ends: bool) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends:
                stopped.set()

    first.work, second.work = asyncio.create_task(wait(first, False)), asyncio.create_task(wait(second, True))
    running.add(first)
    running.add(second)
    await asyncio.wait_for(stopped.wait(), 10)
    assert [run.stop_reason for run in (first, second)] == ["timeout", "timeout"]
    await asyncio.gather(first.work, second.work)
    assert [run.work is not None and run.work.cancelling() for run in (first, second)] == [1, 1]


def test_a_run_that_has_ended_keeps_its_outcome_and_no_reference_to_itself() -> None:
    run = begun()
    run.current = CurrentJob("a", "q", "t", 1, 1.0, 1.0, 0.0, {}, report=run.report_progress)
    run.end(Aborted(60.0, False))
    assert (run.outcome, run.prepared, run.current) == (Aborted(60.0, False), None, None)
    run.end(None)
    assert run.outcome == Aborted(60.0, False)
    run.stop("cancelled")
    assert run.stop_reason == "cancelled"
