"""The pages, a file for each group of them. Each has functions that read the values of a template, and its `VIEWS`."""

from evsched.console.page import View
from evsched.console.views import act, jobs, now, past, queue, trail, workers

VIEWS: tuple[View, ...] = (*now.VIEWS, *queue.VIEWS, *jobs.VIEWS, *past.VIEWS, *trail.VIEWS, *workers.VIEWS, *act.VIEWS)
"""All pages."""
