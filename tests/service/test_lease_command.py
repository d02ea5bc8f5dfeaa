"""`evsched lease` shows and changes the lease, and a service says that its settings have another one."""

from __future__ import annotations

from typing import Any

import pytest

from evsched import keys
from tests.support.cli import Cli


def test_lease_is_shown_and_changed(cli: Cli, raw: Any) -> None:
    assert cli.run("lease").stdout == "the lease is 14 s\n"
    assert not raw.exists(keys.LEASE), "to look changes nothing"
    assert cli.run("lease", "20").stdout == "the lease is 20 s\n"
    assert cli.run("lease", "30").stdout == "the lease is 30 s; the change from 20 s settles in 15m 00s\n"
    found = cli.json("lease")
    assert (found["lease"], found["before"], found["settles_in"] > 600) == (30, 20, True)
    assert cli.run("lease", "30").returncode == 0, "nothing changes"


def test_second_change_has_to_wait_for_the_first(cli: Cli, raw: Any) -> None:
    cli.run("lease", "20")
    cli.run("lease", "30")
    before = raw.get(keys.LEASE)
    done = cli.run("lease", "40")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "some processes may still have the lease before the last change: repeat the command in 1" in done.stderr
    assert raw.get(keys.LEASE) == before
    raw.set(keys.LEASE, "30 20 1000")
    assert cli.json("lease") == {"lease": 30, "before": None, "settles_in": 0}
    assert cli.run("lease", "40").returncode == 0


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
