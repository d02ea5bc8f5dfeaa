"""The commands: `evsched ...`. One small module for each family of them.

Exit codes: 0 done, 1 refused or not found, 2 bad usage; 1 and 2 with one line on stderr.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

from cyclopts import App, CycloptsError, Group

from evsched.cli import calendar, completion, dead, doctor, follow, jobs, policy, queues, recurrences, run, top
from evsched.cli.root import UsageError, root
from evsched.errors import CannotStart, ConfigError, EvschedError, LoopEnded
from evsched.telemetry.log import escape

__all__ = ["main"]

ENDED: Final = 70
"""Exit code after a loop of the process has ended, which is a bug: EX_SOFTWARE of sysexits."""

_OUTPUT_FAILED: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
"""The errors of a write to stdout. Errors of connections to Redis are not among them: they are StoreErrors."""

_FAMILIES: Final[dict[str, tuple[Callable[..., object] | App, ...]]] = {
    "Run": (run.dev, run.dispatcher, run.worker, run.demo),
    "Jobs": (
        jobs.enqueue,
        jobs.jobs,
        follow.show,
        follow.explain,
        jobs.cancel,
        jobs.reschedule,
        jobs.run_now,
        dead.app,
    ),
    "Queues and workers": (queues.queues, queues.workers, top.top, policy.pause, policy.resume, policy.limit),
    "Recurrences and windows": (recurrences.app, calendar.windows, calendar.simulate),
    "Upkeep": (doctor.doctor, completion.completion),
}

for _family, _commands in _FAMILIES.items():
    _panel = Group.create_ordered(_family)
    for _command in _commands:
        if isinstance(_command, App):
            _command.group = _panel
            root.command(_command)
        else:
            root.command(_command, group=_panel)


def main() -> None:
    """Run the command line, and exit."""
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
    for word in sys.argv[1:]:
        if not _is_text(word):
            return 2, f"argument {word!r} is not UTF-8"
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


def _is_text(word: str) -> bool:
    """Return whether an argument can be sent to Redis. Python decodes bytes that are not UTF-8 to lone surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_written(error: OSError) -> str:
    """Say why stdout could not be written; nothing if its reader has ended, as in `evsched jobs | head`."""
    return "" if error.errno == errno.EPIPE else f"stdout cannot be written: {error.strerror}"


def _open_closed_streams() -> None:
    """Open what the shell closed (`>&-`): a command that prints then fails as on a full disk, and a service runs."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
