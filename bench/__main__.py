"""Run the benchmark: `make bench`, or `python -m bench NAME ...` for some of it.

Absolute figures hold for this machine only; ratios and counts hold elsewhere. docs/performance.md tells the method.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from bench import targets
from bench.environments import SCHEDULERS, note, programs, title
from bench.figures import Failed, Measured, markdown, measure, median, spread
from bench.groups import COMPARED, Groups, expanded, groups
from bench.result import Result, machine, read
from bench.scale import QUICK, Scale, described
from bench.scaling import capacity, page

_FROM_FILE: Final[Mapping[str, Callable[[Result], str]]] = {"targets": targets.table, "capacity": capacity.table}
"""What is calculated from the figures of a run."""


def _parser(every: Groups) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = "; ".join(f"{group}: {', '.join(tables)}" for group, tables in every.items())
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"tables or groups; without one, compare and designs. {names}. Or one of these alone, which measure "
        "nothing: targets prints the project's targets beside the figures of --json-file, of which --plots then draws; "
        "capacity calculates from those of scaling what larger rates need",
    )
    parser.add_argument(
        "--only", default="", metavar="A,B", help=f"compare these schedulers, of {', '.join(SCHEDULERS)}"
    )
    parser.add_argument("--quick", action="store_true", help="small counts and one round, to see that all works")
    parser.add_argument("--json", action="store_true", help="print all figures of all rounds as JSON")
    parser.add_argument("--json-file", type=Path, metavar="FILE", help="write them to this file, after each table")
    parser.add_argument("--page", type=Path, metavar="FILE", help="with capacity: write all tables into this page too")
    parser.add_argument("--plots", metavar="FOLDER", help="also draw plots, as SVG files in this folder")
    for name, (kind, words) in described().items():
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=words)
    return parser


def _schedulers(only: str) -> tuple[list[str], list[str]]:
    """Return the schedulers whose packages can be installed; what to know of them, and why the others cannot."""
    usable, notes = list[str](), list[str]()
    for name in only.split(",") if only else SCHEDULERS:
        try:
            programs(name)
            usable.append(name)
            notes += note(name)
        except Failed as error:
            notes.append(f"{title(name)}: {error}")
    return usable, notes


def _summary(measured: dict[str, Measured], schedulers: Sequence[str]) -> Measured:
    """Return one table of all that compare schedulers, which are its columns."""
    rows: dict[str, dict[str, list[float]]] = {}
    for name, table in measured.items():
        for column in table.columns():
            rows[f"{name}: {column}"] = {row: table.values[row].get(column, []) for row in schedulers}
    return Measured("All schedulers: medians", rows)


def _measure(arguments: argparse.Namespace, names: Sequence[str], scale: Scale) -> Result:
    """Measure tables, and print each unless JSON is wanted. Those that compare schedulers are summed up at the end."""
    compared = set(names) & set(groups([], scale)[COMPARED])
    schedulers, notes = _schedulers(arguments.only) if compared else ([], [])
    every = {name: table for tables in groups(schedulers, scale).values() for name, table in tables.items()}
    result = Result(machine(), scale, notes, {})
    for name in names:
        result.tables[name] = measure(every[name])
        if arguments.json_file:
            arguments.json_file.write_bytes(result.json())
        if not arguments.json:
            print(markdown(result.tables[name], spread), flush=True)
    if len(compared) > 1 and not arguments.json:
        tables = {name: table for name, table in result.tables.items() if name in compared}
        print(markdown(_summary(tables, [title(name) for name in schedulers]), median))
    return result


def main() -> None:
    """Run what the command line names."""
    parser = _parser(every := groups(["evsched"], Scale()))
    arguments = parser.parse_args()
    if len(arguments.names) == 1 and arguments.names[0] in _FROM_FILE:
        (name,) = arguments.names
        if arguments.json_file is None:
            parser.error(f"{name} needs --json-file")
        result = read(arguments.json_file)
        print(_FROM_FILE[name](result))
        if arguments.page:
            page.write(arguments.page, result)
        if arguments.plots:
            result.draw(arguments.plots)
        return
    unknown = [name for name in arguments.only.split(",") if name and name not in SCHEDULERS]
    if unknown:
        parser.error(f"no such scheduler: {', '.join(unknown)}")
    try:
        names = expanded(arguments.names, every)
    except KeyError as error:
        parser.error(f"no such table: {error.args[0]}")
    given = {name: value for name in Scale.__struct_fields__ if (value := getattr(arguments, name)) is not None}
    result = _measure(arguments, names, structs.replace(QUICK if arguments.quick else Scale(), **given))
    if arguments.plots:
        result.draw(arguments.plots)
    if arguments.json:
        sys.stdout.buffer.write(result.json())
    else:
        print("\n\n".join([*result.notes, f"Machine: {result.machine}"]))


if __name__ == "__main__":
    main()
