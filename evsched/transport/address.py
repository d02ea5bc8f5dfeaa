"""The URL of Redis: how it is parsed, and how it is shown without its password.

A URL is parsed strictly. A lenient parser could take a part of an unescaped password for the host or the path, which
would then be shown. A URL that is refused is never quoted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from evsched.errors import ConfigError

_SCHEMES: Final = ("redis", "rediss", "unix")

_PLAIN: Final = ("db", "username", "password")
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS: Final = (*_FILES, "ssl_ca_path", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname")
"""The options of TLS, with the names of redis-py."""

_SECRET: Final = ("password", "ssl_password", "username")

_FORM: Final = "write redis://USER:PASSWORD@HOST:PORT/DB, rediss://... for TLS, or unix:///PATH?db=DB"
_ENCODE: Final = (
    "in a password, percent-encode characters with a meaning in a URL: %2F for /, %23 for #, %3F for ?, %40 for @, "
    "%3A for :, %25 for %"
)


class Address(Struct, frozen=True):
    """Where Redis is, and how to log in. `options` are those of redis-py's connections."""

    scheme: str
    db: int
    options: dict[str, str | int | bool]


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
    parts = urlsplit(url)
    # The user is hidden too: it may be a password in the wrong place, or the part of one before a colon.
    _, at, host = parts.netloc.rpartition("@")
    options = "&".join(f"{name}={'***' if name in _SECRET else value}" for name, value in parse_qsl(parts.query))
    return f"{parts.scheme}://{'***@' if at else ''}{host}{parts.path}{'?' if options else ''}{options}"


def _parse(url: str) -> Address:
    """Parse a URL; if it is malformed, raise ValueError with a reason that quotes nothing of it."""
    scheme, slashes, rest = url.partition("://")
    if scheme not in _SCHEMES or not slashes:
        raise ValueError(f"it does not begin with redis://, rediss:// or unix://: {_FORM}")
    if not url.isprintable() or " " in url:
        raise ValueError("it contains a blank or a control character: percent-encode it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its message quotes the URL
        raise ValueError(f"its host or port cannot be read: {_FORM}; {_ENCODE}") from None
    if "#" in rest or "@" in parts.path or "@" in parts.query:
        raise ValueError(f"it has a # or, after the host, an @: {_FORM}; {_ENCODE}")
    options: dict[str, str | int | bool] = {}
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    if scheme == "unix":
        if parts.netloc.rpartition("@")[2]:
            raise ValueError("a unix URL has no host: write three slashes, unix:///PATH?db=DB")
        if not parts.path:
            raise ValueError("a unix URL needs a path: write unix:///PATH?db=DB")
        options["path"] = unquote(parts.path)
        db = 0
    else:
        options["host"] = unquote(parts.hostname or "localhost")
        options["port"] = 6379 if port is None else port
        db = _database(parts.path.removeprefix("/") or "0")
    for name, value in _read_options(parts, scheme).items():
        if name == "db":
            db = _database(value)
        else:
            options[name] = value not in {"false", "False", "no", "0"} if name == "ssl_check_hostname" else value
    return Address(scheme, db, options)


def _database(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ValueError(f"its database is not a whole number: {_FORM}; {_ENCODE}")
    return int(text)


def _read_options(parts: SplitResult, scheme: str) -> dict[str, str]:
    try:
        found = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ValueError(f"the part after ? is not NAME=VALUE&...: {_FORM}; {_ENCODE}") from None
    known = (*_PLAIN, *_TLS) if scheme == "rediss" else _PLAIN
    for name, value in found.items():
        if name not in known:
            tls = "; the options of TLS, ssl_..., belong to rediss://" if scheme == "redis" else ""
            raise ValueError(f"it has an unknown option: the options are {', '.join(known)}{tls}")
        if name in _FILES and not Path(value).is_file():
            raise ValueError(f"{name} is not the path of a file: write the whole path")
        if name == "ssl_cert_reqs" and value not in {"required", "optional", "none"}:
            raise ValueError("ssl_cert_reqs must be required, optional or none")
    return found
