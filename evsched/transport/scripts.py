"""The Lua files, one per verb: from the checkout when there is one, else from the installed package.

An editable install copies lua/ too, and that copy goes stale: so the checkout comes first.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Final

from evsched.transport.call import Script

BEFORE: Final = ("_prelude.lua", "_limits.lua", "_gate.lua", "_recurring.lua", "_audit.lua")
"""What stands before each verb, in this order."""


@cache
def folder() -> Path:
    """Return the folder of the Lua files."""
    package = Path(__file__).parents[1]
    checkout = package.parent / "lua"
    return checkout if (checkout / "_prelude.lua").is_file() else package / "lua"


_DECLARED: Final = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_COMMENT: Final = re.compile(r"--.*")


@cache
def script(verb: str) -> Script:
    """Return the script of a verb: its first line (the flags), what it needs of what stands before all, the rest."""
    flags, _, body = (folder() / f"{verb}.lua").read_text(encoding="utf-8").partition("\n")
    before = "\n".join((folder() / name).read_text(encoding="utf-8") for name in BEFORE)
    source = f"{flags}\n{_needed(before, body)}"
    return Script(verb, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _needed(before: str, body: str) -> str:
    """Return the blocks of `before` whose names are used: Redis makes each function anew in every call, 0.1 us each.

    Blocks are parted by blank lines. From the last to the first: a block uses only what stands before it.
    """
    used = set(re.findall(r"\w+", _COMMENT.sub("", body)))
    kept = [body]
    for block in reversed(re.split(r"\n\n+", before)):
        code = _COMMENT.sub("", block)
        if used.intersection(re.findall(r"\w+", " ".join(_DECLARED.findall(code)))):
            used.update(re.findall(r"\w+", code))
            kept.append(block)
    return "\n\n".join(reversed(kept))
