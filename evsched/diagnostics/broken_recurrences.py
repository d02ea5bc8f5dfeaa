"""Recurrences that do not recur: those that cannot, and those that were paused because their runs failed.

A recurrence cannot recur if it has a bad rule, an unknown zone, a calendar or window that does not exist, a field that
cannot be read, no payload, one that is no job, or no record. A dispatcher logs it once, when it reads it; the doctor
reports it for as long as it is broken.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import Any, Final

from evsched import keys
from evsched.diagnostics.finding import Finding
from evsched.errors import ConfigError, StoreRefused
from evsched.jobs.record import whole
from evsched.recurrence.intervals import check_by_policies
from evsched.recurrence.recurrence import read_declared, read_recurrence
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender

_SLICE: Final = 250
"""Recurrences that are read in one round trip: about 1 ms of Redis's time."""

_PAUSE: Final = 2.0
"""Seconds before a recurrence without a record is checked again: a client may write the record after its ZADD."""

_LONGER: Final = "change the recurrence or the policy of its task: until then occurrences are skipped, or wait"

_WRONG_TYPE: Final = "wrongtype"
"""The kind of a refusal that the audit reports, with the key."""


async def broken_recurrences(sender: BatchingSender, queues: Sequence[str], *, pause: float = _PAUSE) -> list[Finding]:
    """Return a finding for each recurrence of the queues that cannot recur. It waits only when a record is missing.

    Raises:
        StoreDown, StoreRefused
    """
    found, missing = list[Finding](), list[tuple[str, str]]()
    for queue in queues:
        calendars: dict[str, str] = await _ask(sender, Store(queue).all_calendars()) or {}
        windows: dict[str, str] = await _ask(sender, Store(queue).windows()) or {}
        policies: dict[str, str] = await _ask(sender, Store(queue).all_policies()) or {}
        for name, fields in await _read_all(sender, queue):
            if not fields:
                missing.append((queue, name))
            elif "retired" not in fields and (reason := _why_not(name, fields, calendars, windows)):
                found.append(_describe(queue, name, reason))
            elif _has_failed(fields):
                found.append(_describe_failing(queue, name, fields))
            elif "retired" not in fields and (reason := _too_frequent(name, fields, policies)):
                found.append(Finding("recurrence-too-frequent", "warning", reason, f"queue {queue}, {name}", _LONGER))
    if missing:
        await asyncio.sleep(pause)
    for queue, name in missing:
        if (fields := await _ask(sender, Store(queue).recurrence(name))) == {}:
            found.append(_describe(queue, name, f"recurrence {name} has no record"))
    return found


async def _read_all(sender: BatchingSender, queue: str) -> list[tuple[str, dict[str, bytes] | None]]:
    """Return the recurrences of a queue with their records; None = the key is of a wrong type."""
    store, found = Store(queue), list[tuple[str, dict[str, bytes] | None]]()
    while True:
        names = [name for name, _ in await _ask(sender, store.recurrences(len(found), _SLICE)) or ()]
        records = await asyncio.gather(*(_ask(sender, store.recurrence(name)) for name in names))
        found += zip(names, records, strict=True)
        if len(names) < _SLICE:
            return found


async def _ask(sender: BatchingSender, call: Call[Any]) -> Any:
    """Send a call; None when its key is of a wrong type."""
    try:
        return await sender.send(call)
    except StoreRefused as error:
        if error.kind != _WRONG_TYPE:
            raise
        return None


def _why_not(name: str, fields: dict[str, bytes], calendars: dict[str, str], windows: dict[str, str]) -> str:
    """Return why a recurrence cannot recur, '' = it can."""
    try:
        read_recurrence(read_declared(name, fields), calendars, windows)
    except (ConfigError, ValueError, ArithmeticError, OSError) as error:  # all but ConfigError: too large for a date
        return str(error)
    return ""


def _too_frequent(name: str, fields: dict[str, bytes], policies: dict[str, str]) -> str:
    """Return why the retries of an occurrence may not have ended when the next one is due, '' = they have.

    A recurrence of the code, of the client or of the command line is refused then; but any client may write one, and a
    task's policy may change.
    """
    try:
        check_by_policies(read_recurrence(read_declared(name, fields)), policies)
    except ConfigError as error:
        return str(error)
    return ""


def _describe(queue: str, name: str, reason: str) -> Finding:
    root, quoted = keys.root(queue), shlex.quote(name)
    _, there_is_none, command = reason.partition(": evsched ")
    mend = (
        f"replace it: evsched recurrences add {quoted} TASK --rule ... --queue {queue}; or HSET the wrong field of "
        f"{root}recurrence:{name}, then ZADD {root}recurrences 0 {quoted}; or delete it: evsched recurrences remove "
        f"{quoted} --queue {queue}"
    )
    if there_is_none:
        mend = f"evsched {command.replace('--queue QUEUE', f'--queue {queue}')}; or {mend}"
    return Finding("recurrence-broken", "fault", f"it makes no jobs: {reason}", f"queue {queue}, {name}", mend)


def _has_failed(fields: dict[str, bytes]) -> bool:
    """Return whether a recurrence is paused because of its failures."""
    most = whole(fields.get("pause_after"))
    return "paused" in fields and "retired" not in fields and 0 < most <= whole(fields.get("failing"))


def _describe_failing(queue: str, name: str, fields: dict[str, bytes]) -> Finding:
    """Report a recurrence that was paused because its runs failed: someone has to find out why, and resume it."""
    why, last = (fields.get(field, b"").decode(errors="backslashreplace") for field in ("paused_why", "last_id"))
    mend = (
        f"find out why: evsched explain {shlex.quote(last)} --queue {queue}; then: evsched recurrences resume "
        f"{shlex.quote(name)} --queue {queue}"
    )
    return Finding(
        "recurrence-failing", "warning", f"it is paused: {why or 'no reason'}", f"queue {queue}, {name}", mend
    )
