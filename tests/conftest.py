"""The fixtures of every test: one real server for each test process, and a queue of its own for each test."""

from __future__ import annotations

import os
import secrets
import signal
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import pytest
from hypothesis import settings

from evsched.store.store import Store
from evsched.transport import links
from evsched.transport.embedded import EmbeddedRedis, Kind, find_server
from evsched.transport.senders import BatchingSender
from tests.support.certificates import make_certificates
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE
from tests.support.plain import on_primaries, plain_client
from tests.support.postgres import Postgres, find_postgres
from tests.support.recorder import Recorder

# The same examples each time, so that a test fails only because of the change under test. An example has no time limit,
# since the machine may be busy. `make chaos` looks for new examples.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("explore", max_examples=2000, print_blob=True, deadline=None)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the files, the same way each time, so that tests which wait run beside tests which compute."""
    items.sort(key=lambda item: crc32(item.nodeid.partition("::")[0].encode()))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder, "DNS:shop.test,IP:127.0.0.1")
    return folder


@pytest.fixture
def tls(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ssl.SSLContext]:
    """Make the context of a server that the connections of targets trust."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.crt"))

    def make(*protocols: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        context.set_alpn_protocols([*protocols])
        return context

    return make


@pytest.fixture(scope="session", autouse=True)
def sigint_is_not_ignored() -> None:
    """A shell script that runs the suite in the background has it ignore SIGINT, which its children would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def machine_may_be_busy() -> None:
    """Lengthen the connection timeouts of this process, since the machine may stall; services keep their own."""
    links._OPTIONS["socket_connect_timeout"] = PATIENCE  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(scope="session")
def server() -> Generator[EmbeddedRedis]:
    """The server of this test process, booted from the redis.conf that ships."""
    program = find_server(cast("Kind | None", os.environ.get("EVSCHED_TEST_SERVER")))
    found: Any = Cluster(program, replicas=3) if "EVSCHED_TEST_CLUSTER" in os.environ else EmbeddedRedis(program)
    with found as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_next_test(request: pytest.FixtureRequest) -> Generator[None]:
    """Empty the server after each test that used it: commands that list all queues must not meet another test's."""
    uses = "server" in request.fixturenames
    server: EmbeddedRedis | None = request.getfixturevalue("server") if uses else None
    yield
    if server is not None:
        client = plain_client(server.url)
        client.flushall(**on_primaries(client))
        client.close()


@pytest.fixture
def queue() -> str:
    return f"t-{secrets.token_hex(6)}"


@pytest.fixture
def store(queue: str) -> Store:
    return Store(queue)


@pytest.fixture
async def sender(server: EmbeddedRedis) -> AsyncGenerator[BatchingSender]:
    sender = BatchingSender(server.url, reply_timeout=PATIENCE)
    yield sender
    await sender.close()


@pytest.fixture
def raw(server: EmbeddedRedis) -> Generator[Any]:
    """A plain redis-py client."""
    client = plain_client(server.url)
    yield client
    client.close()


@pytest.fixture
def own() -> Generator[EmbeddedRedis]:
    """A server of the test's own, which it may fill, flush, stop or break."""
    with EmbeddedRedis(port=0) as server:
        yield server


@pytest.fixture
def client(own: EmbeddedRedis) -> Generator[Any]:
    """A plain redis-py client of that server."""
    client = plain_client(own.url)
    yield client
    client.close()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="session")
def postgres() -> Generator[Postgres]:
    """The PostgreSQL of this test process."""
    programs = find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with Postgres(programs) as server:
        yield server


@pytest.fixture
def ledger_url(postgres: Postgres) -> Generator[str]:
    """A database of the test's own, with the tables."""
    with postgres.ledger() as url:
        yield url
