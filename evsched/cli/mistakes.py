"""Explains a command line that cyclopts refuses, and has the console of rich: for an error or the help only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from cyclopts import App, ArgumentCollection, CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError
from rich.console import Console

from evsched.cli.commands import UsageError
from evsched.display import nearest
from evsched.environment import former

_ALIKE: Final = 0.7
"""How alike an unknown option and the one that is suggested must be, from 0 to 1: --quee and --queue are, --from and
--group are not."""

_OTHER_WORDS: Final = {"--from": "--since", "--to": "--until"}
"""Options of some commands, and their names in other programs."""


def mistake(error: CycloptsError, root: App, words: Sequence[str]) -> UsageError:
    """Return the error to show for a command line, whose words are `words`."""
    named = " ".join(error.command_chain or words[:1])
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return UsageError(_unused(root[words[0]], words, error.unused_tokens))
    if isinstance(error, MissingArgumentError) and (like := _value_like_a_flag(error, words)):
        return UsageError(like)
    if isinstance(error, UnknownOptionError) and (option := error.token.keyword or error.token.value).startswith("--"):
        return UsageError(_unknown(option.partition("=")[0], named, error.argument_collection))
    return UsageError(f"{error} (see evsched {named} --help)")


def _unknown(option: str, named: str, arguments: ArgumentCollection) -> str:
    """Say that a command does not have an option, and which is meant, if that is clear."""
    names = [name for argument in arguments for name in argument.names]
    near = nearest(option.lower(), names, alike=_ALIKE)
    hint = ""
    if "--log-level" in names and (instead := former(option)):  # a service: the other commands have no settings
        hint = f": {instead}"
    elif (word := option.removeprefix("--").upper()) in names:
        hint = f": write evsched {named} {word}, without the option's name"
    elif (other := _OTHER_WORDS.get(option)) in names:
        hint = f", did you mean {other}?"
    elif near:
        hint = f", did you mean {near[0]}?"
    return f"{named} has no option {option}{hint} (see evsched {named} --help)"


def _unused(command: App, words: Sequence[str], unused: Sequence[str]) -> str:
    """Say which word is not expected: in a family of commands, it is the name of a command."""
    first, commands = unused[0], [name for name in command if not name.startswith("-")]
    has_queue = command.default_command is not None and any(
        "--queue" in option.names for option in command.assemble_argument_collection()
    )
    queue = f"; a queue is named by --queue {first}" if has_queue else ""
    if commands and words[1:2] == [first]:
        near = nearest(first, commands)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(commands)}{queue}"
        return f"there is no command '{words[0]} {first}', {hint} (see evsched {words[0]} --help)"
    named = " ".join([words[0], *(word for word in words[1:2] if word in commands)])
    listed = ", ".join(map(repr, unused))
    return f"{named} does not take {listed}: leave it out{queue} (see evsched {named} --help)"


def _value_like_a_flag(error: MissingArgumentError, words: Sequence[str]) -> str:
    """Say that the value of a flag begins as a flag does, if that is why it is missing."""
    names = error.argument.names if error.argument is not None else ()
    for word, value in pairwise(words):
        if word in names and value.startswith("-"):
            return (
                f"{word} requires a value, and {value!r} begins like a flag: if it is the value, write {word}={value}"
            )
    return ""


class PipeConsole(Console):
    """A console whose broken pipe is handled by `main`, as that of any other output: rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise
