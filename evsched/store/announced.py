"""What a worker has written to Redis of its app, by which it is seen later whether Redis has lost that."""

from __future__ import annotations

from msgspec import Struct


class Announced(Struct, frozen=True):
    """What a worker has announced in a queue; empty texts if it has not."""

    owner: str = ""
    """The app."""
    content: str = ""
    """The digest of all that it declares there."""
    program: str = ""
    """The digest of the names of its tasks; empty also if it has none."""
    revision: float | None = None
    """The revision of the content, which Redis may lose; None = not registered yet."""
