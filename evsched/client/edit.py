"""Edit a job that waits, or is dead: its arguments, tags, priority, group, and if it waits, its due.

A redacted argument that is given as `[redacted]` keeps its value. The script writes
only if the job is still as it was read; and with a `version`, as somebody was shown before (`JobStatus.version`).
Sealed arguments are opened to be changed, and sealed again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha1
from typing import Any, Final, TypedDict, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from evsched.client.new_job import check_arguments
from evsched.client.operations import Operation, Sleep, send
from evsched.client.option_values import due_and_delay, finite_seconds, unix
from evsched.client.sealing import opened_for_edit, seal_again
from evsched.client.target_tasks import check_target
from evsched.errors import ConfigError, JobChanged, JobMissing, JobRunning
from evsched.jobs import option_checks as check
from evsched.jobs.job import decode, encode
from evsched.jobs.record import DESCRIPTION, JobStatus
from evsched.jobs.redaction import REDACTED, Redactions, hidden_arguments, is_member
from evsched.store.client_calls import Edit, Original
from evsched.store.store import Store

_READ_MOST: Final = 1024 * 1024
"""Bytes of a payload that is edited; as in lua/_schedule.lua."""

_FIELD_MOST: Final = 512
"""Bytes of another field that the scripts read; as in lua/_prelude.lua."""

_TRIES: Final = 20
"""Times that a job is read which others edit at the same moment, if no version is given."""

_PAUSES: Final = 0.01, 0.32
"""Seconds before it is read again, at most: after the first time, and after many. Each time is random."""

_PRIORITY: Final = 5
"""The priority of a job that names none."""

_OWN: Final = ("id", "priority", "group")
"""Fields of a payload that describe an inline job: a record has them beside its payload."""


class Changes(TypedDict, total=False):
    """The changes of an edit; an option that is left out stays."""

    args: Sequence[Any]
    """All arguments by position."""
    kwargs: Mapping[str, Any]
    """All arguments by name."""
    priority: int | None
    """None = the default."""
    group: str | None
    """None = no group."""
    tags: Sequence[str]
    due: datetime | float | None
    delay: timedelta | float | None


class Edited(Struct, frozen=True):
    """The result of an edit."""

    due: float | None
    """When the job is due, in Unix seconds; None = it is dead."""
    changed: tuple[str, ...]
    """The names of the parts that are different now: args, kwargs, tags, priority, group, due."""


def check_changes(changes: Changes) -> None:
    """Check the values of an edit, apart from its arguments.

    Raises:
        TypeError: there is no option of that name.
        ConfigError: a value is not valid.
    """
    check.check_options("edit", {**changes}, _CHECKS)
    due_and_delay(changes.get("due"), changes.get("delay"))


def _positional(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise _not_repeated(name, value, "a list of the arguments by position")


def _named(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise _not_repeated(name, value, "a dict whose keys are strings")
    for key in cast("dict[Any, Any]", value):
        if not isinstance(key, str):
            raise ConfigError(f"{name} has a key of type {type(key).__name__}: give a dict whose keys are strings")


def _not_repeated(name: str, value: Any, give: str) -> ConfigError:
    """Return the error for arguments, which may be redacted: it has no part of them."""
    return ConfigError(f"{name} is of type {type(value).__name__}: give {give}")


_CHECKS: Final[dict[str, check.Check]] = {
    "args": _positional,
    "kwargs": _named,
    "priority": check.priority,
    "group": check.group,
    "tags": check.tags,
    "due": unix,
    "delay": finite_seconds,
}


def edit(store: Store, job_id: str, version: str | None, changes: Changes, payload_cap: int) -> Operation[Edited]:
    """Edit a job; `changes` are checked. `version`: that of the `JobStatus` which its caller has seen; None = any.

    Raises:
        JobMissing: no job of this id waits or is dead.
        JobRunning: a worker holds it.
        JobChanged: it has another version, or others edit it at the same moment.
        ConfigError: the arguments are not valid, or too large; or the job cannot be edited, or is dead and is given a
            due.
    """
    if is_member(job_id):
        raise ConfigError("an inline job is its own description: cancel it, and enqueue another one")
    moment, length = due_and_delay(changes.get("due"), changes.get("delay"))
    delay = None if changes.get("delay") is None else length
    timed = ("due",) if moment is not None or delay is not None else ()
    for tried in range(_TRIES):
        original = yield from send(store.original(job_id))
        if original is None or original.status.place == "finished":
            raise JobMissing(f"{job_id:.200} neither waits nor is dead: it never existed, has ended or was cancelled")
        if original.status.place == "processing":
            worker = original.status.worker
            raise JobRunning(f"{job_id:.200} has begun: {f'worker {worker}' if worker else 'a worker'} holds it")
        dead = original.status.place == "dead"
        if timed and dead:
            raise ConfigError("a dead job has no due: revive it, then reschedule it")
        if version is not None and original.status.version != version:
            raise JobChanged(f"{job_id:.200} has changed since you have read it: look at it again")
        rewrites = not {"args", "kwargs"}.isdisjoint(changes)
        seen = (yield from opened_for_edit(original)) if rewrites else original
        new = _edited(seen, changes, payload_cap, timed)
        if seen is not original:
            text = original.fields["payload"]
            if new.payload != seen.fields["payload"]:
                text = yield from seal_again(new.payload, job_id, payload_cap)
            new = replace(new, payload=text, was=digest_of(original.fields))
        if not new.changed:
            return Edited(None if dead else original.status.due, ())
        try:
            due = yield from send(store.reschedule(job_id, moment, delay=delay, edit=new))
        except JobChanged:
            if version is not None or tried == _TRIES - 1:
                raise
        else:
            return Edited(None if dead else due, new.changed)
        yield Sleep(random.uniform(0.0, min(_PAUSES[0] * 2**tried, _PAUSES[1])))  # noqa: S311
    raise JobChanged(f"{job_id:.200} is edited by others all the time")


def _edited(original: Original, changes: Changes, payload_cap: int, timed: Sequence[str]) -> Edit:
    """Return the new description of a job."""
    fields = original.fields
    payload, changed = _payload(original, changes, payload_cap)
    priority: int | bytes | None = fields.get("priority")
    if "priority" in changes and _or_default(changes["priority"]) != original.status.priority:
        priority, changed = changes["priority"], [*changed, "priority"]
    group: str | bytes | None = fields.get("group")
    if "group" in changes and (changes["group"] or None) != (original.status.group or None):
        group, changed = changes["group"], [*changed, "group"]
    return Edit(digest_of(fields), payload, priority, group, os.urandom(10).hex(), (*changed, *timed))


def digest_of(fields: Mapping[str, bytes]) -> str:
    """Return the digest of a job's description, as the script makes it."""
    found = {name: fields.get(name, b"") for name in DESCRIPTION}
    parts = [value if name == "payload" or len(value) <= _FIELD_MOST else b"}" for name, value in found.items()]
    return sha1(b"\0".join(parts), usedforsecurity=False).hexdigest()


def _payload(original: Original, changes: Changes, payload_cap: int) -> tuple[bytes, list[str]]:
    """Return the new payload, and the names of what differs."""
    raw, shown, task = original.fields.get("payload", b""), original.status.payload, original.status.task
    fields = {name: value for name, value in _read(raw).items() if name not in _OWN}
    if len(raw) > _READ_MOST or task is None or not isinstance(shown, dict):
        raise ConfigError("the payload of this job cannot be read, or is too long: drop the job, and enqueue another")
    seen = cast("dict[str, Any]", shown)
    arguments = _Arguments(fields, seen, original.declared)
    args, kwargs, tags = changes.get("args"), changes.get("kwargs"), changes.get("tags")
    values = arguments.values if args is None else arguments.by_position(args)
    named = arguments.named if kwargs is None else arguments.by_name(kwargs)
    arguments.check_hidden(values, named)
    old = {"args": arguments.values, "kwargs": arguments.named, "tags": seen.get("tags") or []}
    new: dict[str, Any] = {"args": values, "kwargs": named, "tags": old["tags"] if tags is None else [*tags]}
    changed = [name for name, value in new.items() if encode(value) != encode(old[name])]
    if not changed:
        return raw, changed
    for name in changed:
        fields.pop(name, None)
        if new[name]:
            fields[name] = Raw(encode(new[name]))
    text = msgspec.json.encode(fields)
    read: tuple[list[Any], dict[str, Any]] = decode(encode(values)), decode(encode(named))
    check_arguments(task, args or (), dict(kwargs or {}), text, payload_cap)
    check_target(task, *read, text)
    return text, changed


def _read(raw: bytes) -> dict[str, Raw]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        raise ConfigError("the payload of this job is not JSON: drop the job, and enqueue another") from None


def _or_default(priority: int | None) -> int:
    return _PRIORITY if priority is None else priority


class _Arguments:
    """The arguments of a job, as they are and as they are shown: one that is not changed is copied as it is."""

    def __init__(self, fields: Mapping[str, Raw], shown: Mapping[str, Any], declared: Redactions) -> None:
        try:  # another client may write `{}` for `[]`, and the reverse
            values = msgspec.json.decode(fields.get("args", b"[]"), type=list[Raw] | dict[str, Raw])
            named = msgspec.json.decode(fields.get("kwargs", b"{}"), type=dict[str, Raw] | list[Raw])
            self._redact = msgspec.json.decode(fields.get("redact", b"[]"), type=list[str])
        except (msgspec.MsgspecError, RecursionError):
            raise ConfigError("no worker can run this job: drop it, and enqueue another") from None
        self.values: list[Raw] = values if isinstance(values, list) else []
        self.named: dict[str, Raw] = named if isinstance(named, dict) else {}
        self._shown_values, self._shown_named = shown.get("args") or [], shown.get("kwargs") or {}
        self._of_task: Collection[str] = declared.get(shown["task"], ())

    def by_position(self, given: Sequence[Any]) -> list[Raw]:
        found = list[Raw]()
        for at, value in enumerate(given):
            if at < len(self.values) and _same(value, self._shown_values[at]):
                found.append(self.values[at])
                continue
            _refuse_mark(f"argument {at + 1}", value)
            found.append(_as_raw(value))
        return found

    def by_name(self, given: Mapping[str, Any]) -> dict[str, Raw]:
        found = dict[str, Raw]()
        for name, value in given.items():
            if name in self.named and _same(value, self._shown_named[name]):
                found[name] = self.named[name]
                continue
            _refuse_mark(f"argument {name!r:.60}", value)
            _encoded(name)
            found[name] = _as_raw(value)
        return found

    def check_hidden(self, values: Sequence[Raw], named: Mapping[str, Raw]) -> None:
        """Check that each value that was hidden, and is kept, stays hidden.

        Raises:
            ConfigError
        """
        positions, names = hidden_arguments(self._redact, self._of_task, len(self.values), self.named)
        hidden, hidden_names = hidden_arguments(self._redact, self._of_task, len(values), named)
        kept = {at for at in positions if at <= len(values) and bytes(values[at - 1]) == bytes(self.values[at - 1])}
        kept_names = {name for name in names if name in named and bytes(named[name]) == bytes(self.named[name])}
        if shown := sorted((kept - hidden, kept_names - hidden_names), key=len)[-1]:
            raise ConfigError(
                f"argument {sorted(map(str, shown))[0]} would be shown from now on, because another argument has the "
                "name that is redacted: give it another value as well, or leave the names as they are"
            )


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and _encoded(one) == _encoded(other)


def _encoded(value: Any) -> bytes:
    """Return an argument as JSON.

    Raises:
        ConfigError: it is not JSON.
    """
    try:
        return encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        why = f"{error}"
    # Not where it was caught: as the context of the new error, it would keep the arguments.
    raise ConfigError(f"the arguments must be JSON: {why}")


def _as_raw(value: Any) -> Raw:
    return Raw(_encoded(value))


def _refuse_mark(which: str, value: Any) -> None:
    if value == REDACTED:
        raise ConfigError(f"{which} is {REDACTED}, which stands for a value that was there before: there was none")


def shown_arguments(status: JobStatus) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments of a job as a form for an edit has them; None if it cannot be edited."""
    if is_member(status.id) or status.version is None or not isinstance(status.payload, dict) or status.task is None:
        return None
    payload = cast("dict[str, Any]", status.payload)
    args: Any = payload.get("args") or []
    kwargs: Any = payload.get("kwargs") or {}
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return None
    return cast("list[Any]", args), cast("dict[str, Any]", kwargs)
