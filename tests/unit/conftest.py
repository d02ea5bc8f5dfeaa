"""Certificates for servers on this machine."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.support.certificates import make_certificates
from tests.support.outbound import Tls


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder, "DNS:shop.test,IP:127.0.0.1")
    return folder


@pytest.fixture
def tls(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Tls:
    """Make the context of a server that the connections trust."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.crt"))

    def make(*protocols: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        context.set_alpn_protocols([*protocols])
        return context

    return make
