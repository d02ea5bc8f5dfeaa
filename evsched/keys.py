"""The names of the Redis keys that Python uses, one function each; docs/protocol.md is the contract.

The scripts make the names from the root, which is passed to each.

The braces are a Redis Cluster hash tag: all keys of a queue live in one slot.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from evsched.errors import ConfigError

NAME: Final = re.compile(r"[A-Za-z0-9._:@-]{1,200}")
"""The form of a queue's name, a job's id and a worker's id."""

QUEUE_RULE: Final = "a queue's name is 1 to 200 of A-Z a-z 0-9 . _ : @ -"
"""The same rule as text, for messages."""

EVERY_SCHEDULE: Final = "evsched:{*}:schedule"
"""Glob of all schedules: braces stand for themselves in a Redis pattern."""

EVERY_PLACE: Final = "evsched:{*}:[sbdlmrpc]*"
"""Glob of the keys that show that a queue exists; it leaves out the records, which may be millions."""

EVERY_TRACE: Final = "evsched:{*}:[sbdlmrpcha]*"
"""The same, with the keys that stay for some time when a queue has nothing else: its history and its audit trail."""

QUEUES: Final = "evsched:{}:queues"
"""The set of all queues that a dispatcher found or a worker served. No queue has an empty name, so this key belongs to
no queue, but the key patterns of the ACL users include it."""

RELEASE: Final = "0.1.0"
"""The version of evsched."""

LAYOUT_KEY: Final = "evsched:{}:layout"
"""The layout of the keys in Redis, a whole number."""

LAYOUT: Final = 1
"""The layout that this release reads and writes. A release that cannot share Redis with the one before raises it."""

SHARDS: Final = "evsched:{}:shards"
"""The sorted set of the queues that have shards, or had some: queue -> how many."""

LEASE: Final = "evsched:{}:lease"
"""The lease of the deployment: see lease.py."""

EPOCH: Final = "evsched:{}:epoch"
"""A random key that the relays of the ledger make: if it is another one, Redis has lost its data."""

LEDGER: Final = "evsched:{}:ledger"
"""The identity of the database whose ledger this Redis belongs to."""

CONSOLE_TOKENS: Final = "evsched:{}:console:tokens"
"""The hash of the tokens of the console's users: name -> digest and role."""

CONSOLE_SECRET: Final = "evsched:{}:console:secret"  # noqa: S105
"""A random text that all consoles of this Redis share. It proves that a form came from one of their pages."""

CONSOLE_SESSION: Final = "evsched:{}:console:session:"
"""Before the digest of a session of the console."""

EVERY_KEY: Final = "evsched:{*}:*"
"""Glob of all keys of all queues."""

EVERY_RECORD: Final = "evsched:{*}:job:*"
"""Glob of the records of the jobs of all queues."""

_RECORD: Final = re.compile(rb"evsched:\{([^{}]+)\}:job:(.*)", re.DOTALL)

_KEY: Final = re.compile(rb"evsched:\{([^{}]+)\}:(.*)", re.DOTALL)

_QUEUE: Final = re.compile(
    rb"evsched:\{([^{}]+)\}:(?:schedule|backlog|ready|dead|leases|limits|moving|recurrences|chores|gate|processing:(.+))",
    re.DOTALL,
)
_PAST: Final = re.compile(rb"evsched:\{([^{}]+)\}:(?:history|hour:[0-9]+|audit)")


def root(queue: str) -> str:
    """Return the prefix of the queue's keys. The scripts make all other names from it."""
    return f"evsched:{{{queue}}}:"


def schedule(queue: str) -> str:
    return root(queue) + "schedule"


def ready(queue: str) -> str:
    return root(queue) + "ready"


def processing(queue: str, worker: str) -> str:
    return f"{root(queue)}processing:{worker}"


def idle(queue: str, worker: str) -> str:
    """Return the channel on which a worker that waits for a message learns that a job is ready."""
    return f"{root(queue)}idle:{worker}"


CANARY: Final = b"canary"
"""The message on that channel which says nothing but that the subscription is alive."""


def starting(queue: str) -> str:
    """Return the key that exists while a parent without worker processes starts one, because jobs wait."""
    return root(queue) + "starting"


def parents(queue: str) -> str:
    """Return the sorted set of the parents that have no worker process and wait for jobs."""
    return root(queue) + "parents"


def job(queue: str, job_id: str) -> str:
    return f"{root(queue)}job:{job_id}"


def reply(queue: str, job_id: str) -> str:
    return f"{root(queue)}reply:{job_id}"


QUIET: Final = "!quiet"
"""Asks a worker to fetch no more jobs. No job has such an id."""

STOP: Final = "!stop"
"""Asks a worker to end as by SIGTERM."""


def control(queue: str, worker: str) -> str:
    """Return the channel on which a worker receives the ids of jobs that it must stop, `QUIET` or `STOP`."""
    return f"{root(queue)}control:{worker}"


def progress(queue: str, job_id: str) -> str:
    return f"{root(queue)}progress:{job_id}"


def status_requests(queue: str) -> str:
    return root(queue) + "status"


def status_replies(queue: str, asker: str) -> str:
    """Return the channel on which one asker receives the workers' replies."""
    return f"{root(queue)}status:{asker}"


def stack_request(channel: str, job_id: str) -> str:
    """Return the message that asks the workers of a queue for the stack of a run; the reply comes to `channel`."""
    return f"{channel} {job_id}"


def is_status_reply(queue: str, channel: str) -> bool:
    """Return whether a channel is one for status replies of the queue: workers publish to no other."""
    prefix = status_replies(queue, "")
    return channel.startswith(prefix) and NAME.fullmatch(channel, len(prefix)) is not None


def ends(queue: str) -> str:
    """Return the stream of the ends of jobs that the ledger does not have yet."""
    return root(queue) + "ends"


def history(queue: str) -> str:
    """Return the stream of the jobs that have ended: see lua/_history.lua."""
    return root(queue) + "history"


def audit(queue: str) -> str:
    """Return the stream of what operators did: see lua/_acts.lua."""
    return root(queue) + "audit"


def recurrences(queue: str) -> str:
    return root(queue) + "recurrences"


def chores(queue: str) -> str:
    """Return the sorted set of the steps that keepers of batches have to do: see lua/_batches.lua."""
    return root(queue) + "chores"


def gate(queue: str) -> str:
    """Return the channel on which dispatchers receive the time at which a gate opens. `queue` may be a glob."""
    return root(queue) + "gate"


def events(db: int, key: str) -> str:
    """Return the channel on which Redis publishes the keyspace events of `key`, a name or a glob."""
    return f"__keyspace@{db}__:{key}"


def canary_message(dispatcher: str) -> str:
    """Return the channel on which a dispatcher proves that its subscription is alive."""
    return f"evsched:canary:{dispatcher}"


def canary(queue: str) -> str:
    """Return the key whose events prove that Redis publishes keyspace events, to all dispatchers at once."""
    return root(queue) + "canary"


def parse(key: bytes) -> tuple[str, str | None] | None:
    """Return the queue whose existence a key shows and, if the key is a processing list, its worker.

    None for any other key, and for a queue or worker whose name does not have the form `NAME`.
    """
    found = _QUEUE.fullmatch(key)
    if not found:
        return None
    names = [part.decode("latin-1") for part in found.groups() if part is not None]
    if not all(NAME.fullmatch(name) for name in names):
        return None
    return names[0], names[1] if len(names) > 1 else None


def parse_record(key: bytes) -> tuple[str, bytes] | None:
    """Return the queue and the id of the job whose record a key is; None for any other key."""
    match = _RECORD.fullmatch(key)
    if match is None or not NAME.fullmatch(queue := match[1].decode(errors="replace")):
        return None
    return queue, match[2]


def parse_past(key: bytes) -> str | None:
    """Return the queue of a key that has a part of its history or audit trail; None for any other key."""
    found = _PAST.fullmatch(key)
    name = found[1].decode("latin-1") if found else ""
    return name if NAME.fullmatch(name) else None


def split(key: bytes) -> tuple[str, bytes] | None:
    """Return the queue of any key of evsched, and the rest of the key's name; None if the queue's name is not valid."""
    found = _KEY.fullmatch(key)
    queue = found[1].decode("latin-1") if found else ""
    return (queue, found[2]) if found and NAME.fullmatch(queue) else None


def is_misnamed(key: bytes) -> bool:
    """Return whether a key is the schedule, or the recurrences, of a queue that is not served because of its name."""
    ends = key.startswith(b"evsched:{") and key.endswith((b"}:schedule", b"}:recurrences"))
    return ends and split(key) is None


def check_queue(name: Any) -> str:
    """Return `name` if it may be a queue's.

    Raises:
        ConfigError: the name is not valid.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        weight = "; only `evsched worker` takes a weight such as =3" if "=" in str(name) else ""
        several = "; give several one by one, each with its own --queue" if "," in str(name) else ""
        raise ConfigError(f"queue {name!r}: {QUEUE_RULE}{weight}{several}")
    return name


def new_id() -> str:
    """Return an id under which a process registers, which no other has.

    It consists of the host and the pid, for people; random digits, since hosts share names; and the release.
    """
    host, release = (re.sub(r"[^A-Za-z0-9._-]", "-", text) for text in (os.uname().nodename[:60], RELEASE))
    return f"{host}-{os.getpid()}-{os.urandom(4).hex()}-{release}"


def read_id(name: str) -> tuple[str, int, str] | None:
    """Return the host, the pid and the release of an id that `new_id` has made; None for one of another form."""
    found = re.fullmatch(r"(.+)-(\d+)-[0-9a-f]{8}-(.+)", name)
    return found and (found[1], int(found[2]), found[3])


def release_of(worker: str) -> str | None:
    """Return the release of evsched that made an id; None if the id does not say it."""
    found = read_id(worker)
    return found and found[2]
