"""A process that a handler forks has Python's signal handlers and no descriptors of its parent, and ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

HEAD = """
import multiprocessing, os, signal, stat, sys, threading, time
from evsched import forks
from evsched.runtime.shutdown import Shutdown

fork = multiprocessing.get_context("fork")

def run_in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

class Signalled(Exception):
    pass
"""

SIGNALLED = """
def pause():
    ready.set()
    while True:
        time.sleep(0.05)  # Python would not see a signal in the instant before `signal.pause`

def in_thread():
    child = fork.Process(target=pause)
    child.start()
    ready.wait()  # Python would pass over a KeyboardInterrupt in what it calls after a fork
    os.kill(child.pid, int(sys.argv[1]))
    child.join()
    print(child.exitcode)

ready = fork.Event()
with Shutdown(1.0, print):
    run_in_thread(in_thread)
"""

TOO_EARLY = """
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), int(sys.argv[1])))
with Shutdown(1.0, print):
    if not (pid := os.fork()):
        os._exit(0)
    print(ended(pid))
"""

DESCRIPTORS = """
def sockets():
    return [stat.S_ISSOCK(os.fstat(one).st_mode) for one in shutdown.descriptors()]

with Shutdown(1.0, print) as shutdown:
    if not (pid := os.fork()):
        os._exit(0 if signal.set_wakeup_fd(-1) == -1 and not any(sockets()) else 1)
    print(ended(pid), sockets())
"""

OWN_HANDLER = """
def child():
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
    if not (pid := os.fork()):
        os.kill(os.getpid(), signal.SIGTERM)
    os._exit(ended(pid))

with Shutdown(1.0, print):
    if not (pid := os.fork()):
        child()
    print(ended(pid))
"""

LEFT = """
child = fork.Process(target=signal.pause)
child.start()
print(forks.end_children(60), child.exitcode)
"""

IGNORES_SIGTERM = """
def ignore_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    signal.pause()

ready = fork.Event()
child = fork.Process(target=ignore_sigterm)
child.start()
ready.wait()
forks.end_children(0.01)
child.join()
print(child.exitcode)
"""


def output_of(script: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", HEAD + script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)])
def test_a_signal_to_a_child_ends_the_child_alone(number: signal.Signals, code: int) -> None:
    assert output_of(SIGNALLED, str(int(number))) == str(code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_instant_of_the_fork_ends_the_child_alone(number: signal.Signals) -> None:
    assert output_of(TOO_EARLY, str(int(number))) == str(-number)


@pytest.mark.extra
def test_a_child_has_no_wakeup_descriptor_and_no_sockets_of_its_parent() -> None:
    assert output_of(DESCRIPTORS) == "0 [True, True]"


def test_a_grandchild_keeps_the_signal_handlers_of_the_child() -> None:
    assert output_of(OWN_HANDLER) == "7"


def test_children_that_were_left_are_ended() -> None:
    assert output_of(LEFT) == f"1 {-signal.SIGTERM}"
    assert output_of(IGNORES_SIGTERM) == str(-signal.SIGKILL)


def test_without_children_multiprocessing_is_not_imported_to_end_them() -> None:
    script = "import sys; from evsched import forks; print(forks.end_children(0.1), 'multiprocessing' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 False\n", "")
