"""The site as its users run it: `manage.py evsched`, a database with transactions, and a worker that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import django
import pytest
from asgiref.sync import sync_to_async
from django.core import mail
from django.db import connections, transaction
from django.test import override_settings
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict

from evsched.codec import Codec
from evsched.django.backend import Backend, redis_of, split_id
from evsched.django.compat import TaskResultDoesNotExist, task_backends
from evsched.django.management.commands.evsched import environment
from evsched.django.worker_app import make_app
from tests.django import settings as of_site
from tests.django.polls import tasks as of_polls
from tests.django.polls.models import Poll
from tests.support.cli import Log
from tests.support.doc_examples import examples, run_jobs
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
tasks: Any = of_polls


class Site:
    """Runs `manage.py` of the site, whose mails are files in a folder."""

    def __init__(self, url: str, folder: Path, **variables: str) -> None:
        self.mails = folder / "mails"
        self.mails.mkdir()
        self.environment = {**os.environ, "EVSCHED_URL": url, "SITE_MAILS": str(self.mails), **variables}
        self.environment |= {"PYTHONPATH": str(ROOT), "EVSCHED_LEASE": "1"}
        self.environment.pop("EVSCHED_TEST_SERVER", None)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, str(ROOT / "tests/django/manage.py"), *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    @contextmanager
    def running(self, *words: str) -> Generator[Log]:
        """Run a service; end it as systemd does."""
        service = subprocess.Popen(
            self.command("evsched", *words), env=self.environment, stderr=subprocess.PIPE, text=True
        )
        try:
            yield Log(service)
        finally:
            service.send_signal(signal.SIGTERM)
            service.communicate(timeout=PATIENCE)

    def sent_to(self) -> list[str]:
        """Return whom mails were sent to."""
        lines = [line for path in self.mails.iterdir() for line in path.read_text().splitlines()]
        return sorted(line.removeprefix("To: ") for line in lines if line.startswith("To: "))


def wait_for(url: str, result: Any, row: int | None = None) -> Any:
    """Wait until the job of a result, or of a row, has ended; return the result, refreshed."""
    job_id, queue = split_id(result.id)
    redis_of(url).client.result(queue, job_id, PATIENCE, row)
    result.refresh()
    return result


@pytest.fixture
def database(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[dict[str, str]]:
    """Give the site a PostgreSQL with the ledger, and a backend that enqueues there; yield the variables for it."""
    words = conninfo_to_dict(ledger_url)
    settings: dict[str, Any] = connections.settings["default"]
    place = {"NAME": str(words["dbname"]), "HOST": str(words["host"]), "USER": str(words["user"])}
    for name, value in {**place, "ENGINE": "django.db.backends.postgresql"}.items():
        monkeypatch.setitem(settings, name, value)
    with suppress(AttributeError):  # this thread has none yet
        del connections["default"]
    with connections["default"].schema_editor() as editor:
        editor.create_model(Poll)
    with override_settings(TASKS={"default": {**of_site.TASKS["default"], "OPTIONS": {"ledger": True}}}):
        yield {"SITE_LEDGER": "1", "SITE_DATABASE": place["NAME"], "SITE_HOST": place["HOST"]}
    connections["default"].close()
    del connections["default"]


def open_poll(question: str, to: str, *, fails: bool = False) -> Any:
    """Do as a view does: save, enqueue, and perhaps fail."""
    with transaction.atomic():
        Poll.objects.create(question=question)
        result = tasks.mail.enqueue(to)
        if fails:
            raise RuntimeError("the view failed")
    return result


def rows() -> list[Any]:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT id, queue, state, number FROM evsched_job")
        return cursor.fetchall()


def test_rollback_enqueues_nothing(site: str, database: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="the view failed"):
        open_poll("Tea?", "nobody@example.com", fails=True)
    assert (rows(), Poll.objects.count()) == ([], 0)
    result = open_poll("Coffee?", "bob@example.com")
    [row] = rows()
    assert row[:3] == (result.id.removesuffix("@mails"), "mails", "open")


def test_result_of_a_row_that_waits_for_a_relay(site: str, database: dict[str, str]) -> None:
    result = open_poll("Tea?", "bob@example.com")
    found = tasks.mail.get_result(result.id)
    assert (found.status, found.args, found.enqueued_at) == ("READY", ["bob@example.com"], result.enqueued_at)
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE evsched_job SET state = 'dead', reason = 'too long', finished_at = now()")
    found.refresh()
    assert (found.status, found.errors[0].traceback) == ("FAILED", "too long")
    with pytest.raises(TaskResultDoesNotExist):
        tasks.mail.get_result("0@mails")


@pytest.mark.extra
def test_examples_of_the_page_run_as_printed(
    site: str, database: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("tests.django.polls.page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = vars(module)
    names |= {"Poll": Poll, "question": "Tea?", "poll": Poll.objects.create(question="Coffee?")}
    of_tasks = "django_tasks" if django.VERSION < (6, 0) else "django.tasks"  # as the page says
    with ExitStack() as changed:
        changed.enter_context(override_settings(EMAIL_BACKEND="django.core.mail.backends.locmem.EmailBackend"))
        for one in examples("docs/django.md"):
            example = replace(one, text=one.text.replace("django.tasks", of_tasks))
            if example.text.startswith('"OPTIONS": '):
                if "ledger" in example.text:
                    asyncio.run(run_jobs(site, make_app()))
                    assert [len(mail.outbox), rows()] == [2, []]
                names["TASKS"]["default"] |= eval(f"{{{example.text}}}")
            else:
                example.run(names)
            if "OPTIONS" in example.text or "TASKS" in example.text:
                changed.enter_context(override_settings(TASKS=names["TASKS"]))
        assert [Poll.objects.count(), len(rows())] == [2, 1]
        assert names["invite"].enqueue("bob@example.com", 1).return_value == 1


def test_unique_task_of_a_transaction(site: str, database: dict[str, str]) -> None:
    with transaction.atomic():
        first = tasks.pay.enqueue(1, "4111")
        assert tasks.pay.enqueue(1, "4111").id == first.id
    assert len(rows()) == 1


async def test_enqueue_in_a_transaction_of_an_event_loop(site: str, database: dict[str, str]) -> None:
    result = await tasks.mail.aenqueue("bob@example.com")
    found = await tasks.mail.aget_result(result.id)
    assert (found.status, found.id) == ("READY", result.id)
    assert len(await sync_to_async(rows)()) == 1
    await redis_of(site).app.close()


def test_mail_of_a_rollback_is_not_sent(site: str, database: dict[str, str], tmp_path: Path) -> None:
    place = Site(site, tmp_path, **database)
    with ExitStack() as services:
        for words in (("ledger", "run"), ("dispatcher",), ("worker",)):
            services.enter_context(place.running(*words))
        with pytest.raises(RuntimeError, match="the view failed"):
            open_poll("Tea?", "nobody@example.com", fails=True)
        result = open_poll("Coffee?", "bob@example.com")
        [(*_, number)] = rows()
        wait_for(site, result, number)
        assert result.status == "SUCCESSFUL"
    assert place.sent_to() == ["bob@example.com"]


def test_mail_is_sent_once_though_the_worker_is_killed(site: str, tmp_path: Path) -> None:
    place = Site(site, tmp_path)
    with place.running("dispatcher"), place.running("worker", "--processes", "1"):
        result = wait_for(site, tasks.die_once_and_mail.enqueue("bob@example.com", str(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()
    assert place.sent_to() == ["bob@example.com"]
    assert (result.status, len({*result.worker_ids})) == ("SUCCESSFUL", result.attempts)
    assert [error.exception_class_path for error in result.errors] == ["evsched.django.WorkerDied"] * (
        result.attempts - 1
    )


def test_commands_have_the_settings_of_the_site(site: str, tmp_path: Path) -> None:
    place = Site(site, tmp_path)
    tasks.mail.enqueue("bob@example.com")
    assert "mails" in place.run("evsched", "queues").stdout
    assert "--processes" in place.run("evsched", "worker", "--help").stdout
    wrong = place.run("evsched", "wrker")
    assert (wrong.returncode, "did you mean worker" in wrong.stderr) == (2, True)


def test_variables_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVSCHED_URL", raising=False)
    words = {"NAME": "shop", "HOST": "db", "PORT": "5433", "USER": "bob", "PASSWORD": "a/b"}
    for name, value in {**words, "ENGINE": "django.db.backends.postgresql"}.items():
        monkeypatch.setitem(connections.settings["default"], name, value)
    options = {"url": "redis://r/1", "ledger": True, "codec": Codec(), "console": "/jobs/"}
    default = {**of_site.TASKS["default"], "OPTIONS": options}
    with override_settings(TASKS={"default": default}):
        found = environment(cast("Backend", task_backends["default"]))
    assert found["EVSCHED_URL"] == "redis://r/1"
    assert found["EVSCHED_CODEC"] == "evsched.django:app"
    assert found["EVSCHED_CONSOLE_SITE"] == "evsched.django:with_console"
    assert found["EVSCHED_LEDGER_URL"] == "postgresql://bob:a%2Fb@/shop?host=db&port=5433"
