"""Rules of recurrences in words: common forms are said, others stay as they are written."""

from __future__ import annotations

import pytest

from evsched.console.rule_words import rule_words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("0 2 * * *", "at 02:00 every day"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0 17 * * mon-fri", "at 17:00, Monday to Friday"),
        ("0 9 1 * *", "at 09:00, on the 1st"),
        ("15 3 * * sun", "at 03:15, on Sunday"),
        ("0 9,12 * * 1,4", "at 09:00 and 12:00, on Monday and Thursday"),
        ("*/15 8-18 * * 1-5", "every 15 minutes from 08:00 to 18:59, Monday to Friday"),
        ("30 8-17 * * *", "every hour from 08:30 to 17:30"),
        ("5 * * * *", "every hour at minute 5"),
        ("0 */6 * * *", "every 6 hours"),
        ("0 0 l * *", "at 00:00, on the last day"),
        ("0 0 12 jan,jul *", "at 00:00, on the 12th of January and July"),
        ("0 9 * dec *", "at 09:00, every day in December"),
        ("0 0 9 * * *", "at 09:00 every day"),
        ("@hourly", "every hour"),
        ("@weekly", "at 00:00, on Sunday"),
        ("every 300", "every 5 minutes"),
        ("every 90", "every 90 seconds"),
        ("every 86400", "every day"),
    ],
)
def test_common_rules_are_said_in_words(rule: str, words: str) -> None:
    assert rule_words(rule) == words


@pytest.mark.parametrize(
    "rule",
    ["*/7 * * * *", "10 0 9 * * *", "0 0 * * 5L", "0 12 1 * mon", "1,2 3 * * *", "0 0 lw * *", "0 0 * * 1#2", "", "x"],
)
def test_other_rules_stay_as_they_are(rule: str) -> None:
    assert rule_words(rule) == rule
