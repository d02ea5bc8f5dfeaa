"""Build the dashboards: `python grafana/build.py` writes dashboards/*.json; `--check` tells which are stale."""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from one_queue import queue
from overview import overview

FOLDER = Path(__file__).parent / "dashboards"


def main() -> int:
    """Write the files, or tell those that are stale."""
    stale = list[str]()
    for name, dashboard in (("overview", overview()), ("queue", queue())):
        path = FOLDER / f"{name}.json"
        text = JSONEncoder(indent=2, sort_keys=True).encode(dashboard) + "\n"
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    if stale:
        print(f"stale: {', '.join(stale)}: run python grafana/build.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
