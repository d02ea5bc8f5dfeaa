"""Access: bearer tokens with three kinds of rights, and how many requests each caller may make (a token bucket)."""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Sequence, Set
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal

from evsched.api.replies import Problem
from evsched.config import Config, variable
from evsched.errors import ConfigError


class Bucket:
    """Lets `rate` requests a second through, and after a pause as many at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate)
        self._left = self._most
        self._at = 0.0

    def take(self, now: float) -> float:
        """Let one request through and return 0, or return the seconds until the next may come. `now`: monotonic."""
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0


Scope = Literal["read", "write", "work"]
"""A right that an operation needs, and a token gives: to read, to change, to run jobs. A token that may write may also
read. Workers get all arguments, also redacted ones, which readers do not; so no other right includes this one.
"""

_FORM: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The characters of a bearer token (RFC 6750)."""

_FILE: Final = "file:"
"""Before the path of a file of tokens. No token has a colon."""

_SHORTEST: Final = 20
"""Characters of a token: of fewer, all could be tried."""


class _Caller:
    """One token, of which only the digest is kept."""

    def __init__(self, token: str, scopes: Set[Scope], rate: float) -> None:
        self.digest = _digest(token)
        self.scopes = scopes
        self.bucket = Bucket(rate)


_HOST: Final = re.compile(r"\*|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")

_NO_HOSTS: Final = {"true", "false", "yes", "no", "on", "off", "0", "1"}
"""Words that say whether, and not for which hosts: `false` must not open the API."""


class Access:
    """Knows the tokens.

    Raises:
        ConfigError: there is no token and the API is not open; or a token or a file of tokens is not valid.
    """

    def __init__(self, config: Config) -> None:
        read = _read_tokens("api_read_tokens", config.api_read_tokens)
        write = _read_tokens("api_write_tokens", config.api_write_tokens)
        work = _read_tokens("api_work_tokens", config.api_work_tokens)
        if read & write:
            raise ConfigError("the same API token is given for reading and for writing: give it for writing only")
        for name in config.api_open_hosts:
            if not _HOST.fullmatch(name) or name.lower() in _NO_HOSTS:
                raise ConfigError(
                    f"EVSCHED_API_OPEN_HOSTS: {name!r} is not the name of a host: write it without scheme and port, as "
                    "api.example.com, or *; leave it out if callers need a token"
                )
        if config.api_open_hosts and (read or write or work):
            raise ConfigError("the API has tokens, and is open to callers without one: leave out one of both")
        if not (config.api_open_hosts or read or write or work):
            raise ConfigError(
                "the API has no token: set EVSCHED_API_WRITE_TOKENS to a secret, such as the output of `openssl rand "
                "-hex 32`; or let every caller of this host read and write with --open-host localhost"
            )
        rate = config.api_rate
        granted: dict[Scope, set[str]] = {"read": read | write, "write": write, "work": work}
        self._callers = [
            _Caller(token, {scope for scope, tokens in granted.items() if token in tokens}, rate)
            for token in sorted(read | write | work)
        ]
        self._open = Bucket(rate) if config.api_open_hosts else None
        self._unknown = Bucket(config.api_unknown_rate)

    def admit(self, authorization: str | None, needs: Scope, now: float) -> str:
        """Let a request pass, and return a digest of its token; "" = it has none. `authorization`: that header.

        `now`: the monotonic clock.

        Raises:
            Problem: the token is missing, unknown or not enough (401, 403), or there were too many requests (429).
        """
        if self._open is not None:
            _take(self._open, now, "of all callers")
            return ""
        caller = self._find(authorization)
        if caller is None:
            _take(self._unknown, now, "without a valid token")
            what = "has no bearer token" if authorization is None else "has a token that is not known here"
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "no-token",
                f"the request {what}: send the header `Authorization: Bearer TOKEN`",
                {"WWW-Authenticate": 'Bearer realm="evsched"'},
            )
        _take(caller.bucket, now, "with this token")
        if needs not in caller.scopes:
            may = " and ".join(sorted(caller.scopes))
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "missing-right",
                f"this token may only {may}: use one that may {needs}",
                {"WWW-Authenticate": f'Bearer realm="evsched", error="insufficient_scope", scope="{needs}"'},
            )
        return caller.digest.hex()

    def knows(self, authorization: str | None) -> bool:
        """Return whether that header has a valid token, or none is needed."""
        return self._open is not None or self._find(authorization) is not None

    def admit_anyone(self, now: float) -> None:
        """Let a request pass that needs no token.

        Raises:
            Problem: there were too many.
        """
        _take(self._open or self._unknown, now, "without a token")

    def _find(self, authorization: str | None) -> _Caller | None:
        """Return the caller of a token. It takes the same time wherever the token is in the list, and if it is not."""
        scheme, _, token = (authorization or "").partition(" ")
        given, found = _digest(token.strip()), None
        for caller in self._callers:
            if hmac.compare_digest(caller.digest, given):
                found = caller
        return found if scheme.lower() == "bearer" else None


def _take(bucket: Bucket, now: float, whose: str) -> None:
    if wait := bucket.take(now):
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            "too-many-requests",
            f"there are too many requests {whose}: send fewer, or many jobs in one request",
            {"Retry-After": str(math.ceil(wait))},
        )


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="backslashreplace")).digest()


def _read_tokens(setting: str, given: Sequence[str]) -> set[str]:
    """Return the tokens of a setting, and those of the files that it names. No message has a token in it.

    An empty variable counts as not set: compose files pass variables on that have no value.
    """
    tokens = list[tuple[str, str]]()
    for number, token in enumerate(given if given != ("",) else (), 1):
        if token.startswith(_FILE):
            tokens += _read_file(token.removeprefix(_FILE))
        else:
            tokens.append((f"{variable(setting)}: token {number}", token.strip()))
    for where, token in tokens:
        if len(token) < _SHORTEST or not _FORM.fullmatch(token):
            raise ConfigError(
                f"{where} is not valid: it has at least {_SHORTEST} of A-Z a-z 0-9 . _ ~ + / -, such as the output of "
                "`openssl rand -hex 32`"
            )
    return {token for _, token in tokens}


def _read_file(file: str) -> list[tuple[str, str]]:
    """Return the tokens of a file, each with where it stands."""
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the file of API tokens {file} cannot be read: {why}") from None
    return [
        (f"{file}, line {number}: the token", line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
