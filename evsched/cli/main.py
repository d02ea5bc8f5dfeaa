"""The commands: `evsched ...`. One small module for each family of them.

Exit codes: 0 done, 1 refused or not found, 2 bad usage; 1 and 2 with one line on stderr.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

from cyclopts import CycloptsError

from evsched.cli import calendar, dead, doctor, follow, jobs, policy, queues, recurrences, run, top
from evsched.cli.root import UsageError, root
from evsched.errors import CannotStart, ConfigError, EvschedError, LoopEnded
from evsched.telemetry.log import escape

__all__ = ["main"]

ENDED: Final = 70
"""Exit code of a process of which a loop has ended: EX_SOFTWARE of sysexits, as of one that hangs."""

_OUTPUT_FAILED: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
"""What a write to stdout may meet. The errors of connections never come here: they are StoreErrors."""

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
    _open_closed_streams()
    code, message = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        code, message = code or 1, message or _not_written(error)
        # Python flushes what is left once more at its end, and would report that with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if message:
        print(f"evsched: {escape(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _run() -> tuple[int, str]:
    """Run what the command line says; return the exit code, and the line for stderr, '' = none."""
    try:
        return root(
            sys.argv[1:], print_error=False, exit_on_error=False, result_action="return_int_as_exit_code_else_zero"
        ), ""
    except CycloptsError as error:
        return 2, f"{error} (see evsched --help)"
    except (UsageError, ConfigError) as error:
        return 1 if isinstance(error, CannotStart) else 2, str(error)
    except LoopEnded as error:
        return ENDED, str(error)
    except EvschedError as error:
        return 1, str(error)
    except KeyboardInterrupt:
        return 130, ""
    except OSError as error:
        if error.errno not in _OUTPUT_FAILED or error.filename is not None:
            raise
        return 1, _not_written(error)


def _not_written(error: OSError) -> str:
    """Say why stdout could not be written; nothing when its reader has gone, as in `evsched jobs | head`."""
    return "" if error.errno == errno.EPIPE else f"stdout cannot be written: {error.strerror}"


def _open_closed_streams() -> None:
    """Open what the shell closed (`>&-`): a command that prints then fails as on a full disk, and a service runs."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
