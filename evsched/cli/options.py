"""What commands share: the options that many of them take, the settings, and the client of Redis."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Final

from cyclopts import Parameter, Token

from evsched import environment
from evsched.cli import output
from evsched.cli.usage import UsageError
from evsched.client.client import SyncClient
from evsched.client.operations import Operation, once
from evsched.client.spread import answering, queue_stats, read_all_shards, read_shards
from evsched.config import Config
from evsched.display import escape
from evsched.errors import ConfigError, StoreDown
from evsched.keys import check_queue
from evsched.shards import Shards, unread
from evsched.store.store import Store
from evsched.transport import address
from evsched.transport.address import Host
from evsched.transport.servers import nodes_down, reason, topology


def whole(_: Any, tokens: Sequence[Token]) -> int:
    """Read a whole number in decimal digits: cyclopts alone would take 2.5, 0x3 and 1_0.

    Raises:
        ValueError: it is none.
    """
    text = tokens[0].value
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text} is not a whole number, such as 12")
    return int(text)


_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,4000}")
Url = Annotated[str | None, Parameter(help="The Redis to use. Default: EVSCHED_URL, or else redis://localhost:6379/0.")]
UrlOrPrivate = Annotated[str | None, Parameter(help="The Redis to use. Default: EVSCHED_URL, or else a private Redis.")]
Queue = Annotated[str, Parameter(help="The queue.")]
QueueOfJob = Annotated[
    str | None, Parameter(name="--queue", help="The queue of the job. Default: the queue that has a job of this id.")
]
Queues = Annotated[
    list[str] | None,
    Parameter(name="--queue", negative="", help="A queue; repeat the flag for several. Default: all queues."),
]
RecurrenceName = Annotated[str, Parameter(help="The name of the recurrence.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON with all fields.")]
Ids = Annotated[list[str] | None, Parameter(help="The ids of the jobs.", negative="")]


LIST_MOST: Final = 1_000_000
"""Rows that a list has at the most, whatever its --limit."""


def check_limit(limit: int) -> None:
    """Refuse a --limit that is out of range.

    Raises:
        UsageError
    """
    if not 1 <= limit <= LIST_MOST:
        raise UsageError(f"--limit is {limit}: from 1 to {LIST_MOST}")


def check_queues(names: Sequence[str] | None) -> None:
    """Refuse a --queue that is not a queue's name. It has no weight.

    Raises:
        UsageError
    """
    try:
        for name in names or ():
            check_queue(name)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def settings(url: str | None = None, **flags: Any) -> Config:
    """Return the settings of this process.

    Raises:
        UsageError: one of them is not valid.
    """
    _warn()
    try:
        found = environment.load(os.environ, url=url, **flags)
        address.parse(found.url)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return found


@cache
def _warn() -> None:
    """Print one line, once, about variables EVSCHED_... that are not settings."""
    if not (line := environment.warning(os.environ)):
        return
    from evsched.services.worker_process import LINK

    if LINK not in os.environ:  # a child of --processes: its parent has printed the line
        print(f"evsched: warning: {escape(line)}", file=sys.stderr)


incomplete: Final = threading.Event()
"""Set by a command that has read a queue without some of its shards: its exit code is 1."""


class CommandClient(SyncClient):
    """A client that says so when it is asked for all of a queue while the numbers of shards cannot be read."""

    unread = ""
    """Why they cannot be read."""

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
        found, lost = self.run(answering(stores, _ask, set()))
        if lost:
            output.note(shards_unread(lost))
            incomplete.set()
        return found

    def note_incomplete(self, lacking: str) -> None:
        """Print, once, what is not known because the numbers of shards cannot be read."""
        if not incomplete.is_set():
            output.note(f"{self.unread}: {lacking}")
            incomplete.set()


def _ask(stores: Sequence[Store]) -> Operation[Sequence[Store]]:
    """Ask each store something, once, to see whether its primary answers."""
    yield from once(queue_stats(stores))
    return stores


def shards_unread(lost: Mapping[str, Host]) -> str:
    """Return the words about shards whose primaries do not answer."""
    return f"{output.some([*lost])} cannot be read: {nodes_down(sorted({*lost.values()}))}"


@contextmanager
def client(url: str | None, *, changes_queue: bool = False) -> Generator[CommandClient]:
    """Yield a client of the Redis that the command is about. It knows how many shards queues have.

    `changes_queue`: the command changes a queue with all its shards, or needs the home of an id.

    Raises:
        StoreDown: the numbers cannot be read. If the command changes no whole queue, and Redis is a cluster, a line on
            stderr says so instead when it needs them, because a node that is down must not hide the queues of others.
    """
    found = CommandClient(settings(url).url)
    try:
        found.shards = _read_shards(found, changes_queue)
        yield found
    finally:
        found.close()


def _read_shards(redis: CommandClient, changes_queue: bool) -> Shards:
    """Read how many shards queues have. Raises as `client`."""
    if topology(redis.url) is None:
        return redis.run(read_shards())
    if changes_queue:
        return redis.run(read_all_shards())
    try:
        return redis.run(once(read_shards()))
    except StoreDown as error:
        redis.unread = f"{reason(error)}, so the numbers of shards cannot be read"
        return unread()
