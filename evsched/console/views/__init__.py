"""The pages, a file for each group of them. Each has functions that read the values of a template, and its `VIEWS`."""

from evsched.console.page import View
from evsched.console.views import (
    agenda,
    batches,
    failures,
    graph,
    jobs,
    now,
    one_job,
    one_queue,
    past,
    recurrences,
    trail,
    workers,
)

VIEWS: tuple[View, ...] = (
    *now.VIEWS,
    *one_queue.VIEWS,
    *jobs.VIEWS,
    *one_job.VIEWS,
    *failures.VIEWS,
    *recurrences.VIEWS,
    *agenda.VIEWS,
    *batches.VIEWS,
    *graph.VIEWS,
    *workers.VIEWS,
    *past.VIEWS,
    *trail.VIEWS,
)
"""All pages."""
