"""A random walk of all verbs, made in Redis and in the model in plain Python."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import Any, Literal, cast

from evsched import keys
from evsched.errors import JobExists, JobMissing, JobRunning, StoreDown
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Forwarded, Mark, Message, Retried, Snoozed
from evsched.store.client_calls import New
from evsched.store.moves import Arrival, MovingBatch
from evsched.store.operator_calls import condition
from evsched.store.store import Store
from evsched.store.worker_calls import read_handed
from evsched.transport.call import Call
from evsched.transport.senders import SyncSender
from tests.support.gate import Record, id_of, is_inline, task_of
from tests.support.model import Model
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

START = 1_900_000_000.0
IDS = [f"j{n:02}" for n in range(40)]
WORKERS = ["u", "v"]
LEASE = 1e6
"""Seconds: the leases do not end."""
INLINE = {
    id_of(member): member
    for member in [f'{{"task":"{task}","args":[{n}]}}' for n in range(16) for task in ("slow", "quick")]
    if f'"{task_of(id_of(member))}"' in member
}
"""Inline jobs without an id of their own, by the id that each gets: the SHA-1 of the member of the schedule."""
ALL = [*IDS, *INLINE]

WEIGHTS = {
    "enqueue": 3,
    "enqueue_again": 2,
    "schedule_raw": 5,
    "schedule_inline": 5,
    "dispatch": 5,
    "start": 4,
    "fetch_and_die": 1.5,
    "end": 12,
    "begin": 3,
    "keep": 1.5,
    "signal": 2,
    "requeue": 2,
    "decline": 0.5,
    "cancel": 2,
    "reschedule": 1,
    "revive_or_drop": 2,
    "filter": 5,
    "move": 4,
    "limit": 3,
    "pause": 0.4,
    "resume": 1,
}

LIMITS: dict[str, list[float | None]] = {
    "concurrency": [None, None, 3, 20],
    "rate": [None, None, 2, 100],
    "burst": [None, 4],
    "concurrency:a": [None, 1, 4],
    "rate:b": [None, 1, 60],
    "burst:b": [None, 3],
    "weight:a": [None, 2, 0.5],
    "concurrency:*": [None, None, None, 2],
    "rate:*": [None, None, 50],
    "burst:*": [None, 2],
    "concurrency:task:slow": [None, 1, 1, 2],
    "rate:task:slow": [None, None, None, 20],
}
GROUPS = ("a", "b", "task:slow")


def payload_of(job: str, *args: int) -> bytes:
    return f'{{"args":{[*args]},"task":"{task_of(job)}"}}'.encode()


Conflict = Literal["keep", "replace", "unique"] | None


class Walk:
    """One walk. Every choice comes from its seed, so a failure can be repeated."""

    def __init__(self, url: str, seed: int, client_of: Callable[[str], Any] | None = None) -> None:
        self.pick = random.Random(seed)
        self.sender = SyncSender(url)
        self.send = self.sender.send
        self.store = Store(f"walk-{secrets.token_hex(6)}")
        self.raw = plain_client(url) if client_of is None else client_of(self.store.queue)
        self.root = f"evsched:{{{self.store.queue}}}:"
        # In a cluster a message can be forwarded to the slot of its queue alone.
        self.sent, self.refused = f"{{{self.store.queue}}}:sent", f"{{{self.store.queue}}}:refused"
        self.raw.set(self.refused, "no list")
        self.model = Model()
        self.messages = None if client_of else self.raw.pubsub()
        if self.messages is not None:
            self.messages.ssubscribe(*(keys.idle(self.store.queue, worker) for worker in WORKERS))
            for _ in WORKERS:
                assert self.messages.get_sharded_message(timeout=PATIENCE)["type"] == "ssubscribe"
            self.model.listening = True
        self.model.is_suspect = lambda job: self.raw.hexists(f"{self.root}suspects", job)
        self.tickets = 0
        self.now = START
        self.runs: list[tuple[str, FetchedJob]] = []
        self.done = Counter[str]()
        self.before = 0
        self.leaving: MovingBatch | None = None
        self.away: dict[str, tuple[bytes, Record | None, float]] = {}
        """Members of the schedule that are in another shard: what `arrive` needs to know, their records in the model,
        of which an inline job has none, and their dues."""
        self.packed: dict[str, Record | None] = {}
        """The jobs that leave for another shard, as they were when `depart` was called last."""
        self.arrivals = 0
        self.sendings: list[tuple[New, Conflict, float, Call[list[float]] | None]] = []
        """Jobs that were enqueued, whether or not the call arrived, and when."""

    def close(self) -> None:
        if self.messages is not None:
            self.messages.close()
        self.raw.close()
        self.sender.close()

    def step(self) -> str:
        """Do one thing to Redis and to the model; return its name."""
        (name,) = self.pick.choices(list(WEIGHTS), list(WEIGHTS.values()))
        getattr(self, name)()
        self.done[name] += 1
        self.receive()
        return name

    def receive(self) -> None:
        """Receive the messages to the workers: which jobs were handed over to them."""
        if self.messages is None:
            return
        received = list[tuple[str, int, str]]()
        self.messages.ping()  # it is answered after all earlier messages
        while (message := self.messages.get_sharded_message(timeout=PATIENCE))["type"] != "pong":
            worker = message["channel"].decode().rpartition(":")[2]
            if not message["data"]:
                received.append((worker, 0, ""))
                continue
            handed = read_handed(message["data"])
            record = self.model.jobs[handed.job.id]
            assert (handed.job.payload, handed.job.due) == (record.payload, record.due)
            self.note("handed over", handed.job.id)
            self.runs.append((worker, handed.job))
            received.append((worker, handed.ticket, handed.job.id))
        assert received == self.model.handed
        self.model.handed.clear()

    def note(self, what: str, job: str) -> None:
        """Note that a case was met, and whether it was met with an inline job."""
        self.done[what] += 1
        self.done[f"{what}, inline"] += job in INLINE

    def recent(self) -> str:
        """Return an id, most often one started recently, so that two runs of one id meet."""
        runs = self.runs[-6:]
        others = self.pick.choice([IDS, [*INLINE]])
        return self.pick.choice(runs)[1].id if runs and self.pick.random() < 0.7 else self.pick.choice(others)

    def recent_run(self, most: int) -> tuple[str, FetchedJob]:
        """Return one of the last runs, now and then of an inline job."""
        runs = self.runs[-most:]
        inline = [run for run in self.runs[-30:] if run[1].id in INLINE]
        return self.pick.choice(inline if inline and self.pick.random() < 0.3 else runs)

    def recent_or_inline(self) -> str:
        """Return such an id, or now and then an inline job that is on the schedule, which no id names."""
        inline = [member for member in self.model.schedule if is_inline(member)]
        return self.pick.choice(inline) if inline and self.pick.random() < 0.2 else self.recent()

    def enqueue(self) -> None:
        wait = self.pick.choice([0.0, 0.0, 1.0, 5.0])
        due, delay = (self.now + wait, 0.0) if self.pick.random() < 0.5 else (None, wait)
        priority, group = self.pick.choice([5, 5, 9]), self.pick.choice(["", "a", "b"])
        conflict: Conflict = self.pick.choice([None, None, None, "keep", "replace", "unique"])
        inline = self.pick.sample([*INLINE], 2 * (self.pick.random() < 0.2))  # an id may be that of an inline job
        for job in [*self.pick.sample(IDS, self.pick.randint(1, 15)), *inline]:
            new = New(job, payload_of(job, self.pick.choice([1, 2])), priority, group, due, delay)
            if not (conflict and self.out_of_reach(job)):
                sent = self.put(new, conflict) if self.pick.random() < 0.9 else None
                self.sendings.append((new, conflict, self.now, sent))

    def enqueue_again(self) -> None:
        """Send some recent calls again, often of jobs that began meanwhile: the call was lost, or its reply."""
        ran = {job.id for _, job in self.runs[-9:]}
        recent = [self.sendings[-40:], [sending for sending in self.sendings[-200:] if sending[0].id in ran]]
        for new, conflict, at, sent in [self.pick.choice(some) for some in recent * 3 if some]:
            if self.out_of_reach(new.id):
                continue
            if conflict == "replace" and sent is not None:
                self.send(sent)  # it is known by its key, and changes nothing
                self.done["sent again, replace"] += 1
            else:
                known, begun = self.model.is_written(new, at), self.model.has_begun(new.id)
                self.put(new, conflict, at - self.pick.choice([0.0, 0.25]))
                self.done[f"sent again, {'unknown' if not known else 'begun' if begun else 'waits'}"] += 1

    def put(self, new: New, conflict: Conflict, since: float | None = None) -> Call[list[float]]:
        """Enqueue a job; return the call. `since`: the call is sent again, and this is when it was sent first."""
        store = self.store.at(self.now)
        if conflict == "replace":
            call = store.replace([new])
        else:
            call = store.enqueue([new], keep=conflict == "keep", within=0.0 if conflict == "unique" else None)
        if since is not None:
            assert call.again is not None
            call = call.again(since)
        try:
            (due,) = self.send(call)
            written = True
        except JobExists:
            due, written = None, False
        assert self.model.enqueue(new, conflict or "", self.now, since) is written
        assert due is None or due == self.model.schedule.get(new.id, due)
        return call

    def schedule_raw(self) -> None:
        job, due = self.recent(), self.now + self.pick.choice([0, 2])
        if self.out_of_reach(job) or self.raw.hexists(f"{self.root}light", job):
            return  # nobody gives a light job the payload of another under an id that is the SHA-1 of its own
        payload = payload_of(job, self.pick.choice([1, 2]))
        self.raw.hset(f"{self.root}job:{job}", "payload", payload)
        self.raw.persist(f"{self.root}job:{job}")
        self.raw.zadd(f"{self.root}schedule", {job: due})
        self.model.schedule_raw(job, due, payload)

    def schedule_inline(self) -> None:
        """Schedule inline jobs, some of which wait, run or have ended already."""
        ended = [job for job in INLINE if self.model.place_of(job) == "finished"]
        for job in dict.fromkeys([self.recent(), *ended[:1], *self.pick.sample([*INLINE], self.pick.randint(1, 4))]):
            member, due = INLINE.get(job, ""), self.now + self.pick.choice([0, 0, 2])
            if not member or self.out_of_reach(job) or self.out_of_reach(member):
                continue
            self.done[f"scheduled again: {self.model.place_of(job) or 'unknown'}"] += 1
            self.raw.zadd(f"{self.root}schedule", {member: due})
            self.model.schedule[member] = due

    def dispatch(self) -> None:
        self.now += self.pick.choice([0.0, 0.25, 1.0, 3.0])
        limit = self.pick.choice([3, 100])
        self.send(self.store.at(self.now).dispatch(limit=limit, cap=1000))
        self.model.dispatch(self.now, limit)

    def start(self) -> None:
        worker, fetched = self.pick.choice(WORKERS), list[str]()
        if self.pick.random() < 0.5:
            fetched = self.fetch(worker)
        hold = self.pick.choice([2, 5, 30])
        self.tickets += 1
        ticket = self.pick.choice([None, None, 0, self.tickets, self.tickets])
        fetch = self.send(self.store.at(self.now).start(worker, fetched, hold=hold, lease=LEASE, ticket=ticket))
        expected = self.model.start(worker, fetched, hold, self.now, ticket=ticket)
        assert fetch.held == len(self.model.processing[worker])
        assert not fetch.waits or worker in self.model.idle
        self.done["an idle worker"] += fetch.waits
        assert [(job.id, job.run) for job in fetch.jobs] == expected
        records = [self.model.jobs[job.id] for job in fetch.jobs]
        assert [(job.payload, job.due) for job in fetch.jobs] == [
            (record.payload, self.now if record.due is None else record.due) for record in records
        ]
        assert [(job.deaths, job.doubts) for job in fetch.jobs] == [
            (record.deaths, record.doubts) for record in records
        ]
        self.done["a suspect is handed out"] += any(record.deaths for record in records)
        self.runs += [(worker, job) for job in fetch.jobs]

    def fetch(self, worker: str) -> list[str]:
        self.send(
            self.store.at(self.now).heartbeat(worker, LEASE, busy=LEASE, fresh=True)
        )  # as every worker does first
        one = self.raw.lmove(f"{self.root}ready", f"{self.root}processing:{worker}", "LEFT", "RIGHT")
        expected = self.model.fetch(worker)
        assert (one.decode() if one else None) == expected
        return [expected] if expected else []

    def fetch_and_die(self) -> None:
        job = self.model.ready[0] if self.model.ready else ""
        if job and not {job, INLINE.get(job, job)} & self.model.schedule.keys():
            self.fetch(self.pick.choice(WORKERS))
            self.note("fetched, and not started", job)

    def end(self) -> None:
        if not self.runs:
            return
        # A recent run, which is sometimes stale; now and then ended by the other worker.
        worker, job = self.recent_run(9)
        if self.pick.random() < 0.1:
            worker = self.pick.choice(WORKERS)
        end = self.pick.choice(["complete", "forward", "retry", "bury", "abort", "defer", "snooze"])
        if end == "forward":
            self.forward(worker, job)
            return
        if end == "complete":
            kept = self.pick.random() < (0.4 if job.id in INLINE else 0.9)
            done = Done(b"1", 1000 if kept else 0, False)
            lost = self.send(self.store.at(self.now).complete(worker, [(job, done)]))
            own = self.model.complete(worker, job.id, job.run, self.now, kept=kept)
        elif end == "retry":
            killed, error = self.pick.random() < 0.3, self.error()
            outcome = Retried(1.0, "x", killed, error=error)
            lost = self.send(self.store.at(self.now).retry(worker, [(job, outcome)]))
            at = self.now + 1
            own = self.model.retry(worker, job.id, job.run, at, self.now, killed=killed, error=error or None)
        elif end == "defer":
            lost = self.send(self.store.at(self.now).defer(worker, [(job, Deferred(self.now + 2, "x"))]))
            own = self.model.defer(worker, job.id, job.run, self.now + 2, self.now)
        elif end == "snooze":
            waits = self.pick.random() < 0.7
            if waits:
                self.wait_for(worker, job)
            at = self.now + (60 if waits else 2)
            outcome = Snoozed("x", 0.0, at, "ok" if waits else "")
            lost = self.send(self.store.at(self.now).snooze(worker, [(job, outcome)]))
            own = self.model.snooze(worker, job.id, job.run, at, self.now, waits=waits)
        elif end == "abort":
            lost = self.send(self.store.at(self.now).abort(worker, [(job, Aborted(1000, False))]))
            own = self.model.abort(worker, job.id, job.run, self.now)
        else:
            killed, error = self.pick.random() < 0.3, self.error()
            buried = Buried("x", False, killed=killed, error=error)
            lost = self.send(self.store.at(self.now).bury(worker, [(job, buried)]))
            own = self.model.bury(worker, job.id, job.run, self.now, killed=killed, error=error or None)
        assert lost == ([] if own else [job.id])
        self.note(f"{end}, {'own' if own else 'lost'}", job.id)

    def forward(self, worker: str, job: FetchedJob) -> None:
        refused = self.pick.random() < 0.5
        message = Message("right", self.refused if refused else self.sent, job.id.encode())
        outcome = Forwarded(b"null", 1000, False, message=message, otherwise=Retried(1.0, "x"))
        not_ended = self.send(self.store.at(self.now).forward(worker, [(job, outcome)]))
        expected = self.model.forward(worker, job.id, job.run, self.now, refused=refused)
        assert not_ended.lost == ([job.id] if expected == "lost" else [])
        assert [*not_ended.refused] == ([job.id] if expected == "refused" else [])
        self.note(f"forward, {expected}", job.id)

    def begin(self) -> None:
        if self.runs:
            worker, job = self.recent_run(20)
            mark: Mark = self.pick.choice(["1", "1", "alone"])
            lost = self.send(self.store.begin(worker, [(job, mark)]))
            assert lost == ([] if self.model.begin(worker, job.id, job.run, mark) else [job.id])
            self.note(f"begin, {'lost' if lost else 'own'}", job.id)

    def keep(self) -> None:
        if self.runs:
            worker, job = self.recent_run(9)
            own = self.model.keep(worker, job.id, job.run)
            name = f'"{self.model.jobs[job.id].steps}"' if own else '"x"'
            answer = self.send(self.store.at(self.now).keep(worker, job, name, b"1"))
            assert answer.how == ("kept" if own else "lost")
            self.note(f"keep, {answer.how}", job.id)

    def wait_for(self, worker: str, job: FetchedJob) -> None:
        timeout = self.pick.choice([0.0, 5.0, 50.0])
        answer = self.send(self.store.at(self.now).wait_for(worker, job, "ok", timeout))
        assert answer.how == self.model.wait_for(worker, job.id, job.run, timeout, self.now)
        self.note(f"wait, {answer.how}", job.id)

    def signal(self) -> None:
        waiting = [job for job, record in self.model.jobs.items() if record.waiting]
        job, value = self.pick.choice(waiting) if waiting and self.pick.random() < 0.8 else self.recent(), 7
        if self.out_of_reach(job):
            return
        try:
            done = cast("str", self.send(self.store.at(self.now).signal(job, "ok", b"7")))
        except (JobMissing, StoreDown):
            done = "refused"
        assert done == self.model.signal(job, value, self.now), job
        self.note(f"signal, {done}", job)

    def requeue(self) -> None:
        worker, limit = self.pick.choice(WORKERS), self.pick.choice([2, 100])
        leases = {lease.worker: lease.end for lease in self.send(self.store.at(self.now).survey()).leases}
        died = self.pick.random() < 0.6
        lease = leases.get(worker, b"none") if died else b""
        for job in self.model.processing.get(worker, [])[-limit:]:
            how = "not started" if self.fetched(job) else "started"
            self.done[f"requeue, {how}, inline"] += job in INLINE
        self.send(self.store.at(self.now).requeue(worker, "x", lease=lease, limit=limit))
        self.model.requeue(worker, limit, self.now, died=died)
        self.done["it died" if died else "it hands back"] += 1

    def decline(self) -> None:
        worker = self.pick.choice(WORKERS)
        self.send(self.store.at(self.now).decline(worker))
        self.model.decline(worker, self.now)

    def cancel(self) -> None:
        job = self.recent_or_inline()
        if self.out_of_reach(job):
            return
        try:
            place = cast("str", self.send(self.store.at(self.now).cancel(job)).place)
        except JobMissing:
            place = "MISSING"
        assert place == self.model.cancel(job, self.now)
        self.note(f"cancel, {place}", job)
        self.done["cancel, member"] += is_inline(job)

    def fetched(self, job: str) -> bool:
        """Return whether the id is in a worker's list and not started.

        No script can see that in the instant between BLMOVE and start, so an id that is scheduled again or cancelled
        then may be in two places for a while. test_runs.py tests what start does with it; the walks avoid it.
        """
        record = self.model.jobs.get(job)
        started = record is not None and record.worker is not None and not record.finished
        return not started and self.model.is_held(job)

    def out_of_reach(self, job: str) -> bool:
        """Return whether no step may change the job now: it was just fetched, or moves to another shard."""
        return self.fetched(job) or job in self.model.moving

    def reschedule(self) -> None:
        job, due = self.recent_or_inline(), self.now + self.pick.choice([0, 3])
        if job in self.model.moving:
            return
        try:
            self.send(self.store.at(self.now).reschedule(job, due))
            moved = True
        except (JobMissing, JobRunning):
            moved = False
        assert moved is self.model.reschedule(job, due, self.now)
        self.note(f"reschedule, {'moved' if moved else 'refused'}", job)

    def revive_or_drop(self) -> None:
        job = self.pick.choice(sorted(self.model.dead) or ALL)
        drop = self.pick.random() < 0.5
        if self.out_of_reach(job):
            return
        try:
            self.send(self.store.drop([job]) if drop else self.store.at(self.now).revive([job]))
            moved = True
        except JobMissing:
            moved = False
        assert moved is (self.model.drop(job) if drop else self.model.revive(job, self.now))
        self.note(f"{'drop' if drop else 'revive'}, {'moved' if moved else 'refused'}", job)

    def move(self) -> None:
        """Begin to move jobs to another shard, or finish that, or have jobs arrive from there."""
        if self.pick.random() < 0.4:
            self.arrive()
        elif self.leaving is None or self.pick.random() < 0.2:
            self.depart()
        else:
            self.vacate(self.leaving)

    def depart(self) -> None:
        waiting = sorted(self.model.schedule)
        jobs = [*self.pick.sample(waiting, min(5, len(waiting))), *self.pick.sample(ALL, 5)]
        call = self.store.at(self.now).depart("other", "t", [job.encode() for job in jobs], calm=0.0)
        self.leaving = self.send(call).batch
        expected = self.model.depart(jobs, self.now)
        assert {job.decode() for job, _ in (self.leaving.jobs if self.leaving else ())} == expected
        self.packed = {job: copy(self.model.jobs.get(job)) for job in expected}
        for job in expected:
            self.note("depart", id_of(job))

    def vacate(self, batch: MovingBatch) -> None:
        jobs = {job.decode(): content for job, content in sorted(batch.jobs)}
        stay = {job for job in jobs if job in self.away or self.pick.random() < 0.3}
        back = {job.encode() for job in stay}
        for job in sorted(jobs.keys() - stay):
            self.away[job] = jobs[job], self.packed[job], self.model.moving[job]
        done = self.send(self.store.vacate(batch, Arrival(False, 0, sorted(back))))
        assert (done.moved, done.back) == (len(jobs) - len(stay), len(stay))
        self.model.vacate(stay)
        self.leaving = None

    def arrive(self) -> None:
        jobs = [job for job in self.away if not self.out_of_reach(job) and self.pick.random() < 0.8]
        self.arrivals += 1
        batch = MovingBatch(
            str(self.arrivals), "t", self.store.queue, [(job.encode(), self.away[job][0]) for job in jobs]
        )
        found = self.send(self.store.at(self.now).arrive("other", batch))
        taken = self.model.arrive({job: self.away.pop(job)[1:] for job in jobs})
        assert (found.over, {job.decode() for job in found.stay}) == (False, taken)
        for job in {*jobs} - taken:
            self.note("arrive", id_of(job))
        self.done["arrive, taken"] += len(taken)

    def filter(self) -> None:
        """Change the jobs of one group; if the first is dead, only those with the same error."""
        dead = bool(self.model.dead) and self.pick.random() < 0.8
        verb = self.pick.choice(["revive", "drop"] if dead else ["cancel", "reschedule"])
        # The first is of the group that is asked for.
        some = [*self.pick.sample(sorted(self.model.dead), min(3, len(self.model.dead))), self.recent()]
        some.append(self.recent() if dead else self.recent_or_inline())
        some = some if dead else some[::-1]
        jobs = [job for job in dict.fromkeys(some) if not self.out_of_reach(job)]
        if not jobs:
            return
        one, due = self.model.jobs.get(jobs[0]), self.now + self.pick.choice([0, 3])
        group = one.group if one is not None else "" if is_inline(jobs[0]) else "a"
        error = one.error.rpartition(".")[2] if dead and one is not None and one.error else None
        of, model = condition(group=group, error=error), self.model
        if verb == "cancel":
            changed = self.send(self.store.at(self.now).cancel_matching(jobs, of))
            expected = model.cancel_matching(jobs, group, self.now)
        elif verb == "reschedule":
            changed = self.send(self.store.at(self.now).reschedule_matching(jobs, of, due))
            expected = model.reschedule_matching(jobs, group, due, self.now)
        elif verb == "revive":
            changed = self.send(self.store.at(self.now).revive_matching(jobs, of))
            expected = sum(model.revive(job, self.now) for job in jobs if self.is_dead(job, group, error))
        else:
            changed = self.send(self.store.drop_matching(jobs, of))
            expected = sum(model.drop(job) for job in jobs if self.is_dead(job, group, error))
        assert changed == expected
        self.done["dead jobs by filter" if verb in ("revive", "drop") else f"{verb} by filter"] += changed

    def error(self) -> str:
        """Return the error class of a run; "" for none."""
        return ("E", "of.E", "")[int(self.now) % 3]

    def is_dead(self, job: str, group: str, error: str | None) -> bool:
        raised = self.model.jobs[job].error if job in self.model.dead else ""
        return (
            job in self.model.dead
            and self.model.jobs[job].group == group
            and (error is None or raised in (error, f"of.{error}"))
        )

    def limit(self) -> None:
        name = self.pick.choice(list(LIMITS))
        value = self.pick.choice(LIMITS[name])
        self.send(self.store.at(self.now).limit({name: value}))
        self.model.limit(name, value, self.now)

    def pause(self) -> None:
        until = self.now + 2 if int(self.now) % 2 else None
        self.send(self.store.at(self.now).pause(until=until, limit=999))
        self.model.pause(until, self.now)

    def resume(self) -> None:
        was = self.send(self.store.at(self.now).resume())
        assert (was is not None) is self.model.is_paused(self.now)
        self.model.resume(self.now)
