"""`queue_stats` counts the slots that the jobs of a queue want, now and a little later."""

from __future__ import annotations

from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send

JOB = b'{"task":"t"}'


def wanted(send: Send, store: Store, lead: float = 0.0) -> int:
    return send(store.at(NOW).queue_stats(lead)).wanted


def test_jobs_want_a_slot_from_their_due_time_until_they_have_ended(send: Send, store: Store) -> None:
    assert wanted(send, store) == 0
    send(store.enqueue([New(f"j{n}", JOB, due=NOW) for n in range(40)]))
    assert wanted(send, store) == 40, "no dispatcher has moved them yet"
    send(store.at(NOW).dispatch(limit=99, cap=99))
    stats = send(store.at(NOW).queue_stats())
    assert (stats.places["backlog"], stats.places["ready"], stats.wanted) == (24, 16, 40)
    send(store.at(NOW).start("w", (), hold=10, lease=15))
    assert wanted(send, store) == 40
    send(store.at(NOW).requeue("w", "it died"))
    assert wanted(send, store) == 40


def test_lead_counts_jobs_that_will_be_due_by_then(send: Send, store: Store) -> None:
    send(store.enqueue([New(f"j{n}", JOB, due=NOW + 10 * n) for n in range(5)]))
    assert [wanted(send, store, lead) for lead in (0, 9.9, 10, 39.9, 40, 1000)] == [1, 1, 2, 4, 5, 5]
    stats = send(store.at(NOW).queue_stats(20))
    assert (stats.now, stats.due, stats.next_due) == (NOW, 3, NOW)


def test_more_jobs_than_the_limit_want_as_many_slots_as_it_has(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"concurrency": 5}))
    send(store.enqueue([New(f"j{n}", JOB, due=NOW) for n in range(20)]))
    assert wanted(send, store) == 5
    send(store.at(NOW).dispatch(limit=99, cap=99))
    send(store.at(NOW).start("w", (), hold=3, lease=15))
    assert wanted(send, store) == 5
    send(store.at(NOW).limit({"concurrency": 2}))
    assert wanted(send, store) == 5, "what has passed the gate will run all the same"
    send(store.at(NOW).limit({"concurrency": None}))
    assert wanted(send, store) == 20


def test_jobs_that_the_limits_of_their_groups_hold_back_want_no_slot(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"concurrency:g": 1}))
    send(store.enqueue([New(f"g{n}", JOB, due=NOW, group="g") for n in range(9)]))
    send(store.enqueue([New("free", JOB, due=NOW)]))
    send(store.at(NOW).dispatch(limit=99, cap=99))
    stats = send(store.at(NOW).queue_stats())
    assert (stats.places["backlog"], stats.places["ready"], stats.wanted) == (8, 2, 2)


def test_jobs_of_a_paused_queue_want_no_slot_until_its_end_is_near(send: Send, store: Store) -> None:
    send(store.enqueue([New(f"j{n}", JOB, due=NOW) for n in range(5)]))
    send(store.at(NOW).dispatch(limit=2, cap=99))
    send(store.at(NOW).start("w", (), hold=1, lease=15))
    send(store.at(NOW).pause(until=NOW + 60))
    assert [wanted(send, store, lead) for lead in (0, 59, 60)] == [1, 1, 5]
    send(store.at(NOW).pause())
    assert wanted(send, store, 1000) == 1
