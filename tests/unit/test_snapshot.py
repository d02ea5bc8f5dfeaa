"""The page of `evsched top`: its figures from two looks, and how it is drawn."""

from __future__ import annotations

import io
import math

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from evsched.cli.top_commands import draw, due, rate, sparkline
from evsched.store.dispatcher_calls import Lease
from evsched.store.operator_calls import QueueStats
from evsched.top.snapshot import (
    Count,
    Down,
    History,
    JobRow,
    Look,
    Page,
    QueueRow,
    Rates,
    Sample,
    WorkerRow,
    compose,
    sample,
    total,
)
from evsched.worker.status_reporter import Running, WorkerStatus

STATS = QueueStats(
    now=1000.0,
    places={"schedule": 7, "backlog": 2, "ready": 1, "processing": 3, "dead": 4},
    due=5,
    workers=2,
    next_due=1003.5,
    paused=None,
    oldest=0.0,
)


def status(worker: str, started: int, lateness: list[float], runs: int = 0) -> WorkerStatus:
    return WorkerStatus(
        worker=worker,
        queue="q",
        slots=8,
        busy=runs,
        started=started,
        done=started - runs,
        failed=0,
        lateness=lateness,
        running=runs,
        runs=[Running(f"job{n}", "task", 1, float(n)) for n in range(runs)],
    )


def look(at: float, *statuses: WorkerStatus, leased: tuple[str, ...] = ()) -> Look:
    leases = [Lease(worker, b"1", 10.0, 1) for worker in leased]
    return Look(at, {"q": STATS}, {"q": leases}, list(statuses))


def test_the_first_page_has_no_rates() -> None:
    page, history = compose(look(10.0, replace(status("w", 100, [0.1] * 50), not_fetching="quiet")), History())
    assert page == Page(
        now=1000.0,
        queues=[QueueRow("q", 7, 5, 2, 1, 3, 4, 2, 1003.5, None, None)],
        rates=None,
        lateness=[],
        workers=[WorkerRow("w", True, 8, 0, [], "quiet")],
    )
    assert history == History(1, {("w", "q"): Count(10.0, 100, 100, 0)}, [])


def test_a_paused_queue_has_the_end_and_the_reason_of_its_pause() -> None:
    paused = replace(STATS, paused=990.0, paused_until=1060.0, paused_why="a deploy")
    page, _ = compose(Look(10.0, {"q": paused}, {}, []), History())
    row = page.queues[0]
    assert (row.paused, row.paused_until, row.paused_why) == (990.0, 1060.0, "a deploy")


def test_rates_and_lateness_count_jobs_since_the_previous_look() -> None:
    _, history = compose(look(10.0, status("w", 100, [9.0, 9.0])), History())
    page, history = compose(look(12.0, status("w", 103, [9.0, 9.0, 0.3, 0.1, 0.2], runs=1)), history)
    assert page.rates == page.queues[0].rates == Rates(started=1.5, done=1.0, failed=0.0)
    assert page.lateness == [Sample(p50=0.2, max=0.3)]
    page, _ = compose(look(13.0, status("w", 103, [9.0, 9.0, 0.3, 0.1, 0.2], runs=1)), history)
    assert (page.rates, page.lateness) == (Rates(), [Sample(0.2, 0.3), None])


def test_the_rate_of_a_worker_that_missed_a_request_is_over_the_whole_time() -> None:
    _, history = compose(look(10.0, status("w", 100, []), leased=("w",)), History())
    page, history = compose(look(11.0, leased=("w",)), history)
    assert (page.rates, page.workers) == (Rates(), [WorkerRow("w", False, None, 1, [])])
    page, _ = compose(look(12.0, status("w", 104, []), leased=("w",)), history)
    assert page.rates == Rates(started=2.0, done=2.0)


def test_a_worker_that_ended_is_forgotten_and_a_new_one_is_not_a_burst() -> None:
    _, history = compose(look(10.0, status("old", 100, [])), History())
    page, history = compose(look(11.0, status("new", 500, [1.0])), history)
    assert (page.rates, page.lateness) == (Rates(), [None])
    assert history.counts == {("new", "q"): Count(11.0, 500, 500, 0)}


def test_rates_of_queues_and_workers_add_up() -> None:
    assert total([Rates(1, 2, 3), Rates(0.5, 0, 1)]) == Rates(1.5, 2, 4)
    assert total([]) == Rates()


def test_if_more_jobs_started_than_are_reported_the_newest_count() -> None:
    _, history = compose(look(10.0, status("w", 0, [])), History())
    page, _ = compose(look(11.0, status("w", 5000, [0.1, 0.2, 0.3, 0.4])), history)
    assert (page.rates, page.lateness) == (Rates(5000, 5000, 0), [Sample(0.3, 0.4)])


def test_the_last_minute_is_kept() -> None:
    history = History()
    for n in range(70):
        page, history = compose(look(float(n), status("w", n, [n / 1000])), history)
    assert [one and one.max for one in page.lateness] == [n / 1000 for n in range(10, 70)]  # pyright: ignore[reportPossiblyUnboundVariable]


def test_a_job_that_was_due_at_0_is_not_late() -> None:
    assert sample([0.1, 1.7e9, 1e10]) == Sample(0.1, 0.1)
    assert sample([1.7e9]) is sample([]) is None


def test_bars_are_steps_of_half_a_decade() -> None:
    assert sparkline([0, 0.001, 0.002, 0.003, 0.01, 0.02, 0.1, 0.3, 1, 1.1, 1e9, None]) == "▁▁▂▂▃▄▅▆▇██ "
    assert sparkline([-0.001]) == "▁"


def test_rates_and_due_times_are_shown_briefly() -> None:
    assert [rate(value) for value in (None, 0.0, 9.94, 9.96, 1234.5)] == ["-", "0.0", "9.9", "10", "1234"]
    assert [due(at, 100.0) for at in (None, 102.5, 90.0, 0.0, -math.inf, math.inf)] == [
        "-",
        "in 2.5 s",
        "10.0 s ago",
        "now",
        "now",
        "never",
    ]


def drawn(page: Page, width: int = 100, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(draw(page, "title", width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def row(queue: str, processing: int = 0) -> QueueRow:
    return QueueRow(queue, 0, 0, 0, 0, processing, 0, 0, None, None, None)


def test_a_page_without_workers_says_if_a_parent_stands_by() -> None:
    page = Page(now=None, queues=[row("q"), row("r")], rates=None, lateness=[], workers=[])
    assert "no workers: start one: evsched worker MODULE:APP" in drawn(page)
    waiting = replace(page, queues=[row("q"), replace(row("r"), parents=1)])
    assert "no workers: a parent stands by, and starts one when a job waits (evsched workers)" in drawn(waiting)


def test_a_page_is_drawn() -> None:
    jobs = [JobRow("q", "a", "mail", 2, 61.0), JobRow("q", "b", "mail", 1, 0.5)]
    page = Page(
        now=None,
        queues=[
            QueueRow("q", 7, 5, 2, 1, 3, 4, 2, None, None, Rates(1.5)),
            QueueRow("r", 0, 0, 0, 0, 0, 0, 0, None, 5.0, Rates()),
        ],
        rates=Rates(1.5, 1.0, 0.0),
        lateness=[None, Sample(0.0004, 0.02)],
        workers=[
            WorkerRow("w1", True, 8, 3, jobs),
            WorkerRow("w2", False, None, 4, []),
            WorkerRow("w3", True, 8, 1, [], "quiet"),
        ],
    )
    lines = drawn(page)
    assert [line.split() for line in lines] == [
        ["evsched", "top", "title"],
        [],
        ["queue", "schedule", "overdue", "backlog", "ready", "processing", "dead", "start/s", "next", "due"],
        ["q", "7", "5", "2", "1", "3", "4", "1.5", "-"],
        ["r", "0", "0", "0", "0", "0", "0", "0.0", "paused", "0", "ms"],
        [],
        ["started", "1.5/s", "done", "1.0/s", "failed", "0.0/s"],
        ["late", "p50", "▁", "0.4", "ms"],
        ["late", "max", "▄", "20", "ms"],
        [],
        ["worker", "busy", "queue", "job", "task", "attempt", "for"],
        ["w1", "3/8", "q", "a", "mail", "2", "61.0", "s"],
        ["q", "b", "mail", "1", "500", "ms"],
        ["and", "1", "more"],
        ["w2", "no", "answer,", "holds", "4"],
        ["w3", "quiet,", "1/8", "and", "1", "more"],
        [],
    ]


@pytest.mark.parametrize("width", [80, 60])
def test_a_narrow_terminal_leaves_whole_columns_out_and_names_them(width: int) -> None:
    workers = [WorkerRow("w" * 20, True, 8, 1, [JobRow("q" * 20, "j" * 40, "t" * 20, 1, 3.0)])]
    queues = [QueueRow("q" * 30, 123456, 5, 2, 1, 3, 4, 2, 1003.5, None, Rates(1.5, 1.0, 0.0))]
    lines = drawn(Page(1000.0, queues, Rates(), [], workers), width)
    assert all(len(line) <= width for line in lines)
    header, row, note = lines[lines.index(next(line for line in lines if line.startswith("queue"))) :][:3]
    columns = ("queue", "schedule", "overdue", "backlog", "ready", "processing", "dead", "start/s", "next due")
    shown = [name for name in columns if name in header]
    left_out = [name for name in columns if name not in header]
    assert {"queue", "ready"} <= {*shown}
    assert ("123456" in row) == ("schedule" in shown)
    assert left_out == ([] if width == 80 else ["start/s", "next due"])
    assert note == (f"(no room for: {', '.join(left_out)}; --json shows all)" if left_out else "")
    (header,) = [line for line in lines if line.startswith("worker")]
    assert {"busy", "job"} <= {*header.split()}


def test_empty_page_shows_the_next_steps() -> None:
    text = "\n".join(drawn(Page(None, [], None, [], [])))
    assert "nothing has been scheduled yet" in text
    assert "start one: evsched worker MODULE:APP" in text


def test_text_from_redis_cannot_control_the_terminal() -> None:
    jobs = [JobRow("q", "a\x1b[2J", "\x9b31m[bold]task[/bold]", 1, 1.0)]
    page = Page(
        1.0,
        [row("q")],
        None,
        [],
        [WorkerRow("w\x07", True, 8, 1, jobs)],
        {"r": "\x1bno", "s": ""},
        Down(3.0, "\x1b[31mgone"),
    )
    lines = drawn(page, 80)
    assert not any(set("\x1b\x9b\x07") & set(line) for line in lines)
    text = "\n".join(lines)
    assert "[bold]task[/bold]" in text
    assert "Redis is down for 3.0 s: \\x1b[31mgone" in text
    assert "Queue r cannot be read (and 1 more): \\x1bno" in text


@pytest.mark.parametrize("height", [10, 24, 40])
@pytest.mark.parametrize(("queues", "workers", "runs"), [(1, 1, 50), (100, 1, 1), (1, 100, 3), (100, 100, 50)])
def test_a_page_fits_its_terminal(height: int, queues: int, workers: int, runs: int) -> None:
    jobs = [JobRow("q", f"job{n}", "task", 1, 1.0) for n in range(runs)]
    page = Page(
        now=1.0,
        queues=[row(f"queue{n}", processing=n) for n in range(queues)],
        rates=Rates(),
        lateness=[Sample(0.1, 0.1)] * 60,
        workers=[WorkerRow(f"worker{n}", n != 50, 256, runs, jobs) for n in range(workers)],
        down=Down(1.0, "it is down " * 30),
    )
    lines = drawn(page, 80, height)
    assert len(lines) <= max(height, 18)
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert f"queue{queues - 1} " in text, "the fullest queue is shown"
    assert ("no answer" in text) == (workers > 50), "a worker that does not answer is shown"
    assert (f"and {queues - lines_of(lines, 'queue')} more queues" in text) == (queues > 1)
    assert ("more workers" in text) == (workers > 1)


def lines_of(lines: list[str], word: str) -> int:
    return sum(line.startswith(word) and not line.startswith(f"{word} ") for line in lines)


def test_a_page_survives_a_round_trip_through_json() -> None:
    page, _ = compose(look(10.0, status("w", 3, [0.1], runs=2)), History())
    assert msgspec.json.decode(msgspec.json.encode(page), type=Page) == page


def test_shards_are_one_row_and_their_worker_is_one_worker() -> None:
    def both(at: float, started: int) -> Look:
        parts = [replace(status("w", started, [0.1] * started, runs=2), queue=name) for name in ("q:0", "q")]
        leases = [Lease("w", b"1", 10.0, 2)]
        stats = {"q:0": STATS, "q": replace(STATS, next_due=None), "p:0": STATS}
        return Look(at, stats, dict.fromkeys(("q:0", "q"), leases), parts, rows={"q": ["q:0", "q"], "p:0": ["p:0"]})

    _, history = compose(both(10.0, 4), History())
    page, _ = compose(both(12.0, 8), history)
    assert page.queues == [
        QueueRow("p:0", 7, 5, 2, 1, 3, 4, 2, 1003.5, None, Rates()),
        QueueRow("q", 14, 10, 4, 2, 6, 8, 2, 1003.5, None, Rates(started=4.0, done=4.0)),
    ]
    assert page.rates == Rates(started=4.0, done=4.0)
    (worker,) = page.workers
    assert [run.queue for run in worker.runs] == ["q"] * 4


def test_unreadable_queue_has_no_row() -> None:
    page, _ = compose(Look(10.0, {"p": STATS}, {}, [], {"q": "refused"}, rows={"p": ["p"], "q": []}), History())
    assert [row.queue for row in page.queues] == ["p"]
