"""When a job was created, and by whom: two fields of its record, which the script that enqueues it writes."""

from __future__ import annotations

from typing import Any

from evsched.jobs.job import Done
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of

PAYLOAD = b'{"task":"t"}'


def new(due: float = NOW) -> list[New]:
    return [New("a", PAYLOAD, due=due)]


def test_a_record_says_when_it_was_created_and_by_whom(send: Send, queue: str, state: State) -> None:
    send(Store(queue, by="billing").at(NOW + 0.9).enqueue(new()))
    assert state()["job:a"] == {"payload": PAYLOAD.decode(), "created": f"{NOW:.0f}", "by": "billing"}
    status = status_of(send, Store(queue), "a")
    assert (status.created, status.by) == (NOW, "billing")


def test_the_default_user_is_not_named(send: Send, store: Store) -> None:
    send(store.at(NOW).enqueue(new()))
    status = status_of(send, store, "a")
    assert (status.created, status.by) == (NOW, None)


def test_a_replaced_job_was_created_when_it_was_replaced(send: Send, store: Store, queue: str) -> None:
    send(Store(queue, by="billing").at(NOW).enqueue(new()))
    send(store.at(NOW + 60).replace(new()))
    status = status_of(send, store, "a")
    assert (status.created, status.by) == (NOW + 60, None)


def test_replacement_of_a_running_job_has_its_own_creation_time_and_user(send: Send, store: Store, queue: str) -> None:
    send(Store(queue, by="billing").at(NOW).enqueue(new()))
    send(store.at(NOW).dispatch(limit=9, cap=99))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    send(store.at(NOW + 60).replace(new(NOW + 99)))
    status = status_of(send, store, "a")
    assert (status.place, status.created, status.by) == ("processing", NOW, "billing")
    send(store.at(NOW + 61).complete("w", [(run, Done(b"1", 300.0, False))]))
    status = status_of(send, store, "a")
    assert (status.place, status.created, status.by) == ("schedule", NOW + 60, None)


def test_a_revived_job_keeps_its_time_and_user(send: Send, queue: str, store: Store) -> None:
    send(Store(queue, by="billing").at(NOW).enqueue([New("a", b"", due=NOW)]))
    for late in (0, 1, 2):
        send(store.at(NOW + late).dispatch(limit=9, cap=99))
    assert send(store.at(NOW + 9).revive(["a"])) == ["a"]
    status = status_of(send, store, "a")
    assert (status.place, status.created, status.by) == ("schedule", NOW, "billing")


def test_another_client_that_uses_an_id_again_does_not_inherit_them(
    send: Send, queue: str, store: Store, raw: Any
) -> None:
    send(Store(queue, by="billing").at(NOW).enqueue([New("a", b"", due=NOW)]))
    for late in (0, 1, 2):
        send(store.at(NOW + late).dispatch(limit=9, cap=99))
    raw.hset(f"evsched:{{{queue}}}:job:a", "payload", PAYLOAD)
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": NOW})
    send(store.at(NOW + 60).dispatch(limit=9, cap=99))
    status = status_of(send, store, "a")
    assert (status.place, status.created, status.by) == ("ready", None, None)


def test_a_value_that_is_not_a_time_is_not_shown(send: Send, store: Store, raw: Any) -> None:
    raw.hset(f"evsched:{{{store.queue}}}:job:a", mapping={"payload": PAYLOAD, "created": "yesterday", "by": "\x1b[2J"})
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    assert status_of(send, store, "a").created is None
