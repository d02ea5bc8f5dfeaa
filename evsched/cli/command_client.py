"""The client of commands, and the queue that a command is about.

If none is named, that is the queue that has the job. A queue of which Redis has nothing is probably misspelt.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from evsched import keys
from evsched.cli import output
from evsched.cli.options import settings, who_acts
from evsched.client import spread
from evsched.client.client import SyncClient
from evsched.client.operations import once
from evsched.client.queue_names import find_queues, find_queues_once
from evsched.config import DEFAULT_QUEUE
from evsched.errors import EvschedError, JobMissing, StoreDown, StoreError, StoreRefused
from evsched.jobs.redaction import is_member
from evsched.shards import Shards, unread
from evsched.store import server
from evsched.store.store import Store
from evsched.transport.address import Host, hide_password
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import nodes_down, reason, topology

if TYPE_CHECKING:
    from evsched.batches.priority import Reprioritizing
    from evsched.client.reshard import Reshard
    from evsched.client.sweep import Sweep
    from evsched.codec.rekey import Rekey

_ASKED_MOST: Final = 10_000
"""Queues that are asked for a job: three commands each, together about 30 ms of Redis's time."""

_AT_ONCE: Final = 500
"""Queues that are asked in one batch."""

_SLICES: Final = 100
"""Thousands of keys that are read to find queues while no dispatcher keeps their set: 30 ms of Redis's time."""


_TIMEOUT: Final = "Timeout reading from socket"
"""The words of redis-py for a Redis that does not answer."""


class CommandClient(SyncClient):
    """A client that says so when it is asked for all of a queue while the numbers of shards cannot be read."""

    unread = ""
    """Why they cannot be read."""

    incomplete = False
    """A queue was read without some of its shards: the exit code of the command is 1."""

    def stores(self, queue: str) -> list[Store]:
        """Return the calls of each shard that is known of a queue and, last, of the queue itself."""
        if self.shards.learned is False:
            self.note_incomplete("jobs in the shards of queues are left out")
        return super().stores(queue)

    def answering(self, queue: str) -> Sequence[Store]:
        """Return the calls of a queue and those of its shards whose primaries answer; name the other shards on stderr.

        Raises:
            StoreDown: none of them answers.
        """
        stores = self.stores(queue)
        if len(stores) == 1 or topology(self.url) is None:
            return stores
        _, lost = self.run(spread.answering(stores, lambda there: once(spread.queue_stats(there)), set()))
        if lost:
            output.note(shards_unread(lost))
            self.incomplete = True
        return [store for store in stores if store.queue not in lost]

    def note_incomplete(self, lacking: str) -> None:
        """Warn, once, that the numbers of shards cannot be read."""
        if not self.incomplete:
            output.note(f"{self.unread}: {lacking}")
            self.incomplete = True

    def work_off(
        self, work: Sweep | Reshard | Reprioritizing | Rekey, label: str, changed: Callable[[], str] | None = None
    ) -> int:
        """Do all steps of a long work, or until a signal asks the process to end.

        Return the signal's number, 0 = none came. `changed` describes the changes made so far, for a failure.
        """
        try:
            with output.progress_bar(label) as show, output.asked_to_end() as asked:
                while self.run(work.step()):
                    show(work.examined, work.total)
                    if number := asked():
                        return number
        except EvschedError as error:
            if changed is not None:
                rest = ""
                if isinstance(error, StoreDown):
                    rest, error.unsure = ": the same command does the rest", False
                output.note(f"{changed()} before this failed{rest}")
            raise
        return 0


def shards_unread(lost: Mapping[str, Host]) -> str:
    return f"{output.some([*lost])} cannot be read: {nodes_down(sorted({*lost.values()}))}"


@contextmanager
def client(url: str | None, *, changes_queue: bool = False) -> Generator[CommandClient]:
    """Yield a client of the Redis that the command is about. It knows how many shards queues have.

    `changes_queue`: the command changes a queue with all its shards, or needs the home of an id.

    Raises:
        StoreDown: the numbers cannot be read. If the command changes no whole queue, and Redis is a cluster, a line on
            stderr says so instead when it needs them, because a node that is down must not hide the queues of others.
    """
    # The modules stay to the end. Without this, the last collection, as Python ends, would look at all of them: 70 ms.
    gc.freeze()
    config = settings(url)
    address = config.url
    found = CommandClient(address).as_operator(who_acts(address), "cli")
    codec = None
    if config.codec is not None:
        from evsched.app import find_codec  # slow to import

        codec = find_codec(config.codec)
    found.client.with_codec(codec, config.payload_cap)
    try:
        if topology(found.url) is None:
            found.shards = found.run(spread.read_shards())
        elif changes_queue:
            found.shards = found.run(spread.read_all_shards())
        else:
            try:
                found.shards = found.run(once(spread.read_shards()))
            except StoreDown as error:
                found.unread = f"{reason(error)}, so the numbers of shards cannot be read"
                found.shards = unread()
        yield found
    except StoreDown as error:
        silent = f"{hide_password(found.url)} is connected, but does not answer: see if it hangs, and try again"
        error.args = (str(error).replace(_TIMEOUT, silent),)
        raise
    finally:
        found.close()


def missing(redis: SyncClient, queue: str) -> str | None:
    """Return a message if a queue has never been used; None if it has, or if that cannot be read."""
    try:
        return redis.run(once(spread.never_used(redis.shards, redis.store, queue)))
    except StoreDown:
        return None


def _unknown(redis: SyncClient, queue: str) -> str | None:
    """Return a message if Redis has nothing of a queue, not even its name, so that the name is probably misspelt.

    A queue that has been used and is empty now is known to Redis until its last keys are deleted.
    """
    message = missing(redis, queue)
    try:
        return message if message and queue not in redis.run(once(find_queues())) else None
    except (StoreDown, StoreRefused):  # a node does not answer, or the ACL user `client` may not look for queues
        return message


def not_served(redis: SyncClient, queue: str, job_id: str) -> str | None:
    """Return a message if no worker serves the queue, or shard, that is a job's home.

    None if one does, a parent stands by, or that cannot be read.
    """
    home = redis.shards.home(queue, job_id)
    try:
        queue_stats = redis.send(Store(home).queue_stats())
        if queue_stats.workers or queue_stats.parents:
            return None
    except StoreError:  # its node does not answer, a key of the wrong type, or no right to read it
        return None
    if home != queue:
        return (
            f"no worker serves {home}, a shard of queue {queue}, now, so the job waits until one does: workers serve "
            f"the shards that there were when they started, so restart the workers of queue {queue}"
        )
    similar = redis.run(spread.similar(redis.shards, redis.store, queue))
    return f"no worker serves queue {queue} now, so the job waits until one does{similar}"


def no_window(redis: SyncClient, queue: str, window: str | None) -> str | None:
    """Return a message if a job names a window that its queue does not have; None if it does, or that is not known."""
    if window is None:
        return None
    from evsched.recurrence.windows import WINDOW_NAME  # slow to import: `evsched queues` does not need it

    if not WINDOW_NAME.fullmatch(window):
        return None
    whole = redis.shards.whole(queue)
    try:
        if redis.send(Store(whole).window(window)) is not None:
            return None
    except StoreError:  # as above
        return None
    return (
        f"queue {whole} has no window {window!r} now, and without it the job will be dead: create it "
        f"with evsched windows set {window}, or write the window itself, as "
        "--window 'mon-fri 09:00-17:00 Europe/Berlin'"
    )


def note_unknown(redis: CommandClient, named: Iterable[str]) -> int:
    """Print a line for each queue of which Redis has nothing. Return the exit code."""
    messages = [message for queue in named if (message := _unknown(redis, queue))]
    for message in messages:
        output.note(message)
    return int(bool(messages) or redis.incomplete)


def note_if_unknown(redis: CommandClient, queue: str, found: object) -> int:
    """Return the exit code of a command that has `found` this in one queue.

    If that is nothing, and Redis has nothing of the queue or does not say so, it is 1, with a line on stderr.
    """
    if not found and redis.shards.learned is False:
        redis.note_incomplete(f"it is not known whether queue {queue} is in use")
    if found or redis.incomplete:
        return int(redis.incomplete)
    if queue != DEFAULT_QUEUE:
        return note_unknown(redis, [queue])
    # A queue that nobody named is empty before its first job; or the flag was forgotten.
    try:
        others = (
            redis.run(spread.others(redis.shards, redis.store, queue)) if (unknown := missing(redis, queue)) else []
        )
    except StoreDown as error:
        output.note(f"other queues were not looked for: {error}")
        return 1
    if unknown and others:
        named = f"there {'is' if len(others) == 1 else 'are'} {output.some(others)}"
        output.note(f"{unknown.partition(':')[0]}; give --queue for another: {named}")
    return 0


@contextmanager
def client_of(url: str | None, queue: str, *, changes_queue: bool = False) -> Generator[CommandClient]:
    """Yield a client of the Redis that has the queue. An error that something is missing says so if the queue is too.

    `changes_queue`: see `client`.

    Raises:
        JobMissing: from the block.
    """
    with client(url, changes_queue=changes_queue) as redis:
        try:
            yield redis
        except JobMissing as error:
            if queue != DEFAULT_QUEUE and (message := _unknown(redis, queue)):
                raise JobMissing(f"{error}; {message}") from None
            raise


@contextmanager
def client_of_job(
    url: str | None, queue: str | None, job: str, *, reads: bool = False
) -> Generator[tuple[CommandClient, str, str]]:
    """Yield a client, the queue of a job and its id.

    The queue is the one that was named, or else the one that has a job of this id. The id is the one that was given, or
    that of the inline job that was given, if it is due.

    If the job is missing where it was looked for, the error names the queue that has it. `reads`: the command changes
    nothing, so if the numbers of shards cannot be read, it may be about a queue that is a shard only by its name.

    Raises:
        EvschedError: several queues have a job of this id.
        JobMissing: from the block.
    """
    if queue is None:
        with client(url) as redis:
            found = only_queue_of(redis, job, reads=reads)
            if found is None and is_member(job):
                for one in _ids_of_member(job):
                    found = found or only_queue_of(redis, one, reads=reads)
            queue = found or DEFAULT_QUEUE
            yield redis, queue, id_now(redis, queue, job)
        return
    with client_of(url, queue) as redis:
        job = id_now(redis, queue, job)
        if reads:
            queue = _shard_with(redis, queue, job)
        try:
            yield redis, queue, job
        except JobMissing:
            if redis.status(queue, job) is not None:
                raise
            others, down = queues_of(redis, job)
            if queue in others or not (others or down):
                raise
            if others:
                missing_there = f"no job {job} in queue {queue}: {_have(job, others)}: give --queue {others[0]}"
                raise JobMissing(missing_there) from None
            raise JobMissing(f"{_not_searched(down)}: no job {job} was found in queue {queue}") from None


def id_now(redis: SyncClient, queue: str, job: str) -> str:
    """Return the id of a job that is given by its id, or as an inline job, which gets one when it is due."""
    if not is_member(job) or redis.status(queue, job) is not None:
        return job
    own, *named = _ids_of_member(job)
    for one in (own, *named):
        found = redis.run(spread.original(redis.parts_of(queue, one), one))
        # Another job may have the id that it names, but not the one that is made of it.
        if found is not None and (one == own or found.fields.get("payload") == job.encode(errors="replace")):
            output.note(f"the inline job was due: its id is {one}")
            return one
    return job


def _ids_of_member(member: str) -> list[str]:
    """Return the ids that an inline job may have once it was due: the SHA-1 of it, and the one that it names."""
    from evsched.client.reshard import id_of  # slow to import

    encoded = member.encode(errors="replace")
    return [*dict.fromkeys((hashlib.sha1(encoded, usedforsecurity=False).hexdigest(), id_of(encoded)))]


def _shard_with(redis: CommandClient, queue: str, job: str) -> str:
    """Return the shard that has a job of a queue whose number of shards cannot be read; else the queue."""
    if redis.shards.learned is not False or redis.status(queue, job) is not None:
        return queue
    found = Shards({queue: 0}).beyond(queue, queues_of(redis, job)[0])
    if len(found) != 1:
        return queue
    output.note(f"{redis.unread}: queue {found[0]}, by its name a shard of {queue}, has job {job}")
    return found[0]


def only_queue_of(redis: SyncClient, job: str, *, reads: bool = False) -> str | None:
    """Return the queue that has a job of this id; None if none has. `reads`: the command changes nothing.

    Raises:
        EvschedError: several have; or a node of a cluster does not answer, and none has or the command changes the job.
    """
    found, down = queues_of(redis, job)
    if len(found) > 1:
        raise EvschedError(f"{_have(job, found)}: say which with --queue")
    if down:
        if not found:
            nowhere = f"no job {job} was found in the queues of the other primaries"
            raise StoreDown(f"{_not_searched(down)}: {nowhere}", kind="connection")
        if not reads:
            other = f"queue {found[0]} has a job {job}, and another may have one too"
            raise StoreDown(f"{_not_searched(down)}: {other}: say which with --queue", kind="connection")
        output.note(_not_searched(down))
    return found[0] if found else None


def _not_searched(down: Sequence[Host]) -> str:
    return f"{nodes_down(down)}, so queues there were not searched"


def _have(job: str, queues: Sequence[str]) -> str:
    named = output.some(queues)
    return f"queue {named} has a job {job}" if len(queues) == 1 else f"queues {named} have a job {job} each"


def queues_of(redis: SyncClient, job: str) -> tuple[list[str], list[Host]]:
    """Return the queues that have a job of this id; if none has, those with a recurrence of this name.

    Each is asked for its keys, in batches. At most `_ASKED_MOST` queues are. Also return the primaries of a cluster
    that do not answer.
    """
    down = list[Host]()
    try:
        if topology(redis.url) is None:
            names = redis.run(find_queues(_SLICES))
        else:
            names, _, down = find_queues_once(redis.url, _SLICES)
    except StoreRefused:  # the ACL user `client` may not look for queues by their keys
        try:
            names = redis.send(server.queue_names())
        except StoreRefused:
            names = []
    parts = {part for name in (DEFAULT_QUEUE, *redis.shards.counts) for part in redis.shards.all_of(name)}
    asked = sorted({*names, *parts})
    if len(asked) > _ASKED_MOST:
        output.note(f"there are {len(asked)} queues: {_ASKED_MOST} are asked for {job}; name one with --queue")
    traces = asyncio.run(_with_traces(redis.url, asked[:_ASKED_MOST], job, down))
    found = {redis.shards.whole(name) for name in traces}
    if len(found) < 2:
        return list(found), down
    # A record may be left of a job that is gone, and a recurrence may have the name of a job.
    with_job = [name for name in sorted(found) if redis.status(name, job) is not None]
    return with_job or sorted(found), down


async def _with_traces(url: str, names: Sequence[str], job: str, down: Sequence[Host]) -> list[str]:
    """Return those of some queues that may have a job, or a recurrence. A queue whose node is down is left out."""
    sender, found = BatchingSender(url), list[str]()
    owner = job.rpartition("@")[0] or job  # the id of an occurrence begins with the name of its recurrence
    try:
        for at in range(0, len(names), _AT_ONCE):
            some = names[at : at + _AT_ONCE]
            stores = [Store(name) for name in some if not down or await sender.node_of(keys.root(name)) not in down]
            calls = [(store, call) for store in stores for call in (*store.traces(job), store.next_planned(owner))]
            replies = await sender.attempt_all([call for _, call in calls])
            found += [
                store.queue
                for (store, _), reply in zip(calls, replies, strict=True)
                if not isinstance(reply, EvschedError) and reply is not None and reply is not False
            ]
    finally:
        await sender.close()
    return found
