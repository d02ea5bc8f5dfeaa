"""Untrusted text is read in bounded time; unreadable text is ignored or refused."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsched import Retry, events, process_events
from evsched.cli.output import fields
from evsched.errors import ConfigError
from evsched.jobs.record import number, read_status, whole
from evsched.jobs.retry import ATTEMPTS_MOST, least_delay
from evsched.recurrence.cron import find_zone, parse_rule
from evsched.recurrence.recurrence import read_declared, read_recurrence
from evsched.recurrence.windows import EXCEPTIONS, LONGEST, SPANS, parse_window
from evsched.telemetry.log import Log, configure
from tests.support.hostile import FIELDS, payloads, values


@pytest.fixture
def in_time() -> Generator[None]:
    """Fail a test after 10 s of CPU, which only a quadratic reader uses. No timeout of an event loop could end it."""

    def end(*_: object) -> None:
        raise TimeoutError("it takes more steps than the text has characters")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, 10)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


BLANKS = " " * 100_000


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    "window",
    [
        BLANKS,
        f"mon{BLANKS}x",
        "mon," * 25_000,
        f"mon 09:00{BLANKS}-",
        f"09:00-17:00{BLANKS}?",
        f"not 2026-12-24{BLANKS}.",
        "1:00" * 25_000,
        ";".join(["mon 09:00-17:00 UTC"] * 1439),
        ";".join(["09:00-17:00 UTC", *["not 2026-12-24"] * 13_501]),
        "09:00-17:00 " + "A" * 200_000,
        "\u0661:\u0660\u0660-2:00 UTC",
    ],
    ids=range(11),
)
def test_an_invalid_window_is_refused_in_linear_time(window: str) -> None:
    for text in (window, window[:LONGEST]):
        with pytest.raises(ConfigError) as refused:
            parse_window(text)
        assert len(str(refused.value)) < 1000


@pytest.mark.usefixtures("in_time")
def test_the_next_opening_of_the_largest_window_is_found_quickly() -> None:
    spans = [f"mon {n // 60:02}:{n % 60:02}-{n // 60:02}:{n % 60 + 1:02}" for n in range(0, 3 * (SPANS - 1), 3)]
    closed = [
        f"not {year}-{month:02}-{day:02}" for year in (2026, 2027) for month in range(1, 13) for day in range(1, 9)
    ]
    window = parse_window("; ".join([*spans, "mon 23:57-23:58 Europe/Berlin", *closed[:EXCEPTIONS]]))
    for n in range(100):
        assert window.next_open(1_767_225_600.0 + n * 86_400) is not None


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("zone", ["A" * 200_000, "", "../../etc/passwd", "Europe", "\x00", "\udc80", "/etc/localtime"])
def test_an_invalid_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_zone(zone)
    assert len(str(refused.value)) < 300


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    "rule",
    [
        "every" + BLANKS,
        "every " + "9" * 400,
        "0 " * 50_000,
        ",".join(["1"] * 50_000) + " * * * *",
        "\u00b2 * * * *",
        "\u0663 * * * L",
        "9" * 450 + " * * * *",
        "*/0 * * * *",
        "@" * 1000,
    ],
    ids=range(9),
)
def test_an_invalid_rule_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_rule(rule)
    assert len(str(refused.value)) < 1500


FIELDS_OF_A_RECURRENCE = "rule zone start end count spread misfire most overlap window"


@given(st.dictionaries(st.sampled_from(FIELDS_OF_A_RECURRENCE.split(" ")), values(2000)))
def test_recurrence_with_any_content_is_planned_or_refused(fields: dict[str, bytes]) -> None:
    record = {"rule": b"* * * * *", "payload": b'{"task":"t"}', **fields}
    for next_planned in (0.0, -1e308, 1.9e9):
        try:
            plan = read_recurrence(read_declared("r", record)).plan(next_planned, 1.9e9, 15.0)
        except ConfigError:
            continue
        assert len(plan.put) < 10_200


@given(
    st.dictionaries(st.sampled_from([name.decode() for name in FIELDS]), values(2000)),
    payloads(2000),
    st.sampled_from(["schedule", "dead", "finished", "processing"]),
    st.sampled_from(["", "inf", "-inf", "1e308", "1.5"]),
)
def test_record_with_any_content_is_shown(fields: dict[str, bytes], payload: bytes, place: Any, score: str) -> None:
    status = read_status("q", "a", place, score, {"payload": payload, **fields})
    assert json.loads(msgspec.json.encode(status))["id"] == "a"
    assert 0 <= status.priority <= 9


def test_malformed_number_is_read_as_none_or_zero() -> None:
    assert [number(text) for text in (None, b"", b"abc", b"0x10", b"nan", b"1.5", b"-inf")] == [
        *[None] * 5,
        1.5,
        float("-inf"),
    ]
    assert [whole(text) for text in (None, b"x", b"1e308", b"inf", b"9" * 5000, b"7", b"1e18")] == [0, 0, 0, 0, 0, 7, 0]


def test_attempts_are_bounded_and_later_ones_have_a_least_delay() -> None:
    for attempts in (0, ATTEMPTS_MOST + 1, 10**18):
        with pytest.raises(ConfigError, match=f"attempts is {attempts}, must be 1 to 1000"):
            Retry(attempts=attempts)
    policy = Retry(attempts=ATTEMPTS_MOST, interval=0, jitter=0)
    assert [policy.delay(n) for n in (1, 2, 3, 4)] == [0, 0, 0, 0]  # at once, as the policy says
    assert policy.delay(20) == least_delay(20) == 1.0
    assert policy.worst_case() > 980


@pytest.mark.parametrize(
    "event",
    [
        events.JobBuried(
            queue="q", id="a" * 200, task="t" * 300_000, attempt=1, reason="\u202e\x1b" * 100_000, outcome="dead"
        ),
        events.JobBuried(queue="q", id="a", task="\udc80", attempt=1, reason="\udcff", outcome="dead"),
        events.JobsRequeued(queue="q", worker="w", ids=["\x00" * 200] * 999, cause="died", reason="it died"),
        process_events.CallRefused(who="janitor", queue="q", reason="x" * 1_000_000),
    ],
    ids=range(4),
)
def test_log_line_with_any_content_is_bounded(
    event: events.Event, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("evsched")
    before = logger.handlers, logger.level, logger.propagate
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    try:
        for terminal in (False, True):
            monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
            configure()
            Log().on_event(event)
    finally:
        logger.handlers, logger.level, logger.propagate = before
        logging.getLogger("aiormq").setLevel(logging.NOTSET)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["event"] == type(event).__name__
    assert all(len(line) <= 8192 and line.isprintable() for line in lines)


@pytest.mark.extra
@pytest.mark.usefixtures("in_time")
def test_a_terminal_shows_the_beginning_of_a_long_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = read_status("q", "a", "finished", "1", {"result": b"\xff" * 4_000_000})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    fields([("result", status.result), ("reason", "x" * 2000)])
    shown = capsys.readouterr().out.split()
    text = "".join(word for word in shown if set(word) <= set("\\xf"))
    assert text.count("\\xff") == 500
    assert text.count("x") == 500 + 2000
    assert "and 15998000 characters more: --json shows all" in " ".join(shown)
