"""Search scenes from the command line: python -m tests.interleavings --help."""

from __future__ import annotations

import argparse
import sys

from tests.interleavings.scenes import BATCHES, GRAPHS, HAND_OVERS, INLINES, SCENES, SIGNALS, run
from tests.interleavings.search import FAULTS, JUMP
from tests.interleavings.server import SavedRedis


def main() -> None:
    """Search the scenes that are named, and print what was found."""
    parser = argparse.ArgumentParser(description="Search scenes for paths on which a rule breaks.")
    parser.add_argument(
        "scene",
        nargs="*",
        default=[*SCENES, *INLINES, *SIGNALS, *HAND_OVERS, *BATCHES, *GRAPHS],
        help="; ".join([*SCENES, *INLINES, *SIGNALS, *HAND_OVERS, *BATCHES, *GRAPHS]),
    )
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--most", type=int, default=10_000_000, help="states")
    parser.add_argument("--failures", type=int, default=1)
    parser.add_argument("--without", nargs="*", default=(), help="processes that are left out")
    parser.add_argument("--old", nargs="*", default=(), help="processes of the previous release")
    parser.add_argument("--kinds", nargs="*", default=FAULTS, help=f"of faults; beside these, {JUMP}")
    scope = vars(parser.parse_args())
    for name in scope.pop("scene"):
        with SavedRedis() as redis:
            sys.stdout.write(f"{name}: {run(name, redis, **scope)}, {redis.made} calls\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
