"""Findings that are new and that are gone, from one examination to the next."""

from __future__ import annotations

from msgspec.structs import replace

from evsched.diagnostics.finding import Finding, changes

LOST = Finding("orphan", "fault", "a lost job, due 3 s ago", "queue q, job a", "repair it")
OTHER = replace(LOST, where="queue q, job b")
LATE = Finding("clock", "warning", "1 s ahead", "Redis", "set it")


def test_a_finding_is_new_once_and_gone_once() -> None:
    assert changes([], [LOST, LATE]) == ([LOST, LATE], [])
    assert changes([LOST, LATE], [LATE, OTHER]) == ([OTHER], [LOST])
    assert changes([LATE], []) == ([], [LATE])


def test_finding_changes_with_its_level_but_not_with_its_figures() -> None:
    assert changes([LOST], [replace(LOST, what="a lost job, due 9 s ago")]) == ([], [])
    worse = replace(LATE, level="fault")
    assert changes([LATE], [worse]) == ([worse], [LATE])
