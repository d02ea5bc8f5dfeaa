"""`evsched calendars`, as an operator uses it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.cli import Cli

HOLIDAYS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//
BEGIN:VEVENT
UID:1
SUMMARY:Christmas
DTSTART;VALUE=DATE:20001224
DTEND;VALUE=DATE:20001227
RRULE:FREQ=YEARLY
END:VEVENT
BEGIN:VEVENT
UID:2
SUMMARY:A party
DTSTART:20261231T190000Z
DTEND:20261231T230000Z
END:VEVENT
END:VCALENDAR
"""


@pytest.fixture
def cli(cli: Cli) -> Cli:
    (cli.folder / "holidays.ics").write_text(HOLIDAYS)
    return cli


def set_calendar(cli: Cli, queue: str, *more: str) -> Any:
    return cli.run("calendars", "set", "de", str(cli.folder / "holidays.ics"), *more, "--queue", queue)


def test_a_calendar_is_set_listed_used_and_removed(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    add = ("recurrences", "add", "r", "t", "--rule", "0 9 * * *", "--skip", "de", *of)
    refused = cli.run(*add)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "there is no calendar de: evsched calendars set de FILE.ics" in refused.stderr
    said = set_calendar(cli, queue, "--years", "2").stdout
    year = int(said.split("-12-24")[0][-4:]) + 1
    assert said == (
        f"de has 12 days from {year - 1}-12-24 to {year + 2}-12-26; "
        "1 events that do not last whole days were left out\n"
    )
    assert cli.json("calendars", *of)[0]["calendar"].split()[0] == f"{year - 1}-12-24..{year - 1}-12-26"
    assert f"{year + 2}-12-26" in cli.run("calendars", *of).stdout
    assert cli.run(*add).stdout == "r made\n"
    span = ("--from", f"{year + 1}-12-20T00:00+00:00", "--to", f"{year + 1}-12-31T00:00+00:00")
    assert len(cli.json("recurrences", "next", *span, *of)["times"]) == 11 - 3
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"r": "inf"})
    assert set_calendar(cli, queue).stdout.endswith("; 1 recurrences are planned again\n")
    assert raw.zscore(f"evsched:{{{queue}}}:recurrences", "r") == 0
    used = cli.run("calendars", "remove", "de", *of)
    assert (used.returncode, used.stderr) == (1, "evsched: calendar de is in use by r: change them first\n")
    cli.run("recurrences", "remove", "r", *of)
    assert cli.run("calendars", "remove", "de", *of).stdout == "de removed\n"
    assert cli.run("calendars", "remove", "de", *of).returncode == 1
    cli.run("enqueue", "tick", *of)  # or else Redis has nothing of the queue
    assert "has no calendars" in cli.terminal(80, "calendars", *of)


def test_commands_that_show_a_recurrence_name_its_calendars(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    set_calendar(cli, queue)
    cli.run("recurrences", "add", "r", "t", "--rule", "0 9 * * *", "--skip", "de", *of)
    cli.run("recurrences", "add", "plain", "t", "--rule", "0 9 * * *", *of)
    words = "At 09:00 every day, UTC, except on the days of calendar de"
    assert cli.json("recurrences", "next", "r", *of)["words"] == {"r": words}
    assert cli.run("recurrences", "next", "r", *of).stdout.startswith(words + "\n")
    assert {row["name"]: row["skip"] for row in cli.json("recurrences", *of)} == {"plain": None, "r": "de"}
    header, *rows = (line.split("\t") for line in cli.run("recurrences", *of).stdout.splitlines())
    assert {row[0]: row[header.index("skip")] for row in rows} == {"plain": "", "r": "de"}
    assert cli.json("explain", "r", *of)["facts"]["skip"] == "de"
    assert "skip" not in cli.json("explain", "plain", *of)["facts"]


def test_a_calendar_that_is_over_or_not_valid_is_marked(cli: Cli, queue: str, raw: Any) -> None:
    raw.hset(f"evsched:{{{queue}}}:calendars", mapping={"old": "2001-01-01", "bad": "x", "none": ""})
    shown = cli.run("calendars", "--queue", queue).stdout
    assert "no day is ahead: set it from a newer file" in shown
    assert "not valid: 'x' is not a date or a range" in shown
    rows = {row.pop("name"): row for row in cli.json("calendars", "--queue", queue)}
    over = {"days": 1, "next": None, "last": "2001-01-01", "calendar": "2001-01-01"}
    assert rows["old"] == {**over, "note": "no day is ahead: set it from a newer file"}
    assert rows["bad"]["note"].startswith("not valid: 'x'")
    assert (rows["none"]["days"], rows["none"]["last"]) == (0, None)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("cannot be read", ("set", "de", "nowhere.ics")),
        ("calendar name", ("set", "d e", "nowhere.ics")),
        ("from 1 to 50", ("set", "de", "nowhere.ics", "--years", "51")),
    ],
)
def test_invalid_calendar_command_is_refused_in_one_line(
    cli: Cli, queue: str, words: str, command: tuple[str, ...]
) -> None:
    done = cli.run("calendars", *command, "--queue", queue)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert words in done.stderr


def test_a_file_without_whole_days_changes_nothing(cli: Cli, queue: str) -> None:
    set_calendar(cli, queue)
    before = cli.json("calendars", "--queue", queue)
    (cli.folder / "holidays.ics").write_text(HOLIDAYS.replace("RRULE:FREQ=YEARLY", "STATUS:CANCELLED"))
    done = set_calendar(cli, queue)
    assert (done.returncode, "has no event that lasts whole days" in done.stderr) == (2, True)
    assert cli.json("calendars", "--queue", queue) == before


def test_calendars_without_the_extra_names_the_package_to_install(
    cli: Cli, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "icalendar", None)
    done = set_calendar(cli, queue)
    assert (done.returncode, "pip install 'evsched[calendars]'" in done.stderr) == (2, True)
