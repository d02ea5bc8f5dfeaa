"""The options of batches are checked before anything is written."""

from __future__ import annotations

from typing import cast

import pytest

from evsched.batches.batch_options import EXPIRES, RETENTION, BatchOptions, read_options
from evsched.errors import ConfigError


def test_options_that_are_left_out_have_their_defaults() -> None:
    assert read_options({}) == ({}, EXPIRES, RETENTION)
    assert read_options({"expires": None, "retention": 0, "complete_on": "all"}) == ({"complete_on": "all"}, None, 0.0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"expires": -1}, r"expires is -1: give 0 s or more"),
        ({"retention": -0.5}, r"retention is -0\.5: give 0 s or more"),
        ({"retention": float("inf")}, "give a finite number of seconds"),
        ({"complete_on": "some"}, "complete_on is 'some'"),
        ({"on_done": "summary"}, "on_done: give a task of the app"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_options(cast("BatchOptions", given))


def test_unknown_option_is_refused_with_those_there_are() -> None:
    with pytest.raises(TypeError, match=r"no option 'on_end': it has .*on_failed"):
        read_options(cast("BatchOptions", {"on_end": None}))
