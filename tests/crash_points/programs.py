"""The programs of the scenes: they schedule jobs, and go on where they were when they start again.

A step that is done is written down, as a program does that keeps its progress in a database. The step at which it died
is repeated, in the way that the documentation gives for it: a call that was sent and has no answer may have been done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg

from evsched import App, JobError, JobMissing, JobRunning, StoreDown, TaskHandle, Unique
from evsched.client.sweep import Filter
from evsched.client.task_handle import SyncSession
from tests.crash_points import witness
from tests.crash_points.injection import FOLDER, append
from tests.crash_points.scenes import FAR, FAR_INLINE, INLINE, ONCE, ROWS, SUSPECT
from tests.crash_points.testimony import testimony
from tests.support.inline import id_of
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

LATER: Final = 1.0
"""Seconds until jobs are due that a program which died may schedule twice: it is back before."""
NEVER: Final = 60.0
"""Seconds until a job is due, or ends, that is to be moved or cancelled."""


def schedule() -> None:
    """Schedule jobs of all kinds; move, replace, cancel and revive some, and wait for a result."""
    app, queue, operator = witness.app, witness.queue, witness.app.client.without_loop()
    with app.sync() as client:
        # The app declares it too, but jobs may pass the gate before a worker starts.
        _step("limit", lambda: operator.limit(queue, group="g", concurrency=1))
        unique = witness.work.using(unique=Unique(within=600), on_conflict="keep")
        _step("unique", lambda: client.enqueue(unique, 0.05))
        _step("two unique ones", lambda: client.enqueue_many(unique, [(0,), (0.01,)]))
        _put(client, "plain", witness.work, delay=LATER)
        _put(client, "thread", witness.work_in_thread, delay=LATER)
        for name in ONCE:
            _put(client, name, witness.work_once, delay=LATER)
        _put(client, "fails", witness.fail_at_first, delay=LATER)
        _put(client, "snoozes", witness.snooze_at_first, delay=LATER)
        _put(client, "dies", witness.give_up, delay=LATER)
        _put(client, "sends", witness.send, f"{queue}-stream", delay=LATER)
        _put(client, "reports", witness.report, delay=LATER)
        _put(client, "expires", witness.work, delay=LATER, expires=1.0)
        _put(client, "group-1", witness.work, 0.1, delay=LATER, group="g")
        _put(client, "group-2", witness.work, 0.1, delay=LATER, group="g")
        _put(client, "replaced", witness.work, NEVER, delay=NEVER)
        _put(client, "moved", witness.work, delay=NEVER)
        _put(client, "gone", witness.work, delay=NEVER)
        _put(client, "cancelled", witness.work, NEVER)
        _put(client, "revived", witness.die_and_be_revived)
        _step("inline", lambda: _schedule_inline(app, LATER, '{"task":"work","id":"inline"}', *INLINE))
        replacement = witness.work.using(id="replaced", on_conflict="replace", delay=LATER)
        _step("replace", lambda: client.enqueue(replacement, 0))
        _step("pause", lambda: operator.pause(queue))
        _step("resume", lambda: operator.resume(queue))
        _step("move", lambda: client.job("moved").reschedule(), JobMissing, JobRunning)
        _step("cancel", lambda: client.job("gone").cancel(), JobMissing)
        _await(lambda: any(line[:2] == ("start", "cancelled") for line in testimony()))
        _step("stop", lambda: client.job("cancelled").cancel(), JobMissing)
        _await(lambda: client.job("revived").status().place in ("dead", "finished"))
        _step("revive", lambda: operator.revive(queue, ["revived"]), JobMissing)
        _step("result", lambda: client.job("plain").result(PATIENCE))


def schedule_suspects() -> None:
    """Schedule jobs that workers held when they died, as Redis remembers it, and one for a process of the pool."""
    redis, suspects = plain_client(witness.app.url), f"evsched:{{{witness.queue}}}:suspects"
    redis.hset(
        suspects,
        mapping={
            id_of(SUSPECT.encode()): "2 0",
            "isolated": "2 0",
            "alone": "4 1",
            "doubtful": "1 1",
            "isolated-once": "2 1",
        },
    )
    with witness.app.sync() as client:
        for name in ("isolated", "alone", "doubtful"):
            _put(client, name, witness.work, 0.05)
        _put(client, "isolated-once", witness.work_once)
        _put(client, "process", witness.work_in_process)
        _step("inline", lambda: _schedule_inline(witness.app, 0, SUSPECT))


def schedule_killer() -> None:
    """Schedule a job that kills its worker, with others that the worker holds then; and one when no worker runs."""
    redis, leases = plain_client(witness.app.url), f"evsched:{{{witness.queue}}}:leases"
    with witness.app.sync() as client:
        for n in range(3):
            _put(client, f"held-{n}", witness.work, 0.3)
        _put(client, "kills", witness.die_at_first)
        _step("result", lambda: client.job("kills").result(PATIENCE))
        _await(lambda: redis.zcard(leases) == 0)
        _put(client, "last", witness.work)
        _step("last result", lambda: client.job("last").result(PATIENCE))


def insert_rows() -> None:
    """Commit rows to the ledger: jobs, one that is moved, one that is cancelled."""
    with psycopg.connect(os.environ["EVSCHED_LEDGER_URL"], autocommit=True) as rows:
        for n in range(ROWS):
            witness.work.using(id=f"row-{n}").enqueue_in_sync(rows, 0.05)
        witness.work.using(id="row-moved", delay=NEVER).enqueue_in_sync(rows)
        witness.work.using(id="row-gone", delay=NEVER).enqueue_in_sync(rows)
        witness.give_up.using(id="row-dies").enqueue_in_sync(rows)
        redis = plain_client(witness.app.url)
        waiting = [f"evsched:{{{witness.queue}}}:job:{name}" for name in ("row-gone", "row-moved")]
        _await(lambda: redis.exists(*waiting) == len(waiting))
        witness.app.job("row-moved").reschedule_in_sync(rows)
        witness.app.job("row-gone").cancel_in_sync(rows)
        not_ended = "SELECT count(*) FROM evsched_job WHERE state = 'open'"
        _await(lambda: rows.execute(not_ended).fetchone() == (0,))


def schedule_far() -> None:
    """Schedule jobs that a change of the number of shards moves."""
    with witness.app.sync() as client:
        for n in range(FAR):
            _put(client, f"far-{n}", witness.work, delay=3600)
    _step("inline", lambda: _schedule_inline(witness.app, 3600, *FAR_INLINE))


def run_far() -> None:
    """Make those jobs due, wherever they are."""
    witness.app.client.without_loop().reschedule_matching(witness.queue, Filter(task="work"), None)


def _put(client: SyncSession, name: str, task: TaskHandle[..., Any], *args: Any, **options: Any) -> None:
    """Schedule a job of this id; a repetition keeps the job that exists."""
    _step(name, lambda: client.enqueue(task.using(id=name, on_conflict="keep", **options), *args))


def _schedule_inline(app: App, delay: float, *members: str) -> None:
    """Schedule jobs as a client without a library does: the payload is the member."""
    with plain_client(app.url) as redis:
        due = redis.time()[0] + delay
        redis.zadd(f"evsched:{{{app.queue}}}:schedule", dict.fromkeys(members, due))


def _step(name: str, action: Callable[[], object], *harmless: type[JobError]) -> None:
    """Do a step unless it is done. `harmless`: what a repetition may meet if the first call was done."""
    file = Path(os.environ[FOLDER]) / "steps"
    if file.exists() and name in file.read_text().splitlines():
        return
    while True:
        try:
            action()
            break
        except harmless:
            break
        except StoreDown:
            time.sleep(0.05)
    append(file, name)


def _await(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)
