"""Tracing without Redis: no meta of a job can fail its run, and OpenTelemetry is imported only if you ask for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsched.tracing import _links  # pyright: ignore[reportPrivateUsage]
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
    every = [name for name in sources if name not in ("evsched.__main__", "evsched.tracing", "evsched.testing")]
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
    assert (
        done.stdout == "tracing needs opentelemetry-api 1.30 or newer: pip install '.[otel]' in a checkout of evsched\n"
    ), done.stderr
