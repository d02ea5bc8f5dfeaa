"""Write figures from bench/results into the pages that show them: `python -m bench pages`.

A page marks each place with a comment, which says what stands there:

    <!-- figures: scaling/burst -->                        a table of bench/results/scaling.json
    <!-- figures: growth/names; p99, ms; longest, ms -->   these columns of it
    <!-- figures: peers; sparse: p99, ms; instant: ... --> columns of several tables of one run, side by side
    <!-- figures: scaling -->                              when, where and by which command it was measured
    <!-- figures: peers+own/targets -->                    a calculated table, here from two runs
    <!-- end -->                                           ends each of them

    27,569<!-- attempts/attempts; attempts=1; starts/s --> a cell: its median, or with `; least` or `; most` that round
    3.1<!-- scaling/fleets; 4 shards; p99, ms; against one of each -->   the ratio to the cell of another row
    343<!-- memory; evsched; bytes/job -->                 a cell of the table that has the name of the run
    12<!-- crashes; points -->                             a single figure, or `date`, `commit`, `machine`, `command`
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Final

from msgspec import structs

from bench import targets
from bench.figures import Failed, joined, markdown, number, picked, spread
from bench.processes import CHECKOUT
from bench.readings import Pick, cell, ratio
from bench.result import RESULTS, Result, read
from bench.scaling import capacity

PAGES: Final = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]

_PLACE: Final = re.compile(r"<!-- figures: (.+?) -->\n((?!<!--).|\n)*<!-- end -->")
_FIGURE: Final = re.compile(r"(`[^`]*`|[\w.,?-]+)<!-- (.+?) -->")

_SOURCE: Final = "date", "commit", "machine", "command"
_PICKS: Final[dict[str, Pick]] = {"least": min, "most": max}


def filled(page: Path) -> str:
    """Return the text of a page with the figures of the results.

    Raises:
        Failed: the page names a figure that the results do not have, or has a comment that marks no place.
    """
    text = page.read_text(encoding="utf-8")

    def checked(make: Callable[[str], str], address: str) -> str:
        try:
            return make(address)
        except (Failed, LookupError, OSError, ValueError) as error:
            raise Failed(f"{page.name}: {address}: no such figure ({error})") from error

    def place(found: re.Match[str]) -> str:
        return f"<!-- figures: {found[1]} -->\n\n{checked(_block, found[1])}\n\n<!-- end -->"

    def figure(found: re.Match[str]) -> str:
        text = checked(_inline, found[2])
        return f"{f'`{text}`' if found[1][0] == '`' else text}<!-- {found[2]} -->"

    for rest in re.findall(r"<!-- .*", unmarked(page)):
        raise Failed(f"{page.name}: the comment marks no place: {rest}")
    return _FIGURE.sub(figure, _PLACE.sub(place, text))


def unmarked(page: Path) -> str:
    """Return the text of a page without the places of figures."""
    return _FIGURE.sub("", _PLACE.sub("", page.read_text(encoding="utf-8")))


def differing(*, write: bool) -> list[Path]:
    """Return the pages that differ from the results, and write them if you say so."""
    texts = {page: text for page in PAGES if (text := filled(page)) != page.read_text(encoding="utf-8")}
    for page, text in texts.items() if write else ():
        page.write_text(text, encoding="utf-8")
    return list(texts)


def _result(names: str) -> Result:
    """Return the result of one file, or one with the tables of several; of equal names, the first counts."""
    first, *others = (read(RESULTS / f"{name}.json") for name in names.split("+"))
    tables = dict(ChainMap(first.tables, *(other.tables for other in others)))
    return structs.replace(first, tables=tables) if others else first


def _block(address: str) -> str:
    """Return a table in Markdown, or where the figures of a run come from."""
    source, *columns = address.split("; ")
    run, _, name = source.partition("/")
    result = _result(run)
    if name in result.tables:
        return markdown(picked(result.tables[name], columns), spread).strip()
    if name:
        return {**capacity.tables(result), "targets": targets.table(result.tables)}[name]
    if columns:
        return markdown(picked(joined(result.tables, columns), columns), spread).strip()
    notes = "".join(f" {note}" for note in result.notes)
    text = (
        f"Measured on {result.date} at commit {result.commit} by `{result.command}`. Machine: {result.machine}.{notes}"
    )
    return fill(text, 120, break_on_hyphens=False)


def _inline(address: str) -> str:
    """Return a single figure."""
    source, row, *rest = address.split("; ")
    run, _, name = source.partition("/")
    result = _result(run)
    if not rest:
        return getattr(result, row) if row in _SOURCE else number(result.figures[row])
    column, how = rest[0], "".join(rest[1:])
    name = name or run
    reading = cell(name, row, column, _PICKS.get(how, median))
    if how.startswith("against "):
        reading = ratio(reading, cell(name, how.removeprefix("against "), column))
    elif how and how not in _PICKS:
        raise Failed(f"not least, most or against: {how}")
    if (value := reading(result.tables)) is None:
        raise Failed("no such cell")
    return number(value)
