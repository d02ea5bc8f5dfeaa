"""The store of one queue: one method per verb, and a few reads.

A method sends nothing: it returns the `Call` that a sender (transport/senders.py) carries to Redis, alone or in a batch
with others, from a program with an event loop or without one. `now` is a test's clock; None is Redis's own.

The methods stand in files by who calls them.
"""

from evsched.store.audits import Audits
from evsched.store.clients import Clients
from evsched.store.dispatchers import Dispatchers
from evsched.store.operators import Operators
from evsched.store.recurrences import Recurrences
from evsched.store.workers import Workers

__all__ = ["Store"]


class Store(Clients, Workers, Dispatchers, Recurrences, Operators, Audits):
    """The calls of one queue. `clock` stands in for Redis's own: a test's.

    Raises:
        ConfigError: that is no name for a queue.
    """
