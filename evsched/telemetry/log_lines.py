"""The lines of the log: for each event that an operator needs to know, its level and its sentence."""

from __future__ import annotations

import logging
from typing import Final

from evsched import events
from evsched.events import Event

LINES: Final[dict[type[Event], tuple[int, str]]] = {
    events.DispatcherStarted: (logging.INFO, "dispatcher started on {server}, queues: {queues}"),
    events.ApiStarted: (logging.INFO, "API at {url}/v1, its description at {url}/openapi.json"),
    events.DoctorStarted: (logging.INFO, "doctor started: it checks now, and again {interval:g} s after each check"),
    events.RedisUnsafe: (logging.WARNING, "Redis may lose jobs: {what}. {mend}"),
    events.LeaseDiffers: (
        logging.WARNING,
        "EVSCHED_LEASE is {given:g}, but all use {lease:g} s, as Redis has: run `evsched lease {given:g}`, or unset it",
    ),
    events.LeaseChanged: (
        logging.INFO,
        "the lease in Redis is {lease:g} s; for {settles_in:.0f} s from now some processes may have the one before",
    ),
    events.QueueFound: (logging.INFO, "queue {queue} found"),
    events.ShardsFound: (logging.INFO, "queue {queue} has {count} shards"),
    events.ShardsUnknown: (
        logging.WARNING,
        "the numbers of shards cannot be read; until they are, dispatchers serve shards whose keys they find: {reason}",
    ),
    events.SubscriptionLost: (logging.WARNING, "subscription lost: {reason}"),
    events.NotificationsMissing: (logging.ERROR, "Redis sends no keyspace events, so jobs start late: {mend}"),
    events.NotificationsProven: (logging.INFO, "keyspace events arrive"),
    events.Retrying: (logging.WARNING, "job {id} of {queue}, task {task}: {reason}; again in {delay:.3g} s"),
    events.JobBuried: (logging.ERROR, "job {id} of {queue}, task {task}, is {outcome}: {reason}"),
    events.JobAborted: (logging.INFO, "job {id} of {queue}, task {task}, was cancelled in attempt {attempt}"),
    events.HandlerNotFound: (
        logging.ERROR,
        "task {task} of {queue} cannot begin: {reason}: fix the code, or restart the worker; its jobs are tried again",
    ),
    events.TaskUnknown: (
        logging.WARNING,
        "queue {queue}: {reason}; its jobs wait up to {grace:g} s for a worker that knows it",
    ),
    events.JobDeferred: (logging.INFO, "job {id} of {queue}, task {task}, waits for its window"),
    events.JobSnoozed: (logging.INFO, "job {id} of {queue}, task {task}, is {reason}"),
    events.RecurrenceDeclared: (logging.INFO, "queue {queue}: recurrence {name} {done}, as the code declares"),
    events.LimitDeclared: (logging.INFO, "queue {queue}: limit {limit} is {value} now, as the code declares"),
    events.RevisionOutdated: (
        logging.WARNING,
        (
            "queue {queue}: app {app} declares revision {revision} of its recurrences and limits, but the newer "
            "{newest} stays in force. If you rolled back on purpose: evsched recurrences rollback --queue {queue} "
            "--app {app}. If this is another app of the same name: give each App a name of its own"
        ),
    ),
    events.Missed: (logging.WARNING, "queue {queue}: recurrence {name} missed {count} occurrences"),
    events.MoveFinished: (
        logging.INFO,
        "queue {queue}: {moved} jobs have moved to {to}, and {back} are back, after an interrupted move",
    ),
    events.ClockJumped: (logging.ERROR, "Redis's clock jumped by {seconds:+.1f} s: due times follow it"),
    events.Rewound: (
        logging.WARNING,
        "queue {queue}: {names} continue from now; a clock that was ahead and is set back had advanced them",
    ),
    events.PauseOver: (logging.INFO, "queue {queue}: recurrence {name} recurs again, its pause is over"),
    events.RecurrencePaused: (
        logging.WARNING,
        (
            "queue {queue}: recurrence {name} is paused: {why}. Find out why (evsched explain {name} --queue {queue}), "
            "then: evsched recurrences resume {name} --queue {queue}"
        ),
    ),
    events.RecurrenceBroken: (logging.ERROR, "queue {queue}: recurrence {name} makes no jobs: {reason}"),
    events.JobsRequeued: (logging.WARNING, "queue {queue}: {ids} of worker {worker} returned to ready: {reason}"),
    events.RunLost: (logging.WARNING, "job {id} of {queue}, task {task}, attempt {attempt}, finished {but}"),
    events.LeaseLost: (
        logging.ERROR,
        "worker {worker} lost its lease on {queue}{effect}",
    ),
    events.WorkerStarted: (logging.INFO, "worker {worker} started: {slots} slots, queues {queues}, tasks {tasks}"),
    events.WorkerDraining: (
        logging.INFO,
        "worker {worker} fetches no more, {running} jobs run for {shutdown_grace:g} s at most",
    ),
    events.WorkerStopped: (logging.INFO, "worker {worker} stopped, {handed_back} jobs handed back"),
    events.WorkerStuck: (
        logging.CRITICAL,
        (
            "job {id} of {queue}, task {task}, attempt {attempt}, does not stop: the worker ends; "
            "{handed_back} jobs returned to ready"
        ),
    ),
    events.WorkerBlocked: (
        logging.CRITICAL,
        "worker {worker} ends: {blocker} blocks its event loop; {handed_back} jobs returned to ready",
    ),
    events.EndedByForce: (logging.CRITICAL, "ended by force {seconds:.0f} s after the signal: the app did not end"),
    events.EndedAtOnce: (
        logging.WARNING,
        "second signal: the process ends at once; its jobs start elsewhere when its lease ends",
    ),
    events.HandlersLeft: (logging.WARNING, "ended {processes} processes that handlers had started and left"),
    events.ChildStarted: (logging.INFO, "worker process {number} started: pid {pid}"),
    events.ChildNotStarted: (
        logging.ERROR,
        "worker process {number} could not be started: {reason}; it is tried again",
    ),
    events.ChildEnded: (logging.INFO, "worker process {number}, pid {pid}, ended with {code}"),
    events.ChildCannotStart: (
        logging.ERROR,
        "worker process {number} cannot start (exit code {code}): all end; its last log line says why",
    ),
    events.ChildKilled: (
        logging.ERROR,
        "worker process {number}, pid {pid}, hung and was killed: its jobs return to ready",
    ),
    events.ParentWaits: (logging.INFO, "no worker process runs: one starts when a job of {queues} waits"),
    events.ParentWoken: (logging.INFO, "queue {queue} needs a worker process, because {why}: one starts"),
    events.Reloading: (logging.INFO, "reload: {processes} worker processes are replaced one by one"),
    events.Reloaded: (logging.INFO, "reload: {processes} worker processes run the new code, after {seconds:.1f} s"),
    events.ReloadFailed: (
        logging.ERROR,
        (
            "reload failed after {replaced} of {processes}: the new worker process {number} {reason}. "
            "Those that run go on with the old code. Read the lines above, correct the code and send SIGHUP again"
        ),
    ),
    events.LedgerStarted: (logging.INFO, "relay started on {server} and {database}"),
    events.EpochFound: (logging.INFO, "epoch {epoch}: rows that were scheduled in another one are scheduled again"),
    events.JobsWithdrawn: (
        logging.WARNING,
        "queue {queue}: Redis had jobs again that have ended, as their rows say: {count} were removed",
    ),
    events.RelayWaits: (logging.ERROR, "{reason}"),
    events.RowsRefused: (
        logging.ERROR,
        "queue {queue}: rows that cannot be scheduled, and are dead: {count}; one is {first}",
    ),
    events.RowsSetAside: (
        logging.ERROR,
        "queue {queue}: rows that Redis does not take, and that are tried again later: {count}; one is {first}",
    ),
    events.LedgerDown: (logging.ERROR, "the database of the ledger does not serve, as {who} found: {reason}"),
    events.LedgerUp: (logging.INFO, "the database of the ledger serves {who} again, after {seconds:.1f} s"),
    events.Listening: (logging.INFO, "metrics at {url}/metrics, liveness at /healthz, readiness at /readyz"),
    events.RedisDown: (logging.ERROR, "Redis {is_down}, as {who} found: {reason}"),
    events.RedisUp: (logging.INFO, "Redis is back after {seconds:.1f} s"),
    events.NodeReleased: (
        logging.INFO,
        "{who} has ended, after {seconds:.1f} s without Redis: another node has its queues, or the process stops",
    ),
    events.CallRefused: (logging.ERROR, "{who}{of_queue}: Redis refuses (bad data, no right, or a bug): {reason}"),
    events.CallAccepted: (logging.INFO, "{who}{of_queue}: Redis accepts calls again, after {seconds:.1f} s"),
}

FULL_LINES: Final[dict[type[Event], tuple[int, str]]] = {
    events.CallRefused: (
        logging.ERROR,
        (
            "Redis's memory is full (maxmemory), as {who}{of_queue} found: it refuses new jobs. Jobs that are there "
            "continue, which frees memory; only those that forward a message to it are put off. "
            "Raise it with CONFIG SET maxmemory, or drop dead jobs (evsched dead drop)"
        ),
    ),
    events.CallAccepted: (logging.INFO, "Redis's memory is not full any more, after {seconds:.1f} s"),
}
"""The lines of events about full memory."""

NEEDS: Final = {
    "ready": "jobs wait",
    "undeclared": "Redis has lost what the app declares",
    "sought": "jobs wait for a task that other workers do not have",
}
"""By the field `need` of ParentWoken."""

LOST_ENDS: Final = {
    "discarded": "after its lease was lost; the result was discarded",
    "unknown": "while Redis did not answer: its end was sent twice, and whether it was written is not known",
}
"""By the field `end` of RunLost."""

BLOCKER: Final = "job {id} of {queue}, task {task}, attempt {attempt},"
