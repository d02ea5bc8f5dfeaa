"""A command line that cyclopts refuses: what is wrong, and what to write instead. Imported for an error only."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import pairwise

from cyclopts import App, CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnusedCliTokensError

from evsched.cli.usage import UsageError


def mistake(error: CycloptsError, root: App, words: Sequence[str]) -> UsageError:
    """Return the error to show for a command line, whose words are `words`."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return UsageError(_unused(root[words[0]], words, error.unused_tokens))
    if isinstance(error, MissingArgumentError) and (like := _value_like_a_flag(error, words)):
        return UsageError(like)
    return UsageError(f"{error} (see evsched --help)")


def _unused(command: App, words: Sequence[str], unused: Sequence[str]) -> str:
    """Say which word is not expected: in a family of commands, it is the name of a command."""
    first, commands = unused[0], [name for name in command if not name.startswith("-")]
    if commands and words[1:2] == [first]:
        near = difflib.get_close_matches(first, commands, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(commands)}"
        return f"there is no command '{words[0]} {first}', {hint} (see evsched {words[0]} --help)"
    named = " ".join([words[0], *(word for word in words[1:2] if word in commands)])
    listed = ", ".join(map(repr, unused))
    return f"{named} does not take {listed}: leave it out (see evsched {named} --help)"


def _value_like_a_flag(error: MissingArgumentError, words: Sequence[str]) -> str:
    """Say that the value of a flag begins as a flag does, if that is why it is missing."""
    names = error.argument.names if error.argument is not None else ()
    for word, value in pairwise(words):
        if word in names and value.startswith("-"):
            return (
                f"{word} requires a value, and {value!r} begins like a flag: if it is the value, write {word}={value}"
            )
    return ""
