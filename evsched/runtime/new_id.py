"""The ids under which processes register in Redis."""

from __future__ import annotations

import os
import re
import secrets
import socket


def new_id() -> str:
    """Return an id for a worker: where it runs, for people; random, since hosts and containers share names and pids."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
