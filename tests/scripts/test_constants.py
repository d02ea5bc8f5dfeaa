"""Constants that Lua shares with Python or the documentation are equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evsched.jobs import groups, kept
from evsched.store.dispatcher_calls import MEMBER_MOST
from evsched.store.gate_limits import RANGES, RATE_LEAST
from evsched.transport.call import folder

MANAGE = (Path(__file__).parents[2] / "docs/manage.md").read_text()


def in_lua(name: str) -> str:
    """Return a constant as it stands in a shared Lua file, without quotes."""
    (found,) = (
        value
        for path in folder().glob("_*.lua")
        for value in re.findall(rf"^local {name} = (.*)$", path.read_text(), re.MULTILINE)
    )
    return found.strip("'")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MEMBER_MOST", MEMBER_MOST),
        ("STEPS_MOST", kept.STEPS_MOST),
        ("SIGNALS_MOST", kept.SIGNALS_MOST),
        ("RATE_LEAST", RATE_LEAST),
        ("WEIGHT_LEAST", RANGES["weight"][0]),
    ],
)
def test_a_number_is_the_same_in_python(name: str, value: float) -> None:
    assert float(in_lua(name)) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KIND", f"{{ task = '{groups.TASK}', origin = '{groups.ORIGIN}', batch = '{groups.BATCH}' }}"),
        ("RECURRING", groups.RECURRING),
    ],
)
def test_the_name_of_a_group_is_the_same_in_python(name: str, value: str) -> None:
    assert in_lua(name) == value


def test_documented_bounds_of_the_dead_set_match_the_scripts() -> None:
    most, days = int(in_lua("DEAD_MOST")), in_lua("DEAD_AGE").removesuffix(" * 86400")
    assert f"The dead-letter set keeps at most {most:,} jobs, for at most {days} days." in MANAGE
