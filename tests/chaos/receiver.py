"""An endpoint that handles each idempotency key once: `python -m tests.chaos.receiver` prints its port.

It answers after 20 ms. Among requests seen for the first time, one in forty is answered 503 before it is
handled, and one of forty is handled and never answered, so its sender must try again. GET /report tells what arrived.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from typing import Any

import h11

DELAY = 0.02
"""Seconds until an answer."""


class Report:
    """What has arrived: by idempotency key, the time of each arrival and how often it was handled."""

    def __init__(self) -> None:
        self.arrivals = dict[str, list[float]]()
        self.handled = dict[str, int]()

    def take(self, key: str) -> int:
        """Note a request; return the status of its answer, 0 = it gets none."""
        arrivals = self.arrivals.setdefault(key, [])
        arrivals.append(time.time())
        lot = zlib.crc32(key.encode()) % 40 if len(arrivals) == 1 else -1
        if lot == 0:
            return 503
        if key not in self.handled:
            self.handled[key] = 0
            self.handled[key] += 1
        return 0 if lot == 1 else 200


class _Connection(asyncio.Protocol):
    def __init__(self, report: Report) -> None:
        self._report = report
        self._h11 = h11.Connection(h11.SERVER)
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._h11.receive_data(data)
        self._read()

    def _read(self) -> None:
        while (event := self._h11.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                self._request = event
            elif isinstance(event, h11.EndOfMessage):
                self._answer(self._request)
            elif isinstance(event, h11.ConnectionClosed):
                return

    def _answer(self, request: h11.Request) -> None:
        if request.target == b"/report":
            text = json.dumps({"arrivals": self._report.arrivals, "handled": self._report.handled})
            self._send(200, text.encode())
            return
        key = next(value for name, value in request.headers if name == b"idempotency-key")
        if status := self._report.take(key.decode()):
            asyncio.get_running_loop().call_later(DELAY, self._send, status, b"ok")

    def _send(self, status: int, body: bytes) -> None:
        if self._transport.is_closing():
            return
        head = h11.Response(status_code=status, headers=[("content-length", f"{len(body)}")])
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self._transport.write(self._h11.send(event) or b"")
        if self._h11.our_state is not h11.DONE:
            self._transport.close()
            return
        self._h11.start_next_cycle()
        self._read()


async def _main() -> None:
    report = Report()
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(report), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
