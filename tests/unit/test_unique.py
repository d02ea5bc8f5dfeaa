"""The ids of unique jobs: equal for the same task and arguments, and for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct

from evsched import App, BadArguments, ConfigError, Unique
from evsched.client.option_values import id_of_arguments, unique_id
from evsched.jobs.tasks import Task


class Page(Struct):
    title: str
    number: int


app = App("redis://localhost:1/0")


@app.task
async def index(page: Any, lang: str = "en", *, deep: bool = False) -> None: ...


@app.task
async def other(page: Any) -> None: ...


def title_of(page: int) -> str:
    return f"page-{page}"


def itself(page: int) -> int:
    return page


def like_arguments(page: int) -> list[Any]:
    return [[page], {}]


def nothing(page: int) -> None: ...


def no_json(page: int) -> object:
    return object()


def no_name(page: int) -> dict[complex, int]:
    return {1j: page}


def id_of(*args: Any, task: Task = index.task, unique: Unique | None = None, **kwargs: Any) -> str:
    return unique_id(task, unique or Unique(), args, kwargs)


def test_the_id_is_the_documented_digest() -> None:
    text = '["index",["ä",{"a":1,"b":[2.5,null]}],{"deep":true}]'
    expected = "unique-" + sha256(text.encode()).hexdigest()[:32]
    assert id_of("ä", {"b": [2.5, None], "a": 1}, deep=True) == expected
    assert id_of_arguments("index", ["ä", {"a": 1, "b": [2.5, None]}], {"deep": True}) == expected
    by_key = sha256(b'["index","page-7"]').hexdigest()[:32]
    assert id_of(7, unique=Unique(by=title_of)) == f"unique-{by_key}"


def test_the_example_of_the_protocol_is_right() -> None:
    text = (Path(__file__).parents[2] / "docs/protocol.md").read_text()
    ((array, job_id),) = re.findall(r'^(\["send_mail",.*\])  ->  (unique-\w+)$', text, re.MULTILINE)
    assert id_of_arguments(*json.loads(array)) == job_id


def test_one_call_has_one_id_however_its_arguments_are_passed() -> None:
    same = {id_of(1, "de"), id_of(1, lang="de"), id_of(page=1, lang="de"), id_of(lang="de", page=1)}
    assert len(same) == 1
    assert id_of(1, deep=True) == id_of(page=1, deep=True)
    assert id_of(Page("x", 1)) == id_of({"number": 1, "title": "x"})
    assert id_of(UUID(int=7)) == id_of(str(UUID(int=7)))
    assert id_of(datetime(2030, 1, 1, tzinfo=UTC)) == id_of("2030-01-01T00:00:00Z")
    assert id_of((1, 2)) == id_of([1, 2])
    assert id_of({"a", "b", "c"}) == id_of(["a", "b", "c"])


def test_other_calls_have_other_ids() -> None:
    calls = [
        id_of(1),
        id_of("1"),
        id_of([1]),
        id_of({"page": 1}),
        id_of(1, "en"),
        id_of(1, deep=False),
        id_of(1, task=other.task),
        id_of(1, unique=Unique(by=itself)),
        id_of(1, unique=Unique(by=like_arguments)),
    ]
    assert len(set(calls)) == len(calls)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (nothing, "task index: the key of a unique job is None: give a string"),
        (no_json, "task index: the key of a unique job must be JSON"),
        (no_name, "the key of a unique job must be JSON"),
    ],
)
def test_a_key_that_is_not_json_is_refused(by: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        id_of(1, unique=Unique(by=by))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "key"}, "Unique: by is 'key': give 'args', or a function that gets the arguments"),
        ({"by": None}, "Unique: by is None: give"),
        ({"within": 0}, "Unique: within is 0: give a timedelta or seconds, more than 0; or None"),
        ({"within": -1.5}, "Unique: within is -1.5: give"),
        ({"within": timedelta(0)}, "Unique: within is datetime.timedelta.0.: give"),
        ({"within": "5m"}, "Unique: within is '5m': give a timedelta, or seconds"),
        ({"within": True}, "Unique: within is True: give"),
        ({"within": float("nan")}, "Unique: within is nan: give"),
        ({"within": float("inf")}, "Unique: within is inf: give a finite number"),
    ],
)
def test_an_option_that_is_not_valid_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Unique(**options)


def test_a_length_is_seconds_or_a_timedelta() -> None:
    assert (Unique().seconds, Unique(within=1.5).seconds, Unique(within=timedelta(minutes=5)).seconds) == (0, 1.5, 300)


def test_an_id_and_uniqueness_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="id and unique: give one of them"):
        index.using(id="a", unique=Unique())


async def test_arguments_are_checked_before_the_key_is_made() -> None:
    """The error names the wrong argument, not the exception that the function raised because of it."""
    called = list[Any]()
    with pytest.raises(BadArguments, match="argument 'lang'"):
        await index.using(unique=Unique(by=lambda *call: called.append(call))).enqueue(1, 2)  # pyright: ignore[reportArgumentType]
    assert called == []
