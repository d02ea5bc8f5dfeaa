"""A long siege with other commands each time. `EVSCHED_SEED=N` repeats one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.siege import siege

EXAMPLES = 1500
SLOW = 50_000
"""Microseconds that no script may take, by Redis's own measure."""


@pytest.mark.timeout(900)
def test_hostile_producer_input_costs_only_one_job(server: EmbeddedRedis, tmp_path: Path, queue: str, raw: Any) -> None:
    start = int(os.environ.get("EVSCHED_SEED") or secrets.randbelow(2**32))
    print(f"EVSCHED_SEED={start}")  # shown when it fails
    cli = Cli(server.url, tmp_path)
    cli.environment.pop("EVSCHED_SEED", None)  # it is not a setting of a service
    raw.config_set("slowlog-log-slower-than", SLOW)
    raw.slowlog_reset()
    with siege(cli, queue, raw, server.url) as besieged:
        besieged.fuzz(EXAMPLES, largest=300_000, start=start)
    assert not [entry for entry in raw.slowlog_get(100) if entry["command"].startswith(b"EVAL")]
