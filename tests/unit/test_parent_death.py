"""A child ends with its parent, also while it holds the interpreter."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE

BY_KERNEL = """
import os, sys
from evsched.execution import parent_death
parent_death.end_with(int(sys.argv[1]))
print("tied", flush=True)
while True:
    pass
"""

MEANWHILE = """
import os, socket, sys
from evsched.execution import parent_death
link = int(sys.argv[1])
with parent_death.tied(link):
    print("tied", flush=True)
    {hang}
print("untied", flush=True)
os.read(link, 1)
print("alive", flush=True)
"""

PARENT = """
import socket, subprocess, sys
ours, theirs = socket.socketpair()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(theirs.fileno())], pass_fds=[theirs.fileno()])
theirs.close()
sys.stdin.read()
"""

FORK = BY_KERNEL.replace("while True", "os.fork()\nwhile True")

BY_THREAD = BY_KERNEL.replace("import parent_death", "import parent_death; parent_death._ask_kernel = lambda: False")


@pytest.mark.parametrize("child", [BY_KERNEL, BY_THREAD, FORK], ids=["kernel", "thread", "fork"])
def test_a_child_ends_with_a_parent_that_is_killed(child: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "tied\n"
        parent.kill()
        assert parent.stdout.read() == ""  # the child holds the pipe too: it is closed when both have ended


@pytest.mark.parametrize("child", [BY_KERNEL, BY_THREAD], ids=["kernel", "thread"])
def test_a_child_whose_parent_has_ended_already_ends_at_once(child: str) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        command = [sys.executable, "-c", child, str(theirs.fileno())]
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE, pass_fds=[theirs.fileno()])
    assert done.returncode == -9


@pytest.mark.parametrize("child", [BY_KERNEL, BY_THREAD], ids=["kernel", "thread"])
def test_data_on_the_link_does_not_end_a_child(child: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"an order")
        child = child.replace("while True:\n    pass", "os.read(int(sys.argv[1]), 100); print('alive')")
        command = [sys.executable, "-c", child, str(theirs.fileno())]
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE, pass_fds=[theirs.fileno()])
    assert (done.returncode, done.stdout) == (0, b"tied\nalive\n")


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "thread"])
@pytest.mark.parametrize(
    ("hang", "lines"), [("import time; time.sleep(1000)", ["tied"]), ("pass", ["tied", "untied", "alive"])]
)
def test_a_child_is_tied_to_its_parent_for_a_while(kernel: bool, hang: str, lines: list[str]) -> None:
    child = MEANWHILE.format(hang=hang)
    if not kernel:
        child = child.replace("import parent_death", "import parent_death; parent_death._ask_kernel = lambda: False")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        before = lines[:2]
        assert [parent.stdout.readline().strip() for _ in before] == before
        parent.kill()
        assert parent.stdout.read().split() == lines[2:]
