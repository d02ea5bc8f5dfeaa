"""The shutdown's thread, in a process of its own: a second signal decides the exit code."""

from __future__ import annotations

import subprocess
import sys

SECOND_SIGNAL = """
import os, signal, sys, threading, time
from evsched.runtime import shutdown

shutdown._TWICE = 0.0
left = threading.Event()

def kill_children():
    left.set()
    time.sleep(0.3)  # in which the main thread could end the process with a code of its own

with shutdown.Shutdown(60.0, print) as one:
    one.kill_children = kill_children
    while not left.wait(0.01):
        os.kill(os.getpid(), signal.SIGINT)
sys.exit(70)
"""


def test_second_signal_decides_the_exit_code_when_the_loop_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", SECOND_SIGNAL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
