"""The state machine in plain Python: a second version of the scripts, to compare them with."""

from __future__ import annotations

from tests.support.gate import Record, id_of, is_inline
from tests.support.runs_model import Runs, verb


class Model(Runs):
    """A queue. Each method is a verb; it returns that part of the reply on which callers act."""

    @verb
    def cancel(self, job: str, now: float) -> str:
        """`job`: an id, or an inline job that is on the schedule."""
        record = self.jobs.get(job)
        place = self.remove_waiting(job) or ""
        scheduled = self.schedule.pop(job, None) is not None
        place = "schedule" if scheduled else place
        follows = record is not None and record.again is not None
        running = record is not None and not record.finished and self.holds(record.worker, job)
        if running:
            self.cancelled += scheduled or follows
        elif place or follows:
            self.cancelled += 2 if place and follows else 1
        if record is not None and follows:
            record.again, place = None, "schedule"
        if record is not None and running:
            record.stop, record.next, place = True, None, "processing"
        if not place:
            return "MISSING"
        if not running and job not in self.dead:
            self.jobs.pop(job, None)
        self.admit(0, now)
        return place

    def described(self, member: str) -> Record:
        """Return the record of the job that waits: the next one of its id, if it is scheduled during a run."""
        if is_inline(member):
            return Record()
        job, record = member, self.jobs[member]
        follows = job in self.schedule and record.next is not None and self.holds(record.worker, job)
        return record.next if follows and record.next is not None else record

    def matching(self, jobs: list[str], group: str) -> list[str]:
        """Return the waiting jobs of a group."""
        return [
            job
            for job in jobs
            if (job in self.schedule or self.waits(job))
            and (is_inline(job) or job in self.jobs)
            and self.described(job).group == group
        ]

    @verb
    def cancel_matching(self, jobs: list[str], group: str, now: float) -> int:
        found = self.matching(jobs, group)
        for job in found:
            self.remove_waiting(job)
            scheduled = self.schedule.pop(job, None) is not None
            if is_inline(job):
                self.cancelled += 1
                continue
            record = self.jobs[job]
            running = not record.finished and self.holds(record.worker, job)
            if running and scheduled:
                record.next, record.again = None, None
                self.cancelled += 1
            elif not running and record.again is not None:
                self._abort(job)
            elif not running:
                self.cancelled += 1
                if job not in self.dead:
                    del self.jobs[job]
        self.admit(0, now)
        return len(found)

    @verb
    def reschedule_matching(self, jobs: list[str], group: str, due: float, now: float) -> int:
        found = self.matching(jobs, group)
        for job in found:
            self.schedule[job] = due
            self.remove_waiting(job)
        self.admit(0, now)
        return len(found)

    @verb
    def reschedule(self, job: str, due: float, now: float) -> bool:
        if job not in self.schedule and not self.waits(job):
            return False
        self.schedule[job] = due
        self.remove_waiting(job)
        self.admit(0, now)
        return True

    # Moves between shards.

    def depart(self, jobs: list[str], now: float) -> set[str]:
        if not self.moving:
            for job in jobs:
                record = self.jobs.get(job)
                waits = self.schedule.get(job, 0.0) > now
                alone = record is not None and not record.finished and job not in self.dead and not self.is_held(job)
                if waits and (is_inline(job) or (alone and not self.waits(job))):
                    self.moving[job] = self.schedule.pop(job)
        return set(self.moving)

    def vacate(self, stay: set[str]) -> None:
        for job, due in self.moving.items():
            if job in stay:
                self.schedule[job] = due
            elif not is_inline(job) and not self._is_needed(job):
                del self.jobs[job]
        self.moving = {}

    def _is_needed(self, job: str) -> bool:
        """Return whether an inline job of the id, which was dispatched meanwhile, needs the record of one that left."""
        lies = job in self.schedule or job in self.dead or self.waits(job) or self.is_held(job)
        return lies or self.jobs[job].finished

    def is_taken(self, job: str) -> bool:
        """Return whether a job that has not ended, or is dead, has this id."""
        return job in self.schedule or job in self.dead or (job in self.jobs and not self.jobs[job].finished)

    def arrive(self, jobs: dict[str, tuple[Record | None, float]]) -> set[str]:
        taken = {member for member in jobs if member in self.schedule or self.is_taken(id_of(member))}
        for member in sorted(jobs.keys() - taken):
            record, self.schedule[member] = jobs[member]
            if record is not None:
                self.jobs[member] = record
        return taken

    def revive(self, job: str, now: float) -> bool:
        if job not in self.dead:
            return False
        record = self.jobs[job]
        record.finished, record.attempt, record.worker, record.stop = False, 0, None, False
        record.begun, record.error, record.deaths, record.doubts, record.due = None, None, 0, 0, None
        record.started, record.waiting, record.wait_ends = 0, False, None
        self.schedule[job] = now
        self.dead.remove(job)
        return True

    def drop(self, job: str) -> bool:
        if job not in self.dead:
            return False
        self.dead.remove(job)
        if job not in self.schedule:
            del self.jobs[job]
        return True
