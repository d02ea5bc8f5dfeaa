"""Options that are passed by name: a name that does not exist is an error at run time too, as for any function."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse an option that `function` does not take.

    Raises:
        TypeError: as Python does for an unexpected keyword argument; the message suggests the nearest name.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f", did you mean {near[0]!r}?" if near else f": its options are {', '.join(sorted(known))}"
            raise TypeError(f"{function}() takes no option {name!r}{hint}")
