"""Files of the user that hide a module of Python or of a library: a fresh process imports them in its place."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

_NAMED_MOST: Final = 3


def hiding_files() -> list[Path]:
    """Return the files in the current folder and in the first folder of `sys.path` that hide another module.

    The worker itself has imported these modules before it looked into the folder, so it runs.
    """
    found = dict[Path, None]()
    for folder in dict.fromkeys((Path(), Path(sys.path[0] if sys.path else ""))):
        try:
            entries = sorted(folder.resolve().iterdir())
        except OSError:
            continue
        found.update(dict.fromkeys(entry for entry in entries if _hides(entry)))
    return list(found)


def hint() -> str:
    """Return the end of a message that names these files, or nothing if there are none."""
    files = hiding_files()
    if not files:
        return ""
    more = f" and {len(files) - _NAMED_MOST} more" if len(files) > _NAMED_MOST else ""
    named = ", ".join(map(str, files[:_NAMED_MOST]))
    return f"; rename {named}{more}, which a new process imports in place of the module of that name"


def _hides(entry: Path) -> bool:
    if entry.suffix != ".py" and not (entry / "__init__.py").is_file():
        return False
    if entry.stem in sys.stdlib_module_names:
        return True
    others = [folder for folder in sys.path if Path(folder).resolve() != entry.parent]
    spec = PathFinder.find_spec(entry.stem, others)
    # Without an origin it is a folder of that name, which hides nothing.
    if spec is None or spec.origin is None:
        return False
    return Path(spec.origin).resolve() not in (entry, entry / "__init__.py")
