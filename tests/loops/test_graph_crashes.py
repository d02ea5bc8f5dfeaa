"""A keeper dies at each of its calls in turn, before it is sent or before its reply comes: the next one goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import pytest

from evsched import App
from evsched.batches.keeper import BatchKeeper
from evsched.config import Config
from evsched.graphs.graph import Graph
from evsched.jobs.job import Buried, Done, FetchedJob, decode
from evsched.runtime.loops import Runtime
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender


class Killed(BaseException):
    """The process is gone."""


Strike = Callable[[], Awaitable[None]]
"""What befalls a keeper at one of its calls."""


async def kill() -> None:
    raise Killed


class Mortal(BatchingSender):
    """A sender that is struck at a call: before it is sent, or after."""

    def __init__(self, url: str, lives: Generator[bool | None], strike: Strike) -> None:
        super().__init__(url)
        self._lives = lives
        self._strike = strike

    async def send(self, call: Call[Any]) -> Any:
        (value,) = await self.send_all([call])
        return value

    async def send_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        struck = next(self._lives)
        if struck is False:
            await self._strike()
        found = await super().send_all(calls)
        if struck:
            await self._strike()
        return found


def life(at: int, *, sent: bool) -> Generator[bool | None]:
    """Yield None for each call but the one at a place: True = the strike comes once that is sent, False = before."""
    for n in range(1_000_000):
        yield sent if n == at else None


class Scene:
    """A graph whose jobs are done by the test, and whose keepers are struck."""

    def __init__(self, config: Config, home: str, queue: str, strike: Strike = kill) -> None:
        self.strike = strike
        self.config = config
        self.queues = [home, queue]
        self.store = Store(queue)
        self.sender = BatchingSender(config.url)
        self.ran = Counter[str]()

    async def keep(self, lives: Generator[bool | None]) -> bool:
        """Run a keeper until nothing is due; return whether it has died."""
        mortal = Mortal(self.config.url, lives, self.strike)
        keeper = BatchKeeper(Runtime(self.config, mortal, lambda _: None), lambda: self.queues)
        keeper._client._sender = mortal  # pyright: ignore[reportPrivateUsage]
        try:
            while min([await keeper.step(queue) for queue in self.queues]) < 1:
                pass
        except Killed:
            return True
        finally:
            await mortal.close()
        return False

    async def work(self) -> bool:
        """Do all jobs that are due; return whether there were any."""
        await self.sender.send(self.store.dispatch(limit=100, cap=100_000))
        started: list[FetchedJob] = (await self.sender.send(self.store.start("w", (), hold=99, lease=99))).jobs
        for job in started:
            self.ran[job.id] += 1
            payload = decode(job.payload)
            if payload["args"] == ["fail"]:
                await self.sender.send(self.store.bury("w", [(job, Buried("x", False))]))
            else:
                done = Done(self.result(payload["task"], payload["args"], payload["kwargs"]), 9.0, False)
                await self.sender.send(self.store.complete("w", [(job, done)]))
        return bool(started)

    @staticmethod
    def result(task: str, args: list[Any], kwargs: dict[str, Any]) -> bytes:
        return {"span": b"[1,2]", "plus": b"%d" % (sum(args) + 10)}.get(task) or str(kwargs["plus"]).encode()

    async def finish(self, lives: Generator[bool | None]) -> int:
        """Let everything come to its end; return how many keepers have died."""
        deaths = 0
        while True:
            died = await self.keep(lives)
            deaths += died
            if not await self.work() and not died and not await self.hurry():
                return deaths

    async def hurry(self) -> bool:
        """Let the chores that look for lost jobs be due; return whether there are any."""
        home = Store(self.queues[0])
        late = [step for step, _ in await self.sender.send(home.chores(0)) if step.startswith("settle ")]
        for step in late:
            await self.sender.send(home.add_chore(step, 0.0))
        return bool(late)


def graph_of(app: App, queue: str) -> Callable[[], Graph]:
    """Return a function that builds the graph of the test; what its tasks do is up to `Scene.result`."""

    @app.task(queue=queue)
    async def span(word: str = "") -> list[int]: ...

    @app.task(queue=queue)
    async def plus(n: int) -> int: ...

    @app.task(queue=queue)
    async def end(plus: list[int], fails: Any, alone: Any) -> Any: ...

    def build() -> Graph:
        graph = app.graph("g", retention=60.0)
        graph.add("span", span.s())
        graph.add("alone", span.s())
        graph.add("fails", span.s("fail"))
        graph.each("plus", plus.s(), over="span")
        graph.add("behind", span.s(), after="fails", take=())
        graph.add("end", end.s(), after=["plus", "fails", "alone"], despite_failure=True)
        return graph

    return build


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.one_server
async def test_each_job_runs_once_wherever_a_keeper_dies(
    app: App, config: Config, raw: Any, queue: str, sent: bool
) -> None:
    app.move_to(config.url)
    other = f"{queue}-2"
    scene, build, points = Scene(config, queue, other), graph_of(app, other), 0
    while True:
        raw.delete("x", *raw.keys(f"evsched:{{{queue}*"))
        scene.ran.clear()
        run = await build().enqueue()
        deaths = await scene.finish(life(points, sent=sent))
        status = await run.status()
        assert (status.state, status.done, status.dead, status.stopped) == ("failed", 4, 1, 1), points
        assert scene.ran == dict.fromkeys(("g.span", "g.alone", "g.fails", "g.plus.0", "g.plus.1", "g.end"), 1), points
        ended = await app.client.status(other, "g.end")
        assert ended is not None
        assert ended.result == [11, 12], points
        points += 1
        if not deaths:
            break
    assert points > 20
    await scene.sender.close()
    await app.close()


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.one_server
async def test_graph_that_is_cancelled_at_any_call_of_a_keeper_ends_and_leaves_no_job(
    app: App, config: Config, raw: Any, queue: str, sent: bool
) -> None:
    app.move_to(config.url)
    other = f"{queue}-2"
    build, points, cancelled, ran = graph_of(app, other), 0, list[int](), Counter[str]()

    async def cancel() -> None:
        cancelled.append(points)
        await app.known_batch("g").cancel()
        # Another keeper cancels its jobs, and those of this keeper come after that.
        await scene.keep(life(-1, sent=True))
        ran.clear()
        ran.update(scene.ran)

    scene = Scene(config, queue, other, cancel)
    while True:
        raw.delete("x", *raw.keys(f"evsched:{{{queue}*"))
        scene.ran.clear()
        run = await build().enqueue()
        await scene.finish(life(points, sent=sent))
        if points not in cancelled:
            break
        status = await run.status()
        assert (status.state in ("cancelled", "failed"), status.open) == (True, 0), points
        assert scene.ran == ran, points
        assert max(ran.values(), default=1) == 1, points
        assert not raw.zcard(f"evsched:{{{other}}}:schedule"), points
        points += 1
    assert points > 20
    await scene.sender.close()
    await app.close()
