"""The scenes for workers."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from typing import Any, Final

from evsched.conformance.kit import Scene, adding_to
from evsched.conformance.stage import GRACE, PATIENCE, QUEUE, SLOTS, Stage, expect, require
from evsched.jobs.job import RetryFields, encode
from evsched.jobs.record import JobStatus

WORKER_SCENES: Final = list[Scene[Stage]]()

_scene: Final = adding_to(WORKER_SCENES)

_LONG: Final = 60.0
"""Seconds of a run that the scene cuts short."""

_ONCE: Final = RetryFields(attempts=1)


def _same(stage: Stage, value: Any) -> None:
    expect(stage.result("echo", value), value, "the result")


# Arguments and results.


@_scene("the result of a job is that of its handler")
def result(stage: Stage) -> None:
    _same(stage, "hello")


@_scene("a result of null is null")
def null(stage: Stage) -> None:
    _same(stage, None)


@_scene("args and kwargs arrive as they were enqueued")
def arguments(stage: Stage) -> None:
    job_id = stage.enqueue("call", 1, "b", [None], named={"x": True, "y z": {}})
    expect(stage.ended(job_id).result, {"args": [1, "b", [None]], "kwargs": {"x": True, "y z": {}}}, "the result")


@_scene("a job without arguments has an empty list and an empty object")
def no_arguments(stage: Stage) -> None:
    expect(stage.result("call"), {"args": [], "kwargs": {}}, "the result")


@_scene("an empty array in place of an object is an empty object, since PHP writes it so")
def php_arguments(stage: Stage) -> None:
    stage.write("php", {"task": "call", "args": {}, "kwargs": [], "retention": 3600})
    expect(stage.ended("php").result, {"args": [], "kwargs": {}}, "the result")


@_scene("texts survive: other scripts, emoji, combining and control characters, quotes, line separators")
def unicode(stage: Stage) -> None:
    _same(stage, "ä€ 你好 👩‍👩‍👧 e\u0301 \u0000\u001b\u007f \"'\\/ \r\n\t \u2028\u2029 \ufeff \U0010ffff")
    expect(stage.ended(stage.enqueue("call", named={"ключ 🔑": "ß"})).result["kwargs"], {"ключ 🔑": "ß"}, "kwargs")


@_scene("whole numbers up to 2^53 - 1 and floats survive")
def numbers(stage: Stage) -> None:
    _same(stage, [0, -1, 2**53 - 1, 1 - 2**53, 0.1, 0.1 + 0.2, -2.5, 1e-9, 1e300, 5e-324, 1.7976931348623157e308])


@_scene("nested and empty values survive")
def nested(stage: Stage) -> None:
    deep: Any = "core"
    for _ in range(60):
        deep = {"a": [deep]}
    _same(stage, [deep, {}, [], {"": {"": [[]]}}, True, False, None])


@_scene("an argument of 200 KB arrives whole")
def long_argument(stage: Stage) -> None:
    _same(stage, "0123456789" * 20_000)


@_scene("a result of 1 MB is kept whole")
def long_result(stage: Stage) -> None:
    expect(stage.result("text", 1_000_000), "x" * 1_000_000, "the result")


@_scene("a result over 1 MiB makes the job dead in its first attempt, since its work is done")
def result_too_long(stage: Stage) -> None:
    expect(stage.dead(stage.enqueue("text", 1_100_000)).attempt, 1, "the attempt")


# A job, as its handler sees it.


@_scene("a handler knows the id of its job, whatever characters it has")
def ids(stage: Stage) -> None:
    for job_id in ("A-z.0_9:@", "...", "x" * 200, "a..b"):
        expect(stage.result("about", id=job_id)["id"], job_id, "the id")


@_scene("a handler knows its attempt, and the meta of its job")
def about(stage: Stage) -> None:
    meta = {"ä": [1, {"b": None}]}
    found = stage.result("about", meta=meta)
    expect((found["attempt"], found["meta"]), (1, meta), "the attempt and the meta")


@_scene("a job starts when it is due, not before, and its handler knows when that was")
def due(stage: Stage) -> None:
    moment = round(stage.client.now(QUEUE) + 1.5, 3)
    status = stage.ended(stage.enqueue("about", due=moment))
    expect(status.outcome, "done", "the outcome")
    require(status.started is not None and status.started >= moment, f"due {moment}, started {status.started}")
    require(abs(status.result["due"] - moment) < 0.001, f"the handler's due is {status.result['due']}, not {moment}")


_WATCHED: Final = 4.0
"""Seconds for which an idle worker is watched."""

_IDLE_MOST: Final = 16
"""Scripts that Redis may run in that time. A service and a worker that waits need 6, and a fetch each second 14."""


@_scene("a worker without jobs does not poll: its fetch waits until there is one")
def idle(stage: Stage) -> None:
    _same(stage, "the last job")
    counts = list[int]()
    while not counts or (counts[-1] > _IDLE_MOST and len(counts) < 3):  # what the job left to do is over soon
        before = stage.scripts_run()
        time.sleep(_WATCHED)
        counts.append(stage.scripts_run() - before)
    require(counts[-1] <= _IDLE_MOST, f"Redis ran {counts[-1]} scripts in {_WATCHED:g} s, more than {_IDLE_MOST}")


# Ways in which jobs come and results go.


@_scene("an inline job, written with one ZADD, runs like any other")
def inline(stage: Stage) -> None:
    payload = {"task": "echo", "args": ["in line"], "id": "inline-1", "retention": 3600}
    stage.schedule(encode(payload).decode())
    stage.until(lambda: stage.status("inline-1"), "the job is there")
    expect(stage.ended("inline-1").result, "in line", "the result")


@_scene("the outcome is pushed to the reply list of a job that asks for it")
def reply(stage: Stage) -> None:
    job_id = stage.enqueue("echo", 7, reply=True)
    expect(stage.client.result(QUEUE, job_id, PATIENCE), 7, "the reply")


@_scene("the record of a job without retention is gone once it is done")
def no_retention(stage: Stage) -> None:
    job_id = stage.enqueue("work", 0, retention=0)
    stage.until(lambda: stage.lines(job_id, "end"), "its handler ends")
    stage.until(lambda: stage.status(job_id) is None, "the record is deleted")


@_scene("100 jobs that are due at once all run, each once")
def many(stage: Stage) -> None:
    ids = [stage.enqueue("work", 0) for _ in range(100)]
    expect({stage.ended(job_id).outcome for job_id in ids}, {"done"}, "their outcomes")
    expect([job_id for job_id in ids if len(stage.lines(job_id)) != 2], [], "the jobs that ran more than once")


def _overlap(stage: Stage, ids: list[str]) -> int:
    """Return how many of these jobs ran at the same time."""
    now, most = 0, 0
    for line in stage.log.read_text().splitlines():
        verb, job_id, _ = line.split()
        if job_id in ids:
            now += 1 if verb == "begin" else -1
            most = max(most, now)
    return most


@_scene(f"no more than CONFORMANCE_SLOTS jobs run at the same time ({SLOTS})")
def slots(stage: Stage) -> None:
    ids = [stage.enqueue("work", 0.3) for _ in range(3 * SLOTS)]
    expect({stage.ended(job_id).outcome for job_id in ids}, {"done"}, "their outcomes")
    require(_overlap(stage, ids) <= SLOTS, f"{_overlap(stage, ids)} ran at the same time")


@_scene("jobs beyond the concurrency of the queue wait")
def limit(stage: Stage) -> None:
    stage.client.limit(QUEUE, concurrency=1)
    ids = [stage.enqueue("work", 0.1) for _ in range(5)]
    expect({stage.ended(job_id).outcome for job_id in ids}, {"done"}, "their outcomes")
    stage.client.limit(QUEUE, concurrency=None)
    expect(_overlap(stage, ids), 1, "the number of jobs at the same time")


@_scene("no job starts while the queue is paused; it does when it is resumed")
def pause(stage: Stage) -> None:
    stage.client.pause(QUEUE)
    job_id = stage.enqueue("work", 0)
    stage.until(lambda: (found := stage.status(job_id)) and found.place == "backlog", "the job waits")
    expect(stage.lines(job_id), [], "the lines of its handler")
    stage.client.resume(QUEUE)
    expect(stage.ended(job_id).outcome, "done", "the outcome")


# Jobs that must not run here.


def _passed_over(stage: Stage, job_id: str, words: str) -> None:
    """Wait until the worker has looked at a job and put it off, for a reason with these words; then cancel it."""

    def look() -> JobStatus | None:
        found = stage.status(job_id)
        return found if found is not None and found.reason else None

    status = stage.until(look, f"{job_id} is put off for a reason")
    require(words in (status.reason or ""), f"the reason is {status.reason!r}")
    expect(status.outcome, None, "the outcome")
    stage.cancel(job_id)
    _same(stage, "still there")


@_scene("a job whose task the worker does not have waits for another worker; the worker goes on")
def unknown_task(stage: Stage) -> None:
    _passed_over(stage, stage.enqueue("no_such_task"), "unknown task 'no_such_task'")


@_scene("a job waits for its window")
def window(stage: Stage) -> None:
    hour = datetime.now(UTC).hour
    job_id = stage.enqueue("work", 0, window=f"{(hour + 3) % 24:02}:00-{(hour + 5) % 24:02}:00 UTC")
    _passed_over(stage, job_id, "outside its window")
    expect(stage.lines(job_id), [], "the lines of its handler")


@_scene("a job that has expired does not run")
def expired(stage: Stage) -> None:
    stage.write("expired-1", {"task": "work", "args": [0], "expires": 1})
    expect(stage.ended("expired-1").outcome, "expired", "the outcome")
    expect(stage.lines("expired-1"), [], "the lines of its handler")


@_scene("a malformed payload goes to the dead-letter set; the worker goes on")
def malformed(stage: Stage) -> None:
    stage.write("malformed-1", {"task": "work", "arg": [0]})
    stage.dead("malformed-1", "arg")
    stage.write("malformed-2", {"task": "work", "args": [0], "retry": {"attempts": 0}})
    stage.dead("malformed-2", "attempts")
    _same(stage, "still there")


@_scene("a redacted argument reaches the handler, and no reader")
def redaction(stage: Stage) -> None:
    job_id = stage.enqueue("call", "secret", redact=("1",))
    status = stage.ended(job_id)
    expect(status.result["args"], ["secret"], "the handler's argument")
    expect(status.payload["args"], ["[redacted]"], "the argument that readers get")


# Failures.


@_scene("a handler that fails runs again, and its job is done when it succeeds")
def retries(stage: Stage) -> None:
    status = stage.ended(stage.enqueue("fail", 2, "not yet", retry=RetryFields(interval=0, jitter=0)))
    expect((status.outcome, status.result, status.attempt), ("done", 3, 3), "outcome, result and attempt")
    expect([run.outcome for run in status.runs], ["failed", "failed", "done"], "the outcomes of its runs")


@_scene("a job is dead after its last attempt, and its reason has the message of the error")
def last_attempt(stage: Stage) -> None:
    message = "no such account: ü € 😀 \"'\\"
    job_id = stage.enqueue("fail", 9, message, retry=RetryFields(attempts=2, interval=0, jitter=0))
    status = stage.dead(job_id, "attempt 2 of 2", message)
    require(status.error, "the record does not have the class of the error")


@_scene("an error with a message of 100 KB ends a run like any other")
def long_reason(stage: Stage) -> None:
    stage.dead(stage.enqueue("fail", 9, "x" * 100_000, retry=_ONCE), "xxx")
    _same(stage, "still there")


def _pause_between(stage: Stage, job_id: str) -> float:
    """Return the seconds from the end of a job's first run to the start of its second."""
    status = stage.ended(job_id)
    expect((status.outcome, status.result), ("done", 2), "outcome and result")
    require(status.started is not None and status.runs, "the record does not have its runs")
    return (status.started or 0) - status.runs[0].ended


@_scene("the next attempt waits as the policy of the job says")
def backoff(stage: Stage) -> None:
    waited = _pause_between(stage, stage.enqueue("fail", 1, "no", retry=RetryFields(interval=1.5, jitter=0)))
    require(waited >= 1.499, f"it waited {waited:.3f} s, not 1.5 s")


@_scene("a handler may say in how many seconds its job is to run again, whatever the policy says")
def retry_later(stage: Stage) -> None:
    policy = RetryFields(interval=600, jitter=0)
    waited = _pause_between(stage, stage.enqueue("retry_later", 1.5, retry=policy))
    require(waited >= 1.499, f"it waited {waited:.3f} s, not 1.5 s")


@_scene("a handler may give its job up: it is dead in its first attempt, for the reason that the handler gives")
def give_up(stage: Stage) -> None:
    expect(stage.dead(stage.enqueue("give_up", "no such customer"), "no such customer").attempt, 1, "the attempt")


@_scene("a run that takes longer than its timeout is stopped, and has failed: its job runs again if an attempt is left")
def timeout(stage: Stage) -> None:
    job_id = stage.enqueue("work", _LONG, timeout=1, retry=_ONCE)
    again = stage.enqueue("work", _LONG, timeout=1, retry=RetryFields(interval=0, jitter=0))
    stage.dead(job_id, "timeout")
    stage.until(lambda: ("stop", 1) in stage.lines(job_id), "the handler is told to stop")
    status = stage.ended(again)
    expect((status.outcome, status.result), ("done", 2), "outcome and result of the job that has an attempt left")


# Long runs.


@_scene("progress that a handler reports can be read while it runs")
def progress(stage: Stage) -> None:
    job_id = stage.enqueue("report", _LONG)
    wanted = {"done": 1, "total": 2, "note": "half"}
    stage.until(
        lambda: (found := stage.status(job_id)) and found.progress == wanted, f"progress is {wanted}",
        seen=lambda: f"it is {getattr(stage.status(job_id), 'progress', None)}",
    )  # fmt: skip
    stage.cancel(job_id)
    expect(stage.ended(job_id).outcome, "cancelled", "the outcome")


@_scene("a job that runs for three leases runs once: the worker sends heartbeats")
def long_job(stage: Stage) -> None:
    # In each slot, so that no fetch renews the lease in place of a heartbeat.
    for job_id in [stage.enqueue("work", 3 * stage.lease) for _ in range(SLOTS)]:
        status = stage.ended(job_id, 3 * stage.lease + PATIENCE)
        expect((status.outcome, stage.lines(job_id)), ("done", [("begin", 1), ("end", 1)]), "the outcome and its runs")


@_scene("a job that is cancelled while it waits does not run")
def cancel_waiting(stage: Stage) -> None:
    job_id = stage.enqueue("work", 0, delay=1)
    stage.cancel(job_id)
    time.sleep(1.5)
    expect(stage.lines(job_id), [], "the lines of its handler")
    expect(stage.status(job_id), None, "its record")


@_scene("a job that is cancelled while it runs is stopped, and ends as cancelled")
def cancel_running(stage: Stage) -> None:
    job_id = stage.enqueue("work", _LONG)
    stage.begun(job_id)
    stage.cancel(job_id)
    expect(stage.ended(job_id).outcome, "cancelled", "the outcome")
    stage.until(lambda: ("stop", 1) in stage.lines(job_id), "the handler is told to stop")


# The end of the worker.


def _end_gently(stage: Stage) -> None:
    """Send SIGTERM to the worker, and wait until it has ended."""
    (program,) = stage.programs
    program.ask_to_end()
    stage.until(lambda: not program.runs, "the worker ends after SIGTERM", GRACE + PATIENCE)


@_scene("after SIGTERM the worker lets a short run end, and ends")
def stop(stage: Stage) -> None:
    job_id = stage.enqueue("work", GRACE / 4)
    stage.begun(job_id)
    _end_gently(stage)
    expect(
        (stage.ended(job_id, 1).result, len(stage.lines(job_id))), (1, 2), "the result, and the lines of its handler"
    )


@_scene("a run that takes longer than the grace is handed back: it begins elsewhere at once, and that costs no attempt")
def stop_long(stage: Stage) -> None:
    job_id = stage.enqueue("work", _LONG)
    stage.begun(job_id)
    _end_gently(stage)
    stage.start()
    stage.begun(job_id, 2)
    expect(stage.lines(job_id, "begin"), [("begin", 1), ("begin", 1)], "the runs")
    stage.cancel(job_id)
    stage.ended(job_id)


@_scene("a job that must not run twice is dead when the worker is stopped in its only attempt")
def stop_only_attempt(stage: Stage) -> None:
    job_id = stage.enqueue("work", _LONG, retry=_ONCE)
    stage.begun(job_id)
    _end_gently(stage)
    stage.dead(job_id)


def _recovery(stage: Stage) -> float:
    """Return the seconds within which the jobs of a dead worker start elsewhere."""
    return 3 * stage.lease + PATIENCE


@_scene("the job of a worker that was killed starts again, in its next attempt")
def kill(stage: Stage) -> None:
    job_id = stage.enqueue("work", _LONG)
    stage.begun(job_id)
    stage.kill()
    stage.start()
    status = stage.ended(job_id, _recovery(stage))
    expect((status.outcome, status.result), ("done", 2), "outcome and result")
    expect(stage.lines(job_id), [("begin", 1), ("begin", 2), ("end", 2)], "the runs")


@_scene("a job with one attempt does not start again when its worker was killed")
def kill_only_attempt(stage: Stage) -> None:
    job_id = stage.enqueue("work", _LONG, retry=_ONCE)
    stage.begun(job_id)
    stage.kill()
    stage.start()
    stage.dead(job_id, "its worker died or hung", within=_recovery(stage))
    expect(stage.lines(job_id), [("begin", 1)], "the runs")


@_scene("a job that ends its worker's process each time is dead after its attempts")
def exit_(stage: Stage) -> None:
    job_id = stage.enqueue("exit", retry=RetryFields(attempts=2, interval=0, jitter=0))

    def look() -> JobStatus | None:
        stage.keep_running()
        found = stage.status(job_id)
        return found if found is not None and found.outcome is not None else None

    status = stage.until(look, f"{job_id} ends", 2 * _recovery(stage))
    expect(status.outcome, "dead", "the outcome")
    require(len(stage.lines(job_id)) <= 2, f"it began {len(stage.lines(job_id))} times")
    stage.keep_running()
    _same(stage, "still there")


@_scene("a worker that was frozen for longer than its lease cannot end the run that it lost, and goes on")
def frozen(stage: Stage) -> None:
    job_id = stage.enqueue("work", 2 * stage.lease)
    stage.begun(job_id)
    (first,) = stage.programs
    first.signal(signal.SIGSTOP)
    second = stage.start()
    status = stage.ended(job_id, _recovery(stage))
    expect((status.outcome, status.result), ("done", 2), "outcome and result")
    first.signal(signal.SIGCONT)
    other = stage.enqueue("work", 2 * stage.lease)  # by now, the first has tried to end its run
    stage.ended(other, _recovery(stage))
    now = stage.status(job_id)
    expect((now and now.outcome, now and now.result), ("done", 2), "outcome and result after the first went on")
    require(first.runs, "the frozen worker has ended")
    second.signal(signal.SIGKILL)
    stage.programs.remove(second)
    expect(stage.ended(stage.enqueue("echo", 1), _recovery(stage)).result, 1, "the result of the next job")


@_scene("a worker that was frozen until its run had started elsewhere stops the handler")
def lost(stage: Stage) -> None:
    job_id = stage.enqueue("work", _LONG)
    stage.begun(job_id)
    (first,) = stage.programs
    first.signal(signal.SIGSTOP)
    second = stage.start()
    expect(stage.ended(job_id, _recovery(stage)).result, 2, "the attempt that is done")
    first.signal(signal.SIGCONT)
    stage.until(lambda: ("stop", 1) in stage.lines(job_id), "the handler of the first attempt is told to stop")
    second.signal(signal.SIGKILL)
    stage.programs.remove(second)


@_scene("two workers share the queue, and each job runs once")
def shared(stage: Stage) -> None:
    second = stage.start()
    ids = [stage.enqueue("work", 0.05) for _ in range(60)]
    expect({stage.ended(job_id).outcome for job_id in ids}, {"done"}, "their outcomes")
    expect([job_id for job_id in ids if len(stage.lines(job_id)) != 2], [], "the jobs that ran more than once")
    second.signal(signal.SIGKILL)
    stage.programs.remove(second)


@_scene("under kills of the worker each job is done, and only runs that were cut short are repeated")
def kills(stage: Stage) -> None:
    ids = [stage.enqueue("work", 0.3, retry=RetryFields(attempts=20)) for _ in range(30)]
    for count in range(1, 5):
        stage.until(
            lambda: sum(len(stage.lines(job_id, "end")) for job_id in ids) >= 5 * count,  # noqa: B023 - called at once
            f"{5 * count} of 30 jobs end", _recovery(stage),
        )  # fmt: skip
        stage.kill()
        stage.start()
    expect({stage.ended(job_id, _recovery(stage)).outcome for job_id in ids}, {"done"}, "their outcomes")
    twice = [job_id for job_id in ids if len(stage.lines(job_id, "end")) > 1]
    require(len(twice) <= 4 * SLOTS, f"{len(twice)} jobs ran to their end twice, and 4 kills can cause {4 * SLOTS}")


# Failures of the API and of Redis.


@_scene("a run ends although the API was killed and started again meanwhile")
def api_restart(stage: Stage) -> None:
    job_id = stage.enqueue("work", stage.lease / 4)
    stage.begun(job_id)
    stage.kill_api()
    time.sleep(stage.lease / 4)
    stage.start_api()
    status = stage.ended(job_id, _recovery(stage))
    expect(status.outcome, "done", "the outcome")
    expect(stage.lines(job_id, "begin")[:1], [("begin", 1)], "its first run")
    _same(stage, "after the restart")


@_scene("jobs run again after Redis was restarted, without help")
def redis_restart(stage: Stage) -> None:
    job_id = stage.enqueue("work", 0, delay=2)
    stage.redis.restart()
    expect(stage.ended(job_id, _recovery(stage)).outcome, "done", "the outcome")
    _same(stage, "after the restart")
