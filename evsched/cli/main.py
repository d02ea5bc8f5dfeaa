"""The start and the end of every command: its streams, its errors, its exit code.

Exit codes: 0 done, 1 refused or not found, 2 bad usage; 1 and 2 with one line on stderr. A reader of stdout that has
read enough and ends, as in `evsched jobs | head`, is not a failure.

This file imports no library at its top, so that `evsched --version` and `evsched --help` need none.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from io import TextIOWrapper
from typing import Final

import evsched
from evsched.cli.commands import COMMANDS, INSTALL_COMPLETION, UsageError, build, overview, unknown, width
from evsched.errors import CannotStart, ConfigError, EvschedError, LoopEnded, StoreDown, StoreError

__all__ = ["main"]

ENDED: Final = 70
"""Exit code after a loop of the process has ended, which is a bug: EX_SOFTWARE of sysexits."""

_UNSURE: Final = "; the change may have been made all the same: look before you repeat it"

_NO_SERVER: Final = "connecting to"
"""In the words of redis-py for a Redis that is not there."""

_READ_ONLY: Final = ("doctor", "top", "queues", "workers", "jobs", "show", "explain", "limits", "audit")
"""Commands that change nothing."""

_OUTPUT_FAILED: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
"""The errors of a write to stdout. Errors of connections to Redis are not among them: they are StoreErrors."""


_IMPORTED: Final = 100_000
"""More objects than the imports of any command make."""


def main() -> None:
    """Run the command line, and exit."""
    # The first collection, at 700 objects, would take 20 ms of the start and find nothing: the modules stay to the end.
    gc.set_threshold(_IMPORTED, *gc.get_threshold()[1:])
    _open_closed_streams()
    _escape_what_cannot_be_encoded()
    code, message = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            code, message = code or 1, message or _not_written(error)
        # Python flushes the rest once more at its end, and would report that with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if message:
        from evsched.display import escape

        print(f"evsched: {escape(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _run() -> tuple[int, str]:
    """Run the command line; return the exit code, and the line for stderr, '' = none."""
    try:
        return _command(sys.argv[1:]), ""
    except (UsageError, ConfigError) as error:
        return 1 if isinstance(error, CannotStart) else 2, str(error)
    except LoopEnded as error:
        return ENDED, str(error)
    except EvschedError as error:
        unsure = isinstance(error, StoreError) and error.unsure and sys.argv[1] not in _READ_ONLY
        message = str(error)
        if isinstance(error, StoreDown) and _NO_SERVER in message and error.node is None:
            message = f"{message.rstrip('.')}: start it, or name another with --url or EVSCHED_URL"
        return 1, f"{message}{_UNSURE if unsure else ''}"
    except KeyboardInterrupt:
        return 130, ""
    except OSError as error:
        if error.errno not in _OUTPUT_FAILED or error.filename is not None:
            raise
        return (0, "") if error.errno == errno.EPIPE else (1, _not_written(error))


def _command(words: list[str]) -> int:
    """Run the command that the words name, and return its exit code.

    Raises:
        UsageError: the command line is not valid.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:  # Python decodes bytes that are not UTF-8 to lone surrogates
            raise UsageError(f"argument {word!r} is not UTF-8") from None
    if words[:1] == ["--version"]:
        print(evsched.__version__)
        return 0
    if not words or words[0] in ("--help", "-h"):
        print(overview())
        return 0
    if words[0] not in COMMANDS and words[0] != INSTALL_COMPLETION:
        raise unknown(words[0])
    from cyclopts import CycloptsError

    root = build(words[:1])
    if {"--help", "-h"} & {*words}:
        from evsched.cli.mistakes import PipeConsole

        root.console = PipeConsole(width=width())
    try:
        return root(words, print_error=False, exit_on_error=False, result_action="return_int_as_exit_code_else_zero")
    except CycloptsError as error:
        from evsched.cli.mistakes import mistake

        raise mistake(error, root, words) from None


def _not_written(error: OSError) -> str:
    return f"stdout cannot be written: {error.strerror}"


def _open_closed_streams() -> None:
    """Open the descriptors that the shell closed (`>&-`): commands then fail as on a full disk, services run."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _escape_what_cannot_be_encoded() -> None:
    """Print an escape for a character that a stream's encoding lacks: the command may have done its work by then."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
