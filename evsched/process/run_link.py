"""The link between a worker and the process of an isolated run.

    process -> worker   here I am (with its address), ready, begun
    worker -> process   output (with the descriptors of stdout and stderr), go, stop

Datagrams on two sockets. The outcome does not come this way, but as the result of the call that started the run.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Generator
from typing import Final, Literal

from evsched.execution.progress_socket import SocketAddress, bound, path_of
from evsched.execution.run import StopReason

Order = Literal["go"] | StopReason
"""What the worker tells the process: begin, or stop for a reason."""

_ORDERS: Final[dict[bytes, Order]] = {b"go": "go", b"timeout": "timeout", b"cancelled": "cancelled", b"lost": "lost"}

_LONGEST: Final = 512
_KEY: Final = 16
_READY: Final = b"ready"
_BEGUN: Final = b"begun"
_OUTPUT: Final = b"output"


class WorkerEnd:
    """The worker's end of the link."""

    def __init__(self, own: socket.socket, name: str) -> None:
        self.address: Final = SocketAddress(name, secrets.token_bytes(_KEY))
        self.ready = asyncio.get_running_loop().create_future()
        """Done when the process is ready to run the handler."""
        self.begun = asyncio.Event()
        """The process calls the handler."""
        self._own = own
        self._process: str | bytes = ""

    def receive(self) -> None:
        """Receive one datagram. The first one has the address of the process, which then gets the worker's output."""
        with contextlib.suppress(BlockingIOError):
            datagram = self._own.recv(_LONGEST)
            if not secrets.compare_digest(datagram[:_KEY], self.address.key):
                return
            if datagram[_KEY:] == _BEGUN:
                self.begun.set()
            elif datagram[_KEY:] != _READY:
                self._process = path_of(datagram[_KEY:].decode("latin-1"))
                self._send_output()
            elif not self.ready.done():
                self.ready.set_result(None)

    def send(self, order: Order) -> bool:
        """Tell the process to begin or to stop; return False if it has ended."""
        try:
            self._own.sendto(self.address.key + order.encode(), self._process)
        except OSError:
            return False
        return True

    def _send_output(self) -> None:
        try:
            self._send_descriptors([1, 2])
        except OSError:  # a handler has closed them: there is no output
            with contextlib.suppress(OSError):
                self._send_descriptors([])

    def _send_descriptors(self, numbers: list[int]) -> None:
        # `socket.send_fds` ignores the address.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))] if numbers else []
        self._own.sendmsg([self.address.key, _OUTPUT], rights, 0, self._process)


@contextlib.contextmanager
def open_link() -> Generator[WorkerEnd]:
    """Open the worker's end, in the event loop."""
    with bound() as (own, name):
        end, loop = WorkerEnd(own, name), asyncio.get_running_loop()
        loop.add_reader(own, end.receive)
        try:
            yield end
        finally:
            loop.remove_reader(own)


class ProcessEnd:
    """The end of the process."""

    def __init__(self, own: socket.socket, address: SocketAddress) -> None:
        self._own = own
        self._key = address.key
        self._worker = path_of(address.address)

    def take_output(self, name: str) -> None:
        """Wait for the worker's stdout and stderr, and write to them from now on. `name`: that of our own socket."""
        self._own.setblocking(True)
        self._own.sendto(self._key + name.encode("latin-1"), self._worker)
        text, outputs = b"", list[int]()
        while text != self._key + _OUTPUT:
            text, outputs, _, _ = socket.recv_fds(self._own, _LONGEST, 2)
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
            os.close(output)
        self._own.setblocking(False)

    async def wait_to_begin(self, on_stop: Callable[[StopReason], None]) -> None:
        """Report that the process is ready, and wait until it may begin. `on_stop` is called when it must stop."""
        loop, may_begin = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def receive() -> None:
            with contextlib.suppress(BlockingIOError):
                datagram = self._own.recv(_LONGEST)
                order = _ORDERS.get(datagram[_KEY:])
                if order is None or not secrets.compare_digest(datagram[:_KEY], self._key):
                    return
                if order != "go":
                    on_stop(order)
                elif not may_begin.done():
                    may_begin.set_result(None)

        loop.add_reader(self._own, receive)
        self._own.sendto(self._key + _READY, self._worker)
        await may_begin

    def report_begun(self) -> None:
        """Report that the handler begins."""
        self._own.sendto(self._key + _BEGUN, self._worker)


@contextlib.contextmanager
def join_link(address: SocketAddress) -> Generator[ProcessEnd]:
    """Open the end of the process. From now on, the process writes to the worker's stdout and stderr."""
    with bound() as (own, name):
        end = ProcessEnd(own, address)
        end.take_output(name)
        yield end
