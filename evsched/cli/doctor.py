"""The command that looks for problems: doctor."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

from cyclopts import Parameter

from evsched.cli import output
from evsched.cli.options import Json, Queues, Url, client, settings
from evsched.cli.queues import missing
from evsched.config import DEFAULT_QUEUE
from evsched.diagnostics.acl import Role
from evsched.diagnostics.audit import Audit, OnProgress
from evsched.diagnostics.broken_recurrences import broken_recurrences
from evsched.diagnostics.doctor import Doctor
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.standstill import Standstill
from evsched.errors import StoreRefused
from evsched.telemetry.printable import escape
from evsched.transport.senders import BatchingSender

_ALIKE: Final = 10
"""Findings of one check that are printed; --json has all."""


def doctor(
    *,
    queue: Queues = None,
    role: Annotated[Role | None, Parameter(help="Also check that the Redis user of this role has its rights.")] = None,
    repair: Annotated[
        bool, Parameter(negative="", help="Repair the problems that can be repaired in only one way.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> int:
    """Check Redis and every queue for problems, and print how to fix each.

    Exit code 1: there are problems, or a queue that --queue names does not exist.

    It checks the settings and rights of Redis, that due jobs move, and that every job is in exactly one place.

    Example: evsched doctor --repair
    """
    # The names of queues are checked like those of a dispatcher.
    config = settings(url, queues=tuple(queue) if queue else None)
    found, audit = asyncio.run(_examine(config.url, queue or [], role, repair))
    problems = [finding for finding in found if finding.level != "info"]
    if json:
        output.as_json(found)
    else:
        queues = len(audit.queues)
        _print(found, f"{audit.seen} records and entries of {queues} queue{'' if queues == 1 else 's'} checked")
    unknown = _unknown(config.url, audit.empty)
    for line in unknown:
        output.note(line)
    return int(bool(problems or unknown))


def _unknown(url: str, empty: Sequence[str]) -> list[str]:
    """Return a line for each queue that has no key and is not known otherwise: its name is probably misspelt."""
    with client(url) as redis:
        return [line for name in empty if (line := missing(redis, name))]


async def _examine(url: str, queues: Sequence[str], role: Role | None, repair: bool) -> tuple[list[Finding], Audit]:
    sender = BatchingSender(url)
    try:
        doctor = Doctor(url, sender, queues[0] if queues else DEFAULT_QUEUE, repair=repair)
        found = await doctor.run(role, all_queues=not queues)
        audit = Audit(sender, queues)
        if any(finding.check == "cluster" for finding in found):
            return found, audit
        try:
            with _bar() as report:
                violations = await audit.run(repair=repair, on_progress=report)
            found += await Standstill(sender, audit.queues).run()
            found += await broken_recurrences(sender, audit.queues)
            found += violations
        except StoreRefused as error:
            what = f"the queues were not checked: {error}"
            mend = "use an administrator, or the user `doctor` of redis.conf"
            found.append(Finding("audit", "warning", what, "Redis", mend))
        return found, audit
    finally:
        await sender.close()


@contextmanager
def _bar() -> Generator[OnProgress]:
    """Show the progress of the audit, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("every id in one place", total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def _print(found: Sequence[Finding], checked: str) -> None:
    shown = Counter[str]()
    for finding in found:
        shown[finding.check] += 1
        if shown[finding.check] <= _ALIKE:
            print(escape(f"{finding.level:8}{finding.check}: {finding.what} ({finding.where})"))
            if finding.repaired:
                print("        repaired")
            elif finding.mend:
                print(escape(f"        {finding.mend}"))
    for check, count in shown.items():
        if count > _ALIKE:
            print(f"... and {count - _ALIKE} more of {check}: --json lists them")
    problems = [finding for finding in found if finding.level != "info"]
    repaired = sum(finding.repaired for finding in problems)
    print(f"{len(problems) or 'nothing'} found{f', {repaired} repaired' if repaired else ''}; {checked}")
