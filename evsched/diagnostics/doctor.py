"""The doctor: reads the settings and state of a Redis server, and tests the rest.

Each primary of a cluster is examined as a server of its own. A check that this user may not run is reported as an
`info`. `examine` makes all checks of the servers and their queues, one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from evsched import keys
from evsched.config import DEFAULT_QUEUE
from evsched.diagnostics import server_checks
from evsched.diagnostics.audit import Audit, OnProgress
from evsched.diagnostics.batch_checks import stuck_batches
from evsched.diagnostics.finding import Finding, Level
from evsched.diagnostics.queue_checks import broken_recurrences, incomplete_deploys, stray_jobs
from evsched.diagnostics.server_checks import Role, at, cluster_checks, needs, no_slots, unanswered
from evsched.diagnostics.standstill import find_standstill
from evsched.dispatcher.watcher import FLAGS, missing_flags
from evsched.display import nearest
from evsched.errors import NO_ENTRY, StoreDown, StoreError, StoreRefused
from evsched.shards import NONE, Shards
from evsched.store import server
from evsched.store.acts import Act
from evsched.store.store import Store
from evsched.transport import address
from evsched.transport.address import Host
from evsched.transport.call import Call, T
from evsched.transport.connection import primary
from evsched.transport.redis_errors import unless_mistyped
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import NO_SLOTS, topology
from evsched.transport.subscription import Subscription

_EVENT_TIMEOUT: Final = 1.5
"""Seconds within which the canary's event must arrive; a dispatcher waits as long."""

_NAMED: Final = 5
"""How many of the refused commands are named. The line of redis.conf has them all."""


_IDLE: Final = 10**5
"""Names among which one of a queue on a node is sought. A node that has but one slot has six of them."""


async def queue_at(sender: BatchingSender, node: Host | None, queues: Sequence[str]) -> str | None:
    """Return one of the queues that are named that is on a node; if none are named, the name of any queue there."""
    idle = (f"evsched-idle-{number}" for number in range(_IDLE))
    for name in queues or chain((DEFAULT_QUEUE,), idle):
        if await sender.node_of(keys.root(name)) == node:
            return name
    return None


class Doctor:
    """Checks one server. `queue`: one of its queues, for the checks that need one. `node`: of a cluster."""

    def __init__(
        self,
        url: str,
        sender: BatchingSender,
        queue: str,
        *,
        node: Host | None = None,
        repair: bool = False,
        wall: Callable[[], float] = time.time,
        event_timeout: float = _EVENT_TIMEOUT,
    ) -> None:
        self._url = url
        self._sender = sender
        self._queue = queue
        self._node = node
        self._repair = repair
        self._wall = wall
        self._event_timeout = event_timeout
        self._found = list[Finding]()

    async def run(self, role: Role | None = None, *, all_queues: bool = True) -> list[Finding]:
        """Check the server, and the rights of a role if one is named.

        Raises:
            StoreDown: it cannot be reached.
        """
        await self._check(role, all_queues)
        if self._node is None:
            return self._found
        return [replace(finding, where=f"{finding.where}, at {at(self._node)}") for finding in self._found]

    async def _check(self, role: Role | None, all_queues: bool) -> None:
        info = await self._ask("info", "INFO", server.facts())
        settings = await self._ask("settings", "CONFIG GET", server.settings(server_checks.SETTINGS))
        if info is not None:
            reported = server_checks.Server(info, settings or {})
            if self._node is None and (found := [*server_checks.cluster(reported)]):
                self._found += found
                return  # all other checks would fail because of it, and report something else
            self._found += chain.from_iterable(check(reported) for check in server_checks.CHECKS)
        await self._check_clock()
        if settings is not None:
            await self._check_flags(settings.get("notify-keyspace-events", ""))
        await self._prove_events()
        if role != "producer":  # it may not run scripts, and need not
            await self._run_script()
        if role is not None:
            await self._check_rights(role, all_queues)

    def _report(self, check: str, level: Level, what: str, where: str, mend: str = "") -> None:
        self._found.append(Finding(check, level, what, where, mend))

    async def _ask(self, check: str, what: str, call: Call[T]) -> T | None:
        """Send a call; if this user may not send it, report that and return None.

        Raises:
            StoreDown
            StoreRefused: the connection itself is refused, by its password for example.
        """
        try:
            return await self._sender.send(call.at(self._node))
        except StoreRefused as error:
            if error.kind in NO_ENTRY:
                raise  # no other call would succeed
            mend = "run the doctor as an administrator or as the user `doctor` of redis.conf: --url redis://USER:PASSWORD@..."
            what = f"{what} was refused, so not everything was checked: {error}"
            self._report(check, "info", what, "Redis", mend)
            return None

    async def _check_clock(self) -> None:
        before, begun = self._wall(), time.monotonic()
        now = await self._ask("clock", "TIME", server.clock())
        if now is not None:
            error = (time.monotonic() - begun) / 2
            self._found += server_checks.clock(now - before - error, error)

    async def _check_flags(self, flags: str) -> None:
        missing = missing_flags(flags)
        if not missing:
            return
        wanted = "".join(sorted({*flags, *missing}))
        repaired = self._repair and await self._ask(
            "notifications", "CONFIG SET", server.set_notification_flags(wanted)
        )
        what = (
            f"notify-keyspace-events is '{flags}', without {''.join(sorted(missing))}: jobs start late, when the "
            "dispatcher's safety cap (30 s) finds them"
        )
        mend = f"CONFIG SET notify-keyspace-events {wanted}, and write notify-keyspace-events {FLAGS} to redis.conf"
        where = "Redis, notify-keyspace-events"
        self._found.append(Finding("notifications", "fault", what, where, mend, bool(repaired)))

    async def _prove_events(self) -> None:
        """Subscribe to the events of a canary's key, write the key, and wait for the event."""
        key = keys.canary(self._queue)
        subscription = Subscription(self._url, node=self._node)
        try:
            await subscription.open([], [keys.events(address.parse(self._url).db, key)])
            await self._sender.send_all(server.canary(key))
            async with asyncio.timeout(self._event_timeout):
                async for _ in subscription.messages():
                    return
        except TimeoutError:
            what = f"a test event did not arrive within {self._event_timeout:g} s: jobs start up to 30 s late"
            mend = f"CONFIG SET notify-keyspace-events {FLAGS}; a proxy in between must pass keyspace events on"
            self._report("canary", "fault", what, key, mend)
        except StoreRefused as error:
            mend = (
                "run it as the user `doctor` of redis.conf; or look in a dispatcher's log for `keyspace events arrive`"
            )
            self._report("canary", "info", f"whether keyspace events arrive cannot be tested: {error}", key, mend)
        except StoreDown as error:
            self._report("canary", "fault", f"the test key cannot be written: {error}", key, "fix the faults above")
        finally:
            await subscription.close()

    async def _run_script(self) -> None:
        try:
            await unless_mistyped(self._sender.send(Store(self._queue).queue_stats()))
        except StoreError as error:
            mend = "evsched needs scripts: allow EVAL and EVALSHA, as for the users in redis.conf"
            self._report("scripts", "fault", f"a read-only script was refused: {error}", "Redis", mend)

    async def _check_rights(self, role: Role, all_queues: bool) -> None:
        """Check the rights of the user that has the role's name; without one, of this connection's user."""
        user = str(role)
        try:
            if not await self._is_user(user):
                user = await self._sender.send(server.whoami().at(self._node))
                what = f"there is no Redis user {role}, so the rights of this connection's user were checked"
                self._report("rights", "info", what, f"user {user}")
            refused = list[str]()
            cluster, db = self._node is not None, address.parse(self._url).db
            for words in needs(role, self._queue, db, all_queues=all_queues, cluster=cluster):
                if await self._sender.send(server.may(user, words).at(self._node)) != "OK":
                    refused.append(" ".join(words[:2]))
        except StoreRefused as error:
            mend = f"run it as an administrator: evsched doctor --role {role} --url redis://USER:PASSWORD@..."
            self._report("rights", "info", f"the rights of {role} cannot be checked: {error}", f"user {user}", mend)
            return
        if refused:
            more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
            what = f"this user lacks rights that {role} needs: {', '.join(refused[:_NAMED])}{more}"
            mend = f"ACL SETUSER {user} with the rights of the line `user {role}` in redis.conf"
            self._report("rights", "fault", what, f"user {user}", mend)

    async def _is_user(self, name: str) -> bool:
        try:
            await self._sender.send(server.may(name, ("PING",)).at(self._node))
        except StoreRefused as error:
            if "not found" not in str(error):
                raise
            return False
        return True


ShowProgress = Callable[[], AbstractContextManager[OnProgress]]
"""Shows the progress of the audit while its context is open."""


class Examination(Struct, frozen=True):
    """The result of an examination."""

    found: list[Finding]
    queues: list[str]
    seen: int
    """How many records and entries of places were checked."""


def _no_queue(name: str, others: Iterable[str]) -> Finding:
    """Report a queue that is named and has no key. `others`: the queues that there are."""
    near = nearest(name, others, most=3)
    hint = f": did you mean {', '.join(near)}?" if near else ""
    what = f"queue {name} has no jobs, no workers and no recurrences{hint}"
    mend = "correct the name; if the queue is new, this is gone with its first job or worker"
    return Finding("no-queue", "warning", what, f"queue {name}", mend)


async def _read_shards(sender: BatchingSender) -> Shards:
    """Return how many shards queues have; none if Redis does not say it: other checks report why."""
    try:
        return Shards(await sender.send(server.shards()))
    except StoreError:
        return NONE


async def examine(
    url: str,
    sender: BatchingSender,
    queues: Sequence[str] = (),
    role: Role | None = None,
    *,
    repair: bool = False,
    ledger_url: str | None = None,
    show: ShowProgress = lambda: nullcontext(lambda done, total: None),
    act: Act | None = None,
) -> Examination:
    """Check Redis, and the queues that are named, with their shards, or all queues; and the ledger, if it is given.

    `act`: the act of the operator who has it `repair`.

    Raises:
        StoreDown, StoreRefused
    """
    found = list[Finding]()
    cluster = topology(url)
    try:
        nodes = await sender.nodes()
    except StoreDown as error:
        if error.kind != NO_SLOTS:
            raise
        return Examination([no_slots(error)], [], 0)
    down = await unanswered(sender, nodes)
    shards = NONE if await sender.node_of(keys.SHARDS) in down else await _read_shards(sender)
    # After the first call, by which the primary was found.
    found += [server_checks.sentinel(*one) for one in await primary(url).doubtful_sentinels()]
    if cluster is not None:
        found += await cluster_checks(sender, cluster, shards, down)
    nodes = [node for node in nodes if node not in down]
    parts = [part for name in queues for part in shards.all_of(name) if await sender.node_of(keys.root(part)) in nodes]
    if queues and not parts:
        return Examination(found, [], 0)
    for node in nodes:
        # In a cluster, only the nodes of the queues that are named.
        if (queue := await queue_at(sender, node, parts)) is not None:
            found += await Doctor(url, sender, queue, node=node, repair=repair).run(role, all_queues=not queues)
    audit = Audit(sender, parts, down=down, act=act)
    try:
        if not any(finding.check == "cluster" for finding in found):
            with show() as report:
                violations = await audit.run(repair=repair, on_progress=report)
            found += await find_standstill(sender, audit.unblocked, shards)
            found += await stray_jobs(sender, queues, shards, audit.met)
            found += await incomplete_deploys(sender, audit.queues)
            found += await broken_recurrences(sender, audit.queues)
            found += await stuck_batches(sender, audit.queues, shards)
            unused = [name for name in sorted({*queues}) if {*shards.all_of(name)} <= {*audit.empty}]
            found += [_no_queue(name, shards.wholes(audit.met)) for name in unused]
            found += violations
            if ledger_url is not None:
                found += await _check_ledger(ledger_url, sender, repair=repair)
    except StoreError as error:
        if isinstance(error, StoreDown) and not down:
            raise
        what = f"the queues were not checked: {error}"
        mend = "fix the faults above; or use an administrator, or the user `doctor` of redis.conf"
        found.append(Finding("audit", "warning", what, "Redis", mend))
    return Examination(found, audit.queues, audit.seen)


async def _check_ledger(url: str, sender: BatchingSender, *, repair: bool) -> list[Finding]:
    try:
        from evsched.diagnostics.ledger_checks import ledger  # it needs psycopg
    except ImportError:
        mend = "pip install 'evsched[ledger]', or unset EVSCHED_LEDGER_URL"
        return [Finding("ledger", "warning", "the ledger was not checked: psycopg is missing", "the ledger", mend)]
    return await ledger(url, sender, repair=repair)
