"""The queues of a worker as a user writes them: `mail`, or `mail=3`, which gets three times the slots under load."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from evsched.errors import ConfigError

_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_FRACTION_AFTER_COLON: Final = re.compile(r"(.+):([0-9]+\.[0-9]+)")

_LEAST: Final = 0.001
_MOST: Final = 1000.0
_RULE: Final = f"a weight is from {_LEAST:g} to {_MOST:g}, such as 3 or 0.5"


def split_weights(queues: Iterable[str]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the names, and the weights that are not 1.

    Raises:
        ConfigError: a weight is out of bounds or stands after a colon, or a queue has no name, or is named twice.
    """
    names, weights = list[str](), dict[str, float]()
    for text in queues:
        name, equals, number = text.partition("=")
        if not name:
            raise ConfigError("a queue's name is empty: in EVSCHED_QUEUES, write one comma between two names")
        if name in names:
            raise ConfigError(f"queue {name!r} is named twice")
        names.append(name)
        if found := _FRACTION_AFTER_COLON.fullmatch(name):  # a whole number there names a shard
            raise ConfigError(f"queue {name!r}: a weight is written {found[1]}={found[2]}")
        if not equals:
            continue
        if not _NUMBER.fullmatch(number) or not _LEAST <= float(number) <= _MOST:
            raise ConfigError(f"queue {text!r}: {_RULE}")
        if float(number) != 1.0:
            weights[name] = float(number)
    return tuple(names), weights


def join_weights(queues: Iterable[str], weights: Mapping[str, float]) -> list[str]:
    """Return the names in the form that `split_weights` reads."""
    return [f"{name}={weights[name]:f}" if name in weights else name for name in queues]
