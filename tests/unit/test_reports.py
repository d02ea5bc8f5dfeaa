"""Reports between a parent and its worker processes."""

from __future__ import annotations

import pytest

from evsched.services.worker_process import Behind, ChildReport, Fetching, Idle, WorkerReady, read_report, report_line


@pytest.mark.parametrize("report", [WorkerReady("w", ["a", "b"], "redis://u:secret@h/0"), Fetching(), Behind(), Idle()])
def test_a_report_is_one_line(report: ChildReport) -> None:
    line = report_line(report)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert read_report(line) == report


@pytest.mark.parametrize("line", [b"", b"R\n", b'{"type":"new"}\n', b'{"type":"ready"}\n', b"[1]\n", b"\xff\n"])
def test_a_report_that_is_not_known_is_ignored(line: bytes) -> None:
    assert read_report(line) is None


def test_a_field_that_newer_code_adds_is_ignored() -> None:
    assert read_report(b'{"type":"ready","worker":"w","queues":[],"url":"u","new":1}\n') == WorkerReady("w", [], "u")


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(WorkerReady("w", [], "redis://u:secret@h/0"))
