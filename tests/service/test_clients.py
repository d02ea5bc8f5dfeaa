"""Clients that are not ours, each as the user `producer` of redis.conf: schedule, move, cancel, wait, look, clear.

There is a program for each in clients/ and node/. All do the same, and print each reply on a line.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from evsched import App
from evsched.config import Config
from evsched.transport.embedded import EmbeddedRedis, Kind, find_server
from tests.service.test_rights import USERS, words_of
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.system import system

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
PYTHON = str(HERE / "clients/.venv/bin/python")
GO = {**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}  # where Debian keeps sources

REPLIES = """\
1
2 1
1
{"id":"inline","outcome":"done","result":3}
{"id":"record","outcome":"done","result":7}
done
0
"""


class Client(NamedTuple):
    """How to check that it is installed, how to run its program, and what to install."""

    check: tuple[str, ...]
    run: tuple[str, ...]
    install: str
    build: tuple[str, ...] = ()
    """Builds PROGRAM from its source."""


CLIENTS = {
    "node-redis": Client(
        ("node", "-e", "import('redis')"),
        ("node", "node/node-redis.mjs"),
        "npm install --prefix tests/service/node redis",
    ),
    "ioredis": Client(
        ("node", "-e", "import('ioredis')"),
        ("node", "node/ioredis.mjs"),
        "npm install --prefix tests/service/node ioredis",
    ),
    "coredis": Client((PYTHON, "-c", "import coredis"), (PYTHON, "clients/with_coredis.py"), "pip: coredis"),
    "valkey-glide": Client((PYTHON, "-c", "import glide"), (PYTHON, "clients/with_glide.py"), "pip: valkey-glide"),
    "ruby": Client(("ruby", "-e", "require 'redis'"), ("ruby", "clients/ruby.rb"), "Debian: ruby-redis"),
    "phpredis": Client(
        ("php", "-r", "exit((int) !class_exists('Redis'));"),
        ("php", "clients/phpredis.php"),
        "Debian: php-cli php-redis",
    ),
    "predis": Client(
        ("php", "-r", "require 'Predis/Autoloader.php';"), ("php", "clients/predis.php"), "Debian: php-cli php-predis"
    ),
    "perl": Client(("perl", "-MRedis", "-e", "1"), ("perl", "clients/perl.pl"), "Debian: libredis-perl"),
    "lua": Client(("lua5.1", "-e", "require 'redis'"), ("lua5.1", "clients/lua.lua"), "Debian: lua5.1 lua-redis"),
    "tcl": Client(("tclsh", os.devnull), ("tclsh", "clients/tcl.tcl"), "Debian: tcl"),
    "hiredis": Client(
        ("sh", "-c", "echo '#include <hiredis/hiredis.h>' | gcc -E - >/dev/null"),
        ("PROGRAM",),
        "Debian: gcc libc6-dev libhiredis-dev",
        ("gcc", "-Wall", "-Werror", "-o", "PROGRAM", "clients/hiredis.c", "-lhiredis"),
    ),
    "redigo": Client(
        ("go", "list", "github.com/gomodule/redigo/redis"),
        ("PROGRAM",),
        "Debian: golang-go golang-github-gomodule-redigo-dev",
        ("go", "build", "-o", "PROGRAM", "clients/redigo.go"),
    ),
}


@pytest.fixture(scope="module")
def guarded() -> Generator[EmbeddedRedis]:
    """A server with a port and the producer of redis.conf."""
    kind = cast("Kind | None", os.environ.get("EVSCHED_TEST_SERVER"))
    with (
        EmbeddedRedis(find_server(kind), port=0) as server,
        plain_client(server.url) as raw,
    ):
        raw.execute_command("ACL", "SETUSER", "producer", *words_of(dict(USERS)["producer"]))
        yield server


def program(client: Client, folder: Path) -> list[str]:
    """Return the command that runs a client's program, built if need be; skip what is not installed."""
    where = HERE / "node" if client.check[0] == "node" else HERE
    try:
        installed = subprocess.run(client.check, cwd=where, env=GO, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        installed = False
    if not installed:
        pytest.skip(f"not installed: {client.install}")
    built = str(folder / "program")
    if client.build:
        words = [built if word == "PROGRAM" else word for word in client.build]
        made = subprocess.run(words, cwd=HERE, env=GO, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    return [built if word == "PROGRAM" else word for word in client.run]


@pytest.mark.extra
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_a_client_of_another_language_schedules_cancels_and_reads_replies(
    client: Client, guarded: EmbeddedRedis, queue: str, tmp_path: Path
) -> None:
    words = await asyncio.to_thread(program, client, tmp_path)
    app = App(queue=queue)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    raw = plain_client(guarded.url, decode_responses=True)
    with raw:
        raw.execute_command("ACL", "LOG", "RESET")
        async with system(Config(url=guarded.url, queues=(queue,)), app):
            child = await asyncio.create_subprocess_exec(
                *words, str(guarded.port), queue, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            try:
                out, err = await asyncio.wait_for(child.communicate(), 2 * PATIENCE)
            finally:
                if child.returncode is None:
                    child.kill()
        assert (child.returncode, err.decode(), out.decode()) == (0, "", REPLIES)
        assert raw.zcard(f"evsched:{{{queue}}}:schedule") == 0
        assert raw.hget(f"evsched:{{{queue}}}:job:record", "priority") == "7"
        assert raw.hkeys(f"evsched:{{{queue}}}:job:gone") == ["payload"]  # it was cancelled before it was due
        assert raw.execute_command("ACL", "LOG") == []  # Redis refused nothing
