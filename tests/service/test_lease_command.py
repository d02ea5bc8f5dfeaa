"""`evsched lease` shows and changes the lease, and a service says that its settings have another one."""

from __future__ import annotations

from typing import Any

import pytest

from evsched import keys
from tests.support.cli import Cli


def test_lease_is_shown_and_changed(cli: Cli, raw: Any) -> None:
    assert cli.run("lease").stdout == (
        "no valid lease is stored: the next process that starts stores its --lease, or 14 s\n"
    )
    assert cli.json("lease") == {"lease": 14}
    assert not raw.exists(keys.LEASE), "to look changes nothing"
    assert cli.run("lease", "20").stdout == "the lease is 20 s\n"
    assert cli.run("lease", "30").stdout == "the lease is 30 s\n"
    assert cli.json("lease") == {"lease": 30}
    raw.delete(keys.LEASE)
    raw.rpush(keys.LEASE, "no", "string")
    assert cli.run("lease", "40").stdout == "the lease is 40 s\n"


@pytest.mark.parametrize("value", ["0", "nan", "100000", "soon"])
def test_lease_that_is_not_valid_is_refused(cli: Cli, raw: Any, value: str) -> None:
    done = cli.run("lease", value)
    assert (done.returncode, done.stderr.count("\n"), raw.exists(keys.LEASE)) == (2, 1, 0)


def test_service_says_that_redis_has_another_lease_than_its_settings(cli: Cli, queue: str, raw: Any) -> None:
    raw.set(keys.LEASE, "20")
    (cli.folder / "tasks.py").write_text(f"from evsched import App\n\napp = App(queue={queue!r})\n")
    done = cli.process("worker", "tasks:app", "--burst", "--lease", "30")
    assert done.returncode == 0
    assert "EVSCHED_LEASE is 30, but all use 20 s, as Redis has: run `evsched lease 30`, or unset it" in done.stderr
    assert "EVSCHED_LEASE" not in cli.process("worker", "tasks:app", "--burst", "--lease", "20").stderr
    assert raw.get(keys.LEASE) == b"20"
