"""Reads the jobs of rq-scheduler from its Redis, without its code.

RQ keeps a job's arguments as a pickle. A pickle can run any code when it is read; here one that names a class or a
function is refused, so that only plain values are read.
"""

from __future__ import annotations

import io
import json
import pickle
import zlib
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
from cronsim import CronSim
from msgspec import Struct

from evsched.client.client import SyncClient
from evsched.errors import WRONG_TYPE, ConfigError, StoreRefused
from evsched.imports.imported import Imported, both_days
from evsched.recurrence.cron import ALIASES, parse_rule
from evsched.store.queue import as_scores
from evsched.transport.call import Call, raw

_SCHEDULED: Final = "rq:scheduler:scheduled_jobs"
_FIELDS: Final = (
    "data",
    "meta",
    "origin",
    "timeout",
    "dependency_id",
    "success_callback_name",
    "failure_callback_name",
)
_SLICE: Final = 500
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class _Stated(Struct):
    """The parts of a job's `meta` that are rq-scheduler's own."""

    interval: float | None = None
    repeat: int | None = None
    cron_string: str | None = None
    use_local_timezone: Any = None
    queue_class_name: Any = None


def read_jobs(redis: SyncClient, found: Imported, *, zone: str) -> None:
    """Read the jobs. `zone`: that of the machine on which rq-scheduler runs, whose clock its cron rules follow.

    Raises:
        StoreDown, StoreRefused
    """
    start, more = 0, True
    while more:
        words = ("ZRANGE", _SCHEDULED, start, start + _SLICE - 1, "WITHSCORES")
        rows = _sent(redis, Call(words, as_scores))
        for job_id, score in rows:
            with found.part(job_id):
                values = _sent(redis, Call(("HMGET", f"rq:job:{job_id}", *_FIELDS), raw))
                _read_job(job_id, score, dict(zip(_FIELDS, values, strict=True)), found, zone)
        start, more = start + _SLICE, len(rows) == _SLICE


def _sent(redis: SyncClient, call: Call[T]) -> T:
    """Send a command to the Redis of RQ, and return its reply.

    Raises:
        StoreDown, StoreRefused
        ConfigError: the key is of another type than that of RQ.
    """
    try:
        return redis.send(call)
    except StoreRefused as error:
        if error.kind != WRONG_TYPE:
            raise
        raise ConfigError(f"the key {call.words[1]} is of another type than RQ's: look at it with redis-cli") from None


def _read_job(job_id: str, due: float, fields: dict[str, bytes | None], found: Imported, zone: str) -> None:
    """Add a job.

    Raises:
        ConfigError: evsched has no such recurrence, or the job cannot be read.
    """
    if fields["data"] is None:
        raise ConfigError("its record is gone")
    try:
        data = zlib.decompress(fields["data"])
    except zlib.error:
        data = fields["data"]
    name, instance, args, kwargs = _read(data, tuple[str, Any, list[Any], dict[str, Any]])
    meta = _read(fields["meta"], dict[str, Any]) if fields["meta"] else {}
    stated = _converted(meta, _Stated)
    if instance is not None:
        raise ConfigError(f"{name} is a method of an object, which does not travel with a job: make it a function")
    for field, what in (("dependency_id", "depends_on"), ("success_callback_name", "on_success")):
        if fields[field]:
            found.remark(job_id, f"{what}: evsched does not take it over; use a graph, or on_done= of the task")
    if fields["failure_callback_name"]:
        found.remark(job_id, "on_failure: evsched does not take it over; use on_dead= of the task")
    if others := meta.keys() - {*_Stated.__struct_fields__}:
        found.remark(job_id, f"meta: evsched does not take over {', '.join(sorted(map(str, others)))}")
    call, timeout = (name, args, kwargs), _timeout(fields["timeout"])
    queue = (fields["origin"] or b"").decode(errors="replace") or None
    if stated.interval:
        rule = found.interval(job_id, stated.interval, due)
    elif stated.cron_string:
        rule = cron_rule(stated.cron_string)
    else:
        found.job(job_id, job_id, call, due=due, queue=queue, timeout=timeout)
        return
    # rq-scheduler catches up with one run after a pause, and does not know whether the last one has ended.
    shared: dict[str, Any] = {"zone": zone, "count": stated.repeat, "overlap": "allow"}
    found.recurrence(job_id, job_id, call, rule=rule, first=due, queue=queue, timeout=timeout, **shared)


def _timeout(value: bytes | None) -> float | None:
    try:
        seconds = float(value or 0)
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def cron_rule(text: str) -> str:
    """Return the rule of a cron string as the library `crontab` reads it: days match both of their fields.

    Raises:
        ConfigError: evsched has no such rule.
    """
    parts = ALIASES.get(text.strip().lower(), text).replace("?", "*").split()
    if len(parts) in (6, 7):  # a year is last; seconds are first if there are seven fields
        if parts.pop() != "*":
            raise ConfigError(f"cron_string {text!r}: a rule has no year")
        if parts[:-5] == ["0"]:
            del parts[0]
    if len(parts) not in (5, 6):
        raise ConfigError(f"cron_string {text!r} is not a rule")
    day, weekday = parts[-3], parts[-1]
    if not day.startswith("*") and not weekday.startswith("*"):
        # The sets of the fields; the time at which the walk begins does not matter.
        walk = CronSim(parse_rule(" ".join(parts[-5:])).cron or "", _BEGIN)
        if not all(isinstance(one, int) and one >= 0 for one in (*walk.days, *walk.weekdays)):
            raise ConfigError(f"cron_string {text!r}: no rule has such days")
        parts[-3], parts[-1] = both_days(_whole(walk.days), {one % 7 for one in _whole(walk.weekdays)})
    return " ".join(parts)


def _whole(values: Any) -> set[int]:
    return {int(one) for one in values}


class _PlainUnpickler(pickle.Unpickler):
    """Reads a pickle of plain values: None, numbers, texts, bytes, lists, tuples, sets and dictionaries."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise ConfigError(
            f"its arguments have a {module_name}.{global_name}, which JSON does not hold: pass a plain value"
        )

    def persistent_load(self, pid: Any, /) -> Any:
        raise ConfigError("its arguments refer to an object outside of the pickle")


_MALFORMED: Final = (pickle.UnpicklingError, ValueError, EOFError, LookupError, AttributeError, TypeError)
"""The errors of `pickle` and `json` for bytes that are neither."""


def _read(data: bytes, kind: type[T]) -> T:
    """Read a value that RQ has written: a pickle, or JSON.

    Raises:
        ConfigError: it is of another kind, or has other values than plain ones.
    """
    try:
        plain = json.loads(data) if data[:1] in b"[{" else _PlainUnpickler(io.BytesIO(data)).load()
    except (*_MALFORMED, RecursionError, OverflowError, MemoryError) as error:
        raise ConfigError(f"its data cannot be read: {type(error).__name__}: {error}") from None
    return _converted(plain, kind)


def _converted(plain: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"its data is not that of RQ: {error}") from None
