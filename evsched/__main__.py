"""`python -m evsched`, and the command `evsched`.

The imports take half a second. A service that gets SIGTERM meanwhile has nothing to clean up, and ends at once.
"""

from __future__ import annotations

import os
import signal
import sys

_SERVICES = ("dispatcher", "worker", "dev")


def main() -> None:
    """Run the command line, and exit."""
    if sys.argv[1:2] and sys.argv[1] in _SERVICES:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)  # until runtime/shutdown.py handles them
        if any(word.startswith("--processes") for word in sys.argv[2:]):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload: this process has just read the code
    try:
        from evsched.cli.main import main as run
    except KeyboardInterrupt:
        os._exit(130)
    run()


def _end(number: int, frame: object) -> None:
    os._exit(0)


if __name__ == "__main__":
    main()
