"""Run a program to its end, and show what it printed if it fails."""

from __future__ import annotations

import subprocess
from pathlib import Path


def run(*words: str | Path, cwd: Path, allowed: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode in allowed, done.stdout + done.stderr
    return done.stdout
