"""`evsched recurrences trigger` and `backfill`, as an operator uses them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.cli import Cli


def test_a_dry_run_lists_the_planned_times_in_the_zone_that_is_given(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    cli.run("recurrences", "add", "r", "t", "--rule", "30 2 * * *", "--zone", "Europe/Berlin", *of)
    span = ("--from", "2025-03-29", "--to", "2025-04-01", "--zone", "Europe/Berlin", "--dry-run")
    assert cli.run("recurrences", "backfill", "r", *span, *of).stdout.splitlines() == [
        "2025-03-29 02:30:00+01:00",
        "2025-03-30 03:00:00+02:00",  # 02:30 does not exist
        "2025-03-31 02:30:00+02:00",
    ]
    assert len(cli.json("recurrences", "backfill", "r", *span, *of)) == 3
    assert not raw.exists(f"evsched:{{{queue}}}:requested:r", f"evsched:{{{queue}}}:schedule")


def test_recurrence_counted_from_ends_cannot_be_backfilled(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    cli.run("recurrences", "add", "r", "t", "--rule", "every 60", "--after", "end", *of)
    done = cli.run("recurrences", "backfill", "r", "--from", "1970-01-02", *of)
    assert (done.returncode, done.stderr) == (
        2,
        "evsched: r has no planned times that have passed: it is counted from the end of each run\n",
    )
    assert "counted from the end of each run" in cli.run("recurrences", "next", "r", *of).stdout


@pytest.mark.parametrize(
    ("payload", "why"),
    [(None, "its record has no payload"), ("tick", "payload is not valid: JSON is malformed"), ("{}", "field `task`")],
)
def test_a_recurrence_that_no_worker_could_run_is_not_triggered(
    cli: Cli, queue: str, raw: Any, payload: str | None, why: str
) -> None:
    of, root = ("--queue", queue), f"evsched:{{{queue}}}:"
    raw.hset(f"{root}recurrence:r", mapping={"rule": "@daily"} | ({} if payload is None else {"payload": payload}))
    raw.zadd(f"{root}recurrences", {"r": 0})
    for command in (("trigger", "r"), ("next", "r")):
        done = cli.run("recurrences", *command, *of)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith("evsched: recurrence r: ")
        assert why in done.stderr
    assert not raw.exists(f"{root}schedule", f"{root}requests:r")


def test_backfill_reports_its_runs_and_when_they_begin(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    backfill = ("recurrences", "backfill", "r", *of, "--from")
    cli.run("recurrences", "add", "r", "t", "--rule", "every 60", *of)
    cli.run("recurrences", "pause", "r", *of)
    said = cli.run(*backfill, "1700000000", "--to", "1700000150").stdout
    assert said == "r: 2 runs requested, they begin when it is resumed\n"
    (row,) = cli.json("recurrences", *of)
    assert row["requests"] == 2
    assert "paused; 2 requested runs wait" in cli.run("recurrences", *of).stdout
    assert cli.run(*backfill, "1700000001", "--to", "1700000002").stdout == (
        "r: no planned time has passed between --from and --to\n"
    )
    assert cli.json(*backfill, "1700000000", "--to", "1700000180") == {
        "requested": 1,
        "known": 2,
        "later": 0,
        "left_out": 0,
        "waiting": 3,
    }
    now = float(raw.time()[0])
    raw.hdel(f"evsched:{{{queue}}}:recurrence:r", "paused")
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"r": now - 180})
    said = cli.run(*backfill, str(now - 600)).stdout
    assert "are left to the dispatcher, which has not made them yet" in said
    # A run of the backfill is on the schedule.
    said = cli.run("recurrences", "trigger", "r", *of).stdout
    assert re.fullmatch(r"r@\d+\.\d{6} waits until the run before it has ended\n", said)


@pytest.mark.parametrize(
    ("code", "words", "command"),
    [
        (1, "nobody is not a recurrence of queue", ("trigger", "nobody")),
        (1, "nobody is not a recurrence of queue", ("backfill", "nobody", "--from", "2025-01-01")),
        (2, "--to: after --from", ("backfill", "r", "--from", "2025-01-02", "--to", "2025-01-01")),
        (2, "is not a time", ("backfill", "r", "--from", "noon")),
        (2, "more than 10000 planned times of r: backfill a shorter span", ("backfill", "r", "--from", "1970-01-02")),
    ],
)
def test_invalid_trigger_or_backfill_is_refused_in_one_line(
    cli: Cli, queue: str, raw: Any, code: int, words: str, command: tuple[str, ...]
) -> None:
    cli.run("recurrences", "add", "r", "t", "--rule", "every 60", "--queue", queue)
    done = cli.run("recurrences", *command, "--queue", queue)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    assert words in done.stderr
    assert not raw.exists(f"evsched:{{{queue}}}:schedule")
