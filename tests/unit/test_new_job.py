"""A job from a task's name, its arguments and options: as small as it can be, and refused when an option is wrong."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from evsched import App
from evsched.client.new_job import JobOptions, new_job
from evsched.errors import ConfigError
from evsched.jobs.job import Payload


def test_a_payload_is_as_small_as_it_can_be() -> None:
    job = new_job("t", (1,), {}, JobOptions())
    assert job.payload == b'{"task":"t","args":[1]}'
    assert msgspec.json.decode(job.payload, type=Payload).retry is None
    assert len({new_job("t", (), {}, JobOptions()).id for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "a b"}, "an id is"),
        ({"priority": 10}, "from 0 to 9"),
        ({"group": ""}, "1 to 200 bytes"),
        ({"due": 1.0, "delay": 1.0}, "give one of them"),
        ({"timeout": 0}, "timeout is 0: give a number of seconds, more than 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"retention": -1}, "retention is -1"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"delay": float("inf")}, "delay is inf"),
        ({"due": float("nan")}, "due is nan"),
        ({"expires": float("nan")}, "expires is nan"),
        ({"due": "tomorrow"}, "'tomorrow' is not a time: give an aware datetime, or Unix seconds"),
        ({"expires": "12.5"}, "'12.5' is not a time"),
        ({"due": timedelta(1)}, "is a duration, not a time: pass it as delay="),
        ({"due": date(2030, 1, 1)}, "is not a time"),
        ({"due": 10**400}, "is not a time"),
        ({"delay": "5m"}, "'5m' is not a duration: give a timedelta, or seconds"),
        ({"delay": []}, "is not a duration"),
        ({"timeout": "5"}, "timeout is '5': give a number of seconds"),
        ({"retention": timedelta(1)}, "retention is datetime.timedelta.*: give a number of seconds, 0 or more"),
        ({"on_conflict": "repalce"}, "on_conflict is 'repalce', did you mean 'replace'[?]"),
        ({"on_conflict": "x"}, "on_conflict is 'x': give 'replace' or 'keep'"),
        ({"on_conflict": True}, "on_conflict is True: give 'replace' or 'keep'"),
        ({"due": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the mistake
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new_job("t", (), {}, JobOptions(**options))


@pytest.mark.parametrize(
    ("call", "option", "near"),
    [("using", "prioriti", "priority"), ("task", "time_out", "timeout"), ("recurring", "evry", "every")],
)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest_name(call: str, option: str, near: str) -> None:
    app = App("redis://localhost:1/0")
    callers: dict[str, Any] = {"using": app.task(lambda: None).using, "task": app.task, "recurring": app.recurring}
    with pytest.raises(TypeError, match=rf"{call}\(\) takes no option '{option}', did you mean '{near}'\?"):
        callers[call](**{option: 3})
