"""The errors of Redis and redis-py, translated into ours, and the delays before the next attempt.

A message says what to do where Redis's own does not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable
from typing import Any, Final

from redis import exceptions

from evsched.errors import (
    MOVING,
    WRONG_TYPE,
    ConfigError,
    EvschedError,
    JobChanged,
    JobExists,
    JobLate,
    JobMissing,
    JobRunning,
    StoreDown,
    StoreRefused,
)
from evsched.transport.address import Host
from evsched.transport.call import Call, T

_FAILURES: Final = {
    "EXISTS": JobExists,
    "MISSING": JobMissing,
    "RUNNING": JobRunning,
    "CHANGED": JobChanged,
    "LATE": JobLate,
    "INVALID": ConfigError,
}
"""The codes of fail() in the scripts."""

_WAIT_ERRORS: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.OutOfMemoryError,
    OSError,
)
MOVED: Final = "moved"
"""The kind of a StoreDown that says that another node of the cluster has the key: the call was not done."""

_CLUSTER_ERRORS: Final = {
    exceptions.MovedError: (MOVED, "another node of the cluster has it now"),
    exceptions.AskError: (MOVING, "its slot moves to another node of the cluster"),
    exceptions.TryAgainError: (MOVING, "its slot moves to another node of the cluster"),
    exceptions.ClusterDownError: ("clusterdown", "the cluster is down"),
}
"""Their kinds and meanings. redis-py removes the code from the message: only a slot and an address are left of
MOVED. A queue that moves is waited for: behind ASK, the new node would have a part of it alone."""

NO_CLUSTER: Final = "this is a node of a Redis Cluster: name it so in the URL, redis+cluster://HOST:PORT,HOST:PORT"

_WAIT_CODES: Final = ("UNBLOCKED", "NOREPLICAS", "MISCONF", "BUSY", "NOTBUSY", "UNKILLABLE", "OOM", "READONLY")

_STREAM_CODES: Final = ("NOGROUP", "BUSYGROUP")

_KINDS: Final = (
    *(*_WAIT_CODES, *_STREAM_CODES),
    *("LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOPERM", "NOAUTH", "WRONGPASS", "WRONGTYPE"),
)
"""The codes that metrics may use as a label: the text of a script's error could begin with any word."""

_CLASSES: Final = {
    exceptions.AuthenticationError: "noauth",
    exceptions.BusyLoadingError: "loading",
    exceptions.ReadOnlyError: "readonly",
    exceptions.OutOfMemoryError: "oom",
    exceptions.MasterDownError: "masterdown",
    exceptions.ClusterDownError: "clusterdown",
    exceptions.TimeoutError: "timeout",
}

_UNKNOWN_CA: Final = ("self-signed certificate", "unable to get local issuer certificate")
"""OpenSSL's messages about a certificate whose CA it does not know."""

_WRONG_TYPE: Final = "WRONGTYPE a key has the wrong type: `evsched doctor` names it, and says what to do"

_UNAUTHENTICATED: Final = "NOAUTH Redis asks for a password: put it into the URL, redis://USER:PASSWORD@HOST:PORT/DB"

_NO_DATABASE: Final = (
    "the URL names a database that Redis does not have: its setting `databases` says how many there are"
)

_ONE_DATABASE: Final = (
    "the URL names a database, and this Redis Cluster has only database 0: write redis+cluster://HOST:PORT,HOST:PORT "
    "without a number"
)

_NO_RIGHT: Final = "the ACL of this Redis user lacks a right: `evsched doctor --role ROLE` names the rights of its role"

_REFUSED_IN_SCRIPT: Final = ("The user executing the script can't", "ACL failure in script")
"""How Redis's messages begin when a script runs a command that its user may not run."""

_NO_SCRIPTS: Final = ("access a non local key", "keys that don't hash to the same slot")
"""The answer of Valkey 9 to all scripts of a node of a cluster after it has refused a command in one of them, of any
program, because of keys in several slots."""

_RESTART: Final = (
    "if this node answers so to every script, restart it: in Valkey 9, a script of any program that has keys of "
    "several slots in one command has this effect"
)

_FULL: Final = "OOM Redis's memory is full: raise `maxmemory`; jobs that are already there continue, which frees memory"


def translate(error: Exception, call: Call[Any] | None = None) -> EvschedError:
    """Return our error for one of redis-py's; its message begins with the call that failed."""
    what = "Redis" if call is None else call.name
    message = str(error) or type(error).__name__
    if any(words in message for words in _UNKNOWN_CA):
        message += "; name the file of its CA in the URL: rediss://...?ssl_ca_certs=/PATH"
    if "unauthenticated" in message:
        message = _UNAUTHENTICATED  # Redis's own is about its protocol: before a login, it accepts only short commands
    elif "DB index is out of range" in message:
        return StoreRefused(f"{what}: {_NO_DATABASE}", kind="database")
    elif "SELECT is not allowed in cluster mode" in message:
        return StoreRefused(f"{what}: {_ONE_DATABASE}", kind="database")
    code, _, rest = message.partition(" ")
    if code == "WRONGTYPE":
        # The messages of our scripts name the key, Redis's own do not. Both end with the line of the script.
        key = call.words[1] if call is not None and call.script is None and len(call.words) > 1 else ""
        if "evsched:" in message:
            message = message.partition(" script: ")[0]
        elif isinstance(key, str) and key.startswith("evsched:"):
            message = f"WRONGTYPE {key} has the wrong type: `evsched doctor` says what to do"
        else:
            message = _WRONG_TYPE
    elif code == "OOM" or isinstance(error, exceptions.OutOfMemoryError):
        message = _FULL
    if isinstance(error, exceptions.NoPermissionError) or message.startswith(_REFUSED_IN_SCRIPT):
        # In a script Redis gives the error no code, and ends it with the SHA and the line.
        message = f"{message.partition(' script: ')[0]}; {_NO_RIGHT}"
        return StoreRefused(f"{what}: {message}", kind="noperm")
    if isinstance(error, exceptions.AuthenticationError):
        return StoreRefused(f"{what}: {message}", kind=_kind(error, code))
    for name, (kind, meaning) in _CLUSTER_ERRORS.items():
        if isinstance(error, name):
            return StoreDown(f"{what}{_about(call)}: {meaning} ({message})", kind=kind)
    if isinstance(error, exceptions.ClusterCrossSlotError) or code == "CROSSSLOT" or "cluster mode" in message:
        return StoreRefused(f"{what}: {NO_CLUSTER} ({type(error).__name__}: {message})", kind=_kind(error, code))
    if isinstance(error, _WAIT_ERRORS) or code in _WAIT_CODES:
        return StoreDown(f"{what}: {message}", kind=_kind(error, code))
    if code in _FAILURES:
        return _FAILURES[code](rest)
    if code == "MOVING":  # of fail() in the scripts, too: a job is between two shards for a moment
        return StoreDown(f"{what}: {rest}", kind=MOVING)
    if any(words in message for words in _NO_SCRIPTS):
        message = f"{message.partition(' script: ')[0]}; {_RESTART}"
    return StoreRefused(f"{what}: {message}", kind=_kind(error, code))


def link_error(error: Exception, node: Host | None, *, sent: bool = False) -> EvschedError:
    """Return our error for one of a connection, which names the node of a cluster if that does not answer.

    `sent`: commands were sent on it, so they may have been done.
    """
    found = translate(error)
    if isinstance(found, StoreDown) and found.kind in ("connection", "timeout"):
        return StoreDown(named(str(found), node), kind=found.kind, node=node, unsure=sent)
    return found


def named(message: str, node: Host | None) -> str:
    """Return a message about Redis that names the node of a cluster, once."""
    if node is None or (at := f"{node[0]}:{node[1]}") in message:
        return message
    return message.replace("Redis", f"Redis at {at}", 1)


def _about(call: Call[Any] | None) -> str:
    """Return of which key a call is, for messages about its slot."""
    return "" if call is None or call.near is None else f" of {call.near if isinstance(call.near, str) else 'a key'}"


def _kind(error: Exception, code: str) -> str:
    """Return the kind of an error. redis-py removes the code of some errors; then their class decides."""
    if code in _KINDS:
        return code.lower()
    for kind, name in _CLASSES.items():
        if isinstance(error, kind):
            return name
    return "refused" if isinstance(error, exceptions.ResponseError) else "connection"


_FIRST: Final = 0.5
"""Seconds that a job is put off at first."""

_LONGEST: Final = 10.0
"""The most seconds that a job is put off. So a job is late by at most that much when its server serves again, and a
thousand waiting jobs cost a hundred runs a second."""


def reconnect_delay(failures: int) -> float:
    """Return the seconds to wait after a number of failures in a row.

    The delay doubles from 25 ms up to 1 s, so that work resumes soon after Redis does. Half of it is random, so that
    the processes of a fleet do not all reconnect at once (with full jitter it would sometimes be close to 0).
    """
    ceiling = min(0.025 * 2 ** min(failures, 10), 1.0)
    return ceiling / 2 + random.uniform(0, ceiling / 2)  # noqa: S311 - no secret


class PutOff:
    """The time by which jobs are put off while their server takes nothing. It grows as long as that lasts.

    The time is not random: jobs that are put off together are due together, which costs less.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        """When the server first took nothing, by the monotonic clock; None = it took the last write."""

    def refused(self) -> float:
        """Note that the server takes nothing; return the seconds to wait."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return min(_FIRST + now - self._since, _LONGEST)

    def accepted(self) -> None:
        """Note that the server has taken something."""
        self._since = None


async def unless_mistyped(reply: Awaitable[T]) -> T | None:
    """Wait for a reply of Redis; return None if a key has the wrong type, which `evsched doctor` reports."""
    try:
        return await reply
    except StoreRefused as error:
        if error.kind != WRONG_TYPE:
            raise
        return None
