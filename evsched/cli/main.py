"""The commands: `evsched ...`. One small module for each family of them.

Exit codes: 0 done, 1 refused or not found, 2 bad usage; 1 and 2 with one line on stderr.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from cyclopts import CycloptsError

from evsched.cli import calendar, dead, doctor, follow, jobs, policy, queues, recurrences, run, top
from evsched.cli.root import UsageError, root
from evsched.errors import CannotStart, ConfigError, EvschedError, LoopEnded
from evsched.telemetry.log import escape

__all__ = ["main"]

ENDED: Final = 70
"""Exit code of a process of which a loop has ended: EX_SOFTWARE of sysexits, as of one that hangs."""

root.command(run.dispatcher)
root.command(run.worker)
root.command(run.dev)
root.command(run.demo)
root.command(jobs.enqueue)
root.command(follow.show)
root.command(follow.explain)
root.command(jobs.cancel)
root.command(jobs.reschedule)
root.command(jobs.run_now)
root.command(jobs.jobs)
root.command(queues.queues)
root.command(queues.workers)
root.command(top.top)
root.command(policy.pause)
root.command(policy.resume)
root.command(policy.limit)
root.command(recurrences.app)
root.command(calendar.windows)
root.command(calendar.simulate)
root.command(dead.app)
root.command(doctor.doctor)


def main() -> None:
    """Run what the command line says, and exit."""
    try:
        said = root(
            sys.argv[1:], print_error=False, exit_on_error=False, result_action="return_int_as_exit_code_else_zero"
        )
        sys.exit(said)
    except CycloptsError as error:
        _end(f"{error} (see evsched --help)", 2)
    except (UsageError, ConfigError) as error:
        _end(str(error), 1 if isinstance(error, CannotStart) else 2)
    except LoopEnded as error:
        _end(str(error), ENDED)
    except EvschedError as error:
        _end(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Who read our output has gone: `evsched jobs | head`.
        sys.stderr.close()
        sys.exit(1)


def _end(message: str, code: int) -> NoReturn:
    print(f"evsched: {escape(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)
