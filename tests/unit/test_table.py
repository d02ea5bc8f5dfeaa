"""Which columns a terminal has room for, and where a line may break."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from evsched.cli.output import Column, Moment, fields, fit, table

SetWidth = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> SetWidth:
    """Return a function that makes stdout a terminal of a given width."""

    def set_width(columns: int) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("COLUMNS", str(columns))

    return set_width


@pytest.mark.parametrize(
    ("width", "kept"),
    [(34, [0, 1, 2]), (33, [0, 2]), (22, [0, 2]), (21, [0]), (10, [0]), (1, [0])],
)
def test_rank_zero_is_always_shown_and_others_by_rank_as_space_allows(width: int, kept: list[int]) -> None:
    assert fit([10, 10, 10], [0, 2, 1], width) == kept


COLUMNS = (Column("job"), Column("died", 2), Column("task", 3), Column("reason", 1, prose=True))
ROW = ("j" * 20, Moment(1.5e9), "send", "gone since 2026-01-02 03:04:05, as said")


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_times_are_shortened_before_a_column_is_left_out(
    terminal: SetWidth, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(98)
    table(COLUMNS, [ROW], "")
    assert ":40:00.000" in _lines(capsys)[1]
    terminal(97)
    table(COLUMNS, [ROW], "")
    header, first, *_ = _lines(capsys)
    assert header.split() == ["job", "died", "task", "reason"]
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d0:00  send", first)


def test_a_sentence_breaks_between_words_and_never_inside_a_time(
    terminal: SetWidth, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(48)
    table(COLUMNS, [ROW], "")
    assert _lines(capsys) == [
        "job                   reason",
        f"{'j' * 20}  gone since",
        f"{' ' * 22}2026-01-02 03:04:05, as",
        f"{' ' * 22}said",
        "(48 columns are too few for: died, task; --json",
        "shows all)",
    ]


def test_an_id_is_never_broken_or_cut(terminal: SetWidth, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(10)
    table(COLUMNS, [ROW], "")
    assert _lines(capsys)[:2] == ["job", "j" * 20]


def test_a_column_without_a_value_is_left_out_first(terminal: SetWidth, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(20)
    table((Column("a"), Column("b", 1), Column("c", 2)), [("x", "", "y" * 18), ("x", None, "y")], "")
    assert _lines(capsys)[0].split() == ["a", "b"]
    terminal(21)
    table((Column("a"), Column("b", 1), Column("c", 2)), [("x", "", "y" * 18)], "")
    assert _lines(capsys)[0].split() == ["a", "c"]


def test_wide_letters_keep_the_columns_aligned(terminal: SetWidth, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(80)
    table((Column("name"), Column("n")), [("日本", 1), ("ab", 22)], "")
    assert _lines(capsys) == ["name   n", "日本   1", "ab    22"]


def test_a_pipe_gets_every_column_whole_with_tabs_between(capsys: pytest.CaptureFixture[str]) -> None:
    table(COLUMNS, [(*ROW[:3], "a\tb\nc" + "x" * 5000), ("k", Moment(None), None, "")], "")
    header, first, second = _lines(capsys)
    assert header == "job\tdied\ttask\treason"
    assert first.split("\t")[3] == "a\\tb\\nc" + "x" * 5000
    assert second == "k\t\t\t"


def test_a_pipe_gets_the_header_of_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    table(COLUMNS, [], "no dead jobs")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("job\tdied\ttask\treason\n", "")


def test_a_terminal_gets_a_sentence_instead_of_an_empty_table(
    terminal: SetWidth, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(80)
    table(COLUMNS, [], "no dead jobs")
    assert _lines(capsys) == ["no dead jobs"]


def test_values_below_each_other_are_indented_as_far_as_the_longest_name(
    terminal: SetWidth, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(20)
    fields([("id", "x" * 30), ("reason", "one two three four")])
    assert _lines(capsys) == [f"id      {'x' * 30}", "reason  one two", "        three four"]
