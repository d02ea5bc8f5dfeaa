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


PLOTS = {"sparse": lateness, "throughput": throughput}


def main() -> None:
    """Draw what the figures have."""
    folder, tables = Path(sys.argv[1]), json.load(sys.stdin)["tables"]
    for name, draw in PLOTS.items():
        if name in tables:
            draw(tables[name]).savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
            print(folder / f"{name}.svg", file=sys.stderr)


if __name__ == "__main__":
    main()
