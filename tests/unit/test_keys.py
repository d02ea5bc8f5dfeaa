"""The name of every key: the contract that other clients rely on, and that every name is used."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from evsched import keys
from evsched.errors import ConfigError

PACKAGE = Path(keys.__file__).parent


def test_the_names_are_the_contract() -> None:
    assert keys.schedule("mail") == "evsched:{mail}:schedule"
    assert keys.ready("mail") == "evsched:{mail}:ready"
    assert keys.processing("mail", "w1") == "evsched:{mail}:processing:w1"
    assert keys.job("mail", "42") == "evsched:{mail}:job:42"
    assert keys.reply("mail", "42") == "evsched:{mail}:reply:42"
    assert keys.status_requests("mail") == "evsched:{mail}:status"
    assert keys.status_replies("mail", "me") == "evsched:{mail}:status:me"
    assert keys.events(3, keys.EVERY_SCHEDULE) == "__keyspace@3__:evsched:{*}:schedule"


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "leases"])
def test_the_queue_and_worker_are_read_from_a_key_that_shows_a_queue(place: str) -> None:
    assert keys.parse(f"{keys.root('a.b:c')}{place}".encode()) == ("a.b:c", None)
    assert keys.parse(keys.processing("q", "host:1@x").encode()) == ("q", "host:1@x")


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"evsched:{}:schedule",
        b"evsched:{q}:schedules",
        b"evsched:{q}:schedule\n",
        b"evsched:{\xff}:schedule",
        b"evsched:{q\x1b}:ready",
        b"evsched:{q}:processing:",
        b"evsched:{q}:processing:a b",
        b"evsched:{" + b"q" * 201 + b"}:ready",
        b"evsched:{q}:in_flight",
    ],
)
def test_any_other_key_shows_no_queue(key: bytes) -> None:
    assert keys.parse(key) is None


@pytest.mark.parametrize(
    ("key", "misnamed"),
    [
        (b"evsched:{x y}:schedule", True),
        (b"evsched:{}:schedule", True),
        (b"evsched:{\xff{}:recurrences", True),
        (b"evsched:{" + b"q" * 500 + b"}:schedule", True),
        (b"evsched:{q}:schedule", False),
        (b"evsched:{q}:processing:e}:schedule", False),
        (b"evsched:{}:queues", False),
        (b"evsched:{x y}:job:1", False),
        (b"other:{x y}:schedule", False),
    ],
)
def test_only_a_schedule_whose_queue_name_is_invalid_is_misnamed(key: bytes, misnamed: bool) -> None:
    assert keys.is_misnamed(key) is misnamed


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        (keys.job("a.b:c", "x:y").encode(), ("a.b:c", b"job:x:y")),
        (b"evsched:{q}:backlog:\xff\n", ("q", b"backlog:\xff\n")),
        (b"evsched:{q}", None),
        (b"evsched:{a b}:job:x", None),
        (b"other:{q}:job:x", None),
    ],
)
def test_any_key_of_a_queue_is_split(key: bytes, parts: tuple[str, bytes] | None) -> None:
    assert keys.split(key) == parts


@pytest.mark.parametrize("name", ["q", "a.b_c:d@e-f", "x" * 200])
def test_a_valid_queue_name_is_accepted(name: str) -> None:
    assert keys.check_queue(name) == name


@pytest.mark.parametrize("name", ["", " ", "a/b", "{q}", "q\n", "x" * 201, "\u00fc"])
def test_an_invalid_queue_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 200"):
        keys.check_queue(name)


def test_every_name_is_used() -> None:
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "keys.py")
    public = [name for name, _ in inspect.getmembers(keys, inspect.isfunction) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"\bkeys\.{name}\b", text)] == []


def test_keys_that_show_a_queue() -> None:
    assert keys.parse(b"evsched:{q}:schedule") == ("q", None)
    assert keys.parse(b"evsched:{q}:processing:w-1") == ("q", "w-1")
    for other in (b"evsched:{q}:job:1", b"evsched:{a b}:schedule", b"x:{q}:schedule", b"evsched:{q}:processing:a\n"):
        assert keys.parse(other) is None
