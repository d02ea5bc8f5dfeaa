"""A child ends with its parent, also while it holds the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
sys.stdin.read()
"""

BY_KERNEL = """
import os
from evsched.execution import parent_death
parent_death.end_with(os.getppid())
parent_death.end_with(os.getppid())
print("tied", flush=True)
while True:
    pass
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


def test_a_child_whose_parent_has_ended_already_ends_at_once() -> None:
    child = BY_KERNEL.replace("os.getppid()", f"{os.getpid() + 1}")
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (-9, "")
