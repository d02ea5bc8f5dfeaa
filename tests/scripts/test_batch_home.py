"""The home of a batch: its counts, whatever the order of the reports; its end, and the chores that follow from it."""

from __future__ import annotations

from itertools import permutations
from typing import Any, Literal

import msgspec
import pytest

from evsched.errors import JobExists, JobMissing, StoreRefused
from evsched.store.batch_calls import BatchRecord, Callback
from evsched.store.operator_calls import BatchSums
from evsched.store.store import Store
from evsched.transport.call import Word
from tests.scripts.conftest import NOW, Send, State

DONE, DEAD, CANCELLED, EXPIRED, MISSING, TURN = 1, 2, 3, 4, 5, 8
CODES = "odxcem"


class Home:
    """The batch `b`."""

    def __init__(self, send: Send, store: Store, state: State) -> None:
        self.send = send
        self.store = store
        self.state = state

    def open(self, token: str = "t", *, parent: str = "", expires: float | None = None, **fields: Word) -> None:
        call = self.store.at(NOW).batch_open("b", token, retention=100.0, expires=expires, parent=parent, fields=fields)
        self.send(call)

    def reserve(self, count: int, token: str = "r", *, at: float = NOW, **more: Any) -> tuple[int | None, str]:
        found = self.send(self.store.at(at).batch_add("b", token, count, more.pop("queue", "q"), **more))
        return found.first, found.refusal

    def confirm(self, token: str = "r") -> None:
        self.send(self.store.at(NOW).batch_add("b", "x", 0, confirms=token))

    def fill(self, count: int, **options: Any) -> None:
        """Open it, with a number of jobs, and close it."""
        self.open(**options)
        self.reserve(count)
        self.close(confirms="r")

    def close(self, *, confirms: str = "", how: Literal["", "cancelled", "expired"] = "", at: float = NOW) -> str:
        return self.send(self.store.at(at).batch_close("b", confirms=confirms, how=how))

    def count(self, *ends: tuple[int, int], at: float = NOW) -> list[tuple[str, str]]:
        """Report ends: ordinal and byte."""
        return [
            (batch, state)
            for batch, state, _ in self.send(
                self.store.at(at).batch_count([("b", first, bytes([end])) for first, end in ends])
            )
        ]

    def read(self) -> BatchRecord:
        found = self.send(self.store.batch("b"))
        assert found is not None
        return found

    def ends(self) -> str:
        found = self.send(self.store.batch_ends("b", 0, -1))
        return " ".join(f"{CODES[byte % 8]}{byte // 8 or ''}" for byte in found)

    def chores(self, *steps: str) -> dict[str, float]:
        """Return the chores, those that begin with one of `steps` alone."""
        found = self.state().get("chores", {})
        return {step: at for step, at in found.items() if not steps or step.startswith(steps)}


@pytest.fixture
def home(send: Send, store: Store, state: State) -> Home:
    return Home(send, store, state)


def test_batch_is_done_when_it_is_closed_and_all_of_its_jobs_are_done(home: Home) -> None:
    home.open(on_done="{}", tags="x")
    assert home.reserve(2) == (0, "")
    assert home.chores() == {"settle b 0 1 r": NOW + 60}
    home.count((0, DONE))
    home.confirm()
    assert home.chores() == {}
    assert home.read().state == "open"
    assert home.close() == "running"
    assert home.count((1, DONE), at=NOW + 5) == [("b", "done")]
    found = home.read()
    assert (found.state, found.total, found.done, found.open, found.round) == ("done", 2, 2, 0, 1)
    assert (found.created, found.closed, found.finished, found.tags) == (NOW, NOW, NOW + 5, "x")
    assert home.chores() == {"call b done 1 2 2 0 0 0 0": NOW + 5, "forget b": NOW + 105}
    assert home.state()["batches"] == {"b": NOW}
    assert home.send(home.store.wait_for_batch("b", 1.0)) == b"done"


def test_empty_batch_is_done_when_it_is_closed(home: Home) -> None:
    home.open(on_done="{}")
    assert home.close() == "done"
    assert home.chores("call") == {"call b done 1 0 0 0 0 0 0": NOW}


def test_batches_are_listed_a_slice_at_a_time_with_the_newest_first(home: Home, raw: Any) -> None:
    home.fill(3, on_done='{"queue":"q","payload":{"task":"sum"}}', tags='["x"]')
    home.count((0, DONE), (1, DEAD))
    for at, batch in enumerate(("c", "d", "gone"), 1):
        home.send(home.store.at(NOW + at).batch_open(batch, "t", retention=9))
    raw.delete(f"evsched:{{{home.store.queue}}}:batch:gone")
    first, rest = (home.send(home.store.at(NOW).batch_list(start, 2)) for start in (0, 2))
    assert (first.total, first.read, [one.id for one in first.batches]) == (4, 2, ["d"])
    assert [one.id for one in rest.batches] == ["c", "b"]
    assert rest.batches[1] == msgspec.structs.replace(home.read(), callbacks=())
    assert home.read().callbacks == (Callback("done", "sum", "q"),)


def test_sums_for_metrics_follow_batches_through_end_revive_and_cancel(home: Home) -> None:
    def sums() -> BatchSums | None:
        return home.send(home.store.at(NOW).queue_stats()).batches

    assert sums() is None
    home.fill(3)
    assert sums() == BatchSums(1, 3, 0, 0, 0)
    home.count((0, DONE), (1, DEAD))
    assert sums() == BatchSums(1, 1, 0, 0, 0)
    home.count((2, DONE))
    assert sums() == BatchSums(0, 0, 0, 1, 0)
    home.count((1, TURN))
    assert sums() == BatchSums(1, 1, 0, 1, 0)
    home.count((1, TURN + DONE), (1, TURN + DONE))
    assert sums() == BatchSums(0, 0, 1, 1, 0)
    home.send(home.store.at(NOW).batch_open("c", "t", retention=9))
    home.send(home.store.at(NOW).batch_open("c", "t", retention=9))
    assert sums() == BatchSums(1, 0, 1, 1, 0)
    home.send(home.store.at(NOW).batch_close("c", how="cancelled"))
    assert sums() == BatchSums(0, 0, 1, 1, 1)


def test_batch_without_callbacks_has_no_calls(home: Home) -> None:
    home.fill(20)
    home.count(*((at, DEAD) for at in range(20)))
    assert home.read().state == "failed"
    assert home.chores() == {"forget b": NOW + 100}


def test_reservation_that_is_not_confirmed_keeps_a_batch_from_its_end(home: Home) -> None:
    home.open()
    home.reserve(1)
    assert home.close() == "running"
    assert home.count((0, DONE)) == []
    assert home.read().state == "running"
    home.confirm()
    assert home.read().state == "done"


@pytest.mark.parametrize("end", [DEAD, CANCELLED, EXPIRED])
def test_batch_has_failed_when_all_have_ended_and_one_is_not_done(home: Home, end: int) -> None:
    home.fill(2, on_done="{}", on_failed="{}")
    assert home.count((0, end)) == []
    assert home.count((1, DONE)) == [("b", "failed")]
    (call,) = home.chores("call")
    assert call.startswith("call b failed 1 2 1 ")
    found = home.read()
    assert (found.dead, found.cancelled, found.expired) == tuple(int(end == one) for one in (DEAD, CANCELLED, EXPIRED))


def test_batch_that_needs_only_ends_is_done_with_dead_jobs(home: Home) -> None:
    home.fill(2, complete_on="all", on_done="{}", on_failed="{}")
    home.count((0, DEAD), (1, DONE))
    assert home.read().state == "done"
    # That is final.
    home.count((0, TURN))
    home.count((0, TURN + DONE))
    found = home.read()
    assert (found.state, found.round, found.done, found.dead) == ("done", 1, 2, 0)
    assert list(home.chores("call")) == ["call b done 1 2 1 1 0 0 0"]


def test_failed_batch_is_open_again_when_a_job_is_revived(home: Home) -> None:
    home.fill(2, on_done="{}", on_failed="{}")
    home.count((0, DEAD), (1, DONE))
    home.count((0, TURN), at=NOW + 1)
    found = home.read()
    assert (found.state, found.open, found.finished) == ("running", 1, None)
    assert "batch_over:b" not in home.state()
    assert list(home.chores()) == ["call b failed 1 2 1 1 0 0 0"]
    home.count((0, TURN + DEAD), at=NOW + 2)
    assert home.read().state == "failed"
    home.count((0, 2 * TURN), at=NOW + 3)
    home.count((0, 2 * TURN + DONE), at=NOW + 4)
    assert home.read().state == "done"
    assert home.chores() == {
        "call b failed 1 2 1 1 0 0 0": NOW,
        "call b failed 2 2 1 1 0 0 0": NOW + 2,
        "call b done 3 2 2 0 0 0 0": NOW + 4,
        "forget b": NOW + 104,
    }


def test_reports_come_in_any_order_and_any_number_of_times(home: Home, raw: Any, queue: str) -> None:
    reports = [(0, DEAD), (0, TURN), (0, TURN + DONE), (1, MISSING), (1, DONE)]
    seen = set[tuple[Any, ...]]()
    for order in permutations(reports):
        raw.delete("unused", *raw.keys(f"evsched:{{{queue}}}:*"))
        home.fill(2)
        for report in order:
            home.count(report)
            home.count(report, order[0])
        found = home.read()
        seen.add((home.ends(), found.state, found.total, found.done, found.dead, found.open))
    assert seen == {("d1 d", "done", 2, 2, 0, 0)}


def test_reports_of_many_ordinals_are_one_row(home: Home) -> None:
    home.fill(5)
    home.send(home.store.at(NOW).batch_count([("b", 1, bytes([DONE, 0, DEAD])), ("b", 2, bytes([CANCELLED]))]))
    assert home.ends() == "o d c x"
    # What is beyond the last ordinal is not a member.
    home.send(home.store.at(NOW).batch_count([("b", 3, bytes([DONE, DONE, DONE, DONE])), ("b", 99, bytes([DONE]))]))
    assert home.ends() == "o d c x d"
    assert home.read().open == 1


def test_missing_jobs_do_not_count(home: Home) -> None:
    home.fill(3, on_done="{}")
    home.count((0, DONE), (1, MISSING), (2, MISSING))
    found = home.read()
    assert (found.state, found.total, found.done, found.ordinals) == ("done", 1, 1, 3)
    assert list(home.chores("call")) == ["call b done 1 1 1 0 0 0 0"]


def test_progress_is_called_for_each_tenth_of_a_closed_batch(home: Home) -> None:
    home.open(on_progress="{}")
    home.reserve(25)
    home.count(*((at, DONE) for at in range(5)))
    assert home.chores("call") == {}
    home.close(confirms="r")
    for at in range(5, 25):
        home.count((at, DONE))
    calls = [call.split(" ") for call in home.chores("call")]
    assert sorted(int(number) for _, _, _, number, *_ in calls) == list(range(2, 10))
    assert {outcome for _, _, outcome, *_ in calls} == {"progress"}


@pytest.mark.parametrize(("how", "outcome"), [("cancelled", "cancelled"), ("expired", "failed")])
def test_batch_that_is_cancelled_ends_with_its_last_job(
    home: Home, how: Literal["cancelled", "expired"], outcome: str
) -> None:
    home.fill(2, on_done="{}", on_failed="{}", expires=50.0)
    assert home.chores("expire") == {"expire b": NOW + 50}
    assert home.close(how=how, at=NOW + 1) == "running"
    assert home.chores("cancel") == {"cancel b 0 1": NOW + 1}
    assert home.reserve(1, "late")[0] is None
    home.count((0, DONE))
    assert home.count((1, CANCELLED)) == [("b", outcome)]
    assert home.chores("expire") == {}
    assert len(home.chores("call b failed")) == (how == "expired")
    assert home.read().stop == how


def test_jobs_that_come_after_a_cancellation_are_cancelled_too(home: Home) -> None:
    home.open()
    home.reserve(2)
    home.close(how="cancelled")
    home.send(home.store.end_chores(list(home.chores("cancel"))))
    home.confirm()
    assert home.chores() == {"cancel b 0 1": NOW}


def test_failed_batch_that_is_cancelled_is_over(home: Home) -> None:
    home.fill(1)
    home.count((0, DEAD))
    assert home.close(how="expired") == "failed"
    assert home.close() == "failed"
    assert home.close(how="cancelled") == "cancelled"
    home.count((0, TURN))
    assert home.read().state == "cancelled"


def test_jobs_are_refused_when_a_batch_has_ended(home: Home) -> None:
    home.fill(1)
    home.count((0, DEAD))
    before = home.state()
    assert home.reserve(1, "late") == (None, "has ended: no more jobs can be added")
    assert home.state() == before
    # But not those of a job that runs again, since it was revived.
    assert home.reserve(1, "own", member="0/1") == (1, "")
    assert home.read().state == "running"


def test_batch_cannot_have_more_jobs_than_its_limit(home: Home, raw: Any, queue: str) -> None:
    home.open()
    raw.hset(f"evsched:{{{queue}}}:batch:b", "total", 9_999_999)
    assert home.reserve(2) == (None, "cannot have more than 10000000 jobs: open another one")
    assert home.reserve(1) == (9_999_999, "")


def test_parts_say_in_which_queues_the_jobs_are(home: Home) -> None:
    home.open()
    for token, queue, ids in (("a", "q", []), ("b", "q", []), ("c", "p", ["x", "y"]), ("d", "q", [])):
        home.reserve(2, token, queue=queue, ids=ids)
    assert home.send(home.store.batch_parts("b", 0, -1)) == [(0, 4, "q"), (4, 2, "p"), (6, 2, "q")]
    assert home.send(home.store.batch_ids("b", [3, 4, 5, 6])) == ["b.3", "x", "y", "b.6"]


def test_ids_beyond_the_reserved_ordinals_are_ignored(home: Home) -> None:
    home.open()
    assert home.reserve(1, ids=["x", "y"]) == (0, "")
    assert home.reserve(1, "s") == (1, "")
    assert home.send(home.store.batch_ids("b", [0, 1])) == ["x", "b.1"]


def test_as_many_ordinals_as_one_call_may_reserve_get_their_ids(home: Home) -> None:
    home.open()
    ids = [f"x{at}" for at in range(10_000)]
    assert home.reserve(10_000, ids=ids) == (0, "")
    assert home.send(home.store.batch_ids("b", range(10_000))) == ids


def test_batch_in_a_batch_reports_its_ends(home: Home) -> None:
    home.fill(1, parent="up/a/7")
    home.count((0, DEAD), at=NOW + 1)
    home.count((0, TURN), at=NOW + 2)
    home.count((0, TURN + DONE), at=NOW + 3)
    assert sorted(home.chores("end")) == [
        f"end up/a {NOW + at:.6f} {end}" for at, end in ((1, "7x.0"), (2, "7o.1"), (3, "7d.1"))
    ]


def test_second_calls_change_nothing(home: Home) -> None:
    home.open(expires=50.0, on_progress="{}", on_failed="{}")
    before = home.state()
    home.open(expires=50.0)
    assert home.state() == before
    assert home.reserve(3) == (0, "")
    before = home.state()
    assert home.reserve(3) == (0, "")
    assert home.state() == before
    for act in (
        home.confirm,
        home.close,
        lambda: home.count((0, DONE), (2, DEAD)),
        lambda: home.count((1, DEAD)),
        lambda: home.count((1, TURN)),
        lambda: home.close(how="cancelled"),
    ):
        act()
        before = home.state()
        act()
        assert home.state() == before


def test_id_of_a_batch_is_taken(home: Home) -> None:
    home.open()
    before = home.state()
    with pytest.raises(JobExists, match="there is a batch b already"):
        home.open("other")
    assert home.state() == before


def test_batch_that_is_not_there_is_refused_and_its_reports_are_ignored(home: Home) -> None:
    with pytest.raises(JobMissing, match="b is not a batch of queue"):
        home.reserve(1)
    with pytest.raises(JobMissing):
        home.close()
    assert home.count((0, DONE)) == []
    assert home.state() == {}
    assert home.send(home.store.batch("b")) is None


def test_reports_of_one_batch_that_is_broken_do_not_stop_another(home: Home, raw: Any, queue: str) -> None:
    home.fill(1)
    raw.set(f"evsched:{{{queue}}}:batch:x", "y")
    raw.hset(f"evsched:{{{queue}}}:batch:y", "state", "running")
    raw.hset(f"evsched:{{{queue}}}:batch_ends:y", "a", "b")
    rows = [("x", 0, bytes([DONE])), ("y", 0, bytes([DONE])), ("b", 0, bytes([DONE]))]
    assert home.send(home.store.at(NOW).batch_count(rows)) == [("b", "done", "")]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("batch_open", ("", "a b", "t", "1", "", "")),
        ("batch_open", ("", "b", "t", "1", "", "x")),
        ("batch_open", ("", "c", "t", "1", "", "", "state", "done")),
        ("batch_add", ("", "b", "t", "10001", "q", "60", "", "")),
        ("batch_add", ("", "b", "a b", "1", "q", "60", "", "")),
        ("batch_add", ("", "b", "t", "1", "a b", "60", "", "")),
        ("batch_add", ("", "b", "t", "1", "q", "60", "x", "")),
        ("batch_add", ("", "b", "t", "1", "q", "60", "", "a b")),
        ("batch_close", ("", "b", "", "done", "")),
        ("batch_pause", ("", "b", "x", "", "", "5", "", "", "")),
        ("batch_pause", ("", "b", "1", "", "", "5", "", "q/o 8", "")),
        ("batch_pause", ("", "b", "1", "", "", "5", "", f"q/o/3 {10**15}", "")),
    ],
)
def test_malformed_arguments_are_refused(home: Home, verb: str, words: tuple[str, ...]) -> None:
    home.open()
    before = home.state()
    with pytest.raises(StoreRefused, match="nothing was written"):
        home.send(home.store._verb(verb, lambda reply: reply, *words))  # pyright: ignore[reportPrivateUsage]
    assert home.state() == before


def test_forgotten_batch_leaves_nothing(home: Home) -> None:
    home.open()
    home.reserve(1, ids=["x"])
    home.close(confirms="r")
    home.count((0, DONE))
    for call in home.store.forget_batch("b"):
        home.send(call)
    assert list(home.state()) == ["batch_sums", "chores"]
