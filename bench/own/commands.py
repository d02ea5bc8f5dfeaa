"""How long commands take that people wait for."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from bench.figures import Figures, Table
from bench.scale import Scale
from bench.server import server

_TIMES: Final = 5
"""How often each command runs; the figure is the median."""

_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
"""A variable with which Python may have to compile every module each time, as it does for hardly any user."""

_COMMANDS: Final = ("--version", "--help", "queues")


def _run(word: str) -> Figures:
    with server() as where:
        command = [str(Path(sys.executable).with_name("evsched")), word]
        variables = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
        took = list[float]()
        for _ in range(1 + _TIMES):
            began = time.monotonic()
            subprocess.run(command, env={**variables, "EVSCHED_URL": where.url}, capture_output=True, check=True)
            took.append(time.monotonic() - began)
    return {"s": statistics.median(took[1:])}  # the first may compile modules


def table(scale: Scale) -> Table:
    """Return the table."""
    rows = {f"evsched {word}": partial(_run, word) for word in _COMMANDS}
    return Table("Commands, from their launch to their end", rows, scale.rounds)
