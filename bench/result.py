"""What a run has measured, and where its figures come from. It is kept as JSON: pages show it, and plots are drawn.

The results that pages show lie in bench/results, one file for each run, without samples. Each cell has the values of
all rounds. In runs before 24 November 2026, which were copied from the pages, it has the median, the least and the
greatest value, and the commit is the one that brought the figures to the page.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from bench.environments import programs
from bench.figures import Measured
from bench.processes import CHECKOUT
from bench.scale import Scale
from evsched.transport.embedded import find_server

RESULTS: Final = Path(__file__).with_name("results")


class Result(Struct, omit_defaults=True, kw_only=True):
    """The tables and the single figures of one run, by their names."""

    date: str
    commit: str
    machine: str
    command: str
    """Repeats the run."""
    scale: Scale = Scale()
    notes: list[str] = []
    """What a reader of the figures should know."""
    tables: dict[str, Measured] = {}
    figures: dict[str, float] = {}

    def json(self) -> bytes:
        """Return all figures of all rounds, those of a cell on one line."""
        text = msgspec.json.format(msgspec.json.encode(self)).decode()
        return re.sub(r"\[\s+([^]\[{}\"]+?)\s+]", lambda cell: f"[{' '.join(cell[1].split())}]", text).encode() + b"\n"

    def save(self, name: str) -> None:
        """Keep the result for the pages, with more digits than they show."""
        tables = {name: structs.replace(table, samples={}) for name, table in self.tables.items()}
        text = structs.replace(self, tables=tables).json().decode()
        short = re.sub(r"\d+\.\d{5,}(e-\d+)?", lambda figure: f"{float(figure[0]):.7g}", text)
        (RESULTS / f"{name}.json").write_text(short, encoding="utf-8")

    def draw(self, folder: str) -> None:
        """Draw plots into a folder."""
        script = Path(__file__).with_name("plot.py")
        python = programs("plot", script.parent) / "python"
        subprocess.run([python, script, folder], input=self.json(), check=True)


def begun(command: str, scale: Scale | None = None) -> Result:
    """Return an empty result of this day, checkout and machine; call it first, for it says how busy the machine is."""
    return Result(
        date=time.strftime("%Y-%m-%d"), commit=_commit(), machine=_machine(), command=command, scale=scale or Scale()
    )


def read(path: Path) -> Result:
    """Return the result that `json` has written into a file."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


def _commit() -> str:
    """Return the last commit that changed what is measured, and whether the checkout differs from it."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", "evsched", "lua"]
        return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout.strip()

    return git("log", "-1", "--format=%h", "--abbrev=8") + " with changes" * bool(git("status", "--porcelain"))


def _machine() -> str:
    """Describe the machine. A load before the run, which the benchmark has not caused, makes its figures worthless."""
    server = find_server()
    database = f"{server.kind} {'.'.join(map(str, server.version))}"
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({model[1].strip() if model else platform.processor()}), {platform.machine()}, "
        f"{memory:.0f} GiB, {database}, Python {platform.python_version()}; "
        f"load average {os.getloadavg()[0]:.1f} before the run"
    )
