"""A watch of the event loop: a worker whose handlers block it gets no jobs that others could start.

A worker waits for messages also while its jobs run, since most of them wait for something. If a handler then computes
in the event loop, nothing reads the message that brings the next job, while the heartbeat keeps the lease. So a thread
asks the event loop for a sign of life, as long as the worker holds jobs and waits for a message; at other times it
sleeps. Without a sign, it ends the wait, and returns a job that came meanwhile to the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import Final

from evsched import events
from evsched.errors import StoreError
from evsched.runtime.loops import Runtime
from evsched.transport.senders import SyncSender
from evsched.worker.consumer import QueueConsumer

_PATIENCE: Final = 0.1
"""Seconds that the event loop may be blocked: shorter than a user notices, longer than a busy machine takes to let a
thread run. It is asked as often, too."""


class LoopWatch(threading.Thread):
    """Ends the waits of a worker whose event loop is blocked."""

    def __init__(self, runtime: Runtime, worker: str, consumers: Mapping[str, QueueConsumer]) -> None:
        super().__init__(name="evsched-loop-watch", daemon=True)
        self._worker = worker
        self._consumers = consumers
        self._call_in_loop = asyncio.get_running_loop().call_soon_threadsafe
        self._sender = SyncSender(runtime.config.url, reply_timeout=runtime.times.reply_timeout)
        self._wake = threading.Event()
        self._stopping = threading.Event()

    def attend(self) -> None:
        """Watch the event loop: the worker holds jobs, and waits for a message."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Watch until stopped."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            while not self._stopping.is_set():
                self._wake.wait()
                self._wake.clear()
                while not self._stopping.wait(_PATIENCE) and self._needed():
                    self._watch()
        self._sender.close()

    def _watch(self) -> None:
        alive = threading.Event()
        self._call_in_loop(alive.set)
        if not alive.wait(_PATIENCE):
            self._end_waits()
            while not (alive.wait(_PATIENCE) or self._stopping.is_set()):
                pass

    def _needed(self) -> bool:
        consumers = list(self._consumers.values())
        return any(one.fetcher.expects for one in consumers) and any(one.held.busy for one in consumers)

    def _end_waits(self) -> None:
        for consumer in list(self._consumers.values()):
            fetcher = consumer.fetcher
            if (ticket := fetcher.end_seat()) is not None:
                self._end_wait(consumer, ticket)
                self._call_in_loop(fetcher.seat_ended)
            elif fetcher.waiting:
                self._end_wait(consumer, 0)
                self._call_in_loop(fetcher.left_idle)

    def _end_wait(self, consumer: QueueConsumer, ticket: int) -> None:
        """Have Redis send no message for one queue. If it fails, the event loop finds a job that came, later."""
        store, worker, reason = consumer.served.store, self._worker, "a handler blocks the event loop"
        try:
            done = self._sender.send(store.requeue(worker, reason, ticket=ticket))
        except StoreError:
            return
        if done.ids:
            event = events.JobsRequeued(queue=store.queue, worker=worker, ids=done.ids, cause="busy", reason=reason)
            self._call_in_loop(consumer.served.runtime.emit, event)
