"""The connection of the dispatcher's and the worker's subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.subscription import Subscription
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.mark.one_server
async def test_messages_before_the_last_confirmation_do_not_end_a_subscription(
    server: EmbeddedRedis, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription, confirmed = Subscription(server.url), asyncio.Event()
    link: Any = subscription._connection  # pyright: ignore[reportPrivateUsage]
    send = link.send_command

    async def publish_first(command: str, *words: Any, **options: Any) -> None:
        """Publish messages before the second command of `open`, for the channels of the first."""
        if command == "SUBSCRIBE":
            while not await asyncio.to_thread(raw.publish, "early-1", "1"):
                pass
            raw.publish("early-2", "2")
        await send(command, *words, **options)

    monkeypatch.setattr(link, "send_command", publish_first)
    await subscription.open(["early-*"], ["late", "later"])
    messages = subscription.messages()
    subscription.subscribe([], ["last"], confirmed.set)
    assert raw.publish("late", "3") == 1
    async with asyncio.timeout(PATIENCE):
        assert await anext(messages) == (b"late", b"3")
        reading = asyncio.ensure_future(anext(messages))
        await confirmed.wait()
    raw.publish("last", "4")
    assert await reading == (b"last", b"4")
    await subscription.close()
