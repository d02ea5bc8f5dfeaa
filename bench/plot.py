# /// script
# dependencies = ["matplotlib==3.11.2"]
# ///
"""Draw plots of the benchmark's figures: `plot.py FOLDER`, with the output of `python -m bench --json` on stdin.

It runs in an environment of its own, which `python -m bench --plots FOLDER` makes.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "evsched"  # the same figures give the same file

from matplotlib import pyplot as plt  # noqa: E402 - after the choice of the backend

OURS, OTHERS = "tab:red", "tab:gray"


def _color(name: str, others: Any = OTHERS) -> Any:
    return OURS if name == "evsched" else others


def lateness(table: dict[str, Any]) -> Any:
    """Draw for each scheduler which share of the sparse jobs was at most so late."""
    figure, axes = plt.subplots(figsize=(8, 5))
    for n, (name, samples) in enumerate(table["samples"].items()):
        late = sorted(1e3 * one for one in samples["lateness, s"])
        shares = [(at + 1) / len(late) * 100 for at in range(len(late))]
        width = 2.5 if name == "evsched" else 1.2
        axes.plot(late, shares, drawstyle="steps-post", label=name, linewidth=width, color=_color(name, f"C{n}"))
    axes.set_xscale("symlog", linthresh=0.1)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="lateness from the due time to the function, ms (left of 0: early)", ylabel="% of the jobs")
    axes.set_title(table["title"])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def throughput(table: dict[str, Any]) -> Any:
    """Draw the jobs/s of each row as a bar, with the least and the greatest value."""
    rows = {name: row["jobs/s"] for name, row in table["values"].items() if row.get("jobs/s")}
    rows = dict(sorted(rows.items(), key=lambda row: statistics.median(row[1])))
    middles = [statistics.median(values) for values in rows.values()]
    spreads = [
        [middle - min(values) for middle, values in zip(middles, rows.values(), strict=True)],
        [max(values) - middle for middle, values in zip(middles, rows.values(), strict=True)],
    ]
    figure, axes = plt.subplots(figsize=(8, 5))
    bars = axes.barh(list(rows), middles, xerr=spreads, color=[_color(name) for name in rows], capsize=3)
    axes.bar_label(bars, [f" {middle:,.0f}" for middle in middles], fontsize="small")
    axes.set(xscale="log", xlabel="jobs/s (logarithmic)", title=table["title"])
    axes.margins(x=0.15)
    return figure


GROWTH = {
    "scheduled": ["p50, ms", "p99, ms", "dispatch of one job, Redis µs", "memory, bytes/job"],
    "overdue": ["first start, s", "drained after, s", "Redis µs/job", "PING p99, ms"],
    "queues": ["idle: commands/s sent", "idle: CPU %", "sparse: p50, ms", "sparse: p99, ms", "instant: Redis µs/job"],
    "workers": ["idle: commands/s sent", "idle: CPU %", "sparse: p50, ms", "sparse: p99, ms", "instant: Redis µs/job"],
    "dispatchers": [
        "idle: commands/s sent",
        "idle: CPU %",
        "sparse: p50, ms",
        "sparse: p99, ms",
        "sparse: commands/job",
    ],
    "payloads": ["CPU µs/job", "Redis µs/job"],
}
"""The figures that are costs, of the tables whose rows are sizes."""


def _number(row: str) -> float:
    return float(row.split()[0].replace(",", ""))


def _grown(axes: Any, name: str, table: dict[str, Any]) -> None:
    """Draw the costs of one table. All begin at 1; a cost that is proportional to the size follows the dashes."""
    rows = {_number(row): cells for row, cells in table["values"].items()}
    for column in GROWTH[name]:
        costs = {size: statistics.median(cells[column]) for size, cells in rows.items() if cells.get(column)}
        if min(rows) not in costs or min(costs.values()) <= 0:
            continue
        first, last = costs[min(costs)], costs[max(costs)]
        label = f"{column}: {first:,.3g} to {last:,.3g}"
        axes.plot(list(costs), [cost / first for cost in costs.values()], marker="o", label=label)
    axes.plot(
        list(rows),
        [size / min(rows) for size in rows],
        "--",
        color="lightgray",
        zorder=0,
        label="proportional to the size",
    )
    axes.set(xscale="log", yscale="log", title=table["title"], ylim=(0.2, 300))
    axes.set_xticks(list(rows), [f"{size:,.0f}" for size in rows])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", loc="upper left")


def growth(tables: dict[str, Any]) -> Any:
    """Draw how costs grow with size: a panel for each table, and in it a line for each figure."""
    found = {name: tables[name] for name in GROWTH if name in tables}
    lines = -(-len(found) // 2)
    figure, panels = plt.subplots(lines, 2, figsize=(12, 4 * lines), squeeze=False, layout="constrained")
    for axes in panels.flat[len(found) :]:
        axes.remove()
    for axes, (name, table) in zip(panels.flat, found.items(), strict=False):
        _grown(axes, name, table)
    figure.supylabel("cost, as a multiple of that at the smallest size")
    return figure


def plots(tables: dict[str, Any]) -> dict[str, Any]:
    """Return by their names the plots that these tables have figures for."""
    drawn = {name: draw(tables[name]) for name, draw in SINGLE.items() if name in tables}
    if GROWTH.keys() & tables.keys():
        drawn["growth"] = growth(tables)
    return drawn


SINGLE = {"sparse": lateness, "throughput": throughput}
"""The plots of one table."""


def main() -> None:
    """Draw what the figures have."""
    folder, tables = Path(sys.argv[1]), json.load(sys.stdin)["tables"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in plots(tables).items():
        plot.savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
        print(folder / f"{name}.svg", file=sys.stderr)


if __name__ == "__main__":
    main()
