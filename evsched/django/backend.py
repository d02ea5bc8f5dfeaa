"""The backend: puts jobs of Django's tasks on the schedule, at once or in the transaction, and finds their results."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core import checks
from django.db import connections
from msgspec import Struct

from evsched.app import App
from evsched.client.client import SyncClient
from evsched.client.option_values import digest_of, unique_id
from evsched.client.task_handle import Enqueuer
from evsched.django.compat import (
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from evsched.django.django_task import DjangoTask, check_task, definition_of, job_options, note_of, option
from evsched.django.setting_checks import check_settings
from evsched.django.task_results import new_result, read_result
from evsched.django.waiting_rows import find_row
from evsched.errors import ConfigError, JobExists
from evsched.jobs.record import JobStatus
from evsched.jobs.sealed import PayloadCodec
from evsched.keys import NAME
from evsched.transport.links import finish

_ID_MOST: Final = 64
"""Characters of a result's id, by Django's contract."""

_JOB_IDS: Final = {False: 20, True: 39}
"""Characters of a job's id, and of that of a unique job."""

_DEFAULT: Final = "default"


class RedisClients(Struct, frozen=True):
    """The Redis of a backend."""

    app: App
    client: SyncClient


@lru_cache
def redis_of(url: str | None, codec: PayloadCodec | None = None) -> RedisClients:
    """Return the clients of a Redis. Django makes a backend for each thread: all of them share these."""
    app = App(url, codec=codec)
    return RedisClients(app, app.client.without_loop())


class Backend(BaseTaskBackend):
    """The tasks of a `TASKS` setting in evsched. docs/django.md has its OPTIONS.

    The id of a result is the job's id, and unless that is "default", `@` and the queue.
    """

    task_class = DjangoTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    queues: set[str]

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.options: Mapping[str, Any] = params.get("OPTIONS") or {}
        ledger = self.options.get("ledger", False)
        self.ledger: str | None = _DEFAULT if ledger is True else ledger or None
        """The alias of the database whose transactions the jobs belong to."""

    @property
    def url(self) -> str | None:
        """The Redis: EVSCHED_URL, which a worker sets too, else that of the settings; None = evsched's default."""
        return os.environ.get("EVSCHED_URL") or self.options.get("url")

    @property
    def codec(self) -> PayloadCodec | None:
        """Seals the arguments and results of its tasks."""
        return self.options.get("codec")

    @property
    def console(self) -> str | None:
        """The path below which browsers find the console, such as /jobs/; None = it is not a part of the site."""
        return self.options.get("console")

    @property
    def redis(self) -> RedisClients:
        return redis_of(self.url) if self.codec is None else redis_of(self.url, self.codec)

    def validate_task(self, task: AnyTask) -> None:
        """Check a task when it is made, by `@task` and by `using`.

        Raises:
            InvalidTask
        """
        super().validate_task(task)
        room = _ID_MOST - 1 - _JOB_IDS[option(task, "unique") is not None]
        if task.queue_name != _DEFAULT and len(task.queue_name) > room:
            raise InvalidTask(f"Queue {task.queue_name!r} has more than {room} characters: the ids of results have it.")
        try:
            check_task(task)
        except ConfigError as error:
            raise InvalidTask(str(error)) from None

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> TaskResult[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Put a job on the schedule; in a ledger, within the transaction of the database.

        Raises:
            InvalidTask, TypeError: the task is not valid, or the arguments are not JSON or do not fit it.
            StoreDown: Redis could not be reached for 5 s; the job may have been written. Not with a ledger.
        """
        enqueuer, args, kwargs, result = self._new(task, args, kwargs)
        try:
            if self.ledger is None:
                job_id = finish(enqueuer.put(self.redis.client.client, args, kwargs))
            else:
                job_id = enqueuer.enqueue_in_sync(connections[self.ledger], *args, **kwargs)
        except JobExists:
            return self._first(task, args, kwargs, result)
        self._name(result, job_id)
        task_enqueued.send(sender=type(self), task_result=result)
        return result

    async def aenqueue(self, task: AnyTask, args: Any, kwargs: Any) -> TaskResult[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Put a job on the schedule, as `enqueue`. With a ledger it runs in the thread that has the connection."""
        if self.ledger is not None:
            return await super().aenqueue(task, args, kwargs)
        enqueuer, args, kwargs, result = self._new(task, args, kwargs)
        try:
            job_id = await enqueuer.put(self.redis.app.client, args, kwargs)
        except JobExists:
            return await sync_to_async(self._first)(task, args, kwargs, result)
        self._name(result, job_id)
        await task_enqueued.asend(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Return the result of a job.

        Raises:
            TaskResultDoesNotExist: there is none, it is not kept any more, or the job was cancelled while it waited.
            SuspiciousOperation, ImportError: the job's task is not one.
        """
        job_id, queue = split_id(result_id)
        status = self.redis.client.status(queue, job_id)
        if status is None and self.ledger is not None:
            status = find_row(connections[self.ledger], queue, job_id)
        return self._read(result_id, status)

    async def aget_result(self, result_id: str) -> TaskResult[Any]:
        """Return the result of a job, as `get_result`."""
        job_id, queue = split_id(result_id)
        status = await self.redis.app.client.status(queue, job_id)
        if status is None and self.ledger is not None:
            return await sync_to_async(self.get_result)(result_id)
        return self._read(result_id, status)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings. It asks nothing of Redis or a database."""
        return check_settings(self)

    def _new(
        self, task: AnyTask, args: Any, kwargs: Any
    ) -> tuple[Enqueuer[..., Any], list[Any], dict[str, Any], TaskResult[Any]]:
        """Return what enqueues a job, its arguments as JSON has them, and its result, which has no id yet."""
        self.validate_task(task)
        at = time.time()
        options = job_options(task, note_of(task, self.alias, at))
        args, kwargs = normalize_json(args), normalize_json(kwargs)
        result = new_result(task, "", args, kwargs, enqueued=at)
        return Enqueuer(self.redis.app, definition_of(task), options), args, kwargs, result

    def _first(
        self, task: AnyTask, args: list[Any], kwargs: dict[str, Any], result: TaskResult[Any]
    ) -> TaskResult[Any]:
        """Return the result of the unique job that was enqueued before this one."""
        self._name(result, unique_id(definition_of(task), option(task, "unique"), args, kwargs, digest_of(self.codec)))
        try:
            return self.get_result(result.id)
        except TaskResultDoesNotExist:  # it has ended meanwhile, or its transaction has not been committed
            return result

    def _name(self, result: TaskResult[Any], job_id: str) -> None:
        object.__setattr__(result, "id", result_id_of(job_id, result.task.queue_name))

    def _read(self, result_id: str, status: JobStatus | None) -> TaskResult[Any]:
        if status is None:
            raise TaskResultDoesNotExist(result_id)
        return read_result(status, result_id, self.alias)


def result_id_of(job_id: str, queue: str) -> str:
    return job_id if queue == _DEFAULT else f"{job_id}@{queue}"


def split_id(result_id: Any) -> tuple[str, str]:
    """Return the id and the queue of the job of a result.

    Raises:
        TaskResultDoesNotExist: it is the id of no result.
    """
    job_id, _, queue = str(result_id).partition("@")
    queue = queue or _DEFAULT
    if not NAME.fullmatch(job_id) or not NAME.fullmatch(queue):
        raise TaskResultDoesNotExist(result_id)
    return job_id, queue
