"""Build the dashboards: `python grafana/build.py` writes dashboards/*.json; `--check` lists those that are stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from one_queue import queue
from overview import overview

FOLDER = Path(__file__).parent / "dashboards"


def _cleaned(dashboard: Any) -> Any:
    """Remove the fields that the SDK writes into every variable, but that the schema allows only in an interval."""
    for variable in dashboard["templating"]["list"]:
        for name in ("auto", "auto_count", "auto_min"):
            variable.pop(name, None)
    return dashboard


def main() -> int:
    """Write the files, or list those that are stale."""
    stale = list[str]()
    for name, dashboard in (("overview", overview()), ("queue", queue())):
        path = FOLDER / f"{name}.json"
        text = json.dumps(_cleaned(json.loads(JSONEncoder().encode(dashboard))), indent=2, sort_keys=True) + "\n"
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
