"""A job from a task's name, its arguments and options: as small as it can be, and refused when an option is wrong."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from evsched.client.client import Options, new_job
from evsched.errors import ConfigError
from evsched.jobs.job import Payload


def test_a_payload_is_as_small_as_it_can_be() -> None:
    job = new_job("t", (1,), {}, Options())
    assert job.payload == b'{"task":"t","args":[1]}'
    assert msgspec.json.decode(job.payload, type=Payload).retry is None
    assert len({new_job("t", (), {}, Options()).id for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "a b"}, "an id is"),
        ({"priority": 10}, "from 0 to 9"),
        ({"group": ""}, "1 to 200 bytes"),
        ({"due": 1.0, "delay": 1.0}, "give one of them"),
        ({"timeout": 0}, "timeout is 0: over 0 s"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"retention": -1}, "retention is -1"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"delay": float("inf")}, "delay is inf"),
        ({"due": float("nan")}, "due is nan"),
        ({"expires": float("nan")}, "expires is nan"),
        ({"due": "tomorrow"}, "'tomorrow' is no time: give an aware datetime, or Unix seconds"),
        ({"expires": "12.5"}, "'12.5' is no time"),
        ({"due": date(2030, 1, 1)}, "is no time"),
        ({"due": 10**400}, "is no time"),
        ({"delay": "5m"}, "'5m' is no length: give a timedelta, or seconds"),
        ({"delay": []}, "is no length"),
        ({"timeout": "5"}, "timeout is '5': over 0 s, as a number"),
        ({"retention": timedelta(1)}, "retention is datetime.timedelta.*: 0 s or more, as a number"),
        ({"on_conflict": "repalce"}, "on_conflict is 'repalce', did you mean 'replace'[?]"),
        ({"on_conflict": "x"}, "on_conflict is 'x': 'replace' or 'keep'"),
        ({"on_conflict": True}, "on_conflict is True: 'replace' or 'keep'"),
        ({"due": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the mistake
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new_job("t", (), {}, Options(**options))
