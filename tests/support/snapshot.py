"""A whole queue as one plain value, so that a test compares whole states."""

from __future__ import annotations

from typing import Any


def snapshot(raw: Any, queue: str) -> dict[str, Any]:
    """Return all keys of a queue, by their names after the root, with what they hold as text."""
    root = f"evsched:{{{queue}}}:"
    found: dict[str, Any] = {}
    for key in sorted(raw.scan_iter(match=f"{root}*", count=1000)):
        name, kind = _text(key).removeprefix(root), _text(raw.type(key))
        if kind == "zset":
            found[name] = {_text(member): score for member, score in raw.zrange(key, 0, -1, withscores=True)}
        elif kind == "list":
            found[name] = [_text(item) for item in raw.lrange(key, 0, -1)]
        elif kind == "hash":
            found[name] = {_text(field): _text(value) for field, value in raw.hgetall(key).items()}
    return found


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
