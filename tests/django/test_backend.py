"""The backend: what it refuses and checks, its options, and results that cannot be had."""

from __future__ import annotations

import pickle
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import django
import pytest
from django.core.exceptions import SuspiciousOperation
from django.core.management import call_command
from django.core.management.base import CommandError, SystemCheckError
from django.test import override_settings

from evsched import BadArguments, Filter, JobDead, Retry, Unique
from evsched.client.new_job import new_job
from evsched.config import Config
from evsched.django import Backend
from evsched.django.backend import redis_of
from evsched.django.compat import InvalidTask, TaskResultDoesNotExist, task_backends
from evsched.django.django_task import level
from evsched.django.worker_app import make_app
from evsched.errors import ConfigError
from evsched.jobs.record import JobStatus
from tests.django import settings as of_site
from tests.django.polls import tasks as of_polls
from tests.support.patience import NO_CAP, PATIENCE
from tests.support.system import System, system

ANY: Any = task_backends["any"]
tasks: Any = of_polls  # the types are those of Django's own tasks, without our options


async def status_of(result: Any) -> JobStatus:
    job_id, _, queue = result.id.partition("@")
    return await redis_of(ANY.url).app.job(job_id, queue=queue or "default").status()


def test_backend_has_all_features() -> None:
    assert Backend.supports_defer
    assert Backend.supports_async_task
    assert Backend.supports_get_result
    assert Backend.supports_priority


def local() -> Any:
    def inside() -> None: ...

    return inside


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"priority": 101}, "priority must be a whole number"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"run_after": datetime(2030, 1, 1)}, "aware"),  # noqa: DTZ001 - that is what it refuses
        ({"queue_name": "unknown"}, "not valid for backend"),
        ({"backend": "any", "queue_name": "no spaces"}, "give 1 to 200"),
        ({"backend": "any", "queue_name": "q" * 44}, "43 characters"),
        ({"backend": "any", "queue_name": "q" * 25, "unique": Unique()}, "24 characters"),
        ({"timeout": -1}, "timeout"),
        ({"retention": -1}, "retention"),
        ({"retry": 3}, "retry"),
        ({"retry": Retry(give_up_on=(OSError,))}, "belong to a task"),
        ({"group": "a}b"}, "group"),
        ({"unique": True}, "unique"),
        ({"redact": ("c",)}, "redact|no parameter|'c'"),
    ],
)
def test_invalid_tasks_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        tasks.add.using(**changes)


def test_functions_that_cannot_be_tasks_are_refused() -> None:
    for wrong in (local(), lambda: None):
        with pytest.raises(InvalidTask, match="module level"):
            ANY.task_class(func=wrong, backend="any")
    with pytest.raises(InvalidTask, match="context"):
        ANY.task_class(func=tasks.not_a_task, backend="any", takes_context=True)


async def test_refused_arguments_enqueue_nothing(looped: str) -> None:
    for wrong in ((), (1, 2, 3)):
        with pytest.raises(BadArguments, match="add"):
            await tasks.add.aenqueue(*wrong)
        with pytest.raises(TypeError):
            tasks.add.enqueue(*wrong)
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.echo.enqueue(object())
    with pytest.raises(ValueError, match="Unsupported value"):
        tasks.echo.enqueue(b"\xff")
    assert list(redis_of(looped).client.find("default", Filter(task=tasks.add.module_path))) == []


def test_options_are_kept_by_using() -> None:
    changed = tasks.pay.using(priority=7, retention=90)
    assert (changed.group, changed.redact, changed.timeout, changed.retention) == ("payments", ("card",), 20, 90)
    assert changed.unique == tasks.pay.unique
    assert (tasks.pay.retention, tasks.pay.priority) == (60, 0)


@pytest.mark.skipif(django.VERSION < (6, 0), reason="django-tasks does not pickle tasks")
def test_task_can_be_pickled() -> None:
    task = tasks.pay.using(retention=90)
    assert pickle.loads(pickle.dumps(task)) == task


async def test_options_reach_the_job(looped: str) -> None:
    moment = datetime.now(tz=UTC) + timedelta(days=2)
    task = tasks.add.using(queue_name="mails", priority=-100, run_after=moment, group="a", retry=Retry(attempts=2))
    result = await task.using(timeout=7.0, redact=("b",)).aenqueue(1, b=2)
    status = await status_of(result)
    assert (status.queue, status.priority, status.group, status.task) == ("mails", 0, "a", tasks.add.module_path)
    assert status.due == pytest.approx(moment.timestamp())
    assert (status.payload["timeout"], status.payload["retry"]["attempts"]) == (7.0, 2)
    assert status.payload["kwargs"]["b"] != 2
    await result.arefresh()
    assert result.status == "READY"
    found = await tasks.add.aget_result(result.id)
    assert (found.task.priority, found.task.queue_name, found.task.run_after) == (-100, "mails", moment)
    assert (found.id, found.enqueued_at) == (result.id, result.enqueued_at)


async def test_options_of_the_declaration_are_not_in_the_payload(looped: str) -> None:
    payload = (await status_of(await tasks.pay.aenqueue(1, card="4111"))).payload
    assert not {"timeout", "retention", "retry"} & payload.keys()


async def test_result_is_kept_for_a_day(running: System, ended: Any, raw: Any) -> None:
    kept = {"add": 86_400, "pay": 60}
    for name, args in (("add", (1, 2)), ("pay", (1, "4111"))):
        result = await ended(await getattr(tasks, name).aenqueue(*args))
        left = raw.ttl(f"evsched:{{default}}:job:{result.id}")
        assert kept[name] - 30 < left <= kept[name]


async def test_unique_task_is_enqueued_once(looped: str) -> None:
    first = await tasks.pay.aenqueue(1, "4111")
    again = [await tasks.pay.aenqueue(1, "4111"), tasks.pay.enqueue(1, card="4111")]
    assert {result.id for result in again} == {first.id}
    assert {result.enqueued_at for result in again} == {first.enqueued_at}
    assert (await tasks.pay.aenqueue(2, "4111")).id != first.id


def test_priorities_share_levels() -> None:
    assert [level(priority) for priority in (-100, -81, -80, -1, 0, 19, 20, 79, 80, 100)] == [
        0,
        0,
        1,
        4,
        5,
        5,
        6,
        8,
        9,
        9,
    ]


async def test_higher_priority_runs_first(looped: str, ended: Any) -> None:
    waiting = [await tasks.add.using(priority=priority).aenqueue(1) for priority in (-40, 0, 40)]
    redis_of(looped).client.limit("default", concurrency=1)
    async with system(Config(url=looped, safety_cap=NO_CAP), make_app()):
        found = [await ended(result) for result in waiting]
    assert [one.task.priority for one in sorted(found, key=lambda one: one.started_at)] == [40, 0, -40]


@pytest.mark.parametrize("wrong", ["nothing", "a@b@c", "no spaces", "", 7, "x@mails"])
async def test_result_of_an_unknown_id_does_not_exist(looped: str, wrong: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(wrong)
    with pytest.raises(TaskResultDoesNotExist):
        await tasks.add.aget_result(wrong)


async def test_result_of_another_task_is_a_mismatch(looped: str) -> None:
    result = await tasks.add.aenqueue(1)
    with pytest.raises(Exception, match="does not match"):
        tasks.fail.get_result(result.id)


async def test_cancelled_job_has_failed(looped: str, running: System) -> None:
    result = await tasks.add.using(run_after=datetime.now(tz=UTC) + timedelta(days=1)).aenqueue(1)
    redis_of(looped).client.cancel("default", result.id)
    with pytest.raises(TaskResultDoesNotExist):
        await result.arefresh()


@pytest.mark.parametrize(
    "path", ["tests.django.polls.tasks.not_a_task", "os.system", "tests.django.polls.tasks.Path", "json.dumps"]
)
async def test_path_that_is_no_task_is_refused(looped: str, running: System, path: str) -> None:
    client, handle = redis_of(looped).app.client, redis_of(looped).app.job("suspicious")
    await client.enqueue("default", [new_job(path, [], {}, {"id": handle.id})])
    with pytest.raises(JobDead, match=r"SuspiciousOperation.*not a task"):
        await handle.result(PATIENCE)
    with pytest.raises(SuspiciousOperation, match="not a task"):
        await task_backends["default"].aget_result(handle.id)


@pytest.mark.parametrize("path", ["tests.django.polls.gone.vote", "this.s", "vote"])
async def test_path_that_cannot_be_imported_is_an_unknown_task(looped: str, running: System, path: str) -> None:
    client, handle = redis_of(looped).app.client, redis_of(looped).app.job("gone")
    await client.enqueue("default", [new_job(path, [], {}, {"id": handle.id})])
    with pytest.raises(JobDead, match="unknown task"):
        await handle.result(PATIENCE)
    with pytest.raises(ImportError):
        await task_backends["default"].aget_result(handle.id)
    assert "this" not in sys.modules  # it is in no installed app


async def test_module_of_an_app_is_imported_for_its_first_job(looped: str, running: System) -> None:
    path = "tests.django.polls.reminders.remind"
    assert path not in make_app().tasks
    client, handle = redis_of(looped).app.client, redis_of(looped).app.job("late")
    await client.enqueue("default", [new_job(path, [], {}, {"id": handle.id})])
    assert await handle.result(PATIENCE) == "reminded"


def test_worker_serves_the_queues_of_all_backends(site: str) -> None:
    app = make_app()
    assert set(app.queues) == {"default", "mails"}
    assert tasks.add.module_path in app.tasks


def test_tasks_of_a_worker_enqueue_to_its_redis(site: str) -> None:
    make_app().move_to("redis://other/1")
    assert ANY.url == "redis://other/1"


def test_worker_of_a_project_that_does_not_start_says_why() -> None:
    immediate = {"BACKEND": f"{task_backends.__module__}.backends.immediate.ImmediateBackend"}
    with (
        override_settings(TASKS={"default": immediate}),
        pytest.raises(ConfigError, match="no backend of TASKS is evsched's"),
    ):
        make_app()
    with override_settings(TASKS={"default": immediate}), pytest.raises(CommandError, match="no backend of TASKS"):
        call_command("evsched", "queues")


def checked(**options: Any) -> str:
    """Return what the system checks say about a setting of the default backend."""
    default = {**of_site.TASKS["default"], **options}
    with override_settings(TASKS={**of_site.TASKS, "default": default}):
        try:
            call_command("check")
        except SystemCheckError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, ""),
        ({"OPTIONS": {"retention": 60.0, "retry": Retry(attempts=1), "timeout": None}}, ""),
        ({"OPTIONS": {"ledgr": True}}, "E001"),
        ({"OPTIONS": {"retention": "a day"}}, "E002"),
        ({"OPTIONS": {"url": 5}}, "E002"),
        ({"OPTIONS": None}, ""),
        ({"OPTIONS": {"console": "/ops/jobs/"}}, ""),
        ({"OPTIONS": {"console": "/"}}, "E007"),
        ({"OPTIONS": {"console": "https://jobs.example.com/"}}, "E007"),
        ({"OPTIONS": {"console": "/../x/"}}, "E007"),
        ({"OPTIONS": {"console": "/x/./"}}, "E007"),
        ({"OPTIONS": {"console": "/.well-known/jobs/"}}, ""),
        ({"OPTIONS": {"console": "/admin/"}}, "E007"),
        ({"OPTIONS": {"console": "/admin/login/"}}, "E007"),
        ({"OPTIONS": {"console": "/admin/jobs/"}}, ""),
        ({"QUEUES": ["no spaces"]}, "E003"),
        ({"QUEUES": "mails"}, "E003"),
        ({"OPTIONS": {"ledger": "other"}}, "E004"),
        ({"OPTIONS": {"ledger": True}}, "E005"),
        ({"OPTIONS": {"url": "redis://other:6379/0"}}, "E006"),
    ],
)
def test_system_checks(options: dict[str, Any], number: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = checked(**options)
    assert f"evsched.{number}" in said if number else not said


def test_wrong_url_is_found_by_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVSCHED_URL", "http://localhost")
    assert "evsched.E002" in checked()
