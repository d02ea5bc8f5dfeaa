"""When something is next to be done for each of many items."""

from __future__ import annotations

import random

from evsched.runtime.loops import Timetable

NEVER = float("inf")


def drain(table: Timetable[str], until: float) -> list[str]:
    taken = list[str]()
    while (item := table.take(until)) is not None:
        taken.append(item)
    return taken


def test_the_item_with_the_earliest_moment_is_taken_first() -> None:
    table = Timetable[str]()
    for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 4.0)):
        table.plan(name, at)
    assert table.next() == 1.0
    assert drain(table, 3.0) == ["a", "b", "c"]
    assert (table.next(), table.at("a"), "d" in table) == (4.0, NEVER, True)


def test_a_moment_that_was_replaced_does_not_count() -> None:
    table = Timetable[str]()
    table.plan("later", 1.0)
    table.plan("later", 5.0)
    table.plan("sooner", 9.0)
    table.plan("sooner", 2.0)
    table.plan("never", 1.0)
    table.plan("never", NEVER)
    assert drain(table, 10.0) == ["sooner", "later"]


def test_a_moment_is_only_brought_forward() -> None:
    table = Timetable[str]()
    assert table.bring_forward("a", 2.0)
    assert not table.bring_forward("a", 3.0)
    assert table.bring_forward("a", 1.0)
    assert drain(table, 10.0) == ["a"]


def test_timetable_agrees_with_a_search_over_all_items() -> None:
    rng, table, moments = random.Random(1), Timetable[str](), dict[str, float]()
    for _ in range(3000):
        name, at = str(rng.randrange(20)), float(rng.randrange(50))
        if rng.random() < 0.1:
            table.drop(name)
            moments.pop(name, None)
        elif rng.random() < 0.8:
            table.plan(name, at)
            moments[name] = at
        else:
            earliest = min(moments.values(), default=NEVER)
            taken = table.take(at)
            assert (None if taken is None else moments.pop(taken)) == (earliest if earliest <= at else None)
        assert table.next() == min(moments.values(), default=NEVER)
