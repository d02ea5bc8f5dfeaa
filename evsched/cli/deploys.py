"""The commands about the recurrences and limits that apps declare in their code: prune and rollback."""

from __future__ import annotations

import difflib
from typing import Annotated

from cyclopts import Parameter

from evsched.cli.kept_recurrences import is_retired, kept
from evsched.cli.options import Queue, Url, client
from evsched.client.sync_client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.errors import JobMissing
from evsched.store.store import Store

OneApp = Annotated[
    str | None, Parameter(name="--app", help="The name of the app. Default: all apps that use the queue.")
]


def prune(
    *,
    app: OneApp = None,
    dry_run: Annotated[bool, Parameter(negative="", help="List them, and delete nothing.")] = False,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Delete the recurrences that the code declared once, and does not declare in its newest revision.

    Until then they are stopped, and go on if a later revision declares them again. Exit code 1: there is no such app.

    Example: evsched recurrences prune --queue reports --dry-run
    """
    with client(url) as redis:
        if app is not None and not (redis.send(Store(queue).known_revisions(app)) or app in _owners(redis, queue)):
            raise JobMissing(_no_app(redis, queue, app))
        found = [
            name
            for name, at, fields in kept(redis, queue)
            if is_retired(at, fields) and app in (None, fields.get("owner", b"").decode(errors="replace"))
        ]
        pruned = found if dry_run else [name for name in found if redis.send(Store(queue).prune(name))]
    for name in pruned:
        print(f"{name} would be removed" if dry_run else f"{name} removed")
    if not pruned:
        print("nothing to prune: no recurrence is stopped because the code no longer declares it")


def rollback(*, app: OneApp = None, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Have the running workers declare the recurrences and limits of their code, although a newer deploy is in force.

    Use it when you have rolled back, and no worker with the newer code runs any more.

    Example: evsched recurrences rollback --queue reports
    """
    with client(url) as redis:
        apps = [app] if app is not None else _apps(redis, queue)
        forgotten = [name for name in apps if redis.send(Store(queue).forget_revisions(name))]
        if not forgotten:
            raise JobMissing(_no_app(redis, queue, app))
    for name in forgotten:
        print(f"app {name}: its workers declare what their code has at their next heartbeat, or when they start")


def _apps(redis: SyncClient, queue: str) -> list[str]:
    """Return the apps that may have declared recurrences or limits of a queue.

    Those that they name, and the one that goes by the queue's name: all that it declared may be pruned.
    """
    return sorted(_owners(redis, queue) | {queue})


def _owners(redis: SyncClient, queue: str) -> set[str]:
    """Return the apps that the recurrences and limits of a queue name."""
    owners = {fields["owner"].decode(errors="replace") for _, _, fields in kept(redis, queue) if "owner" in fields}
    return owners | {limit.app for limit in redis.send(Store(queue).declared_limits()).values()}


def _no_app(redis: SyncClient, queue: str, app: str | None) -> str:
    """Say that no app, or none of this name, has declared anything in a queue."""
    near = difflib.get_close_matches(app or "", _owners(redis, queue), n=3)
    hint = f": did you mean {', '.join(near)}?" if near else ""
    return f"no worker has declared recurrences or limits of {f'app {app}' if app else 'an app'} in queue {queue}{hint}"
