"""Targets: tasks that come with evsched, for jobs that leave Python.

    evsched worker evsched.targets:app --http-host api.example.com --forward-destination stream:orders

A due job is a request to an HTTP endpoint: start with `http_task.py`, which has the task and signs the request. Clients
and workers read its payload in the same way (`client/target_tasks.py`). `allowed_hosts.py` says where a request may go.
aiohttp sends it: `session.py` opens connections, to no other address, and is one request and its answer; `intake.py`
reads the answer in small pieces and judges it.

Or it is a message: `forward.py` has the task and says where messages may go; `broker.py` publishes those for AMQP
brokers.

`targets_app.py` makes the app of all this. It is an app like a user's: nothing else in evsched imports this package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from evsched import environment

if TYPE_CHECKING:
    from evsched.app import App

    app: App


def __getattr__(name: str) -> App:
    """Make the app when it is first asked for: it reads the settings, and fails if they are not valid.

    Raises:
        ConfigError: a library or a setting is missing, or not valid.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evsched.targets.targets_app import make_app

    found = globals()[name] = make_app(environment.load(os.environ), os.environ)
    return found
