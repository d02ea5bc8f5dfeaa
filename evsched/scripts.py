"""The Lua files, one per verb: from the checkout when there is one, else from the installed package.

An editable install copies lua/ too, and that copy goes stale: so the checkout comes first.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from pathlib import Path

from evsched.call import Script


@cache
def folder() -> Path:
    """Return the folder of the Lua files."""
    package = Path(__file__).parent
    checkout = package.parent / "lua"
    return checkout if (checkout / "_prelude.lua").is_file() else package / "lua"


@cache
def script(verb: str) -> Script:
    """Return the script of a verb: its own first line (the flags), what stands before all, the rest."""
    flags, _, body = (folder() / f"{verb}.lua").read_text(encoding="utf-8").partition("\n")
    before = [(folder() / name).read_text(encoding="utf-8") for name in ("_prelude.lua", "_limits.lua", "_gate.lua")]
    source = "\n".join((flags, *before, body))
    return Script(verb, source, sha1(source.encode(), usedforsecurity=False).hexdigest())
