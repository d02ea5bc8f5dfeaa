"""New sequences for FUZZ_MINUTES minutes: half against each script, as each ACL user, and half against a whole system.

The seed is printed, and SEED repeats it. A sequence that breaks a rule is shrunk and saved in tests/fuzz/corpus.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any, Final

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.fuzz.arena import Arena
from tests.fuzz.hunt import hunt
from tests.support.cli import Cli
from tests.support.siege import siege

MINUTES: Final = float(os.environ.get("FUZZ_MINUTES") or 5)
SLOW: Final = 250_000
"""Microseconds that no script of the whole system may take. The machine may be busy; the arena measures again."""


def _first_seed() -> int:
    found = int(os.environ.get("EVSCHED_TEST_SEED") or secrets.randbelow(2**32))
    print(f"SEED={found}")
    return found


@pytest.mark.timeout(60 * MINUTES + 1800)
def test_each_user_against_each_script(server: EmbeddedRedis) -> None:
    with Arena(server.server) as arena:
        found = hunt(arena, _first_seed(), MINUTES / 2)
        print(f"{dict(arena.done)} on {server.server.kind}")
    assert not found, "\n".join(found)


@pytest.mark.timeout(60 * MINUTES + 1800)
def test_a_producer_against_a_whole_system(server: EmbeddedRedis, tmp_path: Path, queue: str, raw: Any) -> None:
    """A dispatcher with its janitor and a worker run beside it, and good jobs of the same queue all end."""
    start, until = _first_seed(), time.monotonic() + 30 * MINUTES
    cli = Cli(server.url, tmp_path)
    raw.config_set("slowlog-log-slower-than", SLOW)
    raw.slowlog_reset()
    rounds = 0
    with siege(cli, queue, raw, server.url) as besieged:
        while time.monotonic() < until:
            besieged.fuzz(100, largest=300_000, start=start + rounds)
            rounds += 1
    print(f"{100 * rounds} attacks on {server.server.kind}")
    assert not [entry for entry in raw.slowlog_get(100) if entry["command"].startswith(b"EVAL")]
