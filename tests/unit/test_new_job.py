"""A job from a task's name, its arguments and options: as small as it can be, and refused when an option is wrong."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from evsched import App, Retry
from evsched.client.new_job import JobOptions, new_job
from evsched.errors import ConfigError
from evsched.jobs.job import Payload


def test_a_payload_is_as_small_as_it_can_be() -> None:
    job = new_job("t", (1,), {}, JobOptions())
    assert job.payload == b'{"task":"t","args":[1]}'
    assert msgspec.json.decode(job.payload, type=Payload).retry is None
    assert len({new_job("t", (), {}, JobOptions()).id for _ in range(1000)}) == 1000


A_TIME = "give an aware datetime, or Unix seconds"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": ""}, "queue is '': give 1 to 200"),
        ({"id": "a b"}, "id is 'a b': give 1 to 200 of"),
        ({"id": 5}, "id is 5: give 1 to 200 of"),
        ({"id": ".."}, "id is .*: give .*, and not . or .."),
        ({"priority": 10}, "priority is 10: give a whole number from 0 to 9"),
        ({"priority": 5.0}, "priority is 5.0: give a whole number"),
        ({"priority": True}, "priority is True: give a whole number"),
        ({"group": ""}, "group is '': give a string of 1 to 200 bytes"),
        ({"group": 5}, "group is 5: give a string"),
        ({"group": "a}"}, "without `}`"),
        ({"group": "\ud800"}, "give a string of"),
        ({"group": " "}, "group is ' ': .* not only spaces"),
        ({"group": "a\0"}, "characters that cannot be seen"),
        ({"timeout": 0}, "timeout is 0: give a number of seconds, more than 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": 10**400}, "timeout is 1000.*: give a number of seconds"),
        ({"timeout": "5"}, "timeout is '5': give a number of seconds"),
        ({"timeout": True}, "timeout is True: give a number of seconds"),
        ({"retention": -1}, "retention is -1"),
        ({"retention": timedelta(1)}, "retention is datetime.timedelta.*: give a number of seconds, 0 or more"),
        ({"retry": 5}, "retry is 5: give a Retry"),
        ({"retry": Retry(retry_on=(OSError,))}, "retry_on and give_up_on belong to a task"),
        ({"retry": Retry(give_up_on=(OSError,))}, r"give them to its decorator, @task\(retry=...\)"),
        ({"reply": "x"}, "reply is 'x': give True or False"),
        ({"reply": 1}, "reply is 1: give True or False"),
        ({"meta": [1]}, r"meta is \[1\]: give a dict"),
        ({"meta": "x"}, "meta is 'x': give a dict"),
        ({"meta": {1: 2}}, "a dict whose keys are strings"),
        ({"redact": "card"}, "redact is 'card': give a tuple of names of arguments"),
        ({"redact": ("",)}, "give a tuple of names"),
        ({"redact": (1,)}, "give a tuple of names"),
        ({"redact": ("0",)}, 'or of positions from "1"'),
        ({"redact": ("card", "02")}, 'or of positions from "1"'),
        ({"tags": "patient:42"}, "tags is 'patient:42': give a tuple of at most 5 tags"),
        ({"tags": ("a b",)}, "without spaces, commas and control characters"),
        ({"tags": ("a,b",)}, "give a tuple of at most 5 tags"),
        ({"tags": ("a\n",)}, "give a tuple of at most 5 tags"),
        ({"tags": ("\u202egpj.exe",)}, "64 ASCII characters"),
        ({"tags": ("",)}, "each 1 to 64"),
        ({"tags": ("x" * 65,)}, "each 1 to 64"),
        ({"tags": (5,)}, "give a tuple of at most 5 tags"),
        ({"tags": tuple("abcdef")}, "at most 5 tags"),
        ({"window": 5}, "window is 5: give a string"),
        ({"window": ""}, "window is '': give a string"),
        ({"window": "x y z"}, "x y z"),
        ({"delay": float("nan")}, "delay is nan: give a timedelta, or seconds"),
        ({"delay": float("inf")}, "delay is inf: give a finite number"),
        ({"delay": "5m"}, "delay is '5m': give a timedelta, or seconds"),
        ({"delay": []}, r"delay is \[\]: give a timedelta"),
        ({"delay": True}, "delay is True: give a timedelta"),
        ({"due": float("nan")}, f"due is nan: {A_TIME}"),
        ({"expires": float("nan")}, f"expires is nan: {A_TIME}"),
        ({"due": "tomorrow"}, f"due is 'tomorrow': {A_TIME}"),
        ({"expires": "12.5"}, f"expires is '12.5': {A_TIME}"),
        ({"due": timedelta(1)}, f"due is datetime.timedelta.*: {A_TIME}"),
        ({"due": date(2030, 1, 1)}, A_TIME),
        ({"due": 10**400}, A_TIME),
        ({"due": datetime(2030, 1, 1)}, "a datetime with a time zone"),  # noqa: DTZ001 - that is the mistake
        ({"on_conflict": "repalce"}, "on_conflict is 'repalce', did you mean 'replace'[?]"),
        ({"on_conflict": "x"}, "on_conflict is 'x': give 'replace' or 'keep'"),
        ({"unique": True}, "unique is True: give a Unique, such as Unique"),
        ({"on_conflict": True}, "on_conflict is True: give 'replace' or 'keep'"),
    ],
)
def test_an_option_that_is_not_valid_is_refused_by_its_name_and_value(options: dict[str, Any], words: str) -> None:
    task = App("redis://localhost:1/0").task(lambda: None)
    with pytest.raises(ConfigError, match=words):
        task.using(**options)


def test_every_option_of_a_job_may_be_none() -> None:
    task = App("redis://localhost:1/0").task(lambda: None)
    none: Any = dict.fromkeys(JobOptions.__optional_keys__)
    task.using(**none)
    assert new_job("t", (), {}, none).payload == new_job("t", (), {}, JobOptions()).payload


def test_due_and_delay_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        new_job("t", (), {}, JobOptions(due=1.0, delay=1.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": True}, "every is True: give a timedelta"),
        ({"zone": None}, "zone is None: give a string"),
        ({"name": ""}, "name is '': give a string"),
        ({"args": "ab"}, "args is 'ab': give a tuple or a list"),
        ({"kwargs": [1]}, "kwargs is .*: give a dict"),
        ({"start": "now"}, f"start is 'now': {A_TIME}"),
        ({"end": float("nan")}, f"end is nan: {A_TIME}"),
        ({"count": 2.0}, "count is 2.0: give a whole number, 1 or more"),
        ({"spread": "5"}, "spread is '5': give a timedelta"),
        ({"misfire": "skp"}, "misfire is 'skp', did you mean 'skip'[?]"),
        ({"most": "all"}, "most is 'all': give a whole number"),
        ({"overlap": None}, "overlap is None: give 'allow' or 'skip' or 'wait'"),
        ({"window": 5}, "window is 5: give a string"),
        ({"priority": 5.0}, "priority is 5.0: give a whole number"),
        ({"group": 5}, "group is 5: give a string"),
        ({"tags": ("a b",)}, "tags is .*: give a tuple of at most 5 tags"),
        ({"queue": ""}, "queue is '': give 1 to 200"),
    ],
)
def test_an_option_of_a_recurrence_that_is_not_valid_is_refused(options: dict[str, Any], words: str) -> None:
    recurring: Any = App("redis://localhost:1/0").recurring
    with pytest.raises(ConfigError, match=words):
        recurring(**options)


@pytest.mark.parametrize("name", ["", 5])
def test_an_invalid_queue_is_refused_and_not_replaced_by_the_default(name: Any) -> None:
    app = App("redis://localhost:1/0")
    with pytest.raises(ConfigError, match="queue"):
        App("redis://localhost:1/0", queue=name)
    with pytest.raises(ConfigError, match="queue"):
        App("redis://localhost:1/0", name=name)
    with pytest.raises(ConfigError, match="queue"):
        app.job("a", queue=name)
    with app.sync() as client, pytest.raises(ConfigError, match="queue"):
        client.job("a", queue=name)


@pytest.mark.parametrize(
    ("call", "option", "near"),
    [("using", "prioriti", "priority"), ("task", "time_out", "timeout"), ("recurring", "evry", "every")],
)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest_name(call: str, option: str, near: str) -> None:
    app = App("redis://localhost:1/0")
    callers: dict[str, Any] = {"using": app.task(lambda: None).using, "task": app.task, "recurring": app.recurring}
    with pytest.raises(TypeError, match=rf"{call}\(\) takes no option '{option}', did you mean '{near}'\?"):
        callers[call](**{option: 3})


@pytest.mark.parametrize("revision", [0, -1, 1.5, "7", True, 2**53 + 1])
def test_invalid_revision_is_refused_with_the_valid_range(revision: Any) -> None:
    with pytest.raises(ConfigError, match=r"revision is .*: give a whole number from 1 to 2\*\*53"):
        App("redis://localhost:1/0", revision=revision)


def test_the_revision_of_an_app_is_part_of_its_program() -> None:
    assert App("redis://localhost:1/0").program.revision is None
    assert App("redis://localhost:1/0", revision=2**53).program.revision == 2**53


def test_error_of_arguments_that_are_not_json_does_not_keep_them() -> None:
    with pytest.raises(ConfigError, match="its arguments and meta must be JSON: 'utf-8' codec") as caught:
        new_job("pay", ["4111\ud800"], {}, JobOptions())
    assert caught.value.__context__ is None
