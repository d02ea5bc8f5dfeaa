"""The headers of the Lua files, which say what each script takes and when it refuses."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from evsched.transport.call import folder

VERBS: Final = sorted(path.stem for path in folder().glob("*.lua") if not path.stem.startswith("_"))
MARKS: Final = ("KEYS", "ARGV", "ROWS", "REPLY", "FAILS", "TWICE")


@cache
def read_header(verb: str) -> tuple[list[str], str, dict[str, list[str]]]:
    """Return the header's lines, the code, and the names under each mark."""
    lines = (folder() / f"{verb}.lua").read_text().splitlines()
    end = next(n for n, line in enumerate(lines[1:], 1) if not line.startswith("--"))
    names: dict[str, list[str]] = {}
    mark = ""
    for line in lines[1:end]:
        found = re.match(r"-- (\w+)  +(.*)|--        (\w+)  +(.*)", line)
        if found and found[1] in MARKS:
            mark = found[1]
            names[mark] = [found[2].split()[0]]
        elif found and found[3] and mark in ("ARGV", "ROWS", "FAILS"):
            names[mark].append(found[3])
        elif line == "--":
            mark = ""
    return lines[1:end], "\n".join(lines[end:]), names
