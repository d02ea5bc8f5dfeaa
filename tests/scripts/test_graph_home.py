"""The home of a graph: nodes are released when those before them are done, and stopped when one of them is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from evsched.errors import ConfigError, JobLate, JobMissing
from evsched.store.batch_calls import BatchRecord, PlanRow
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

DONE, DEAD, CANCELLED, EXPIRED, MISSING, TURN = 1, 2, 3, 4, 5, 8
CODES = "odxcemsw"


class Home:
    """The graph `g`."""

    def __init__(self, send: Send, store: Store, state: State) -> None:
        self.send = send
        self.store = store.at(NOW)
        self.state = state

    def plan(self, *after: Sequence[int], despite: Sequence[int] = (), first: int = 0, **options: Any) -> None:
        """Open it with nodes, by the ordinals of those before each."""
        self.send(self.store.batch_open("g", "t", retention=100.0, **options))
        self.write(*after, despite=despite, first=first)

    def write(self, *after: Sequence[int], despite: Sequence[int] = (), first: int = 0) -> int:
        rows = [PlanRow(b"{}", f"n{at}", "q", before, at in despite) for at, before in enumerate(after, first)]
        return self.send(self.store.batch_plan("g", first, rows))

    def close(self, how: Any = "") -> str:
        return self.send(self.store.batch_close("g", how=how))

    def count(self, *ends: tuple[int, int]) -> list[tuple[str, str]]:
        return [
            (batch, state)
            for batch, state, _ in self.send(self.store.batch_count([("g", node, bytes([end])) for node, end in ends]))
        ]

    def read(self) -> BatchRecord:
        found = self.send(self.store.batch("g"))
        assert found is not None
        return found

    def codes(self) -> str:
        return "".join(CODES[byte % 8] for byte in self.send(self.store.batch_ends("g", 0, -1)))

    def chores(self, *steps: str) -> list[str]:
        """Take the chores that begin with one of `steps`."""
        found = sorted(step for step in self.state().get("chores", {}) if step.startswith(steps))
        if found:
            self.send(self.store.end_chores(found))
        return found

    def started(self) -> list[int]:
        return [int(node) for step in self.chores("start ") for node in step.split(" ")[2].split(",")]

    def ripple(self) -> int:
        """Do as a keeper does while there is more to do than one call may; return how many calls it took."""
        calls = 0
        while self.chores("ripple"):
            self.send(self.store.batch_count([("g", 0, b"")]))
            calls += 1
        return calls


@pytest.fixture
def home(send: Send, store: Store, state: State) -> Home:
    return Home(send, store, state)


def test_nodes_are_released_one_after_the_other_once_the_graph_is_closed(home: Home) -> None:
    home.plan([], [0], [1], fields={"on_done": "{}"})
    assert (home.codes(), home.started(), home.read().nodes) == ("www", [], 3)
    assert home.close() == "running"
    assert (home.codes(), home.started()) == ("oww", [0])
    assert home.count((0, DONE)) == [("g", "running")]
    assert (home.codes(), home.started()) == ("dow", [1])
    home.count((1, DONE))
    assert home.started() == [2]
    assert home.count((2, DONE)) == [("g", "done")]
    assert home.chores("call") == ["call g done 1 3 3 0 0 0 0"]
    assert home.chores("shed") == ["shed g 0"]


def test_node_waits_for_all_before_it(home: Home) -> None:
    home.plan([], [], [0, 1])
    home.close()
    assert home.started() == [0, 1]
    home.count((1, DONE))
    assert home.started() == []
    home.count((0, DONE), (1, DONE), (0, DONE))
    assert home.started() == [2]


@pytest.mark.parametrize("end", [DEAD, CANCELLED, EXPIRED, MISSING])
def test_node_that_fails_stops_only_what_stands_behind_it(home: Home, end: int) -> None:
    home.plan([], [], [0], [2], [1], fields={"on_failed": "{}"})
    home.close()
    home.count((0, end))
    assert home.codes() == "owssw".replace("ow", CODES[end] + "o", 1)
    assert home.started() == [0, 1]
    home.count((1, DONE))
    assert home.count((4, DONE)) == [("g", "failed")]
    found = home.read()
    assert (found.stopped, found.done, found.open, found.state) == (2, 2, 0, "failed")
    assert home.chores("call")[0].endswith(" 2")


def test_revived_node_lets_those_behind_it_wait_again(home: Home) -> None:
    home.plan([], [0], [1])
    home.close()
    assert home.count((0, DEAD)) == [("g", "failed")]
    assert home.codes() == "xss"
    home.count((0, TURN))
    assert (home.codes(), home.read().state, home.read().stopped) == ("oww", "running", 0)
    home.count((0, TURN + DONE))
    assert home.codes() == "dow"
    assert home.started() == [0, 1]


def test_node_that_runs_despite_failures_waits_for_their_end_alone(home: Home) -> None:
    home.plan([], [0], [0, 1], [2], despite=[2])
    home.close()
    home.count((0, DEAD))
    assert (home.codes(), home.started()) == ("xsow", [0, 2])
    # It has been released, whatever comes.
    home.count((0, TURN))
    assert (home.codes(), home.started()) == ("owow", [])
    home.count((0, TURN + DONE))
    assert home.started() == [1]


def test_batch_that_needs_only_ends_is_done_with_stopped_nodes(home: Home) -> None:
    home.plan([], [0], fields={"complete_on": "all"})
    home.close()
    assert home.count((0, DEAD)) == [("g", "done")]


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_nodes_that_wait_are_cancelled_with_the_graph(home: Home, how: str) -> None:
    home.plan([], [0], [1])
    home.close()
    home.close(how)
    assert (home.codes(), home.chores("cancel")) == ("occ", ["cancel g 0 2"])
    home.started()
    home.count((0, DONE))
    assert (home.started(), home.read().cancelled) == ([], 2)
    assert home.read().state == ("cancelled" if how == "cancelled" else "failed")


def test_graph_that_is_cancelled_before_it_is_closed_runs_nothing(home: Home) -> None:
    home.plan([], [0])
    assert home.close("cancelled") == "cancelled"
    assert (home.codes(), home.started()) == ("cc", [])
    with pytest.raises(JobLate, match="can have no more nodes"):
        home.write([], first=2)


def test_work_of_one_call_is_bounded_whatever_the_shape(home: Home) -> None:
    home.plan(*[list[int]() for _ in range(400)])
    for first in range(400, 2000, 400):
        home.write(*([[0, 1, 2]] * 400), first=first)
    home.close()
    assert home.ripple() == 1
    assert len(home.started()) == 400
    home.count(*((node, DONE) for node in range(3)))
    assert home.ripple() == 16
    assert sorted(home.started()) == list(range(400, 2000))
    home.count(*((node, DONE) for node in range(2000)))
    home.ripple()
    assert home.read().state == "done"


def test_failure_passes_through_a_long_chain_and_back(home: Home) -> None:
    home.plan(*([at - 1] if at else [] for at in range(400)))
    home.write(*([at - 1] for at in range(400, 800)), first=400)
    home.close()
    home.count((0, DEAD))
    assert home.read().state == "running"  # the rest does not know it yet
    assert home.ripple() > 1
    assert (home.read().state, home.read().stopped) == ("failed", 799)
    home.count((0, TURN))
    home.ripple()
    assert home.codes() == "o" + "w" * 799


def test_second_calls_change_nothing(home: Home) -> None:
    home.plan([], [0], [0])
    before = home.state()
    assert home.write([], [0], [0]) == 3
    assert home.state() == before
    assert home.write([0], [0], [2], first=1) == 4  # the first two are there
    for act in (
        home.close,
        lambda: home.count((0, DONE)),
        lambda: home.count((1, DEAD)),
        lambda: home.close("expired"),
    ):
        act()
        before = home.state()
        act()
        assert home.state() == before
    assert home.write([], [0], [0]) == 4
    assert home.state() == before


def test_node_that_failed_without_a_job_is_started_again(home: Home) -> None:
    home.plan([], [0], fields={"on_failed": "{}"})
    home.close()
    home.send(home.store.fail_node("g", 0, "no job"))
    home.count((0, DEAD))
    assert (home.codes(), home.read().state, home.started()) == ("xs", "failed", [0])
    assert home.send(home.store.batch_revive("g", 0))
    assert (home.codes(), home.read().state, home.started()) == ("ow", "running", [0])
    assert home.send(home.store.batch_failures("g", [0])) == [None]
    before = home.state()
    assert not home.send(home.store.batch_revive("g", 0))
    home.count((0, DEAD))  # a late report of the earlier failure
    assert home.state() == before
    home.count((0, TURN + DONE))
    assert (home.codes(), home.started(), home.count((1, DONE))) == ("do", [1], [("g", "done")])


@pytest.mark.extra
def test_node_that_fails_again_is_revived_as_often_as_its_turns_allow(home: Home) -> None:
    home.plan([])
    home.close()
    for turn in range(32):
        home.send(home.store.fail_node("g", 0, "no job"))
        assert home.count((0, DEAD + TURN * turn)) == [("g", "failed")]
        if turn < 31:
            assert home.send(home.store.batch_revive("g", 0))
    before = home.state()
    with pytest.raises(JobMissing, match="failed 32 times"):
        home.send(home.store.batch_revive("g", 0))
    assert home.state() == before


def test_other_nodes_are_not_started_again(home: Home) -> None:
    home.plan([], [], [], [2], [])
    for node in (1, 2, 3, 4):
        home.send(home.store.fail_node("g", node, "no job"))
    home.close()
    home.count((0, DEAD), (1, DONE), (2, EXPIRED))

    def refused(kind: type[Exception], text: str, node: int, graph: str = "g") -> None:
        before = home.state()
        with pytest.raises(kind, match=text):
            home.send(home.store.batch_revive(graph, node))
        assert home.state() == before

    for node, name in enumerate(("n0", "n1", "n2", "n3", "n4")):
        refused(JobMissing, f"{name} is not a node that failed without a job", node)
    refused(JobMissing, "g has no node 5", 5)
    refused(JobMissing, "none is not a batch", 0, "none")
    home.count((4, DEAD))
    home.close("cancelled")
    refused(JobLate, "was cancelled", 4)


@pytest.mark.extra
def test_node_with_a_job_for_each_item_is_not_started_again(home: Home) -> None:
    home.send(home.store.batch_open("g", "t", retention=100.0))
    home.send(home.store.batch_plan("g", 0, [PlanRow(b"{}", "/g.each", "q")]))
    home.close()
    home.send(home.store.fail_node("g", 0, "no list"))
    home.count((0, DEAD))
    with pytest.raises(JobMissing, match=r"g\.each has a job for each item"):
        home.send(home.store.batch_revive("g", 0))


def asked(home: Home) -> dict[str, Any]:
    """Return the lists for clients that wait for nodes."""
    return {key: value for key, value in home.state().items() if key.startswith("batch_over:g/")}


def test_clients_that_asked_for_a_node_hear_of_its_end(home: Home) -> None:
    home.plan([], [], [0, 1])
    home.close()
    home.count((0, DONE))
    assert home.send(home.store.batch_ask("g", 0)), "it has ended"
    assert [home.send(home.store.batch_ask("g", node)) for node in (1, 2, 2)] == [False] * 3
    before = home.state()
    home.send(home.store.batch_ask("g", 1))
    assert (home.state(), asked(home)) == (before, {})
    home.count((1, DEAD))
    assert asked(home) == {"batch_over:g/1": ["2"], "batch_over:g/2": ["6"]}
    assert "asked" not in home.state()["batch:g"]
    # A client that waits for what was revived is not woken by its earlier end.
    home.count((1, TURN))
    assert not home.send(home.store.batch_ask("g", 1))
    assert asked(home) == {"batch_over:g/2": ["6"]}
    home.close("cancelled")
    assert not home.send(home.store.batch_ask("g", 1)), "its job runs"
    assert home.send(home.store.batch_ask("g", 2)), "it was cancelled while it waited"
    home.count((1, TURN + CANCELLED))
    assert asked(home)["batch_over:g/1"] == ["3"]


@pytest.mark.extra
def test_clients_that_asked_for_a_node_hear_that_it_was_cancelled(home: Home) -> None:
    home.plan([], [0])
    home.close()
    home.send(home.store.batch_ask("g", 1))
    home.close("cancelled")
    assert asked(home) == {"batch_over:g/1": ["3"]}


@pytest.mark.extra
def test_clients_ask_for_a_limited_number_of_nodes(home: Home) -> None:
    rows: list[list[int]] = [[] for _ in range(102)]
    home.plan(*rows)
    home.close()
    for node in range(102):
        assert not home.send(home.store.batch_ask("g", node))
    home.count(*((node, DONE) for node in range(102)))
    assert len(asked(home)) == 100
    for graph, node in (("g", 102), ("none", 0)):
        with pytest.raises(JobMissing):
            home.send(home.store.batch_ask(graph, node))


def test_parts_and_ids_are_those_of_the_jobs(home: Home) -> None:
    home.plan([], [0])
    assert home.send(home.store.batch_parts("g", 0, -1)) == [(0, 2, "q")]
    assert home.send(home.store.batch_ids("g", [0, 1])) == ["n0", "n1"]
    assert home.send(home.store.batch_befores("g", [0, 1])) == [[], [0]]


@pytest.mark.parametrize(("field", "value", "released"), [(">0", "2 x 3", [2]), ("-2", "x", []), ("-2", "", [])])
def test_malformed_node_stops_no_other(
    home: Home, raw: Any, queue: str, field: str, value: str, released: list[int]
) -> None:
    home.plan([], [], [0], [1])
    home.close()
    assert home.started() == [0, 1]
    raw.hset(f"evsched:{{{queue}}}:batch_nodes:g", field, value)
    home.count((0, DONE))
    assert home.started() == released
    home.count((1, DONE))
    assert home.started() == [3]


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        (1, [PlanRow(b"{}", "", "q")]),
        (0, [PlanRow(b"{}", "", "q", [0])]),
        (0, [PlanRow(b"{}", "", "a b")]),
        (0, [PlanRow(b"{}", "", "q"), PlanRow(b"{}", "", "q", [2])]),
        (0, [PlanRow(b"{}", "", "q")] * 10_001),
    ],
)
def test_malformed_nodes_are_refused(home: Home, first: int, rows: list[PlanRow]) -> None:
    home.plan()
    before = home.state()
    with pytest.raises(ConfigError):
        home.send(home.store.batch_plan("g", first, rows))
    assert home.state() == before


def test_no_job_is_added_to_a_graph(home: Home) -> None:
    home.plan((), (0,))
    before = home.state()
    assert home.send(home.store.batch_add("g", "r", 1, "q")).refusal.startswith("is a graph, which has the jobs")
    assert home.state() == before


def test_nodes_of_a_batch_that_is_not_there_or_has_jobs_are_refused(home: Home) -> None:
    with pytest.raises(JobMissing):
        home.write([])
    home.plan()
    home.send(home.store.batch_add("g", "r", 1, "q"))
    with pytest.raises(JobLate):
        home.write([])
