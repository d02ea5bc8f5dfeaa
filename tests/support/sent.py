"""The commands that programs send to a Redis, without those that scripts run there."""

from __future__ import annotations

import secrets
import threading
from types import TracebackType
from typing import Any, Self

from tests.support.patience import PATIENCE
from tests.support.plain import plain_client


class Sent:
    """Hears of all commands while it is open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines = list[str]()
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._client, self._listener = plain_client(self._url), plain_client(self._url)
        self._monitor: Any = self._listener.monitor().__enter__()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.commands()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.execute_command("ECHO", "the end")
        self._thread.join(PATIENCE)
        self._monitor.__exit__(kind, error, trace)
        self._client.close()
        self._listener.close()

    def _listen(self) -> None:
        line = ""
        while line != "ECHO the end":
            found = self._monitor.next_command()
            line = found["command"]
            if found["client_type"] != "lua":
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()

    def commands(self) -> list[str]:
        """Return the commands that were sent since the last call."""
        mark = f"ECHO {secrets.token_hex(8)}"
        self._client.execute_command(*mark.split())
        with self._changed:
            assert self._changed.wait_for(lambda: mark in self._lines, PATIENCE)
            found, self._lines = self._lines[: self._lines.index(mark)], self._lines[self._lines.index(mark) + 1 :]
        return found
