"""Long rows: a claim reads few of them, and rows that Redis refuses cost other rows little."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import psycopg
import pytest

from evsched import process_events
from evsched.errors import StoreDown
from evsched.ledger import delivery, relay, rows
from evsched.ledger.delivery import Aside, Delivered, Lengths, deliver
from evsched.ledger.rows import Limit, Selection
from evsched.store.relay_calls import RowJob
from evsched.store.store import Store
from tests.ledger.conftest import Running
from tests.support.recorder import Recorder

MEGABYTE = 1 << 20
EVERY = Selection("e", 0, [], [])


def insert(url: str, queue: str, job_id: str, size: int = 1, critical: int = 0) -> None:
    payload = json.dumps({"task": "t", "args": ["x" * size]})
    statement = b"INSERT INTO evsched_job (queue, id, payload, critical, due) VALUES (%s, %s, %s, %s, 'infinity')"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement, (queue, job_id, payload, critical))


async def claims(url: str, limit: Limit, cap: int = 16 * MEGABYTE) -> list[list[str]]:
    """Return the ids of each claim, until no row is left; refused ones too."""
    found = list[list[str]]()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while claimed := await rows.claim(connection, EVERY, "", limit, cap):
            assert len(found) < 20
            found.append(sorted(one.id for some in claimed.values() for one in (*some.jobs, *some.refused)))
    return found


async def test_a_claim_reads_a_few_long_rows_and_the_most_critical_first(queue: str, ledger_url: str) -> None:
    for n in range(5):
        insert(ledger_url, queue, f"a{n}", 3 * MEGABYTE, critical=9 - n)
    insert(ledger_url, queue, "huge", 12 * MEGABYTE, critical=3)
    for n in range(3):
        insert(ledger_url, queue, f"z{n}")
    limit = Limit(1000)
    assert await claims(ledger_url, limit) == [["a0", "a1"], ["a2", "a3"], ["a4"], ["huge"], ["z0", "z1"], ["z2"]]
    assert limit.rows == 1000


async def test_rows_that_are_not_read_do_not_count(queue: str, ledger_url: str) -> None:
    for n in range(4):
        insert(ledger_url, queue, f"a{n}", 3 * MEGABYTE)
    assert await claims(ledger_url, Limit(1000), cap=MEGABYTE) == [["a0", "a1", "a2", "a3"]]


def test_few_rows_are_locked_while_they_are_long() -> None:
    limit = Limit(1000)
    limit.note(2, 6 * MEGABYTE)
    assert limit.rows == 4
    limit.note(0, 0)
    assert limit.rows == 4
    limit.note(4, MEGABYTE)
    assert limit.rows == 1000


class Refusing:
    """In place of a sender: Redis resets the connection at long rows."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.sent = list[str]()

    async def send(self, call: Any) -> dict[str, str]:
        if isinstance(call, list):
            jobs = cast("list[RowJob]", call)
            self.sent += [job.id for job in jobs]
            if any(len(job.payload) > self.longest for job in jobs):
                raise StoreDown("reset")
        return {}


async def test_row_as_long_as_a_refused_one_is_sent_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def relayed(_: Store, jobs: Sequence[RowJob]) -> list[RowJob]:
        return list(jobs)

    monkeypatch.setattr(Store, "relay", relayed)

    def jobs(*sizes: int) -> list[RowJob]:
        return [RowJob(f"j{size}", b"x" * size * MEGABYTE, None, None, 0.0, size) for size in sizes]

    sender: Any = Refusing(4 * MEGABYTE)
    lengths = Lengths()
    done = await deliver(sender, "q", jobs(5, 6, 3), lengths)
    assert sender.sent == ["j5", "j5", "j5", "j6", "j3"]
    assert sorted(done.failed) == ["j5", "j6"]
    sender.longest, sender.sent = 6 * MEGABYTE, []
    await deliver(sender, "q", jobs(6, 7), lengths)
    assert sender.sent == ["j6", "j7", "j7", "j7"]


def test_a_row_is_left_out_for_ever_longer_and_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now, recorder = [0.0], Recorder()
    monkeypatch.setattr("evsched.ledger.delivery.time.monotonic", lambda: now[0])
    left = Aside(recorder)
    left.add("q", {"a": "why", "b": "why"})
    assert left.due() is None
    now[0] = 60.0
    assert left.due() == ("q", "a")
    assert left.rows(without=("q", "a")) == [("q", "b")]
    left.add("q", {"a": "why"})
    left.tried(("q", "a"))
    assert left.due() == ("q", "b")
    left.tried(("q", "b"))
    assert left.rows() == [("q", "a")]
    now[0] = 179.0
    assert left.due() is None
    for _ in range(9):
        left.add("q", {"a": "why"})
    now[0] += 3599.0
    assert left.due() is None
    now[0] += 1.0
    assert left.due() == ("q", "a")
    left.add("q", {"a": "why"})
    left.try_all()
    assert left.due() == ("q", "a")
    assert len(recorder.of(process_events.RowsSetAside)) == 1


async def test_rows_that_were_set_aside_are_tried_one_at_a_time_after_the_others(
    relaying: Running, queue: str, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[list[str]]()

    async def noting(sender: Any, name: str, jobs: Sequence[RowJob], lengths: Lengths) -> Any:
        sent.append(sorted(job.id for job in jobs))
        bad = {job.id: "why" for job in jobs if job.id.startswith("bad")}
        return Delivered({}, bad) if bad and len(sent) <= 3 else await deliver(sender, name, jobs, lengths)

    monkeypatch.setattr(relay, "deliver", noting)
    monkeypatch.setattr(delivery, "_SECONDS", 0.0)
    insert(ledger_url, queue, "bad1", critical=9)
    insert(ledger_url, queue, "bad2", critical=8)
    insert(ledger_url, queue, "good")
    async with relaying() as recorder:
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.RowsScheduled)) == 3)
    assert sent[:3] == [["bad1", "bad2", "good"], ["good"], ["bad1"]]
