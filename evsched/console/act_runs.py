"""The acts that users ask the console for: each is performed as them, once, and is in the audit trail.

Each act is a form that a page has and `/act/NAME` takes. Short ones are done when the answer comes; acts on many jobs
go on by themselves, a slice at a time, on a page that shows how far they are. They end with the process: the page of
the search says how many jobs are left, and the same act does the rest.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException

from evsched.client.client import Client
from evsched.console.page import Visit, address
from evsched.console.users import Refused, Role
from evsched.errors import ConfigError, EvschedError
from evsched.jobs import option_checks as check
from evsched.keys import check_queue

_logger: Final = logging.getLogger("evsched")

_KEPT: Final = 100
"""Acts whose end is remembered."""

_FAILURES: Final = 20
"""Jobs of an act that are named because they were not changed."""

Fields = Sequence[tuple[str, str]]


class ActRun:
    """An act on many jobs, or the end of a short one."""

    def __init__(self, title: str, by: str, back: str) -> None:
        self.id = secrets.token_hex(8)
        self.title, self.by, self.back = title, by, back
        self.begun = time.time()
        self.ended: float | None = None
        self.done = 0
        """Jobs that were changed."""
        self.left = 0
        """Jobs that were found, and were not as they had been when it was their turn."""
        self.examined = 0
        self.total = 0
        self.sentence = ""
        self.failures = list[tuple[str, str, str]]()
        """Queue, id, and why it was not changed."""
        self.stopping = False
        self.changed = True
        """Whether a short one has changed anything."""
        self.secret = ""
        """A new token, until it is shown."""
        self.link: tuple[str, str] = ("", "")
        """The address of the job that it made, and the words of the link; empty = there is no link."""
        self.draft = dict[str, str]()
        """The fields of a form that was refused, for the next one; `title` says why."""

    def leave(self, queue: str, job: str, why: str) -> None:
        """Note a job that was left as it was."""
        self.left += 1
        self.examined += 1
        if len(self.failures) < _FAILURES:
            self.failures.append((queue, job, why))

    def take_secret(self) -> str:
        """Return the secret, once."""
        secret, self.secret = self.secret, ""
        return secret


class Form:
    """The fields of a form. Those that are missing are empty."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def get(self, name: str) -> str:
        return next((value.strip() for known, value in self._fields if known == name), "")

    def all(self, name: str) -> list[str]:
        return [value for known, value in self._fields if known == name]

    def texts(self) -> dict[str, str]:
        """Return the first value of each field."""
        return dict(reversed(self._fields))

    def queue(self) -> str:
        """Return the queue that the form is about.

        Raises:
            ConfigError: the name is not valid.
        """
        return check_queue(self.get("queue"))

    def group(self) -> str | None:
        """Return the group that the form names; None if it has no such field.

        Raises:
            ConfigError: the name is not valid.
        """
        if not (given := self.all("group")):
            return None
        name = given[0].strip() or given[0]
        check.group("group", name)
        return name

    def job(self, name: str = "job") -> tuple[str, str]:
        """Return the queue and the id that the form names, `QUEUE ID`. `name`: of the field.

        Raises:
            ConfigError: it names none.
        """
        return named_job(self.get(name), name)

    def number(self, name: str) -> float | None:
        """Return a number; None if the field is empty.

        Raises:
            ConfigError: it is not a number.
        """
        text = self.get(name).removesuffix("/s")
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{name}: {text!r:.60} is not a number, such as 20") from None


def named_job(text: str, what: str = "job") -> tuple[str, str]:
    queue, _, job = text.partition(" ")
    if not text:
        raise ConfigError(f"the form names no {what}: choose one")
    if not queue or not job:
        raise ConfigError(f"{text!r:.60} does not name a {what}: write its queue, a space, and the {what}")
    return check_queue(queue), job


Perform = Callable[["UserActs", Visit, Form], Awaitable[str]]
"""Does what a form asks for, and returns the path of the page that shows it."""


class UserActs:
    """The acts of one console that run, and the last ones that have ended. `table`: all acts, by name."""

    def __init__(self, table: Mapping[str, tuple[Role, Perform]]) -> None:
        self._table = table
        self._runs = dict[str, ActRun]()
        self._tasks = set[asyncio.Task[None]]()

    def find(self, run_id: str) -> ActRun | None:
        return self._runs.get(run_id)

    def notice(self, run_id: str) -> ActRun | None:
        """Return the short act whose end a page shows; None = none."""
        found = self._runs.get(run_id)
        return found if found is not None and found.sentence and found.ended is not None else None

    async def perform(self, name: str, visit: Visit, fields: Fields) -> str:
        """Perform an act, and return the path of the page that shows it.

        Raises:
            Refused: the user's role does not allow it.
            ConfigError: a field of the form is not valid.
            EvschedError: it was not done.
        """
        if name not in self._table:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        needs, act = self._table[name]
        if not visit.visitor.may(needs):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"this is for the role {needs}, and yours is {visit.visitor.role}: nothing was done",
            )
        return await act(self, visit, Form(fields))

    def note(
        self,
        visit: Visit,
        sentence: str,
        path: str,
        /,
        *,
        changed: bool = True,
        secret: str = "",
        link: tuple[str, str] = ("", ""),
        **parameters: str,
    ) -> str:
        """Remember how a short act ended, and return the path of the page that says so.

        `secret`: shown only there, once, and only to this user; `sentence` may be seen by all. `changed` and `link`:
        see `ActRun`.
        """
        run = self._new(sentence, visit, path)
        run.changed, run.secret, run.link = changed, secret, link
        run.sentence, run.ended = sentence, time.time()
        return address("", path, **parameters, act=run.id)

    def draft(self, visit: Visit, problem: str, form: Form, path: str, /, **parameters: str) -> str:
        """Remember a form that was refused, and return the path of the page where this user can correct it."""
        run = self._new(problem, visit, path)
        run.draft, run.ended = form.texts(), time.time()
        return address("", path, **parameters, draft=run.id)

    def _new(self, title: str, visit: Visit, back: str) -> ActRun:
        run = ActRun(title, visit.visitor.name, back)
        while len(self._runs) >= _KEPT:
            ended = next((known for known, one in self._runs.items() if one.ended is not None), None)
            if ended is None:
                raise EvschedError(f"{_KEPT} acts run already: wait until one has ended")
            del self._runs[ended]
        self._runs[run.id] = run
        return run

    def begin(self, title: str, visit: Visit, back: str, work: Callable[[ActRun], Awaitable[None]]) -> str:
        """Begin an act that goes on by itself, and return the path of its page."""
        run = self._new(title, visit, back)

        async def go() -> None:
            try:
                await work(run)
            except EvschedError as error:
                run.sentence = f"It stopped: {error}. The same act does the rest."

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                run.sentence = "It failed. This is a bug of evsched: the log of the console has the traceback."
                _logger.error("an act of a user failed: %s", title, exc_info=error)
            run.ended = time.time()

        task = asyncio.create_task(go())
        self._tasks.add(task)
        task.add_done_callback(end)
        return address("", "/act", id=run.id)

    async def wait(self) -> None:
        """Wait until all acts have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.wait()


def client_of(visit: Visit) -> Client:
    """Return the client that acts as the user."""
    return visit.client.as_operator(visit.visitor.name, "console")


def until_words(visit: Visit, until: float | None) -> str:
    """Return until when a pause lasts, as a part of a sentence."""
    return "" if until is None else f" until {visit.console.pages.clock.text(until)} {visit.zone}"
