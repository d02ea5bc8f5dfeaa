"""A request as its payload describes it: read and checked once, before anything is sent. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct

from evsched.client.target_url import Target, read_url
from evsched.jobs.steering import GiveUp

HttpMethod = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

SECRET_NAME: Final = re.compile(r"[A-Z0-9_]+")
"""The name of a secret that requests are signed with."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~]([\t -~]*[!-~])?|")

_FRAMING: Final = (
    *("connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te", "trailer"),
    *("transfer-encoding", "upgrade"),
)
"""Headers that belong to the connection, or tell where the request ends. A second opinion of these is an attack."""

_RESERVED: Final = ("proxy-", "webhook-")
"""What the names of headers begin with that belong to the connection, or to the signature."""


class Request(Struct, frozen=True):
    """A request, without the headers that evsched adds for the job."""

    method: HttpMethod
    target: Target
    headers: dict[str, str]
    """By their names in lower case."""
    content: bytes

    @property
    def has_body(self) -> bool:
        """Whether its length is sent. A server may refuse a POST without one."""
        return bool(self.content) or self.method in ("POST", "PUT", "PATCH")


def read_request(
    url: str, method: HttpMethod, headers: Mapping[str, str], body: str | None, json: Any = UNSET
) -> Request:
    """Make a request of a payload's arguments. `json` UNSET: there is none.

    Raises:
        GiveUp: they are not valid. The reason quotes no value, since any may be secret.
    """
    target, found = read_url(url), _read_headers(headers)
    if body is not None and json is not UNSET:
        raise GiveUp("the request has a body and json: give one of them")
    if body is not None:
        return Request(method, target, {"content-type": "text/plain; charset=utf-8", **found}, body.encode())
    if json is not UNSET:
        return Request(method, target, {"content-type": "application/json", **found}, msgspec.json.encode(json))
    return Request(method, target, found, b"")


def _read_headers(headers: Mapping[str, str]) -> dict[str, str]:
    found = dict[str, str]()
    for n, (given, value) in enumerate(headers.items(), start=1):
        name = given.lower()
        if not _NAME.fullmatch(given):
            raise GiveUp(f"the name of header {n} is not valid: it may have letters, digits and !#$%&'*+-.^_`|~")
        if name in _FRAMING or name.startswith(_RESERVED):
            raise GiveUp(f"a payload may not set the header {name}: leave it out; it is sent where it is needed")
        if name in found:
            raise GiveUp(f"the header {name} is there twice: join its values with a comma")
        if not _VALUE.fullmatch(value):
            raise GiveUp(
                f"the value of the header {name} is not valid: it may have visible ASCII characters, with blanks and "
                "tabs between them"
            )
        found[name] = value
    return found
