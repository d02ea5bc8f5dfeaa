"""The benchmark itself: what the files of schedulers say, which rows a table has, and when a round begins."""

from __future__ import annotations

from bench.environments import SCHEDULERS, header, note


def test_each_other_scheduler_says_what_it_needs() -> None:
    assert all(header(name).dependencies for name in SCHEDULERS if not name.startswith("evsched"))


def test_the_note_of_celery_says_where_jobs_with_an_eta_wait() -> None:
    [text] = note("celery")
    assert text.startswith("celery ")
    assert "jobs with an ETA" in text
    assert "memory" in text
    assert "\n" not in text
