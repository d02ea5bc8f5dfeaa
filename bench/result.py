"""What a run has measured: the tables and where they come from. It is kept as JSON, and plots are drawn from it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.environments import programs
from bench.figures import Measured
from bench.scale import Scale
from evsched.transport.embedded import find_server


class Result(Struct):
    """The tables by their names."""

    machine: str
    scale: Scale
    notes: list[str]
    """What a reader of the comparison should know."""
    tables: dict[str, Measured]

    def json(self) -> bytes:
        """Return all figures of all rounds."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"

    def draw(self, folder: str) -> None:
        """Draw plots into a folder."""
        script = Path(__file__).with_name("plot.py")
        python = programs("plot", script.parent) / "python"
        subprocess.run([python, script, folder], input=self.json(), check=True)


def read(path: Path) -> Result:
    """Return the result that `json` has written into a file."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


def machine() -> str:
    """Describe the machine. A load before the run, which the benchmark has not caused, makes its figures worthless."""
    server = find_server()
    database = f"{server.kind} {'.'.join(map(str, server.version))}"
    load = f"load average {os.getloadavg()[0]:.1f} before the run"
    return f"{os.cpu_count()} cores, {platform.machine()}, {database}, Python {platform.python_version()}; {load}"
