"""`evsched import`: the schedules of the real other schedulers become recurrences and jobs, once."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli

# Warnings of the other schedulers' code are theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

CRONTAB = "MAILTO=root\n*/5 * * * * /bin/a\n@reboot /bin/b\n0 2 * * mon /bin/c\n"


@pytest.fixture
def module(cli: Cli, queue: str, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Yield the name of a module that a test may write: another one for each test, as they share a process."""
    name = f"other_{queue.replace('-', '_')}"
    monkeypatch.syspath_prepend(cli.folder)
    yield name
    sys.modules.pop(name, None)


def imported(cli: Cli, *words: str, code: int = 0) -> Any:
    """Import as JSON; return the document."""
    done = cli.run("import", *words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def by_name(document: Any, *fields: str) -> dict[str, tuple[Any, ...]]:
    return {row["name"]: tuple(row[field] for field in fields) for row in document["entries"]}


def stored(cli: Cli, queue: str, name: str, raw: Any) -> dict[str, str]:
    record = raw.hgetall(f"evsched:{{{queue}}}:recurrence:{name}")
    return {key.decode(): value.decode() for key, value in record.items()}


def test_crontab_is_shown_then_imported_and_a_second_import_changes_nothing(cli: Cli, queue: str, raw: Any) -> None:
    file = cli.folder / "tab"
    file.write_text(CRONTAB)
    words = ("crontab", str(file), "--task", "run_command", "--zone", "Europe/Berlin", "--queue", queue)
    shown = imported(cli, *words, "--dry-run", code=1)
    assert [row["change"] for row in shown["entries"]] == ["made", "made"]
    assert [remark["where"] for remark in shown["remarks"]] == ["line 1", "line 3"]
    assert "has no jobs, no workers and no recurrences" in cli.run("recurrences", "--queue", queue).stderr
    done = cli.run("import", *words)
    assert done.returncode == 1
    assert "evsched: line 3: @reboot: " in done.stderr
    assert done.stderr.endswith("evsched: made: 2, changed: 0, the same: 0; remarks: 2\n")
    for name, (at,) in by_name(shown, "next").items():
        assert cli.json("recurrences", "next", name, "-n", "1", "--queue", queue)["times"][0]["planned"] == at
    for dry in (["--dry-run"], []):
        again = imported(cli, *words, *dry, code=1)
        assert [row["change"] for row in again["entries"]] == ["same", "same"]
    file.write_text(CRONTAB.replace("0 2", "0 3"))
    for dry in (["--dry-run"], []):
        assert [row["change"] for row in imported(cli, *words, *dry, code=1)["entries"]] == ["same", "changed"]
    (name,) = [row["name"] for row in shown["entries"] if row["rule"].startswith("0 2")]
    record = stored(cli, queue, name, raw)
    assert (record["rule"], record["zone"], record["overlap"]) == ("0 3 * * mon", "Europe/Berlin", "allow")
    payload = {"task": "run_command", "args": ["/bin/c"], "meta": {"imported": f"crontab {file}"}}
    assert json.loads(record["payload"]) == payload
    file.write_text("*/5 * * * * /bin/a\n")
    assert imported(cli, "crontab", str(file), "--task", "t", "--prefix", "b-", "--queue", queue)["remarks"] == []
    for dry in (["--dry-run"], []):
        (remark,) = imported(cli, *words, *dry, code=1)["remarks"]
        assert remark["where"] == name
        assert f"evsched recurrences remove {name} --queue {queue}" in remark["why"]
    assert cli.run("recurrences", "remove", name, "--queue", queue).returncode == 0
    assert imported(cli, *words)["remarks"] == []


def test_crontab_comes_from_stdin_with_a_prefix(cli: Cli, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "tab").write_bytes(b"# Latin-1: f\xfcr\n@daily root /bin/a\n")
    with (cli.folder / "tab").open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        found = imported(cli, "crontab", "--task", "t", "--user-column", "--prefix", "web1-", "--queue", queue, code=1)
    (row,) = found["entries"]
    assert row["name"].startswith("web1-a-")
    assert found["remarks"] == [{"where": "line 2", "why": "user root: its commands run as the user of the worker"}]


def test_recurrence_that_code_declares_is_left_alone(cli: Cli, queue: str, raw: Any) -> None:
    (cli.folder / "tab").write_text("@daily /bin/a\n")
    words = ("crontab", str(cli.folder / "tab"), "--task", "t", "--queue", queue)
    (row,) = imported(cli, *words)["entries"]
    raw.hset(f"evsched:{{{queue}}}:recurrence:{row['name']}", "owner", "shop")
    found = imported(cli, *words, code=1)
    assert found["entries"] == []
    assert "app shop declares it" in found["remarks"][0]["why"]


CELERY = """
from datetime import datetime, timedelta
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule
from kombu import Queue

app = Celery("shop")
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "every 30 seconds": {"task": "shop.tick", "schedule": 30.0, "args": (16, 16)},
    "delta": {"task": "shop.tick", "schedule": timedelta(minutes=2), "kwargs": {"x": [1]}},
    "wrapped": {"task": "shop.tick", "schedule": schedule(90)},
    "mornings": {"task": "shop.report", "schedule": crontab(hour=7, minute=30, day_of_week="mon-fri")},
    "quarters": {"task": "shop.report", "schedule": crontab(minute="*/15", hour="8-18", month_of_year="1,4,7,10")},
    "first monday": {"task": "shop.report", "schedule": crontab(0, 9, day_of_week="mon", day_of_month="1-7")},
    "friday 13": {"task": "shop.report", "schedule": crontab(0, 9, day_of_week="fri", day_of_month="13")},
    "elsewhere": {"task": "shop.tick", "schedule": 60, "options": {"queue": "QUEUE", "expires": 5}},
    "objects": {"task": "shop.tick", "schedule": 60, "args": (object(),)},
    "fast": {"task": "shop.tick", "schedule": 0.1},
    "no schedule": {"task": "shop.tick"},
    "no task": {"schedule": 60},
    "number": 5,
    "letters": {"task": "shop.tick", "schedule": 60, "args": "abc"},
    "time": {"task": "shop.tick", "schedule": 60, "args": ([{"at": datetime(2027, 1, 1)}],)},
    "set": {"task": "shop.tick", "schedule": 60, "kwargs": {"of": {1, 2}}},
    "bytes": {"task": "shop.tick", "schedule": 60, "args": (b"x",)},
    "keys": {"task": "shop.tick", "schedule": 60, "args": ({1: 2},)},
    "negative": {"task": "shop.tick", "schedule": timedelta(seconds=-5)},
    "clock": {"task": "shop.tick", "schedule": crontab(nowfun=datetime.now)},
    "an object": ScheduleEntry("an object", "shop.tick", schedule=45.0, options={"queue": Queue("QUEUE")}, app=app),
}

class Odd(schedule.__mro__[1]):
    pass

class Never(schedule):
    def is_due(self, last): return False, 3600

class Holidays(crontab):
    def is_due(self, last): return False, 3600

for odd in (Odd(), Never(60), Holidays(minute=5)):
    app.conf.beat_schedule[type(odd).__name__.lower()] = {"task": "shop.tick", "schedule": odd}

@app.on_after_finalize.connect
def add(sender, **_):
    sender.add_periodic_task(10, sender.signature("shop.tick"), name="added")
"""


def test_beat_schedule_of_a_celery_app_is_imported(cli: Cli, queue: str, module: str, raw: Any) -> None:
    (cli.folder / f"{module}.py").write_text(CELERY.replace("QUEUE", f"{queue}-2"))
    words = ("celery-beat", f"{module}:app", "--queue", queue)
    found = imported(cli, *words, code=1)
    assert by_name(found, "rule", "zone", "queue", "task") == {
        "every-30-seconds": ("every 30", "UTC", queue, "shop.tick"),
        "delta": ("every 120", "UTC", queue, "shop.tick"),
        "wrapped": ("every 90", "UTC", queue, "shop.tick"),
        "mornings": ("30 7 * * 1-5", "Europe/Berlin", queue, "shop.report"),
        "quarters": ("*/15 8-18 * */3 *", "Europe/Berlin", queue, "shop.report"),
        "first-monday": ("0 9 * * 1#1", "Europe/Berlin", queue, "shop.report"),
        "elsewhere": ("every 60", "UTC", f"{queue}-2", "shop.tick"),
        "an-object": ("every 45", "UTC", f"{queue}-2", "shop.tick"),
        "added": ("every 10", "UTC", queue, "shop.tick"),
    }
    why = {remark["where"]: remark["why"] for remark in found["remarks"]}
    says = {
        "friday 13": "both the day of the month",
        "elsewhere": "expires=5",
        "objects": "JSON",
        "fast": "at least 1 s",
        "no schedule": "missing required field `schedule`",
        "no task": "missing required field `task`",
        "number": "got `int`",
        "letters": "got `str` - at `$.args`",
        "time": "argument 1 has a value of the type datetime",
        "set": "argument of has a value of the type set",
        "bytes": "argument 1 has a value of the type bytes",
        "keys": "argument 1 has a key of the type int",
        "negative": "the interval is '-5'",
        "clock": "crontab with a nowfun",
        "odd": "the class Odd",
        "never": "the class Never",
        "holidays": "the class Holidays",
    }
    assert set(why) == set(says)
    assert {where for where, part in says.items() if part not in why[where]} == set()
    assert json.loads(stored(cli, queue, "every-30-seconds", raw)["payload"])["args"] == [16, 16]
    assert {row["change"] for row in imported(cli, *words, code=1)["entries"]} == {"same"}


def test_mistakes_in_the_program_of_celery_are_named(cli: Cli, queue: str, module: str) -> None:
    text = """
from celery import Celery
from celery.schedules import crontab
zone, settings, table = Celery(), Celery(), Celery()
zone.conf.timezone = "Mars/X"
zone.conf.beat_schedule = {"cron": {"task": "t", "schedule": crontab()}, "every": {"task": "t", "schedule": 5}}
settings.config_from_object("no_such_module")
table.conf.beat_schedule = ["t"]
"""
    (cli.folder / f"{module}.py").write_text(text)
    found = imported(cli, "celery-beat", f"{module}:zone", "--queue", queue, code=1)
    assert [row["name"] for row in found["entries"]] == ["every"]
    assert "timezone='Mars/X'" in found["remarks"][0]["why"]
    for name, said in (("settings", "ModuleNotFoundError: No module named 'no_such_module'"), ("table", "dictionary")):
        done = cli.run("import", "celery-beat", f"{module}:{name}", "--queue", queue)
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_next_times_of_celery_rules_are_those_of_celery(cli: Cli, queue: str, module: str) -> None:
    (cli.folder / f"{module}.py").write_text(CELERY.replace("QUEUE", f"{queue}-2"))
    found = imported(cli, "celery-beat", f"{module}:app", "--queue", queue, "--dry-run", code=1)
    app = sys.modules[module].app
    for name in ("mornings", "quarters", "first monday"):
        (row,) = [row for row in found["entries"] if row["where"] == name]
        schedule = app.conf.beat_schedule[name]["schedule"]
        now = datetime.now(app.timezone)
        theirs = now + schedule.remaining_estimate(now)
        assert row["next"] == pytest.approx(theirs.timestamp(), abs=2), name


APSCHEDULER = """
from datetime import UTC, datetime
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

def report(*args, **kwargs): ...

scheduler = BackgroundScheduler(
    jobstores={"default": SQLAlchemyJobStore(url="sqlite:///FOLDER/jobs.sqlite")}, timezone="Europe/Berlin"
)

def add():
    add = scheduler.add_job
    add(report, "interval", minutes=5, id="interval", args=["a"], kwargs={"b": 1})
    add(report, "cron", hour=2, id="nightly", misfire_grace_time=None)
    add(report, "cron", day_of_week="mon-fri", hour="9-17/2", minute="*/20", id="office", end_date="2099-01-01")
    add(report, "cron", second="*/15", id="seconds", jitter=3)
    add(report, "cron", day="1st mon,3rd mon", hour=8, id="mondays")
    add(report, "cron", day="last", id="last day", max_instances=3, misfire_grace_time=3600)
    add(report, "cron", day="last fri", id="last friday", misfire_grace_time=None, coalesce=False, max_instances=2)
    add(report, "cron", day="1,last", id="ends")
    add(report, "date", run_date=datetime(2099, 1, 1, tzinfo=UTC), id="once", args=[1])
    add(report, "cron", week=5, id="week")
    add(report, "cron", day="13", day_of_week="fri", id="friday-13")
    add(report, OrTrigger([CronTrigger(hour=1), CronTrigger(hour=2, minute=30)]), id="or")
    add(report, "interval", hours=1, args=[object()], id="objects")
    scheduler.pause_job(add(report, "interval", hours=1, id="paused").id) if scheduler.running else None
    add(report, "interval", hours=7)
    add(report, "interval", days=1, start_date="2026-01-01 03:00:00", id="mornings")
    add(report, "interval", seconds=10, start_date="2099-06-01 00:00:00", id="later")
    add(report, "cron", hour=4, start_date="2099-06-01 00:00:00", id="cron-later")
    add(report, "interval", minutes=1, next_run_time=datetime(2099, 6, 1, tzinfo=UTC), id="put-off")
    add(report, "cron", minute=0, next_run_time=datetime(2099, 6, 1, tzinfo=UTC), id="cron-put-off")
    add(report, "interval", weeks=1, start_date="2099-06-01 00:00:00", id="weekly")
    add(report, "date", run_date=datetime(2020, 1, 1, tzinfo=UTC), id="missed", misfire_grace_time=60)
    add(report, "date", run_date=datetime(2020, 1, 1, tzinfo=UTC), id="overdue", misfire_grace_time=None)
"""

RULES = {
    "interval": "every 300",
    "nightly": "0 2 * * *",
    "office": "*/20 9,11,13,15,17 * * 1-5",
    "seconds": "*/15 * * * * *",
    "mondays": "0 8 * * 1#1,1#3",
    "last-day": "0 0 L * *",
    "last-friday": "0 0 * * 5L",
    "ends": "0 0 1,L * *",
    "mornings": "every 86400",
    "later": "every 10",
    "cron-later": "0 4 * * *",
    "put-off": "every 60",
    "cron-put-off": "0 * * * *",
    "weekly": "every 604800",
    "once": "once",
    "overdue": "once",
}

LATER = datetime(2099, 6, 1, tzinfo=UTC).timestamp()
IN_BERLIN = LATER - 7200
STARTS = {
    "later": IN_BERLIN,
    "cron-later": IN_BERLIN + 4 * 3600,
    "put-off": LATER,
    "cron-put-off": LATER,
    "weekly": datetime(2099, 6, 4, tzinfo=UTC).timestamp(),
}
"""The next times of the jobs that begin later."""


def next_times(document: Any) -> dict[str, float]:
    return {name: at for name, (at,) in by_name(document, "next").items() if name in STARTS}


def test_jobs_that_a_program_adds_to_apscheduler_are_imported(cli: Cli, queue: str, module: str, raw: Any) -> None:
    (cli.folder / f"{module}.py").write_text(APSCHEDULER.replace("FOLDER", str(cli.folder)) + "\nadd()\n")
    words = ("apscheduler", f"{module}:scheduler", "--queue", queue)
    found = imported(cli, *words, code=1)
    rules = {name: rule for name, (rule,) in by_name(found, "rule").items()}
    (unnamed,) = [name for name in rules if name.startswith("report-")]
    assert rules.pop(unnamed) == "every 25200"
    assert rules == RULES
    assert {task for (task,) in by_name(found, "task").values()} == {f"{module}:report"}
    why = dict[str, str]()
    for remark in found["remarks"]:
        why[remark["where"]] = f"{why.get(remark['where'], '')} {remark['why']}"
    (random,) = [where for where in why if len(where) == 32]
    assert {*why} == {
        *("seconds", "last day", "last friday", "week", "friday-13", "or", "objects", "mornings", random),
        *("weekly", "put-off", "cron-put-off", "missed", "overdue"),
    }
    assert next_times(found) == STARTS
    assert "at 2099-06-04 00:00:00 UTC and not at 2099-05-31 22:00:00" in why["weekly"]
    assert "late by more than 60 s" in why["missed"]
    assert "it runs at once" in why["overdue"]
    assert "it runs at 00:00:00 UTC and not at 02:00:00" in why["mornings"]
    assert "max_instances=3" in why["last day"]
    assert "misfire_grace_time=3600" in why["last day"]
    assert "spread" in why["seconds"]
    assert "OrTrigger" in why["or"]
    nightly, last_friday = stored(cli, queue, "nightly", raw), stored(cli, queue, "last-friday", raw)
    assert (nightly["misfire"], nightly["overlap"], nightly["zone"]) == ("once", "skip", "Europe/Berlin")
    assert (last_friday["misfire"], last_friday["overlap"]) == ("all", "allow")
    assert json.loads(stored(cli, queue, "interval", raw)["payload"])["kwargs"] == {"b": 1}
    job = cli.json("show", "once", "--queue", queue)
    assert (job["place"], job["due"]) == ("schedule", datetime(2099, 1, 1, tzinfo=UTC).timestamp())
    sys.modules.pop(module)
    assert {row["change"] for row in imported(cli, *words, code=1)["entries"]} == {"same"}


def test_jobs_in_the_stores_of_apscheduler_are_imported(
    cli: Cli, queue: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.folder / f"{module}.py").write_text(APSCHEDULER.replace("FOLDER", str(cli.folder)).replace("object()", "1j"))
    __import__(module)
    program = sys.modules.pop(module)
    program.scheduler.start(paused=True)
    monkeypatch.setitem(sys.modules, module, program)  # its functions are found by their names
    program.add()
    program.scheduler.shutdown()
    monkeypatch.delitem(sys.modules, module)
    found = imported(cli, "apscheduler", f"{module}:scheduler", "--queue", queue, "--dry-run", code=1)
    rules = {name: rule for name, (rule,) in by_name(found, "rule").items() if not name.startswith("report-")}
    assert rules == RULES
    assert next_times(found) == STARTS
    why = {remark["where"]: remark["why"] for remark in found["remarks"]}
    assert "paused" in why["paused"]


def test_job_in_a_store_that_cannot_be_read_stays_there(cli: Cli, queue: str, module: str) -> None:
    (cli.folder / f"{module}.py").write_text(APSCHEDULER.replace("FOLDER", str(cli.folder)))
    engine = create_engine(f"sqlite:///{cli.folder}/jobs.sqlite")
    with engine.begin() as database:
        database.execute(text("CREATE TABLE apscheduler_jobs (id VARCHAR(191), next_run_time FLOAT, job_state BLOB)"))
        database.execute(text("INSERT INTO apscheduler_jobs VALUES ('gone', 1, x'00'), ('odd', 2, x'80')"))
    found = imported(cli, "apscheduler", f"{module}:scheduler", "--queue", queue, code=1)
    assert [remark["where"] for remark in found["remarks"]] == ["a job in the store default"] * 2
    assert all("it cannot be read: UnpicklingError" in remark["why"] for remark in found["remarks"])
    with engine.begin() as database:
        assert database.execute(text("SELECT count(*) FROM apscheduler_jobs")).scalar() == 2
    engine.dispose()


def test_store_that_is_down_is_named_and_its_jobs_are_not_said_to_be_gone(
    cli: Cli, queue: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from redis.backoff import NoBackoff
from redis.retry import Retry

def report(): ...

scheduler = BackgroundScheduler(jobstores={"memory": MemoryJobStore()}, timezone="UTC")
scheduler.add_job(report, "cron", hour=1, id="first")
"""
    down = f"""
store = RedisJobStore(unix_socket_path="{cli.folder}/none", retry=Retry(NoBackoff(), 0))
scheduler = BackgroundScheduler(jobstores={{"down": store}}, timezone="UTC")
scheduler.add_job(report, "cron", hour=2, id="second")
"""
    (cli.folder / f"{module}.py").write_text(program)
    words = ("apscheduler", f"{module}:scheduler", "--queue", queue)
    assert [row["name"] for row in imported(cli, *words)["entries"]] == ["first"]
    (cli.folder / f"{module}.py").write_text(program + down)
    monkeypatch.delitem(sys.modules, module)
    importlib.invalidate_caches()
    found = imported(cli, *words, code=1)
    assert [row["name"] for row in found["entries"]] == ["second"]
    (remark,) = found["remarks"]
    assert remark["where"] == "the store down"
    assert "it cannot be read: ConnectionError" in remark["why"]


def test_next_times_of_apscheduler_rules_are_those_of_apscheduler(cli: Cli, queue: str, module: str) -> None:
    (cli.folder / f"{module}.py").write_text(APSCHEDULER.replace("FOLDER", str(cli.folder)) + "\nadd()\n")
    found = imported(cli, "apscheduler", f"{module}:scheduler", "--queue", queue, "--dry-run", code=1)
    jobs = {job.id: job for job in sys.modules[module].scheduler.get_jobs()}
    now, checked = datetime.now(UTC), 0
    for row in found["entries"]:
        if row["rule"][:5] not in ("every", "once") and row["where"] not in ("seconds", "cron-put-off"):
            theirs = jobs[row["where"]].trigger.get_next_fire_time(None, now)
            assert row["next"] == theirs.timestamp(), row["where"]
            checked += 1
    assert checked == 7


def test_scheduler_that_starts_when_it_is_imported_is_refused(cli: Cli, queue: str, module: str) -> None:
    text = "from apscheduler.schedulers.background import BackgroundScheduler\nscheduler = BackgroundScheduler()\n"
    (cli.folder / f"{module}.py").write_text(text + "scheduler.start()\n")
    done = cli.run("import", "apscheduler", f"{module}:scheduler", "--queue", queue)
    assert done.returncode == 2
    assert "starts the scheduler" in done.stderr
    assert not sys.modules[module].scheduler.running


@pytest.fixture
def rq(server: EmbeddedRedis) -> Generator[Redis]:
    """Yield a client of a Redis database that RQ has for itself."""
    with Redis.from_url(f"{server.url}?db=9") as redis:
        yield redis
        redis.flushdb()


@pytest.fixture
def elsewhere(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Have this process, and the commands, be on a machine in Lima."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/Lima")
        cli.environment["TZ"] = "America/Lima"
        time.tzset()
        yield
    time.tzset()


@pytest.mark.one_server
@pytest.mark.usefixtures("elsewhere")
def test_jobs_of_rq_scheduler_are_imported(cli: Cli, queue: str, server: EmbeddedRedis, rq: Redis) -> None:
    from rq_scheduler import Scheduler  # pyright: ignore[reportMissingTypeStubs]

    scheduler, other = Scheduler(queue, connection=rq), Scheduler(f"{queue}-2", connection=rq)
    at = datetime(2099, 1, 1, tzinfo=UTC)
    scheduler.cron("30 9 * * mon-fri", "shop.report", args=["a"], kwargs={"b": [1, None]}, id="cron", repeat=7)
    scheduler.cron("0 9 1-7 * mon", "shop.report", id="first-monday")
    scheduler.cron("0 9 13 * fri", "shop.report", id="friday-13")
    scheduler.cron("@daily", "shop.report", id="daily", timeout=90, use_local_timezone=True)
    scheduler.schedule(at, "shop.tick", interval=90, id="interval")
    scheduler.schedule(datetime.now(UTC), "shop.tick", interval=90, id="soon")
    other.enqueue_at(at, "shop.tick", 1, job_id="once", meta={"who": "ana"})
    other.enqueue_at(datetime(2020, 1, 1, tzinfo=UTC), "shop.tick", job_id="overdue")
    scheduler.enqueue_at(at, "shop.tick", timedelta(1), job_id="objects")
    words = ("rq-scheduler", f"{server.url}?db=9", "--queue", "unused")
    found = imported(cli, *words, code=1)
    assert by_name(found, "rule", "queue", "task") == {
        "cron": ("30 9 * * mon-fri", queue, "shop.report"),
        "first-monday": ("0 9 * * 1#1", queue, "shop.report"),
        "daily": ("0 0 * * *", queue, "shop.report"),
        "interval": ("every 90", queue, "shop.tick"),
        "soon": ("every 90", queue, "shop.tick"),
        "overdue": ("once", f"{queue}-2", "shop.tick"),
        "once": ("once", f"{queue}-2", "shop.tick"),
    }
    for row in found["entries"]:
        if row["name"] == "soon":
            assert row["next"] < time.time() + 100
        else:
            assert row["next"] == rq.zscore("rq:scheduler:scheduled_jobs", row["where"]), row
    assert {row["zone"] for row in found["entries"]} == {"America/Lima", None}
    why = {remark["where"]: remark["why"] for remark in found["remarks"]}
    assert set(why) == {"friday-13", "once", "objects", "overdue"}
    assert "it runs at once" in why["overdue"]
    assert "datetime.timedelta" in why["objects"]
    assert "who" in why["once"]
    assert {row["change"] for row in imported(cli, *words, code=1)["entries"]} == {"same"}
    job = cli.json("show", "once", "--queue", f"{queue}-2")
    assert (job["due"], job["payload"]["args"]) == (at.timestamp(), [1])


class Harm:
    """Writes a file when it is read from a pickle that is trusted."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


@pytest.mark.one_server
def test_pickle_of_rq_that_would_run_code_is_refused(
    cli: Cli, queue: str, server: EmbeddedRedis, rq: Redis, tmp_path: Path
) -> None:
    from rq_scheduler import Scheduler  # pyright: ignore[reportMissingTypeStubs]

    scheduler = Scheduler(queue, connection=rq)
    scheduler.enqueue_at(datetime(2099, 1, 1, tzinfo=UTC), "shop.tick", Harm(tmp_path / "harm"), job_id="harm")
    found = imported(cli, "rq-scheduler", f"{server.url}?db=9", "--queue", queue, code=1)
    assert found["entries"] == []
    assert [remark["where"] for remark in found["remarks"]] == ["harm"]
    assert not (tmp_path / "harm").exists()


@pytest.mark.one_server
def test_record_of_rq_that_cannot_be_read_is_named(cli: Cli, queue: str, server: EmbeddedRedis, rq: Redis) -> None:
    call: tuple[Any, ...] = ("shop.tick", None, (), {})
    records: dict[str, tuple[Any, Any]] = {
        "daily": (call, {"interval": 86400}),
        "no-call": (7, {}),
        "short-call": (call[:2], {}),
        "no-name": ((None, *call[1:]), {}),
        "no-meta": (call, [1]),
        "odd-interval": (call, {"interval": "soon"}),
        "odd-rule": (call, {"cron_string": 5}),
        "set": ((*call[:2], ({1},), {}), {}),
    }
    for name, (data, meta) in records.items():
        rq.hset(f"rq:job:{name}", mapping={"data": pickle.dumps(data), "meta": pickle.dumps(meta)})
    rq.hset("rq:job:deep", "data", "[" * 100_000)
    rq.hset("rq:job:cut", "data", pickle.dumps(call)[:-5])
    rq.hset("rq:job:none", "data", "")
    rq.set("rq:job:text", "")
    rq.zadd(
        "rq:scheduler:scheduled_jobs", dict.fromkeys([*records, "deep", "cut", "none", "gone", "text"], 4070952000.0)
    )
    found = imported(cli, "rq-scheduler", f"{server.url}?db=9", "--queue", queue, code=1)
    why = {remark["where"]: remark["why"] for remark in found["remarks"]}
    assert [row["name"] for row in found["entries"]] == ["daily"]
    assert "it runs at 00:00:00 UTC and not at 12:00:00" in why.pop("daily")
    assert why.pop("gone") == "its record is gone"
    assert "the key rq:job:text is of another type" in why.pop("text")
    assert {*why} == {*records, "deep", "cut", "none"} - {"daily"}
    assert "argument 1 has a value of the type set" in why.pop("set")
    assert {text.partition(":")[0] for text in why.values()} == {
        "its data cannot be read",
        "its data is not that of RQ",
    }


def test_mistakes_are_one_line(cli: Cli, queue: str, module: str) -> None:
    (cli.folder / f"{module}.py").write_text("app = 1\n")
    for words, said in (
        (("celery-beat", f"{module}:app"), "int is not a Celery app"),
        (("celery-beat", f"{module}:none"), "has no variable 'none'"),
        (("apscheduler", f"{module}:app"), "int is not a scheduler of APScheduler 3"),
        (("apscheduler", "jobs.py"), "MODULE:SCHEDULER"),
        (("crontab", str(cli.folder / "none"), "--task", "t"), "cannot be read: No such file or directory"),
        (("crontab", "/dev/null", "--task", "t", "--zone", "Mars"), "zone 'Mars' is not known"),
        (("rq-scheduler", "mailto:rq"), "write redis://USER:PASSWORD@HOST:PORT/DB"),
    ):
        done = cli.run("import", *words, "--queue", queue)
        assert done.returncode in (1, 2), words
        assert said in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
