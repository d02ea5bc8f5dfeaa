"""What reaches a worker from its control channels, and from the heartbeat's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from evsched.events import Emit, Event
from evsched.store.announced import Announced
from evsched.transport.senders import SyncSender
from evsched.worker.consumer import QueueConsumer
from evsched.worker.control import Control
from evsched.worker.drain import Drain
from evsched.worker.queue_setup import QueueSetup
from evsched.worker.status_reporter import StatusReporter


class OnControl:
    """A ControlListener: passes messages on to the consumer, or to the status reporter."""

    def __init__(self, consumers: Mapping[str, QueueConsumer], status: StatusReporter) -> None:
        self._consumers = consumers
        self._status = status

    def cancelled(self, queue: str, job_id: str) -> None:
        """Stop the run of a job."""
        self._consumers[queue].cancel(job_id)

    def status_requested(self, queue: str, channel: str) -> None:
        """Report the worker's status to a channel."""
        self._status.requested(queue, channel)


class OnHeartbeat:
    """A HeartbeatListener, called in the heartbeat's thread.

    It passes the calls on to the event loop, except `busy`, `announced` and `end_if_stuck`: these must also work while
    a handler blocks the event loop.
    """

    def __init__(
        self, emit: Emit, consumers: Mapping[str, QueueConsumer], setup: QueueSetup, control: Control, drain: Drain
    ) -> None:
        self._emit = emit
        self._consumers = consumers
        self._setup = setup
        self._control = control
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Set to the error by which the heartbeat has ended."""

    def busy(self) -> bool:
        """Return whether the worker holds jobs."""
        return any(consumer.held.busy for consumer in list(self._consumers.values()))

    def lease_lost(self, queue: str) -> None:
        """Drop what is held there."""
        self._loop.call_soon_threadsafe(self._consumers[queue].lose)

    def announced(self, queue: str) -> Announced:
        """Return what the worker has written of its app."""
        return self._setup.announced(queue)

    def undeclared(self, queue: str) -> None:
        """Declare again."""
        self._loop.call_soon_threadsafe(self._setup.declare_again, queue)

    def counted(self, queue: str, count: int, *, waits: bool) -> None:
        """Compare the count with what is known."""
        self._loop.call_soon_threadsafe(partial(self._consumers[queue].counted, count, waits=waits))

    def cancelled(self, queue: str, ids: list[str]) -> None:
        """Stop these runs."""
        self._loop.call_soon_threadsafe(self._cancel, queue, ids)

    def _cancel(self, queue: str, ids: list[str]) -> None:
        if [job_id for job_id in ids if self._consumers[queue].cancel(job_id)]:
            self._control.rebuild()  # it should have brought these before

    def end_if_stuck(self, sender: SyncSender) -> None:
        """End the process, if a job outlived its timeout and the kill grace."""
        self._drain.end_if_stuck(sender)

    def failed(self, error: BaseException) -> None:
        """Have the worker end by this error."""
        self._loop.call_soon_threadsafe(self.failure.set_exception, error)

    def emit(self, event: Event) -> None:
        """Pass on an event."""
        self._loop.call_soon_threadsafe(self._emit, event)
