"""`python -m evsched`, and the command `evsched`.

All else takes half a second to import. A service that is asked to end meanwhile has nothing to bring in order.
"""

from __future__ import annotations

import os
import signal
import sys

_SERVICES = ("dispatcher", "worker", "dev")


def main() -> None:
    """Run what the command line says, and exit."""
    if sys.argv[1:2] and sys.argv[1] in _SERVICES:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)  # until runtime/shutdown.py hears them
    try:
        from evsched.cli.main import main as run
    except KeyboardInterrupt:
        os._exit(130)
    run()


def _end(number: int, frame: object) -> None:
    os._exit(0)


if __name__ == "__main__":
    main()
