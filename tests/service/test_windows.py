"""Programs enqueue where Python lacks what only Unix has, as on Windows. Dispatchers and workers do not run there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE

PROGRAM = """
import asyncio, multiprocessing, os, select, shutil, signal, socket, subprocess, sys, tempfile

for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
unix = {
    os: "fork forkpty geteuid getpgid getuid killpg mkfifo O_CLOEXEC O_NOFOLLOW register_at_fork "
        "sched_getaffinity set_blocking setsid uname WNOHANG",
    select: "epoll poll",
    signal: "pthread_sigmask sigpending SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGUSR1",
    socket: "AF_UNIX",
}
loop = asyncio.new_event_loop()  # Windows has another one
for module, names in unix.items():
    for name in names.split():
        delattr(module, name)

import evsched

url, queue = sys.argv[1:]
app = evsched.App(url, queue=queue)

@app.task
async def greet(name: str) -> None: ...

async def enqueue() -> None:
    await greet.enqueue("async")
    await app.close()

loop.run_until_complete(enqueue())
with app.sync() as client:
    client.enqueue(greet, "sync")
sys.argv = ["evsched", "enqueue", "greet", '"command"', "--url", url, "--queue", queue]
from evsched.__main__ import main
from evsched.cli.commands import COMMANDS, build
for name in {*COMMANDS} - {"top"}:  # which draws on a terminal of Unix
    assert build()[name].help
main()
"""


def test_a_program_enqueues_without_the_modules_of_unix(
    own: EmbeddedRedis, client: Any, queue: str, tmp_path: Path
) -> None:
    words = (sys.executable, "-c", PROGRAM, f"redis://127.0.0.1:{own.port}", queue)
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert client.zcard(f"evsched:{{{queue}}}:schedule") == 3
