"""Pauses of recurrences, as operators set and see them; and `evsched explain` of a recurrence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli import Cli


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    cli.run("recurrences", "add", "r", "t", "--rule", "0 9 * * *", "--queue", queue)
    return cli


def explained(cli: Cli, queue: str, name: str = "r") -> str:
    done = cli.run("explain", name, "--queue", queue)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


def test_a_pause_shows_its_end_and_its_reason(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    reason = ("--why", "the warehouse moves")
    done = cli.run("recurrences", "pause", "r", "--until", "2060-01-31T09:00", "--zone", "UTC", *reason, *of)
    assert done.stdout.startswith("r is paused until 2060-01-31 ")
    (row,) = cli.json("recurrences", *of)
    assert (row["paused_until"], row["paused_why"]) == (2_842_765_200.0, "the warehouse moves")
    shown = cli.run("recurrences", *of).stdout
    assert "paused until 2060-01-31" in shown
    assert "the warehouse moves" in shown
    assert "more: the warehouse moves; resume it with `evsched recurrences resume r --queue" in explained(cli, queue)
    # What it will run begins when the pause ends.
    assert cli.json("recurrences", "next", "r", *of)["times"][0]["planned"] == row["paused_until"]
    span = ("--from", "2060-01-30T00:00+00:00", "--to", "2060-02-01T00:00+00:00")
    assert [one["due"] for one in cli.json("recurrences", "next", *span, *of)["times"]] == [row["paused_until"]]
    assert cli.run("recurrences", "pause", "r", *of).stdout == "r is paused\n"
    assert "the warehouse moves" not in cli.run("recurrences", *of).stdout
    assert cli.run("recurrences", "resume", "r", *of).stdout == "r is resumed\n"
    assert cli.json("recurrences", *of)[0]["paused"] is None


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("has passed", ("--until", "2020-01-01")),
        ("is not a time", ("--until", "noon")),
        ("did you mean Europe/Berlin", ("--until", "2060-01-01", "--zone", "Europe/Berln")),
        ("--why has 501 characters: at most 500", ("--why", "x" * 501)),
    ],
)
def test_invalid_pause_of_a_recurrence_is_refused_in_one_line(
    cli: Cli, queue: str, words: str, more: tuple[str, ...]
) -> None:
    done = cli.run("recurrences", "pause", "r", *more, "--queue", queue)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert words in done.stderr
    assert cli.json("recurrences", "--queue", queue)[0]["paused"] is None


def test_explain_describes_the_next_step_of_a_recurrence(cli: Cli, queue: str, raw: Any) -> None:
    root = f"evsched:{{{queue}}}:"
    now = float(raw.time()[0])
    assert "about to begin" in explained(cli, queue)
    raw.zadd(f"{root}recurrences", {"r": now + 9000})
    raw.zadd(f"{root}requests:r", {"1": 1, "2": 2})
    assert "is planned in 2h" in (said := explained(cli, queue))
    assert said.endswith("; 2 requested runs wait")
    raw.delete(f"{root}requests:r")
    raw.zadd(f"{root}recurrences", {"r": now - 9000})
    assert "ago, and no dispatcher has made it: `evsched doctor` says why" in explained(cli, queue)
    raw.zadd(f"{root}recurrences", {"r": "inf"})
    assert "it is over" in explained(cli, queue)
    raw.hset(f"{root}recurrence:r", mapping={"reason": "rule '61 * * * *'", "last_id": "r@1", "last_outcome": "done"})
    assert "it makes no jobs: rule '61" in explained(cli, queue)
    assert "r@1: done" in cli.run("explain", "r", "--queue", queue).stdout
    raw.hset(f"{root}recurrence:r", mapping={"retired": "1", "paused": str(now), "paused_why": "a reason"})
    assert ": a reason" in (said := explained(cli, queue))
    assert "stopped: the code no longer declares it; paused for" in said
    missing = cli.run("explain", "r@1900000000", "--queue", queue)
    assert missing.returncode == 1
    assert "recurrence r: stopped" in missing.stderr
    raw.delete(f"{root}recurrence:r")
    assert "it has no record" in explained(cli, queue)
    raw.set(f"{root}recurrence:r", "x")
    assert "it makes no jobs: its key is not a hash" in explained(cli, queue)


def test_recurrence_paused_by_failures_is_a_finding_until_resumed(cli: Cli, queue: str, raw: Any) -> None:
    of, key = ("--queue", queue), f"evsched:{{{queue}}}:recurrence:r"
    cli.run("recurrences", "add", "r", "t", "--rule", "0 9 * * *", "--pause-after", "3", *of)
    assert raw.hget(key, "pause_after") == b"3"
    cli.run("recurrences", "pause", "r", *of)
    counts = {"runs": 9, "done": 4, "failed": 5, "failing": 2, "last_id": "r@1900000000"}
    raw.hset(key, mapping=counts)
    findings = {one["check"]: one for one in doctor(cli, queue)}
    assert "recurrence-failing" not in findings  # an operator has paused it
    raw.hset(key, mapping={"failing": 3, "paused_why": "3 failures in a row"})
    finding = {one["check"]: one for one in doctor(cli, queue)}["recurrence-failing"]
    assert (finding["level"], finding["what"]) == ("warning", "it is paused: 3 failures in a row")
    assert "evsched explain r@1900000000 --queue" in finding["mend"]
    (row,) = cli.json("recurrences", *of)
    assert (row["runs"], row["done"], row["failed"], row["failing"]) == (9, 4, 5, 3)
    assert "paused: 3 failures in a row" in cli.run("recurrences", *of).stdout
    cli.run("recurrences", "resume", "r", *of)
    assert "recurrence-failing" not in {one["check"] for one in doctor(cli, queue)}
    refused = cli.run("recurrences", "add", "r", "t", "--rule", "0 9 * * *", "--pause-after", "0", *of)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "pause_after are at least 1" in refused.stderr


def doctor(cli: Cli, queue: str) -> list[dict[str, Any]]:
    return json.loads(cli.run("doctor", "--queue", queue, "--json").stdout)
