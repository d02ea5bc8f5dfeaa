"""The commands about the recurrences and limits that apps declare in their code: prune and rollback."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from evsched.cli.command_client import client_of, note_if_unknown
from evsched.cli.commands import UsageError
from evsched.cli.options import Queue, Url, acting
from evsched.client import spread
from evsched.client.client import SyncClient
from evsched.client.recurrence_operations import is_retired, kept
from evsched.config import DEFAULT_QUEUE
from evsched.display import nearest
from evsched.errors import EvschedError, JobMissing
from evsched.store.store import Store

OneApp = Annotated[
    str | None, Parameter(name="--app", help="The name of the app. Default: all apps that use the queue.")
]


@acting
def prune(
    *,
    app: OneApp = None,
    all: Annotated[  # noqa: A002 - the flag's name
        bool,
        Parameter(negative="", help="Also recurrences in force, and limits. Needs --app, and a queue not served."),
    ] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="List them, and delete nothing.")] = False,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> int:
    """Delete the recurrences that the code declared once, and does not declare in its newest revision.

    Until then they are stopped, and go on if a later revision declares them again. --all deletes all that the code of
    an app has declared in a queue that no worker serves any more. Exit code 1: there is no such app, or with --all, a
    worker serves the queue.

    Example: evsched recurrences prune --queue reports --dry-run
    """
    if all and app is None:
        raise UsageError("prune: --all needs --app NAME")
    with client_of(url, queue, changes_queue=True) as redis:
        if app is not None and not (redis.send(Store(queue).known_revisions(app)) or app in _owners(redis, queue)):
            raise JobMissing(_no_app(redis, queue, app))
        if all and app is not None:
            pruned = _prune_all(redis, queue, app, dry_run=dry_run)
        else:
            pruned = _prune_retired(redis, queue, app, dry_run=dry_run)
        hint = "" if pruned else _hint(redis, queue)
        unknown = note_if_unknown(redis, queue, pruned)
    for name in pruned:
        print(f"{name} would be removed" if dry_run else f"{name} removed")
    if not pruned:
        print(f"nothing to prune: no recurrence is stopped because the code no longer declares it{hint}")
    return unknown


def _prune_retired(redis: SyncClient, queue: str, app: str | None, *, dry_run: bool) -> list[str]:
    found = [
        name
        for name, at, fields in redis.run(kept(Store(queue)))
        if is_retired(at, fields) and app in (None, fields.get("owner", b"").decode(errors="replace"))
    ]
    return found if dry_run else [name for name in found if redis.send(redis.store(queue).prune(name))]


def _prune_all(redis: SyncClient, queue: str, app: str, *, dry_run: bool) -> list[str]:
    """Delete the declarations of an app in a queue; return them.

    The revisions first: without them, a later worker that serves the queue again declares its recurrences and limits.

    Raises:
        EvschedError: a worker serves the queue.
    """
    if not _is_idle(redis, queue):
        raise EvschedError(
            f"queue {queue} is served by workers (evsched workers --queue {queue}): stop them first, or restart them "
            "with code that no longer declares this. A worker that was killed counts until a dispatcher has removed "
            "its lease, after up to three minutes"
        )
    names = [
        name
        for name, _, fields in redis.run(kept(Store(queue)))
        if fields.get("owner", b"").decode(errors="replace") == app
    ]
    limits = [f"limit {limit}" for limit, owner in _declared_limits(redis, queue).items() if owner == app]
    if not dry_run:
        _forget_revisions(redis, queue, app)
        for store in redis.stores(queue):
            redis.send(store.declare_limits(app, None, {}))
        for name in names:
            redis.send(Store(queue).retire(name, app, None))
            redis.send(redis.store(queue).prune(name))
    return names + limits


def _is_idle(redis: SyncClient, queue: str) -> bool:
    """Tell whether no worker serves a queue, and no parent stands by to start one."""
    stats = redis.run(spread.queue_stats(redis.stores(queue)))
    return not (stats.workers or stats.parents)


def _hint(redis: SyncClient, queue: str) -> str:
    """Say that apps have declarations in force in a queue that no worker serves: no worker can stop those."""
    owners = sorted(_owners(redis, queue))
    if not (owners and _is_idle(redis, queue)):
        return ""
    return (
        f". No worker serves queue {queue}, so its declarations stay in force: {', '.join(owners)}. If no "
        "code uses the queue any more, add --all --app NAME"
    )


def rollback(*, app: OneApp = None, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Have the running workers declare the recurrences and limits of their code, although a newer deploy is in force.

    Use it when you have rolled back, and no worker with the newer code runs any more.

    Example: evsched recurrences rollback --queue reports
    """
    with client_of(url, queue, changes_queue=True) as redis:
        # The app that goes by the queue's name too: all that it declared may be pruned.
        apps = [app] if app is not None else sorted(_owners(redis, queue) | {queue})
        forgotten = [name for name in apps if _forget_revisions(redis, queue, name)]
        if not forgotten:
            raise JobMissing(_no_app(redis, queue, app))
        none = f"; no worker serves queue {queue} now" if _is_idle(redis, queue) else ""
    for name in forgotten:
        print(f"app {name}: its workers declare their code again at their next heartbeat, or when they start{none}")


def _owners(redis: SyncClient, queue: str) -> set[str]:
    """Return the apps that the recurrences and limits of a queue name."""
    owners = {
        fields["owner"].decode(errors="replace") for _, _, fields in redis.run(kept(Store(queue))) if "owner" in fields
    }
    return owners | {*_declared_limits(redis, queue).values()}


def _declared_limits(redis: SyncClient, queue: str) -> dict[str, str]:
    """Return the apps that declare limits of a queue, or of one of its shards, by the limits' fields."""
    declared = dict[str, str]()
    for store in redis.stores(queue):
        declared |= {field: limit.app for field, limit in redis.send(store.declared_limits()).items()}
    return declared


def _forget_revisions(redis: SyncClient, queue: str, app: str) -> bool:
    """Forget which revisions of an app are known; return whether there were any."""
    return sum(redis.send(store.forget_revisions(app)) for store in redis.stores(queue)) > 0


def _no_app(redis: SyncClient, queue: str, app: str | None) -> str:
    """Say that no app, or none of this name, has declared anything in a queue."""
    near = nearest(app or "", _owners(redis, queue), most=3)
    hint = f": did you mean {', '.join(near)}?" if near else ""
    return f"no worker has declared recurrences or limits of {f'app {app}' if app else 'an app'} in queue {queue}{hint}"
