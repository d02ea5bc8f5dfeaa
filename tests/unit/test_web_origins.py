"""Which requests may be those of a page of another site."""

from __future__ import annotations

import pytest

from evsched.web_origins import is_known_host, is_other_origin


@pytest.mark.parametrize(
    ("host", "names", "known"),
    [
        ("localhost:8421", (), True),
        ("127.0.0.1", (), True),
        ("[::1]:8421", (), True),
        ("evil.example", (), False),
        ("jobs.example:80", ("jobs.example",), True),
        ("evil.example", ("jobs.example",), False),
        ("evil.example", ("*",), True),
        ("", (), False),
        ("[::1", ("*",), False),
    ],
)
def test_only_known_hosts_are_answered(host: str, names: tuple[str, ...], known: bool) -> None:
    assert is_known_host(host, names) is known


@pytest.mark.parametrize(
    ("origin", "other"),
    [(None, False), ("http://console:80", False), ("https://evil.example", True), ("null", True), ("http://[", True)],
)
def test_origin_of_another_site_is_recognized(origin: str | None, other: bool) -> None:
    assert is_other_origin("console:80", origin) is other
