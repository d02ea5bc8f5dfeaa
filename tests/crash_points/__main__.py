"""Attack points from the command line: python -m tests.crash_points --help."""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from evsched.transport.embedded import EmbeddedRedis
from tests.crash_points.attack import BESIDE, attack_all, points_of
from tests.crash_points.injection import Point
from tests.crash_points.scenes import SCENES
from tests.support.postgres import Postgres, find_postgres


def main() -> None:
    """Attack points of scenes, and print what was found."""
    parser = argparse.ArgumentParser(description="Have processes of scenes strike at points.")
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("striker")
    parser.add_argument("point", nargs="*", help="such as 'start 2 after kill'; none = all that a recording has")
    parser.add_argument("--only", type=int, help="how many points, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", type=int, default=BESIDE, help="attacks at a time")
    given = parser.parse_args()
    scene, striker, programs = given.scene, given.striker, find_postgres() if SCENES[given.scene].ledger else None
    with EmbeddedRedis(port=0) as server, TemporaryDirectory() as folder, ExitStack() as stack:
        ledger = stack.enter_context(stack.enter_context(Postgres(programs)).ledger()) if programs else ""
        points = [Point.read(text) for text in given.point]
        if not points:
            (recorded,) = attack_all(server.url, ledger, Path(folder), [(scene, striker, None)])
            sys.stdout.write(f"{recorded}: {len(recorded.calls)} calls\n")
            points = points_of(recorded)
        if given.only is not None:
            points = random.Random(given.seed).sample(points, min(given.only, len(points)))
        began, done, wanted = time.monotonic(), 0, [(scene, striker, point) for point in points]
        for report in attack_all(server.url, ledger, Path(folder), wanted, beside=given.beside):
            done += report.struck
            if report.wrong or given.point:
                sys.stdout.write(f"{report} ({report.seconds:.1f} s, {report.again} runs again)\n")
                sys.stdout.flush()
        sys.stdout.write(f"struck at {done} of {len(points)} points in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
