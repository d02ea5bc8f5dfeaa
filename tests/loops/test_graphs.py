"""Chains and graphs with real dispatchers and workers: results go from job to job, whatever fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, EndedBatch, JobDead, Retry, events
from evsched.batches.keeper import BatchKeeper
from evsched.config import Config
from evsched.errors import BadArguments, ConfigError, JobMissing
from evsched.store.store import Store
from tests.support.patience import PATIENCE
from tests.support.system import System, system


class Tasks:
    """An app whose tasks a test needs."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.failing = failing = set[str]()
        self.ran = ran = Counter[str]()
        self.outcomes = outcomes = asyncio.Queue[EndedBatch]()
        self.hold = hold = asyncio.Event()

        @app.task
        async def add(left: int, right: int = 1) -> int:
            return left + right

        @app.task(retry=Retry(attempts=1))
        async def name(text: str, a: Any = None, b: Any = None) -> str:
            ran[text] += 1
            if text in failing:
                raise ValueError(text)
            return f"{text}({','.join(str(one) for one in (a, b) if one is not None)})"

        @app.task
        async def span(count: int) -> list[int]:
            return list(range(count))

        @app.task
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task
        async def nothing() -> None:
            ran["nothing"] += 1

        @app.task
        async def wait() -> None:
            await hold.wait()

        @app.task
        async def note(batch: EndedBatch) -> None:
            outcomes.put_nowait(batch)

        self.add, self.name, self.span, self.total, self.nothing = add, name, span, total, nothing
        self.wait, self.note = wait, note

    def callbacks(self) -> dict[str, Any]:
        return {"on_done": self.note, "on_failed": self.note}

    async def ended(self) -> EndedBatch:
        async with asyncio.timeout(PATIENCE):
            return await self.outcomes.get()


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


async def done(running: System, step: str) -> None:
    """Wait until a chore has been done."""
    await running.recorder.wait(events.ChoresDone, lambda event: step in event.steps)


async def test_each_job_of_a_chain_gets_the_result_of_the_one_before(config: Config, tasks: Tasks) -> None:
    add = tasks.add
    async with system(config, tasks.app):
        chain = tasks.app.chain(add.s(1), add.s(), add.s(10), tasks.nothing.s(), **tasks.callbacks())
        run = await chain.enqueue()
        assert await run.result("add-3", timeout=PATIENCE) == 13
        assert await run.result() is None
        ended = await tasks.ended()
        assert (ended.outcome, ended.total, ended.done) == ("done", 4, 4)
        assert [node.name for node in await run.nodes()] == ["add", "add-2", "add-3", "nothing"]


async def test_graph_passes_results_by_name(config: Config, tasks: Tasks, queue: str) -> None:
    name = tasks.name
    config = replace(config, queues=(queue, f"{queue}-2"))
    async with system(config, tasks.app):
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("end", tasks.name.s("end"), after={"a": "left", "b": "right"})
        graph.add("a", name.s("a"))
        graph.add("left", name.using(queue=f"{queue}-2").s("left"), after="a")
        graph.add("right", name.s("right", b=7), after=["a"])
        graph.add("only-after", tasks.nothing.s(), after=["left", "right"], take=())
        run = await graph.enqueue()
        assert await run.result("end", timeout=PATIENCE) == "end(left(a()),right(a(),7))"
        nodes = {node.name: node for node in await run.nodes()}
        assert {nodes[at].name: [name for name in nodes if nodes[name].ordinal in nodes[at].after] for at in nodes} == {
            "a": [],
            "left": ["a"],
            "right": ["a"],
            "end": ["left", "right"],
            "only-after": ["left", "right"],
        }
        assert {node.outcome for node in nodes.values()} == {"done"}
        assert (await tasks.app.job("g.left", queue=f"{queue}-2").status()).batch == "/".join(
            (queue, "g", str(nodes["left"].ordinal))
        )


async def test_node_has_a_job_for_each_item(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("span", tasks.span.s(250))
        graph.each("plus", tasks.add.s(100), over="span")
        graph.add("total", tasks.total.s(), after={"numbers": "plus"})
        run = await graph.enqueue()
        assert await run.result("total", timeout=PATIENCE) == sum(range(250)) + 25_000
        assert (await run.result("plus"))[:3] == [100, 101, 102]
        assert (await tasks.ended()).total == 3
        inner = tasks.app.known_batch("g.plus")
        assert (await inner.status()).done == 250


async def test_result_of_a_node_is_there_before_the_graph_has_ended(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g")
        graph.add("wait", tasks.wait.s())
        graph.add("span", tasks.span.s(3))
        graph.each("plus", tasks.add.s(100), over="span")
        graph.add("total", tasks.total.s(), after={"numbers": "plus"})
        graph.add("end", tasks.name.s("end"), after="wait", take=())
        async with asyncio.TaskGroup() as group:
            run = await graph.enqueue()
            results = [group.create_task(run.result(name, timeout=PATIENCE)) for name in ("plus", "total", "total")]
        assert [task.result() for task in results] == [[100, 101, 102], 303, 303]
        assert (await run.status()).state == "running"
        with pytest.raises(TimeoutError, match=r"node end of g did not end in time"):
            await run.result(timeout=0)
        await running.recorder.wait(events.Started)
        last = asyncio.create_task(run.result(timeout=PATIENCE))
        tasks.hold.set()
        assert await last == "end()"


async def test_each_item_of_an_empty_list_is_done_at_once(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        graph = tasks.app.graph()
        graph.add("span", tasks.span.s(0))
        graph.each("plus", tasks.add.s(100), over="span")
        graph.add("total", tasks.total.s(), after={"numbers": "plus"})
        assert await (await graph.enqueue()).result(timeout=PATIENCE) == 0


@pytest.mark.parametrize(("count", "over", "why"), [(4, "span", "has 4 items"), (3, "number", "is not a list")])
async def test_each_item_of_a_result_that_cannot_be_is_a_failure(
    config: Config, tasks: Tasks, count: int, over: str, why: str
) -> None:
    async with system(config, tasks.app):
        graph = tasks.app.graph()
        graph.add("span", tasks.span.s(count))
        graph.add("number", tasks.add.s(1))
        graph.each("plus", tasks.add.s(100), over=over, limit=3)
        graph.add("total", tasks.total.s(), after={"numbers": "plus"})
        run = await graph.enqueue()
        with pytest.raises(JobDead, match="was stopped: plus is dead"):
            await run.result(timeout=PATIENCE)
        with pytest.raises(JobDead, match=f"is dead: the result of {over} {why}"):
            await run.result("plus")


async def test_failure_stops_only_what_stands_behind_it_until_it_is_revived(config: Config, tasks: Tasks) -> None:
    tasks.failing.add("b")
    name = tasks.name
    async with system(config, tasks.app):
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("b", name.s("b"))
        graph.add("c", name.s("c"), after={"a": "b"})
        graph.add("d", name.s("d"), after={"a": "c"})
        graph.add("other", name.s("other"))
        graph.add("report", name.s("report"), after={"a": "b", "b": "other"}, despite_failure=True)
        run = await graph.enqueue()
        ended = await tasks.ended()
        assert (ended.outcome, ended.dead, ended.stopped, ended.done) == ("failed", 1, 2, 2)
        with pytest.raises(JobDead, match=r"^g\.d was stopped: b is dead$"):
            await run.result("d")
        with pytest.raises(JobDead, match=r"^g\.b is dead: .*ValueError: b"):
            await run.result("b")
        assert await run.result("report") == "report(other())"
        tasks.failing.clear()
        await tasks.app.client.revive(run.queue, ["g.b"])
        assert (await tasks.ended()).outcome == "done"
        assert await run.result("d") == "d(c(b()))"
        assert tasks.ran == {"b": 2, "c": 1, "d": 1, "other": 1, "report": 1}


async def test_failed_item_is_none_for_those_behind_it_despite_failure(config: Config, tasks: Tasks) -> None:
    tasks.failing.add("1")
    async with system(config, tasks.app) as running:

        @tasks.app.task
        async def texts() -> list[str]:
            return ["0", "1", "2"]

        @tasks.app.task
        async def echo(all: list[Any]) -> list[Any]:  # noqa: A002
            return all

        graph = tasks.app.graph()
        graph.add("texts", texts.s())
        graph.each("names", tasks.name.s(), over="texts")
        graph.add("echo", echo.s(), after={"all": "names"}, despite_failure=True)
        graph.add("all", echo.s(), after={"all": "names"})
        run = await graph.enqueue()
        assert await run.result("echo", timeout=PATIENCE) == ["0()", None, "2()"]
        # When the item is done after all, the list is whole.
        tasks.failing.clear()
        await tasks.app.client.revive(run.queue, [f"{run.id}.names.1"])
        await running.recorder.wait(events.Completed, lambda event: f"{run.id}.all" in event.ids)
        assert await run.result("all", timeout=PATIENCE) == ["0()", "1()", "2()"]


async def test_cancelled_graph_starts_nothing_more(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("wait", tasks.wait.s())
        graph.add("nothing", tasks.nothing.s(), after="wait", take=())
        graph.each("each", tasks.add.s(), over="nothing")
        run = await graph.enqueue()
        await running.recorder.wait(events.Started)
        await run.cancel()
        found = await run.wait(PATIENCE)
        assert (found.state, found.cancelled, found.open) == ("cancelled", 3, 0)
        assert tasks.ran["nothing"] == 0
        with pytest.raises(JobDead, match=r"g\.nothing is cancelled"):
            await run.result("nothing")


async def test_jobs_of_a_node_are_cancelled_with_the_graph(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g")
        graph.add("span", tasks.span.s(20))
        graph.each("late", tasks.add.using(delay=3600).s(), over="span")
        run = await graph.enqueue()
        await done(running, "start g.late " + ",".join(map(str, range(20))))
        await run.cancel()
        assert (await run.wait(PATIENCE)).state == "cancelled"
        assert (await tasks.app.known_batch("g.late").status()).cancelled == 20


async def test_node_whose_argument_is_gone_fails(config: Config, tasks: Tasks, raw: Any, queue: str) -> None:
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("a", tasks.name.s("a"))
        graph.add("wait", tasks.wait.s())
        graph.add("b", tasks.name.s("b"), after={"a": "a", "b": "wait"})
        run = await graph.enqueue()
        await running.recorder.wait(events.Completed, lambda event: "g.a" in event.ids)
        raw.delete(f"evsched:{{{queue}}}:job:g.a")
        tasks.hold.set()
        assert (await tasks.ended()).dead == 1
        with pytest.raises(JobDead, match=r"g\.b is dead: the result of g\.a is gone"):
            await run.result("b")
        assert tasks.ran["b"] == 0


async def test_results_are_kept_until_the_graph_has_ended(config: Config, tasks: Tasks, raw: Any, queue: str) -> None:
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g", expires=1000, retention=500)
        graph.add("a", tasks.name.using(retention=0).s("a"))
        graph.add("span", tasks.span.s(1))
        graph.each("each", tasks.add.using(retention=20).s(), over="span")
        graph.add("wait", tasks.wait.s(), after=["a", "each"], take=())
        await graph.enqueue()
        await running.recorder.wait(events.Completed, lambda event: "g.a" in event.ids)
        assert 1_000_000 < raw.pttl(f"evsched:{{{queue}}}:job:g.a") <= 1_500_000
        tasks.hold.set()
        await done(running, "shed g.each 0")
        assert not raw.exists(f"evsched:{{{queue}}}:job:g.a")
        assert 10_000 < raw.pttl(f"evsched:{{{queue}}}:job:g.each.0") <= 20_000


async def test_graph_is_forgotten_with_the_batches_of_its_nodes(
    config: Config, tasks: Tasks, raw: Any, queue: str
) -> None:
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g", retention=0.1)
        graph.add("span", tasks.span.s(1))
        graph.each("each", tasks.add.s(), over="span")
        run = await graph.enqueue()
        await done(running, "forget g.each")
        with pytest.raises(JobMissing):
            await run.status()
        assert not raw.keys(f"evsched:{{{queue}}}:batch*g*")


@pytest.mark.one_server
async def test_job_that_another_server_has_lost_is_enqueued_again(
    config: Config, tasks: Tasks, raw: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a failover: the server of the job's queue had no time to tell its replica of the job."""

    async def is_elsewhere(keeper: BatchKeeper, where: str) -> bool:
        return where == other

    other = f"{queue}-2"
    monkeypatch.setattr(BatchKeeper, "_is_elsewhere", is_elsewhere)
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g")
        graph.add("a", tasks.name.using(queue=other).s("a"))
        await graph.enqueue()
        await done(running, "start g 0")
        keys = f"evsched:{{{other}}}:schedule", f"evsched:{{{other}}}:job:g.a"
        assert raw.delete(*keys) == 2
        assert raw.zadd(f"evsched:{{{queue}}}:chores", {"restart g 0": 0}) == 0
        await done(running, "restart g 0")
        assert raw.exists(*keys) == 2
        assert raw.zscore(f"evsched:{{{queue}}}:chores", "restart g 0") is None


async def test_chores_that_are_done_again_start_no_node_twice(config: Config, tasks: Tasks) -> None:
    """Chores are done again, as by a keeper that was killed before it removed them."""
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("span", tasks.span.s(3))
        graph.each("each", tasks.add.s(), over="span")
        graph.add("total", tasks.total.s(), after={"numbers": "each"})
        run = await graph.enqueue()
        assert await run.result(timeout=PATIENCE) == 6
        store = Store(run.queue)
        for step in ("start g 0", "start g 1", "start g.each 0,1,2", "start g 2", "ripple g 1", "shed g 0"):
            seen = len(running.recorder.of(events.ChoresDone))
            await running.sender.send(store.add_chore(step, 0.0))
            await running.recorder.wait(
                events.ChoresDone,
                lambda event, step=step, seen=seen: (
                    step in event.steps and len(running.recorder.of(events.ChoresDone)) > seen
                ),
            )
        assert (await run.status()).state == "done"
        assert (await tasks.ended()).outcome == "done"
        assert sum(len(event.ids) for event in running.recorder.of(events.Started)) == 6  # with the callback


@pytest.mark.parametrize("dead", [False, pytest.param(True, marks=pytest.mark.extra)])
async def test_node_whose_id_another_job_has_is_dead(config: Config, tasks: Tasks, dead: bool) -> None:
    async with system(config, tasks.app) as running:
        if dead:
            tasks.failing.add("other")
        await tasks.name.using(id="g.b", delay=0 if dead else 3600).enqueue("other")
        if dead:
            await running.recorder.wait(events.JobBuried, lambda event: event.id == "g.b")
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("a", tasks.name.s("a"))
        graph.add("b", tasks.name.s("b"), after="a", take=())
        graph.add("c", tasks.name.s("c"), after="b", take=())
        run = await graph.enqueue()
        ended = await tasks.ended()
        assert (ended.outcome, ended.total, ended.done, ended.dead, ended.stopped) == ("failed", 3, 1, 1, 1)
        with pytest.raises(JobDead, match=r"g\.b is dead: there is another job g\.b"):
            await run.result("b")


async def test_node_that_failed_without_a_job_is_revived(config: Config, tasks: Tasks) -> None:
    tasks.failing.add("c")
    async with system(config, tasks.app) as running:
        other = await tasks.name.using(id="g.b", delay=3600).enqueue("other")
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("a", tasks.name.s("a"))
        graph.add("b", tasks.name.s("b"), after="a")
        graph.add("c", tasks.name.s("c"), after="a")
        graph.add("end", tasks.name.s("end"), after={"a": "b", "b": "c"})
        run = await graph.enqueue()
        assert (await tasks.ended()).dead == 2
        client = tasks.app.client
        tasks.failing.clear()
        await client.revive(run.queue, ["g.b"])
        assert (await tasks.ended()).dead == 2, "the other job has the id still"
        await other.cancel()
        with pytest.raises(JobMissing, match=r"g\.other"):
            await client.revive(run.queue, ["g.b", "g.c", "g.other"])
        assert await client.revive(run.queue, ["g.b", "g.c"]) == 2
        ended = await tasks.ended()
        assert (ended.outcome, ended.total, ended.done) == ("done", 4, 4)
        assert await run.result() == "end(b(a()),c(a()))"
        assert tasks.ran == {"a": 1, "b": 1, "c": 2, "end": 1}
        assert len([event for event in running.recorder.of(events.JobBuried) if event.id == "g.c"]) == 1


async def test_graph_whose_id_was_used_before_runs_its_nodes_though_their_old_records_are_kept(
    config: Config, tasks: Tasks
) -> None:
    async with system(config, tasks.app) as running:
        for _ in range(2):
            graph = tasks.app.graph("g", retention=0.1, **tasks.callbacks())
            graph.add("span", tasks.span.s(1))
            graph.each("each", tasks.add.s(), over="span")
            graph.add("end", tasks.name.s("end"), after="each", take=())
            await graph.enqueue()
            assert (await tasks.ended()).outcome == "done"
            await done(running, "forget g.each")
        assert tasks.ran["end"] == 2


@pytest.mark.extra
async def test_cancelled_graph_leaves_no_node_to_the_next_one_of_its_id(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        for delay in (3600, 0):
            graph = tasks.app.graph("g", retention=0.1, **tasks.callbacks())
            graph.add("end", tasks.name.using(delay=delay).s("end"))
            run = await graph.enqueue()
            if delay:
                await done(running, "start g 0")
                await run.cancel()
                await done(running, "forget g")
        assert (await tasks.ended()).outcome == "done"


async def test_malformed_chores_and_nodes_of_graphs_do_no_harm(
    config: Config, tasks: Tasks, raw: Any, queue: str
) -> None:
    async with system(config, tasks.app, dispatch=False) as running:
        graph = tasks.app.graph("g", **tasks.callbacks())
        graph.add("a", tasks.nothing.s())
        graph.add("b", tasks.nothing.s(), after="a", take=())
        await graph.enqueue()
        raw.hset(f"evsched:{{{queue}}}:batch_nodes:g", "0", "{")
        for step in ("start g x", "start g 7", "start x 0", "ripple x 1", "shed g x", "shed x 0"):
            await running.sender.send(Store(queue).add_chore(step, 0.0))
        running.dispatch()
        await done(running, "shed x 0")
        run = tasks.app.known_batch("g")
        assert (await run.wait(PATIENCE)).state == "failed"
        assert [(node.name, node.outcome) for node in await run.nodes()] == [("0", "dead"), ("b", "stopped")]


async def test_program_without_an_event_loop_enqueues_a_graph(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):

        def enqueue() -> str:
            with tasks.app.sync() as session:
                return session.enqueue_graph(tasks.app.chain(tasks.add.s(1), tasks.add.s(), **tasks.callbacks()))

        batch = await asyncio.to_thread(enqueue)
        assert ((await tasks.ended()).batch) == batch

        def look() -> tuple[list[str], str, Any]:
            with tasks.app.sync() as session:
                run = session.known_batch(batch)
                with pytest.raises(JobMissing, match="has no node 'zz'"):
                    run.result("zz")
                nodes = [node.name for node in run.nodes()]
                return nodes, run.node("add-2").outcome, run.result("add-2", timeout=PATIENCE)

        assert await asyncio.to_thread(look) == (["add", "add-2"], "done", 3)
        assert await tasks.app.known_batch(batch).result("add") == 2


def test_wrong_graphs_are_refused_when_they_are_built(tasks: Tasks) -> None:
    graph = tasks.app.graph()
    add = tasks.add
    graph.add("a", add.s(1))
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ConfigError, "added twice", lambda: graph.add("a", add.s(1))),
        (ConfigError, "its name must have", lambda: graph.add("7", add.s(1))),
        (ConfigError, "its name must have", lambda: graph.add("done", add.s(1))),
        (ConfigError, r"is not a call of a task: give task\.s", lambda: graph.add("b", add)),  # type: ignore[arg-type]
        (BadArguments, "takes no 'a'.*take=", lambda: graph.add("b", add.s(1), after="a")),
        (BadArguments, "needs 'left'", lambda: graph.add("b", add.s(), after="a", take=())),
        (BadArguments, "argument 'left': expected", lambda: graph.add("b", add.s("x"), after={"right": "a"})),
        (BadArguments, "got 'left' twice", lambda: graph.add("b", add.s(1), after={"left": "a"})),
        (
            BadArguments,
            "right is given, and is a result",
            lambda: graph.add("b", add.s(1, right=2), after={"right": "a"}),
        ),
        (BadArguments, "takes 2 arguments, got 3", lambda: graph.each("b", add.s(1, 2), over="a")),
        (ConfigError, "take names x", lambda: graph.add("b", add.s(1), after="a", take=("x",))),
        (ConfigError, "id: the job of a node has its own", lambda: graph.add("b", add.using(id="x").s(1))),
        (ConfigError, "limit is True", lambda: graph.each("b", add.s(), over="a", limit=True)),
        (ConfigError, "over is", lambda: graph.each("b", add.s(), over=["a"])),  # type: ignore[arg-type]
        (ConfigError, "after is 3", lambda: graph.add("b", add.s(), after=3)),  # type: ignore[arg-type]
        (ConfigError, "after is", lambda: graph.add("b", add.s(), after=[3])),  # type: ignore[list-item]
        (ConfigError, "take is 3", lambda: graph.add("b", add.s(), after="a", take=3)),  # type: ignore[arg-type]
        (ConfigError, "despite_failure is 'yes'", lambda: graph.add("b", add.s(), despite_failure="yes")),  # type: ignore[arg-type]
        (ConfigError, "limit is 0", lambda: graph.each("b", add.s(), over="a", limit=0)),
        (ConfigError, r"chain\(\) has no calls", lambda: tasks.app.chain()),
    ]
    for kind, text, build in wrong:
        with pytest.raises(kind, match=text):
            build()


async def test_result_of_a_node_that_there_is_not_is_refused_at_once(tasks: Tasks, config: Config) -> None:
    tasks.app.move_to(config.url)
    graph = tasks.app.graph()
    with pytest.raises(ConfigError, match="the graph has no nodes"):
        await graph.enqueue()
    graph.add("a", tasks.nothing.s())
    run = await graph.enqueue()
    with pytest.raises(JobMissing, match="has no node 'zz'"):
        await run.result("zz")
    await tasks.app.close()


async def test_wrong_orders_are_refused_before_anything_is_written(tasks: Tasks, raw: Any, queue: str) -> None:
    nothing = tasks.nothing.s()
    lost, circle, long = tasks.app.graph(), tasks.app.graph(), tasks.app.graph("x" * 180)
    lost.add("a", nothing, after="b", take=())
    circle.add("a", nothing, after="c", take=())
    circle.add("b", nothing, after="a", take=())
    circle.add("c", nothing, after="b", take=())
    circle.add("d", nothing, after="c", take=())
    long.add("a" * 30, nothing)
    many = tasks.app.graph()
    for at in range(10_001):
        many.add(f"n{at}", nothing)
    for graph, text in (
        (lost, "stands after b, which is not a node"),
        (circle, "has a circle: .* -> .* -> .* -> "),
        (long, "must not exceed 200"),
        (many, "10,001 nodes"),
    ):
        with pytest.raises(ConfigError, match=text):
            await graph.enqueue()
    assert not raw.keys(f"evsched:{{{queue}}}:*")


async def test_failure_reaches_the_end_of_a_long_chain(config: Config, tasks: Tasks) -> None:
    tasks.failing.add("x")
    async with system(config, tasks.app) as running:
        calls = [tasks.name.s("x"), *(tasks.name.s("y") for _ in range(999))]
        run = await tasks.app.chain(*calls, **tasks.callbacks()).enqueue()
        ended = await tasks.ended()
        assert (ended.outcome, ended.dead, ended.stopped) == ("failed", 1, 999)
        tasks.failing.clear()
        await tasks.app.client.revive(run.queue, [f"{run.id}.name"])
        await running.recorder.wait(events.Completed, lambda event: f"{run.id}.name-3" in event.ids)
        await run.cancel()
        assert (await run.wait(PATIENCE)).open == 0


@pytest.mark.extra
async def test_chain_of_a_thousand_and_a_wide_graph(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app, workers=2):
        long = await tasks.app.chain(*[tasks.add.s(0) if not at else tasks.add.s() for at in range(1000)]).enqueue()
        wide = tasks.app.graph()
        for at in range(500):
            after = {name: f"n{one}" for name, one in zip("ab", range(at - 40, at, 23), strict=False) if one >= 0}
            wide.add(f"n{at}", tasks.name.s(str(at)), after=after, take=tuple(after.values())[:1])
        run = await wide.enqueue()
        assert (await run.wait(4 * PATIENCE)).done == 500
        assert await long.result(timeout=4 * PATIENCE) == 1000
        assert set(tasks.ran.values()) == {1}


async def test_signal_to_a_node_that_has_no_job_yet_says_so(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g")
        graph.add("wait", tasks.wait.s())
        graph.add("end", tasks.name.s("end"), after="wait", take=())
        await graph.enqueue()
        await running.recorder.wait(events.Started)
        with pytest.raises(JobMissing, match=r"^g\.end has no job yet: it waits for other nodes; send the signal when"):
            await tasks.app.signal("g.end", "approved")
        with pytest.raises(JobMissing, match=r"g\.other has no record"):
            await tasks.app.signal("g.other", "approved")
        assert await tasks.app.signal("g.wait", "approved")
        tasks.hold.set()
        await running.recorder.wait(events.Completed, lambda event: "g.end" in event.ids)
        with pytest.raises(JobMissing, match=r"g\.end has ended"):
            await tasks.app.signal("g.end", "approved")
