"""How durations are shown."""

from __future__ import annotations

import pytest

from evsched.display import format_duration, nearest


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.00041, "0.41 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (99.9, "99.9 s"),
        (99.96, "1m 40s"),
        (3599.6, "1h 00m"),
        (86399.6, "1d 0h"),
        (200_000, "2d 7h"),
        (1e308, "more than 10,000 years"),
        (float("inf"), "more than 10,000 years"),
        (-float("inf"), "-more than 10,000 years"),
    ],
)
def test_a_duration_is_shown_with_about_three_digits(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_negative_duration_has_a_minus_sign() -> None:
    assert format_duration(-180) == "-3m 00s"


@pytest.mark.parametrize(
    ("name", "among", "meant"),
    [
        ("polls.tasks.charge", ["polls.tasks.ship", "polls.tasks.change"], ["polls.tasks.change"]),
        ("polls.tasks.gone", ["polls.tasks.keep"], []),
        ("poll.tasks.ship", ["polls.tasks.ship"], ["polls.tasks.ship"]),
        ("ship", ["invoices.eu.ship"], []),
        ("Europe/Berln", ["Europe/Bern", "Europe/Berlin", "Europe/Paris"], ["Europe/Berlin", "Europe/Bern"]),
        ("report-18", ["report-17", "report-19", "mail-1"], ["report-19", "report-17"]),
        ("mail", [], []),
        ("", ["mail"], []),
    ],
)
def test_a_name_is_offered_if_it_and_its_last_part_are_similar(name: str, among: list[str], meant: list[str]) -> None:
    assert nearest(name, among, most=2) == meant
