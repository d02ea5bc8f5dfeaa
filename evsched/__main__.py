"""`python -m evsched`, and the command `evsched`.

The imports take half a second. A service that gets SIGTERM meanwhile has nothing to clean up, and ends at once. Python
itself, which starts before this file is read, dies of the signal, unless the process that starts it blocks the signal.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line, and exit."""
    if _is_service(sys.argv[1:]):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)  # until runtime/shutdown.py handles them
        # The parent of --processes has blocked it while Python started (services/worker_process.py).
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        if any(word.startswith("--processes") for word in sys.argv[2:]):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload: this process has just read the code
    try:
        from evsched.cli.main import main as run
    except KeyboardInterrupt:
        os._exit(130)
    run()


def _is_service(words: list[str]) -> bool:
    return (
        words[:1] in (["dispatcher"], ["worker"], ["dev"], ["api"])
        or (words[:1] == ["console"] and words[1:2] not in (["token"], ["tokens"]))
        or words[:2] == ["ledger", "run"]
        or (words[:1] == ["doctor"] and "--watch" in words)
    )


def _end(number: int, frame: object) -> None:
    os._exit(0)


if __name__ == "__main__":
    main()
