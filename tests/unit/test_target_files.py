"""The files of a worker that sends requests to many hosts: when there are few, idle connections are not kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evsched.targets import session as sessions
from tests.support.endpoint import Endpoint
from tests.support.outbound import Tls, new_session, send
from tests.support.patience import PATIENCE


@pytest.mark.parametrize("with_tls", [False, True])
async def test_connections_beyond_half_of_the_file_limit_are_not_kept(
    tls: Tls, monkeypatch: pytest.MonkeyPatch, with_tls: bool
) -> None:
    monkeypatch.setattr(sessions, "_KEPT", 3600.0)
    monkeypatch.setattr(sessions, "_allowed_files", lambda: 2)
    async with Endpoint(tls=tls() if with_tls else None) as endpoint, new_session() as session:
        for host in ("shop.test", "127.0.0.1", "127.0.0.1", "shop.test"):
            assert await send(session, endpoint.url.replace("127.0.0.1", host)) == 200
        assert endpoint.connections == 3


@pytest.mark.extra
@pytest.mark.parametrize(("before", "after"), [("(256, 4096)", "(4096, 4096)"), ("(256, 256)", "(256, 256)")])
def test_a_worker_raises_its_limit(before: str, after: str) -> None:
    program = f"""
import resource
from evsched.targets.session import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, {before})
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == after
