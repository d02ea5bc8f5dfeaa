"""The HTTP interface: an ASGI application to schedule, look up and change jobs and recurrences. Extra `api`.

    from evsched.api import create

    app.mount("/scheduler", create())

It reads the settings of `evsched api` from the environment, unless it is given a `Config`. Everything goes through
client/; this folder has no logic of jobs. Start with `endpoints.py`, the table of requests; `application.py`
puts it together. It may import client/ and the layers below it, and telemetry/.
"""

from evsched.errors import ConfigError


def missing() -> ConfigError:
    """Return the error that the libraries of the extra are not installed."""
    return ConfigError("the HTTP interface needs starlette and uvicorn: pip install 'evsched[api]'")


try:
    from evsched.api.application import create
except ImportError as error:
    raise missing() from error

__all__ = ["create"]
