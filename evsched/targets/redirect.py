"""The request that follows a redirect. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin

from msgspec.structs import replace

from evsched.client.target_request import Request
from evsched.client.target_url import read_url
from evsched.jobs.steering import GiveUp

REDIRECTS: Final = (301, 302, 303, 307, 308)


def redirected(request: Request, status: int, location: str) -> Request:
    """Return the request that follows a redirect (RFC 9110, 15.4).

    To another origin, no header of the payload is sent but `Content-Type`: any of them may be a credential.

    Raises:
        GiveUp: the location is not valid, or would send the request over plain HTTP instead of TLS.
    """
    before = request.target
    try:
        target = read_url(urljoin(f"{before.origin}{before.path}", location))
    except (GiveUp, ValueError) as error:
        raise GiveUp(f"{before.origin} redirects to a URL that is not valid: {error}") from None
    if before.scheme == "https" and target.scheme == "http":
        raise GiveUp(f"{before.origin} redirects to {target.origin}, without TLS: name the final URL in the payload")
    headers = request.headers
    if target.origin != before.origin:
        headers = {name: value for name, value in headers.items() if name == "content-type"}
    to_get = request.method != "HEAD" and (status == 303 or (status in (301, 302) and request.method == "POST"))
    if to_get:
        kept = {name: value for name, value in headers.items() if not name.startswith("content-")}
        return Request("GET", target, kept, b"")
    return replace(request, target=target, headers=headers)
