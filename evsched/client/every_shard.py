"""Changes of a queue that are made in each of its shards, one after the other.

None is begun while the primary of a shard does not answer. If one fails in the middle, the error names the shards that
were changed, and those that were not. The same change can be made again: it does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from evsched import keys
from evsched.client.operations import Operation, node_of, send
from evsched.client.spread import answering
from evsched.errors import ShardsDown, StoreDown, StoreError, StoreRefused
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.call import T
from evsched.transport.servers import START_IT, nodes_down, reason

_NAMED: Final = 5
"""Shards that a message names."""


def change(stores: Sequence[Store], operation: Callable[[Store], Operation[T]], done: str) -> Operation[list[T]]:
    """Change a queue and each of its shards, after a `check`; return what the operation returns for each.

    `stores`: those of the queue's shards and, last, of the queue itself. `done`: what was done, as "paused".

    Raises:
        ShardsDown: a primary does not answer: nothing was done, or only a part.
    """
    if len(stores) == 1:
        return [(yield from operation(stores[0]))]
    found = list[T]()
    for at, store in enumerate(stores):
        try:
            found.append((yield from operation(store)))
        except (StoreDown, StoreRefused) as error:
            raise _failed([store.queue for store in stores], at, done, error) from error
    return found


def check(stores: Sequence[Store]) -> Operation[None]:
    """Check, in a cluster, that the primaries of a queue and of all its shards answer.

    Raises:
        ShardsDown: one does not, and nothing was done.
    """
    lost = dict[str, tuple[str, int]]()
    try:
        if len(stores) > 1 and (yield from node_of(keys.root(stores[-1].queue))) is not None:
            _, lost = yield from answering(stores, _ask, set())
    except StoreDown as error:
        raise _nothing_done(reason(error), error) from error
    if lost:
        nodes = sorted({*lost.values()})
        down = StoreDown(kind="connection", node=nodes[0])
        raise _nothing_done(f"{nodes_down(nodes)}, which {_has(nodes)} {_some([*lost])}", down)


def _ask(stores: Sequence[Store]) -> Operation[None]:
    for store in stores:
        yield from send(clock(keys.root(store.queue)))


def _failed(names: Sequence[str], at: int, done: str, error: StoreError) -> StoreError:
    """Return the error of a change that failed at one of the shards."""
    if at == 0 and not error.unsure:
        return _nothing_done(reason(error), error)
    were = f"{_some(names[:at])} {_was(at)} {done}; " if at else ""
    maybe = [f"{names[at]} may have been"] if error.unsure else []
    left = names[at + len(maybe) :]
    nots = [f"{_some(left)} {_was(len(left))} not"] if left else []
    when = "it does" if error.node else "Redis can do it"
    return _same_kind(f"{were}{reason(error)}, so {', and '.join(maybe + nots)}: repeat this when {when}", error)


def _nothing_done(why: str, error: StoreError) -> StoreError:
    todo = "" if error.node is None else f": {START_IT}, and try again"
    return _same_kind(f"{why}, so nothing was done{todo}", error)


def _same_kind(message: str, error: StoreError) -> StoreError:
    kind = ShardsDown if isinstance(error, StoreDown) else StoreRefused
    return kind(message, kind=error.kind, node=error.node)


def _has(nodes: Sequence[object]) -> str:
    return "has" if len(nodes) == 1 else "have"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
