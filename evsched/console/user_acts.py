"""The acts on queues, recurrences, workers, batches and users, and the table of all acts. See also job_acts.py."""

from __future__ import annotations

import time
from typing import Any, Final

from evsched.batches import pausing
from evsched.batches.batch import Batch
from evsched.batches.member import OUTCOMES, with_codes
from evsched.client import recurrence_operations, spread
from evsched.client.client import Client
from evsched.console.act_runs import ActRun, Form, Perform, UserActs, client_of, until_words
from evsched.console.job_acts import JOB_ACTS, again, change_one, edit, on_jobs, signal
from evsched.console.page import Visit, address
from evsched.console.users import Role, make_token, remove_token
from evsched.errors import ConfigError, JobMissing
from evsched.jobs import option_checks as check
from evsched.store.acts import Operator, named_operator
from evsched.store.batch_calls import BatchRecord

_MEMBERS: Final = 100
"""Jobs of a batch that one step of an act looks for."""


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
        visit, f"Queue {queue} is paused{until_words(visit, until)}. Jobs that run now finish.", "/queue", name=queue
    )


async def _resume(acts: UserActs, visit: Visit, form: Form) -> str:
    queue = form.queue()
    await _check_used(visit, queue)
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
    return acts.note(visit, f"{name} is paused{until_words(visit, until)}.", "/recurrence", queue=queue, name=name)


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


# Workers, and acts that run.


async def _quiet_worker(acts: UserActs, visit: Visit, form: Form) -> str:
    worker = form.get("worker")
    await client_of(visit).quiet_worker(worker, visit.console.config.queues)
    return acts.note(visit, f"{worker:.200} was asked to fetch no more jobs.", "/workers")


async def _stop_worker(acts: UserActs, visit: Visit, form: Form) -> str:
    worker = form.get("worker")
    await client_of(visit).stop_worker(worker, visit.console.config.queues)
    return acts.note(visit, f"{worker:.200} was asked to stop.", "/workers")


async def _stop(acts: UserActs, visit: Visit, form: Form) -> str:
    run = acts.find(form.get("id"))
    if run is None:
        raise ConfigError("this act is not known here any more: look at the audit trail")
    run.stopping = True
    return address("", "/act", id=run.id)


# Batches.


async def _cancel_batch(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, batch, client = form.queue(), form.get("id"), client_of(visit)
    queues = pausing.ShardFinder(client.store, client.shards)
    state = await client.run(pausing.cancel(client.store(queue), queues, batch))
    sentence = f"Batch {batch:.200} is {'being cancelled' if state == 'running' else state}."
    return acts.note(visit, sentence, "/batch", queue=queue, id=batch)


async def _pause_batch(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, batch, until = form.queue(), form.get("id"), visit.typed_time(form.get("until"))
    await Batch(batch, queue, client_of(visit)).pause(until=until, why=form.get("why"))
    sentence = f"Batch {batch:.200} is paused{until_words(visit, until)}. Jobs that run now go on."
    return acts.note(visit, sentence, "/batch", queue=queue, id=batch)


async def _resume_batch(acts: UserActs, visit: Visit, form: Form) -> str:
    queue, batch = form.queue(), form.get("id")
    since = await Batch(batch, queue, client_of(visit)).resume()
    sentence = f"Batch {batch:.200} {'was not paused' if since is None else 'is resumed'}."
    return acts.note(visit, sentence, "/batch", changed=since is not None, queue=queue, id=batch)


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
        whys = await client.send(store.batch_failures(record.id, [member.ordinal for member in found])) if found else []
        for member, why in zip(found, whys, strict=True):
            if run.stopping:
                break
            if member.batch is not None and why is None:
                run.leave(member.queue, member.batch, "it is a batch: revive the dead jobs in it")
            else:  # the home starts a node that has no job
                queue = member.queue if why is None else record.queue
                await change_one(run, JOB_ACTS["revive"], client, queue, member.batch or member.id, None)
        if len(found) < _MEMBERS:
            break
        first = found[-1].ordinal + 1


# Users.


def _operator(visit: Visit) -> Operator:
    return named_operator(visit.visitor.name, "console")


async def _make_token(acts: UserActs, visit: Visit, form: Form) -> str:
    if visit.console.config.console_proxies:
        raise ConfigError("a proxy signs users in here, so tokens are not used: give roles with --user NAME=ROLE")
    if visit.console.access.elsewhere:
        raise ConfigError("the application signs users in here, so tokens are not used: it gives the roles")
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
    "again": ("operator", again),
    "edit": ("operator", edit),
    "signal": ("operator", signal),
    "quiet-worker": ("operator", _quiet_worker),
    "stop-worker": ("operator", _stop_worker),
    "stop": ("operator", _stop),
    "cancel-batch": ("operator", _cancel_batch),
    "pause-batch": ("operator", _pause_batch),
    "resume-batch": ("operator", _resume_batch),
    "revive-batch": ("operator", _revive_batch),
    "make-token": ("admin", _make_token),
    "remove-token": ("admin", _remove_token),
    **{name: ("operator", on_jobs(name)) for name in JOB_ACTS},
}
"""By the name of the form: the role that it needs, and what it does."""
