"""The programs on evsched: `python -m bench.workflows.on_evsched NAME JOBS`."""

from __future__ import annotations

import asyncio
import sys

from bench.workflows.runs import note
from evsched import App, EndedBatch

app = App(name="workflows")


@app.task
async def row(number: int) -> int:
    note(f"job {number}")
    await asyncio.sleep(0.01)
    note(f"end {number}")
    return number


@app.task
async def summary(batch: EndedBatch) -> None:
    note("callback")


@app.task
async def numbers(count: int) -> list[int]:
    return list(range(count))


@app.task
async def total(rows: list[int]) -> None:
    note(f"callback {sum(rows)}")


@app.task
async def fetch(number: int) -> int:
    note("job fetch")
    note("end fetch")
    return number


@app.task
async def parse(number: int) -> int:
    note("job parse")
    await asyncio.sleep(2)
    note("end parse")
    return number


@app.task
async def save(number: int) -> None:
    note("callback")


async def start_import(count: int) -> None:
    async with app.batch(on_done=summary) as batch:
        await batch.add_many(row, [(number,) for number in range(count)])


async def start_chord(count: int) -> None:
    graph = app.graph()
    graph.add("numbers", numbers.s(count))
    graph.each("rows", row.s(), over="numbers")
    graph.add("total", total.s(), after="rows")
    await graph.enqueue()


async def start_chain(count: int) -> None:
    await app.chain(fetch.s(count), parse.s(), save.s()).enqueue()


async def main() -> None:
    start = {"import": start_import, "chord": start_chord, "chain": start_chain}[sys.argv[1]]
    await start(int(sys.argv[2]))
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
