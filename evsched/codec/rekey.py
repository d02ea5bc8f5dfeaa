"""`evsched rekey`: seals with the newest key what other keys have sealed, in short steps, while all runs.

A pass reads every place where a sealed value can lie: the records of jobs, whatever place these are in; the payloads of
light jobs; inline jobs on the schedule; recurrences; and the nodes of graphs. `rekey_rows` reads the ledger. A value is
written only if it is still as it was read, so a pass may end anywhere, and another one does the rest.
docs/encryption.md lists the places that no pass reads.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from evsched import keys
from evsched.client.operations import Operation, UseCodec, node_of, send, send_many
from evsched.codec.codec import Codec
from evsched.errors import CannotOpen, ConfigError, EvschedError
from evsched.jobs.job import decode, encode
from evsched.jobs.sealed import MARK, About, Sealed, has_seals, replaced, seals_in
from evsched.store import server
from evsched.store.reseal_calls import Kept, KeptPart
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call

_KEYS: Final = 1000
"""Keys that a call scans: 0.3 ms of Redis's time."""

_SLICE: Final = 50
"""Records that one round trip reads, and values that one call writes."""

_BYTES: Final = 262_144
"""About how many bytes one call writes: less than 2 ms of Redis's time. A longer value has a call of its own."""

_PASSES: Final = 10
"""Passes at most. Each does what other programs have changed while the one before it ran."""

Work = Callable[[], Operation["list[Work]"]]
"""Does a short step; returns the steps that follow from it."""


class Resealed(Struct):
    """The result of a pass."""

    done: int = 0
    """Values that are sealed with the newest key now."""
    changed: int = 0
    """Values that others have changed meanwhile."""
    missing: Counter[str] = msgspec.field(default_factory=Counter[str])
    """By the ids of keys, how many values cannot be opened."""
    why: dict[str, str] = {}
    """By the ids of keys, the reason for one of these values."""


class Rekey:
    """Passes over queues and their shards, until one finds nothing to do.

    `step` makes one short step; the client that performs it must have the codec.

    Raises:
        ConfigError: the codec has no key to write.
    """

    def __init__(self, stores: Sequence[Store], codec: Codec) -> None:
        if not codec.write:
            raise ConfigError("rekey: the codec has no key to write: give it keys")
        self._stores = {store.queue: store for store in stores}
        self._codec = codec
        self._work = deque[Work]([self._begin])
        self._passes = 0
        self.result = Resealed()
        """How many values were sealed again so far; the other counts are those of the last pass."""
        self._now = Resealed()
        self.examined = self.total = 0
        """About how many keys this pass has walked, and how many there are."""

    def step(self) -> Operation[bool]:
        """Make a step; return whether there is more to do."""
        first = self._work[0]
        more = yield from first()
        self._work.popleft()  # not before: after an error, the next step does it again
        self._work.extendleft(reversed(more))
        if not self._work:
            self._passes += 1
            now, self._now = self._now, Resealed()
            self.result = replace(now, done=self.result.done)
            if (now.done or now.changed) and self._passes < _PASSES:
                self._work.append(self._begin)
        return bool(self._work)

    def _begin(self) -> Operation[list[Work]]:
        nodes = dict[Host | None, None]()
        for queue in self._stores:
            nodes[(yield from node_of(keys.root(queue)))] = None
        self.examined = self.total = 0
        for node in nodes:
            self.total += yield from send(server.size().at(node))
        works: list[Work] = [partial(self._records, node, 0) for node in nodes]
        for store in self._stores.values():
            works.append(partial(self._recurrences, store, 0))
            works.append(partial(self._scan, store, store.inline_members, 0))
            works.append(partial(self._scan, store, store.light_payloads, 0))
            works.append(partial(self._graphs, store, 0))
        return works

    def _records(self, node: Host | None, cursor: int) -> Operation[list[Work]]:
        only = next(iter(self._stores)) if len(self._stores) == 1 else None
        cursor, met = yield from send(server.scan_records(cursor, only, _KEYS).at(node))
        self.examined = min(self.total, self.examined + _KEYS)
        ids = dict[str, list[str]]()
        for queue, job in met:
            if queue in self._stores and keys.NAME.fullmatch(name := job.decode(errors="replace")):
                ids.setdefault(queue, []).append(name)
        works: list[Work] = []
        for queue, some in ids.items():
            store = self._stores[queue]
            slices = (some[at : at + _SLICE] for at in range(0, len(some), _SLICE))
            works += [partial(self._read, store, [store.sealed_fields(job) for job in part]) for part in slices]
        return [*works, partial(self._records, node, cursor)] if cursor else works

    def _recurrences(self, store: Store, start: int) -> Operation[list[Work]]:
        rows = yield from send(store.recurrences(start, _SLICE))
        yield from self._read(store, [store.recurrence_payload(name) for name, _ in rows])
        return [partial(self._recurrences, store, start + _SLICE)] if len(rows) == _SLICE else []

    def _graphs(self, store: Store, cursor: int) -> Operation[list[Work]]:
        cursor, ids = yield from send(store.batch_ids_of_all(cursor, _SLICE))
        works: list[Work] = [partial(self._scan, store, partial(store.graph_nodes, batch), 0) for batch in ids]
        return [*works, partial(self._graphs, store, cursor)] if cursor else works

    def _scan(self, store: Store, read: Callable[[int, int], Call[KeptPart]], cursor: int) -> Operation[list[Work]]:
        part = yield from send(read(cursor, _SLICE))
        for at in range(0, len(part.kept), _SLICE):
            yield from self._reseal(store, part.kept[at : at + _SLICE])
        return [partial(self._scan, store, read, part.next)] if part.next else []

    def _read(self, store: Store, reading: Sequence[Call[list[Kept]]]) -> Operation[list[Work]]:
        """Read values of single keys, and seal them again."""
        if reading:
            found = yield from send_many(reading)
            yield from self._reseal(store, [one for part in found for one in part])
        return []

    def _reseal(self, store: Store, kept: Sequence[Kept]) -> Operation[None]:
        kept = [one for one in kept if b"sealed" in one.value]
        if not kept:
            return
        changes: list[tuple[Kept, bytes]] = yield UseCodec(lambda _: self._sealed(kept))
        for some in _calls(changes):
            written = yield from send(store.reseal(some[0][0].kind, some))
            self._now.done += sum(written)
            self.result.done += sum(written)
            self._now.changed += len(written) - sum(written)

    async def _sealed(self, kept: Iterable[Kept]) -> list[tuple[Kept, bytes]]:
        """Return the values that are to change, as they will be."""
        found = list[tuple[Kept, bytes]]()
        for one in kept:
            sealing = Resealing(self._codec)
            try:
                value = await sealing.value(one)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, KeyError):
                continue  # no worker can read it
            sealing.note_in(self._now)
            if sealing.changed:
                found.append((one, value))
        return found


def _calls(changes: Iterable[tuple[Kept, bytes]]) -> Iterator[list[tuple[Kept, bytes]]]:
    """Yield changes that one call makes: all are of one kind, and not too long."""
    some, size = list[tuple[Kept, bytes]](), 0
    for kept, value in changes:
        if some and (kept.kind != some[0][0].kind or size + len(value) > _BYTES):
            yield some
            some, size = [], 0
        some.append((kept, value))
        size += len(value)
    if some:
        yield some


class Resealing:
    """Seals with the newest key the sealed values that are in one value."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.changed = False
        self._unopened = list[tuple[str, str]]()
        """The keys of values that cannot be opened, and why not."""

    def note_in(self, result: Resealed) -> None:
        """Count the values that cannot be opened."""
        result.missing.update(key for key, _ in self._unopened)
        result.why |= dict(self._unopened)

    async def value(self, kept: Kept) -> bytes:
        """Return a value with all sealed values in it sealed again."""
        if kept.kind == "node":
            fields = msgspec.json.decode(kept.value, type=dict[str, Raw])
            payload = await self.payload(bytes(fields["payload"]))
            return encode(fields | {"payload": Raw(payload)})
        if kept.field == "result":
            return await self._in_value(About("result"), kept.value)
        if kept.field in ("steps", "signals"):
            lines = kept.value.split(b"\n")
            return b"\n".join([await self._line("step" if kept.field == "steps" else "signal", line) for line in lines])
        return await self.payload(kept.value, fixed=kept.kind == "recurrence")

    async def payload(self, text: bytes, *, fixed: bool = False) -> bytes:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
        if "sealed" in fields:
            sealed = msgspec.json.decode(fields["sealed"], type=Sealed)
            about = About("arguments", decode(fields["task"]), sealed.of)
            fields["sealed"] = Raw(encode(await self._again(about, sealed, fixed=fixed)))
        for name in ("args", "kwargs"):
            if has_seals(decode(fields.get(name, b"null"))):
                fields[name] = Raw(await self._in_value(About("result"), bytes(fields[name])))
        return encode(fields)

    async def _line(self, what: Any, line: bytes) -> bytes:
        name, _, rest = line.partition(b"\t")
        at, there, value = rest.partition(b"\t")
        if not there or not has_seals(_json(value)):
            return line
        return b"\t".join((name, at, await self._in_value(About(what, name.decode()), value)))

    async def _in_value(self, about: About, text: bytes) -> bytes:
        """Return a value of JSON in which all sealed values are sealed again."""
        value = decode(text)
        again = {one: {MARK: await self._again(replace(about, of=one.of), one)} for one in seals_in(value)}
        return encode(replaced(value, again.__getitem__))

    async def _again(self, about: About, sealed: Sealed, *, fixed: bool = False) -> Sealed:
        """Return a value sealed with the newest key; unchanged if it has that key already, or cannot be opened."""
        if self._codec.is_current(sealed):
            return sealed
        try:
            text = self._codec.open(about, await self._codec.get(sealed))
        except CannotOpen as error:
            if error.later:
                raise
            self._unopened.append((sealed.key, str(error)))
            return sealed
        self.changed = True
        found = self._codec.seal(about, text, fixed=fixed)
        try:
            return found if fixed else await self._codec.put(found)
        # `put` is a function of the user, and may raise anything.
        except Exception as error:
            raise EvschedError(f"the store does not take a value: {type(error).__name__}: {error}") from error


_ROWS: Final = """
SELECT queue, id, payload::text FROM evsched_job WHERE (queue, id) > (%s, %s) ORDER BY queue, id LIMIT 500
"""

_ROW: Final = """
UPDATE evsched_job SET payload = CAST(%s AS json) WHERE queue = %s AND id = %s AND payload::text = %s
"""


async def rekey_rows(ledger_url: str | None, codec: Codec) -> Resealed:
    """Seal the payloads in the rows of the ledger with the newest key, 500 in each transaction."""
    from evsched.ledger.database import check_url, connect  # it needs psycopg

    result, after = Resealed(), ("", "")
    async with await connect(check_url(ledger_url)) as connection:
        while rows := await (await connection.execute(_ROWS, after)).fetchall():
            for queue, job, payload in rows:
                sealing = Resealing(codec)
                text = (await sealing.payload(payload.encode())).decode()
                sealing.note_in(result)
                if sealing.changed:
                    written = (await connection.execute(_ROW, (text, queue, job, payload))).rowcount
                    result.done += written
                    result.changed += 1 - written
            await connection.commit()
            after = rows[-1][:2]
    return result


def _json(text: bytes) -> Any:
    try:
        return decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
