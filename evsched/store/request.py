"""A request that is done once: its repetitions do nothing, and get the reply of the first (lua/_unique.lua)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Request(Struct, frozen=True):
    """A request that is done once. Both are digests: of the name that its caller gave it, and of what it asks for."""

    key: str
    asked: str


NO_REQUEST: Final = Request("", "")
