"""Which blocks of the Lua scripts the tests of scripts reach: `make lua-coverage`.

A copy of the checkout gets counters in its Lua files, at the start of each block: each branch of an `if`, the `else`
that it does not have, each loop and each function. The tests run there. At the end of a call, its script logs which
counters it has met, and a program of this module between the server and its log collects them. So nothing in the
package knows of the coverage, and no key, reply or count of commands changes.

A condition is not measured by its parts: `a and b or c` is one expression.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import tree_sitter_lua
from tree_sitter import Language, Node, Parser

from tests.support.topology import pause

CHECKOUT: Final = Path(__file__).parents[2]
TESTS: Final = ["tests/scripts"]
"""Each block is to be reached by a test of its script, not only by a service that happens to pass there."""

_MARK: Final = "lua-coverage"
_PER_LINE: Final = 150
"""Counters in one line of the log, of which Redis writes 1,024 bytes."""

# The first line of each linked script, and its last: what stands between them is a function, so that an early `return`
# and an error pass here too.
_FIRST: Final = "local root = KEYS[1]"
_OPEN: Final = "local __met, root = {}, KEYS[1]; local function __script()"
_CLOSE: Final = f"""
end
local __reply = {{ pcall(__script) }}
local __line = {{}}
for __number in pairs(__met) do
  __line[#__line + 1] = __number
  if #__line == {_PER_LINE} then
    redis.log(redis.LOG_WARNING, '{_MARK} ' .. table.concat(__line, ' '))
    __line = {{}}
  end
end
redis.log(redis.LOG_WARNING, '{_MARK} ' .. table.concat(__line, ' '))
if not __reply[1] then
  error(__reply[2], 0)
end
return __reply[2]
"""


class Block(NamedTuple):
    """A block of a Lua file, by the line on which it begins."""

    file: str
    line: int
    kind: str

    def __str__(self) -> str:
        return f"lua/{self.file}:{self.line}: {self.kind}"


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)


def _begins(root: Node) -> Iterator[tuple[int, Node, str]]:
    """Yield where each block begins: the offset, the node whose line names it, and its kind."""
    opens = {"if_statement": "then", "elseif_statement": "then", "else_statement": "else"}
    opens |= {"for_statement": "do", "while_statement": "do", "repeat_statement": "repeat"}
    for node in _nodes(root):
        for child in node.children:
            if opens.get(node.type) == child.type:
                kind = node.type.removesuffix("_statement")
                yield child.end_byte, node, kind if kind in ("if", "elseif", "else") else f"{kind} loop"
            elif child.type == "parameters" and node.type.startswith("function_"):
                name = node.child_by_field_name("name")
                title = name.text.decode() if name and name.text else ""
                yield child.end_byte, node, f"function {title}".strip()
        if node.type == "if_statement" and all(child.type != "else_statement" for child in node.children):
            yield node.end_byte - len("end"), node, "if, never false"


def instrument(name: str, text: str, first: int) -> tuple[str, list[Block]]:
    """Return the text of a Lua file with a counter in each block, numbered from `first` on, and these blocks."""
    source = text.encode()
    root = Parser(Language(tree_sitter_lua.language())).parse(source).root_node
    if root.has_error:
        raise SyntaxError(f"{name} is not valid Lua")
    blocks: list[Block] = []
    pieces: list[bytes] = []
    at = 0
    for offset, node, kind in sorted(_begins(root), key=lambda begin: begin[0]):
        counter = f" __met[{first + len(blocks)}] = true; "
        if kind.endswith("never false"):
            counter = f" else{counter}"
        pieces += [source[at:offset], counter.encode()]
        blocks.append(Block(name, node.start_point.row + 1, kind))
        at = offset
    text = b"".join([*pieces, source[at:]]).decode()
    return text.replace(_FIRST, _OPEN) if name.startswith("_") else text + _CLOSE, blocks


def instrument_folder(folder: Path) -> list[Block]:
    """Rewrite the Lua files of a folder; return all blocks, whose indices are the numbers that scripts log."""
    blocks: list[Block] = []
    for path in sorted(folder.glob("*.lua")):
        text, found = instrument(path.name, path.read_text(encoding="utf-8"), len(blocks))
        path.write_text(text, encoding="utf-8")
        blocks += found
    return blocks


_WRAPPER: Final = """#!/bin/sh
# Starts the real server with a log that is a pipe to the collector.
log=
for word in "$@"; do
  case $last in --logfile) log=$word ;; esac
  last=$word
done
test -n "$log" || exec {server} "$@"
pipe=$(mktemp -u {folder}/XXXXXXXX)
mkfifo "$pipe"
{python} -m tests.support.lua_coverage --collect "$pipe.met" "$log" <"$pipe" >/dev/null 2>&1 &
exec 9>"$pipe"
exec {server} "$@" --logfile /dev/fd/9
"""


def numbers_of(line: str) -> set[int] | None:
    """Return the numbers of the blocks in a line of a server's log; None = the line is about something else."""
    _, mark, words = line.partition(_MARK)
    return {*map(int, words.split())} if mark else None


def collect(met: Path, log: Path) -> None:
    """Read a server's log from stdin: write the numbers that scripts have logged to `met`, the rest to `log`."""
    known = set[int]()
    for line in sys.stdin:
        numbers = numbers_of(line)
        if numbers is not None:
            known |= numbers
        elif log.parent.exists():  # the folder of a server that has ended is deleted
            with log.open("a") as rest:
                rest.write(line)
    part = met.with_suffix(".part")
    part.write_text(" ".join(map(str, known)))
    part.rename(met)


def _collected(folder: Path) -> list[Path]:
    """Return the files of all collectors: each is written when its server has ended, unless that had never started."""
    until = time.monotonic() + 10.0
    while time.monotonic() < until and any(
        path.is_fifo() and not path.with_suffix(".met").exists() for path in folder.iterdir()
    ):
        pause()
    return [*folder.glob("*.met")]


def report(blocks: list[Block], met: Iterable[int]) -> str:
    """Return which blocks were not met, and how many there are."""
    missing = [block for number, block in enumerate(blocks) if number not in {*met}]
    share = 100 * (len(blocks) - len(missing)) / len(blocks)
    return "\n".join(
        [*map(str, missing), f"{len(blocks) - len(missing)} of {len(blocks)} blocks reached: {share:.1f} %"]
    )


def measure(words: list[str]) -> int:
    """Run the tests on a copy of the checkout; return 0 if they pass and each block is reached."""
    server = shutil.which("redis-server")
    if server is None:
        raise SystemExit("redis-server is not installed")
    with tempfile.TemporaryDirectory(prefix="lua-coverage-") as name:
        folder = Path(name)
        copy, met = folder / "checkout", folder / "met"
        met.mkdir()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=CHECKOUT,
            capture_output=True,
            check=True,
        )
        for path in filter(None, listed.stdout.decode().split("\0")):
            if (CHECKOUT / path).is_file():
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / path, copy / path)
        blocks = instrument_folder(copy / "lua")
        (folder / "bin").mkdir()
        wrapper = folder / "bin" / "redis-server"
        wrapper.write_text(
            _WRAPPER.format(
                server=shlex.quote(server), folder=shlex.quote(str(met)), python=shlex.quote(sys.executable)
            )
        )
        wrapper.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(copy),
            "EVSCHED_TEST_SERVER": "redis",
        }
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", *(words or TESTS)], cwd=copy, env=environment, check=False
        )
        numbers = {int(number) for path in _collected(met) for number in path.read_text().split()}
    sys.stdout.write(report(blocks, numbers) + "\n")
    return tests.returncode or int(len(numbers) < len(blocks))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        collect(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(measure(sys.argv[1:]))
