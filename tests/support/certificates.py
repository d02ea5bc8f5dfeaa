"""A throw-away CA, and a certificate of its own for a server on loopback."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path, names: str = "DNS:localhost") -> None:
    """Make `ca.crt`, and `server.crt` and `server.key` for a server of these names; skip the test without openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    ca = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    run(*new, "-x509", "-days", "2", "-subj", "/CN=ca", *ca, "-keyout", "ca.key", "-out", "ca.crt")
    run(*new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text(f"subjectAltName={names}\nkeyUsage=digitalSignature\n")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    run("x509", "-req", "-in", "server.csr", *signed, "-out", "server.crt")
