"""The console: web pages for operators, about what waits, runs, has ended, and why. Extra `console`.

    from evsched.console import create

    app.mount("/jobs", create())

It reads the settings of `evsched console` from the environment, unless it is given a `Config`. Everything goes through
client/; this folder has no logic of jobs. Start with `views/`, a file for each group of pages: each reads what its
template in templates/ shows. `console_app.py` serves them, `live.py` keeps open pages up to date, `users.py` knows
the users, `act_runs.py`, `user_acts.py` and `job_acts.py` perform what they ask for. It may import client/ and the
layers below it, and diagnostics/.
"""

from evsched.errors import ConfigError


def missing() -> ConfigError:
    """Return the error that the libraries of the extra are not installed."""
    return ConfigError("the console needs starlette, uvicorn and jinja2: pip install 'evsched[console]'")


try:
    from evsched.console.console_app import create
    from evsched.console.users import Visitor
except ImportError as error:
    raise missing() from error

__all__ = ["Visitor", "create"]
