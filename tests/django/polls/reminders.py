"""A module that a worker does not import before its first job."""

from __future__ import annotations

from tests.django.polls.tasks import task


@task
def remind() -> str:
    return "reminded"
