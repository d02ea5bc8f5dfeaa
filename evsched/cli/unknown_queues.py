"""Whether a queue of some name exists: a name that Redis has nothing of is probably misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from evsched.cli import output
from evsched.cli.options import client
from evsched.client import spread
from evsched.client.find_queues import find_queues
from evsched.client.sync_client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.errors import JobMissing, StoreRefused
from evsched.store.store import Store


def missing(redis: SyncClient, queue: str) -> str | None:
    """Return a message if a queue has never been used, None if it has."""
    try:
        queue_stats = redis.run(spread.queue_stats(redis.stores(queue)))
    except StoreRefused:  # a key of the wrong type: so the queue has been used
        return None
    if (
        queue in redis.shards.counts
        or any(queue_stats.places.values())
        or queue_stats.workers
        or queue_stats.parents
        or queue_stats.paused
        or redis.send(Store(queue).recurrences(0, 1))
    ):
        return None
    return f"queue {queue} has no jobs, no workers and no recurrences{_hint(redis, queue)}"


def not_served(redis: SyncClient, queue: str, job_id: str) -> str | None:
    """Return a message if no worker serves the queue, or shard, that is a job's home.

    None if one does, a parent stands by, or that cannot be read.
    """
    home = redis.shards.home(queue, job_id)
    try:
        queue_stats = redis.send(Store(home).queue_stats())
        if queue_stats.workers or queue_stats.parents:
            return None
    except StoreRefused:  # a key of the wrong type, or no right to read it
        return None
    if home != queue:
        return (
            f"no worker serves {home}, a shard of queue {queue}, now, so the job waits until one does: workers serve "
            f"the shards that there were when they started, so restart those of queue {queue}"
        )
    return f"no worker serves queue {queue} now, so the job waits until one does{_hint(redis, queue)}"


def _hint(redis: SyncClient, queue: str) -> str:
    """Suggest the names of queues that are like this one, if there are any."""
    near = difflib.get_close_matches(queue, _others(redis, queue), n=3)
    return f": did you mean {', '.join(near)}?" if near else ""


def _others(redis: SyncClient, queue: str) -> list[str]:
    """Return the queues that there are, without this one, which may have keys such as limits."""
    try:
        return [name for name in redis.run(spread.listed(redis.shards, redis.store)) if name != queue]
    except StoreRefused:  # the ACL user `client` may not look for queues
        return []


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def note_unknown(redis: SyncClient, named: Iterable[str]) -> int:
    """Print a line for each queue of which Redis has nothing: its name is probably misspelt. Return the exit code.

    A queue that has been used and is empty now is known to Redis until its last keys are deleted.
    """
    code = 0
    for queue in named:
        if (unknown := missing(redis, queue)) and not _is_listed(redis, queue):
            output.note(unknown)
            code = 1
    return code


def note_if_unknown(redis: SyncClient, queue: str, found: object) -> int:
    """Return the exit code of a command that has `found` this in one queue.

    If that is nothing, and Redis has nothing of the queue, it is 1, with a line on stderr.
    """
    if found:
        return 0
    if queue != DEFAULT_QUEUE:
        return note_unknown(redis, [queue])
    # A queue that nobody named is empty before its first job; or the flag was forgotten.
    if (unknown := missing(redis, queue)) and (others := _others(redis, queue)):
        named = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        output.note(f"{unknown.partition(':')[0]}; give --queue for another: there {_are(len(others))} {named}")
    return 0


@contextmanager
def client_of(url: str | None, queue: str) -> Generator[SyncClient]:
    """Yield a client of the Redis that has the queue. An error that something is missing says so if the queue is too.

    Raises:
        JobMissing: from the block.
    """
    with client(url) as redis:
        try:
            yield redis
        except JobMissing as error:
            unknown = None if queue == DEFAULT_QUEUE or _is_listed(redis, queue) else missing(redis, queue)
            if unknown is None:
                raise
            raise JobMissing(f"{error}; {unknown}") from None


def _is_listed(redis: SyncClient, queue: str) -> bool:
    try:
        return queue in redis.run(find_queues())
    except StoreRefused:  # the ACL user `client` may not look for queues
        return False
