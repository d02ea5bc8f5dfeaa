"""The acts on jobs: on one, on some that were chosen, or on all that match a search."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from evsched.client.client import Client
from evsched.client.edit import Changes
from evsched.client.sweep import Filter, Sweep, cancelling, dropping, rescheduling, reviving
from evsched.console.act_runs import ActRun, Form, Perform, UserActs, client_of, named_job
from evsched.console.page import Visit, address
from evsched.console.search import Search, read_search
from evsched.display import json_text
from evsched.errors import ConfigError, JobError, JobLate, JobMissing
from evsched.keys import check_queue
from evsched.store.store import Store


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


def on_jobs(name: str) -> Perform:
    act = JOB_ACTS[name]

    async def perform(acts: UserActs, visit: Visit, form: Form) -> str:
        due = visit.typed_due(form.get("due")) if act.takes_time else None
        chosen = [named_job(one) for one in form.all("job")]
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


async def edit(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, job = form.job()
    try:
        version, changes = form.get("version"), _changes(form, visit.typed_due(form.get("due")))
        done = await client_of(visit).edit(queue, job, version=version, **changes)
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


async def signal(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, job = form.job()
    name = form.get("signal")
    value = _json("value of the signal", form.get("value") or "null", Any, 'true or {"by": "ann"}')
    new = await client_of(visit).signal(queue, job, name, value)
    sentence = f"Signal {name:.200} was sent." if new else f"Signal {name:.200} had come before: it stays as it was."
    return acts.note(visit, sentence, "/job", changed=new, queue=queue, id=job)


def _changes(form: Form, due: float | None) -> Changes:
    """Return what a form changes. `due`: the new one; None = it stays.

    Raises:
        ConfigError: a field is not valid.
    """
    changes = Changes()
    if form.all("args"):  # a form of sealed arguments has no fields for them
        changes["args"] = _json("arguments by position", form.get("args"), list[Any], '[1, "two"]')
    if form.all("kwargs"):
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


async def again(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, job = form.job()
    copy = await client_of(visit).run_again(queue, job)
    return acts.note(visit, f"This is a copy of job {job:.200}, which is due now.", "/job", queue=queue, id=copy)


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
        await change_one(run, act, client, queue, job, due)


async def change_one(run: ActRun, act: JobAct, client: Client, queue: str, job: str, due: float | None) -> None:
    try:
        await act.one(client, check_queue(queue), job, due)
        run.done += 1
        run.examined += 1
    except (JobMissing, JobLate, ConfigError) as error:
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
