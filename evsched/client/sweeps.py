"""The sweeps of a queue and its shards, as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from evsched.client.operations import Operation
from evsched.client.reshard import finish_moves
from evsched.client.spread import MakeStore
from evsched.client.sweep import Sweep, Swept
from evsched.store.operator_calls import Match
from evsched.store.store import Store


class Sweeps:
    """Does a slice of each sweep in turn. Otherwise as `Sweep`: it may be ended after any step."""

    def __init__(self, sweeps: Iterable[Sweep]) -> None:
        self._all = list(sweeps)
        self._going = deque(self._all)

    @property
    def found(self) -> list[Match]:
        return [match for sweep in self._all for match in sweep.found]

    @property
    def changed(self) -> int:
        return sum(sweep.changed for sweep in self._all)

    @property
    def examined(self) -> int:
        """About how many jobs were examined, of `total`."""
        return sum(sweep.examined for sweep in self._all)

    @property
    def total(self) -> int:
        """About how many jobs there are, in the sweeps that have begun: after a step for each, in all."""
        return sum(sweep.total for sweep in self._all)

    @property
    def swept(self) -> Swept:
        """The result so far."""
        parts = [sweep.swept for sweep in self._all]
        return Swept(
            matched=sum(part.matched for part in parts),
            changed=sum(part.changed for part in parts),
            unknown=sum(part.unknown for part in parts),
        )

    def without_change(self) -> Sweeps:
        """Return sweeps that find the same jobs, and change nothing."""
        return Sweeps(sweep.without_change() for sweep in self._all)

    def step(self) -> Operation[bool]:
        """Do one slice; return whether there is more to do."""
        more = yield from self._going[0].step()
        sweep = self._going.popleft()  # not before: after an error, the next step goes on with this sweep
        if more:
            self._going.append(sweep)
        return bool(self._going)

    def finish(self) -> Operation[Swept]:
        """Do the rest; return the result."""
        while (yield from self.step()):
            pass
        return self.swept


def sweep_all(make: MakeStore, stores: Sequence[Store], plan: Callable[[Store], Sweep]) -> Operation[Swept]:
    """Do a sweep of each of these queues, after jobs that left one of them have arrived at another one."""
    if len(stores) > 1:
        yield from finish_moves(make, stores)
    return (yield from Sweeps(map(plan, stores)).finish())
