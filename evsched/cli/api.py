"""The command that serves the HTTP interface: api."""

from __future__ import annotations

from evsched.cli.settings import takes_settings
from evsched.config import Config
from evsched.telemetry import log


@takes_settings
def api(*, config: Config) -> None:
    """Serve the HTTP interface: schedule, look up and change jobs and recurrences with JSON. It needs tokens.

    Callers send a token, which is in EVSCHED_API_WRITE_TOKENS, EVSCHED_API_READ_TOKENS, or a file. With --queue,
    they can reach those queues only. TLS and limits of connections are the business of the proxy in front of it.

    Example: EVSCHED_API_WRITE_TOKENS=file:/run/secrets/evsched evsched api --port 8420
    """
    from evsched.services.service import run_api

    log.configure(config.log_level)
    run_api(config)
