"""Commands that apply to all jobs that match a filter."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from evsched.client import operations
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli
from tests.support.patience import PATIENCE

FAR = 2e9


@pytest.fixture
def schedule(raw: Any, queue: str) -> Any:
    """Return a function that reads the ids on the schedule."""
    return lambda: {
        job.decode(): due for job, due in raw.zrange(f"evsched:{{{queue}}}:schedule", 0, -1, withscores=True)
    }


@pytest.fixture
def mixed(server: EmbeddedRedis, queue: str) -> None:
    """Schedule 300 jobs, every third of task `pay`."""
    sender = SyncSender(server.url)
    jobs = [New(f"j{n}", b'{"task":"%s"}' % (b"mail" if n % 3 else b"pay"), due=FAR + n) for n in range(300)]
    sender.send(Store(queue, by="billing").enqueue(jobs))
    sender.close()


PAY = {f"j{n}" for n in range(0, 300, 3)}


@pytest.mark.usefixtures("mixed")
def test_jobs_lists_matching_jobs_next_to_run_first(cli: Cli, queue: str) -> None:
    of = ("--queue", queue, "--task", "pay")
    rows = cli.json("jobs", *of, "--limit", "1000")
    assert [row["id"] for row in rows] == sorted(PAY, key=lambda job: int(job[1:]))
    assert rows[0].pop("created") > 1e9
    assert rows[0] == {
        "place": "schedule",
        "id": "j0",
        "at": FAR,
        "task": "pay",
        "group": None,
        "by": "billing",
        "reason": None,
        "error": None,
        "location": None,
        "tags": [],
        "unknown_since": None,
    }
    some = cli.run("jobs", *of, "--limit", "2")
    assert some.stdout.splitlines()[1].split("\t")[:2] == ["schedule", "j0"]
    assert some.stderr == "evsched: 2 of 100 jobs in schedule: --limit 100 lists them all\n"
    assert cli.json("jobs", *of, "--older", "1h") == []


@pytest.mark.usefixtures("mixed")
def test_jobs_lists_the_same_fields_without_a_filter(cli: Cli, queue: str) -> None:
    rows = cli.json("jobs", "--queue", queue, "--limit", "2")
    assert [(row["id"], row["task"], row["by"]) for row in rows] == [
        ("j0", "pay", "billing"),
        ("j1", "mail", "billing"),
    ]


@pytest.mark.usefixtures("mixed")
def test_a_dry_run_counts_and_changes_nothing(cli: Cli, queue: str, schedule: Any) -> None:
    before = schedule()
    flags = ("--queue", queue, "--task", "pay", "--dry-run")
    done = cli.run("cancel", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "100 would be cancelled, among them:"
    assert len(lines) == 12
    assert {row["id"] for row in cli.json("reschedule", *flags, "--in", "1s")} == PAY
    assert schedule() == before


@pytest.mark.usefixtures("mixed")
def test_jobs_are_cancelled_by_a_filter(cli: Cli, queue: str, schedule: Any) -> None:
    before = schedule()
    done = cli.run("cancel", "--queue", queue, "--task", "pay")
    assert (done.returncode, done.stdout, done.stderr) == (0, "100 cancelled\n", "")
    assert schedule() == {job: due for job, due in before.items() if job not in PAY}
    assert cli.run("cancel", "--queue", queue, "--task", "pay").stdout == "0 cancelled\n"


@pytest.mark.usefixtures("mixed")
def test_jobs_are_rescheduled_by_a_filter(cli: Cli, queue: str, schedule: Any) -> None:
    before = schedule()
    done = cli.run("reschedule", "--queue", queue, "--task", "pay", "--at", "1990000000")
    assert (done.returncode, done.stdout) == (0, "100 rescheduled\n")
    assert schedule() == {**before, **dict.fromkeys(PAY, 1.99e9)}


def test_dead_jobs_are_selected_by_time_and_error(cli: Cli, queue: str, raw: Any) -> None:
    root = f"evsched:{{{queue}}}:"
    for n in range(4):
        error = "ValueError" if n == 1 else "app.PayError"
        raw.hset(f"{root}job:d{n}", mapping={"payload": '{"task":"t"}', "finished": "1", "error": error})
        raw.zadd(f"{root}dead", {f"d{n}": 1.1e9 + n})
    span = ("--since", "1100000001", "--until", "2004-11-09T11:33:22Z")
    rows = cli.json("jobs", "--queue", queue, "--error", "PayError", *span)
    assert [(row["id"], row["error"]) for row in rows] == [("d2", "app.PayError")]
    assert cli.run("dead", "revive", "--queue", queue, *span).stdout == "2 revived\n"
    assert cli.run("dead", "drop", "--queue", queue, "--since", "2h").stdout == "0 dropped\n"
    assert raw.zrange(f"{root}dead", 0, -1) == [b"d0", b"d3"]
    wrong = cli.run("cancel", "--queue", queue, "--since", "soon")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "or 2h for two hours ago" in wrong.stderr
    for since, until in (("1m", "5m"), ("2004-11-09T11:33:22Z", "1100000001")):
        wrong = cli.run("dead", "revive", "--queue", queue, "--since", since, "--until", until)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "since is after until" in wrong.stderr


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_dead_jobs_are_selected_by_reason(cli: Cli, queue: str, raw: Any, schedule: Any, verb: str) -> None:
    root = f"evsched:{{{queue}}}:"
    for n in range(20):
        reason = "ConnectionError: refused" if n % 2 else "ValueError: no luck"
        raw.hset(
            f"{root}job:d{n}", mapping={"payload": '{"task":"t"}', "reason": reason, "finished": "1", "outcome": "dead"}
        )
        raw.zadd(f"{root}dead", {f"d{n}": 1.0})
    done = cli.run("dead", verb, "--queue", queue, "--reason", "connectionerror")
    changed = {f"d{n}" for n in range(1, 20, 2)}
    assert (done.returncode, done.stdout) == (0, f"10 {'revived' if verb == 'revive' else 'dropped'}\n")
    assert {job.decode() for job in raw.zrange(f"{root}dead", 0, -1)} == {f"d{n}" for n in range(0, 20, 2)}
    assert schedule().keys() == (changed if verb == "revive" else set())


@pytest.mark.extra
@pytest.mark.one_server
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_a_sweep_after_its_slice_and_a_repeat_does_the_rest(
    cli: Cli, server: EmbeddedRedis, queue: str, raw: Any, schedule: Any, number: int, code: int
) -> None:
    """A pause of Redis's writes makes it certain that the command is under way."""
    sender, store, count = SyncSender(server.url), Store(queue), 2000
    sender.send(store.enqueue([New(f"j{n}", b'{"task":"pay"}', due=FAR) for n in range(1000)]))
    sender.send(store.enqueue([New(f"j{n}", b'{"task":"pay"}', due=FAR) for n in range(1000, count)]))
    sender.close()
    raw.client_pause(60_000, all=False)
    words = cli.command("cancel", "--queue", queue, "--task", "pay")
    child = subprocess.Popen(words, env=cli.environment, cwd=cli.folder, stdout=subprocess.PIPE, text=True)
    try:
        while not any("b" in client["flags"] for client in raw.client_list()):
            assert child.poll() is None
        os.kill(child.pid, number)
        raw.client_unpause()
        out, _ = child.communicate(timeout=PATIENCE)
    finally:
        raw.client_unpause()
        child.kill()
        child.wait()
    assert child.returncode == code
    done = int(out.split()[0])
    assert 0 < done < count
    assert out.endswith("cancelled, then stopped: the same command does the rest\n")
    assert len(schedule()) == count - done
    assert cli.run("cancel", "--queue", queue, "--task", "pay").stdout == f"{count - done} cancelled\n"
    assert schedule() == {}


@pytest.mark.extra
@pytest.mark.one_server
def test_a_sweep_names_a_redis_that_does_not_answer(
    cli: Cli, server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_PATIENCE", 0.1)
    sender = SyncSender(server.url)
    sender.send(Store(queue).enqueue([New("j", b'{"task":"pay"}', due=FAR)]))
    sender.close()
    raw.client_pause(60_000, all=False)
    try:
        done = cli.run("cancel", "--queue", queue, "--task", "pay")
    finally:
        raw.client_unpause()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "evsched: 0 cancelled before this failed: the same command does the rest",
        f"evsched: Redis: {server.url} is connected, but does not answer: see if it hangs, and try again",
    ]


@pytest.mark.usefixtures("mixed")
def test_show_and_explain_print_the_creation_time_and_user(cli: Cli, queue: str) -> None:
    shown = cli.json("show", "j0", "--queue", queue)
    assert (shown["by"], shown["created"] > 1e9) == ("billing", True)
    facts = cli.json("explain", "j0", "--queue", queue)["facts"]
    assert facts["by"] == "billing"
    assert facts["created"].endswith(" ago")


ONE_JOB = {
    "show": ("show",),
    "explain": ("explain",),
    "cancel": ("cancel",),
    "reschedule": ("reschedule", "--in", "1h"),
    "run-now": ("run-now",),
}


@pytest.fixture
def twin(server: EmbeddedRedis, queue: str) -> Callable[[str, str], None]:
    """Return a function that schedules a job in a queue whose name begins with the test's."""

    def put(suffix: str, job: str) -> None:
        sender = SyncSender(server.url)
        sender.send(Store(queue + suffix).enqueue([New(job, b'{"task":"t"}', due=FAR)]))
        sender.close()

    return put


@pytest.mark.parametrize("words", ONE_JOB.values(), ids=ONE_JOB)
def test_a_job_is_found_in_its_queue_and_the_right_queue_is_named(
    cli: Cli, queue: str, twin: Callable[[str, str], None], words: tuple[str, ...]
) -> None:
    job = f"job-of-{queue}"
    twin("a", job)
    twin("b", "other")
    wrong = cli.run(words[0], job, *words[1:], "--queue", f"{queue}b")
    assert wrong.returncode == 1
    assert f"queue {queue}a has a job {job}: give --queue {queue}a" in wrong.stderr
    found = cli.run(words[0], job, *words[1:])
    assert (found.returncode, found.stderr) == (0, "")
    assert job in found.stdout


@pytest.mark.parametrize("words", ONE_JOB.values(), ids=ONE_JOB)
def test_a_job_id_that_several_queues_have_is_refused_with_their_names(
    cli: Cli, queue: str, raw: Any, twin: Callable[[str, str], None], words: tuple[str, ...]
) -> None:
    job = f"job-of-{queue}"
    for suffix in "ab":
        twin(suffix, job)
    raw.hset(f"evsched:{{{queue}c}}:job:{job}", "payload", "{}")  # a record that is left of no job
    done = cli.run(words[0], job, *words[1:])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"evsched: queues {queue}a, {queue}b have a job {job} each: say which with --queue\n"


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_a_dead_job_is_found_in_its_queue(cli: Cli, queue: str, raw: Any, verb: str) -> None:
    jobs = [f"{job}-of-{queue}" for job in "de"]
    for job in jobs:
        raw.hset(f"evsched:{{{queue}}}:job:{job}", mapping={"payload": '{"task":"t"}', "finished": "1"})
        raw.zadd(f"evsched:{{{queue}}}:dead", {job: 1.0})
    assert cli.run("dead", verb, *jobs).stdout == f"2 {verb}{'d' if verb == 'revive' else 'ped'}\n"


def test_a_recurrence_is_explained_from_the_queue_that_has_it(
    cli: Cli, queue: str, raw: Any, twin: Callable[[str, str], None]
) -> None:
    name = f"nightly-of-{queue}"
    twin("r", "other")
    cli.run(
        "recurrences", "add", name, "t", "--rule", "0 5 * * *", "--queue", f"{queue}r", "--window", "03:00-04:00 UTC"
    )
    found = cli.run("explain", name)
    assert (found.returncode, found.stderr) == (0, "")
    assert "it is about to begin" in found.stdout
    raw.zadd(f"evsched:{{{queue}r}}:recurrences", {name: 3e9})  # 05:20 UTC
    assert ", when its window 03:00-04:00 UTC opens" in cli.run("explain", name).stdout


def test_an_id_that_no_queue_has_is_missing_in_all(cli: Cli, queue: str) -> None:
    done = cli.run("explain", f"none-of-{queue}")
    assert done.returncode == 1
    assert f"no job none-of-{queue} in any queue, and no recurrence of this name: " in done.stderr


def test_show_has_times_for_the_expiry_and_the_window(cli: Cli, queue: str) -> None:
    cli.run("enqueue", "t", "--id", f"w-{queue}", "--at", "1900000300", "--window", "03:00-04:00 UTC", "--queue", queue)
    rows = dict(line.split("\t", 1) for line in cli.run("show", f"w-{queue}").stdout.splitlines())
    assert rows["window"] == "03:00-04:00 UTC"
    assert datetime.fromisoformat(rows["can_start"]) == datetime(2030, 3, 18, 3, tzinfo=UTC)
    assert cli.json("show", f"w-{queue}")["window"] == "03:00-04:00 UTC"
