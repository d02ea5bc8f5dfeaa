"""The processes of evsched as sequences of calls: what each does next, and what it does if a reply is lost.

Each follows the code that it stands for, without its timers: any step may come at any time. So a worker that takes no
step for an epoch hangs or was stopped, and a heartbeat is a step like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evsched.jobs.job import Buried, Done, FetchedJob, Retried, Snoozed
from evsched.jobs.tasks import Hook
from evsched.recurrence.recurrence import read_declared, read_recurrence
from evsched.store.run_ends import NO_LEASE
from evsched.transport.call import Call, raw
from tests.interleavings.releases import IDLE_LEASE, LEASE, THIS, Release
from tests.interleavings.search import LOST, Do, Epoch, Note, Pick, Process
from tests.interleavings.server import BASE, EPOCH, ROOT

SIGNAL: Final = "s"
"""The signal that jobs wait for."""
CAP: Final = 1000
"""Bytes that a payload may have."""
AHEAD: Final = 15.0
"""Seconds by which occurrences are scheduled ahead."""


@dataclass(frozen=True)
class Handlers:
    """What the workers' handlers do."""

    outcomes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """By id: the outcome of each attempt, "done" where none is named."""
    once: frozenset[str] = frozenset()
    """Ids of jobs with attempts=1: they are marked before they begin, and given up in their second attempt."""
    hook: Hook | None = None
    """The hook of each job but the hook's own."""
    retention: float = 300.0
    slots: int = 2
    waits: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """Ids of jobs that wait for the signal `s`, and for how many seconds; None = without an end."""
    shared: bool = False
    """Jobs of other queues may take the slots while a fetch waits."""
    blocked: bool = False
    """They may block the event loop, so the watch of it ends the waits."""

    def outcome(self, job_id: str, attempt: int) -> str:
        """Return how an attempt ends."""
        if self.gives_up(job_id, attempt):
            return "bury"
        listed = self.outcomes.get(job_id, ())
        return listed[attempt - 1] if attempt <= len(listed) else "done"

    def gives_up(self, job_id: str, attempt: int) -> bool:
        """Return whether the job has no attempt left: the worker does not begin it."""
        return job_id in self.once and attempt > 1

    def hook_of(self, job_id: str) -> Hook | None:
        """Return the hook of a job. The hook's own jobs have the job's id and a dot before the rest of theirs."""
        return None if "." in job_id else self.hook

    def kind(self, job_id: str, run: str, answer: str) -> tuple[str, bool]:
        """Return the outcome of a run, and whether it calls a hook: one call ends all runs that are alike in both.

        `answer`: to its question for a signal, which is its outcome then.
        """
        return answer or self.outcome(job_id, attempt_of(run)), self.hook_of(job_id) is not None

    def end(self, release: Release, worker: str, kind: str, runs: Sequence[tuple[str, str]]) -> Call[Any]:
        """Return the call that ends runs, all with the same outcome and hook."""
        jobs, hook = [_job(*run) for run in runs], self.hook_of(runs[0][0])
        how, _, value = kind.partition(" ")
        match how:
            case "come":
                return release.store.complete(
                    worker, [(job, Done(value.encode(), self.retention, True)) for job in jobs]
                )
            case "waits":
                put_off = Snoozed("it waits", until=float(value), signal=SIGNAL)
                return release.store.snooze(worker, [(job, put_off) for job in jobs])
            case "over":
                return release.store.bury(worker, [(job, Buried("no signal came", True)) for job in jobs])
            case "retry":
                return release.store.retry(worker, [(job, Retried(0.0, "it failed")) for job in jobs])
            case "snooze":
                return release.store.snooze(worker, [(job, Snoozed(delay=0.0, reason="not yet")) for job in jobs])
            case "bury":
                began = not self.gives_up(jobs[0].id, jobs[0].attempt)
                return release.store.bury(worker, [(job, Buried("it failed", True, began=began)) for job in jobs], hook)
            case _:
                return release.store.complete(worker, [(job, Done(b"1", self.retention, True)) for job in jobs], hook)


def dispatcher(release: Release = THIS) -> Process:
    """`evsched/dispatcher/dispatch_loop.py`: it dispatches whatever wakes it."""
    while True:
        yield Do(release.store.dispatch(limit=100, cap=CAP), ("lost",))


def recurring(release: Release = THIS) -> Process:
    """`evsched/dispatcher/recurring.py`: it puts occurrences on the schedule, and moves their recurrences on."""
    while True:
        agenda = yield Do(release.store.agenda(AHEAD, 25), ("lost",))
        if agenda == LOST:
            continue
        for name, seen, fields in agenda.rows:
            plan = read_recurrence(read_declared(name, fields), {}, {}).plan(float(seen), agenda.now, AHEAD)
            yield Do(release.store.recur(name, seen, plan.put, next_=plan.next, missed=plan.missed), ("lost", "late"))
            plan = None
        agenda = name = seen = fields = plan = None


def client(calls: Sequence[Call[Any]]) -> Process:
    """A program that makes calls in turn, and repeats one whose reply is lost, as `evsched/client/operations.py` does.
    A command of a foreign client is sent once."""
    for call in calls:
        epoch = yield Epoch()
        reply = yield Do(call, ("lost", "late") if call.script else ())
        if call.again:
            call = call.again(BASE + epoch * EPOCH)
        while reply == LOST:
            reply = yield Do(call, ("lost", "late"))


def janitor(release: Release = THIS) -> Process:
    """`evsched/dispatcher/janitor.py`.

    A worker is dead if its lease has ended, or is too long for one that holds jobs, and has not changed for an epoch.
    The list of a dead worker is watched: for less than an epoch, but it is read once more after that.
    """
    seen: dict[str, tuple[bytes, int]] = {}
    watched: dict[str, int] = {}
    while True:
        epoch = yield Epoch()
        survey = yield Do(release.store.survey(), ())
        found, judged = dict[str, tuple[bytes, int]](), list[tuple[str, bytes]]()
        if not release.remembers:
            judged += [(worker, NO_LEASE) for worker in survey.died]
        for lease in survey.leases:
            end, since = seen.get(lease.worker, (b"", epoch))
            found[lease.worker] = (lease.end, since if end == lease.end else epoch)
            unchanged = epoch - found[lease.worker][1]
            if unchanged and (lease.left <= 0 or (lease.held and lease.left > LEASE)):
                judged.append((lease.worker, lease.end))
        judged += [(worker, NO_LEASE) for worker in watched]
        seen = found
        del survey, found
        lease = end = since = unchanged = None
        for worker, end in judged:
            done = yield Do(release.take_back(worker, end))
            if done == LOST:
                break
            seen.pop(worker, None)
            if release.remembers and end != NO_LEASE:
                watched[worker] = epoch
            elif release.remembers and (done.rest != "all" or watched[worker] < epoch):
                del watched[worker]
            done = None
        done = judged = worker = end = epoch = None


def worker(name: str, handlers: Handlers, release: Release = THIS) -> Process:
    """`evsched/worker/consumer.py`, with one exchange at a time, and its heartbeat."""
    runs: dict[str, str] = {}  # id -> the run, as `start` named it
    ended: dict[str, str] = {}  # the same, for runs whose end is to be written
    answers: dict[str, str] = {}  # to the questions of these runs for a signal
    fetched: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    unsure, epoch = True, -1
    while True:
        now = yield Epoch()
        options = ["beat"] if now != epoch else []
        if epoch >= 0:
            options += [f"end {job}" for job in sorted(runs)]
            if unsure or ended or fetched:
                options.append("exchange")
            elif len(runs) < handlers.slots + handlers.shared:
                options.append("fetch")
        act = yield Pick(tuple(options))
        del options

        if act == "beat":
            lease = LEASE if runs or ended else IDLE_LEASE
            renewed = yield Do(release.heartbeat(name, lease, fresh=epoch < 0), ("unsent",))
            if renewed != LOST and not renewed.kept:
                runs, ended, answers, fetched, marked, unsure = {}, {}, {}, (), (), True
                renewed = yield Do(release.heartbeat(name, LEASE, fresh=True), ("unsent",))
            if renewed != LOST:
                epoch = now
            del renewed, lease
        elif act == "fetch":
            words = ("LMOVE", f"{ROOT}ready", f"{ROOT}processing:{name}", "LEFT", "RIGHT")
            moved = yield Do(Call(words, raw))
            if moved == LOST:
                unsure = True
            elif moved is not None and len(runs) == handlers.slots:
                back = yield Do(release.hand_back(name, [(moved.decode(), "")]))
                unsure = back == LOST
                del back
            elif moved is not None:
                fetched += (moved.decode(),)
            del moved, words
        elif act.startswith("end "):
            job = act[4:]
            if job in handlers.once and job not in marked and not handlers.gives_up(job, attempt_of(runs[job])):
                lost = yield Do(release.store.begin(name, [(_job(job, runs[job]), "1")]))
                if lost == LOST:
                    unsure = True
                    yield Note(f"perhaps begin {job}")
                elif lost:
                    del runs[job]
                else:
                    marked += (job,)
                    yield Note(f"begin {job}")
                del lost
            elif job in handlers.waits and job not in answers:
                run = _job(job, runs[job])
                answer = yield Do(release.store.wait_for(name, run, SIGNAL, handlers.waits[job]))
                if answer != LOST and answer.how == "lost":
                    del runs[job]
                elif answer != LOST:
                    answers[job] = f"{answer.how} {answer.value.decode()}"
                del answer, run
            else:  # the handler has ended, which makes no call
                ended[job] = runs.pop(job)
                yield Note(f"end {job}")
            del job
        else:
            failed = False
            if unsure:
                for job in () if release.names_runs else sorted(ended):
                    last = yield Do(release.store.last_run(job), ())
                    if last.worker == name and last.started > float(ended[job].partition(" ")[2]):
                        del ended[job]  # its end is written, and the job has been started again
                job = last = None
                held = yield Do(release.store.held(name), ())
                unknown = [job for job in dict.fromkeys(held) if job not in {*runs, *ended, *fetched}]
                keep = max(0, handlers.slots - len(runs) - len(fetched))
                fetched += tuple(unknown[:keep])
                surplus = list[tuple[str, str]]()
                for job in unknown[keep:]:
                    if release.names_runs:
                        last = yield Do(release.store.last_run(job), ())
                    surplus.append((job, last.run if last and last.worker == name else ""))
                held = unknown = keep = last = job = None
                if surplus:
                    back = yield Do(release.hand_back(name, surplus))
                    failed = back == LOST
                unsure = failed
                surplus = back = None
            if not failed and ended:
                kinds: dict[tuple[str, str], tuple[str, bool]] | None
                kinds = {run: handlers.kind(*run, answers.get(run[0], "")) for run in sorted(ended.items())}
                for kind in sorted(set(kinds.values())):
                    rows = [run for run in kinds if kinds[run] == kind]
                    lost = yield Do(handlers.end(release, name, kind[0], rows))
                    if lost == LOST:
                        failed = unsure = True
                        break
                    for job, _ in rows:
                        del ended[job]
                        answers.pop(job, None)
                        marked = tuple(one for one in marked if one != job)
                kinds = kind = rows = lost = job = _ = None
            if not failed and fetched:
                hold = min(handlers.slots, len(runs) + len(ended) + len(fetched) + 1)
                reply = yield Do(release.store.start(name, fetched, hold=hold, lease=LEASE, cap=CAP))
                if reply == LOST:
                    unsure = True
                else:
                    if not reply.leased and (runs or ended):
                        runs, ended, answers, marked, unsure = {}, {}, {}, (), True
                    new = [run for run in release.runs(reply) if run[0] not in runs and run[0] not in ended]
                    known = {*runs, *ended, *(job for job, _ in new), *(job for job, _ in reply.buried)}
                    unsure = unsure or not {*fetched} <= known
                    fetched = ()
                    reply = known = None
                    for job, run in new:
                        runs[job] = run
                        if job not in handlers.once:
                            yield Note(f"begin {job}")
                reply = new = known = job = run = hold = _ = None
            del failed
        del act, now


def attempt_of(run: str) -> int:
    """Return the attempt of a run by its name."""
    return int(run.partition(" ")[0])


def _job(job_id: str, run: str) -> FetchedJob:
    return FetchedJob(job_id, attempt_of(run), 0.0, b"", run=run)
