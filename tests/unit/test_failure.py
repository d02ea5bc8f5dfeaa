"""How an exception is described: the line in the user's own code, its causes, and a bounded traceback."""

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


def test_the_reason_names_a_line_of_the_user_and_not_of_a_library() -> None:
    failure = failed(library)
    assert failure.reason.startswith("JSONDecodeError: Expecting property name")
    line = library.__code__.co_firstlineno + 1
    assert failure.reason.endswith(f" ({__file__}:{line} in library)")
    assert "json/decoder.py" in failure.traceback
    assert 'return json.loads("{")' in failure.traceback
    assert failure.traceback.startswith("Traceback (most recent call last):\n")
    assert failure.traceback.splitlines()[-1].startswith("JSONDecodeError: ")


def test_a_handler_in_an_installed_package_counts_as_the_users_code() -> None:
    code = compile("def pay():\n    raise ValueError('no')\n", "/opt/site-packages/shop/tasks.py", "exec")
    installed: dict[str, Any] = {"__name__": "shop.tasks"}
    exec(code, installed)
    with pytest.raises(ValueError, match="no") as caught:
        installed["pay"]()
    assert failure_of(caught.value, "shop.jobs").reason == "ValueError: no (/opt/site-packages/shop/tasks.py:2 in pay)"
    assert f"({__file__}:" in failure_of(caught.value, "other").reason


def test_reason_lists_the_causes_and_traceback_keeps_pythons_order() -> None:
    def pay() -> None:
        try:
            library()
        except ValueError as error:
            raise RuntimeError("no payment") from error

    failure = failed(pay)
    assert failure.reason.startswith("RuntimeError: no payment (")
    assert "; caused by JSONDecodeError: Expecting" in failure.reason
    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    first, second = failure.traceback.split(cause)
    assert "JSONDecodeError" in first
    assert second.splitlines()[-1] == "RuntimeError: no payment"


def test_exception_being_handled_is_named_unless_suppressed() -> None:
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


def test_the_members_of_a_group_are_listed() -> None:
    async def both() -> None:
        async def bad() -> None:
            raise ValueError("one of them")

        async with asyncio.TaskGroup() as group:
            group.create_task(bad())

    failure = failed(lambda: asyncio.run(both()))
    assert "; of the group: ValueError: one of them (" in failure.reason
    assert "The above exception is one of the following group" in failure.traceback


def test_the_notes_of_an_exception_follow_it() -> None:
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
def test_every_description_is_bounded_and_keeps_the_last_line(run: Callable[[], Any]) -> None:
    failure = failed(run)
    assert len(failure.reason) < 2000
    assert len(failure.traceback.encode()) <= TRACEBACK_MOST
    assert msgspec.json.decode(msgspec.json.encode(failure.traceback)) == failure.traceback
    assert failure.traceback.splitlines()[-1].startswith(("RecursionError: ", "ValueError: "))


def test_an_exception_without_a_readable_message_is_still_described() -> None:
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
def test_an_exception_whose_attributes_raise_is_still_described(error: Exception, says: str) -> None:
    def raising() -> None:
        raise error

    assert failed(raising).reason.startswith(says)


def test_an_error_from_the_package_itself_has_no_line_and_no_traceback() -> None:
    with pytest.raises(TypeError) as caught:
        encode(object())
    caught.value.__traceback__ = None  # without the frame of this test
    assert failure_of(caught.value) == Failure(f"TypeError: {caught.value}", error="TypeError")
