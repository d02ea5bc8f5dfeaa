"""The Lua files, one per verb, each linked with the shared blocks that its header declares (`-- USES`).

The files are those of the checkout when there is one, else of the installed package: an editable install copies lua/
too, and that copy goes stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

from evsched.jobs.record import LUA_CONSTANTS
from evsched.transport.call import Script

ALWAYS: Final = "root"
"""The name whose block stands before every script without being declared: it defines the names of the keys."""

_DEFINED: Final = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_USES: Final = re.compile(r"^-- USES +((?:.*,\n-- +)*.*)$", re.MULTILINE)


class Block(NamedTuple):
    """A part of a shared file, between blank lines: the names that it defines, and those of other blocks it uses."""

    names: tuple[str, ...]
    uses: tuple[str, ...]
    text: str


@cache
def folder() -> Path:
    """Return the folder of the Lua files."""
    package = Path(__file__).parents[1]
    checkout = package.parent / "lua"
    return checkout if (checkout / "_prelude.lua").is_file() else package / "lua"


def read(path: Path) -> str:
    """Return the text of a Lua file, with the constants of `jobs/record.py` written out: lists of a record's fields."""
    text = path.read_text(encoding="utf-8")
    for name, value in LUA_CONSTANTS.items():
        text = text.replace(name, value)
    return text


def declared(text: str) -> tuple[str, ...]:
    """Return the shared names that a script or a block declares with `-- USES`."""
    found = _USES.search(text)
    return tuple(re.findall(r"\w+", found[1])) if found else ()


@cache
def shared() -> dict[str, Block]:
    """Return the blocks of all shared files (`_*.lua`) by the names that they define."""
    blocks: dict[str, Block] = {}
    for path in sorted(folder().glob("_*.lua")):
        for text in re.split(r"\n\n+", read(path)):
            names = tuple(re.findall(r"\w+", " ".join(_DEFINED.findall(text))))
            blocks.update(dict.fromkeys(names, Block(names, declared(text), text.strip())))
    return blocks


@cache
def script(verb: str) -> Script:
    """Return the script of a verb: its first line (the flags), the shared blocks that it needs, and the rest.

    It contains no other blocks: Redis creates each function again in every call, which takes 0.1 us.
    """
    flags, _, body = read(folder() / f"{verb}.lua").partition("\n")
    blocks = needed((ALWAYS, *declared(body)))
    source = "\n\n".join([flags, *(block.text for block in blocks), body])
    return Script(verb, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def read_all() -> None:
    """Read all scripts, which takes 5 ms; programs that run for long do it when they start.

    So a release that is removed, or replaced, while they run cannot stop them or mix new Lua with old Python. A command
    reads only the one or two scripts that it needs.
    """
    for path in folder().glob("[!_]*.lua"):
        script(path.stem)


def needed(names: Iterable[str]) -> list[Block]:
    """Return the blocks that define these names, each after the blocks that it uses itself."""
    found: dict[Block, None] = {}

    def add(name: str) -> None:
        block = shared()[name]
        if block not in found:
            for used in block.uses:
                add(used)
            found[block] = None

    for name in names:
        add(name)
    return list(found)
