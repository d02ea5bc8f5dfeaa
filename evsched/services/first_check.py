"""The check of Redis when a process starts: whether it can work with this server, and settings that may lose jobs."""

from __future__ import annotations

import asyncio
from typing import Final

from evsched import keys
from evsched.diagnostics import server_checks
from evsched.errors import CannotStart, StoreDown, StoreRefused
from evsched.process_events import RedisUnsafe
from evsched.store.server import facts, info, layout
from evsched.transport.address import Host, hide_password
from evsched.transport.call import Call
from evsched.transport.embedded import read_version
from evsched.transport.redis_errors import NO_CLUSTER
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import topology

_LOADING: Final = "loading"
"""The kind of a StoreDown that says that Redis still reads its data."""


async def check_server(sender: BatchingSender, url: str) -> str:
    """Return which server answers, such as "Redis 7.0.15".

    Raises:
        StoreDown: no server answers; the message says what to do.
        CannotStart: it refuses, or is too old.
    """
    try:
        replies = [reply for _, reply in await _of_each_node(sender, info("server", "persistence"))]
    except StoreDown as error:
        if error.kind == _LOADING:
            raise
        raise StoreDown(
            f"no Redis at {hide_password(url)} ({error}): start one, or name another with --url or EVSCHED_URL",
            kind=error.kind,
        ) from None
    except StoreRefused as error:
        raise CannotStart(f"Redis at {hide_password(url)} refuses: {error}") from None
    mode = replies[0].get("redis_mode", replies[0].get("server_mode"))  # Valkey has its own name for it
    if mode == "cluster" and topology(url) is None:
        raise CannotStart(f"{hide_password(url)}: {NO_CLUSTER}")
    versions = [read_version(reply) for reply in replies]
    for kind, version, least in versions:
        if least is not None:
            raise CannotStart(
                f"{kind} {version} at {hide_password(url)} is too old: "
                f"evsched needs {kind} {least[0]}.{least[1]} or newer"
            )
    kind, version, _ = versions[0]
    return f"{kind.capitalize()} {version}"


async def check_layout(sender: BatchingSender) -> None:
    """Check that this release understands the keys in Redis.

    Raises:
        StoreDown, StoreRefused
        CannotStart: a newer release has written them.
    """
    found = await sender.send(layout())
    if found != keys.LAYOUT:
        older = found > keys.LAYOUT
        raise CannotStart(
            f"the keys in Redis have layout {found}, and evsched {keys.RELEASE} knows layout {keys.LAYOUT}: "
            + ("install the release that the other processes run" if older else "run the release that wrote them")
            + " (docs/upgrade.md)"
        )


async def unsafe_settings(sender: BatchingSender) -> list[RedisUnsafe]:
    """Return the settings of Redis that may lose jobs: now, since `evsched doctor` may come too late.

    Raises:
        StoreDown
    """
    found = list[RedisUnsafe]()
    try:
        reports = await _of_each_node(sender, facts())
    except StoreRefused:
        return found  # `evsched doctor` reports that the settings cannot be read
    for node, report in reports:
        server = server_checks.Server(report, {})
        for finding in (*server_checks.persistence(server), *server_checks.eviction(server)):
            if finding.check in ("persistence", "eviction"):
                what = finding.what if node is None else f"{finding.what} (at {node[0]}:{node[1]})"
                found.append(RedisUnsafe(what=what, mend=finding.mend))
    return found


async def _of_each_node(sender: BatchingSender, call: Call[dict[str, str]]) -> list[tuple[Host | None, dict[str, str]]]:
    """Return a part of INFO of each primary of a cluster that serves, or of the one Redis.

    A server that still reads its data answers INFO, but next to nothing else.

    Raises:
        StoreDown: none serves.
        StoreRefused
    """
    nodes = await sender.nodes()
    values = await asyncio.gather(*(sender.send(call.at(node)) for node in nodes), return_exceptions=True)
    found, away = list[tuple[Host | None, dict[str, str]]](), list[StoreDown]()
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value, StoreDown):
            away.append(value)
        elif isinstance(value, BaseException):
            raise value
        elif value.get("loading") == "1":
            away.append(StoreDown("Redis still reads its data from the disk", kind=_LOADING))
        else:
            found.append((node, value))
    if not found:
        raise away[0]
    return found
