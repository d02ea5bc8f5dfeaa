"""The script `forget`: the keys that former workers left in an otherwise empty queue are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.store.queue import Announced
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

DAY = 86400.0
APP = Announced("app", "content", "digest")


def serve(send: Send, store: Store) -> None:
    """Write the keys of a worker of the app, and end its lease."""
    send(store.at(NOW).register("app", "content"))
    send(store.set_policies({"t": "{}"}))
    send(store.at(NOW).heartbeat("w", 15.0, fresh=True, announced=APP))
    send(store.at(NOW + 16).requeue("w", "x"))


def keys_of(raw: Any, store: Store) -> set[str]:
    root = f"evsched:{{{store.queue}}}:"
    return {key.decode().removeprefix(root) for key in raw.scan_iter(match=root + "*", count=1000)}


def test_queue_without_a_worker_for_a_day_is_deleted_entirely(send: Send, store: Store, raw: Any) -> None:
    serve(send, store)
    assert keys_of(raw, store) == {"apps", "programs", "revisions:app", "tasks", "workers:digest"}
    assert send(store.at(NOW + 16 + DAY).forget([store.queue, "other"])) == [store.queue, "other"]
    assert keys_of(raw, store) == {"workers:digest"}  # it expires
    assert send(store.at(NOW + 16 + DAY).forget([store.queue])) == [store.queue]


def test_a_queue_that_a_worker_has_served_within_a_day_is_kept(send: Send, store: Store, state: State) -> None:
    serve(send, store)
    before = state()
    assert send(store.at(NOW + 14 + DAY).forget([store.queue])) == []
    assert state() == before


@pytest.mark.parametrize(
    "command",
    [
        *(("ZADD", place, "1", "x") for place in ("schedule", "backlog", "throttled", "dead", "leases", "parents")),
        *(("ZADD", place, "1", "x") for place in ("recurrences", "pauses")),
        *(("HSET", place, "x", "1") for place in ("moving", "limits", "declared_limits")),
        ("RPUSH", "ready", "x"),
        ("XADD", "ends", "*", "x", "1"),
        ("SET", "schedule", "x"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_queue_that_has_anything_else_is_kept(
    send: Send, store: Store, state: State, raw: Any, command: tuple[str, ...]
) -> None:
    serve(send, store)
    verb, key, *words = command
    raw.execute_command(verb, f"evsched:{{{store.queue}}}:{key}", *words)
    before, there = state(), keys_of(raw, store)
    assert send(store.at(NOW + 9 * DAY).forget([store.queue])) == []
    assert (state(), keys_of(raw, store)) == (before, there)


def test_windows_and_calendars_are_kept(send: Send, store: Store, raw: Any) -> None:
    serve(send, store)
    send(store.set_window("night", "{}"))
    send(store.set_calendar("holidays", "[]"))
    assert send(store.at(NOW + 9 * DAY).forget([store.queue])) == [store.queue]
    assert keys_of(raw, store) == {"calendars", "windows", "workers:digest"}


def test_many_apps_of_a_queue_are_forgotten_in_several_calls(send: Send, store: Store, raw: Any) -> None:
    for n in range(25):
        send(store.at(NOW).register(f"app-{n}", "content"))
    replies = [send(store.at(NOW).forget([store.queue])) for _ in range(3)]
    assert replies == [[], [], [store.queue]]
    assert keys_of(raw, store) == set()


@pytest.mark.parametrize("key", ["programs", "tasks", "apps"])
def test_a_key_of_another_type_is_deleted_too(send: Send, store: Store, raw: Any, key: str) -> None:
    raw.set(f"evsched:{{{store.queue}}}:{key}", "x")
    assert send(store.at(NOW).forget([store.queue])) == [store.queue]
    assert keys_of(raw, store) == set()
