"""The link from a worker process to its parent, the supervisor: it reports that it is ready, fetches, or is idle.

The parent decides how many processes there are. When the parent ends, its end of the link closes, and
`runtime/shutdown.py` stops the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

from evsched.config import Config
from evsched.errors import StoreError
from evsched.events import Event, ReadyDrained, ReadyLeft, Started, WorkerStarted
from evsched.process import reports
from evsched.process.reports import Behind, Fetching, Idle, Ready, Report
from evsched.worker.worker import Worker

_BEHIND_AFTER: Final = 1.0
"""Seconds for which jobs must stay in ready before the worker reports that it is behind: a burst passes sooner."""

_IDLE_LEAST: Final = 0.1
"""Seconds between two reports that the worker is idle, at least: the setting may be 0."""


class ChildLink:
    """Reports on a worker, to whose events it subscribes.

    It is idle when no job has started for the setting `scale_down_after`, counted from when Redis answered its first
    fetch: that may take long, and a job may wait meanwhile.
    """

    def __init__(self, link: socket.socket, config: Config, worker: Worker) -> None:
        self._link = link
        self._config = config
        self._worker = worker
        self._unanswered = set[str]()
        """Queues from which the first fetch is not answered yet."""
        self._behind = set[str]()
        """Queues in which the last fetch left ready jobs."""
        self._checking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._behind_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        link.setblocking(False)

    def on_event(self, event: Event) -> None:
        """Report to the parent, or set a timer to report later."""
        if isinstance(event, WorkerStarted):
            announced = {queue: self._worker.announced(queue) for queue in event.queues}
            self._unanswered.update(event.queues)
            self._report(Ready(event.worker, event.queues, self._config.url, announced))
        elif isinstance(event, ReadyLeft):
            self._note_answer(event.queue)
            self._behind.add(event.queue)
            if self._behind_timer is None:
                self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        elif isinstance(event, ReadyDrained):
            self._note_answer(event.queue)
            self._behind.discard(event.queue)
            if self._behind_timer is not None and not self._behind:
                self._behind_timer.cancel()
                self._behind_timer = None
        elif isinstance(event, Started):
            self._wait_for_idleness()

    def close(self) -> None:
        """Stop reporting."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._behind_timer is not None:
            self._behind_timer.cancel()
        if self._checking is not None:
            self._checking.cancel()

    def _note_answer(self, queue: str) -> None:
        if queue in self._unanswered:
            self._unanswered.discard(queue)
            self._wait_for_idleness()
            if not self._unanswered:
                self._report(Fetching())

    def _check_backlog(self) -> None:
        self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        self._checking = self._loop.create_task(self._report_behind())

    async def _report_behind(self) -> None:
        # A worker without free slots last fetched some time ago. Other workers may have fetched the jobs meanwhile.
        with contextlib.suppress(StoreError):
            if await self._worker.jobs_wait():
                self._report(Behind())

    def _wait_for_idleness(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        after = max(_IDLE_LEAST, self._config.scale_down_after)
        self._idle_timer = self._loop.call_later(after, self._report_idle)

    def _report_idle(self) -> None:
        if not self._worker.busy():
            self._report(Idle())
        self._wait_for_idleness()

    def _report(self, report: Report) -> None:
        with contextlib.suppress(OSError):  # the parent has ended
            self._link.send(reports.as_line(report))
