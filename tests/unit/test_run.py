"""A run that is stopped: for which reason, and how its handler hears of it."""

from __future__ import annotations

import asyncio
import time

import pytest
from anyio.lowlevel import checkpoint

from evsched.execution.run import Delivery, Run, StopReason
from evsched.execution.running_runs import RunningRuns
from evsched.jobs.current_job import CurrentJob
from evsched.jobs.job import Aborted, FetchedJob


def begun(seconds_ago: float = 0.0) -> Run:
    run = Run(FetchedJob("a", 1, 1.0, b""), Delivery("q", 1.0, time.monotonic()))
    run.current = CurrentJob("a", "q", "t", 1, 1.0, 1.0, 0.0, {})
    run.began = time.monotonic() - seconds_ago
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
    running, late, in_time, endless, cancelled = RunningRuns(), begun(2.0), begun(2.0), begun(2.0), begun(2.0)
    cancelled.stop("cancelled")
    for run, timeout in ((late, 1.0), (in_time, 60.0), (endless, None), (cancelled, 1.0)):
        running.add(run, timeout)
    assert running.stuck(kill_grace=0.5) is late
    assert running.stuck(kill_grace=60.0) is None
    for run in (late, in_time, endless, cancelled):
        running.remove(run, time.monotonic())
    reasons = [run.stop_reason for run in (late, in_time, endless, cancelled)]
    assert (reasons, len(running)) == (["timeout", None, None, "cancelled"], 0)


async def test_the_timer_stops_each_run_once() -> None:
    running, first, second = RunningRuns(), begun(), begun()
    stopped = asyncio.Event()

    async def wait(run: Run, ends: bool) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends:
                stopped.set()

    first.work, second.work = asyncio.create_task(wait(first, False)), asyncio.create_task(wait(second, True))
    running.add(first, 0.001)
    running.add(second, 0.01)
    await asyncio.wait_for(stopped.wait(), 10)
    assert [run.stop_reason for run in (first, second)] == ["timeout", "timeout"]
    await asyncio.gather(first.work, second.work)
    assert [run.work is not None and run.work.cancelling() for run in (first, second)] == [1, 1]


def test_a_run_that_has_ended_keeps_its_outcome_and_no_reference_to_itself() -> None:
    run = begun()
    run.current = CurrentJob("a", "q", "t", 1, 1.0, 1.0, 0.0, {}, report=run.report_progress)
    run.end(Aborted(60.0, False))
    assert (run.outcome, run.prepared, run.current) == (Aborted(60.0, False), None, None)
    run.stop("cancelled")
    assert run.stop_reason == "cancelled"
