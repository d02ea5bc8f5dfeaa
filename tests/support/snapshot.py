"""A whole queue as one plain value, so that a test compares whole states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def snapshot(raw: Any, queue: str) -> dict[str, Any]:
    """Return the content of all keys of a queue as text, by their names after the root, without the history.

    Light jobs are in the records, where readers see them.
    """
    root = f"evsched:{{{queue}}}:"
    found_keys = raw.scan_iter(match=f"{root}*", count=1000)
    keys = sorted(key for key in found_keys if not _text(key).startswith((f"{root}history", f"{root}hour:")))
    pipe = raw.pipeline(transaction=False)
    for key in keys:
        pipe.type(key)
    read: dict[str, Callable[[bytes], Any]] = {
        "zset": lambda key: pipe.zrange(key, 0, -1, withscores=True),
        "list": lambda key: pipe.lrange(key, 0, -1),
        "hash": lambda key: pipe.hgetall(key),
    }
    kinds = [(key, kind) for key, kind in zip(keys, map(_text, pipe.execute()), strict=True) if kind in read]
    for key, kind in kinds:
        read[kind](key)
    found: dict[str, Any] = {}
    for (key, kind), held in zip(kinds, pipe.execute(), strict=True):
        name = _text(key).removeprefix(root)
        if kind == "zset":
            found[name] = {_text(member): score for member, score in held}
        elif kind == "list":
            found[name] = [_text(item) for item in held]
        else:
            found[name] = {_text(field): _text(value) for field, value in held.items()}
    for job, text in found.pop("light", {}).items():
        found[f"job:{job}"] = light_fields(text) | found.get(f"job:{job}", {})
    return found


def records_in(state: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the records of a snapshot by the ids of their jobs."""
    return {name.removeprefix("job:"): fields for name, fields in state.items() if name.startswith("job:")}


def light_fields(text: str) -> dict[str, str]:
    """Return the fields of a light job, as its record would have them."""
    started, worker, due, payload = text.split(" ", 3)
    fields = {"payload": payload, "due": due.lstrip("=")}
    return fields if started == "-" else fields | {"attempt": "1", "worker": worker, "started": started}


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
