"""The acts that users ask the console for: each is performed as them, once, and is in the audit trail.

Each act is a form that a page has and `/act/NAME` takes. Short ones are done when the answer comes; acts on many jobs
go on by themselves, a slice at a time, on a page that shows how far they are. They end with the process: the page of
the search says how many jobs are left, and the same act does the rest.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException

from evsched.batches.member import OUTCOMES, with_codes
from evsched.client import recurrence_operations, spread
from evsched.client.client import Client
from evsched.client.edit import Changes
from evsched.client.sweep import Filter, Sweep, cancelling, dropping, rescheduling, reviving
from evsched.console.page import Visit, address
from evsched.console.search import Search, read_search
from evsched.console.users import Refused, Role, make_token, remove_token
from evsched.display import json_text
from evsched.errors import ConfigError, EvschedError, JobError, JobMissing
from evsched.jobs import option_checks as check
from evsched.keys import check_queue
from evsched.store.acts import Operator, named_operator
from evsched.store.batch_calls import BatchRecord
from evsched.store.store import Store

_logger: Final = logging.getLogger("evsched")

_KEPT: Final = 100
"""Acts whose end is remembered."""

_FAILURES: Final = 20
"""Jobs of an act that are named because they were not changed."""

_MEMBERS: Final = 100
"""Jobs of a batch that one step of an act looks for."""

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
        return _named_job(self.get(name))

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


def _named_job(text: str) -> tuple[str, str]:
    queue, _, job = text.partition(" ")
    if not queue or not job:
        raise ConfigError(f"the form names {text!r:.60}, and not a queue with a job of it: QUEUE ID")
    return check_queue(queue), job


Perform = Callable[["UserActs", Visit, Form], Awaitable[str]]
"""Does what a form asks for, and returns the path of the page that shows it."""


class UserActs:
    """The acts of one console that run, and the last ones that have ended."""

    def __init__(self) -> None:
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
        if name not in ACTS:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        needs, act = ACTS[name]
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


def _until(visit: Visit, until: float | None) -> str:
    """Return until when a pause lasts, as a part of a sentence."""
    return "" if until is None else f" until {visit.console.pages.clock.text(until)} {visit.zone}"


# Queues.


async def _check_used(visit: Visit, queue: str) -> None:
    """Refuse a queue that has never been used: its name is probably misspelt.

    Raises:
        ConfigError
    """
    client = visit.client
    if unknown := await client.run(spread.never_used(client.shards, client.store, queue)):
        raise ConfigError(unknown)


async def _pause(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, until = form.queue(), visit.typed_time(form.get("until"))
    await _check_used(visit, queue)
    await client_of(visit).pause(queue, until=until, why=form.get("why"))
    return acts.note(
        visit, f"Queue {queue} is paused{_until(visit, until)}. Jobs that run now finish.", "/queue", name=queue
    )


async def _resume(acts: UserActs, visit: Visit, form: Form) -> str:
    queue = form.queue()
    since = await client_of(visit).resume(queue)
    sentence = f"Queue {queue} is resumed." if since is not None else f"Queue {queue} was not paused."
    return acts.note(visit, sentence, "/queue", changed=since is not None, name=queue)


async def _limit(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, group, task = form.queue(), form.group(), form.get("task") if form.all("task") else None
    if task is not None:
        check.text("task", task)
    await _check_used(visit, queue)
    limits: dict[str, Any] = {
        name: form.number(name) for name in ("concurrency", "rate", "burst", "weight") if form.all(name)
    }
    await client_of(visit).limit(queue, group=group, task=task, **limits)
    whose = f"group {group}" if group else f"task {task}" if task else f"queue {queue}"
    return acts.note(visit, f"The limits of {whose} are set.", "/queue", name=queue)


# Recurrences.


async def _trigger(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, name = form.job("recurrence")
    client = client_of(visit)
    job = await client.trigger(queue, name)
    link = (address("", "/job", queue=queue, id=job), "Open the run")
    sentence = f"{name} runs once more, now: the run is job {job}."
    return acts.note(visit, sentence, "/recurrence", link=link, queue=queue, name=name)


async def _hold(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, name, client = form.queue(), form.get("name"), client_of(visit)
    until = visit.typed_time(form.get("until"))
    await client.run(recurrence_operations.pause(client.store(queue), name, until, form.get("why")))
    return acts.note(visit, f"{name} is paused{_until(visit, until)}.", "/recurrence", queue=queue, name=name)


async def _release(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, name, client = form.queue(), form.get("name"), client_of(visit)
    await client.send(client.store(queue).hold(name, False))
    return acts.note(visit, f"{name} is resumed.", "/recurrence", queue=queue, name=name)


async def _backfill(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, name, client = form.queue(), form.get("name"), client_of(visit)
    since, until = form.number("from"), form.number("to")
    if since is None or until is None:
        raise ConfigError("a backfill needs the span of its dry run: look at that first")
    found = await client.run(recurrence_operations.backfill(client.store(queue), name, since, until))
    one = found.requested == 1
    sentence = f"{found.requested:,} {'run' if one else 'runs'} of {name} {'was' if one else 'were'} requested"
    sentence += f", {found.known:,} ran before or have a job" if found.known else ""
    sentence += f", {found.left_out:,} were left out because too many wait: ask again later" if found.left_out else ""
    where = " Each is in Last runs once it has ended." if found.requested else ""
    return acts.note(visit, f"{sentence}.{where}", "/recurrence", queue=queue, name=name)


# Jobs: one, some that were chosen, or all that match.


class JobAct:
    """An act on jobs. `done`: the word for jobs that were changed."""

    def __init__(
        self,
        label: str,
        done: str,
        plan: Callable[[Sequence[Store], Filter, float | None], Sweep],
        one: Callable[[Client, str, str, float | None], Awaitable[Any]],
        *,
        takes_time: bool = False,
    ) -> None:
        self.label, self.done, self.plan, self.one = label, done, plan, one
        self.takes_time = takes_time


JOB_ACTS: Final = {
    "cancel": JobAct(
        "Cancel",
        "cancelled",
        lambda stores, matching, _: cancelling(stores, matching),
        lambda client, queue, job, _: client.cancel(queue, job),
    ),
    "reschedule": JobAct(
        "Reschedule",
        "rescheduled",
        lambda stores, matching, due: rescheduling(stores, matching, due, None),
        lambda client, queue, job, due: client.reschedule(queue, job, due),
        takes_time=True,
    ),
    "revive": JobAct(
        "Revive",
        "revived",
        lambda stores, matching, _: reviving(stores, matching),
        lambda client, queue, job, _: client.revive(queue, [job]),
    ),
    "drop": JobAct(
        "Drop",
        "dropped",
        lambda stores, matching, _: dropping(stores, matching),
        lambda client, queue, job, _: client.drop(queue, [job]),
    ),
}


def _on_jobs(name: str) -> Perform:
    act = JOB_ACTS[name]

    async def perform(acts: UserActs, visit: Visit, form: Form) -> str:
        due = visit.typed_due(form.get("due")) if act.takes_time else None
        chosen = [_named_job(one) for one in form.all("job")]
        client = client_of(visit)
        if len(chosen) == 1:
            ((queue, job),) = chosen
            await act.one(client, queue, job, due)
            sentence = f"Job {job:.200} was {act.done}."
            if name in ("cancel", "drop"):  # its record is gone
                return acts.note(visit, sentence, "/queue", name=queue)
            return acts.note(visit, sentence, "/job", queue=queue, id=job)
        if chosen:
            return acts.begin(
                f"{act.label} {len(chosen)} jobs",
                visit,
                "/jobs",
                lambda run: _change_each(run, act, client, chosen, due),
            )
        wanted = read_search(form.get("q"), visit.zone)
        queues = wanted.queues or await visit.console.queues(visit.client)
        matching_of(wanted)
        back = address("", "/jobs", q=form.get("q"))
        title = f"{act.label} the jobs that match {form.get('q')}"
        return acts.begin(title, visit, back, lambda run: _change_all(run, act, client, queues, wanted, due))

    return perform


async def _edit(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, job = form.job()
    try:
        cap = visit.console.config.payload_cap
        version, changes = form.get("version"), _changes(form, visit.typed_due(form.get("due")))
        done = await client_of(visit).edit(queue, job, version=version, payload_cap=cap, **changes)
    except (ConfigError, JobError) as error:
        return acts.draft(visit, str(error), form, "/edit", queue=queue, id=job)
    what = ", ".join(_PARTS[name] for name in done.changed)
    sentence = f"Job {job:.200} has changed: {what}." if what else f"Job {job:.200} is as it was."
    return acts.note(visit, sentence, "/job", changed=bool(what), queue=queue, id=job)


_PARTS: Final = {
    "args": "its arguments by position",
    "kwargs": "its arguments by name",
    "tags": "its tags",
    "priority": "its priority",
    "group": "its group",
    "due": "when it is due",
}
"""How a sentence names what an edit changes."""


async def _signal(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, job = form.job()
    signal = form.get("signal")
    value = _json("value of the signal", form.get("value") or "null", Any, 'true or {"by": "ann"}')
    new = await client_of(visit).signal(queue, job, signal, value)
    sentence = (
        f"Signal {signal:.200} was sent." if new else f"Signal {signal:.200} had come before: it stays as it was."
    )
    return acts.note(visit, sentence, "/job", changed=new, queue=queue, id=job)


def _changes(form: Form, due: float | None) -> Changes:
    """Return what a form changes. `due`: the new one; None = it stays.

    Raises:
        ConfigError: a field is not valid.
    """
    changes = Changes(args=_json("arguments by position", form.get("args"), list[Any], '[1, "two"]'))
    changes["kwargs"] = _json("arguments by name", form.get("kwargs"), dict[str, Any], '{"name": 1}')
    if form.get("priority") != form.get("shown_priority"):
        if not re.fullmatch("[0-9]", text := form.get("priority")):
            raise ConfigError(f"priority: {text!r:.60} is not a whole number from 0 to 9")
        changes["priority"] = int(text)
    if form.all("group") != form.all("shown_group"):
        changes["group"] = form.group() if form.all("group") != [""] else None
    if form.get("tags") != form.get("shown_tags"):
        changes["tags"] = form.get("tags").split()
    if due is not None:
        changes["due"] = due
    return changes


def _json(what: str, text: str, kind: Any, example: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        meant = f"[{json_text(text)}]" if kind == list[Any] else json_text(text)
        quotes = "" if set(text) & set('"[{') or example.startswith("{") else f", and text in quotes: {meant}"
        raise ConfigError(f"the {what} cannot be read ({why}): write JSON such as {example}{quotes:.300}") from None


async def _again(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, job = form.job()
    copy = await client_of(visit).run_again(queue, job)
    return acts.note(visit, f"This is a copy of job {job:.200}, which is due now.", "/job", queue=queue, id=copy)


async def _quiet_worker(acts: UserActs, visit: Visit, form: Form) -> str:
    worker = form.get("worker")
    await client_of(visit).quiet_worker(worker, visit.console.config.queues)
    return acts.note(visit, f"{worker:.200} was asked to fetch no more jobs.", "/workers")


async def _stop_worker(acts: UserActs, visit: Visit, form: Form) -> str:
    worker = form.get("worker")
    await client_of(visit).stop_worker(worker, visit.console.config.queues)
    return acts.note(visit, f"{worker:.200} was asked to stop.", "/workers")


def matching_of(wanted: Search) -> Filter:
    """Return the filter of an act on all jobs that match a search.

    Raises:
        ConfigError: the search cannot be read, names no condition, or one that an act cannot check as it changes a job.
    """
    if wanted.problem:
        raise ConfigError(wanted.problem)
    if wanted.id:
        raise ConfigError(f"{wanted.id:.60} is read as an id: choose jobs in the list, or write task:{wanted.id:.60}")
    if wanted.by:
        raise ConfigError("all jobs of by: cannot be changed at once: choose them in the list, or leave by: out")
    if wanted.filter.is_empty and (wanted.places or wanted.queues):
        return Filter(older=0.0)  # only the jobs that are there by now, so that it ends
    return wanted.filter


def planned(act: JobAct, stores: Sequence[Store], wanted: Search, due: float | None = None) -> Sweep:
    """Return the sweep of an act on all jobs that match a search. Raises as `matching_of`."""
    sweep = act.plan(stores, matching_of(wanted), due)
    return sweep.within(wanted.places) if wanted.places else sweep


async def _change_each(
    run: ActRun, act: JobAct, client: Client, chosen: Sequence[tuple[str, str]], due: float | None
) -> None:
    run.total = len(chosen)
    for queue, job in chosen:
        if run.stopping:
            break
        await _change_one(run, act, client, queue, job, due)


async def _change_one(run: ActRun, act: JobAct, client: Client, queue: str, job: str, due: float | None) -> None:
    try:
        await act.one(client, check_queue(queue), job, due)
        run.done += 1
        run.examined += 1
    except (JobMissing, ConfigError) as error:
        run.leave(queue, job, str(error))


async def _change_all(
    run: ActRun, act: JobAct, client: Client, queues: Sequence[str], wanted: Search, due: float | None
) -> None:
    for queue in queues:
        sweep, more = planned(act, await client.whole(queue), wanted, due), True
        done, left, examined = run.done, run.left, run.examined
        while more and not run.stopping:
            more = await client.run(sweep.step())
            run.done, run.left = done + sweep.swept.changed, left + sweep.swept.left
            run.examined, run.total = examined + sweep.examined, max(run.total, examined + sweep.total)


async def _stop(acts: UserActs, visit: Visit, form: Form) -> str:
    run = acts.find(form.get("id"))
    if run is None:
        raise ConfigError("this act is not known here any more: look at the audit trail")
    run.stopping = True
    return address("", "/act", id=run.id)


# Batches.


async def _cancel_batch(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, batch, client = form.queue(), form.get("id"), client_of(visit)
    state = await client.send(client.store(queue).batch_close(batch, how="cancelled"))
    sentence = f"Batch {batch:.200} is {'being cancelled' if state == 'running' else state}."
    return acts.note(visit, sentence, "/batch", queue=queue, id=batch)


async def _revive_batch(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, batch, client = form.queue(), form.get("id"), client_of(visit)
    found = await client.send(client.store(queue).batch(batch))
    if found is None:
        raise JobMissing(f"{batch:.200} is not a batch of queue {queue}, or its retention is over")
    back = address("", "/batch", queue=queue, id=batch)
    title = f"Revive the dead jobs of batch {batch}"
    return acts.begin(title, visit, back, lambda run: _revive_members(run, client, found))


async def _revive_members(run: ActRun, client: Client, record: BatchRecord) -> None:
    store, dead, first = client.store(record.queue), [OUTCOMES.index("dead")], 0
    run.total = record.dead
    while not run.stopping:
        walk = with_codes(store, record.id, record.ordinals, dead, _MEMBERS, first)
        found = await client.run(walk)
        for member in found:
            if run.stopping:
                break
            if member.batch is not None:
                run.leave(member.queue, member.batch, "it is a batch: revive the dead jobs in it")
            else:
                await _change_one(run, JOB_ACTS["revive"], client, member.queue, member.id, None)
        if len(found) < _MEMBERS:
            break
        first = found[-1].ordinal + 1


# Users.


def _operator(visit: Visit) -> Operator:
    return named_operator(visit.visitor.name, "console")


async def _make_token(acts: UserActs, visit: Visit, form: Form) -> str:
    if visit.console.config.console_proxies:
        raise ConfigError("a proxy signs users in here, so tokens are not used: give roles with --user NAME=ROLE")
    role: Any = form.get("role")
    name = form.get("name")
    secret = await visit.client.run(make_token(name, role, time.time(), _operator(visit)))
    return acts.note(visit, f"{name} has a new token, as {role}.", "/tokens", secret=secret)


async def _remove_token(acts: UserActs, visit: Visit, form: Form) -> str:
    name = form.get("name")
    done = await visit.client.run(remove_token(name, _operator(visit)))
    return acts.note(visit, f"{done or f'{name} had no token'}.", "/tokens", changed=bool(done))


ACTS: Final[dict[str, tuple[Role, Perform]]] = {
    "pause": ("operator", _pause),
    "resume": ("operator", _resume),
    "limit": ("operator", _limit),
    "trigger": ("operator", _trigger),
    "hold": ("operator", _hold),
    "release": ("operator", _release),
    "backfill": ("operator", _backfill),
    "again": ("operator", _again),
    "edit": ("operator", _edit),
    "signal": ("operator", _signal),
    "quiet-worker": ("operator", _quiet_worker),
    "stop-worker": ("operator", _stop_worker),
    "stop": ("operator", _stop),
    "cancel-batch": ("operator", _cancel_batch),
    "revive-batch": ("operator", _revive_batch),
    "make-token": ("admin", _make_token),
    "remove-token": ("admin", _remove_token),
    **{name: ("operator", _on_jobs(name)) for name in JOB_ACTS},
}
"""By the name of the form: the role that it needs, and what it does."""
