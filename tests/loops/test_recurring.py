"""Recurrences with dispatchers and workers: declared, changed, removed, missed and overlapping."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched import App, ConfigError, Retry, current_job, events, process_events
from evsched.config import Config
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.store import Store
from tests.support.patience import PATIENCE
from tests.support.system import system

ONCE = Retry(attempts=1, interval=0, jitter=0)
PAYLOAD = b'{"task":"tick"}'


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def app(queue: str, ran: list[str]) -> App:
    app = App(queue=queue)

    @app.task(retry=ONCE)
    async def tick() -> None:
        ran.append(current_job().id)

    return app


def root(queue: str) -> str:
    return f"evsched:{{{queue}}}:"


async def test_declared_recurrence_runs_on_time_and_counts_its_occurrences(
    config: Config, queue: str, raw: Any
) -> None:
    app, moments = App(queue=queue), list[tuple[str, float]]()

    @app.recurring(every=1)
    @app.task(retry=ONCE)
    async def tick() -> None:
        moments.append((current_job().id, current_job().lateness))

    async with system(config, app) as running:
        await running.recorder.until(lambda: len(moments) >= 3)
    record = raw.hgetall(f"{root(queue)}recurrence:tick")
    seconds = [int(job_id.removeprefix("tick@")) for job_id, _ in moments]
    # Each second has a run, or counts as missed, if the machine was too busy for half of that second.
    missed = int(record.get(b"missed", 0))
    assert seconds == sorted(set(seconds))
    assert len(seconds) <= seconds[-1] - seconds[0] + 1 <= len(seconds) + missed
    assert all(0 <= late < PATIENCE for _, late in moments)
    assert record[b"last_outcome"] == b"done"
    assert int(record[b"runs"]) >= 2


async def test_recurrences_in_redis_follow_the_code(config: Config, queue: str, raw: Any) -> None:
    def app_with(*rules: str) -> App:
        app = App(queue=queue, name="reports")

        @app.task(retry=ONCE)
        async def report() -> None: ...

        for n, rule in enumerate(rules):
            app.recurring(rule, name=f"r{n}", zone="Europe/Berlin")(report)
        return app

    async def start(app: App) -> list[tuple[str, str]]:
        async with system(config, app, dispatch=False) as running:
            return [(event.name, event.done) for event in running.recorder.of(events.RecurrenceDeclared)]

    raw.hset(f"{root(queue)}recurrence:foreign", mapping={"rule": "0 0 * * *", "payload": PAYLOAD})
    raw.zadd(f"{root(queue)}recurrences", {"foreign": 0})
    assert await start(app_with("0 9 * * *", "0 10 * * *")) == [("r0", "made"), ("r1", "made")]
    assert await start(app_with("0 9 * * *", "0 10 * * *")) == []
    assert await start(app_with("0 9 * * *", "5 10 * * *")) == [("r1", "changed")]
    assert await start(app_with("0 9 * * *", "10 10 * * *")) == [("r1", "changed")]
    assert await start(app_with("0 8 * * *")) == [("r0", "changed"), ("r1", "retired")]
    scores = dict(raw.zrange(f"{root(queue)}recurrences", 0, -1, withscores=True))
    assert scores == {b"foreign": 0, b"r0": -1, b"r1": float("inf")}  # 0 and -1: from now on


async def test_any_client_can_declare_a_recurrence(
    config: Config, app: App, queue: str, raw: Any, ran: list[str]
) -> None:
    async with system(config, app) as running:
        raw.hset(f"{root(queue)}recurrence:raw", mapping={"rule": "* * * * * *", "payload": PAYLOAD, "count": 2})
        raw.zadd(f"{root(queue)}recurrences", {"raw": 0})
        await running.recorder.wait(events.Completed, count=2)
        assert raw.zscore(f"{root(queue)}recurrences", "raw") == float("inf")
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"rule": "61 * * * *", "payload": PAYLOAD}, "field 1, the minute, is '61'"),
        ({"rule": "every 1", "payload": "tick"}, "its payload is not valid: JSON is malformed"),
    ],
)
async def test_invalid_record_is_reported_and_other_recurrences_continue(
    config: Config, app: App, queue: str, raw: Any, record: dict[str, str | bytes], why: str
) -> None:
    async with system(config, app) as running:
        raw.hset(f"{root(queue)}recurrence:bad", mapping=record)
        raw.hset(f"{root(queue)}recurrence:good", mapping={"rule": "every 1", "payload": PAYLOAD})
        raw.zadd(f"{root(queue)}recurrences", {"bad": 0, "good": 0})
        broken = await running.recorder.wait(events.RecurrenceBroken)
        assert (broken.name, why in broken.reason) == ("bad", True)
        await running.recorder.wait(events.Completed)
        assert why in raw.hget(f"{root(queue)}recurrence:bad", "reason").decode()
        assert not running.recorder.of(events.JobBuried)


@pytest.mark.parametrize("spoil", ["gone", "a string"])
async def test_recurrence_without_a_record_is_reported_once_and_others_continue(
    config: Config, app: App, queue: str, raw: Any, ran: list[str], spoil: str
) -> None:
    async with system(config, app) as running:
        if spoil != "gone":
            raw.set(f"{root(queue)}recurrence:bad", spoil)
        raw.hset(f"{root(queue)}recurrence:good", mapping={"rule": "every 1", "payload": PAYLOAD})
        raw.zadd(f"{root(queue)}recurrences", {"bad": 0, "good": 0})
        await running.recorder.wait(events.Completed, count=2)
        (broken,) = running.recorder.of(events.RecurrenceBroken)
        assert (broken.name, "its key is not a hash" in broken.reason) == ("bad", True)
        assert not running.recorder.of(process_events.CallRefused)
        # It recurs again when its record is back.
        raw.delete(f"{root(queue)}recurrence:bad")
        raw.hset(f"{root(queue)}recurrence:bad", mapping={"rule": "every 1", "payload": PAYLOAD})
        await running.recorder.until(lambda: any(job.startswith("bad@") for job in ran))


async def test_invalid_count_is_reported_once_and_others_continue(
    config: Config, app: App, queue: str, raw: Any, ran: list[str]
) -> None:
    async with system(config, app) as running:
        every = {"rule": "every 1", "payload": PAYLOAD}
        raw.hset(f"{root(queue)}recurrence:bad", mapping={**every, "count": "abc"})
        raw.hset(f"{root(queue)}recurrence:made", mapping={**every, "made": "0x10"})
        raw.zadd(f"{root(queue)}recurrences", {"bad": 0, "made": 0})
        await running.recorder.wait(events.Completed, count=2)
        (broken,) = running.recorder.of(events.RecurrenceBroken)
        assert (broken.name, "$.count" in broken.reason) == ("bad", True)
        assert raw.zscore(f"{root(queue)}recurrences", "bad") == float("inf")
    assert {job_id.partition("@")[0] for job_id in ran} == {"made"}


@pytest.mark.parametrize(
    ("misfire", "made_up", "missed"), [("skip", 0, 20), ("once", 1, 19), ("all", 20, 0)], ids=["skip", "once", "all"]
)
async def test_twenty_seconds_of_downtime_follow_the_misfire_policy(
    config: Config, app: App, queue: str, raw: Any, ran: list[str], misfire: Any, made_up: int, missed: int
) -> None:
    """The recurrence's next planned time is 20 s ago, as after a downtime of all dispatchers."""
    store = Store(queue)
    declared = Declared(name="t", rule="every 1", payload=PAYLOAD, misfire=misfire, overlap="allow")
    async with system(config, app, dispatch=False) as running:
        await running.sender.send(store.declare(declared))
        now = float(raw.time()[0])
        raw.zadd(f"{root(queue)}recurrences", {"t": now - 20})
        running.dispatch()
        await running.recorder.until(lambda: len([job for job in ran if float(job[2:]) > now]) >= 2)
    late = [job for job in ran if float(job[2:]) < now]
    assert abs(len(late) - made_up) <= 1  # the current second's may count as late or as on time
    # On a machine that is too busy, more are missed, but only occurrences that did not run.
    newer = [int(job[2:]) for job in ran if float(job[2:]) > now]
    stalled = max(newer) - int(now) - len(newer)
    counted = int(raw.hget(f"{root(queue)}recurrence:t", "missed") or 0)
    assert missed - 1 <= counted <= missed + 1 + (0 if misfire == "all" else stalled)
    assert len(set(ran)) == len(ran)


async def test_occurrences_scheduled_before_the_downtime_are_missed_too(
    config: Config, app: App, queue: str, raw: Any, ran: list[str]
) -> None:
    """They are dispatched after the downtime; the policy `once` runs only the newest."""
    store = Store(queue)
    async with system(config, app, dispatch=False) as running:
        await running.sender.send(store.declare(Declared(name="t", rule="every 60", payload=PAYLOAD)))
        now = float(raw.time()[0])
        raw.zadd(f"{root(queue)}recurrences", {"t": now - 240})
        seen = str(int(now - 240)).encode()
        put = [Occurrence(f"t@{int(now) - ago}", now - ago, now - ago, 5.0) for ago in (240, 180, 120)]
        assert await running.sender.send(store.recur("t", seen, put, next_=now + 3600)) is not None
        running.dispatch()
        await running.recorder.wait(events.Completed)
    assert ran == [put[-1].id]
    assert raw.hget(f"{root(queue)}recurrence:t", "missed") == b"2"


@pytest.mark.extra
@pytest.mark.parametrize("overlap", ["allow", "skip", "wait"])
async def test_occurrence_due_during_the_previous_run_follows_the_overlap_policy(
    config: Config, queue: str, raw: Any, overlap: Any
) -> None:
    app, gate, begun = App(queue=queue), asyncio.Event(), list[str]()

    @app.recurring(every=1, overlap=overlap)
    @app.task(retry=ONCE)
    async def slow() -> None:
        begun.append(current_job().id)
        await gate.wait()

    key = f"{root(queue)}recurrence:slow"
    async with system(config, app) as running:
        if overlap == "allow":
            await running.recorder.until(lambda: len(begun) >= 3)
        elif overlap == "skip":
            await running.recorder.wait(events.Missed, count=2)
            assert len(begun) == 1
            assert int(raw.hget(key, "missed")) >= 2
        else:
            await running.recorder.wait(events.Woken, lambda event: event.found > 0, count=1)
            async with asyncio.timeout(PATIENCE):
                while raw.hget(key, "waiting") is None:
                    await asyncio.to_thread(raw.ping)
            assert len(begun) == 1
            waiting = raw.hget(key, "waiting").decode()
            gate.set()
            await running.recorder.until(lambda: waiting in begun)
        gate.set()


async def test_a_pause_ends_at_its_time_and_that_time_itself_is_run(
    config: Config, app: App, queue: str, raw: Any, ran: list[str]
) -> None:
    key = f"{root(queue)}recurrence:t"
    async with system(config, app) as running:
        await running.sender.send(Store(queue).declare(Declared(name="t", rule="every 1", payload=PAYLOAD)))
        await running.recorder.wait(events.Completed)
        until = float(raw.time()[0]) + 3
        earlier = Store(queue).hold("t", True, until=until - 1)
        await running.sender.send_all([earlier, Store(queue).hold("t", True, until=until)])
        before = len(ran)
        over = await running.recorder.wait(events.PauseOver)
        assert (over.name, raw.hexists(key, "paused")) == ("t", False)
        assert float(raw.time()[0]) + raw.time()[1] / 1e6 >= until
        await running.recorder.until(lambda: len(ran) >= before + 2)
    # On a machine that is too busy, the first may be missed, but none is run from the time of the pause.
    assert float(ran[before + 1][2:]) >= until
    assert f"t@{until:.0f}" in ran or int(raw.hget(key, "missed") or 0) > 0


async def test_failures_in_a_row_pause_a_recurrence_as_its_code_declares(config: Config, queue: str, raw: Any) -> None:
    app = App(queue=queue)

    @app.recurring(every=1, pause_after=2)  # one at a time: a third may not run beside the second
    @app.task(retry=ONCE)
    async def broken() -> None:
        raise ValueError("no luck")

    key = f"{root(queue)}recurrence:broken"
    async with system(config, app) as running:
        await running.recorder.wait(events.JobBuried, count=2)
        assert raw.hget(key, "paused_why") == b"2 failures in a row"
        assert raw.zscore(f"{root(queue)}recurrences", "broken") == float("inf")
    assert raw.hget(key, "runs") == raw.hget(key, "failed") == b"2"


@pytest.mark.extra
async def test_recurrence_runs_an_interval_after_each_end(config: Config, queue: str, raw: Any) -> None:
    app, begun, ended = App(queue=queue), list[float](), list[float]()

    def now() -> float:
        seconds, microseconds = raw.time()
        return seconds + microseconds / 1e6

    @app.recurring(every=1, after="end")
    @app.task(retry=ONCE)
    async def slow() -> None:
        begun.append(now())
        if len(begun) < 3:
            while now() < begun[-1] + 1.2:  # longer than the interval
                await asyncio.to_thread(raw.ping)
        ended.append(now())

    async with system(config, app) as running:
        await running.recorder.wait(events.Completed, count=3)
    assert all(1 <= next_ - end < 1 + PATIENCE for end, next_ in zip(ended, begun[1:], strict=False))
    record = raw.hgetall(f"{root(queue)}recurrence:slow")
    assert b"missed" not in record
    assert (record[b"after"], record[b"rule"]) == (b"end", b"every 1")


async def test_a_removed_recurrence_leaves_nothing_on_the_schedule(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app) as running:
        await app.client.declare(queue, Declared(name="t", rule="every 5", payload=PAYLOAD))
        await running.recorder.wait(events.Recurred)
        assert raw.zcard(f"{root(queue)}schedule") > 0
        await app.client.remove(queue, "t")
        assert not raw.exists(f"{root(queue)}schedule", f"{root(queue)}recurrences", f"{root(queue)}recurrence:t")
        assert not list(raw.scan_iter(f"{root(queue)}job:t@*"))


async def test_the_idempotency_key_is_the_same_for_all_attempts_of_an_occurrence(config: Config, queue: str) -> None:
    app, keys = App(queue=queue), list[tuple[str, str]]()

    @app.recurring(every=1, overlap="allow")
    @app.task(retry=Retry(attempts=2, interval=0.01, jitter=0))
    async def flaky() -> None:
        keys.append((current_job().id, current_job().idempotency_key))
        if current_job().attempt == 1:
            raise ValueError("no luck")

    async with system(config, app) as running:
        await running.recorder.until(lambda: 2 <= len({job for job, _ in keys}) < len(keys))
    # Several occurrences ran, at least one of them twice. Each has one key, and no two share a key.
    assert len(set(keys)) == len({job for job, _ in keys}) == len({key for _, key in keys})


def test_interval_shorter_than_the_retries_is_refused_with_both_durations(app: App) -> None:
    async def often() -> None: ...

    task = app.task(retry=Retry(attempts=3, interval=0.2, jitter=0.5))(often)
    with pytest.raises(ConfigError, match=r"recurs after 2 s, and the retries of one occurrence may take 2\.9 s"):
        app.recurring(every=2)(task)
    app.recurring(every=2, overlap="allow")(task)
    app.recurring(every=3, name="slower")(task)
    app.recurring(every=1, name="once")(app.task(name="once", retry=Retry(attempts=1))(often))


async def test_two_dispatchers_run_no_occurrence_twice(config: Config, app: App, queue: str, ran: list[str]) -> None:
    async with system(config, app, dispatch=False) as running:
        for n in range(20):
            declared = Declared(name=f"t{n}", rule="every 1", payload=PAYLOAD, count=3, misfire="all", overlap="allow")
            await running.sender.send(Store(queue).declare(declared))
        async with system(config, App(queue=queue), workers=0), system(config, App(queue=queue), workers=0):
            await running.recorder.until(lambda: len(ran) >= 60)
    assert len(ran) == len(set(ran)) == 60


async def test_simultaneous_events_do_not_delay_the_proof_of_the_subscription(
    config: Config, app: App, queue: str
) -> None:
    async with system(config, app, dispatch=False) as running:
        await running.sender.send(Store(queue).declare(Declared(name="t", rule="every 1", payload=PAYLOAD)))
        running.dispatch()
        await running.recorder.wait(process_events.NotificationsProven)


async def test_dispatcher_reports_a_recurrence_paused_after_failures(config: Config, queue: str, raw: Any) -> None:
    app = App(queue=queue)

    @app.recurring(every=1.0, pause_after=1)
    @app.task(retry=Retry(attempts=1))
    async def fail() -> None:
        raise ValueError("no luck")

    async with system(config, app) as running:
        paused = await running.recorder.wait(events.RecurrencePaused)
        assert (paused.queue, paused.name, paused.why) == (queue, "fail", "1 failure")
        assert raw.zscore(f"evsched:{{{queue}}}:recurrences", "fail") == float("inf")
        assert not raw.exists(f"evsched:{{{queue}}}:newly_paused")
