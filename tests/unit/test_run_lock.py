"""The shared and exclusive lock of a worker's runs."""

from __future__ import annotations

import asyncio

from anyio.lowlevel import checkpoint

from evsched.execution.precautions import RunLock


async def test_one_run_holds_it_alone_once_the_others_have_released_it() -> None:
    opened, order = list[str](), list[str]()
    lock = RunLock(lambda: opened.append("opened"))
    await lock.share()

    async def alone() -> None:
        async with lock.alone(10) as open_again:
            order.append(f"alone {open_again is not None}")
            await checkpoint()

    async def among_others() -> None:
        await lock.share()
        order.append("other")
        lock.release()

    first = asyncio.create_task(alone())
    await checkpoint()
    assert lock.closed
    second = asyncio.create_task(among_others())
    await checkpoint()
    assert order == []
    lock.release()
    await asyncio.gather(first, second)
    assert (order, opened, lock.closed, lock.holders) == (["alone True", "other"], ["opened"], False, 0)


async def test_a_run_that_waits_too_long_to_be_alone_shares_it() -> None:
    lock = RunLock(lambda: None)
    await lock.share()
    async with lock.alone(0.01) as open_again:
        assert open_again is None
        assert not lock.closed
        assert lock.holders == 2
    assert lock.holders == 1


async def test_a_run_that_is_alone_can_let_others_share_it() -> None:
    lock = RunLock(lambda: None)
    async with lock.alone(10) as open_again:
        assert open_again is not None
        open_again()
        assert not lock.closed
        await lock.share()
    assert lock.holders == 1
