"""Run the benchmark: `make bench`, or `python -m bench NAME ...` for some of it.

Absolute figures hold for this machine only; ratios and counts hold elsewhere. docs/performance.md tells the method.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from bench import pages, targets
from bench.environments import SCHEDULERS, note, programs
from bench.figures import Failed, Measured, joined, markdown, measure, median, spread
from bench.groups import COMPARED, Groups, expanded, groups
from bench.processes import CHECKOUT
from bench.quiet import QUIET, settled
from bench.result import Result, begun, read
from bench.scale import QUICK, Scale, described
from bench.scaling import capacity


def _parser(every: Groups) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = "; ".join(f"{group}: {', '.join(tables)}" for group, tables in every.items())
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"tables or groups; without one, compare and designs. {names}. Or one of these alone, which measure "
        "nothing: targets prints the project's targets beside the figures of --json-file, of which --plots then draws; "
        "pages writes the figures of bench/results into the pages that show them",
    )
    parser.add_argument(
        "--only", default="", metavar="A,B", help=f"compare these schedulers, of {', '.join(SCHEDULERS)}"
    )
    parser.add_argument("--row", default="", metavar="TEXT", help="measure only the rows whose title has this text")
    parser.add_argument("--quick", action="store_true", help="small counts and one round, to see that all works")
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help=f"before each round, wait until the load average is below {QUIET}, for at most so many minutes; the load "
        "before each round stands below each table",
    )
    parser.add_argument("--json", action="store_true", help="print all figures of all rounds as JSON")
    parser.add_argument("--json-file", type=Path, metavar="FILE", help="write them to this file, after each table")
    parser.add_argument(
        "--save",
        metavar="NAME",
        help="keep them in bench/results/NAME.json, and write them into the pages that show them",
    )
    parser.add_argument("--check", action="store_true", help="with pages: only say which pages differ from the results")
    parser.add_argument("--plots", metavar="FOLDER", help="also draw plots, as SVG files in this folder")
    for name, (kind, words) in described().items():
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=words)
    return parser


def _schedulers(only: str) -> tuple[list[str], dict[str, str]]:
    """Return the schedulers that are installed or have just been, and for each of the others why it is not."""
    usable, missing = list[str](), dict[str, str]()
    for name in only.split(",") if only else SCHEDULERS:
        try:
            programs(name)
            usable.append(name)
        except Failed as error:
            missing[name] = str(error)
    return usable, missing


def _measure(arguments: argparse.Namespace, names: Sequence[str], scale: Scale) -> Result:
    """Measure tables, and print each unless JSON is wanted. Those that compare schedulers are summed up at the end."""
    compared = set(names) & set(groups([], scale)[COMPARED])
    schedulers, missing = _schedulers(arguments.only) if compared else ([], {})
    every = {name: table for tables in groups(schedulers, scale, missing).values() for name, table in tables.items()}
    result = begun(f"python -m bench {shlex.join(sys.argv[1:])}", scale)
    result.notes += [text for name in schedulers for text in note(name)]
    for name in names:
        rows = {title: row for title, row in every[name].rows.items() if arguments.row in title}
        result.tables[name] = measure(structs.replace(every[name], rows=rows), partial(settled, arguments.quiet))
        if arguments.json_file:
            arguments.json_file.write_bytes(result.json())
        if not arguments.json:
            print(markdown(result.tables[name], spread), flush=True)
    if "burst" in names:
        result.tables["ratios"] = capacity.ratios(result.tables["burst"])
    if len(compared) > 1 and not arguments.json:
        summary = joined({name: table for name, table in result.tables.items() if name in compared})
        rows = {column: {row: cells[column] for row, cells in summary.values.items()} for column in summary.columns()}
        print(markdown(Measured("All schedulers: medians", rows), median))
    return result


def _pages(*, check: bool) -> None:
    """Write the figures of the results into the pages, or exit with 1 if a page differs from them."""
    try:
        found = pages.differing(write=not check)
    except Failed as error:
        sys.exit(str(error))
    for page in found:
        print(page.relative_to(CHECKOUT), "differs from bench/results" if check else "written", file=sys.stderr)
    if check and found:
        sys.exit(1)


def main() -> None:
    """Run what the command line names."""
    parser = _parser(every := groups(["evsched"], Scale()))
    arguments = parser.parse_args()
    if arguments.names == ["targets"]:
        if arguments.json_file is None:
            parser.error("targets needs --json-file")
        result = read(arguments.json_file)
        notes = [f"Machine: {result.machine}"]
        if structs.replace(result.scale, rounds=Scale().rounds) != Scale():
            notes.insert(0, "The targets are for other counts than those of this run.")
        print("\n\n".join([targets.table(result.tables), *notes]))
        if arguments.plots:
            result.draw(arguments.plots)
        return
    if arguments.names == ["pages"]:
        _pages(check=arguments.check)
        return
    if arguments.save and (arguments.quick or arguments.row):
        parser.error("figures of --quick mean little, and those of --row are not all: they are not saved")
    unknown = [name for name in arguments.only.split(",") if name and name not in SCHEDULERS]
    if unknown:
        parser.error(f"no such scheduler: {', '.join(unknown)}")
    try:
        names = expanded(arguments.names, every)
    except KeyError as error:
        parser.error(f"no such table: {error.args[0]}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an interruption, which ends what was started
    given = {name: value for name in Scale.__struct_fields__ if (value := getattr(arguments, name)) is not None}
    result = _measure(arguments, names, structs.replace(QUICK if arguments.quick else Scale(), **given))
    if arguments.save:
        result.save(arguments.save)
        _pages(check=False)
    if arguments.plots:
        result.draw(arguments.plots)
    if arguments.json:
        sys.stdout.buffer.write(result.json())
    else:
        print("\n\n".join([*result.notes, f"Machine: {result.machine}"]))


if __name__ == "__main__":
    main()
