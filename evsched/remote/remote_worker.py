"""A worker in another process, for one of its requests.

A fetch registers the worker and its tasks (`heartbeat`), starts jobs (`start`), and prepares each as our own workers
do: a job that cannot run ends or is put off here. The others are marked as begun and returned. While a fetch waits, it
moves no job, so none is lost if the worker stops waiting.

If the reply to a fetch is lost, the worker holds jobs that it does not know. So each fetch names the jobs that the
worker knows, and also returns the others that it holds.

A run is known to its worker by a token, which is the run's name in Redis and, if the job is in a shard, the shard.
Redis compares it whenever a run ends or is kept alive.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from evsched.client.client import Client
from evsched.client.operations import Wait
from evsched.config import Config
from evsched.errors import ConfigError, RunGone
from evsched.events import Emit, Started
from evsched.execution.deferral import UNKNOWN_MOST, RunStore, UnknownTasks, check_window
from evsched.execution.failure import cut_traceback
from evsched.execution.program import Program
from evsched.execution.run import Delivery, Failed, NoTask, Prepared, Run, judge, read_payload
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Buried, Deferred, FetchedJob, Outcome, Payload, decode, is_not_finite
from evsched.jobs.record import number, unknown_since
from evsched.jobs.retry import NAME_MOST, Retry, read_policy, task_of
from evsched.jobs.sealed import Sealed, beside_seal
from evsched.jobs.tasks import Task, Tasks, define
from evsched.keys import NAME
from evsched.lease import Times
from evsched.runtime.loops import background, first_of
from evsched.store import server
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.store.worker_calls import Renewed
from evsched.worker.exchange import events_of, is_end_of

PREFIX: Final = "http:"
"""Before the name of such a worker in Redis: it cannot take the jobs of one of ours, and operators see what it is."""

WORKER_NAME_MOST: Final = 200 - len(PREFIX)
"""Characters of the name of such a worker."""

_BLOCK: Final = 10.0
"""Seconds of one wait in Redis. Then the next begins, so a connection that died silently costs no more."""

_NOTE_MOST: Final = 200
"""Characters of a progress's note, as for our own handlers."""

_STOPPED: Final = "worker {} was stopped while it ran"

_UNREADABLE: Final = Payload("?")
"""In place of a payload that a producer has overwritten during the run, and that is not valid."""


class RemoteJob(Struct, frozen=True):
    """A job for the worker to run. `args`, `kwargs`, `meta` and `sealed` are as the producer wrote them."""

    id: str
    run: str
    """The token of this run: send it with every request about the job."""
    task: str
    args: Raw
    kwargs: Raw
    attempt: int
    """The number of this run, from 1."""
    attempts: int
    """How many the job may have."""
    due: float
    planned: float
    """The due of the first attempt, or the planned time of an occurrence: the same for all attempts."""
    timeout: float | None
    """Seconds that the run may take; null = no limit."""
    meta: Raw
    sealed: Sealed | None = None
    """Arguments that the worker is to open, and that come before `args`; null = there are none."""


class HeldRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A run that a worker says it has. `run`: its token."""

    id: str
    run: str
    progress: Progress | None = None


class HeartbeatResult(Struct, frozen=True):
    """The result of a heartbeat: ids of runs that are to stop, and of runs that belong to the worker no longer."""

    stop: list[str]
    lost: list[str]


class _Parts(Struct, frozen=True):
    """The parts of a payload whose JSON is passed on as it is: another language may not have all of its numbers."""

    args: Raw = Raw(b"[]")
    kwargs: Raw = Raw(b"{}")
    meta: Raw = Raw(b"{}")
    sealed: Sealed | None = None


_read_parts: Final = msgspec.json.Decoder(_Parts).decode


async def _elsewhere(*args: Any, **kwargs: Any) -> None:
    """Stand for a handler in another language, which may take any arguments."""


@lru_cache(maxsize=1024)
def _task(name: str, policy: str | None) -> Task:
    """Return a task of a remote worker. `policy`: that of our own workers that have the task, as Redis has it."""
    return define(_elsewhere, name=name, retry=None if policy is None else read_policy(policy))


class _Reads(RunStore):
    """Reads from Redis whether a job may begin now."""

    def __init__(self, client: Client) -> None:
        self._send = client.send

    async def read_window(self, queue: str, name: str) -> str | None:
        return await self._send(Store(queue).window(name))

    async def unknown_since(self, run: Run) -> float | None:
        store, job = Store(run.delivery.queue), run.job
        if not 0 < await self._send(store.unknown_size(job.id)) <= UNKNOWN_MOST:
            return None
        return unknown_since(await self._send(store.unknown(job.id)), job.due)

    async def seek(self, run: Run, task: str) -> bool:
        return await self._send(Store(run.delivery.queue).seek(task))


class RemoteWorker:
    """A worker of a queue, for one request. `name`: as it calls itself; no other process may use it.

    It emits the events of runs that our own workers emit.

    Its methods raise StoreDown and StoreRefused, as those of the client.

    Raises:
        ConfigError: the name is too long.
    """

    def __init__(self, client: Client, config: Config, emit: Emit, queue: str, name: str) -> None:
        self.id = PREFIX + name
        if not NAME.fullmatch(self.id):
            raise ConfigError(f"the name of a worker has {len(name)} characters: give at most {WORKER_NAME_MOST}")
        self._client = client
        self._config = config
        self._emit = emit
        self._queue = queue
        self._stores = client.stores(queue)
        self.times = Times(config)

    async def register(self, tasks: Collection[str], length: float = 0.0) -> list[str]:
        """Renew the worker's lease in each shard, or begin it, and note its tasks; return the ids that are to stop.

        `length`: for how long the worker then waits for a job.
        """
        if lease := await self._client.send(server.lease()):
            self.times.follow(lease)
        return [job_id for found in await self._renew(tasks, length, fresh=True) for job_id in found.stops]

    async def is_registered(self, tasks: Collection[str]) -> bool:
        """Renew the lease in each shard; return False if it had ended since `register`: the worker may have died."""
        return all(found.kept for found in await self._renew(tasks))

    async def _renew(self, tasks: Collection[str], length: float = 0.0, *, fresh: bool = False) -> list[Renewed]:
        program, lease = Program(Tasks({name: _task(name, None) for name in tasks})).digest, self.times.lease
        announced, found = Announced(program=program), list[Renewed]()
        for store in self._stores:
            call = store.heartbeat(self.id, length + lease, busy=lease, fresh=fresh, announced=announced)
            renewed = await self._client.send(call)
            if not renewed.declared:
                await self._client.send(store.set_program(program, sorted(tasks)))
                renewed = await self._client.send(call)
            found.append(renewed)
        return found

    async def fetch(
        self, tasks: Collection[str], slots: int, holding: Collection[str], *, opens: bool = False
    ) -> list[RemoteJob]:
        """Start jobs, as many as the worker has room for, and return them.

        Also return the jobs that an earlier fetch has started and that are not in `holding`: its reply was lost.
        `opens`: the worker opens sealed arguments.

        Raises:
            ConfigError: the worker holds as many as it may.
        """
        held = [await self._client.send(store.held(self.id)) for store in self._stores]
        room = slots - sum(map(len, held))
        unknown = [[job_id for job_id in ids if job_id not in holding] for ids in held]
        if room <= 0 and not any(unknown):
            raise ConfigError(f"the worker holds {slots - room} jobs and has {slots} slots: fetch when one has ended")
        found = list[RemoteJob]()
        for store, ids, own in zip(self._stores, unknown, held, strict=True):
            if room > 0 or ids:
                started = await self._start(store, tasks, ids, len(own) + max(room, 0), opens)
                room -= len(started) - len(ids)
                found += started
        return found

    async def _start(
        self, store: Store, tasks: Collection[str], ids: Sequence[str], hold: int, opens: bool
    ) -> list[RemoteJob]:
        """Start jobs of one shard. `hold`: how many it may have in all."""
        sent, send = time.monotonic(), self._client.send
        start = store.start(self.id, ids, hold=hold, lease=self.times.lease, cap=self._config.payload_cap)
        fetched = await send(start)
        if not fetched.jobs:
            return []
        whole = self._client.shards.whole(store.queue)
        delivery = Delivery(store.queue, fetched.now, sent, shard_of=None if whole == store.queue else whole)
        # Without precautions, a suspect is judged like any other job: it has no more attempts than its policy says.
        runs = [Run(replace(job, deaths=0), delivery) for job in fetched.jobs]
        known = Tasks({name: one for name, one in (await self._tasks(store, runs)).items() if name in tasks})
        for run in runs:
            if opens:
                _leave_sealed(run)
            run.outcome = await self._obstacle(run, known, tasks)
        await self._write(store, [run for run in runs if run.outcome is not None])
        begun = [run for run in runs if run.outcome is None]
        lost = await send(store.begin(self.id, [(run.job, "1") for run in begun])) if begun else []
        begun = [run for run in begun if run.job.id not in lost]
        self._report_started(store, [run for run in begun if run.job.id not in ids])
        return [self._job(run) for run in begun]

    def _report_started(self, store: Store, runs: Sequence[Run]) -> None:
        if runs:
            self._emit(
                Started(
                    queue=store.queue,
                    worker=self.id,
                    ids=[run.job.id for run in runs],
                    tasks=[run.task for run in runs],
                    lateness=[run.delivery.now - run.job.due for run in runs],
                    attempts=[run.job.attempt for run in runs],
                )
            )

    async def _tasks(self, store: Store, runs: Sequence[Run]) -> Mapping[str, Task]:
        """Return the tasks of runs. Each has the retry policy of our own workers that have it, if there are any."""
        names = sorted({name for run in runs if (name := task_of(run.job.payload)) is not None})
        policies = await self._client.send(store.policies(names)) if names else {}
        return {name: _task(name, policies.get(name)) for name in names}

    async def _obstacle(self, run: Run, known: Tasks, tasks: Collection[str]) -> Outcome | None:
        """Return the outcome of a run that cannot begin; None = it can."""
        prepared, reads = run.prepare(known), _Reads(self._client)
        if isinstance(prepared, Buried):
            return replace(prepared, began=False)
        payload = prepared.payload
        if payload.window is not None and (closed := await check_window(reads, run, payload.window, payload.reply)):
            return closed if isinstance(closed, Deferred) else replace(closed, began=False)
        if isinstance(prepared, NoTask):
            all_known = Tasks({name: _task(name, None) for name in tasks})
            unknown = UnknownTasks(all_known, reads, self._config.unknown_task_grace, lambda _: None)
            return await unknown.judge(run, payload)
        return None

    def _job(self, run: Run) -> RemoteJob:
        job, prepared, parts = run.job, run.prepared, _read_parts(run.job.payload)
        assert prepared is not None
        return RemoteJob(
            id=job.id,
            run=job.run if run.delivery.queue == self._queue else f"{job.run} {run.delivery.queue}",
            task=run.task,
            args=parts.args if prepared.args else Raw(b"[]"),  # PHP and Lua may write an empty object
            kwargs=parts.kwargs if prepared.kwargs else Raw(b"{}"),
            attempt=job.attempt,
            attempts=prepared.policy.attempts,
            due=job.due,
            planned=job.planned,
            timeout=prepared.timeout,
            meta=parts.meta if prepared.payload.meta else Raw(b"{}"),
            sealed=parts.sealed,
        )

    async def ready(self, length: float) -> bool:
        """Wait until a job is ready in the queue or one of its shards, for `length` seconds at most."""
        until = time.monotonic() + length
        while (left := until - time.monotonic()) > 0:
            block = min(left, _BLOCK)
            waits = [self._client.wait_for(Wait(store.await_ready(block), block)) for store in self._stores]
            async with background(*waits) as waiting:
                if (await first_of(waiting)).result():
                    return True
        return False

    async def keep(self, tasks: Collection[str], runs: Sequence[HeldRun]) -> HeartbeatResult:
        """Renew the lease, write the progress of runs, and find out which of them go on.

        Raises:
            ConfigError: a token is not valid.
        """
        named = [(self._find(held.run), held) for held in runs]
        stops, lost = await self.register(tasks), list[str]()
        for store in self._stores:
            own = [(_fetched(held.id, name), held.progress) for (of, name), held in named if of.queue == store.queue]
            if own:
                lost += await self._client.send(store.begin(self.id, [(job, "1") for job, _ in own]))
                reported = [(job, replace(one, note=one.note[:_NOTE_MOST])) for job, one in own if one is not None]
                if reported:
                    await self._client.send(store.progress(self.id, reported))
        return HeartbeatResult([job_id for job_id in stops if job_id not in lost], lost)

    async def complete(self, job_id: str, token: str, result: Raw) -> None:
        """End a run that is done. If its result is not JSON, or too long, the job is dead: it must not run again.

        Raises:
            RunGone: it is not this worker's any more.
            ConfigError: the token is not valid.
        """
        await self._end(job_id, token, _checked(bytes(result)))

    async def fail(self, job_id: str, token: str, failure: Failed) -> None:
        """End a run that has failed: its job runs again if an attempt is left, or is dead.

        Raises: as `complete`.
        """
        trace, error = cut_traceback(failure.traceback), failure.error[:NAME_MOST]
        await self._end(job_id, token, replace(failure, traceback=trace, error=error))

    async def leave(self) -> None:
        """End the worker: the jobs that it holds start elsewhere, without an attempt less.

        A job in its only attempt must not begin again, so that one is dead.
        """
        for store in self._stores:
            for job_id in await self._client.send(store.held(self.id)):
                run = await self._run(store, job_id)
                if run is not None and run.prepared is not None and run.prepared.policy.attempts == 1:
                    run.outcome = judge(run.job, run.prepared, Failed(_STOPPED.format(self.id)))
                    await self._write(store, [run])
            while (await self._client.send(store.requeue(self.id, f"worker {self.id} was stopped"))).rest == "more":
                pass

    async def _end(self, job_id: str, token: str, result: bytes | Failed) -> None:
        store, name = self._find(token)
        run = await self._run(store, job_id, name)
        if run is not None and run.prepared is not None:
            run.outcome = judge(run.job, run.prepared, result)
            lost = await self._write(store, [run])
            # The request may be a repetition, whose first reply was lost.
            if not lost or is_end_of(run, await self._client.send(store.last_run(job_id))):
                return
            for event in events_of(store.queue, self.id, [run], lost):
                self._emit(event)
        raise RunGone(
            f"the run of {job_id} is not worker {self.id}'s any more: forget the job. It may have ended by an earlier "
            "request of which no reply came, was cancelled, or runs elsewhere because the lease was lost"
        )

    async def _run(self, store: Store, job_id: str, name: str = "") -> Run | None:
        """Return a run of this worker; None = the job has no record. `name`: of the run, "" = the last one."""
        last = await self._client.send(store.last_run(job_id))
        if last.payload is None or (not name and last.worker != self.id):
            return None
        run = Run(_fetched(job_id, name or last.run, last.payload), Delivery(store.queue, 0.0, 0.0))
        payload = read_payload(run.job)
        payload = _UNREADABLE if isinstance(payload, Buried) else payload
        task = (await self._tasks(store, [run])).get(payload.task, _task(payload.task, None))
        try:
            policy = task.policy(payload)
        except ConfigError:
            policy = Retry()
        run.task, run.prepared = payload.task, Prepared(payload, task, policy, [], {})
        started = number(run.job.run.partition(" ")[2].encode())
        run.took = None if started is None else max(0.0, last.now - started)
        return run

    async def _write(self, store: Store, runs: Sequence[Run]) -> list[str]:
        """Write the outcomes of runs; return the ids of the runs that are not this worker's any more."""
        found = list[str]()
        for call, ended in store.end_runs(self.id, runs):
            lost = (await self._client.send(call)).lost
            found += lost
            for event in events_of(store.queue, self.id, [run for run in ended if run.job.id not in lost]):
                self._emit(event)
        return found

    def _find(self, token: str) -> tuple[Store, str]:
        """Return the shard of a run, and its name there.

        Raises:
            ConfigError: the token is not valid.
        """
        attempt, _, rest = token.partition(" ")
        started, _, queue = rest.partition(" ")
        found = [store for store in self._stores if store.queue == (queue or self._queue)]
        if not (found and attempt.isdecimal() and len(attempt) < 10):
            raise ConfigError("run is not one that a fetch of this queue has returned: send it back as it came")
        return found[0], f"{attempt} {started}"


def _fetched(job_id: str, name: str, payload: bytes = b"") -> FetchedJob:
    """Return a run by its name."""
    return FetchedJob(job_id, int(name.partition(" ")[0] or 0), 0.0, payload, run=name)


def _leave_sealed(run: Run) -> None:
    """Have a run prepared without its sealed arguments, which only its worker can read."""
    payload = read_payload(run.job)
    if isinstance(payload, Payload) and payload.sealed is not None:
        run.job = replace(run.job, opened=beside_seal(run.job.payload))


def _checked(result: bytes) -> bytes | Failed:
    """Return a result, if all readers accept its JSON."""
    try:
        if not is_not_finite(decode(result)):
            return result
        why = "it has a number that is larger than any float"
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = str(error)
    return Failed(f"the result is not JSON that all readers accept: {why}", given_up=True)
