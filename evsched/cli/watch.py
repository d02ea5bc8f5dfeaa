"""`evsched doctor --watch`: prints the findings that are new, and those that are gone."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from evsched.cli.output import moment
from evsched.cli.time_args import parse_length
from evsched.cli.usage import UsageError
from evsched.config import Config
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.server_checks import Role
from evsched.display import escape, json_text
from evsched.telemetry import log

_ALIKE: Final = 10
"""Changes of one check that are printed at a time; --json has all."""

_EVERY: Final = "5m"
"""A check of a million jobs keeps Redis busy for 12 s: with this, 4 % of the time."""


def watch_with(config: Config, role: Role | None, every: str | None, *, json: bool) -> None:
    """Run the doctor until it is asked to stop, and print what changes.

    Raises:
        UsageError: `every` is not a length of time, or 0.
    """
    from evsched.services.service import run_doctor  # it imports the worker

    interval = parse_length(every or _EVERY)
    if interval <= 0:
        raise UsageError(f"--every is {every}: give more than 0 s")
    log.configure(config.log_level)
    run_doctor(config, role, interval, _print_json if json else _print)


def _print(new: Sequence[Finding], gone: Sequence[Finding]) -> None:
    now = moment(time.time(), short=True)
    for change, findings in (("gone", gone), ("new", new)):
        counts = Counter[str]()
        for finding in findings:
            counts[finding.check] += 1
            if counts[finding.check] <= _ALIKE:
                print(escape(f"{now} {change:4} {finding.level:8}{finding.check}: {finding.what} ({finding.where})"))
            if counts[finding.check] <= _ALIKE and finding.mend and change == "new":
                print(escape(f"        {finding.mend}"))
        for check, count in counts.items():
            if count > _ALIKE:
                print(f"{now} {change:4} and {count - _ALIKE} more of {check}: --json lists them")
    sys.stdout.flush()


def _print_json(new: Sequence[Finding], gone: Sequence[Finding]) -> None:
    """Print a line for each change: the finding, with `time` in Unix seconds and `change`, "new" or "gone"."""
    now = time.time()
    for change, findings in (("gone", gone), ("new", new)):
        for finding in findings:
            print(json_text({"time": now, "change": change, **msgspec.structs.asdict(finding)}))
    sys.stdout.flush()
