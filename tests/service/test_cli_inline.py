"""The commands about one job, given an inline job by its whole member."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import pytest

from evsched.client.client import SyncClient
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli

MEMBER = '{"task":"t","args":["é"]}'
OWN = hashlib.sha1(MEMBER.encode()).hexdigest()
NAMED = '{"task":"t","id":"x"}'

Send = Callable[[Call[Any]], Any]


@pytest.fixture
def send(server: EmbeddedRedis) -> Generator[Send]:
    with closing(SyncClient(server.url)) as client:
        yield client.send


@pytest.fixture
def store(send: Send, queue: str) -> Store:
    """The calls of the queue, of which a worker is known."""
    store = Store(queue)
    send(store.heartbeat("w", 1e6, busy=1e6, fresh=True))
    return store


def dispatch(send: Send, store: Store, raw: Any, *members: str) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", dict.fromkeys(members, 1))
    send(store.dispatch(limit=9, cap=9999))


COMMANDS = {
    "show": ("place", "ready"),
    "explain": ("ready",),
    "cancel": ("cancelled, it was in ready",),
    "reschedule": ("is due",),
    "run-now": ("is due",),
    "edit": ("priority changed",),
}
MORE = {"reschedule": ("--in", "1h"), "edit": ("--priority", "7")}


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("member", "job"), [(MEMBER, OWN), (NAMED, "x")], ids=["own id", "named"])
def test_inline_job_that_was_due_is_found_by_its_member(
    cli: Cli, send: Send, store: Store, raw: Any, command: str, member: str, job: str, is_named: bool
) -> None:
    dispatch(send, store, raw, member)
    of = ("--queue", store.queue) if is_named else ()
    done = cli.run(command, member, *MORE.get(command, ()), *of)
    assert (done.returncode, done.stderr) == (0, f"evsched: the inline job was due: its id is {job}\n")
    assert job in done.stdout
    for words in COMMANDS[command]:
        assert words in done.stdout


def test_inline_job_on_the_schedule_is_taken_as_it_is(cli: Cli, store: Store, raw: Any) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {MEMBER: 4e9})
    done = cli.run("cancel", MEMBER, "--queue", store.queue)
    assert (done.stdout, done.stderr) == (f"{MEMBER} cancelled, it was in schedule\n", "")


def test_another_job_of_the_id_that_an_inline_job_names_is_left_alone(
    cli: Cli, send: Send, store: Store, raw: Any
) -> None:
    dispatch(send, store, raw, NAMED)
    done = cli.run("cancel", '{"task":"other","id":"x"}', "--queue", store.queue)
    assert (done.returncode, "it never existed" in done.stderr) == (1, True)
    assert cli.json("show", "x", "--queue", store.queue)["place"] == "ready"


def test_dead_inline_jobs_are_revived_by_their_members(cli: Cli, send: Send, store: Store, raw: Any) -> None:
    members = [f'{{"id":"a b","task":"{n}"}}' for n in range(2)]
    dispatch(send, store, raw, *members)
    assert cli.run("dead", "revive", *members, "--queue", store.queue).stdout == "2 revived\n"
