"""A whole system with a hostile producer: other jobs run, no process ends, all stay ready, and the doctor works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support import hostile
from tests.support.cli import Cli
from tests.support.siege import siege


@pytest.mark.extra
@pytest.mark.one_server
def test_each_known_attack_costs_only_one_job(server: EmbeddedRedis, tmp_path: Path, queue: str, raw: Any) -> None:
    with siege(Cli(server.url, tmp_path), queue, raw, server.url) as besieged:
        for write in hostile.WAYS.values():
            besieged.round(write(queue))


@pytest.mark.extra
@pytest.mark.one_server
def test_hostile_producer_input_costs_only_one_job(server: EmbeddedRedis, tmp_path: Path, queue: str, raw: Any) -> None:
    with siege(Cli(server.url, tmp_path), queue, raw, server.url) as besieged:
        besieged.fuzz(25, largest=20_000, start=None)
