"""The command that looks for problems: doctor. With `--watch` it prints new and resolved findings."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from evsched.cli import output
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queues, Url, acting, check_queues, settings, who_acts, whole
from evsched.cli.output import moment, progress_bar
from evsched.client.time_texts import parse_length
from evsched.config import Config
from evsched.diagnostics.doctor import Examination, examine
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.server_checks import Role
from evsched.display import escape, json_text
from evsched.store.acts import Act, named_operator
from evsched.telemetry import log
from evsched.transport.senders import BatchingSender

_EVERY: Final = "5m"
"""A check of a million jobs keeps Redis busy for 12 s: with this, 4 % of the time."""


_ALIKE: Final = 10
"""Findings or changes of one check that are printed at a time; --json has all."""


def _print_findings(findings: Sequence[Finding], prefix: str = "", *, hints: bool = True) -> None:
    """Print findings after a prefix, with hints how to fix them."""
    counts = Counter[str]()
    for finding in findings:
        counts[finding.check] += 1
        if counts[finding.check] > _ALIKE:
            continue
        print(escape(f"{prefix}{finding.level:8}{finding.check}: {finding.what} ({finding.where})"))
        if finding.repaired:
            print("        repaired")
        elif finding.mend and hints:
            print(escape(f"        {finding.mend}"))
    for check, count in counts.items():
        if count > _ALIKE:
            print(f"{prefix or '... '}and {count - _ALIKE} more of {check}: --json lists them")


def _print_changes(new: Sequence[Finding], gone: Sequence[Finding]) -> None:
    now = moment(time.time(), short=True)
    _print_findings(gone, f"{now} gone ", hints=False)
    _print_findings(new, f"{now} new  ")
    sys.stdout.flush()


def _print_json(new: Sequence[Finding], gone: Sequence[Finding]) -> None:
    """Print a line for each change: the finding, with `time` in Unix seconds and `change`, "new" or "gone"."""
    now = time.time()
    for change, findings in (("gone", gone), ("new", new)):
        for finding in findings:
            print(json_text({"time": now, "change": change, **msgspec.structs.asdict(finding)}))
    sys.stdout.flush()


@acting
def doctor(
    *,
    queue: Queues = None,
    role: Annotated[Role | None, Parameter(help="Also check that the Redis user of this role has its rights.")] = None,
    repair: Annotated[
        bool, Parameter(negative="", help="Repair the problems that can be repaired in only one way.")
    ] = False,
    watch: Annotated[
        bool, Parameter(negative="", help="Check again and again, and print what has changed. Ctrl-C ends it.")
    ] = False,
    every: Annotated[
        str | None, Parameter(help="With --watch: how long to wait between two checks, such as 30s. Default: 5m.")
    ] = None,
    metrics_port: Annotated[
        int | None, Parameter(converter=whole, help="With --watch: port of the pages /metrics, /healthz and /readyz.")
    ] = None,
    json: Json = False,
    url: Url = None,
) -> int:
    """Check Redis and every queue for problems, and print how to fix each.

    Exit code 1: there are problems, such as that a queue that --queue names does not exist.

    It checks the settings and rights of Redis, that due jobs move, and that every job is in exactly one place; and if
    EVSCHED_LEDGER_URL is set, that the ledger and Redis say the same.

    With --watch it runs until Ctrl-C or SIGTERM, and the exit code is 0.

    Example: evsched doctor --repair
    """
    check_queues(queue)
    config = settings(url, metrics_port=metrics_port)
    if watch:
        if repair:
            raise UsageError("--watch changes nothing: run `evsched doctor --repair` by itself")
        if (interval := parse_length(every or _EVERY)) <= 0:
            raise UsageError(f"--every is {every}: give more than 0 s")
        from evsched.services.service import run_doctor  # it imports the worker

        log.configure(config.log_level)
        # Only the flag opens a port: the variable may be a dispatcher's on the same host.
        config = replace(config, queues=tuple(queue or ()), metrics_port=metrics_port)
        run_doctor(config, role, interval, _print_json if json else _print_changes)
        return 0
    if every is not None or metrics_port is not None:
        raise UsageError("--every and --metrics-port are for --watch")
    examined = asyncio.run(_examine(config, queue or [], role, repair))
    problems = [finding for finding in examined.found if finding.level != "info"]
    if json:
        output.as_json(examined.found)
    else:
        _print_findings(examined.found)
        repaired, queues = sum(finding.repaired for finding in problems), len(examined.queues)
        print(
            f"{len(problems) or 'nothing'} found{f', {repaired} repaired' if repaired else ''}; "
            f"{examined.seen} records and entries of {queues} queue{'' if queues == 1 else 's'} checked"
        )
    return int(bool(problems))


async def _examine(config: Config, queues: Sequence[str], role: Role | None, repair: bool) -> Examination:
    sender, show = BatchingSender(config.url), partial(progress_bar, "every id in one place")
    try:
        act = Act(named_operator(who_acts(config.url), "cli"))
        return await examine(
            config.url, sender, queues, role, repair=repair, ledger_url=config.ledger_url, show=show, act=act
        )
    finally:
        await sender.close()
