"""Recurrences that skip the days of a calendar, with a dispatcher."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evsched import App, ConfigError, Declared, Retry, events
from evsched.config import Config
from evsched.store.store import Store
from tests.support.system import System, system

PAYLOAD = b'{"task":"tick"}'
# On a slow machine none is missed, so that only the calendar could make it miss one.
EACH_SECOND = Declared(name="t", rule="every 1", payload=PAYLOAD, skip="holidays", misfire="all", overlap="allow")


@pytest.fixture
def app(queue: str) -> App:
    app = App(queue=queue)

    @app.task(retry=Retry(attempts=1))
    async def tick() -> None: ...

    return app


def days_around(now: float) -> str:
    """Return a calendar that contains today, even around midnight."""
    today = datetime.fromtimestamp(now, UTC).date()
    return f"{today - timedelta(days=1)}..{today + timedelta(days=1)}"


async def set_calendar(running: System, queue: str, days: str) -> None:
    """Do as `evsched calendars set`."""
    await running.sender.send(Store(queue).set_calendar("holidays", days))
    await running.sender.send(Store(queue).replan("t"))


async def next_planned(running: System, queue: str, after: float) -> float:
    """Wait until a dispatcher has moved the recurrence on beyond a moment; return its next planned time."""
    while not (found := await running.sender.send(Store(queue).next_planned("t")) or 0.0) > after:
        pass
    return found


async def test_no_job_is_made_on_a_closed_day_and_a_change_applies_at_once(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    root = f"evsched:{{{queue}}}:"
    async with system(config, app) as running:
        now = float(raw.time()[0])
        await running.sender.send(Store(queue).set_calendar("holidays", days_around(now)))
        await app.client.declare(queue, EACH_SECOND)
        opens = await next_planned(running, queue, now + 86400)
        assert datetime.fromtimestamp(opens, UTC).time().isoformat() == "00:00:00"
        await set_calendar(running, queue, "2020-01-01")
        await running.recorder.wait(events.Completed, count=2)
        await set_calendar(running, queue, days_around(now))
        assert await next_planned(running, queue, now + 86400) == opens
        assert raw.hget(f"{root}recurrence:t", "missed") is None
        assert not raw.zcard(f"{root}schedule")


@pytest.mark.parametrize("spoil", ["not set", "not valid", "of a wrong type"])
async def test_recurrence_without_its_calendar_stops_and_others_continue(
    config: Config, app: App, queue: str, raw: Any, spoil: str
) -> None:
    root = f"evsched:{{{queue}}}:"
    if spoil == "not valid":
        raw.hset(f"{root}calendars", "holidays", "Christmas")
    elif spoil == "of a wrong type":
        raw.set(f"{root}calendars", "x")
    async with system(config, app) as running:
        # As other clients declare it: Python and the command line refuse a calendar that does not exist.
        skips: dict[str, dict[str, str]] = {"t": {"skip": "holidays"}, "other": {}}
        for name, more in skips.items():
            raw.hset(f"{root}recurrence:{name}", mapping={"rule": "every 1", "payload": PAYLOAD, **more})
        raw.zadd(f"{root}recurrences", {"t": 0, "other": 0})
        broken = await running.recorder.wait(events.RecurrenceBroken)
        assert (broken.name, "calendar holidays" in broken.reason) == ("t", True)
        await running.recorder.wait(events.Completed)
        if spoil == "of a wrong type":
            raw.delete(f"{root}calendars")
        await set_calendar(running, queue, "2020-01-01")
        await running.recorder.wait(events.Recurred, lambda event: any(one.startswith("t@") for one in event.ids))
        assert not raw.hexists(f"{root}recurrence:t", "reason")


async def test_a_recurrence_of_a_calendar_that_does_not_exist_is_not_declared(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app, workers=0, dispatch=False):
        with pytest.raises(ConfigError, match="there is no calendar holidays: evsched calendars set"):
            await app.client.declare(queue, EACH_SECOND)
    assert not raw.exists(f"evsched:{{{queue}}}:recurrences")


async def test_pause_ending_on_a_closed_day_resumes_on_the_next_open_day(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app, workers=0) as running:
        now = float(raw.time()[0])
        await running.sender.send(Store(queue).set_calendar("holidays", days_around(now)))
        await app.client.declare(queue, EACH_SECOND)
        await running.sender.send(Store(queue).hold("t", True, until=now - 1))
        await running.recorder.wait(events.PauseOver)
        assert await next_planned(running, queue, 1.0) > now + 86400


async def test_backfill_skips_the_closed_days_of_the_calendar(config: Config, app: App, queue: str) -> None:
    async with system(config, app) as running:
        await running.sender.send(Store(queue).set_calendar("holidays", "2020-12-24..2020-12-26"))
        await app.client.declare(queue, Declared(name="t", rule="@daily", payload=PAYLOAD, skip="holidays"))
        december = datetime(2020, 12, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)
        assert (await app.client.backfill(queue, "t", *december)).requested == 28
