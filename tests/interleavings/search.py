"""The search: breadth first over a few processes and one store; equal states are joined.

A process is a generator. It yields its next operation, and is sent the reply:

    Do(call)         one atomic call of the store; any steps of other processes may come before it
    Pick(options)    a choice that is not the process's own, such as which handler ends first: all are followed
    Note(text)       something that the store does not see, such as the begin of a handler: it is counted
    Epoch()          the epoch, which only the step `time` raises

A generator cannot be copied. So a state keeps the replies that each process has received, and the process is run again
from its start, which takes microseconds and no call. Two states are equal if their store, clock, calls on the way,
notes, and the position and local variables of each process are equal. So a process keeps its knowledge in local
variables of plain types, and deletes or overwrites those that it needs no more. Processes in `twins` may change places.

A choice is made, and the epoch is read, when the process moves and not when it receives the reply before. That gives
fewer states and the same paths.

Faults, each of which uses up one of the scene's:

    lost     the call was made, its reply is LOST
    unsent   the call was not made, its reply is LOST: the process cannot tell the difference
    late     its reply is LOST, and the call is made at any later time, or never
    dead     the process takes no further step
    jump     the server's clock is set ahead or back by an epoch; only a scene that names this fault has it
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct

from evsched.transport.call import Call
from tests.interleavings.server import Clock, SavedRedis, Snapshot

LOST: Final = "LOST"
FAULTS: Final = ("lost", "unsent", "late", "dead")
JUMP: Final = "jump"

_SLICE: Final = 400
"""States whose calls are sent to Redis together."""


class Do(NamedTuple):
    """Make a call. `faults`: which kinds of fault may happen to it."""

    call: Call[Any]
    faults: tuple[str, ...] = FAULTS


class Pick(NamedTuple):
    """Follow each of the options."""

    options: tuple[Any, ...]


class Note(NamedTuple):
    """Count something that happens outside the store."""

    text: str


class Epoch(NamedTuple):
    """Read the number of the epoch."""


Operation = Do | Pick | Note | Epoch
Process = Generator[Operation, Any, None]


class Position(NamedTuple):
    """A process in a state: the replies that it has received, the last first; its place and its next operation."""

    replies: tuple[Any, Any] | None
    place: str
    """The line it is at, with its local variables."""
    next: Operation | None


DEAD: Final = Position(None, "dead", None)


class State(NamedTuple):
    """One state of the store and of all processes."""

    snapshot: Snapshot
    clock: Clock
    positions: tuple[Position, ...]
    on_the_way: tuple[Call[Any], ...]
    """Calls that are made late, or never."""
    faults: int
    """How many may still happen."""
    notes: tuple[tuple[str, int], ...]

    def noted(self, text: str) -> int:
        """Return how often a process has noted this."""
        return dict(self.notes).get(text, 0)


@dataclass
class Scene:
    """What is searched, and for what."""

    redis: SavedRedis
    start: Snapshot
    processes: dict[str, Callable[[], Process]]
    check: Callable[[State | None, State, str], str | None]
    """From the state before, the state, and the step between them: what is wrong, or None."""
    recover: Callable[[list[State]], list[str | None]]
    """From each of these states: what is wrong after the faults have ended and time has gone on, or None."""
    excused: Callable[[State, State, str], bool] = lambda _before, _state, _step: False
    """Whether a step does harm that is documented: then the state after it is not visited."""
    faults: int = 1
    kinds: tuple[str, ...] = FAULTS
    epochs: int = 1
    mortal: tuple[str, ...] = ()
    """The processes that may die."""
    twins: tuple[str, str] | None = None
    """Two processes that do the same. The name of each is one character that occurs nowhere else in a state."""


class Failure(NamedTuple):
    """What is wrong, and the shortest path to it."""

    what: str
    path: list[str]


@dataclass
class Result:
    """What a search has found."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    recoveries: int = 0
    seconds: float = 0.0
    complete: bool = True
    """False: it stopped at its bound of states."""
    failures: list[Failure] = field(default_factory=list[Failure])

    def __str__(self) -> str:
        found = f"{self.states} states, {self.steps} steps, depth {self.depth}, {self.recoveries} recoveries"
        lines = [f"{found}, {self.seconds:.1f} s{'' if self.complete else ', not searched to the end'}"]
        for failure in self.failures:
            lines.append(f"  WRONG: {failure.what}")
            lines += [f"    {number}. {step}" for number, step in enumerate(failure.path)]
        return "\n".join(lines)


def search(scene: Scene, *, most: int = 10_000_000, failures: int = 1) -> Result:
    """Visit all states of a scene, at most `most`; stop after a number of different failures."""
    return _Search(scene, most, failures).run()


class _Search:
    def __init__(self, scene: Scene, most: int, failures: int) -> None:
        self._scene = scene
        self._names = list(scene.processes)
        self._most, self._failures = most, failures
        self._result = Result()
        self._seen = set[bytes]()
        self._parents: list[tuple[int, str]] = []
        """For each state the number of the state before it, and the step between them."""
        self._recovered = set[bytes]()
        self._positions: dict[tuple[int, str, str | None], tuple[str, Operation | None]] = {}
        self._swap, self._twins = None, (0, 0)
        if scene.twins:
            one, other = scene.twins
            self._swap = str.maketrans({one: other, other: one})
            self._twins = self._names.index(one), self._names.index(other)

    def run(self) -> Result:
        began = time.monotonic()
        scene, result = self._scene, self._result
        first = State(scene.start, Clock(), (DEAD,) * len(self._names), (), scene.faults, ())
        for index in range(len(self._names)):
            first = self._advance(first, index, None)
        level = [(number, first) for number in self._visit(first, -1, "begin", None)]
        while level and not self._enough():
            result.depth += 1
            following: list[tuple[int, State]] = []
            for at in range(0, len(level), _SLICE):
                following += self._expand(level[at : at + _SLICE])
                if self._enough():
                    break
            level = following
        result.states, result.seconds = len(self._seen), time.monotonic() - began
        result.complete = not level
        return result

    def _enough(self) -> bool:
        return len(self._result.failures) >= self._failures or len(self._seen) >= self._most

    # Processes.

    def _position(self, index: int, place: str, replies: tuple[Any, Any] | None) -> Position:
        """Return the position of a process that was at a place and received a reply, the first of `replies`."""
        key = index, place, replies and repr(replies[0])
        if key not in self._positions:
            self._positions[key] = self._replay(index, replies)
        return Position(replies, *self._positions[key])

    def _replay(self, index: int, replies: tuple[Any, Any] | None) -> tuple[str, Operation | None]:
        process = self._scene.processes[self._names[index]]()
        received, link = list[Any](), replies
        while link is not None:
            reply, link = link
            received.append(reply)
        try:
            operation = next(process)
            for reply in reversed(received):
                operation = process.send(reply)
        except StopIteration:
            return "end", None
        return _place(process), operation

    def _advance(self, state: State, index: int, replies: tuple[Any, Any] | None) -> State:
        """Let a process that received a reply go on to its next operation, and count its notes."""
        position = self._position(index, state.positions[index].place, replies)
        while isinstance(position.next, Note):
            counts = dict(state.notes)
            counts[position.next.text] = counts.get(position.next.text, 0) + 1
            state = state._replace(notes=tuple(sorted(counts.items())))
            position = self._position(index, position.place, (None, position.replies))
        return state._replace(positions=(*state.positions[:index], position, *state.positions[index + 1 :]))

    def _moves(self, state: State, index: int) -> Iterable[tuple[State, Do]]:
        """Return the states in which a process has made its choices, with the call that it makes next."""
        position = state.positions[index]
        match position.next:
            case Epoch():
                yield from self._moves(self._advance(state, index, (state.clock.epoch, position.replies)), index)
            case Pick(options):
                for option in options:
                    yield from self._moves(self._advance(state, index, (option, position.replies)), index)
            case Do():
                yield state, position.next
            case Note() | None:
                pass

    # States.

    def _key(self, state: State) -> bytes:
        """Return a digest that is the same for equal states."""
        parts = state.snapshot.text
        rest = [canonical(state.on_the_way), str(state.faults), canonical(state.notes)]
        places = [position.place for position in state.positions]
        text = "|".join([*parts, *places, *rest])
        if self._swap:
            one, other = self._twins
            places = [place.translate(self._swap) for place in places]
            places[one], places[other] = places[other], places[one]
            parts = sorted(part.translate(self._swap) for part in parts)
            text = min(text, "|".join([*parts, *places, *(part.translate(self._swap) for part in rest)]))
        return _digest(self._scene.redis.ranked(text, state.clock))

    def _visit(self, state: State, parent: int, step: str, before: State | None) -> list[int]:
        """Return the number of a new state, and check it; nothing if it is known."""
        key = self._key(state)
        if key in self._seen or (before is not None and self._scene.excused(before, state, step)):
            return []
        number = len(self._parents)
        self._seen.add(key)
        self._parents.append((parent, step))
        wrong = self._scene.check(before, state, step)
        if wrong:
            self._fail(wrong, number)
        return [number]

    def _fail(self, wrong: str, number: int) -> None:
        path = []
        while number >= 0:
            number, step = self._parents[number]
            path.append(step)
        if all(failure.what != wrong for failure in self._result.failures):
            self._result.failures.append(Failure(wrong, path[::-1]))

    def _expand(self, level: Sequence[tuple[int, State]]) -> list[tuple[int, State]]:
        """Make each possible step from each of these states; return the new states."""
        scene, redis = self._scene, self._scene.redis
        calls: list[tuple[Snapshot, Call[Any], Clock]] = []
        plans: list[tuple[int, State, State, str, int, bool]] = []
        following: list[tuple[int, State]] = []

        def arrive(state: State, parent: int, step: str, before: State) -> None:
            self._result.steps += 1
            following.extend((number, state) for number in self._visit(state, parent, step, before))

        def answered(state: State, index: int, reply: Any) -> State:
            return self._advance(state, index, (reply, state.positions[index].replies))

        for number, before in level:
            clock = before.clock
            if clock.epoch < scene.epochs:
                arrive(before._replace(clock=clock._replace(epoch=clock.epoch + 1, step=0)), number, "time", before)
            for way in (-1, 1) if before.faults and JUMP in scene.kinds else ():
                jumped = before._replace(clock=clock.set(way), faults=before.faults - 1)
                arrive(jumped, number, f"{JUMP} {'ahead' if way > 0 else 'back'}", before)
            for at, call in enumerate(before.on_the_way):
                others = before.on_the_way[:at] + before.on_the_way[at + 1 :]
                calls.append((before.snapshot, call, redis.later(before.clock, call)))
                step = f"late: {redis.name(call)}"
                plans.append((number, before, before._replace(on_the_way=others), step, -1, False))
            for index, name in enumerate(self._names):
                if before.positions[index] is DEAD:
                    continue
                if name in scene.mortal and before.faults and "dead" in scene.kinds:
                    positions = (*before.positions[:index], DEAD, *before.positions[index + 1 :])
                    died = before._replace(positions=positions, faults=before.faults - 1)
                    arrive(died, number, f"{name} dies", before)
                for state, (call, faults) in self._moves(before, index):
                    step = f"{name}: {redis.name(call)}"
                    kinds = [kind for kind in scene.kinds if kind in faults] if state.faults else []
                    fewer = state._replace(faults=state.faults - 1)
                    if "unsent" in kinds:
                        arrive(answered(fewer, index, LOST), number, f"{step} [not sent]", before)
                    if "late" in kinds:
                        on_the_way = tuple(sorted((*state.on_the_way, call), key=redis.name))
                        late = answered(fewer._replace(on_the_way=on_the_way), index, LOST)
                        arrive(late, number, f"{step} [sent late]", before)
                    calls.append((state.snapshot, call, redis.later(before.clock, call)))
                    plans.append((number, before, state, step, index, "lost" in kinds))
        done = redis.make(calls)
        for (number, before, state, step, index, may_be_lost), (snapshot, reply), (_, _, clock) in zip(
            plans, done, calls, strict=True
        ):
            moved = state._replace(snapshot=snapshot, clock=clock)
            arrive(moved if index < 0 else answered(moved, index, reply), number, step, before)
            if may_be_lost:
                lost = answered(moved._replace(faults=state.faults - 1), index, LOST)
                arrive(lost, number, f"{step} [reply lost]", before)
        self._recover(following)
        return following

    def _recover(self, states: list[tuple[int, State]]) -> None:
        """Check that all goes well from each of these states once the faults have ended."""
        fresh = list[tuple[int, State]]()
        for number, state in states:
            text = "|".join([*state.snapshot.text, canonical(state.notes)])
            key = _digest(self._scene.redis.ranked(text, state.clock))
            if key not in self._recovered:
                self._recovered.add(key)
                fresh.append((number, state))
        for (number, _), wrong in zip(fresh, self._scene.recover([state for _, state in fresh]), strict=True):
            self._result.recoveries += 1
            if wrong:
                self._fail(f"after recovery: {wrong}", number)


def canonical(value: Any) -> str:
    """Return a text that is the same for equal values of plain types."""
    match value:
        case dict():
            pairs = cast(dict[Any, Any], value)
            return "{" + ",".join(sorted(f"{canonical(key)}:{canonical(pairs[key])}" for key in pairs)) + "}"
        case set() | frozenset():
            return "{" + ",".join(sorted(map(canonical, cast(set[Any], value)))) + "}"
        case list() | tuple():
            return "[" + ",".join(map(canonical, cast(list[Any], value))) + "]"
        case Call():
            return repr(cast(Call[Any], value).words)
        case str() | bytes() | int() | float() | None | Struct():
            return repr(cast(object, value))
        case _:
            pass
    raise TypeError(f"a process keeps a {type(value).__name__}: delete it, or keep a value of a plain type")


def _place(process: Process) -> str:
    parts = list[str]()
    inner: Any = process
    while inner is not None and inner.gi_frame is not None:
        frame, code = inner.gi_frame, inner.gi_code
        settings = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # the same in all states
        known = {name: value for name, value in frame.f_locals.items() if name not in settings}
        parts.append(f"{code.co_name}@{frame.f_lasti}{canonical(known)}")
        inner = inner.gi_yieldfrom
    return ";".join(parts) or "end"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
