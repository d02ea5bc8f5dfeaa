"""`forecast`: how many jobs are due when. `roster`: the recurrences of a queue, a slice at a time."""

from __future__ import annotations

from typing import Any

from evsched.recurrence.recurrence import Declared
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send


def test_a_job_counts_in_the_span_in_which_it_is_due(send: Send, store: Store) -> None:
    dues = (NOW - 1, NOW, NOW + 59.9, NOW + 60, NOW + 179, NOW + 180)
    send(store.enqueue([New(f"j{n}", b"{}", due=due) for n, due in enumerate(dues)]))
    assert send(store.forecast(NOW, 60.0, 3)) == (NOW, [2, 1, 1])
    first, counts = send(store.forecast(None, 60.0, 2))
    assert (first % 1, first < NOW, counts) == (0, True, [0, 0])


def test_recurrences_are_listed_in_slices_with_the_fields_that_they_have(send: Send, store: Store, raw: Any) -> None:
    for name in ("a", "b", "c"):
        send(store.declare(Declared(name=name, payload=b'{"task":"t"}', rule="@daily")))
        raw.zadd(f"evsched:{{{store.queue}}}:recurrences", {name: NOW + ord(name)})
    send(store.at(NOW).hold("b", True, why="the warehouse moves"))
    raw.delete(f"evsched:{{{store.queue}}}:recurrence:c")
    raw.set(f"evsched:{{{store.queue}}}:recurrence:c", "wrong")
    first = send(store.at(NOW).roster(0, 2, ["rule", "paused_why", "missed"]))
    second = send(store.at(NOW).roster(2, 2, ["rule", "paused_why", "missed"]))
    assert (first.now, len(first.rows), len(second.rows)) == (NOW, 2, 1)
    rows = {name: (at, fields) for name, at, fields in [*first.rows, *second.rows]}
    assert rows["a"] == (NOW + ord("a"), {"rule": b"@daily"})
    assert rows["b"][1] == {"rule": b"@daily", "paused_why": b"the warehouse moves"}
    assert rows["c"] == (NOW + ord("c"), {})
