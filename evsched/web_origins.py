"""Which requests a browser may have sent for a page of another site. The API and the console refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit


def is_known_host(host: str, names: Sequence[str] = ()) -> bool:
    """Return whether the header Host has an address, localhost, or one of these names; "*" = any name.

    A page may have its own name lead here (DNS rebinding): the browser then takes both for one origin, and only the
    name shows it.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name not in ("localhost", *names) and "*" not in names:
            ip_address(name)
    except ValueError:
        return False
    return True


def is_other_origin(host: str | None, origin: str | None) -> bool:
    """Return whether the header Origin is of another site than the header Host; browsers send it with each form."""
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True
