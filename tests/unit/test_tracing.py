"""Tracing without Redis: any meta of a job, the names of servers and shards, and that OpenTelemetry is imported only if
you ask for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from evsched import App
from evsched.execution.executor import Executor
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import FetchedJob
from evsched.tracing import _links, _server, trace  # pyright: ignore[reportPrivateUsage]
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]

_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)


@pytest.mark.extra
@given(
    parent=st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.?\Z") | _JSON,
    state=st.text("a=,@1 \t\x00é") | _JSON,
)
def test_nothing_in_meta_can_fail_a_run(parent: Any, state: Any) -> None:
    assert len(_links({"traceparent": parent, "tracestate": state})) in (0, 1)


@pytest.mark.parametrize(
    ("url", "address", "port"),
    [
        ("redis://redis.example:6380/2", "redis.example", 6380),
        ("redis:///0", "localhost", 6379),
        ("unix:///run/redis.sock?db=1", "/run/redis.sock", None),
        ("redis+cluster://:secret@one:7000,two:7001", "one", 7000),
        ("redis+sentinel://one,two/primary/0", None, None),
    ],
)
def test_server_is_that_of_the_url(url: str, address: str | None, port: int | None) -> None:
    found = _server(url)
    assert (found.get("server.address"), found.get("server.port")) == (address, port)


async def test_span_of_a_run_has_its_shard() -> None:
    app, memory = App(queue="mail", shards=4), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace(app, provider)

    @app.task
    async def noop() -> None: ...

    async with Executor(app.program, 1) as executor:
        for queue in ("mail:3", "mail"):
            delivery = Delivery(queue, 1.0, 0.0, shard_of="mail")
            await executor.run(Run(FetchedJob("a", 1, 1.0, b'{"task":"noop"}'), delivery))
    spans = [span.attributes or {} for span in memory.get_finished_spans()]
    assert [span["messaging.destination.name"] for span in spans] == ["mail", "mail"]
    assert [span.get("messaging.destination.partition.id") for span in spans] == ["3", None]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.extra
def test_only_evsched_tracing_imports_opentelemetry() -> None:
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
        for path in sorted((ROOT / "evsched").rglob("*.py"))
    }
    # Where OpenTelemetry is installed redis-py imports it for its own metrics. So the loaded modules prove something
    # about evsched only if it is missing.
    ours = [name for name, text in sources.items() if re.search(r"^\s*(from|import) opentelemetry", text, re.MULTILINE)]
    assert ours == ["evsched.tracing"]
    apart = ("evsched.__main__", "evsched.tracing", "evsched.sentry", "evsched.testing")
    # The package mcp imports it, and Django's models need the settings of a site.
    every = [name for name in sources if name not in apart and not name.startswith(("evsched.mcp", "evsched.django"))]
    done = python(
        "import importlib, sys\nsys.modules['opentelemetry'] = None\n"
        f"for name in {every!r}: importlib.import_module(name)\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.', 'evsched.tracing'))])"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.extra
@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.trace"])
def test_missing_opentelemetry_is_reported_with_the_package_to_install(missing: str) -> None:
    done = python(
        f"import sys\nsys.modules[{missing!r}] = None\nfrom evsched import ConfigError\n"
        "try:\n import evsched.tracing\nexcept ConfigError as error:\n print(error)"
    )
    assert done.stdout == "tracing needs opentelemetry-api 1.38 or newer: pip install 'evsched[otel]'\n", done.stderr
