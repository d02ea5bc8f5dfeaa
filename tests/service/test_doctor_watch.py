"""`evsched doctor --watch` prints and counts changes until it is asked to stop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.patience import PATIENCE


class Watch:
    """A doctor that watches; `next_with` waits for its next line that contains a text."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child

    def next_with(self, text: str) -> str:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if text in line:
                return line
        raise AssertionError(f"it ended and never printed {text!r}")


@contextmanager
def watching(cli: Cli, *words: str) -> Generator[Watch]:
    child = cli.start("doctor", "--watch", "--every", "50ms", *words, stdout=subprocess.PIPE)
    limit = threading.Timer(PATIENCE, child.kill)
    limit.start()
    try:
        yield Watch(child)
    finally:
        limit.cancel()
        child.kill()
        child.communicate()


def lose(raw: Any, queue: str) -> str:
    """Write the record of a job that is in no place; return its key."""
    key = f"evsched:{{{queue}}}:job:lost"
    raw.hset(key, mapping={"payload": '{"task":"t"}', "due": "5.5"})
    return key


@pytest.mark.extra
def test_changes_alone_are_printed_and_ctrl_c_ends_it_with_0(cli: Cli, queue: str, raw: Any) -> None:
    raw.set(f"evsched:{{{queue}}}:arrival", 1)
    with watching(cli, "--queue", queue) as watch:
        assert " new  info" in watch.next_with("appendfsync")
        key = lose(raw, queue)
        assert " new  fault   orphan: a job that has not ended is in no place" in watch.next_with("orphan")
        raw.delete(key)
        assert " gone fault   orphan: " in watch.next_with("orphan")
        watch.child.send_signal(signal.SIGINT)
        out, err = watch.child.communicate()
        assert (watch.child.returncode, out) == (0, "")
    assert "Traceback" not in err


@pytest.mark.extra
def test_a_queue_that_does_not_exist_is_reported_until_it_does(cli: Cli, queue: str, raw: Any) -> None:
    raw.set(f"evsched:{{{queue}}}:arrival", 1)
    with watching(cli, "--queue", f"{queue}x") as watch:
        assert f"new  warning no-queue: queue {queue}x has no jobs" in (line := watch.next_with("no-queue"))
        assert f"did you mean {queue}?" in line
        raw.set(f"evsched:{{{queue}x}}:arrival", 1)
        assert "gone warning no-queue" in watch.next_with("no-queue")


@pytest.mark.extra
def test_a_reader_that_has_ended_ends_it_with_0(cli: Cli, queue: str, raw: Any) -> None:
    with watching(cli, "--queue", queue) as watch:
        watch.next_with("appendfsync")
        assert watch.child.stdout is not None
        watch.child.stdout.close()
        lose(raw, queue)
        assert watch.child.wait(PATIENCE) == 0
        assert watch.child.stderr is not None
        assert "Error" not in watch.child.stderr.read()


@pytest.mark.extra
def test_json_has_a_line_for_each_change(cli: Cli, queue: str, raw: Any) -> None:
    lose(raw, queue)
    with watching(cli, "--queue", queue, "--json") as watch:
        change = json.loads(watch.next_with("orphan"))
        watch.child.send_signal(signal.SIGTERM)
        assert watch.child.wait(PATIENCE) == 0
    assert (change["change"], change["check"], change["level"]) == ("new", "orphan", "fault")
    assert change.keys() == {"time", "change", "check", "level", "what", "where", "mend", "repaired"}


def metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as page:
        return page.read().decode()


@pytest.mark.extra
def test_a_metric_counts_the_findings_by_check(cli: Cli, queue: str, raw: Any) -> None:
    key = lose(raw, queue)
    with watching(cli, "--queue", queue, "--metrics-port", "0") as watch:
        assert watch.child.stderr is not None
        url = next(found[1] for line in watch.child.stderr if (found := re.search(r"(http://[\d.:]+)/metrics", line)))
        watch.next_with("orphan")
        assert 'evsched_doctor_findings{check="orphan",level="fault"} 1.0' in metrics(url)
        with urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE) as ready:
            assert ready.read() == b"ok\n"
        raw.delete(key)
        watch.next_with("orphan")
        assert "orphan" not in metrics(url)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--watch", "--repair"), "--watch changes nothing"),
        (("--every", "5s"), "--every and --metrics-port are for --watch"),
        (("--metrics-port", "0"), "--every and --metrics-port are for --watch"),
        (("--watch", "--every", "soon"), "'soon' is not a duration"),
        (("--watch", "--every", "0"), "--every is 0: give more than 0 s"),
        (("--watch", "--metrics-port", "99999"), "METRICS_PORT is 99999: a whole number"),
    ],
)
def test_options_that_do_not_fit_are_bad_usage(cli: Cli, words: tuple[str, ...], error: str) -> None:
    done = cli.run("doctor", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
