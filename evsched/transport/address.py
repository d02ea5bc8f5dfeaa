"""The URL of Redis: how it is parsed, and how it is shown without its password.

    redis://USER:PASSWORD@HOST:PORT/DB                        one server; rediss:// with TLS
    unix:///PATH?db=DB                                        one server on this machine
    redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME/DB    the primary that these sentinels call NAME
    redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT/DB      the cluster to which these nodes belong

A URL is parsed strictly. A lenient parser could take a part of an unescaped password for the host or the path, which
would then be shown. A URL that is refused is never quoted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from evsched.errors import ConfigError

_SENTINEL: Final = "+sentinel"
_CLUSTER: Final = "+cluster"
_SCHEMES: Final = (
    *("redis", "rediss", "unix"),
    *("redis+sentinel", "rediss+sentinel"),
    *("redis+cluster", "rediss+cluster"),
)

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379

_PLAIN: Final = ("db", "username", "password")
_SENTINEL_LOGIN: Final = {"sentinel_username": "username", "sentinel_password": "password"}
"""The options of the login at the sentinels, and what redis-py calls them."""
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS: Final = (*_FILES, "ssl_ca_path", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname")
"""The options of TLS, with the names of redis-py."""

_SECRET: Final = ("password", "ssl_password", "username", *_SENTINEL_LOGIN)

_FORM: Final = (
    "write redis://USER:PASSWORD@HOST:PORT/DB, rediss://... for TLS, unix:///PATH?db=DB, "
    "redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME/DB, or redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT"
)
_ENCODE: Final = (
    "in a password, percent-encode characters with a meaning in a URL: %2F for /, %23 for #, %3F for ?, %40 for @, "
    "%3A for :, %25 for %"
)


Host = tuple[str, int]
"""Host and port of a server."""


class Sentinels(Struct, frozen=True):
    """The sentinels to ask for the primary."""

    hosts: tuple[Host, ...]
    name: str
    """The name by which they know the primary."""
    options: dict[str, str | int | bool]
    """Those of redis-py's connections to them: the login and TLS."""


class Address(Struct, frozen=True):
    """Where Redis is, and how to log in. `options` are those of redis-py's connections."""

    scheme: str
    """redis, rediss or unix."""
    db: int
    options: dict[str, str | int | bool]
    sentinels: Sentinels | None = None
    """The sentinels to ask for host and port; None = both are in the options."""
    nodes: tuple[Host, ...] = ()
    """Some nodes of a cluster; empty = not a cluster."""


def parse(url: str) -> Address:
    """Parse a URL.

    Raises:
        ConfigError: it is malformed; the message says what to write, and quotes nothing that may be secret.
    """
    try:
        return _parse(url)
    except ValueError as error:
        raise ConfigError(f"the URL of Redis ({hide_password(url)}): {error}") from None


def user(url: str) -> str:
    """Return the name of the user at Redis; "" if it is the default user.

    Raises:
        ConfigError: the URL is malformed.
    """
    name = str(parse(url).options.get("username", ""))
    return "" if name == "default" else name


def hide_password(url: str) -> str:
    """Return the URL as it may be shown: without user and password; only the scheme if it is malformed."""
    try:
        _parse(url)
    except ValueError:
        scheme = url.partition("://")[0]
        return f"{scheme}://***" if scheme in _SCHEMES and "://" in url else "***"
    # The user is hidden too: it may be a password in the wrong place, or the part of one before a colon.
    scheme, login, hosts, rest = _split(url)
    parts = urlsplit(f"{scheme}://{rest}")
    options = "&".join(f"{name}={'***' if name in _SECRET else value}" for name, value in parse_qsl(parts.query))
    return f"{scheme}://{'***@' if login else ''}{hosts}{parts.path}{'?' if options else ''}{options}"


def _split(url: str) -> tuple[str, str, str, str]:
    """Return the scheme of a URL, the login with its @, the hosts, and the rest."""
    scheme, _, after = url.partition("://")
    authority = re.split(r"[/?#]", after, maxsplit=1)[0]
    login, at, hosts = authority.rpartition("@")
    return scheme, login + at, hosts, after[len(authority) :]


def _parse(url: str) -> Address:
    """Parse a URL; if it is malformed, raise ValueError with a reason that quotes nothing of it."""
    scheme, slashes, rest = url.partition("://")
    if scheme not in _SCHEMES or not slashes:
        raise ValueError(f"it does not begin with {', '.join(f'{name}://' for name in _SCHEMES)}: {_FORM}")
    if not url.isprintable() or " " in url:
        raise ValueError("it contains a blank or a control character: percent-encode it")
    scheme, login, hosts, tail = _split(url)
    first, *others = hosts.split(",") if scheme.endswith((_SENTINEL, _CLUSTER)) else [hosts]
    try:
        parts = urlsplit(f"{scheme}://{login}{first}{tail}")
        found = [_host(one, _SENTINEL_PORT if scheme.endswith(_SENTINEL) else _PORT) for one in (first, *others)]
    except ValueError:  # its message quotes the URL
        raise ValueError(f"its host or port cannot be read: {_FORM}; {_ENCODE}") from None
    if "#" in rest or "@" in parts.path or "@" in parts.query:
        raise ValueError(f"it has a # or, after the host, an @: {_FORM}; {_ENCODE}")
    options: dict[str, str | int | bool] = {}
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    given = _read_options(parts, scheme)
    name, path = "", parts.path.removeprefix("/")
    if scheme == "unix":
        if hosts:
            raise ValueError("a unix URL has no host: write three slashes, unix:///PATH?db=DB")
        if not parts.path:
            raise ValueError("a unix URL needs a path: write unix:///PATH?db=DB")
        options["path"], path = unquote(parts.path), ""
    elif scheme.endswith(_SENTINEL):
        name, _, path = path.partition("/")
        if not name or not all(host for host, _ in found):
            raise ValueError("it does not say which primary to ask for: write redis+sentinel://HOST:PORT,.../NAME/DB")
    elif scheme.endswith(_CLUSTER):
        if not all(host for host, _ in found):
            raise ValueError("it names no node of the cluster: write redis+cluster://HOST:PORT,HOST:PORT")
    else:
        ((host, port),) = found
        options["host"], options["port"] = host or "localhost", port
    db = _database(given.pop("db", path or "0"))
    login_there = {_SENTINEL_LOGIN[option]: given.pop(option) for option in _SENTINEL_LOGIN if option in given}
    tls = {option: _tls_value(option, value) for option, value in given.items() if option in _TLS}
    options.update({**given, **tls})
    if scheme.endswith(_CLUSTER):
        return Address(scheme.removesuffix(_CLUSTER), db, options, nodes=tuple(found))
    scheme = scheme.removesuffix(_SENTINEL)
    if not name:
        return Address(scheme, db, options)
    return Address(scheme, db, options, Sentinels(tuple(found), unquote(name), {**login_there, **tls}))


def _host(text: str, default: int) -> Host:
    """Return host and port of one server.

    Raises:
        ValueError: it is malformed.
    """
    parts = urlsplit(f"//{text}")
    return unquote(parts.hostname or ""), default if parts.port is None else parts.port


def _tls_value(option: str, value: str) -> str | bool:
    return value not in {"false", "False", "no", "0"} if option == "ssl_check_hostname" else value


def _database(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ValueError(f"its database is not a whole number: {_FORM}; {_ENCODE}")
    return int(text)


def _read_options(parts: SplitResult, scheme: str) -> dict[str, str]:
    try:
        found = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ValueError(f"the part after ? is not NAME=VALUE&...: {_FORM}; {_ENCODE}") from None
    secure = scheme.startswith("rediss")
    known = (*_PLAIN, *(_SENTINEL_LOGIN if scheme.endswith(_SENTINEL) else ()), *(_TLS if secure else ()))
    for name, value in found.items():
        if name not in known:
            tls = "" if secure or scheme == "unix" else "; the options of TLS, ssl_..., belong to rediss://"
            raise ValueError(f"it has an unknown option: the options are {', '.join(known)}{tls}")
        if name in _FILES and not Path(value).is_file():
            raise ValueError(f"{name} is not the path of a file: write the whole path")
        if name == "ssl_cert_reqs" and value not in {"required", "optional", "none"}:
            raise ValueError("ssl_cert_reqs must be required, optional or none")
    return found
