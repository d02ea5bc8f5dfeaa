"""A call: the words to send to Redis, and the function that reads the reply. `senders.py` sends it.

Most calls run a Lua script, one file per verb. Each script is linked with the shared blocks that its header declares
(`-- USES`), and begins with the checks of its arguments that follow from its header. The files are those of the
checkout if there is one, else those of the installed package: an editable install copies lua/ too, and that copy
becomes stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct, structs

from evsched.jobs.record import LUA_CONSTANTS
from evsched.transport.address import Host

T = TypeVar("T")
Word = str | bytes | int | float


_READERS: Final = frozenset(
    (
        *("CLUSTER", "DBSIZE", "EXISTS", "GET", "INFO", "PUBSUB", "SCAN", "TIME", "TYPE"),
        *("HGET", "HGETALL", "HMGET", "HSCAN", "HSTRLEN", "LINDEX", "LRANGE", "SCARD", "SMEMBERS", "SSCAN"),
        *("XINFO", "XLEN", "XREAD", "XREVRANGE", "ZCARD", "ZRANGE", "ZSCAN", "ZSCORE"),
    )
)
"""Commands that change nothing, as they are used here."""


class Script(Struct, frozen=True):
    """A Lua script. Its SHA is its version, so old and new code can run side by side."""

    name: str
    source: str
    sha: str


class Call(Struct, Generic[T], frozen=True):
    """One command, and the function that converts its raw reply to a value.

    With a script, `words` are what follows the SHA: the number of keys, the keys, the arguments.
    """

    words: tuple[Word, ...]
    read: Callable[[Any], T]
    script: Script | None = None
    near: Word | None = None
    """In a cluster: a key of the node that is asked; None = any node."""
    node: Host | None = None
    """In a cluster: the node that is asked, whatever `near` is."""
    again: Callable[[float], Call[T]] | None = None
    """Make the call to send when this one may have been done, which does not do it twice and whose refusal says that it
    was not done. It is given the time, by Redis's clock, at which this one was sent first. None = send this one again,
    whose refusal does not say that."""

    @property
    def name(self) -> str:
        """The name for messages: the verb, or the command."""
        return self.script.name if self.script else str(self.words[0])

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        if self.script is not None:
            return not self.script.source.startswith("#!lua flags=no-writes")
        return str(self.words[0]) not in _READERS

    def at(self, node: Host | None) -> Call[T]:
        """Return the call to one of the nodes that `nodes` of a sender returns."""
        return self if node is None else structs.replace(self, node=node)

    def by_sha(self) -> tuple[Word, ...]:
        """Return the words to send first."""
        return self.words if self.script is None else ("EVALSHA", self.script.sha, *self.words)

    def by_source(self) -> tuple[Word, ...]:
        """Return the words to send when Redis does not know the SHA (restart, failover, SCRIPT FLUSH)."""
        return self.words if self.script is None else ("EVAL", self.script.source, *self.words)


def raw(reply: Any) -> Any:
    """Return a reply as it is."""
    return reply


def text(reply: bytes) -> str:
    """Read a reply as text; bytes that are not UTF-8 become escapes."""
    return reply.decode(errors="backslashreplace")


def texts(reply: list[bytes]) -> list[str]:
    """Read a list of texts."""
    return [text(item) for item in reply]


ALWAYS: Final = "root"
"""The name whose block stands before every script without being declared: it defines the names of the keys."""

CHECK: Final = "check_number"
"""The shared function that refuses an argument that is not a number of its kind."""

_ARGUMENT: Final = re.compile(r"^--.{8}(\w+)  +(?:(number|count|score)( or '')?: )?", re.MULTILINE)
_DEFINED: Final = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_USES: Final = re.compile(r"^-- USES +((?:.*,\n-- +)*.*)$", re.MULTILINE)
_RARE: Final = re.compile(r"^-- RARE +((?:.*,\n-- +)*.*)$", re.MULTILINE)


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
    return _names(_USES, text)


def seldom(text: str) -> tuple[str, ...]:
    """Return the shared functions that a script declares with `-- RARE`: most of its calls do without them."""
    return _names(_RARE, text)


def _names(mark: re.Pattern[str], text: str) -> tuple[str, ...]:
    found = mark.search(text)
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


def arguments(text: str, mark: str) -> list[tuple[str, str, str]]:
    """Return the arguments that a header has under `ARGV` or `ROWS`: name, kind or "", and " or ''" if it may be empty.

    The kind, `number`, `count` or `score`, stands before the meaning.
    """
    section = re.search(rf"^-- {mark} .*(?:\n-- {{7}} .*)*", text, re.MULTILINE)
    return _ARGUMENT.findall(section[0]) if section else []


def checks(text: str) -> str:
    """Return the Lua code that refuses a call whose arguments are missing or not of their kind, before it writes."""
    once, row = arguments(text, "ARGV"), arguments(text, "ROWS")
    takes = f"{len(once)} argument{'s' * (len(once) > 1)}" + (f" and rows of {len(row)}" if row else "")
    wrong = f"#ARGV < {len(once)}" if row else f"#ARGV ~= {len(once)}"
    if len(row) > 1:
        wrong += f" or (#ARGV - {len(once)}) % {len(row)} ~= 0"
    refusal = f"error({{ err = 'ERR ' .. #ARGV .. ' words are not {takes}, so nothing was written' }})"
    lines = [f"if {wrong} then {refusal} end", *_kinds(once, lambda at: str(at + 1))]
    of_rows = _kinds(row, lambda at: f"at + {at + 1}")
    if of_rows:
        lines += [f"for at = {len(once)}, #ARGV - 1, {len(row)} do", *of_rows, "end"]
    return "\n".join(lines)


def _kinds(found: list[tuple[str, str, str]], index: Callable[[int], str]) -> list[str]:
    lines: list[str] = []
    for at, (name, kind, empty) in enumerate(found):
        value = f"ARGV[{index(at)}]"
        check = f"{CHECK}('{name}', {value}" + ("" if kind == "number" else f", '{kind}'") + ")"
        if kind:
            lines.append(f"if {value} ~= '' then {check} end" if empty else check)
    return lines


@cache
def script(verb: str) -> Script:
    """Return the script of a verb: its flags, the shared blocks that it needs, the checks of its arguments, its code.

    It contains no other blocks, and makes the rare ones (`-- RARE`) only when a call comes to them: Redis creates each
    function again in every call, which takes 0.1 us and more.
    """
    flags, _, body = read(folder() / f"{verb}.lua").partition("\n")
    checked = checks(body)
    names = (ALWAYS, *declared(body), *([CHECK] if CHECK in checked else []))
    rare = seldom(body)
    common = needed(names, without=rare)
    rest = [block for block in needed(names) if block not in common]
    parts = [*(block.text for block in common), checked, body]
    if rest:
        parts = [through_rare(part, rare) for part in parts]
        parts = [parts[0], "local rare", *parts[1:-2], _made_once(rest, rare), *parts[-2:]]
    source = "\n\n".join([flags, *parts])
    return Script(verb, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def through_rare(code: str, names: Iterable[str]) -> str:
    """Return Lua code with `rare().` before each call of these names, or of what they contain."""
    call = re.compile(rf"(?<![.\w])(?=(?:{'|'.join(names)})(?:\(|\.\w))")
    return re.sub(r"(?m)^(?! *--).*", lambda line: call.sub("rare().", line[0]), code)


def _made_once(blocks: list[Block], names: Iterable[str]) -> str:
    """Return Lua code: the function that makes blocks when a call needs one of these names for the first time."""
    inner = "\n\n".join(block.text for block in blocks)
    fields = ", ".join(f"{name} = {name}" for name in names)
    return f"local made\nrare = function()\nif not made then\n\n{inner}\n\nmade = {{ {fields} }}\nend\nreturn made\nend"


@cache
def read_scripts() -> None:
    """Read all scripts, which takes 5 ms; programs that run for long do it when they start.

    So a release that is removed, or replaced, while they run cannot stop them or mix new Lua with old Python. A command
    reads only the one or two scripts that it needs.
    """
    for path in folder().glob("[!_]*.lua"):
        script(path.stem)


def needed(names: Iterable[str], without: Iterable[str] = ()) -> list[Block]:
    """Return the blocks that define these names, each after the blocks that it uses itself.

    `without`: names that are left out, with what only they use.
    """
    found: dict[Block, None] = {}
    left_out = set(without)

    def add(name: str) -> None:
        block = shared()[name]
        if block not in found and name not in left_out:
            for used in block.uses:
                add(used)
            found[block] = None

    for name in names:
        add(name)
    return list(found)
