"""Run the benchmark: `make bench`, or `python -m bench NAME ...` for some of it.

Absolute figures hold for this machine only; ratios and counts hold elsewhere. docs/performance.md tells the method.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench import comparison
from bench.alternatives import measure as alternatives
from bench.environments import FOLDER, note, programs, title
from bench.figures import Failed, Measured, Table, markdown, measure, median, spread
from bench.growth import tables as growth
from bench.own import commands, flood, killed, metrics, overtaking, policy, recurrences
from bench.scale import QUICK, Scale, described
from evsched.transport.server_binary import find_server

_SCHEDULERS: Final = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def _tables(schedulers: Sequence[str], scale: Scale) -> dict[str, dict[str, Table]]:
    """Return all tables by the group that a name on the command line may stand for."""
    return {
        "compare": comparison.tables(schedulers, scale),
        "designs": {"alternatives": alternatives.table(scale)},
        "growth": growth.tables(scale),
        "own": {
            "flood": flood.table(),
            **policy.tables(),
            **recurrences.tables(scale),
            "overtaking": overtaking.table(scale),
            "killed": killed.table(scale),
            "commands": commands.table(scale),
            **metrics.tables(3 * scale.jobs),
        },
    }


def _parser(groups: dict[str, dict[str, Table]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = "; ".join(f"{group}: {', '.join(tables)}" for group, tables in groups.items())
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"tables or groups; without one, compare and designs. {names}"
    )
    parser.add_argument(
        "--only", default="", metavar="A,B", help=f"compare these schedulers, of {', '.join(_SCHEDULERS)}"
    )
    parser.add_argument("--quick", action="store_true", help="small counts and one round, to see that all works")
    parser.add_argument("--json", action="store_true", help="print all figures of all rounds as JSON")
    parser.add_argument("--plots", metavar="FOLDER", help="also draw plots, as SVG files in this folder")
    for name, (kind, words) in described().items():
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=words)
    return parser


def _schedulers(only: str) -> tuple[list[str], list[str]]:
    """Return the schedulers whose packages can be installed; what to know of them, and why the others cannot."""
    usable, notes = list[str](), list[str]()
    for name in only.split(",") if only else _SCHEDULERS:
        try:
            programs(name)
            usable.append(name)
            notes += note(name)
        except Failed as error:
            notes.append(f"{title(name)}: {error}")
    return usable, notes


def _machine() -> str:
    """Describe the machine. A load before the run, which the benchmark has not caused, makes its figures worthless."""
    server = find_server()
    database = f"{server.kind} {'.'.join(map(str, server.version))}"
    load = f"load average {os.getloadavg()[0]:.1f} before the run"
    return f"{os.cpu_count()} cores, {platform.machine()}, {database}, Python {platform.python_version()}; {load}"


def _summary(measured: dict[str, Measured], schedulers: Sequence[str]) -> Measured:
    """Return one table of all that compare schedulers, which are its columns."""
    rows: dict[str, dict[str, list[float]]] = {}
    for name, table in measured.items():
        for column in table.columns():
            rows[f"{name}: {column}"] = {row: table.values[row].get(column, []) for row in schedulers}
    return Measured("All schedulers: medians", rows)


def main() -> None:
    """Run what the command line names."""
    parser = _parser(_tables(["evsched"], Scale()))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.only.split(",") if name and name not in _SCHEDULERS]
    if unknown:
        parser.error(f"no such scheduler: {', '.join(unknown)}")
    given = {name: value for name in Scale.__struct_fields__ if (value := getattr(arguments, name)) is not None}
    scale = msgspec.structs.replace(QUICK if arguments.quick else Scale(), **given)
    groups = _tables(["evsched"], scale)
    schedulers, notes = ["evsched"], list[str]()
    if any(name in groups["compare"] for name in _chosen(parser, groups, arguments.names)):
        schedulers, notes = _schedulers(arguments.only)
        groups = _tables(schedulers, scale)
    chosen = _chosen(parser, groups, arguments.names)
    machine, measured = _machine(), dict[str, Measured]()
    for name, table in chosen.items():
        measured[name] = measure(table)
        if not arguments.json:
            print(markdown(measured[name], spread), flush=True)
    compared = {name: one for name, one in measured.items() if name in groups["compare"]}
    if arguments.plots:
        _draw(arguments.plots, _json(machine, scale, notes, measured))
    if arguments.json:
        sys.stdout.buffer.write(_json(machine, scale, notes, measured))
        return
    if len(compared) > 1:
        print(markdown(_summary(compared, [title(name) for name in schedulers]), median))
    print("\n\n".join([*(notes if compared else ()), f"Machine: {machine}"]))


def _json(machine: str, scale: Scale, notes: list[str], measured: dict[str, Measured]) -> bytes:
    result = {"machine": machine, "scale": scale, "notes": notes, "tables": measured}
    return msgspec.json.format(msgspec.json.encode(result)) + b"\n"


def _draw(folder: str, figures: bytes) -> None:
    """Draw plots into a folder."""
    script = Path(__file__).with_name("plot.py")
    python = programs("plot", script.parent) / "python"
    subprocess.run([python, script, folder], input=figures, check=True)


def _chosen(
    parser: argparse.ArgumentParser, groups: dict[str, dict[str, Table]], names: Sequence[str]
) -> dict[str, Table]:
    """Return the tables that these names mean."""
    every = {name: table for tables in groups.values() for name, table in tables.items()}
    chosen = dict[str, Table]()
    for name in names or ("compare", "designs"):
        if name in groups:
            chosen |= groups[name]
        elif name in every:
            chosen[name] = every[name]
        else:
            parser.error(f"no such table: {name}")
    return chosen


if __name__ == "__main__":
    main()
