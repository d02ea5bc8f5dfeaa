"""The operations of a client: their calls, repetitions and results, without Redis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from evsched.client import operations
from evsched.client.operations import MANY, Operation, Send, Sleep, Step, Wait
from evsched.client.option_values import Unique
from evsched.errors import JobDead, JobExists, JobMissing, StoreDown
from evsched.store.client_calls import New
from evsched.store.store import Store

STORE = Store("q")
RUNNING = ("", b"", "")
"""What `ask` returns for a job that has not ended."""


def run(operation: Operation[Any], replies: Iterable[Any]) -> tuple[Any, list[Step]]:
    """Perform an operation with the given replies, of which errors are raised; return its result and its steps."""
    steps, left = list[Step](), iter(replies)
    try:
        step = next(operation)
        while True:
            steps.append(step)
            reply = None if isinstance(step, Sleep) else next(left)
            step = operation.throw(reply) if isinstance(reply, Exception) else operation.send(reply)
    except StopIteration as end:
        assert list(left) == []
        return end.value, steps


def kinds(steps: list[Step]) -> list[str]:
    """Name each step: the verb or command, or its kind, such as `sleep`."""
    return [step.call.name if isinstance(step, Send | Wait) else type(step).__name__.lower() for step in steps]


def test_a_call_is_sent_again_while_redis_is_down() -> None:
    value, steps = run(operations.send(STORE.look("a")), [StoreDown(), StoreDown(), "there"])
    assert value == "there"
    assert kinds(steps) == ["look", "sleep", "look", "sleep", "look"]
    assert all(0 < step.seconds <= 1 for step in steps if isinstance(step, Sleep))


UNSURE = StoreDown("the reply was lost", unsure=True)


@pytest.mark.parametrize("on_conflict", [None, "keep"])
def test_enqueue_that_may_have_been_done_says_when_it_was_sent_first(on_conflict: Any) -> None:
    dues, steps = run(
        operations.enqueue(STORE, [New("a", b"{}")], on_conflict),
        [StoreDown(), UNSURE, 1e9, StoreDown(), 2e9, [7.0]],
    )
    sent = [step.call.words for step in steps if isinstance(step, Send) and step.call.name == "enqueue"]
    assert dues == [7.0]
    assert kinds(steps) == ["enqueue", "sleep", "enqueue", "sleep", "TIME", "enqueue", "sleep", "TIME", "enqueue"]
    assert sent[0] == sent[1]
    at = next(n for n, (one, other) in enumerate(zip(sent[1], sent[3], strict=True)) if one != other)
    assert (sent[1][at], sent[1][at + 1 :]) == ("", sent[3][at + 1 :])
    assert 1e9 - 5 < float(sent[2][at]) < 1e9 < 2e9 - 5 < float(sent[3][at]) < 2e9


def test_replacement_that_may_have_been_done_is_sent_again_as_it_is() -> None:
    dues, steps = run(operations.enqueue(STORE, [New("a", b"{}")], "replace"), [UNSURE, 1e9, [7.0]])
    first, again = (step.call.words for step in steps if isinstance(step, Send) and step.call.name == "replace")
    other = STORE.replace([New("a", b"{}")]).words
    assert (dues, again) == ([7.0], first)
    assert other != first  # another call has another key


def test_refusal_of_a_call_that_may_have_been_done_is_reported_as_unsure() -> None:
    with pytest.raises(StoreDown, match=r"sent again and refused \(b is gone\)") as raised:
        run(operations.send(STORE.cancel("b")), [UNSURE, JobMissing("b is gone")])
    assert raised.value.unsure
    with pytest.raises(JobMissing):
        run(operations.send(STORE.cancel("b")), [StoreDown(), JobMissing("b is gone")])


def test_refusal_is_raised_if_the_call_would_know_what_it_has_done() -> None:
    with pytest.raises(JobExists):
        run(operations.enqueue(STORE, [New("a", b"{}")], None), [UNSURE, 1e9, JobExists()])
    with pytest.raises(JobMissing):
        run(operations.send(STORE.ask("a")), [UNSURE, 1e9, JobMissing()])


def test_a_call_is_not_sent_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_PATIENCE", 0.0)
    with pytest.raises(StoreDown):
        run(operations.send(STORE.look("a")), [StoreDown()])


def test_a_refusal_is_raised_at_once() -> None:
    with pytest.raises(JobExists):
        run(operations.enqueue(STORE, [New("a", b"{}")], None), [JobExists()])


@pytest.mark.parametrize(("on_conflict", "verb"), [(None, "enqueue"), ("keep", "enqueue"), ("replace", "replace")])
@pytest.mark.parametrize("unique", [None, Unique(within=5)])
def test_many_jobs_are_sent_in_slices(on_conflict: Any, verb: str, unique: Unique | None) -> None:
    jobs = [New(f"j{n}", b"{}") for n in range(2 * MANY + 1)]
    dues, steps = run(operations.enqueue(STORE, jobs, on_conflict, unique), [[1.0] * MANY, [2.0] * MANY, [3.0]])
    assert dues == [1.0] * MANY + [2.0] * MANY + [3.0]
    assert kinds(steps) == [verb] * 3


def test_the_result_of_a_job_that_has_ended_is_read_at_once() -> None:
    assert run(operations.result(STORE, "a", 5), [("done", b"[1]", "")])[0] == [1]
    with pytest.raises(JobDead, match="a is dead: ValueError"):
        run(operations.result(STORE, "a", 5), [("dead", b"", "ValueError")])
    with pytest.raises(JobDead, match="a was cancelled"):
        run(operations.result(STORE, "a", 5), [("cancelled", b"", "")])


def test_a_result_is_waited_for_in_redis() -> None:
    value, steps = run(operations.result(STORE, "a", 5), [RUNNING, b'{"outcome":"done","result":7}'])
    assert value == 7
    assert kinds(steps) == ["ask", "BLMOVE"]
    assert isinstance(steps[1], Wait)
    assert 4 < steps[1].block <= 5


def test_capped_wait_is_followed_by_another_question() -> None:
    value, steps = run(operations.result(STORE, "a", 1e6), [RUNNING, None, ("done", b"1", "")])
    assert value == 1
    assert kinds(steps) == ["ask", "BLMOVE", "ask"]
    assert isinstance(steps[1], Wait)
    assert steps[1].block == 10


def test_wait_with_a_lost_connection_asks_again() -> None:
    value, steps = run(operations.result(STORE, "a", 5), [RUNNING, StoreDown(), ("done", b"1", "")])
    assert value == 1
    assert kinds(steps) == ["ask", "BLMOVE", "sleep", "ask"]


def test_a_job_without_retention_leaves_its_reply() -> None:
    reply = b'{"outcome":"done","result":7}'
    value, steps = run(operations.result(STORE, "a", 5), [JobMissing(), reply])
    assert (value, kinds(steps)) == (7, ["ask", "LINDEX"])
    with pytest.raises(JobMissing):
        run(operations.result(STORE, "a", 5), [JobMissing(), None])


def test_a_wait_ends_at_its_time_limit() -> None:
    with pytest.raises(TimeoutError, match="a did not end within 0 s"):
        run(operations.result(STORE, "a", 0), [RUNNING])


def test_a_send_is_a_value() -> None:
    assert next(operations.send(call := STORE.replied("a"))) == Send(call)
