"""The language of the console's search box."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from evsched.client.sweep import SEARCHED, Filter
from evsched.console.search import in_words, pick_span, quoted, read_search
from evsched.console.words import PageClock


def test_words_of_a_search_are_conditions_that_all_hold() -> None:
    found = read_search(
        'queue:mail,sms task:send tag:patient:42 tag:a arg:patient=42 arg:to="bob b" older:2h place:dead'
    )
    assert found.problem == ""
    assert (found.queues, found.places) == (("mail", "sms"), ("dead",))
    assert found.filter == Filter(
        task="send", tags=["patient:42", "a"], arguments={"patient": 42, "to": "bob b"}, older=7200.0
    )
    assert read_search("since:2h").filter.since == timedelta(hours=2)
    at = read_search("since:2030-01-31T09:00 until:2030-01-31T09:30+00:00", "Asia/Tokyo").filter
    assert (at.since, at.until) == (1896048000.0, 1896082200.0), "a time without an offset is in the console's zone"
    assert read_search('group:"a b"').filter.group == "a b"


def test_a_word_without_a_qualifier_is_an_id() -> None:
    assert read_search("3f0c9d2ae5b71864c0d2").id == "3f0c9d2ae5b71864c0d2"
    assert read_search("report:2030-01-31T09:00").problem != ""
    assert read_search("id:report:2030").id == "report:2030"
    assert read_search("https://example.com/a").id == "https://example.com/a"


def test_without_a_place_all_are_searched_and_an_empty_search_lists_what_waits() -> None:
    assert [*read_search("task:send").searched] == [*SEARCHED]
    assert "processing" not in read_search("").searched


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tsk:mail", "tsk: is not a qualifier"),
        ("task:", "task: has no value"),
        ("task:a task:b", "task: is given twice"),
        ("place:nowhere", "nowhere is no place"),
        ("arg:patient", "write arg:patient=42"),
        ("older:soon", "'soon' is not a duration"),
        ("since:soon", "'soon' is not a time"),
        ("queue:}{", "}{"),
        ("tag:" + "x" * 300, "tag"),
    ],
)
def test_a_search_that_cannot_be_read_says_why(text: str, problem: str) -> None:
    found = read_search(text)
    assert problem in found.problem
    assert found.filter.is_empty


@pytest.mark.parametrize("value", ["a", "a b", 'say "hi"', "back\\slash", "", "é\n", "a:b"])
def test_a_quoted_value_is_read_back_as_it_was(value: str) -> None:
    if value:
        assert read_search(f"group:{quoted(value)}").filter.group == value
    search = read_search("task:t place:dead").with_word("group", value)
    assert search == f"task:t place:dead group:{quoted(value)}"
    assert read_search("task:t place:dead").with_word("place", None) == "task:t"


def test_a_search_is_said_in_words_with_its_times_in_the_zone_of_the_page() -> None:
    clock = PageClock(ZoneInfo("Asia/Tokyo"))
    text = (
        "place:dead task:t error:requests.Timeout group:g arg:a=1 queue:a,b "
        "since:2020-01-31T09:00+09:00 until:2020-01-31T10:00+09:00"
    )
    assert in_words(read_search(text, "UTC"), clock) == (
        "jobs that are dead, of task t, that raised requests.Timeout, of group g, called with a=1, "
        "in the queues a, b, that died from 31 Jan 2020 09:00:00, until 31 Jan 2020 10:00:00"
    )
    assert in_words(read_search("older:2h"), clock) == "jobs that were created, or died, more than 2h ago"
    assert in_words(read_search(""), clock) == "all jobs"


@pytest.mark.parametrize("text", ["0001-01-01", "0001-01-01T00:00", "1e18", "9999-12-31T23:59+00:00"])
def test_a_span_that_cannot_be_written_as_dates_says_so(text: str) -> None:
    for since, until in ((text, ""), ("", text)):
        picked = pick_span("", since, until, "Europe/Berlin", 2e9)
        assert f"'{text}' is out of range: give a time from 1900 to 9999" in picked.problem
        assert picked.words(ZoneInfo("Europe/Berlin")) == {}


NOON = datetime(2030, 1, 31, 12, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("2030-01-31 02:00-02:30", "2030-01-31 02:00 to 02:30"),
        ("2030-01-31T02:00 to 2030-01-31T02:30:15", "2030-01-31 02:00 to 02:30:15"),
        ("2030-01-30 23:30 \u2013 0:15", "2030-01-30 23:30 to 2030-01-31 00:15"),
        ("2030-01-31T02:00+00:00 until 2030-01-31T04:00+00:00", "2030-01-31 03:00 to 05:00"),
        ("2h to 1h", "2030-01-31 10:00 to 11:00"),
        ("2030-01-31 02:00", "2030-01-31 02:00"),
    ],
)
def test_span_is_typed_as_one_text_and_shown_as_one_that_can_be_sent_again(typed: str, shown: str) -> None:
    zone = ZoneInfo("Europe/Berlin")
    picked = pick_span("", "", "", "Europe/Berlin", NOON.timestamp(), typed=typed)
    assert (picked.problem, picked.typed(zone)) == ("", shown)
    again = pick_span("", "", "", "Europe/Berlin", NOON.timestamp(), typed=shown)
    assert (again.since, again.until) == (picked.since, picked.until)


@pytest.mark.parametrize("typed", ["soon", "02:00-", "02:00-25:00", "2030-01-31 14:00 to 2030-01-31 13:00", "1e18"])
def test_span_that_cannot_be_read_says_so(typed: str) -> None:
    picked = pick_span("", "", "", "Europe/Berlin", NOON.timestamp(), typed=typed)
    assert picked.problem
    assert (picked.since, picked.until) == (None, None)
