"""`evsched top`: one page for programs, a page that is refreshed for people, and a terminal that is restored."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from typing import Self

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

TASKS = """
import asyncio
from evsched import App

app = App()

@app.task
async def hang() -> None:
    await asyncio.Event().wait()
"""

HOME = "\x1b[H"
"""What each page begins with: rich goes to the upper left corner."""


@pytest.fixture
def cli(cli: Cli) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    cli.environment["EVSCHED_SHUTDOWN_GRACE"] = "0.2"  # the jobs hang: do not wait for them
    return cli


class Terminal:
    """`evsched top` on a terminal of 30 lines."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self._ours, self._its = os.openpty()
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self._before = termios.tcgetattr(self._its)
        environment = {**cli.environment, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)  # of the terminal on which the tests run
        self.process = subprocess.Popen(
            cli.command("top", *words),
            env=environment,
            cwd=cli.folder,
            stdin=self._its,
            stdout=self._its,
            stderr=self._its,
        )
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)

    def until(self, *words: str, without: str = "\0") -> str:
        """Return the first whole page from now on that has all the words, which are regular expressions."""
        self.output = ""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.read(end)
            for page in self.output.split(HOME)[1:-1]:
                text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", page)
                if all(re.search(word, text) for word in words) and without not in text:
                    return text
        raise AssertionError(f"no page has {words}: {self.output[-3000:]!r}")

    def read(self, end: float) -> None:
        assert select.select([self._ours], [], [], max(end - time.monotonic(), 0))[0], self.output
        self.output += os.read(self._ours, 65536).decode(errors="replace")

    def cbreak(self) -> bool:
        return not termios.tcgetattr(self._its)[3] & (termios.ICANON | termios.ECHO)

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def wait(self) -> int:
        """Wait for the end of the command, and check that the terminal is restored; return the exit code."""
        end = time.monotonic() + PATIENCE
        while "\x1b[?1049l" not in self.output:
            self.read(end)
        code = self.process.wait(PATIENCE)
        assert "\x1b[?25h" in self.output, "the cursor is shown again"
        assert termios.tcgetattr(self._its) == self._before
        return code


def test_top_prints_one_page_as_json(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    with (
        cli.running("dispatcher", *of, until="keyspace events arrive"),
        cli.running("worker", "tasks:app", *of, "--concurrency", "5", until="5 slots"),
    ):
        cli.run("enqueue", "hang", "--id", "now", *of)
        cli.run("enqueue", "hang", "--id", "later", "--in", "1h", *of)
        end = time.monotonic() + PATIENCE
        # On a busy machine a worker may reply too late to be shown, and the start may fall between the two looks.
        while (
            not (page := cli.json("top", *of))["workers"]
            or page["workers"][0]["busy"] != 1
            or any(page["rates"].values())
        ):
            assert time.monotonic() < end, page
        (row,) = page["queues"]
        assert (row["queue"], row["schedule"], row["overdue"], row["processing"], row["workers"]) == (queue, 1, 0, 1, 1)
        assert 3500 < row["next_due"] - page["now"] < 3600
        assert page["rates"] == row["rates"] == {"started": 0.0, "done": 0.0, "failed": 0.0}
        (worker,) = page["workers"]
        assert (worker["answered"], worker["slots"], worker["busy"]) == (True, 5, 1)
        (run,) = worker["runs"]
        assert (run["queue"], run["id"], run["task"], run["attempt"]) == (queue, "now", "hang", 1)
        assert run["seconds"] > 0
        assert page["down"] is None

        printed = cli.run("top", *of)
        assert printed.returncode == 0, printed.stderr
        assert "1/5" in printed.stdout
        assert "\x1b" not in printed.stdout


@pytest.mark.extra
def test_top_says_that_a_hanging_worker_does_not_answer(cli: Cli, queue: str) -> None:
    with cli.running("worker", "tasks:app", "--queue", queue, until="256 slots") as worker:
        worker.send_signal(signal.SIGSTOP)
        (row,) = cli.json("top", "--queue", queue)["workers"]
        worker.send_signal(signal.SIGCONT)
        assert (row["answered"], row["slots"], row["busy"], row["runs"]) == (False, None, 0, [])


@pytest.mark.extra
@pytest.mark.parametrize("leave", ["q", "SIGTERM"])
def test_top_ends_on_q_or_sigterm_and_restores_the_terminal(cli: Cli, queue: str, leave: str) -> None:
    of = ("--queue", queue)
    with (
        cli.running("dispatcher", *of, until="keyspace events arrive"),
        cli.running("worker", "tasks:app", *of, "--concurrency", "5", until="5 slots"),
        Terminal(cli, *of) as terminal,
    ):
        terminal.until(queue, "0/5", "q leaves")
        cli.run("enqueue", "hang", "--id", "now", *of)
        page = terminal.until(queue, "1/5", "now", "hang", "late p50 +[▁-█] .*ms")
        assert re.search(r"started \d", page)
        assert terminal.cbreak()
        if leave == "q":
            terminal.press("xq")
        else:
            terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 0


@pytest.mark.extra
def test_top_says_that_redis_is_down_and_continues_when_it_is_back(cli: Cli, own: EmbeddedRedis) -> None:
    cli.environment["EVSCHED_URL"] = own.url
    with cli.running("worker", "tasks:app", until="256 slots"), Terminal(cli) as terminal:
        cli.run("enqueue", "hang", "--in", "1h")
        terminal.until("default", "0/256")
        own.stop()
        page = terminal.until("Redis is down for", "The figures below are from before")
        assert "0/256" in page
        own.start()
        terminal.until("default", "0/256", without="Redis is down")
        terminal.press("q")
        assert terminal.wait() == 0


def test_top_names_the_right_that_its_user_lacks(cli: Cli, own: EmbeddedRedis) -> None:
    raw = plain_client(own.url)
    raw.execute_command("ACL", "SETUSER", "nobody", "on", "nopass", "+@connection", "~*", "+@read")
    raw.close()
    done = cli.run("top", "--queue", "q", "--url", own.url.replace("unix://", "unix://nobody:x@"))
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (1, 1, "")
    assert "the rights of the user `observer` in redis.conf" in done.stderr


@pytest.mark.extra
def test_top_ends_at_once_if_redis_cannot_be_reached(cli: Cli) -> None:
    with Terminal(cli, "--url", "redis://127.0.0.1:1/0") as terminal:
        assert terminal.process.wait(PATIENCE) == 1
        while "connecting to" not in terminal.output:
            terminal.read(time.monotonic() + PATIENCE)
        assert terminal.output.startswith("evsched: ")
        assert "connecting to 127.0.0.1:1" in terminal.output
        assert not terminal.cbreak()
