"""A process serves its metrics, liveness and readiness over HTTP, and an error for any other request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, Retry, events, process_events
from evsched.config import Config
from evsched.telemetry import metrics, process_telemetry
from evsched.telemetry.process_telemetry import DEADLINE, Telemetry
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder
from tests.support.system import System, system
from tests.support.web import ask, get, scrape

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(
        url=server.url,
        queues=(queue,),
        concurrency=10,
        shutdown_grace=0.2,
        kill_grace=0.2,
        metrics_port=0,
        probe_interval=0.2,
        reply_timeout=1.0,
    )


@asynccontextmanager
async def served(running: System) -> AsyncGenerator[str]:
    """Serve the telemetry of a system; yield its URL."""
    async with Telemetry(running.runtime, running.events, "1") as telemetry:
        telemetry.of_dispatcher(running.dispatcher)
        for worker in running.workers:
            telemetry.of_worker(worker)
        yield (await running.recorder.wait(process_events.Listening)).url


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scrape wait for the figures of Redis as long as a test may: on a busy machine they may come late."""
    monkeypatch.setattr(process_telemetry, "DEADLINE", PATIENCE)


@pytest.mark.usefixtures("patient")
async def test_metrics_count_running_and_waiting_jobs(config: Config, app: App, queue: str) -> None:
    gate = asyncio.Event()

    @app.task(retry=Retry(attempts=2, interval=0, jitter=0))
    async def fail() -> None:
        raise ValueError("no")

    @app.task
    async def hold() -> None:
        await gate.wait()

    async with system(config, app, workers=0) as running, served(running) as url:
        running.work()
        await running.recorder.wait(events.WorkerStarted)
        await fail.enqueue()
        await running.recorder.wait(events.JobBuried)
        await hold.enqueue()
        await hold.using(delay=3600).enqueue()
        await running.recorder.wait(events.Started, lambda event: event.tasks == ["hold"])
        figure = await scrape(url)
        assert figure("jobs_started_total", queue=queue, task="fail") == 2
        assert figure("jobs_finished_total", queue=queue, task="fail", outcome="retry") == 1
        assert figure("jobs_finished_total", queue=queue, task="fail", outcome="dead") == 1
        assert figure("jobs_dispatched_total", queue=queue) == 3
        assert (figure("start_lateness_seconds_sum", queue=queue) or -1) > 0
        places = ("schedule", "backlog", "ready", "processing", "dead")
        assert [figure("queue_jobs", queue=queue, place=place) for place in places] == [1, 0, 0, 1, 1]
        assert figure("queue_workers", queue=queue) == 1
        assert figure("redis_up") == 1
        gate.set()
        await running.recorder.wait(events.Completed)


async def test_metrics_count_batches_and_their_jobs_without_ids(config: Config, app: App, queue: str) -> None:
    @app.task
    async def work() -> None: ...

    async with system(config, app) as running, served(running) as url:
        async with app.batch() as batch:
            await batch.add_many(work, [(), ()])
        await batch.wait(PATIENCE)
        left = await app.batch().open()
        await left.add_many(work.using(delay=3600), [(), (), ()])
        figure = await scrape(url)
        assert (figure("queue_batches", queue=queue), figure("queue_batch_jobs", queue=queue)) == (1, 3)
        ended = [figure("batches_ended_total", queue=queue, outcome=one) for one in ("done", "failed", "cancelled")]
        assert ended == [1, 0, 0]


@pytest.mark.usefixtures("patient")
async def test_metrics_show_slots_and_how_long_jobs_have_waited(config: Config, app: App, queue: str) -> None:
    gate = asyncio.Event()

    @app.task
    async def hold() -> None:
        await gate.wait()

    async with system(replace(config, concurrency=2), app) as running, served(running) as url:
        await hold.enqueue_many([()] * 5)
        await running.recorder.until(lambda: sum(len(event.ids) for event in running.recorder.of(events.Started)) == 2)
        figure = await scrape(url)
        assert figure("worker_slots", state="busy") == 2
        assert figure("worker_slots", state="free") == 0
        assert figure("queue_overdue_jobs", queue=queue) == 3
        assert 0 < (figure("queue_overdue_seconds", queue=queue) or 0) < 60
        assert (figure("queue_oldest_ready_seconds", queue=queue) or 0) > 0
        gate.set()


@pytest.mark.usefixtures("patient")
async def test_due_jobs_on_the_schedule_are_overdue_without_a_dispatcher(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    now = float(raw.time()[0])
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"late": now - 76, "later": now - 70, "ahead": now + 3600})
    async with system(config, app, workers=0, dispatch=False) as running, served(running) as url:
        figure = await scrape(url)
    assert figure("queue_overdue_jobs", queue=queue) == 2
    assert 75 < (figure("queue_overdue_seconds", queue=queue) or 0) < 130
    assert abs(figure("redis_clock_ahead_seconds") or 0) < 1
    assert figure("redis_memory_used_ratio") == 0
    assert abs((figure("start_time_seconds") or 0) - now) < 60


@pytest.mark.usefixtures("patient")
async def test_metrics_say_when_recurrences_were_due_and_succeeded(
    config: Config, app: App, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "RECURRENCES", 1)
    root = f"evsched:{{{queue}}}:"
    raw.hset(f"{root}recurrence:r", mapping={"current_due": "100", "last_success": "70.5"})
    raw.hset(f"{root}recurrence:s", mapping={"current_due": "100", "last_success": "70.5"})
    raw.zadd(f"{root}recurrences", {"r": 4e9, "s": 5e9})
    async with system(config, app, workers=0) as running, served(running) as url:
        figure = await scrape(url)
    assert figure("recurrence_last_due_timestamp_seconds", queue=queue, recurrence="r") == 100
    assert figure("recurrence_last_success_timestamp_seconds", queue=queue, recurrence="r") == 70.5
    assert figure("recurrence_last_due_timestamp_seconds", queue=queue, recurrence="s") is None


@pytest.mark.extra
@pytest.mark.usefixtures("patient")
async def test_five_thousand_unknown_tasks_make_only_one_series_for_each_metric(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    @app.task
    async def known() -> None: ...

    many = replace(config, concurrency=250, unknown_task_grace=0.0)
    async with system(many, app, workers=0) as running, served(running) as url:
        running.work()
        members = {f'{{"task":"made-up-{n}","id":"{n}"}}': 0 for n in range(5000)}
        raw.zadd(f"evsched:{{{queue}}}:schedule", members)
        await running.recorder.wait(events.JobBuried, count=5000, limit=60)
        figure = await scrape(url)
        assert figure("jobs_finished_total", queue=queue, task="__other__", outcome="dead") == 5000
        assert figure.labels("jobs_finished_total", "task") == {"known", "__other__"}
        assert len(figure) <= 200


@pytest.mark.usefixtures("patient")
async def test_redis_is_read_once_a_second_however_many_scrape(config: Config, app: App, queue: str, raw: Any) -> None:
    def info_calls() -> int:
        stats = raw.info("commandstats").get("cmdstat_info")
        return stats["calls"] if stats else 0  # without this call of INFO

    # Without loops, which send INFO too when they open a connection again.
    async with system(config, app, workers=0, dispatch=False) as running, served(running) as url:
        before, began = info_calls(), time.monotonic()
        figures = await asyncio.gather(*(scrape(url) for _ in range(20)))
        seconds = int(time.monotonic() - began)
        assert info_calls() - before - 1 <= 1 + seconds < 20  # one is the INFO of the first `info_calls`
        # A scrape that arrives while the figures are read gets the same figures.
        assert {figure("queue_jobs", queue=queue, place="ready") for figure in figures} == {0}


@pytest.mark.one_server
async def test_metrics_show_an_outage_and_its_end(config: Config, app: App, server: EmbeddedRedis, queue: str) -> None:
    async with Proxy(str(server.socket)) as proxy:
        behind = replace(config, url=f"redis://{proxy.host}:{proxy.port}/0")
        async with system(behind, app, dispatch=False) as running, served(running) as url:
            running.dispatch()
            await running.recorder.wait(process_events.NotificationsProven)
            assert await get(f"{url}/readyz") == (200, "ok\n")
            proxy.swallow()
            await running.recorder.wait(process_events.RedisDown)
            status, why = await get(f"{url}/readyz")
            assert status == 503
            assert why.startswith(("Redis does not answer", "the subscription is lost"))
            assert await get(f"{url}/healthz") == (200, "ok\n")
            figure = await scrape(url)
            assert figure("redis_up") == 0
            assert figure("queue_jobs", queue=queue, place="ready") is None  # an unknown figure is left out
            assert (figure("redis_errors_total", kind="timeout") or 0) > 0
            proxy.heal()
            proxy.reset()
            await running.recorder.wait(process_events.RedisUp)
            async with asyncio.timeout(PATIENCE):
                while (await scrape(url))("redis_up") != 1:
                    pass  # the loops notice it one after the other, and the scrape's own connection does too


@pytest.mark.extra
@pytest.mark.one_server
async def test_scrape_and_probe_are_answered_within_a_second_without_redis(
    config: Config, app: App, server: EmbeddedRedis, queue: str
) -> None:
    async with Proxy(str(server.socket)) as proxy:
        patient = replace(config, url=f"redis://{proxy.host}:{proxy.port}/0", reply_timeout=4.0, probe_interval=4.0)
        async with system(patient, app, workers=0) as running, served(running) as url:
            figure = await scrape(url)
            assert figure("redis_up") == 1
            assert figure("queue_jobs", queue=queue, place="ready") == 0
            proxy.swallow()
            while figure("redis_up") == 1:  # figures are reused for a second
                figure = await scrape(url)  # it is answered although Redis is still cut off
            assert figure("queue_jobs", queue=queue, place="ready") is None
            assert figure("wakeups_total", reason="reconnect") is not None  # the process counts these itself
            assert DEADLINE < 1
            assert await get(f"{url}/readyz") == (503, "Redis does not answer within 0.75 s\n")
            proxy.heal()
            proxy.reset()
            await running.recorder.wait(process_events.Subscribed, lambda event: event.again)
            while figure("redis_up") == 0:
                figure = await scrape(url)


async def test_a_loop_that_hangs_is_neither_alive_nor_ready(
    config: Config, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with system(config, app, dispatch=False) as running, served(running) as url:
        running.dispatch()
        await running.recorder.wait(process_events.NotificationsProven)
        assert await get(f"{url}/healthz") == (200, "ok\n")
        for pulse in (running.dispatcher.pulses[4], running.dispatcher.pulses[2], running.workers[0].pulses[0]):
            with monkeypatch.context() as hung:
                pulse.expect(-60)  # as if the loop had not run for that long
                for method in ("expect", "rest"):  # the loop still runs: ignore what it reports to its pulse
                    hung.setattr(pulse, method, lambda within=0.0: None)
                for path in ("healthz", "readyz"):
                    status, why = await get(f"{url}/{path}")
                    assert (status, why.startswith(f"the {pulse.who} loop has not run for")) == (503, True)
            pulse.rest()
        assert await get(f"{url}/readyz") == (200, "ok\n")


@pytest.mark.one_server
async def test_process_that_serves_no_queue_is_not_ready(config: Config, app: App, queue: str, raw: Any) -> None:
    async with system(config, app, dispatch=False) as running, served(running) as url:
        running.dispatch()
        await running.recorder.wait(process_events.NotificationsProven)
        raw.set(f"evsched:{{{queue}}}:backlog", "a string")
        raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 0})
        await running.recorder.wait(process_events.CallRefused)
        status, why = await get(f"{url}/readyz")
        assert (status, "WRONGTYPE" in why) == (503, True)
        raw.delete(f"evsched:{{{queue}}}:backlog")
        await running.recorder.wait(process_events.CallAccepted)
        assert await get(f"{url}/readyz") == (200, "ok\n")


async def test_a_dispatcher_whose_redis_became_a_replica_is_not_ready(app: App) -> None:
    """An idle dispatcher sends no write that Redis could refuse, so the probe asks Redis for its role."""
    with EmbeddedRedis() as server, plain_client(server.url) as raw:
        config = Config(url=server.url, queues=("q",), probe_interval=3600, metrics_port=0)
        async with system(config, app, workers=0, dispatch=False) as running, served(running) as url:
            running.dispatch()
            await running.recorder.wait(process_events.NotificationsProven)
            assert await get(f"{url}/readyz") == (200, "ok\n")
            raw.replicaof("127.0.0.1", "1")
            status, why = await get(f"{url}/readyz")
            assert (status, "is a replica" in why) == (503, True)
            raw.replicaof("NO", "ONE")
            assert await get(f"{url}/readyz") == (200, "ok\n")


async def test_a_worker_that_waits_at_its_start_is_not_ready(config: Config, app: App) -> None:
    with EmbeddedRedis(replicaof="127.0.0.1 1") as replica:  # it answers, but accepts no writes
        running = System(replace(config, url=replica.url), app, Recorder())
        try:
            worker = running.work()
            async with Telemetry(running.runtime, running.events, "1") as telemetry:
                telemetry.of_worker(worker)
                url = (await running.recorder.wait(process_events.Listening)).url
                await running.recorder.wait(
                    process_events.RedisDown, lambda event: event.who == f"worker, queue {app.queue}"
                )
                status, why = await get(f"{url}/readyz")
                assert (status, "is a replica" in why) == (503, True)
        finally:
            await running.stop()


async def test_a_dispatcher_that_receives_no_events_is_not_ready(config: Config, app: App) -> None:
    # Its user may not set the flags.
    user = "default on nopass ~* &* +@all -config|set"
    with EmbeddedRedis(notify_keyspace_events="", user=user) as private:
        without_events = replace(config, url=private.url)
        async with system(without_events, app, workers=0, dispatch=False) as running, served(running) as url:
            running.dispatch()
            await running.recorder.wait(process_events.NotificationsMissing)
            status, why = await get(f"{url}/readyz")
            assert (status, "CONFIG SET notify-keyspace-events" in why) == (503, True)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /secret HTTP/1.1\r\n\r\n", b"404"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 10000 + b"\r\n\r\n", b"431"),
        (b"GET /healthz?a=b HTTP/1.0\r\n\r\n", b"200"),
    ],
)
async def test_metrics_server_answers_only_its_own_pages(
    config: Config, app: App, request_: bytes, status: bytes
) -> None:
    async with system(config, app, workers=0) as running, served(running) as url:
        assert (await ask(url, request_)).split(b" ")[1] == status


async def test_a_reply_to_head_has_no_body_and_openmetrics_is_supported(config: Config, app: App) -> None:
    async with system(config, app, workers=0) as running, served(running) as url:
        head = await ask(url, b"HEAD /healthz HTTP/1.1\r\n\r\n")
        assert head.endswith(b"\r\n\r\n")
        page = await ask(url, b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n")
        assert b"application/openmetrics-text" in page
        assert page.endswith(b"# EOF\n")


async def test_metrics_server_binds_to_localhost_by_default(config: Config, app: App) -> None:
    async with system(config, app, workers=0) as running, served(running) as url:
        assert url.startswith("http://127.0.0.1:")


async def test_without_a_port_nothing_is_counted_or_served(config: Config, app: App) -> None:
    quiet = replace(config, metrics_port=None)
    async with system(quiet, app, workers=0) as running, Telemetry(running.runtime, running.events, "1"):
        assert running.recorder.of(process_events.Listening) == []
