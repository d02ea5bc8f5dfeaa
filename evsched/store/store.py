"""The store of one queue: one method per verb, and a few reads.

A method sends nothing: it returns a `Call`, which a sender (transport/senders.py) sends to Redis, alone or in a batch.
The time is that of Redis's clock; `at` returns the calls at another moment, for tests and repetitions.

The methods are grouped in files by their callers:

    client_calls.py      enqueue, replace, cancel, reschedule, revive, drop; how one job is doing
    dispatcher_calls.py  dispatch; the recurrences that fall due; leases
    worker_calls.py      fetch, start, begin, heartbeat; the parents of worker processes
    run_ends.py          progress, and the verbs that end runs (`end_runs`)
    recurrence_calls.py  declare, change and read recurrences and windows
    operator_calls.py    limits, pauses, counts of the queue; changes of all jobs that match a filter; the audit trail;
                         `evsched doctor`
    history_calls.py     the jobs that have ended
    moves.py             move waiting jobs between the shards of a queue
    relay_calls.py       the relays of the ledger
    batch_calls.py       batches, and the chores of their keepers
    batch_pauses.py      pauses of batches
    reseal_calls.py      what a codec has sealed, and how it is sealed with another key

Each file also has the values that its calls take and return; their times are in seconds, by Redis's clock. `queue.py`
is the base of them all. `server.py` has calls that belong to no queue.
"""

from evsched.store.batch_calls import BatchCalls
from evsched.store.batch_pauses import BatchPauses
from evsched.store.client_calls import ClientCalls
from evsched.store.dispatcher_calls import DispatcherCalls
from evsched.store.history_calls import HistoryCalls
from evsched.store.moves import Moves
from evsched.store.operator_calls import OperatorCalls
from evsched.store.recurrence_calls import RecurrenceCalls
from evsched.store.relay_calls import RelayCalls
from evsched.store.reseal_calls import ResealCalls
from evsched.store.run_ends import RunEnds
from evsched.store.worker_calls import WorkerCalls

__all__ = ["Store"]


class Store(
    ClientCalls,
    WorkerCalls,
    RunEnds,
    DispatcherCalls,
    RecurrenceCalls,
    OperatorCalls,
    HistoryCalls,
    Moves,
    RelayCalls,
    BatchCalls,
    BatchPauses,
    ResealCalls,
):
    """The calls of one queue.

    `clock`: a test's clock, instead of Redis's own. `by`: who enqueues, "" = the default user. `act`: the act of an
    operator, which these calls do; None = a program does them.

    Raises:
        ConfigError: the queue's name is not valid.
    """
