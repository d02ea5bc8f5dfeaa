"""EventChannels: the subscriptions of a dispatcher, and how it reads a channel's name."""

from __future__ import annotations

import pytest

from evsched.config import Config
from evsched.dispatcher.watcher import EventChannels

EVENTS = "__keyspace@3__:evsched:"


def test_all_queues_need_patterns_and_named_queues_do_not() -> None:
    every = EventChannels(Config(url="redis://localhost/3"), "d")
    assert f"{EVENTS}{{*}}:schedule" in every.patterns
    assert every.names == ["evsched:canary:d"]
    some = EventChannels(Config(url="redis://localhost/3", queues=("a", "b")), "d")
    assert some.patterns == []
    assert {f"{EVENTS}{{a}}:schedule", f"{EVENTS}{{b}}:recurrences", "evsched:{b}:gate"} <= set(some.names)


@pytest.mark.parametrize(
    ("channel", "read"),
    [
        (f"{EVENTS}{{mail}}:schedule", ("schedule", "mail")),
        (f"{EVENTS}{{mail}}:recurrences", ("duty", "mail")),
        ("evsched:{mail}:gate", ("gate", "mail")),
        (f"{EVENTS}{{mail}}:canary", ("canary event", "")),
        ("evsched:canary:d", ("canary message", "")),
        (f"{EVENTS}{{no name}}:schedule", ("foreign", "")),
    ],
)
def test_channel_name_gives_the_changed_place_and_queue(channel: str, read: tuple[str, str]) -> None:
    assert EventChannels(Config(url="redis://localhost/3"), "d").read(channel.encode()) == read
