"""The commands of the ledger as processes and at a prompt, its page for Prometheus, and the doctor's checks of it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from evsched import App, process_events
from evsched.config import Config
from evsched.diagnostics import ledger_checks
from evsched.events import Events
from evsched.jobs.job import Buried
from evsched.ledger.database import Database
from evsched.ledger.relay import Service
from evsched.runtime.loops import Runtime
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender, SyncSender
from tests.ledger.conftest import Running
from tests.support.cli import Cli, Log, terminate
from tests.support.postgres import Postgres
from tests.support.recorder import Recorder
from tests.support.web import get

CONF = Path(__file__).parents[2] / "redis.conf"
NO_PSYCOPG = "import sys\nsys.modules['psycopg'] = None\n"


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path, ledger_url: str) -> Cli:
    cli = Cli(server.url, tmp_path)
    cli.environment["EVSCHED_LEDGER_URL"] = ledger_url
    return cli


def kill(cli: Cli, queue: str, job: str) -> None:
    """Have a scheduled job run now, and give it up."""
    store, sender = Store(queue), SyncSender(cli.environment["EVSCHED_URL"])
    sender.send(store.reschedule(job, 0.0))
    sender.send(store.dispatch(limit=100, cap=1000))
    (run,) = sender.send(store.start("w", (), hold=9, lease=15)).jobs
    sender.send(store.bury("w", [(run, Buried("x", False))]))
    sender.close()


def insert(url: str, queue: str, *ids: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for job_id in ids:
            connection.execute(
                "INSERT INTO evsched_job (queue, id, payload, due) VALUES (%s, %s, '{\"task\":\"t\"}', 'infinity')",
                [queue, job_id],
            )


@pytest.mark.extra
async def test_a_relay_under_its_own_user_serves_its_page(
    own: EmbeddedRedis, cli: Cli, queue: str, ledger_url: str, client: Any
) -> None:
    (rules,) = re.findall(r"^# user ledger (.*)$", CONF.read_text(), re.MULTILINE)
    client.execute_command("ACL", "SETUSER", "ledger", *rules.split())
    cli.environment["EVSCHED_URL"] = own.url.replace("redis://", "redis://ledger:change-me@")
    insert(ledger_url, queue, "a", "b")
    child = cli.start("ledger", "run", "--metrics-port", "0")
    url = Log(child).until("Listening")["url"]
    page, sender = "", SyncSender(own.url)
    while f'evsched_ledger_rows_scheduled_total{{kind="new",queue="{queue}"}} 2.0' not in page:
        _, page = await get(f"{url}/metrics")
    while "evsched_ledger_waiting_rows 0.0" not in page:
        _, page = await get(f"{url}/metrics")  # each answer asks the database, before it counts what was scheduled
    assert "evsched_ledger_up 1.0" in page
    assert (await get(f"{url}/readyz"))[0] == 200
    assert sender.send(Store(queue).cancel("a")).place == "schedule"
    while f'evsched_ledger_ends_written_total{{queue="{queue}"}} 1.0' not in page:
        _, page = await get(f"{url}/metrics")
    sender.close()
    assert terminate(child) == 0
    assert client.execute_command("ACL", "LOG") == []


async def test_status_counts_waiting_and_ended_rows(
    relaying: Running, cli: Cli, queue: str, ledger_url: str, raw: Any
) -> None:
    insert(ledger_url, queue, "a", "b")
    shown = cli.json("ledger", "status")
    assert (shown["epoch"], shown["states"], shown["waiting"]["rows"]) == ("", {"open": 2}, 2)
    assert not raw.exists("evsched:{}:epoch"), "to look changes nothing"
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled, lambda event: event.count == 2)
        found = await recorder.wait(process_events.EpochFound)
        while not (await asyncio.to_thread(cli.json, "ledger", "status"))["compared"]:
            pass  # a relay looks at Redis's jobs beside its other work
    cli.run("cancel", "a", "--queue", queue)
    shown = cli.json("ledger", "status")
    assert (shown["epoch"], shown["waiting"]["rows"], shown["unwritten"]) == (found.epoch, 0, {queue: 1})
    assert "rows open" in cli.run("ledger", "status").stdout
    raw.flushall()
    assert "its data is lost" in cli.run("ledger", "status").stdout


async def test_rows_wait_since_their_insert_or_since_a_relay_found_the_loss(
    relaying: Running, cli: Cli, queue: str, ledger_url: str, raw: Any
) -> None:
    def change(columns: str) -> None:
        with psycopg.connect(ledger_url, autocommit=True) as connection:
            connection.execute(f"UPDATE evsched_job SET {columns}".encode())

    insert(ledger_url, queue, "a", "b")
    change("created = now() - interval '20 days'")
    assert cli.json("ledger", "status")["waiting"]["seconds"] > 86400
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled, lambda event: event.count == 2)
    change("scheduled_at = created")
    raw.flushall()
    assert cli.json("ledger", "status")["waiting"] == {"rows": 2, "seconds": 0.0}
    async with relaying(critical_only=1) as recorder:
        await recorder.wait(process_events.EpochFound)
    now = cli.json("ledger", "status")["waiting"]
    assert (now["rows"], 0 < now["seconds"] < 3600) == (2, True)
    change("created = 'infinity', scheduled_at = NULL")
    assert cli.json("ledger", "status")["waiting"] == {"rows": 2, "seconds": 0.0}


async def test_long_open_transaction_does_not_count_as_a_waiting_row(
    relaying: Running, config: Config, queue: str, ledger_url: str, server: EmbeddedRedis
) -> None:
    sender = BatchingSender(server.url)
    service = Service(Runtime(config, sender, Events(Recorder()).emit))
    first = await service.waiting()
    insert(ledger_url, queue, "a")
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute("UPDATE evsched_job SET created = now() - interval '1 day'")
    second = await service.waiting()
    await sender.close()
    assert first == (0, 0.0)
    assert second is not None
    assert (second[0], second[1] < 3600) == (1, True)


@pytest.mark.extra
async def test_waiting_rows_are_counted_while_redis_is_down(
    own: EmbeddedRedis, cli: Cli, queue: str, ledger_url: str
) -> None:
    cli.environment["EVSCHED_URL"] = own.url
    insert(ledger_url, queue, "before")
    child = cli.start("ledger", "run", "--metrics-port", "0")
    log = Log(child)
    url, page = log.until("Listening")["url"], ""
    while f'evsched_ledger_rows_scheduled_total{{kind="new",queue="{queue}"}} 1.0' not in page:
        _, page = await get(f"{url}/metrics")
    own.stop()
    log.until("RedisDown")
    insert(ledger_url, queue, "a", "b")
    _, page = await get(f"{url}/metrics")
    assert "evsched_ledger_waiting_rows 2.0" in page
    shown = cli.json("ledger", "status")
    assert (shown["states"], shown["waiting"]["rows"], shown["waiting"]["seconds"] > 0) == ({"open": 3}, 2, True)
    assert "connecting to" in shown["away"]
    assert "Redis is down" in cli.run("ledger", "status").stdout
    own.start()
    while shown["away"] or shown["waiting"]["rows"]:
        shown = cli.json("ledger", "status")
    assert terminate(child) == 0


async def test_doctor_finds_jobs_missing_in_redis_and_undelivered_ends(
    relaying: Running, cli: Cli, queue: str, ledger_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_checks, "_AGAIN", 0.0)
    insert(ledger_url, queue, "fine", "gone", "other", "ended", "just-ended")
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled, lambda event: event.count == 5)
    root = f"evsched:{{{queue}}}:"
    raw.zrem(f"{root}schedule", "gone", "other", "ended", "just-ended")
    raw.delete(f"{root}job:gone", f"{root}job:other")
    raw.hset(f"{root}job:ended", mapping={"finished": "5", "outcome": "done"})
    raw.hset(f"{root}job:just-ended", mapping={"finished": f"{raw.time()[0]}", "outcome": "done"})
    sender = SyncSender(cli.environment["EVSCHED_URL"])
    sender.send(Store(queue).enqueue([New("other", b'{"task":"t"}', due=4e9)]))

    def findings(*words: str) -> set[tuple[str, str, bool]]:
        done = cli.run("doctor", "--queue", queue, "--json", *words)
        found = [one for one in json.loads(done.stdout) if one["check"] in ("ledger-lost", "ledger-open")]
        return {(one["check"], one["where"].rpartition(" ")[2], one["repaired"]) for one in found}

    assert findings() == {
        ("ledger-lost", "gone", False),
        ("ledger-lost", "other", False),
        ("ledger-open", "ended", False),
    }
    assert ("ledger-lost", "gone", True) in findings("--repair")
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled, lambda event: event.count == 1)
        assert (await recorder.wait(process_events.RowsRefused)).first.startswith(
            "other: its id belongs to a job in Redis"
        )
    assert findings() == {("ledger-open", "ended", False)}
    sender.close()


@pytest.mark.extra
@pytest.mark.parametrize("command", ["migrate", "run", "status"])
def test_missing_url_or_psycopg_is_reported_in_one_line(cli: Cli, ledger_url: str, command: str) -> None:
    cli.environment["EVSCHED_LEDGER_URL"] = ""
    done = cli.process("ledger", command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "EVSCHED_LEDGER_URL" in done.stderr
    cli.environment["EVSCHED_LEDGER_URL"] = ledger_url
    cli.run_first(NO_PSYCOPG)
    done = cli.process("ledger", command)
    assert done.returncode == 2
    assert done.stderr == "evsched: the ledger needs psycopg: pip install 'evsched[ledger]'\n"


def test_unreachable_database_is_reported_without_its_password(cli: Cli) -> None:
    cli.environment["EVSCHED_LEDGER_URL"] = "postgresql://me:secret@127.0.0.1:1/x"
    done = cli.run("ledger", "migrate")
    assert done.returncode != 0
    assert "127.0.0.1" in done.stderr
    assert "secret" not in done.stderr + done.stdout


UNREADABLE = [
    "mysql://shop:s3cretPW@db/shop",
    "jdbc:postgresql://db/shop?user=shop&password=s3cretPW",
    "jdbc:s3cretPW",
    "postgresql://shop:x@s3cretPW@127.0.0.1:1/shop",
    "postgresql://shop:12/s3cretPW@127.0.0.1:1/shop",
    "postgresql://shop:s3cretPW/x@127.0.0.1:1/shop",
    "postgresql://shop:%zs3cretPW@127.0.0.1:1/shop",
    "host=127.0.0.1 password=x s3cretPW",
]


@pytest.mark.extra
@pytest.mark.parametrize("url", [*UNREADABLE, "postgresql+psycopg://shop:?s3cretPW#@127.0.0.1:1/shop"])
def test_no_message_has_a_part_of_the_password(cli: Cli, url: str) -> None:
    cli.environment["EVSCHED_LEDGER_URL"] = url
    commands = [cli.run("ledger", "migrate"), cli.run("ledger", "status")]
    if url in UNREADABLE:
        commands.append(cli.process("ledger", "run"))
    for done in commands:
        assert done.returncode != 0
        assert "s3cretPW" not in done.stderr + done.stdout
        assert ("write postgresql://USER:PASSWORD@HOST:PORT/NAME" in done.stderr) == (url in UNREADABLE)
    found = cli.run("doctor", "--queue", "q")
    assert "the ledger was not checked" in found.stdout
    assert "s3cretPW" not in found.stderr + found.stdout


async def test_the_form_of_sqlalchemy_is_accepted(relaying: Running, cli: Cli, queue: str, ledger_url: str) -> None:
    insert(ledger_url, queue, "a")
    url = ledger_url.replace("postgresql://", "postgresql+psycopg://")
    cli.environment["EVSCHED_LEDGER_URL"] = url
    assert cli.json("ledger", "status")["states"] == {"open": 1}
    async with relaying(ledger_url=url) as recorder:
        await recorder.wait(process_events.RowsScheduled)


def test_migrate_may_run_again(cli: Cli, queue: str, ledger_url: str) -> None:
    insert(ledger_url, queue, "a")
    assert cli.run("ledger", "migrate").returncode == 0
    assert cli.json("ledger", "status")["states"] == {"open": 1}


async def test_each_reason_why_the_database_does_not_serve_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    def at_once(_: int) -> float:
        return 0.0

    monkeypatch.setattr("evsched.ledger.database.reconnect_delay", at_once)
    database = Database("", "relay", Events(recorder).emit)
    for reason in ("closed", "closed", "starting up", "closed"):
        async with database:
            raise psycopg.OperationalError(reason)
    assert [one.reason for one in recorder.of(process_events.LedgerDown)] == ["closed", "starting up"]
    assert database.reason == "closed"
    async with database:
        pass
    assert len(recorder.of(process_events.LedgerUp)) == 1
    async with database:
        raise psycopg.OperationalError("closed")
    assert len(recorder.of(process_events.LedgerDown)) == 3


@pytest.mark.extra
async def test_a_relay_without_its_database_is_not_ready_and_says_why(
    cli: Cli, ledger_url: str, postgres: Postgres
) -> None:
    child = cli.start("ledger", "run", "--metrics-port", "0")
    url = Log(child).until("Listening")["url"]
    while (await get(f"{url}/readyz"))[0] != 200:
        pass
    name = str(conninfo_to_dict(ledger_url)["dbname"])
    postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    second = cli.start("ledger", "run", "--metrics-port", "0")
    started_later = Log(second).until("Listening")["url"]
    assert (await get(f"{started_later}/readyz"))[0] == 503
    assert terminate(second) == 0
    postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
    status, why = 200, ""
    while status == 200:
        status, why = await get(f"{url}/readyz")
    assert "the database of the ledger does not serve" in why
    assert "Redis" not in why
    assert terminate(child) == 0


RIGHTS = re.compile(r"```sql\n(GRANT.*?)```", re.DOTALL)


async def test_the_rights_in_the_docs_are_enough(
    relaying: Running, cli: Cli, app: App, queue: str, ledger_url: str, postgres: Postgres
) -> None:
    @app.task
    async def note(n: int) -> None: ...

    shop, relay = f"shop_{queue[-6:]}", f"relay_{queue[-6:]}"
    (rights,) = RIGHTS.findall((Path(__file__).parents[2] / "docs" / "ledger.md").read_text())
    for user in (shop, relay):
        postgres.execute(f"CREATE ROLE {user} LOGIN")
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(rights.replace("TO shop", f"TO {shop}").replace("TO relay", f"TO {relay}"))
    as_shop, as_relay = (ledger_url.replace("evsched@", f"{user}@") for user in (shop, relay))
    with psycopg.connect(as_shop) as connection:
        for _ in range(2):
            note.using(id="a", on_conflict="keep", delay=3600).enqueue_in_sync(connection, 1)
        connection.execute(
            "INSERT INTO evsched_recurrence (queue, name, rule, payload) VALUES (%s, 'r', '@daily', %s) "
            "ON CONFLICT (queue, name) DO UPDATE SET removed = false",
            [queue, '{"task":"t"}'],
        )
    sender = SyncSender(cli.environment["EVSCHED_URL"])
    async with relaying(ledger_url=as_relay) as recorder:
        await recorder.wait(process_events.RowsScheduled)
        await recorder.wait(process_events.RowsDeclared)
        sender.send(Store(queue).cancel("a"))
        await recorder.wait(process_events.EndsWritten)
        with psycopg.connect(as_shop) as connection:
            connection.execute("UPDATE evsched_recurrence SET removed = true")
        await recorder.until(lambda: len(recorder.of(process_events.RowsDeclared)) == 2)
    sender.close()
    with psycopg.connect(as_shop) as connection:
        rows = connection.execute("SELECT state, reason FROM evsched_job").fetchall()
        assert rows == [("cancelled", "cancelled while it waited")]
        note.using(id="a").enqueue_in_sync(connection, 1)
    cli.environment["EVSCHED_LEDGER_URL"] = as_relay
    assert cli.json("ledger", "status")["states"] == {"open": 1}
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {shop}, {relay}".encode())
    for user in (shop, relay):
        postgres.execute(f"DROP ROLE {user}")


def relay_findings(cli: Cli, queue: str) -> dict[str, dict[str, Any]]:
    found = json.loads(cli.run("doctor", "--queue", queue, "--json").stdout)
    return {one["check"]: one for one in found if one["check"] in ("ledger-no-relay", "ledger-redis", "ledger-wait")}


async def test_the_doctor_says_that_no_relay_is_connected_and_that_rows_wait(
    relaying: Running, cli: Cli, queue: str, ledger_url: str
) -> None:
    assert relay_findings(cli, queue)["ledger-no-relay"]["level"] == "warning"
    insert(ledger_url, queue, "a", "b")
    found = relay_findings(cli, queue)["ledger-no-relay"]
    assert (found["level"], found["what"][-12:], found["mend"][-18:]) == ("fault", "scheduled: 2", "evsched ledger run")
    assert "none is connected" in cli.run("ledger", "status").stdout
    async with relaying(critical_only=1) as recorder:
        await recorder.wait(process_events.EpochFound)
        assert relay_findings(cli, queue) == {}
        with psycopg.connect(ledger_url, autocommit=True) as connection:
            connection.execute("UPDATE evsched_job SET created = now() - interval '100 s'")
        assert "open rows wait to be scheduled: 2" in relay_findings(cli, queue)["ledger-wait"]["what"]
        assert cli.json("ledger", "status")["relays"] == 1


async def test_status_and_the_doctor_say_that_relays_use_several_redises(
    relaying: Running, cli: Cli, queue: str, own: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relaying(url=own.url) as other:
        await other.wait(process_events.EpochFound)
        assert "none of them serves this Redis" in relay_findings(cli, queue)["ledger-redis"]["what"]
        async with relaying() as recorder:
            await recorder.wait(process_events.EpochFound)
            assert "use 2 Redises" in relay_findings(cli, queue)["ledger-redis"]["what"]
            shown = cli.json("ledger", "status")
            assert (shown["relays"], shown["redises"]) == (2, 2)
            assert "2, of 2 Redises" in cli.run("ledger", "status").stdout


@pytest.mark.extra
async def test_a_relay_that_waits_for_a_locked_table_says_so(cli: Cli, queue: str, ledger_url: str) -> None:
    child = cli.start("ledger", "run", "--metrics-port", "0")
    log = Log(child)
    url = log.until("Listening")["url"]
    while (await get(f"{url}/readyz"))[0] != 200:
        pass
    with psycopg.connect(ledger_url) as connection:
        connection.execute("LOCK TABLE evsched_job IN ACCESS EXCLUSIVE MODE")
        with psycopg.connect(ledger_url, autocommit=True) as other:
            other.execute("NOTIFY evsched_ledger")
        assert "pg_locks" in log.until("LedgerDown")["reason"]
        assert "pg_locks" in (await get(f"{url}/readyz"))[1]
        assert "evsched_ledger_up 0.0" in (await get(f"{url}/metrics"))[1]
        assert "pg_locks" in cli.run("ledger", "status").stderr
    log.until("LedgerUp")
    while (await get(f"{url}/readyz"))[0] != 200:
        pass
    assert terminate(child) == 0


async def test_the_doctor_names_the_oldest_transaction(
    ledger_url: str, cli: Cli, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[str]:
        shown = json.loads(cli.run("doctor", "--queue", queue, "--json").stdout)
        return [one["what"] for one in shown if one["check"] == "ledger-transaction"]

    with psycopg.connect(ledger_url, application_name="dump") as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        assert found() == []
        monkeypatch.setattr(ledger_checks, "_OLD", 0.0)
        (what,) = found()
        assert f"pid {old.info.backend_pid}, dump, idle in transaction" in what
    assert found() == []


async def test_dead_jobs_that_redis_has_lost_are_revived_by_the_ledger(
    relaying: Running, cli: Cli, queue: str, ledger_url: str, raw: Any
) -> None:
    insert(ledger_url, queue, "a", "b", "c", "open")
    by_ledger = "revived by the ledger, because Redis does not have them: a relay schedules them\n"
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled, lambda event: event.count == 4)
        for job in ("a", "b", "c"):
            kill(cli, queue, job)
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 3)
    assert cli.json("ledger", "status")["lost_dead"] == 0
    raw.flushall()
    assert cli.json("ledger", "status")["lost_dead"] == 3
    assert "3: evsched dead revive" in cli.run("ledger", "status").stdout
    assert "3 more are dead in the ledger" in cli.run("dead", "--queue", queue).stderr
    done = cli.run("dead", "revive", "a")
    assert (done.returncode, done.stdout) == (0, f"1 {by_ledger}")
    done = cli.run("dead", "revive", "--all", "--dry-run", "--queue", queue)
    would = "2 would be revived by the ledger, because Redis does not have them"
    assert (done.returncode, done.stdout) == (0, f"0 would be revived\n{would}\n")
    done = cli.run("dead", "revive", "--all", "--dry-run", "--json", "--queue", queue)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert done.stderr.endswith(f"evsched: {would}\n")
    done = cli.run("dead", "revive", "--all", "--queue", queue)
    assert (done.returncode, done.stdout) == (0, f"0 revived\n2 {by_ledger}")
    assert cli.run("dead", "revive", "open", "--queue", queue).returncode == 1
    async with relaying() as recorder:
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.RowsScheduled)) == 4)
    assert sorted(raw.zrange(f"evsched:{{{queue}}}:schedule", 0, -1)) == [b"a", b"b", b"c", b"open"]


def test_without_its_database_dead_jobs_of_redis_are_revived(cli: Cli, queue: str) -> None:
    cli.environment["EVSCHED_LEDGER_URL"] = "postgresql://nobody@127.0.0.1:1/nothing"
    cli.run("enqueue", "t", "--id", "a", "--queue", queue, "--in", "1h")
    kill(cli, queue, "a")
    done = cli.run("dead", "revive", "a", "--queue", queue)
    assert (done.returncode, done.stdout) == (0, "1 revived\n")
    assert "the ledger was not asked" in done.stderr


def test_unscheduled_row_is_explained_shown_and_cancelled(cli: Cli, queue: str, ledger_url: str) -> None:
    insert(ledger_url, queue, "a")
    done = cli.run("explain", "a")
    assert done.returncode == 0
    assert "a: its row in the ledger has waited for a relay for" in done.stdout
    assert "no relay is connected: start one with `evsched ledger run`" in done.stdout
    shown = cli.json("show", "a", "--queue", queue)
    assert {**shown, "created": 0} == {
        "place": "ledger",
        "id": "a",
        "queue": queue,
        "state": "open",
        "task": "t",
        "due": None,
        "created": 0,
    }
    assert "due\tnever" in cli.run("show", "a").stdout
    done = cli.run("cancel", "a")
    assert (done.returncode, done.stdout.partition(",")[0]) == (0, "a cancelled in the ledger")
    with psycopg.connect(ledger_url) as connection:
        assert connection.execute("SELECT state, cancelled FROM evsched_job").fetchall() == [("open", True)]
    done = cli.run("cancel", "a", "--queue", queue)
    assert done.returncode == 1
    assert "a relay has yet to note" in done.stderr
    assert "never existed" in cli.run("explain", "b").stderr
    insert(ledger_url, f"{queue}-2", "a")
    done = cli.run("explain", "a")
    assert (done.returncode, f"{queue}, {queue}-2 of the ledger: name one by --queue" in done.stderr) == (2, True)


async def test_dead_jobs_that_redis_has_lost_are_explained_shown_and_dropped(
    relaying: Running, cli: Cli, queue: str, ledger_url: str, raw: Any
) -> None:
    insert(ledger_url, queue, "a", "b", "c", "open")
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled, lambda event: event.count == 4)
        for job in ("a", "b", "c"):
            kill(cli, queue, job)
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 3)
    assert cli.json("show", "a", "--queue", queue)["place"] == "dead"
    raw.flushall()
    assert "`evsched dead revive a` schedules it again" in cli.run("explain", "a").stdout
    assert "a relay scheduled its row in the ledger" in cli.run("explain", "open").stdout
    shown = cli.json("show", "a")
    assert (shown["state"], shown["reason"]) == ("dead", "x")
    done = cli.run("cancel", "a", "--queue", queue)
    assert done.returncode == 1
    assert done.stderr.startswith("evsched: a: dead for ")
    by_ledger = "by the ledger, because Redis does not have them\n"
    done = cli.run("dead", "drop", "a")
    assert (done.returncode, done.stdout) == (0, f"1 dropped {by_ledger}")
    assert cli.run("dead", "drop", "open", "--queue", queue).returncode == 1
    done = cli.run("dead", "drop", "--all", "--dry-run", "--queue", queue)
    assert (done.returncode, done.stdout) == (0, f"0 would be dropped\n2 would be dropped {by_ledger}")
    done = cli.run("dead", "drop", "--all", "--queue", queue)
    assert (done.returncode, done.stdout) == (0, f"0 dropped\n2 dropped {by_ledger}")
    assert cli.json("ledger", "status")["states"] == {"dropped": 3, "open": 1}
    assert "dropped from the ledger" in cli.run("explain", "a").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("explain",),
        *(pytest.param(words, marks=pytest.mark.extra) for words in (("show",), ("cancel",), ("dead", "drop"))),
    ],
)
def test_without_its_database_a_command_says_that_the_ledger_was_not_asked(cli: Cli, command: tuple[str, ...]) -> None:
    cli.environment["EVSCHED_LEDGER_URL"] = "postgresql://nobody@127.0.0.1:1/nothing"
    away = cli.run(*command, "a")
    cli.run_first(NO_PSYCOPG)
    missing = cli.process(*command, "a")
    for done, why in ((away, "the database of the ledger: "), (missing, "it needs psycopg: pip install ")):
        assert done.returncode == 1
        asked, answer = done.stderr.splitlines()
        assert asked.startswith(f"evsched: the ledger was not asked for jobs that Redis does not have: {why}")
        assert answer.startswith("evsched: ")
