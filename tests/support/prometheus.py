"""A real Prometheus for a test, with its own folder and port: it scrapes the given targets and is queried over HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from tests.support.patience import PATIENCE
from tests.support.web import get

PROGRAM = shutil.which("prometheus")


class Prometheus:
    """Scrapes `targets`, job -> host:port, each second."""

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._child: subprocess.Popen[str] | None = None

    async def __aenter__(self) -> Self:
        assert PROGRAM is not None
        self._child = subprocess.Popen(
            [
                PROGRAM,
                f"--config.file={self._folder}/prometheus.yml",
                f"--storage.tsdb.path={self._folder}/data",
                f"--web.listen-address={self.address}",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._child.stderr is not None
        for line in self._child.stderr:
            if "Server is ready" in line:
                break
        else:
            raise AssertionError("prometheus ended")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        self._child.terminate()
        self._child.communicate(timeout=PATIENCE)

    async def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its HTTP API."""
        status, text = await get(f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}")
        answer = json.loads(text)
        assert (status, answer["status"]) == (200, "success"), answer
        return answer["data"]

    async def value(self, expr: str) -> float | None:
        """Return the value of an expression now; None when it is empty."""
        found = (await self.ask("query", query=expr))["result"]
        return float(found[0]["value"][1]) if found else None

    async def until(self, expr: str, limit: float = 60) -> None:
        """Wait until an expression is not empty. Prometheus does not notify anybody, so poll it, twice a scrape."""
        until = time.monotonic() + limit
        while await self.value(expr) is None:
            assert time.monotonic() < until, f"{expr} stayed empty"
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.5)
