"""A worker process of a parent, and how it is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsched.process_events import ChildNotStarted
from evsched.services.worker_process import NOT_STARTED, Launch, WorkerProcess, working_directory
from tests.support.recorder import Recorder


@pytest.mark.extra
@pytest.mark.anyio
async def test_process_that_cannot_start_is_reported_and_its_parent_continues(
    recorder: Recorder, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone")
    child = WorkerProcess(3, Launch(["--version"], {}, gone), None)
    assert await child.run(recorder, print) == NOT_STARTED
    (event,) = recorder.of(ChildNotStarted)
    assert (event.number, gone in event.reason) == (3, True)
    assert not child.alive


@pytest.mark.extra
def test_the_working_directory_has_the_name_that_leads_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to("one")
    monkeypatch.chdir(tmp_path / "link")
    for name, found in ((tmp_path / "link", str(tmp_path / "link")), (tmp_path, None), ("link", None), ("", None)):
        monkeypatch.setenv("PWD", str(name))
        assert working_directory() == found
