"""What an operator is told of an exception: where in the user's own code, its causes, and a bounded traceback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from evsched.execution.failure import TRACEBACK_MOST, Failure, failure_of
from evsched.jobs.job import encode


def failed(run: Callable[[], Any]) -> Failure:
    try:
        run()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return failure_of(error, __name__)
    raise AssertionError("it did not fail")


def library() -> Any:
    return json.loads("{")


def test_the_place_is_the_users_own_and_not_the_librarys() -> None:
    told = failed(library)
    assert told.reason.startswith("JSONDecodeError: Expecting property name")
    line = library.__code__.co_firstlineno + 1
    assert told.reason.endswith(f" ({__file__}:{line} in library)")
    assert "json/decoder.py" in told.traceback
    assert 'return json.loads("{")' in told.traceback
    assert told.traceback.startswith("Traceback (most recent call last):\n")
    assert told.traceback.splitlines()[-1].startswith("JSONDecodeError: ")


def test_a_handler_that_is_installed_as_a_library_is_the_users_too() -> None:
    code = compile("def pay():\n    raise ValueError('no')\n", "/opt/site-packages/shop/tasks.py", "exec")
    installed: dict[str, Any] = {"__name__": "shop.tasks"}
    exec(code, installed)
    with pytest.raises(ValueError, match="no") as caught:
        installed["pay"]()
    assert failure_of(caught.value, "shop.jobs").reason == "ValueError: no (/opt/site-packages/shop/tasks.py:2 in pay)"
    assert f"({__file__}:" in failure_of(caught.value, "other").reason


def test_the_reason_has_the_causes_and_the_traceback_has_them_in_pythons_order() -> None:
    def pay() -> None:
        try:
            library()
        except ValueError as error:
            raise RuntimeError("no payment") from error

    told = failed(pay)
    assert told.reason.startswith("RuntimeError: no payment (")
    assert "; caused by JSONDecodeError: Expecting" in told.reason
    first, second = told.traceback.split("\nThe above exception was the direct cause of the following exception:\n\n")
    assert "JSONDecodeError" in first
    assert second.splitlines()[-1] == "RuntimeError: no payment"


def test_what_was_being_handled_is_told_and_what_was_hidden_is_not() -> None:
    def during() -> None:
        try:
            library()
        except ValueError:
            raise KeyError("a")  # noqa: B904 - as users do

    def hidden() -> None:
        try:
            library()
        except ValueError:
            raise KeyError("a") from None

    assert "; while handling JSONDecodeError" in failed(during).reason
    assert "JSONDecodeError" not in failed(hidden).reason + failed(hidden).traceback


def test_the_members_of_a_group_are_told() -> None:
    async def both() -> None:
        async def bad() -> None:
            raise ValueError("one of them")

        async with asyncio.TaskGroup() as group:
            group.create_task(bad())

    told = failed(lambda: asyncio.run(both()))
    assert "; of the group: ValueError: one of them (" in told.reason
    assert "The above exception is one of the following group" in told.traceback


def test_the_notes_of_an_exception_stand_behind_it() -> None:
    def noted() -> None:
        error = ValueError("no")
        error.add_note("order 17")
        raise error

    assert failed(noted).traceback.endswith("ValueError: no\norder 17\n")


def deep(n: int = 0) -> int:
    return deep(n + 1) + 1


def chain() -> None:
    error: BaseException | None = None
    for n in range(5000):
        after = ValueError(f"{n} " + "x" * 5000)
        after.__cause__, error = error, after
    assert error is not None
    raise error


def circle() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def wide() -> None:
    raise ValueError("\u20ac" * 10_000 + "\ud800 the end")


@pytest.mark.parametrize("run", [deep, chain, circle, wide])
def test_whatever_is_raised_is_told_within_bounds_and_both_ends_are_kept(run: Callable[[], Any]) -> None:
    told = failed(run)
    assert len(told.reason) < 2000
    assert len(told.traceback.encode()) <= TRACEBACK_MOST
    assert msgspec.json.decode(msgspec.json.encode(told.traceback)) == told.traceback
    assert told.traceback.splitlines()[-1].startswith(("RecursionError: ", "ValueError: "))


def test_an_exception_that_cannot_be_read_is_told_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    def broken() -> None:
        raise Broken

    assert "Broken: its message cannot be read: TypeError in __str__" in failed(broken).reason


class RaisesNotes(Exception):
    @property
    def __notes__(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise SystemExit(4)


class RaisesCause(Exception):
    @property
    def __cause__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise SystemExit(4)


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


class HidesItsTraceback(Exception):
    @property
    def __traceback__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise SystemExit(4)


def noted(notes: Any) -> Exception:
    error = ValueError("no")
    error.__notes__ = notes
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (noted(17), "ValueError: no"),
        (noted([17, "order 17"]), "ValueError: no"),
        (RaisesNotes("no"), "RaisesNotes: no"),
        (RaisesCause("no"), "RaisesCause: no"),
        (Exits(), "Exits: its message cannot be read: SystemExit in __str__"),
        (HidesItsTraceback("no"), "HidesItsTraceback: it cannot be described: SystemExit"),
    ],
)
def test_what_a_users_exception_does_when_it_is_looked_at_harms_nobody(error: Exception, says: str) -> None:
    def raising() -> None:
        raise error

    assert failed(raising).reason.startswith(says)


def test_what_only_our_own_code_raised_has_no_place_and_no_traceback() -> None:
    with pytest.raises(TypeError) as caught:
        encode(object())
    caught.value.__traceback__ = None  # without the frame of this test
    assert failure_of(caught.value) == Failure(f"TypeError: {caught.value}")
