"""The heartbeat: keeps a worker's leases, from a thread and a connection of its own.

So a handler that blocks the event loop costs no lease: its siblings keep theirs, and nothing starts twice. What a
thread cannot do is outlive its process: a job that goes on past its timeout and does not yield ends it here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from evsched.config import Config
from evsched.errors import StoreDown, StoreRefused
from evsched.events import Emit
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnects
from evsched.store.store import Store
from evsched.transport.backoff import reconnect_delay
from evsched.transport.senders import SyncSender


class Heartbeat(threading.Thread):
    """Renews the leases while the worker lives.

    The callables run in this thread. `busy()`: does the worker hold jobs? `lost(queue)`: its lease there had ended;
    it has a new one. `counted(queue, n)`: its list there holds n jobs. `stops(queue, ids)`: those of its jobs are
    to stop. `watch()` looks for a job that is stuck. `ended(error)`: the heartbeat has failed and renews no more.
    `emit(event)` tells which queue's lease Redis refuses to renew: that costs no other queue its lease.
    """

    def __init__(
        self,
        config: Config,
        worker: str,
        stores: Sequence[Store],
        *,
        emit: Emit,
        busy: Callable[[], bool],
        lost: Callable[[str], None],
        counted: Callable[[str, int], None],
        stops: Callable[[str, list[str]], None],
        watch: Callable[[SyncSender], None],
        ended: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="evsched-heartbeat", daemon=True)
        self._config = config
        self._worker = worker
        self._stores = stores
        self._busy = busy
        self._lost = lost
        self._counted = counted
        self._stops = stops
        self._watch = watch
        self._ended = ended
        self.pulse = Pulse("heartbeat")
        self._sender = SyncSender(config.url, reply_timeout=config.reply_timeout)
        self._stir = threading.Event()
        self._stopping = False
        self._attended = False
        self._short = False
        """The leases that were set last are the short ones, and have to be renewed soon."""
        self._reconnects = Reconnects("heartbeat", emit)
        self._refused = False
        """A lease was refused in the last pass, and is asked for again soon."""

    def attend(self) -> None:
        """Note that the worker holds jobs from now on: beat soon, even if it holds none any more by then.

        The start has made its lease the short one, and only a heartbeat makes it long again.
        """
        self._attended = True
        self._stir.set()

    def stop(self) -> None:
        """End the thread soon; its leases run on."""
        self._stopping = True
        self._stir.set()

    def run(self) -> None:
        """Renew the leases until stopped."""
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence leaves a worker without a lease
            self._ended(error)
        finally:
            self.pulse.rest()
            self._sender.close()

    def _run(self) -> None:
        failures = 0
        last = time.monotonic()
        while not self._stopping:
            rest = last + self._interval() - time.monotonic()
            self.pulse.expect(max(0.0, rest))
            if rest > 0 and self._stir.wait(rest):
                self._stir.clear()
                continue
            if self._stopping:
                break
            self._attended, self._short = False, self._busy()
            try:
                self._renew_all()
                failures = 0
                last = time.monotonic()
            except StoreDown:
                # The worker's own loop says that Redis is down.
                failures += 1
                if not self._stopping:
                    self._stir.wait(reconnect_delay(failures))
            self._watch(self._sender)

    def _renew_all(self) -> None:
        """Renew the lease of each queue, whatever Redis refuses of another.

        Raises:
            StoreDown
        """
        self._refused = False
        for store in self._stores:
            reconnect = self._reconnects.of(store.queue)
            try:
                self.step(store)
            except StoreRefused as error:
                self._refused = True
                reconnect.failed(error)
            else:
                reconnect.passed()

    def step(self, store: Store) -> None:
        """Renew one lease.

        Raises:
            StoreDown, StoreRefused
        """
        lease = self._config.lease if self._short else self._config.idle_lease
        kept, held, stops = self._sender.send(store.heartbeat(self._worker, lease))
        if not kept:
            self._lost(store.queue)
            self._sender.send(store.heartbeat(self._worker, lease, fresh=True))
        self._counted(store.queue, held)
        if stops:
            self._stops(store.queue, stops)

    def _interval(self) -> float:
        return self._config.heartbeat if self._attended or self._short or self._refused else self._config.idle_heartbeat
