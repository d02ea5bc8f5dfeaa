"""The fixture of tests that run commands: each has a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path) -> Cli:
    """The commands against the test's server; a module may add files and settings in a fixture of the same name."""
    return Cli(server.url, tmp_path)
