"""The queues of a worker as a user writes them: `mail`, or `mail:3`, which gets three times the slots under load."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from evsched.errors import ConfigError

_WEIGHTED: Final = re.compile(r"(.+):([0-9]+(?:\.[0-9]+)?)")

_LEAST: Final = 0.001
_MOST: Final = 1000.0
_RULE: Final = f"a weight is from {_LEAST:g} to {_MOST:g}, such as 3 or 0.5"


def split_weights(queues: Iterable[str]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the names, and the weights that are not 1.

    Raises:
        ConfigError: a weight is out of bounds, or a queue has no name, or is named twice.
    """
    names, weights = list[str](), dict[str, float]()
    for text in queues:
        found = _WEIGHTED.fullmatch(text)
        if not found and _ends_as_number(text):
            raise ConfigError(f"queue {text!r}: {_RULE}; if that is the queue's whole name, add a weight: {text}:1")
        name = found[1] if found else text
        if not name:
            raise ConfigError("a queue's name is empty: in EVSCHED_QUEUES, write one comma between two names")
        if name in names:
            raise ConfigError(f"queue {name!r} is named twice")
        names.append(name)
        weight = float(found[2]) if found else 1.0
        if not _LEAST <= weight <= _MOST:
            raise ConfigError(f"queue {text!r}: {_RULE}")
        if weight != 1.0:
            weights[name] = weight
    return tuple(names), weights


def join_weights(queues: Iterable[str], weights: Mapping[str, float]) -> list[str]:
    """Return the names in the form that `split_weights` reads; with a weight if they end in a colon and a number."""
    return [
        f"{name}:{weights.get(name, 1.0):f}" if name in weights or _ends_as_number(name) else name for name in queues
    ]


def as_flag(queue: str) -> str:
    """Return the name of a queue as a worker, a dispatcher or the API takes it with --queue."""
    return f"{queue}:1" if _ends_as_number(queue) else queue


def _ends_as_number(text: str) -> bool:
    """Return whether a number of any form follows the last colon: -1, 1e3 and nan are numbers, but not weights."""
    _, colon, end = text.rpartition(":")
    try:
        float(end)
    except ValueError:
        return False
    return bool(colon)
