"""Run one dispatcher. Each line on stdin asks how many commands it has sent; the process ends when stdin ends."""

from __future__ import annotations

import os
import sys
from threading import Thread

from bench.alternatives.client import Counted, connect
from bench.alternatives.designs import DESIGNS


def _answer() -> None:
    for _ in sys.stdin:
        print(Counted.sent, flush=True)
    os._exit(0)


if __name__ == "__main__":
    Thread(target=_answer, daemon=True).start()
    DESIGNS[sys.argv[1]].run(connect(sys.argv[2]))
