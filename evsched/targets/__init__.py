"""Targets: tasks that come with evsched, for jobs that leave Python.

    evsched worker evsched.targets:app --http-host api.example.com --forward-destination stream:orders

A due job is a request to an HTTP endpoint: start with `http.py`, which has the task. Clients and workers read its
payload in the same way (`client/target_tasks.py`); `signature.py` signs it, `answer.py` judges what the server
answers. `allowed.py` and `addresses.py` say where a request may go. aiohttp sends it: `connector.py` opens connections,
to no other address; `intake.py` reads them in small pieces; `session.py` is one request and its answer.

Or it is a message: `forward.py` has the task, `destinations.py` says where messages may go, and `broker.py` publishes
those for AMQP brokers, over `broker_transport.py`.

`program.py` makes the app of all this. It is an app like a user's: nothing else in evsched imports this package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from evsched import environment

if TYPE_CHECKING:
    from evsched.app import App

    app: App


def __getattr__(name: str) -> App:
    """Make the app when it is first asked for: it reads the settings, and there is none if they are not valid.

    Raises:
        ConfigError: a library or a setting is missing, or not valid.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evsched.targets.program import make_app

    found = globals()[name] = make_app(environment.load(os.environ), os.environ)
    return found
