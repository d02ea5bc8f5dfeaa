"""A codec in OPTIONS: the arguments and results of Django's tasks are sealed, and are read as without it."""

from __future__ import annotations

from typing import Any

from django.test import override_settings

from evsched.codec import Codec
from evsched.config import Config
from evsched.django.backend import redis_of
from evsched.django.compat import task_backends
from evsched.django.worker_app import make_app
from tests.django import settings as of_site
from tests.django.polls import tasks as of_polls
from tests.loops.test_sealed_jobs import everything
from tests.support.patience import PATIENCE
from tests.support.sealed_jobs import OLD, SECRET
from tests.support.system import system

tasks: Any = of_polls


async def test_task_runs_and_its_result_has_its_arguments(looped: str, raw: Any) -> None:
    codec = Codec({"old": OLD}, id_key=OLD)
    default = of_site.TASKS["default"] | {"OPTIONS": {"codec": codec}}
    with override_settings(TASKS=of_site.TASKS | {"default": default}):
        assert task_backends["default"].check() == []
        config = Config(url=looped, concurrency=4, shutdown_grace=0.2)
        async with system(config, make_app()):
            result = await tasks.echo.aenqueue(SECRET, named=SECRET)
            await redis_of(looped, codec).app.job(result.id).result(PATIENCE)
            await result.arefresh()
            assert (result.status, result.return_value) == ("SUCCESSFUL", [SECRET, [], {"named": SECRET}])
            assert (result.args, result.kwargs) == ([SECRET], {"named": SECRET})
            assert SECRET.encode() not in everything(raw)
        await redis_of(looped, codec).app.close()
    seen = await tasks.echo.aget_result(result.id)
    mark = "[encrypted with key old]"
    assert (seen.args, seen.kwargs, seen.return_value) == ([mark], {}, mark), "the settings have no codec here"
    await redis_of(looped).app.close()
