"""`evsched dev` with a private Redis: its URL stays the same, and an URL that was exported earlier does no harm."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from evsched.transport.embedded import ProjectFolder, is_ended, project_folder
from tests.support.cli import Cli
from tests.support.patience import PATIENCE


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Cli]:
    """Yield the commands of a project, for a user whose folder for sockets is empty."""
    project, runtime = tmp_path / "project", Path(f"/tmp/evsched-test-{os.getpid()}-{tmp_path.name[-20:]}")
    project.mkdir()
    (project / "tasks.py").write_text("from evsched import App\n\napp = App()\nother = App()\n")
    runtime.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.chdir(project)
    cli = Cli("", project)
    del cli.environment["EVSCHED_URL"]
    yield cli
    shutil.rmtree(runtime)


@contextmanager
def dev(cli: Cli, app: str = "tasks:app", **environment: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run `evsched dev` until the end of the block; yield it, and the URL of the line to export, empty without one."""
    child = cli.start("dev", app, environment=environment, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    url = ""
    try:
        for line in child.stderr:
            if "keyspace events arrive" in line:
                break
        else:
            raise AssertionError("it ended before it was ready")
        os.set_blocking(child.stdout.fileno(), False)
        with suppress(BlockingIOError):  # nothing is printed when there is a Redis already
            lines = os.read(child.stdout.fileno(), 4096).decode().splitlines()
            url = lines[-1].removeprefix("export EVSCHED_URL=")
        os.set_blocking(child.stdout.fileno(), True)
        yield child, url
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
        child.communicate()


@pytest.mark.extra
def test_dev_prints_the_same_url_at_each_start_as_a_line_to_copy(cli: Cli) -> None:
    with dev(cli) as (_, first):
        assert first.startswith("unix:///")
        assert not set(first) & set("'\"?& "), "no shell needs quotes"
        done = cli.run("enqueue", "nothing", "--in", "1h", EVSCHED_URL=first)
        assert done.returncode == 0, done.stderr
    with dev(cli) as (child, second):
        assert second == first
        assert cli.run("jobs", "--json", EVSCHED_URL=first).stdout.strip() == "[]", "Redis is empty"
        child.kill()
    with dev(cli) as (_, third):
        assert third == first


@pytest.mark.extra
def test_two_devs_at_the_same_time_have_two_servers(cli: Cli) -> None:
    with dev(cli) as (_, first), dev(cli) as (_, second), dev(cli, "tasks:other") as (_, other):
        assert len({first, second, other}) == 3
        cli.run("enqueue", "nothing", "--in", "1h", EVSCHED_URL=first)
        assert cli.run("jobs", "--json", EVSCHED_URL=second).stdout.strip() == "[]"


@pytest.mark.extra
def test_exported_url_is_used_until_its_server_ends(cli: Cli) -> None:
    with dev(cli) as (_, first), dev(cli, EVSCHED_URL=first) as (_, url):
        assert url == "", "it works with the Redis that is there"
    with dev(cli, EVSCHED_URL=first) as (_, again):
        assert again == first
    with dev(cli, "tasks:other", EVSCHED_URL=first) as (_, other):
        assert other not in ("", first)


def test_only_a_private_redis_that_has_ended_counts_as_ended(cli: Cli, tmp_path: Path) -> None:
    assert not is_ended("redis://127.0.0.1:1/0")
    assert not is_ended("unix:///run/redis/redis.sock")
    assert not is_ended("nonsense")
    assert is_ended("unix:///tmp/evsched-abcdef/redis.sock?db=0")
    with project_folder("tasks:app") as folder:
        assert folder is not None
        url = f"unix://{folder.path}/redis.sock"
        assert is_ended(url)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder.path / "redis.sock"))
            server.listen()
            assert not is_ended(url)


def _folder() -> ProjectFolder | None:
    with project_folder("tasks:app") as folder:
        return folder


def test_folder_of_a_private_redis_is_emptied_and_private_to_its_user(cli: Cli) -> None:
    with project_folder("tasks:app") as folder:
        assert folder is not None
        assert folder.path.stat().st_mode & 0o777 == 0o700
        (folder.path / "appendonlydir").mkdir()
        (folder.path / "appendonlydir" / "a.aof").write_text("left behind")
    with project_folder("tasks:app") as again:
        assert again is not None
        assert again.path == folder.path
        assert list(again.path.iterdir()) == []


def test_a_place_that_others_may_write_to_is_not_used(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _folder()
    assert before is not None
    before.path.parent.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    after = _folder()
    assert after is None or after.path.parent != before.path.parent
    assert after is None or after.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_project_with_a_long_path_has_a_short_socket_path(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    found = _folder()
    assert found is not None
    assert len(str(found.path / "redis.sock")) <= 100
    assert list(deep.iterdir()) == []
