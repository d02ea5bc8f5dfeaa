"""Jobs by a filter: find them, or change all that match, a slice at a time.

A slice is one call that finds jobs in a place, and then calls of the verb that changes them. Each is a script of a few
milliseconds, however many jobs there are. The verb examines each job again, so a job that has started, ended or become
another one since it was found stays as it is.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evsched import keys
from evsched.client.operations import Operation, Send, node_of, send
from evsched.client.option_values import due_and_delay, lasting_seconds, past_moment, unix
from evsched.client.record_walk import RecordWalk
from evsched.errors import ConfigError, StoreDown, StoreError, StoreRefused
from evsched.jobs import option_checks as check
from evsched.jobs.job import decode, encode, is_not_finite
from evsched.jobs.record import PLACES, Place
from evsched.jobs.retry import parameters_of
from evsched.store.many_queues import AT_ONCE
from evsched.store.operator_calls import Match, QueueStats, Slice, WantedArgument, condition
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call, T

Waiting = Literal["schedule", "backlog", "ready", "dead"]
"""The places in which jobs are found unless others are named. Those that workers hold may end at any moment."""

WAITING: Final[tuple[Waiting, ...]] = ("schedule", "backlog", "ready")
"""In the order in which jobs pass them, so that a job which moves on meanwhile is still met."""

SEARCHED: Final[tuple[Place, ...]] = (*WAITING, "processing", "dead")
"""The places that a search for single jobs looks through."""

_SLICE: Final = 150
"""Jobs that a call examines: about 2 ms of Redis's time."""

_CHANGES: Final = 60
"""Jobs that a call changes: about 2 ms of Redis's time, with few workers."""

_WORKERS: Final = 16
"""This number of workers doubles the cost of cancelling a job: the list of each may have to be searched for it."""

Change = Callable[[Store, Sequence[str], bytes], Call[int]]
"""Returns the call that changes those of some jobs that still match, and returns how many."""


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs. All conditions that are given must hold.

    `task`, `group`: the exact name. `reason`: a part of the job's reason; A to Z count as a to z. `error`: the class
    that the handler raised, such as `requests.exceptions.Timeout`, or `Timeout` for each class of that name. `tags`:
    the job has all of them. `arguments`: it was called with these values, by name, or by position from "1"; an argument
    that was passed by position is also found by name, if a worker has described its task. `older`: a timedelta, or
    seconds; for that long the job has been dead, or else has existed (docs/manage.md). `since`, `until`: it died, or
    else was created, within that span, both ends included; an aware datetime, Unix seconds, or a timedelta before now.
    """

    task: str | None = None
    group: str | None = None
    reason: str | None = None
    error: str | None = None
    tags: Sequence[str] = ()
    arguments: Mapping[str, Any] = {}
    older: timedelta | float | None = None
    since: datetime | timedelta | float | None = None
    until: datetime | timedelta | float | None = None

    def __post_init__(self) -> None:
        for name in ("task", "group", "reason", "error"):
            if (value := getattr(self, name)) is not None:
                check.text(name, value)
        check.tags("tags", self.tags)
        _check_arguments(self.arguments)
        if self.older is not None:
            lasting_seconds("older", self.older)
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and not isinstance(moment, timedelta) and math.isinf(unix(name, moment)):
                raise check.invalid(name, moment, "a finite time")
        if self.since is not None and self.until is not None:
            lengths = [isinstance(moment, timedelta) for moment in (self.since, self.until)]
            # A length is compared with a moment only in Redis, by its clock.
            if lengths[0] == lengths[1] and past_moment("since", self.since, 0.0) > past_moment(
                "until", self.until, 0.0
            ):
                raise ConfigError("since is after until, so no job matches: exchange them")

    @property
    def is_empty(self) -> bool:
        return self.condition(0.0) == condition()

    @property
    def is_timed(self) -> bool:
        """Whether it depends on the time at which it is applied."""
        return any(value is not None for value in (self.older, self.since, self.until))

    @property
    def names_arguments(self) -> bool:
        """Whether it names an argument that may have been passed by position."""
        return any(not _POSITION.fullmatch(name) for name in self.arguments)

    def condition(self, now: float, parameters: Mapping[str, Sequence[str]] = {}) -> bytes:
        """Return the filter as the scripts take it.

        `now`: Redis's clock. `parameters`: of each known task, the parameters that may be passed by position.
        """
        after = None if self.since is None else past_moment("since", self.since, now)
        before = None
        if self.is_timed:
            # Not after now: a due time stands in for an unknown time of creation only once it has passed.
            until = now if self.until is None else past_moment("until", self.until, now)
            older = 0.0 if self.older is None else lasting_seconds("older", self.older)
            before = min(until, now - older)
        names: dict[str, Any] = {"task": self.task, "group": self.group, "reason": self.reason, "error": self.error}
        arguments = [_wanted(name, value, parameters) for name, value in self.arguments.items()]
        return condition(**names, tags=self.tags, arguments=arguments, after=after, before=before)


_POSITION: Final = re.compile("[1-9][0-9]{0,5}")
"""The name of an argument that is passed by position."""


def _check_arguments(arguments: Any) -> None:
    check.named("arguments", arguments)
    for name, value in arguments.items():
        check.text("arguments: a name", name)
        try:
            text = encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(f"arguments: {name} is not JSON: {error}") from None
        if is_not_finite(value) or _has_inexact(decode(text)):
            raise check.invalid(f"arguments: {name}", value, "numbers below 2**53, which Redis compares exactly")


def _has_inexact(value: Any) -> bool:
    """Return whether a value has a number that Lua may take for another one."""
    if isinstance(value, dict):
        return any(map(_has_inexact, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_has_inexact, cast("list[Any]", value)))
    return isinstance(value, int | float) and abs(value) >= 2**53


def _wanted(name: str, value: Any, parameters: Mapping[str, Sequence[str]]) -> WantedArgument:
    position = int(name) if _POSITION.fullmatch(name) else None
    positions = {task: names.index(name) + 1 for task, names in parameters.items() if name in names}
    return WantedArgument(name, value, position, positions)


class Swept(Struct, frozen=True):
    """The result for the jobs that matched."""

    matched: int
    changed: int
    unknown: int = 0
    """How many may have been changed: Redis was down, and its answer was lost."""

    @property
    def left(self) -> int:
        """How many were left as they are, because they had started, ended or changed before their turn came."""
        return self.matched - self.changed - self.unknown


class _Pass:
    """How far the sweep of one queue is."""

    def __init__(self, store: Store) -> None:
        self.store: Final = store
        self.condition = b""
        self.changed = set[str]()
        """The ids that a call has changed, in this pass or one before it."""
        self.total = 0
        self.restart()

    def restart(self) -> None:
        """Begin again with the first place."""
        self.keys: list[str] = []
        """Those that are not examined yet, without the root; none = the pass has yet to begin."""
        self.at_once = 1
        """Jobs that a call changes."""
        self.cursor = "0"
        self.left: list[bytes] = []
        """Ids that are to be examined before the cursor moves on."""
        self.seen = set[str]()
        """Redis may return an id twice, and a job that was revived may be dead again: each is changed once."""
        self.found: list[Match] = []
        self.examined = 0

    def ended_slice(self, part: Slice) -> bool:
        """Note the result of a call; return whether there is more to examine."""
        self.cursor, self.left = part.cursor, part.left
        if self.cursor == "0" and not self.left:
            self.keys.pop(0)
        return bool(self.keys)


class Sweep:
    """One pass over places of a queue and its shards: finds the jobs that match, or makes a `change` of them.

    `step` does a slice of each queue in turn, and the sweep may be ended after any step. Another sweep with the same
    filter does the rest. If Redis was down, the pass over that queue begins again: a server that has restarted passes
    over jobs if a scan is continued, and may have lost the latest changes.

    Raises:
        ConfigError: the jobs are to be changed, and the filter is empty.
    """

    def __init__(
        self, stores: Sequence[Store], matching: Filter, places: Sequence[Place], change: Change | None = None
    ) -> None:
        _check_type(matching)
        if change is not None:
            _check(matching)
        self.changed = 0
        """A job whose change Redis lost, and which was changed again, counts twice."""
        self._stores, self._filter, self._places, self._change = stores, matching, places, change
        self._lists = [place for place in places if place != "finished"]
        self._all = [_Pass(store) for store in stores] if self._lists else []
        self._going = deque[_Pass | RecordWalk](self._all)
        self._walk = RecordWalk(stores, self._condition_of) if "finished" in places else None
        """All queues share it."""
        if self._walk is not None:
            self._going.append(self._walk)
        self._stats: dict[str, QueueStats] | None = None
        """The figures with which the passes begin."""
        self._matched = set[tuple[str, str]]()
        """The queues and ids of the jobs."""
        self._unknown = 0
        self._absences = 0
        """How many calls were sent again because Redis was down."""

    def without_change(self) -> Sweep:
        """Return a sweep that finds the same jobs, and changes nothing."""
        return Sweep(self._stores, self._filter, self._places)

    def within(self, places: Sequence[Place]) -> Sweep:
        """Return a sweep that does the same in those of its places that are among these.

        Raises:
            ConfigError: none is.
        """
        left: list[Place] = [place for place in self._places if place in places]
        if not left:
            raise ConfigError(
                f"this changes jobs in {' or '.join(self._places)}, and the search names {' or '.join(places)}: leave "
                "the place out"
            )
        return Sweep([store.within(left) for store in self._stores], self._filter, left, self._change)

    @property
    def places(self) -> Sequence[Place]:
        """The places that it passes over."""
        return self._places

    @property
    def found(self) -> list[Match]:
        """The jobs that matched, if nothing is to be changed."""
        return [match for _, match in self.found_in]

    @property
    def found_in(self) -> list[tuple[str, Match]]:
        """The same with their queues, or shards."""
        found = [(going.store.queue, match) for going in self._all for match in going.found]
        return found if self._walk is None else [*found, *self._walk.found]

    @property
    def examined(self) -> int:
        """About how many jobs were examined, of `total`."""
        return sum(going.examined for going in (*self._all, *filter(None, [self._walk])))

    @property
    def total(self) -> int:
        """About how many jobs there are in the queues whose sweep has begun: after a step for each, in all."""
        return sum(going.total for going in (*self._all, *filter(None, [self._walk])))

    @property
    def swept(self) -> Swept:
        """The result so far."""
        return Swept(len(self._matched), min(self.changed, len(self._matched) - self._unknown), self._unknown)

    def step(self) -> Operation[bool]:
        """Do one slice; return whether there is more to do."""
        first = self._going[0]
        more = yield from (self._step(first) if isinstance(first, _Pass) else self._step_of_walk(first))
        going = self._going.popleft()  # not before: after an error, the next step goes on with this queue
        if more:
            self._going.append(going)
        return bool(self._going)

    def finish(self) -> Operation[Swept]:
        """Do the rest; return the result."""
        while (yield from self.step()):
            pass
        return self.swept

    def _step_of_walk(self, walk: RecordWalk) -> Operation[bool]:
        absences, known = self._absences, len(walk.found)
        more = yield from walk.step(self._send)
        if self._absences > absences:
            walk.restart()
            return True
        self._matched.update((queue, job.id) for queue, job in walk.found[known:])
        return more

    def _step(self, going: _Pass) -> Operation[bool]:
        absences = self._absences
        if not going.keys:
            yield from self._begin(going)
        if not going.keys:  # no job is there
            return False
        ids = list(going.left)
        call = going.store.find(going.keys[0], going.condition, going.cursor, limit=_SLICE, ids=ids)
        part = yield from self._send(call)
        if self._absences == absences:
            going.examined = min(going.total, going.examined + (0 if ids else _SLICE))
            new = {match.id: match for match in part.found if match.id not in going.seen}
            going.seen.update(new)
            self._matched.update((going.store.queue, job) for job in new)
            if self._change is None:
                going.found += new.values()
            else:
                yield from self._change_all(going, self._change, list(new))
        if self._absences > absences:
            going.restart()
            return True
        return going.ended_slice(part)

    def _begin(self, going: _Pass) -> Operation[None]:
        store = going.store
        if self._stats is None:
            self._stats = (yield from _read_stats([one.store for one in self._all])) if len(self._all) > 1 else {}
        stats = self._stats.pop(store.queue, None) or (yield from send(store.queue_stats()))
        going.total = sum(stats.places.get(place, 0) for place in self._lists)
        if not going.total:
            return
        if not going.condition:
            going.condition = yield from self._condition_of(store)
        going.at_once = max(1, _CHANGES * _WORKERS // (_WORKERS + stats.workers))
        places = list[str](self._lists)
        if "backlog" in places:
            groups = yield from send(store.throttled())
            # Before the backlog, to which jobs return that the limits of their group let go on.
            at = places.index("backlog")
            places[at:at] = [f"backlog:{group}" for group in groups]
        if "processing" in places:
            at = places.index("processing")
            places[at : at + 1] = [f"processing:{worker}" for worker in (yield from send(store.workers()))]
        going.keys = places

    def _condition_of(self, store: Store) -> Operation[bytes]:
        """Return the filter as the scripts of a queue take it."""
        now = (yield from send(clock(keys.root(store.queue)))) if self._filter.is_timed else 0.0
        parameters = (yield from _parameters(store)) if self._filter.names_arguments else {}
        return self._filter.condition(now, parameters)

    def _change_all(self, going: _Pass, change: Change, ids: Sequence[str]) -> Operation[None]:
        fresh = [job for job in ids if job not in going.changed]
        again = [job for job in ids if job in going.changed]
        for store, part in ((going.store, fresh), (going.store.repeated(), again)):
            for at in range(0, len(part), going.at_once):
                some, absences = part[at : at + going.at_once], self._absences
                changed = yield from self._send(change(store, some, going.condition))
                going.changed.update(some)
                self.changed += changed
                self._unknown += len(some) - changed if self._absences > absences else 0

    def _send(self, call: Call[T]) -> Operation[T]:
        """Send a call, and count if Redis was down."""
        try:
            return (yield Send(call))
        except StoreDown:
            self._absences += 1
        return (yield from send(call))


def cancelling(stores: Sequence[Store], matching: Filter) -> Sweep:
    """Return the sweep that cancels waiting jobs. This and the next ones raise as `Sweep`."""
    return Sweep(stores, matching, WAITING, Store.cancel_matching)


def rescheduling(
    stores: Sequence[Store], matching: Filter, due: datetime | float | None, delay: timedelta | float | None
) -> Sweep:
    """Return the sweep that gives waiting jobs another due; without one they are due now."""
    moment, length = due_and_delay(due, delay)
    return Sweep(stores, matching, WAITING, partial(Store.reschedule_matching, due=moment, delay=length))


def reviving(stores: Sequence[Store], matching: Filter) -> Sweep:
    return Sweep(stores, _by_now(matching), ("dead",), Store.revive_matching)


def dropping(stores: Sequence[Store], matching: Filter) -> Sweep:
    return Sweep(stores, _by_now(matching), ("dead",), Store.drop_matching)


def _by_now(matching: Filter) -> Filter:
    """Return a filter of dead jobs that leaves out jobs which die after the sweep has begun.

    Otherwise a sweep that is repeated, because Redis was down, would change a job twice that has died once more.
    """
    _check(matching)
    return replace(matching, older=0.0) if matching.older is None else matching


def _read_stats(stores: Sequence[Store]) -> Operation[dict[str, QueueStats]]:
    """Return the figures of queues with a few calls. A queue that Redis refuses to read is left out."""
    by_node, found = dict[Host | None, list[Store]](), dict[str, QueueStats]()
    for store in stores:
        by_node.setdefault((yield from node_of(keys.root(store.queue))), []).append(store)
    for of_node in by_node.values():
        for at in range(0, len(of_node), AT_ONCE):
            names = [store.queue for store in of_node[at : at + AT_ONCE]]
            try:
                read = yield from send(of_node[at].many_queue_stats(names))
            except StoreError:
                continue
            found |= {name: stats for name, stats in zip(names, read, strict=False) if stats is not None}
    return found


def _parameters(store: Store) -> Operation[dict[str, tuple[str, ...]]]:
    """Return the parameters of the tasks that workers of the queue have described."""
    try:
        described = yield from send(store.all_policies())
    except StoreRefused:  # the key is of another type
        return {}
    return {task: parameters_of(stored) for task, stored in described.items()}


def find(stores: Sequence[Store], matching: Filter, place: Place | None) -> Operation[list[Match]]:
    """Return all waiting and dead jobs that match, in no order; in one place if it is given.

    Raises:
        ConfigError: there is no such place.
    """
    if place is not None:
        check.one_of(*PLACES)("place", place)
    sweep = Sweep(stores, matching, get_args(Waiting) if place is None else (place,))
    yield from sweep.finish()
    return sweep.found


def describe(store: Store, place: str, jobs: Sequence[tuple[str, float | None]]) -> Operation[list[Match]]:
    """Return jobs with their known fields, by their ids and scores, in this order. `place`: a key without the root."""
    known, left = dict[str, Match](), list[bytes | str](job for job, _ in jobs)
    while left:
        part = yield from send(store.find(place, condition(), ids=left[:_SLICE]))
        known.update((match.id, match) for match in part.found)
        left[:_SLICE] = part.left
    name = place.partition(":")[0]
    return [known.get(job) or Match(name, job, score, None, None, None, None, None, None) for job, score in jobs]


def _check_type(matching: Any) -> None:
    if not isinstance(matching, Filter):
        raise check.invalid("matching", matching, "a Filter, such as Filter(task='mail')")


def _check(matching: Filter) -> None:
    if matching.is_empty:
        raise ConfigError(
            "the filter has no condition, so every job would match: give it a task, group, reason, error, tag, "
            "argument or time"
        )
