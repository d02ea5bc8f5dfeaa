"""The URL of Redis: its parts, refused forms, and that no part of a password is ever shown."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsched.errors import ConfigError
from evsched.transport.address import Sentinels, hide_password, parse


@pytest.mark.parametrize(
    ("url", "db", "options"),
    [
        ("redis://", 0, {"host": "localhost", "port": 6379}),
        ("redis://h:1/2", 2, {"host": "h", "port": 1}),
        ("redis://[::1]:1/?db=3", 3, {"host": "::1", "port": 1}),
        ("redis://me:p%40ss%2F@h", 0, {"host": "h", "port": 6379, "username": "me", "password": "p@ss/"}),
        ("redis://:p:w@h", 0, {"host": "h", "port": 6379, "password": "p:w"}),
        ("unix:///run/r.sock?db=1&password=x", 1, {"path": "/run/r.sock", "password": "x"}),
        ("unix://me:x@/run/r.sock", 0, {"path": "/run/r.sock", "username": "me", "password": "x"}),
        ("rediss://h?ssl_check_hostname=false", 0, {"host": "h", "port": 6379, "ssl_check_hostname": False}),
    ],
)
def test_a_url_gives_the_database_and_the_options(url: str, db: int, options: dict[str, object]) -> None:
    address = parse(url)
    assert (address.db, address.options) == (db, options)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:6379", "does not begin with"),
        ("redis:hunter2@host", "does not begin with"),
        ("http://hunter2", "does not begin with"),
        ("redis://u:hun/ter2@host", "%2F for /"),
        ("redis://u:hun#ter2@host", "%23 for #"),
        ("redis://u:hun?ter2@host", "%3F for"),
        ("redis://u:12?ter2@host", "%3F for"),
        ("redis://u:hun[ter2@host", "percent-encode"),
        ("redis://host:hunter2", "host or port"),
        ("redis://host:99999", "host or port"),
        ("redis://host/hunter2", "not a whole number"),
        ("redis://host/0?hunter2=1", "it has an unknown option"),
        ("redis://host/0?hunter2", "NAME=VALUE"),
        ("redis://host/0?ssl_ca_certs=/x", "belong to rediss://"),
        ("rediss://host/0?ssl_ca_certs=/hunter2", "ssl_ca_certs is not the path of a file"),
        ("rediss://host/0?ssl_cert_reqs=never", "required, optional or none"),
        ("redis://u:hun ter2@host", "blank"),
        ("unix://hunter2/x", "three slashes"),
        ("unix://", "needs a path"),
        ("redis+sentinel://h1:1,h2:2", "which primary"),
        ("redis+sentinel://h1:1,h2:2/", "which primary"),
        ("redis+sentinel://h1:1,,h2:2/hun", "which primary"),
        ("redis+sentinel:///hun/0", "which primary"),
        ("redis+sentinel://h1:1,h2:99999/hun", "host or port"),
        ("redis+sentinel://h1:1,h2:2/main/hunter2", "not a whole number"),
        ("redis+sentinel://h/main?ssl_ca_certs=/x", "belong to rediss://"),
        ("redis://h?sentinel_password=hunter2", "it has an unknown option"),
        ("redis://h1:1,h2:2/0", "host or port"),
        ("redis+cluster://", "names no node"),
        ("redis+cluster://h1,,h2", "names no node"),
        ("redis+cluster://h1/hunter2", "not a whole number"),
    ],
)
def test_malformed_url_is_refused_with_advice_and_without_quoting_it(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(url)
    assert words in str(raised.value)
    assert "hun" not in str(raised.value)
    assert "hun" not in hide_password(url)


def test_the_url_of_sentinels_names_them_the_primary_and_both_logins() -> None:
    address = parse(
        "rediss+sentinel://me:p%40ss@h1,[::1]:2,h3:3/main/4"
        "?sentinel_username=asker&sentinel_password=x%2Fy&ssl_check_hostname=no"
    )
    assert (address.scheme, address.db) == ("rediss", 4)
    assert address.options == {"username": "me", "password": "p@ss", "ssl_check_hostname": False}
    login: dict[str, str | int | bool] = {"username": "asker", "password": "x/y", "ssl_check_hostname": False}
    assert address.sentinels == Sentinels((("h1", 26379), ("::1", 2), ("h3", 3)), "main", login)


def test_the_url_of_a_cluster_names_some_of_its_nodes() -> None:
    address = parse("rediss+cluster://me:x@h1,[::1]:2/3?ssl_check_hostname=no")
    assert (address.scheme, address.db, address.nodes) == ("rediss", 3, (("h1", 6379), ("::1", 2)))
    assert address.options == {"username": "me", "password": "x", "ssl_check_hostname": False}
    assert parse("redis+cluster://h").nodes == (("h", 6379),)


def test_the_default_database_of_a_primary_is_0() -> None:
    assert parse("redis+sentinel://h/main").db == 0


def test_a_ca_is_named_in_the_url(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("")
    assert parse(f"rediss://h?ssl_ca_certs={ca}").options["ssl_ca_certs"] == str(ca)


def test_the_password_is_not_shown() -> None:
    assert hide_password("redis://user:secret@host:1/0") == "redis://***@host:1/0"
    assert hide_password("redis://secret@host:1/0") == "redis://***@host:1/0"
    assert hide_password("redis://host:1/0") == "redis://host:1/0"
    shown = "redis+sentinel://***@h1:1,h2:2/main/0?sentinel_username=***&sentinel_password=***"
    assert hide_password(shown.replace("***@", "me:secret@").replace("=***", "=secret")) == shown
    assert hide_password("unix:///r.sock?db=1&password=secret") == "unix:///r.sock?db=1&password=***"


SHAPES = [
    "redis+cluster://user:{}@h1:1,h2:2", "redis+sentinel://user:{}@h1:1,h2:2/main/0", "redis+sentinel://h/main?sentinel_password={}",
    "redis://user:{}@host:6379/0", "redis://:{}@host", "redis://{}@host", "rediss://user:{}@host/1?db=2",
    "redis:{}@host", "{}@host", "{}", "//:{}@host", "redis//:{}@host", "unix://:{}@/run/redis.sock?db=0",
    "unix:///run/redis.sock?db=0&password={}", "redis://host/0?password={}", "redis://host?ssl_password={}",
]  # fmt: skip


@pytest.mark.extra
@given(
    st.sampled_from(SHAPES),
    st.text(st.sampled_from("Zq7/#?@:%&=+[]\\;, \n\t\u2100") | st.characters(categories=["L", "N", "P"]), min_size=1),
    st.booleans(),
)
def test_no_part_of_any_password_is_shown(shape: str, password: str, encoded: bool) -> None:
    """A part is any three characters of the password that the rest of the text does not contain."""
    url = shape.format(quote(password, safe="") if encoded else password)
    shown = [hide_password(url)]
    try:
        parse(url)
    except ConfigError as error:
        shown.append(str(error))
    plain = shape + str(_refusals()) + "***"
    for text in shown:
        for secret in (password, quote(password, safe="")):
            for at in range(len(secret) - 2):
                part = secret[at : at + 3]
                assert part not in text or part in plain


def _refusals() -> list[str]:
    """Return the error messages for URLs without a password."""
    messages = list[str]()
    for url in ("x", "redis://h:x", "redis://h/#", "redis://h/x", "redis://h?x", "redis://h?x=1", "redis://h/ "):
        try:
            parse(url)
        except ConfigError as error:
            messages.append(str(error))
    return messages
