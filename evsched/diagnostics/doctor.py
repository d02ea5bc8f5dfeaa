"""The doctor: asks a server what it is and may do, and proves what no setting can prove.

What it may not ask it says, as an `info`. `server_checks.py` judges the answers; `audit.py` looks at the queues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from evsched import keys
from evsched.diagnostics import server_checks
from evsched.diagnostics.acl import Role, needs
from evsched.diagnostics.finding import Finding
from evsched.dispatcher.watcher import FLAGS, missing_flags
from evsched.errors import NO_ENTRY, StoreDown, StoreError, StoreRefused
from evsched.store import server
from evsched.store.store import Store
from evsched.transport import address
from evsched.transport.call import Call, T
from evsched.transport.connection import Subscription
from evsched.transport.senders import BatchingSender

_HEARD: Final = 1.5
"""Seconds in which the canary must be heard: what a dispatcher waits."""

_NAMED: Final = 5
"""Of the commands that are refused so many are named: the line of redis.conf has them all."""


class Doctor:
    """Looks at one server. `queue` stands for all queues where a check needs one."""

    def __init__(
        self,
        url: str,
        sender: BatchingSender,
        queue: str,
        *,
        repair: bool = False,
        wall: Callable[[], float] = time.time,
        heard: float = _HEARD,
    ) -> None:
        self._url = url
        self._sender = sender
        self._queue = queue
        self._repair = repair
        self._wall = wall
        self._heard = heard
        self._found = list[Finding]()

    async def run(self, role: Role | None = None, *, all_queues: bool = True) -> list[Finding]:
        """Check the server; the rights too, when a role is named.

        Raises:
            StoreDown: it cannot be reached.
        """
        info = await self._ask("info", "INFO", server.facts())
        settings = await self._ask("settings", "CONFIG GET", server.settings(server_checks.SETTINGS))
        if info is not None:
            told = server_checks.Server(info, settings or {})
            self._found += [finding for check in server_checks.CHECKS for finding in check(told)]
            if server_checks.cluster(told):
                return self._found  # all else would fail for that reason, and say another
        await self._check_clock()
        if settings is not None:
            await self._check_flags(settings.get("notify-keyspace-events", ""))
        await self._prove_events()
        if role != "producer":  # it may not, and need not
            await self._run_script()
        if role is not None:
            await self._check_rights(role, all_queues)
        return self._found

    def _tell(self, finding: Finding) -> None:
        self._found.append(finding)

    async def _ask(self, check: str, what: str, call: Call[T]) -> T | None:
        """Send a call; say so when this user may not.

        Raises:
            StoreDown
            StoreRefused: the connection itself is refused, by its password for example.
        """
        try:
            return await self._sender.send(call)
        except StoreRefused as error:
            if error.kind in NO_ENTRY:
                raise  # nothing can be looked at
            mend = "ask as an administrator, or as the user `doctor` of redis.conf: --url redis://USER:PASSWORD@..."
            self._tell(Finding(check, "info", f"{what} cannot be asked, so not all is checked: {error}", "Redis", mend))
            return None

    async def _check_clock(self) -> None:
        before, begun = self._wall(), time.monotonic()
        now = await self._ask("clock", "TIME", server.clock())
        if now is not None:
            self._found += server_checks.clock(now - before - (time.monotonic() - begun) / 2)

    async def _check_flags(self, flags: str) -> None:
        missing = missing_flags(flags)
        if not missing:
            return
        wanted = "".join(sorted({*flags, *missing}))
        repaired = False
        if self._repair:
            repaired = await self._ask("notifications", "CONFIG SET", server.set_notification_flags(wanted)) is not None
        self._tell(
            Finding(
                "notifications",
                "fault",
                f"notify-keyspace-events is '{flags}', without {''.join(sorted(missing))}: jobs start late, by the "
                "dispatcher's safety cap",
                "Redis, notify-keyspace-events",
                f"CONFIG SET notify-keyspace-events {wanted}, and notify-keyspace-events {FLAGS} into redis.conf",
                repaired,
            )
        )

    async def _prove_events(self) -> None:
        """Subscribe to the events of a canary's key, write it, and hear that."""
        key = keys.canary(self._queue)
        subscription = Subscription(self._url)
        try:
            await subscription.open([], [keys.events(address.parse(self._url).db, key)])
            await self._sender.send_all(server.canary(key))
            async with asyncio.timeout(self._heard):
                async for _ in subscription.messages():
                    return
        except TimeoutError:
            self._tell(
                Finding(
                    "canary",
                    "fault",
                    f"an event of our own was not heard within {self._heard:g} s: jobs start late",
                    key,
                    f"CONFIG SET notify-keyspace-events {FLAGS}; behind a proxy, one that passes keyspace events on",
                )
            )
        except StoreRefused as error:
            mend = "the user `doctor` of redis.conf may; a dispatcher's log says `keyspace events arrive`"
            self._tell(Finding("canary", "info", f"the events cannot be proved: {error}", key, mend))
        except StoreDown as error:
            self._tell(
                Finding("canary", "fault", f"the canary cannot be written: {error}", key, "see the faults above")
            )
        finally:
            await subscription.close()

    async def _run_script(self) -> None:
        try:
            await self._sender.send(Store(self._queue).queue_stats())
        except StoreError as error:
            mend = "nothing runs without scripts: allow EVAL and EVALSHA, see the users in redis.conf"
            if "WRONGTYPE" in str(error):
                return  # the audit names the key
            self._tell(Finding("scripts", "fault", f"a script that reads was refused: {error}", "Redis", mend))

    async def _check_rights(self, role: Role, all_queues: bool) -> None:
        """Ask what the user that is named as the role may do; without such a user, what this connection's may."""
        user = str(role)
        try:
            if not await self._is_user(user):
                user = await self._sender.send(server.whoami())
                what = f"there is no user {role}, so this connection's user was asked for what {role} needs"
                self._tell(Finding("rights", "info", what, f"user {user}", ""))
            refused = list[str]()
            for words in needs(role, self._queue, address.parse(self._url).db, all_queues=all_queues):
                if await self._sender.send(server.may(user, words)) != "OK":
                    refused.append(" ".join(words[:2]))
        except StoreRefused as error:
            mend = f"as an administrator: evsched doctor --role {role} --url redis://USER:PASSWORD@..."
            what = f"the rights of {role} cannot be asked: {error}"
            self._tell(Finding("rights", "info", what, f"user {user}", mend))
            return
        if refused:
            more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
            what = f"it may not do what {role} needs: {', '.join(refused[:_NAMED])}{more}"
            mend = f"give it the rights of the line `user {role}` in redis.conf, by ACL SETUSER {user} ..."
            self._tell(Finding("rights", "fault", what, f"user {user}", mend))

    async def _is_user(self, name: str) -> bool:
        try:
            await self._sender.send(server.may(name, ("PING",)))
        except StoreRefused as error:
            if "not found" not in str(error):
                raise
            return False
        return True
