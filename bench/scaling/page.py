"""Write the tables of a run into a page that has a place for each: `<!-- NAME -->` before it, `<!-- end -->` after."""

from __future__ import annotations

import re
from pathlib import Path

from bench.figures import markdown, spread
from bench.result import Result
from bench.scaling import capacity


def write(page: Path, result: Result) -> None:
    """Replace the tables that the page names and the run has."""
    found = {name: markdown(table, spread).strip() for name, table in result.tables.items()}
    found |= {**capacity.tables(result), "machine": f"Machine: {result.machine}."}

    def fill(place: re.Match[str]) -> str:
        name, old = place[1], place[2]
        return f"<!-- {name} -->\n\n{found.get(name, old.strip())}\n\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"<!-- ([a-z-]+) -->\n(.*?)<!-- end -->", fill, text, flags=re.DOTALL), encoding="utf-8")
