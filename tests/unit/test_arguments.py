"""Arguments that a worker could not convert are refused at the call, by the checks that the worker makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsched import App, BadArguments
from evsched.client.new_job import JobOptions, new_job
from evsched.errors import ConfigError
from evsched.jobs.arguments import Arguments, check
from evsched.jobs.job import Payload, encode
from evsched.jobs.tasks import define


class Address(msgspec.Struct):
    street: str
    number: int


@dataclass
class Parcel:
    weight: float
    to: Address


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


def deliver(parcel: Parcel, /, size: Size = Size.SMALL, *, at: datetime | None = None) -> None: ...


def mail(to: str, subject: str = "", *copies: str, urgent: bool = False, **headers: int) -> None: ...


def measure(number: int, ratio: float, id: UUID) -> None: ...  # noqa: A002


def anything(value: Any = None) -> None: ...


GOOD = Parcel(1.5, Address("s", 1))
ID = UUID(int=1)


def check_call(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    task = define(handler)
    check(task.signature, task.check, args, kwargs, new_job(task.name, args, kwargs, JobOptions()).payload)


@pytest.mark.parametrize(
    ("handler", "args", "kwargs"),
    [
        (deliver, (GOOD,), {}),
        (deliver, (GOOD, Size.LARGE), {"at": datetime(2030, 1, 1, tzinfo=UTC)}),
        (deliver, ({"weight": 1, "to": {"street": "s", "number": 1}}, "l"), {}),
        (mail, ("bob",), {}),
        (mail, ("bob", "hi", "eve", "joe"), {"urgent": True, "x": 1}),
        (mail, (), {"to": "bob"}),
        (measure, (2**70, 3, str(ID)), {}),
        (measure, (1, 2.5, ID), {}),
        (anything, ({1: {2, 3}},), {}),
    ],
)
def test_arguments_that_the_worker_can_convert_pass(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    check_call(handler, *args, **kwargs)


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "message"),
    [
        (mail, (), {}, "task mail: mail needs 'to'"),
        (mail, (3,), {}, "task mail: argument 'to': expected `str`, got `int`"),
        (mail, ("bob", "hi", "eve", 7), {}, "task mail: argument 4: expected `str`, got `int`"),
        (mail, ("bob",), {"urgent": "yes"}, "task mail: argument 'urgent': expected `bool`, got `str`"),
        (mail, ("bob",), {"x": "y"}, "task mail: argument 'x': expected `int`, got `str`"),
        (mail, ("bob",), {"to": "eve"}, "task mail: mail got 'to' twice"),
        (measure, (True, 1.0, ID), {}, "task measure: argument 'number': expected `int`, got `bool`"),
        (measure, (1, 1.0, "x"), {}, "task measure: argument 'id': invalid UUID"),
        (measure, (1, 1.0, ID, 4), {}, "task measure: measure takes 3 arguments, got 4"),
        (measure, (1, 1.0), {"idd": ID, "id": ID}, "task measure: measure takes no 'idd', did you mean 'id'?"),
        (deliver, (Parcel(1.5, Address("s", "1")),), {}, "argument 'parcel' at .to.number: expected `int`, got `str`"),  # pyright: ignore[reportArgumentType]
        (deliver, (GOOD, "xl"), {}, "task deliver: argument 'size': invalid enum value 'xl'"),
        (deliver, (GOOD,), {"at": "soon"}, "task deliver: argument 'at': invalid RFC3339 encoded datetime"),
        (deliver, (), {"parcel": GOOD}, "task deliver: deliver needs 'parcel'"),
    ],
)
def test_an_argument_that_the_worker_cannot_convert_is_refused_by_name(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadArguments) as caught:
        check_call(handler, *args, **kwargs)
    assert str(caught.value).endswith(message)
    assert isinstance(caught.value, TypeError)


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just(ID), st.lists(st.integers(), max_size=2)
)


@given(st.lists(_VALUES, max_size=4), st.dictionaries(st.sampled_from(["number", "ratio", "id", "x"]), _VALUES))
def test_check_accepts_exactly_the_arguments_the_worker_accepts(args: list[Any], kwargs: dict[str, Any]) -> None:
    for handler in (measure, mail, anything):
        task = define(handler)
        try:
            payload = encode(Payload(task.name, args, kwargs))
        except UnicodeEncodeError:
            return
        try:
            task.bind(msgspec.json.decode(payload, type=Payload))
            fits = True
        except msgspec.ValidationError:
            fits = False
        try:
            check(task.signature, task.check, args, kwargs, payload)
            passed = True
        except BadArguments:
            passed = False
        assert passed == fits


@pytest.fixture
def app() -> App:
    """Return an app without a Redis: arguments are refused before anything is sent."""
    return App("redis://127.0.0.1:1/0")


async def test_every_way_to_enqueue_refuses_arguments_that_do_not_fit(app: App) -> None:
    task = app.task(measure)
    with pytest.raises(BadArguments, match="'ratio'"):
        await task.enqueue(1, "x", ID)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadArguments, match="call 1: task measure: argument 'number'"):
        await task.using(delay=1).enqueue_many([(1, 1.0, ID), ("x", 1.0, ID)])
    with pytest.raises(BadArguments, match="call 0: task measure: argument 'number'"):
        await task.enqueue_many([Arguments(("x", 1.0, ID), {})])
    with pytest.raises(BadArguments, match="call 0: task measure: 'bob' is not a tuple of arguments"):
        await task.enqueue_many(["bob"])  # pyright: ignore[reportArgumentType]
    mistakes: list[Any] = [1, {}, b"ab"]
    for no_tuple in mistakes:
        with pytest.raises(BadArguments, match=r"call 0: .* is not a tuple of arguments"):
            await task.enqueue_many([no_tuple])
    with app.sync() as client:
        with pytest.raises(BadArguments, match="'ratio'"):
            client.enqueue(task, 1, "x", ID)  # pyright: ignore[reportArgumentType]
        with pytest.raises(BadArguments, match="call 0: "):
            client.enqueue_many(task.using(priority=1), [(1,)])


async def test_bytes_for_a_text_are_refused(app: App) -> None:
    wrong = "is bytes, and the task takes text: decode it"
    given: list[Any] = [b"x", bytearray(b"x")]
    for data in given:
        with pytest.raises(BadArguments, match=f"task evsched.http: argument 'body' {wrong}"):
            await app.http.enqueue("http://example.com", body=data)
        with pytest.raises(BadArguments, match=f"task mail: argument 'to' {wrong}"):
            check_call(mail, data)
        check_call(anything, data)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400, -(10**309)])
async def test_every_way_to_enqueue_refuses_numbers_that_json_cannot_hold(app: App, number: float) -> None:
    wrong = "has a number that JSON cannot hold, NaN, infinite or beyond 1.8e308"
    with pytest.raises(BadArguments, match=f"task measure: argument 'ratio' {wrong}"):
        await app.task(measure).enqueue(1, number, ID)
    task = app.task(anything)
    for args, kwargs, name in (
        (([1, number],), {}, "'value'"),
        (({"a": [number]},), {}, "'value'"),
        (((number,),), {}, "'value'"),
        ((), {"value": number}, "'value'"),
    ):
        with pytest.raises(BadArguments, match=f"argument {name} {wrong}"):
            await task.enqueue(*args, **kwargs)
    with app.sync() as client, pytest.raises(BadArguments, match=f"call 0: task anything: argument 'value' {wrong}"):
        client.enqueue_many(task, [(number,)])
    with pytest.raises(BadArguments, match=f"argument 'json' {wrong}"):
        await app.http.enqueue("http://example.com", json=number)
    with pytest.raises(BadArguments, match=wrong):
        app.recurring("@daily", args=(number,))(mail)


def test_a_recurrence_that_cannot_run_is_refused_where_it_is_declared(app: App) -> None:
    with pytest.raises(BadArguments, match=r"task measure: measure needs 'id', 'number', 'ratio'"):
        app.recurring("@daily")(measure)
    with pytest.raises(BadArguments, match="argument 'subject': expected `str`, got `int`"):
        app.recurring("@daily", args=("bob",), kwargs={"subject": 3})(mail)


async def test_a_payload_that_is_too_large_is_refused_with_its_size(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "the payload has 262175 bytes, more than 262144"
    task = app.task(anything)
    with pytest.raises(ConfigError, match=words):
        await task.enqueue("x" * 262144)
    with pytest.raises(ConfigError, match="more than 262144"):
        app.recurring("@daily", args=("x" * 262144,))(task)
    with app.sync() as client, pytest.raises(ConfigError, match=words):
        client.enqueue_many(task, [("x" * 262144,)])
    monkeypatch.setenv("EVSCHED_PAYLOAD_CAP", "100")
    small = App("redis://127.0.0.1:1/0")
    with pytest.raises(ConfigError, match="the payload has 131 bytes, more than 100"):
        await small.task(anything).enqueue("x" * 100)


async def test_calls_that_are_no_list_are_refused() -> None:
    @App("redis://127.0.0.1:1").task
    async def task(a: int) -> None: ...

    nothing: Any = None
    with pytest.raises(BadArguments, match="the calls are of type NoneType: give a list of tuples of arguments"):
        await task.enqueue_many(nothing)


def test_number_that_is_passed_as_the_queue_of_a_history_is_refused() -> None:
    number: Any = 10
    with pytest.raises(ConfigError, match="history: queue is 10: give the name of a queue, and the number as most="):
        App("redis://127.0.0.1:1").history(number)
