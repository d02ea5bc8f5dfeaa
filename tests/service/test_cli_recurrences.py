"""The commands about recurrences and windows."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.cli import Cli

TASKS = """
from evsched import App, Retry, current_job

app = App(queue="QUEUE")

@app.task(retry=Retry(attempts=1, interval=0, jitter=0))
async def tick(text: str = "") -> str:
    return text

@app.recurring("0 9 * * mon-fri", zone="Europe/Berlin", window="mon-thu 08:00-18:00 Europe/Berlin")
@app.task
async def report() -> None: ...
"""


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS.replace("QUEUE", queue))
    return cli


def listed(cli: Cli, *of: str) -> dict[str, Any]:
    return {row["name"]: row for row in cli.json("recurrences", *of)}


def test_a_recurrence_is_added_listed_paused_resumed_and_removed(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    assert cli.run("recurrences", "add", "t", "tick", '"hi"', "--rule", "@daily", *of).stdout == "t made\n"
    assert cli.run("recurrences", "add", "t", "tick", '"hi"', "--rule", "@daily", *of).stdout == "t same\n"
    changed = ("--rule", "every 1", "--count", "2", "--overlap", "allow", "--misfire", "all")
    assert cli.run("recurrences", "add", "t", "tick", '"hi"', *changed, *of).stdout == "t changed\n"
    with (
        cli.running("dispatcher", *of, until="keyspace events arrive"),
        cli.running("worker", "tasks:app", *of, until="recurrence report made"),
    ):
        rows = listed(cli, *of)
        while rows["t"]["runs"] < 2:
            rows = listed(cli, *of)
    assert rows["t"]["last_outcome"] == "done"
    assert rows["t"]["missed"] == 0
    assert rows["report"]["declared_by"] == queue
    assert "report" in cli.run("recurrences", *of).stdout
    assert cli.run("recurrences", "pause", "report", *of).stdout == "report is paused\n"
    assert "paused" in cli.run("recurrences", *of).stdout
    assert cli.run("recurrences", "resume", "report", *of).stdout == "report is resumed\n"
    assert cli.run("recurrences", "remove", "t", *of).stdout == "t removed\n"
    gone = cli.run("recurrences", "remove", "t", *of)
    assert (gone.returncode, gone.stderr) == (1, f"evsched: t is not a recurrence of queue {queue}\n")


def test_jobs_of_a_recurrence_have_redacted_arguments(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    cli.run("recurrences", "add", "t", "tick", '"4111"', "--redact", "1", "--rule", "@daily", *of)
    cli.run("recurrences", "trigger", "t", *of)
    found = next(job for job in cli.json("jobs", *of) if job["id"].startswith("t@"))
    shown = [
        cli.run(*words, *of).stdout for words in (("show", found["id"]), ("recurrences",), ("recurrences", "--json"))
    ]
    assert "[redacted]" in shown[0]
    assert [text for text in shown if "4111" in text] == []


def test_next_lists_the_times_to_come(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    window = "mon-thu 08:00-18:00 Europe/Berlin"
    cli.run(
        "recurrences",
        "add",
        "r",
        "tick",
        "--rule",
        "0 9 * * mon-fri",
        "--zone",
        "Europe/Berlin",
        "--window",
        window,
        *of,
    )
    explained = cli.json("recurrences", "next", "r", "-n", "10", *of)
    assert explained["words"]["r"] == f"At 09:00 on Monday through Friday, Europe/Berlin; window {window}"
    assert len(explained["times"]) == 10
    waits = {round(one["due"] - one["planned"]) for one in explained["times"]}
    assert waits == {0, (3 * 24 - 1) * 3600}  # Friday's waits until Monday, 8 o'clock
    shown = cli.run("recurrences", "next", "r", *of).stdout
    assert "in Europe/Berlin" in shown
    assert window in shown
    assert "wait for the same opening of its window, only the first runs" in " ".join(shown.split())
    span = ("--from", "2040-10-27T00:00:00+02:00", "--to", "2040-10-29T23:00:00+01:00")
    assert [row["name"] for row in cli.json("recurrences", "next", *span, *of)["times"]] == ["r", "r"]
    assert cli.run("recurrences", "next", "nobody", *of).returncode == 1


def test_next_lists_the_runs_at_an_opening_of_the_window(cli: Cli, queue: str) -> None:
    """Two hours of planned times wait for an opening; a year of them would be too many to look at."""
    of, opens = ("--queue", queue), (int(time.time()) // 3600 + 3) * 3600
    window = "-".join(time.strftime("%H:%M", time.gmtime(opens + more)) for more in (0, 60)) + " UTC"
    for name, overlap in (("one", "skip"), ("all", "allow")):
        add = ("recurrences", "add", name, "tick", "--rule", "every 15", "--window", window, "--overlap", overlap, *of)
        assert cli.run(*add).returncode == 0
    rows = cli.json("recurrences", "next", "--from", str(opens - 60), "--to", str(opens + 14), *of)["times"]
    counts = Counter(row["name"] for row in rows)
    assert counts["one"] == 1
    assert 2 * 240 - 60 < counts["all"] <= 3 * 240 + 1
    listed = cli.json("recurrences", "next", "one", "-n", "5", *of)["times"]
    assert [one["due"] for one in listed] == [opens, opens + 15, opens + 30, opens + 45, opens + 86400]
    far = opens + 300 * 86400
    assert (
        cli.json("recurrences", "next", "--from", "1000000000", "--to", "1000090000", *of)["times"] == []
    )  # that has passed
    cli.run("recurrences", "remove", "all", *of)
    assert [
        row["due"] for row in cli.json("recurrences", "next", "--from", str(far), "--to", str(far + 14), *of)["times"]
    ] == [far]


def test_next_says_that_a_recurrence_is_paused(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    cli.run("recurrences", "add", "t", "tick", "--rule", "@daily", *of)
    assert cli.run("recurrences", "next", "t", *of).stderr == ""
    cli.run("recurrences", "pause", "t", "--why", "a move", *of)
    for words in ((), ("--json",)):
        done = cli.run("recurrences", "next", "t", *words, *of)
        assert done.stderr == "evsched: t is paused: a move; listed are the times at which it would run\n"
        assert done.stdout


def test_next_says_that_a_recurrence_has_ended(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    cli.run("recurrences", "add", "t", "tick", "--rule", "@daily", "--count", "2", *of)
    raw.hset(f"evsched:{{{queue}}}:recurrence:t", "made", 2)
    done = cli.run("recurrences", "next", "t", "--count", "3", *of)
    assert (done.returncode, done.stderr) == (0, "evsched: t does not recur any more\n")
    later = cli.run("recurrences", "next", "t", "--from", "4000000000", "--to", "4000086400", *of)
    assert later.stderr == "evsched: t does not run in this time\n"


def test_next_with_rules_on_the_command_line_needs_no_redis(cli: Cli) -> None:
    cli.environment["EVSCHED_URL"] = "redis://127.0.0.1:1/0"
    span = ("--from", "2026-03-29T00:00:00+01:00", "--to", "2026-03-29T04:30:00+02:00", "--zone", "Europe/Berlin")
    shown = cli.run(
        "recurrences", "next", "--by", "hour", "--rule", "*/30 * * * *", "--rule", "15 2 * * *", *span
    ).stdout
    assert shown.count("clock set forward") == 4  # there is no 2 o'clock
    assert "2026-03-29 03:00:00+02:00" in shown
    assert len(cli.json("recurrences", "next", "--rule", "*/30 * * * *", *span)["times"]) == 8
    by_hour = cli.json("recurrences", "next", "--by", "hour", "--rule", "*/30 * * * *", "--rule", "15 2 * * *", *span)
    assert [(row["hour"], row["runs"], row["of"]) for row in by_hour["hours"]] == [
        (1774738800.0, 2, {"rule-1": 2}),
        (1774742400.0, 2, {"rule-1": 2}),
        (1774746000.0, 3, {"rule-1": 2, "rule-2": 1}),
        (1774749600.0, 2, {"rule-1": 2}),
    ]
    assert sum(row["runs"] for row in by_hour["hours"]) == len(by_hour["times"])
    local = ("--from", "2026-03-29T00:00:00", "--to", "2026-03-29T04:30:00", "--zone", "Europe/Berlin")
    assert (
        cli.run("recurrences", "next", "--by", "hour", "--rule", "*/30 * * * *", "--rule", "15 2 * * *", *local).stdout
        == shown
    )
    runs = cli.run("recurrences", "next", "--rule", "15 2 * * *", *span).stdout
    assert "2026-03-29 03:00:00+02:00" in runs  # 02:15 does not exist on that day: it runs at the next time that does
    assert [len(cli.json("recurrences", "next", "--rule", "@daily", *n)["times"]) for n in ((), ("-n", "3"))] == [5, 3]
    assert len(cli.json("recurrences", "next", "--rule", "*/30 * * * *", "-n", "3", *span)["times"]) == 3
    assert cli.run("recurrences", "next", "--rule", "0 9 * * *").stdout.startswith("At 09:00 every day, UTC\n")


def test_a_named_window_is_set_listed_changed_and_removed(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    assert "customer-a is 22:00-06:00 UTC" in cli.run("windows", "set", "customer-a", "22:00-06:00 UTC", *of).stdout
    assert [(row["name"], row["window"]) for row in cli.json("windows", *of)] == [("customer-a", "22:00-06:00 UTC")]
    assert "customer-a" in cli.run("windows", *of).stdout
    raw.zadd(f"evsched:{{{queue}}}:schedule", {f"job-{n}": 4e9 for n in range(600)})
    raw.zadd(f"evsched:{{{queue}}}:deferred:customer-a", {f"job-{n}": 4e9 for n in range(600)})
    done = cli.run("windows", "set", "customer-a", "00:00-24:00 UTC", *of)
    assert done.stdout == "customer-a is 00:00-24:00 UTC; 600 jobs that waited for it are checked again\n"
    assert not raw.zcount(f"evsched:{{{queue}}}:schedule", 4e9, 4e9)
    assert cli.run("windows", "remove", "customer-a", *of).returncode == 0
    assert cli.run("windows", "remove", "customer-a", *of).returncode == 1


def test_a_window_whose_notes_are_of_a_wrong_type_is_left_as_it_is(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    cli.run("windows", "set", "night", "22:00-06:00 UTC", *of)
    raw.set(f"evsched:{{{queue}}}:deferred:night", "x")
    for command in (("set", "night", "00:00-24:00 UTC"), ("remove", "night")):
        done = cli.run("windows", *command, *of)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "`evsched doctor` says what to do" in done.stderr
        assert [(row["name"], row["window"]) for row in cli.json("windows", *of)] == [("night", "22:00-06:00 UTC")]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("field 1, the minute, is '61'", ("recurrences", "add", "r", "t", "--rule", "61 * * * *")),
        ("did you mean Europe/Berlin?", ("recurrences", "add", "r", "t", "--rule", "@daily", "--zone", "Europe/Berln")),
        ("at 'mon-fry'", ("recurrences", "add", "r", "t", "--rule", "@daily", "--window", "mon-fry 09:00-17:00 UTC")),
        ("a name is 1 to 180", ("recurrences", "add", "r r", "t", "--rule", "@daily")),
        ("it has no zone", ("windows", "set", "w", "09:00-17:00")),
        ("does not open within two", ("windows", "set", "w", "09:00-17:00 UTC; not 2000-01-01..2999-12-31")),
        ("window name", ("windows", "set", "w w", "09:00-17:00 UTC")),
        ("from 1 to 1000", ("recurrences", "next", "r", "-n", "100000000")),
        (
            "shorter span",
            ("recurrences", "next", "--rule", "every 1", "--from", "1000000000", "--to", str(1000000000 + 393 * 86400)),
        ),
        ("or --rule, not both", ("recurrences", "next", "r", "--rule", "@daily")),
        ("after --from", ("recurrences", "next", "--rule", "@daily", "--from", "1000000100", "--to", "1000000050")),
    ],
)
def test_invalid_recurrence_command_is_refused_in_one_line(cli: Cli, words: str, command: tuple[str, ...]) -> None:
    done = cli.run(*command)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, ""), done.stderr
    assert words in done.stderr


def test_next_ends_when_the_count_of_a_recurrence_is_used_up(cli: Cli, queue: str, raw: Any) -> None:
    of, span = ("--queue", queue), ("--from", "4000000000", "--to", "4000000060")
    cli.run("recurrences", "add", "r", "t", "--rule", "every 2", "--count", "2", "--start", "4000000000", *of)
    assert len(cli.json("recurrences", "next", "r", *of)["times"]) == 2
    assert len(cli.json("recurrences", "next", *span, *of)["times"]) == 2
    raw.hset(f"evsched:{{{queue}}}:recurrence:r", "made", 2)
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"r": "inf"})
    assert "does not recur any more" in cli.terminal(80, "recurrences", "next", "r", *of)
    assert cli.json("recurrences", "next", *span, *of)["times"] == []


def test_all_commands_agree_on_the_next_time_of_a_scheduled_occurrence(cli: Cli, queue: str, raw: Any) -> None:
    of, root = ("--queue", queue), f"evsched:{{{queue}}}:"
    planned = raw.time()[0] // 60 * 60 + 6000  # so far ahead that no pause of the machine reaches it
    rule = datetime.fromtimestamp(planned, UTC).strftime("%M %H * * *")
    cli.run("recurrences", "add", "r", "tick", "--rule", rule, *of)
    # As a dispatcher leaves it up to 15 s before the time.
    raw.zadd(f"{root}schedule", {f"r@{planned}": planned})
    raw.hset(f"{root}recurrence:r", mapping={"ahead": f"r@{planned}", "made": "1"})
    raw.zadd(f"{root}recurrences", {"r": planned + 86400})
    assert listed(cli, *of)["r"]["next"] == planned
    assert [one["planned"] for one in cli.json("recurrences", "next", "r", "-n", "2", *of)["times"]] == [
        planned,
        planned + 86400,
    ]
    assert cli.json("recurrences", "next", *of)["times"][0]["due"] == planned
    assert "its next occurrence is planned in 1h" in cli.run("explain", "r", *of).stdout


def test_times_counted_from_ends_begin_with_the_scheduled_occurrence(cli: Cli, queue: str, raw: Any) -> None:
    of, root = ("--queue", queue), f"evsched:{{{queue}}}:"
    cli.run("recurrences", "add", "r", "tick", "--rule", "every 2000", "--after", "end", *of)
    planned = raw.time()[0] + 6000
    raw.hset(f"{root}job:r@{planned}", "payload", '{"task":"tick"}')
    raw.zadd(f"{root}schedule", {f"r@{planned}": planned})
    raw.hset(f"{root}recurrence:r", mapping={"ahead": f"r@{planned}", "made": "1"})
    raw.zadd(f"{root}recurrences", {"r": planned + 2000})
    assert listed(cli, *of)["r"]["next"] == planned
    expected = [planned, planned + 2000, planned + 4000]
    assert [one["planned"] for one in cli.json("recurrences", "next", "r", "-n", "3", *of)["times"]] == expected
    assert [one["due"] for one in cli.json("recurrences", "next", *of)["times"][:3]] == expected
    assert "its next occurrence is planned in 1h" in (said := cli.run("explain", "r", *of).stdout)
    assert "the end of" not in said


def test_while_a_run_is_under_way_its_end_decides_the_next_time(cli: Cli, queue: str, raw: Any) -> None:
    of, root = ("--queue", queue), f"evsched:{{{queue}}}:"
    cli.run("recurrences", "add", "r", "tick", "--rule", "every 2000", "--after", "end", *of)
    now = raw.time()[0]
    raw.hset(f"{root}job:r@{now}", mapping={"payload": '{"task":"tick"}', "recurrence": "r"})
    raw.rpush(f"{root}ready", f"r@{now}")
    raw.hset(f"{root}recurrence:r", mapping={"ahead": f"r@{now}", "current": f"r@{now}", "made": "1"})
    raw.zadd(f"{root}recurrences", {"r": now + 9000})  # when a dispatcher looks again
    assert (listed(cli, *of)["r"]["next"], listed(cli, *of)["r"]["after_run"]) == (None, True)
    assert "counted from the end of its run" in cli.run("recurrences", *of).stdout
    assert "counted from the end of the run that is under way" in cli.run("explain", "r", *of).stdout
    (one,) = cli.json("recurrences", "next", "r", "-n", "1", *of)["times"]
    assert now + 2000 <= one["planned"] < now + 9000
    # A client deletes the job: nothing is under way, and the next one is planned when a dispatcher looks.
    raw.delete(f"{root}job:r@{now}", f"{root}ready")
    assert listed(cli, *of)["r"]["next"] == now + 9000
    assert "its next occurrence is planned in 2h" in cli.run("explain", "r", *of).stdout


def test_recurrence_without_a_record_is_reported_and_others_are_listed(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    cli.run("recurrences", "add", "r", "tick", "--rule", "every 3600", *of)
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"ghost": 0})
    assert {row["name"] for row in cli.json("recurrences", "next", *of)["times"]} == {"r"}
    said = listed(cli, *of)["ghost"]["reason"]
    assert "it has no record: add it with `evsched recurrences add ghost TASK" in said
    assert f"`evsched recurrences remove ghost --queue {queue}`" in said
    assert said in cli.run("recurrences", *of).stdout
    assert cli.run("recurrences", "remove", "ghost", *of).returncode == 0
    assert listed(cli, *of).keys() == {"r"}


def test_missing_window_is_refused_and_one_in_use_is_not_removed(cli: Cli, queue: str, raw: Any) -> None:
    of, schedule = ("--queue", queue), f"evsched:{{{queue}}}:recurrences"
    add = ("recurrences", "add", "r", "tick", "--rule", "@daily", "--window", "nights", *of)
    refused = cli.run(*add)
    assert (refused.returncode, "there is no window nights: evsched windows set" in refused.stderr) == (2, True)
    assert not raw.exists(schedule)
    cli.run("windows", "set", "nights", "22:00-06:00 UTC", *of)
    assert cli.run(*add).stdout == "r made\n"
    kept = cli.run("windows", "remove", "nights", *of)
    assert (kept.returncode, kept.stderr) == (1, "evsched: window nights is in use by r: change them first\n")
    # As a dispatcher leaves a recurrence whose window did not exist.
    raw.hset(f"evsched:{{{queue}}}:recurrence:r", "reason", "there is no window nights")
    raw.zadd(schedule, {"r": "inf"})
    cli.run("windows", "set", "nights", "21:00-06:00 UTC", *of)
    assert raw.zscore(schedule, "r") == 0


def test_next_names_recurrences_that_cannot_recur_and_lists_the_others(cli: Cli, queue: str, raw: Any) -> None:
    of, root = ("--queue", queue), f"evsched:{{{queue}}}:"
    for name in ("good", "known", "unknown"):
        cli.run("recurrences", "add", name, "tick", "--rule", "every 3600", *of)
    raw.hset(f"{root}recurrence:known", mapping={"zone": "Mars/Base", "reason": "there is no zone Mars/Base"})
    raw.hset(f"{root}recurrence:unknown", "rule", "every blue moon")
    done = cli.run("recurrences", "next", *of)
    assert (done.returncode, "good" in done.stdout, "known" in done.stdout) == (0, True, False)
    assert "known is left out, since it makes no jobs: there is no zone Mars/Base" in done.stderr
    assert "unknown is left out, since it makes no jobs: recurrence unknown: " in done.stderr


def test_next_respects_a_named_window(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    hour = int(time.strftime("%H", time.gmtime(time.time() + 3 * 3600)))
    window = f"{hour:02}:00-{(hour + 1) % 24:02}:00 UTC"
    cli.run("windows", "set", "later", window, *of)
    for name, one in (("named", "later"), ("plain", window)):
        cli.run("recurrences", "add", name, "tick", "--rule", "every 60", "--window", one, *of)
    named, plain = (
        [time["due"] for time in cli.json("recurrences", "next", name, *of)["times"]] for name in ("named", "plain")
    )
    assert named == plain
    assert Counter(row["name"] for row in cli.json("recurrences", "next", *of)["times"])["named"] > 0
    assert min(row["due"] for row in cli.json("recurrences", "next", *of)["times"]) == named[0]


def test_cancelled_occurrence_is_not_the_next_time(cli: Cli, queue: str, raw: Any) -> None:
    of, root, now = ("--queue", queue), f"evsched:{{{queue}}}:", raw.time()[0]
    cli.run("recurrences", "add", "r", "tick", "--rule", "every 60", *of)
    raw.hset(f"{root}job:r@{now + 30}", mapping={"payload": '{"task":"tick"}', "recurrence": "r"})
    raw.zadd(f"{root}schedule", {f"r@{now + 30}": now + 30})
    raw.hset(f"{root}recurrence:r", "ahead", f"r@{now + 30}")
    raw.zadd(f"{root}recurrences", {"r": now + 90})
    assert listed(cli, *of)["r"]["next"] == now + 30
    cli.run("cancel", f"r@{now + 30}", *of)
    assert listed(cli, *of)["r"]["next"] == now + 90


def test_explain_reports_a_missing_dispatcher_and_a_record_of_a_wrong_type(cli: Cli, queue: str, raw: Any) -> None:
    of, root = ("--queue", queue), f"evsched:{{{queue}}}:"
    cli.run("recurrences", "add", "r", "tick", "--rule", "every 60", *of)
    shown = cli.run("explain", "r", *of).stdout
    assert "about to begin" in shown
    assert "but no dispatcher is connected, so nothing starts: start one with `evsched dispatcher`" in " ".join(
        shown.split()
    )
    raw.delete(f"{root}recurrence:r")
    raw.set(f"{root}recurrence:r", "x")
    assert "it makes no jobs: its key is not a hash" in cli.run("explain", "r", *of).stdout


def test_doctor_names_the_command_that_sets_a_missing_calendar(cli: Cli, queue: str, raw: Any) -> None:
    fields = {"rule": "every 60", "payload": '{"task":"t"}', "skip": "holidays"}
    raw.hset(f"evsched:{{{queue}}}:recurrence:a b", mapping=fields)
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"a b": 0})
    found = {one["check"]: one["mend"] for one in json.loads(cli.run("doctor", "--json", "--queue", queue).stdout)}
    mend = found["recurrence-broken"]
    assert mend.startswith(f"evsched calendars set holidays FILE.ics --queue {queue}; or replace it: ")
    assert mend.endswith(f"evsched recurrences remove 'a b' --queue {queue}")
