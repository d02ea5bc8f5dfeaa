"""What has run: a file to which each job of the programs adds a line, outside of any scheduler.

Only the standard library is imported here, since this module is used in the environments of all schedulers.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

VARIABLE = "BENCH_RUNS"
"""The environment variable with the path of the file."""


def note(name: str) -> None:
    """Note that a job runs now."""
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:  # one short write: lines do not mix
        file.write(f"{name}\n")


def count(path: Path) -> Counter[str]:
    """Return how often each job has run."""
    return Counter(path.read_text(encoding="utf-8").splitlines())
