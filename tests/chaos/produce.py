"""Many producers of one unique job, until they are killed: python -m tests.chaos.produce COUNT WITHIN."""

from __future__ import annotations

import asyncio
import sys

from evsched import Unique
from tests.chaos.app import once


async def produce(count: int, within: float) -> None:
    unique = once.using(unique=Unique(within=within), on_conflict="keep")

    async def one() -> None:
        while True:
            await unique.enqueue()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())


if __name__ == "__main__":
    asyncio.run(produce(int(sys.argv[1]), float(sys.argv[2])))
