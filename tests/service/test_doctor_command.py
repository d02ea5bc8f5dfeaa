"""The command `evsched doctor`: its output, its exit codes, and a Redis that it cannot use."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli


def test_doctor_repairs_its_findings_and_then_finds_nothing(cli: Cli, queue: str, raw: Any, store: Store) -> None:
    of = ("doctor", "--queue", queue)
    raw.set(f"evsched:{{{queue}}}:arrival", 1)  # a queue that has been used
    done = cli.run(*of)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing found; 0 records and entries of 1 queue checked" in done.stdout
    raw.hset(f"evsched:{{{queue}}}:job:lost", mapping={"payload": '{"task":"t"}', "due": "5.5"})
    done = cli.run(*of)
    assert (done.returncode, done.stderr) == (1, "")
    assert "fault   orphan: a job that has not ended is in no place" in done.stdout
    assert f"queue {queue}, job lost" in done.stdout
    done = cli.run(*of, "--repair", "--json")
    assert done.returncode == 1
    assert '"repaired": true' in done.stdout
    assert raw.zscore(f"evsched:{{{queue}}}:schedule", "lost") == 5.5
    assert "orphan" not in cli.run(*of).stdout


def test_an_unknown_queue_is_an_error_beside_the_checks_of_redis(cli: Cli, queue: str, raw: Any) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"later": 4e9})
    raw.hset(f"evsched:{{{queue}}}:job:later", "payload", '{"task":"t"}')
    done = cli.run("doctor", "--queue", queue, "--queue", f"{queue}x", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = {one["check"]: one["what"] for one in json.loads(done.stdout) if one["level"] != "info"}
    assert found.keys() == {"no-dispatcher", "no-queue"}
    assert found["no-queue"] == (f"queue {queue}x has no jobs, no workers and no recurrences: did you mean {queue}?")


def test_the_command_refuses_an_unknown_role_and_fails_without_a_redis(cli: Cli) -> None:
    done = cli.run("doctor", "--url", "redis://127.0.0.1:1/0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert cli.run("doctor", "--role", "cook").returncode == 2
    assert cli.run("doctor", "--queue", "a b").returncode == 2


@pytest.mark.extra
def test_a_node_of_a_cluster_is_named_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        bus = free.getsockname()[1]
    with EmbeddedRedis(port=0, cluster_enabled="yes", cluster_port=str(bus)) as server:
        cli = Cli(server.url, tmp_path)
        for command in (("doctor",), ("dispatcher",), ("queues", "--url", f"{server.url}?db=1")):
            done = cli.run(*command)
            assert (done.returncode, "Traceback" in done.stderr) == (1, False)
            assert "redis+cluster://HOST:PORT,HOST:PORT" in done.stdout + done.stderr, command
            assert "EVAL" not in done.stdout


@pytest.mark.parametrize("password", ["", "wrong"])
def test_a_refused_connection_is_reported_in_one_line(tmp_path: Path, password: str) -> None:
    with EmbeddedRedis(requirepass="secret") as server:
        url = server.url.replace("unix://", f"unix://default:{password}@" if password else "unix://")
        done = Cli(url, tmp_path).run("doctor")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert ("invalid username-password" if password else "uthentication required") in done.stderr
    assert "wrong@" not in done.stderr
