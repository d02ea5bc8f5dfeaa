"""Handles of jobs: their representation, and how one is made for a known id."""

from __future__ import annotations

import pytest
from rich.pretty import pretty_repr

from evsched import App, ConfigError


def test_a_handle_shows_its_id_and_queue_alone() -> None:
    app = App("redis://localhost:1/0", queue="mail")
    job = app.job("welcome-42")
    assert repr(job) == "Job(id='welcome-42', queue='mail')"
    assert pretty_repr(job) == repr(job)
    with app.sync() as client:
        assert repr(client.job("a", queue="other")) == "SyncJob(id='a', queue='other')"


def test_a_handle_needs_a_valid_queue() -> None:
    app = App("redis://localhost:1/0")
    with pytest.raises(ConfigError, match="queue"):
        app.job("a", queue="a b")
