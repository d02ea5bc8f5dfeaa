"""The ids under which processes register in Redis."""

from __future__ import annotations

import os
import re
import secrets
import socket

from evsched.keys import RELEASE


def new_id() -> str:
    """Return an id for a worker: its host and pid, for people; random digits, since hosts share names; its release."""
    host, release = (re.sub(r"[^A-Za-z0-9._-]", "-", text) for text in (socket.gethostname()[:60], RELEASE))
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}-{release}"


def release_of(worker: str) -> str | None:
    """Return the release of evsched that made an id; None if the id does not say it, as before 0.1.0."""
    found = re.search(r"-\d+-[0-9a-f]{8}-(.+)$", worker)
    return found and found[1]
