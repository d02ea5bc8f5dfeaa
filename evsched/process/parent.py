"""The service that runs worker processes. It imports neither the app nor the worker, so it stays small."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from evsched.config import Config
from evsched.events import Events
from evsched.process.scaling import Span
from evsched.process.supervisor import Supervisor
from evsched.process.worker_process import Launch, working_directory
from evsched.runtime.shutdown import Shutdown, bound
from evsched.telemetry import log
from evsched.transport.call import read_scripts


def run_workers(
    config: Config, span: Span, command: Sequence[str], environment: Mapping[str, str], targets: Path | None
) -> int:
    """Run worker processes until SIGTERM or SIGINT, and reload their code at SIGHUP; return the exit code.

    `command`: their command line. `environment`: the variables that are added to this process's own for them.
    """
    read_scripts()  # before a deployment replaces the files
    launch = Launch(command, environment, working_directory())
    emit = Events(log.Log(jobs=config.log_jobs).on_event).emit
    with Shutdown(bound(config.shutdown_grace), emit, reloads=True) as shutdown:
        return asyncio.run(Supervisor(config, span, launch, emit, shutdown, targets).run())
