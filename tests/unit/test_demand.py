"""How many jobs a consumer asks for, and when it blocks."""

from __future__ import annotations

from evsched.execution.executor import Executor
from evsched.execution.program import Program
from evsched.jobs.tasks import Tasks
from evsched.worker.slots import Demand, Slots


def demand(slots: int, quick: int = 999) -> Demand:
    """Return the demand of a worker in which `quick` jobs have begun at once."""
    wanted = Demand(Slots(slots).join(1.0, lambda: None), Executor(Program(Tasks()), slots, processes=1))
    begin(wanted, quick, 0.0)
    return wanted


def begin(wanted: Demand, count: int, seconds: float) -> bool:
    wanted.begin_limit.handed_out()
    return wanted.begun(count, seconds)


async def test_demand_is_the_free_slots_until_ready_is_empty_and_then_blocks() -> None:
    wanted = demand(4)
    assert not wanted.waits
    assert wanted.reserve(3) == 3
    assert wanted.asks_again()
    wanted.more = False
    assert (wanted.asks_again(), wanted.waits, wanted.reserve(3)) == (False, True, 0)


async def test_demand_blocks_only_when_a_slot_is_free() -> None:
    wanted = demand(2)
    assert wanted.reserve(9) == 2
    wanted.more = False
    assert not wanted.waits
    wanted.share.release(1)
    assert wanted.waits


async def test_a_closed_demand_asks_for_nothing() -> None:
    wanted = demand(2)
    wanted.closed = True
    assert wanted.reserve(9) == 0
    wanted.more = False
    assert not wanted.waits


async def test_demand_grows_step_by_step_after_jobs_came_back() -> None:
    wanted = demand(32)
    wanted.narrow()
    for count in (1, 4, 16):
        assert wanted.reserve(99) == count
        begin(wanted, count, 0.0)


async def test_demand_is_the_number_of_jobs_that_begin_in_10_ms() -> None:
    wanted = demand(100)
    begin(wanted, 100, 0.5)
    assert wanted.reserve(99) == 2
    begin(wanted, 2, 5.0)
    assert wanted.reserve(99) == 1


async def test_fetched_jobs_count_towards_the_begin_limit() -> None:
    assert (demand(8, quick=1).reserve(9, fetched=1), demand(8, quick=1).reserve(9, fetched=5)) == (3, 0)


async def test_demand_is_zero_until_jobs_of_unknown_length_have_begun() -> None:
    wanted = Demand(Slots(8).join(1.0, lambda: None), Executor(Program(Tasks()), 8))
    assert wanted.reserve(9) == 1
    wanted.begin_limit.handed_out()
    assert (wanted.asks_again(), wanted.reserve(9)) == (False, 0)
    assert wanted.begun(1, 0.001)
    assert (wanted.asks_again(), wanted.reserve(9)) == (True, 4)
    wanted.begin_limit.handed_out()
    assert (wanted.asks_again(), wanted.reserve(9)) == (True, 3)
    assert not wanted.begun(4, 0.001)


async def test_demand_leaves_half_of_many_slots_for_the_next_start() -> None:
    assert [demand(slots).reserve(999) for slots in (1, 64, 100, 256, 500)] == [1, 64, 64, 128, 250]


async def test_demand_gives_the_reason_for_fetching_nothing() -> None:
    executor = Executor(Program(Tasks()), 8, processes=0)
    wanted = Demand(Slots(8).join(1.0, lambda: None), executor)
    assert wanted.not_fetching is None
    wanted.narrow()
    assert (wanted.not_fetching, wanted.reserve(9)) == ("no process", 0)
    wanted.freed()
    assert wanted.not_fetching is None
    begin(wanted, 1, 0.1)
    assert (wanted.not_fetching, wanted.reserve(9)) == ("busy loop", 1)
    wanted.more = False
    assert wanted.not_fetching is None
    async with executor.lock.alone(1.0):
        assert wanted.not_fetching == "lone run"
    wanted.closed = True
    assert wanted.not_fetching == "stopping"


async def test_while_a_run_is_alone_nothing_is_asked_for() -> None:
    executor = Executor(Program(Tasks()), 2)
    wanted = Demand(Slots(2).join(1.0, lambda: None), executor)
    begin(wanted, 1, 0.0)
    executor.freed.append(lambda: opened.append(wanted.freed()))
    opened = list[bool]()
    async with executor.lock.alone(1.0):
        assert wanted.reserve(9) == 0
    assert (opened, wanted.reserve(9)) == ([True], 2)
