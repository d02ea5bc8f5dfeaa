"""TLS to a real server: the CA is named in the URL, the host's name is checked, and a failure names the remedy."""

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from evsched import App, StoreDown
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.transport.call import Call, raw
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.certificates import make_certificates
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.system import system

PING = Call(("PING",), raw)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a CA, and a certificate for localhost that it signs."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def port(certificates: Path) -> Generator[int]:
    """The TLS port of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    server = EmbeddedRedis(
        tls_port=f"{number}",
        tls_cert_file=f"{certificates / 'server.crt'}",
        tls_key_file=f"{certificates / 'server.key'}",
        tls_ca_cert_file=f"{certificates / 'ca.crt'}",
        tls_auth_clients="no",
    )
    try:
        server.start()
    except ConfigError as error:
        server.close()
        pytest.skip(f"this server has no TLS: {error}")
    yield number
    server.close()


@pytest.mark.extra
async def test_a_system_works_over_tls(port: int, certificates: Path, queue: str) -> None:
    url = f"rediss://localhost:{port}/0?ssl_ca_certs={certificates / 'ca.crt'}"
    app = App(url, queue=queue)

    @app.task
    async def add(a: int) -> int:
        return a + 1

    async with system(Config(url=url, queues=(queue,)), app):
        assert await (await add.enqueue(1)).result(PATIENCE) == 2
    with app.sync() as client:
        assert client.enqueue(add, 1).id


@pytest.mark.extra
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["unknown CA", "another name"])
async def test_a_server_that_is_not_trusted_is_refused(port: int, certificates: Path, host: str) -> None:
    ca = f"?ssl_ca_certs={certificates / 'ca.crt'}" if host == "127.0.0.1" else ""
    sender = BatchingSender(f"rediss://{host}:{port}/0{ca}")
    with pytest.raises(StoreDown, match="certificate verify failed"):
        await sender.send(PING)
    await sender.close()


def test_a_command_says_how_to_name_the_ca(port: int, tmp_path: Path) -> None:
    done = Cli(f"rediss://localhost:{port}", tmp_path).run("queues")
    assert done.returncode == 1
    assert "name the file of its CA in the URL: rediss://...?ssl_ca_certs=/PATH" in done.stderr
