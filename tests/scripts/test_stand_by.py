"""A parent without worker processes stays registered and learns if one is needed; workers seek unknown tasks."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.store.worker_calls import Stance
from tests.scripts.conftest import NOW, Send

NONE, APP = Announced(), Announced("app", "content", "digest")


def stand_by(send: Send, store: Store, parent: str = "p", announced: Announced = NONE, now: float = NOW) -> Stance:
    return send(store.at(now).stand_by(parent, announced, lease=100, claim=60))


def announce(send: Send, store: Store) -> None:
    send(store.at(NOW).register(APP.owner, APP.content, given=None, known=None))
    send(store.set_program(APP.program, ["pay", "mail"]))


def test_a_parent_is_registered_until_its_lease_ends_or_it_stands_down(send: Send, store: Store) -> None:
    assert stand_by(send, store, "p") == stand_by(send, store, "other", now=NOW + 50) == Stance("", False)
    assert send(store.parents()) == [("p", NOW + 100), ("other", NOW + 150)]
    assert [send(store.at(NOW + after).queue_stats()).parents for after in (50, 120, 160)] == [2, 1, 0]
    assert send(store.at(NOW).queue_stats()).workers == 0, "it takes no share of the jobs"
    stand_by(send, store, "third", now=NOW + 120)
    send(store.stand_down("other"))
    assert [name for name, _ in send(store.parents())] == ["third"]


def test_a_ready_job_needs_one_process_of_several_parents(send: Send, store: Store, raw: Any) -> None:
    raw.rpush(f"evsched:{{{store.queue}}}:ready", "a")
    assert stand_by(send, store, "p") == Stance("ready", True)
    assert stand_by(send, store, "p") == Stance("ready", True), "its own claim"
    assert stand_by(send, store, "other") == Stance("ready", False)
    assert send(store.at(NOW).stand_by("p", NONE, lease=100, claim=0)) == Stance("ready", False), "it only registers"
    send(store.prolong_start(1000))
    assert raw.ttl(f"evsched:{{{store.queue}}}:starting") > 900
    send(store.end_start())
    assert stand_by(send, store, "other") == Stance("ready", True)


@pytest.mark.parametrize("lost", ["revisions:app", "program:digest", ""])
def test_lost_declarations_need_a_process_that_declares_them(send: Send, store: Store, raw: Any, lost: str) -> None:
    announce(send, store)
    assert stand_by(send, store, announced=APP) == Stance("", False)
    if lost:
        raw.delete(f"evsched:{{{store.queue}}}:{lost}")
    else:
        raw.flushall()
    assert not send(store.at(NOW).heartbeat("w", 15, fresh=True, announced=APP)).declared
    assert stand_by(send, store, announced=APP) == Stance("undeclared", True)
    announce(send, store)
    assert stand_by(send, store, "other", APP) == Stance("", False)


def test_a_sought_task_needs_a_process_of_an_app_that_has_it(send: Send, store: Store) -> None:
    announce(send, store)
    stand_by(send, store, announced=APP)
    assert not send(store.at(NOW).seek("unknown"))
    assert stand_by(send, store, announced=APP) == Stance("", False)
    assert send(store.at(NOW).seek("pay")), "the parent's app has it"
    assert stand_by(send, store, "other") == Stance("", False)
    assert stand_by(send, store, announced=APP, now=NOW + 100) == Stance("", False), "long ago"
    assert stand_by(send, store, announced=APP) == Stance("sought", True)
    assert stand_by(send, store, "third", APP) == Stance("sought", False), "the other has claimed the start"
    send(store.end_start())
    assert stand_by(send, store, "third", APP) == Stance("sought", True), "the process of the other did not start"


def test_a_task_is_sought_until_a_worker_that_has_it_registers(send: Send, store: Store) -> None:
    announce(send, store)
    stand_by(send, store, announced=APP)
    for task in ("pay", "unknown"):
        send(store.at(NOW).seek(task))
    other = Announced(program="other")
    send(store.set_program(other.program, ["unknown"]))
    send(store.at(NOW).heartbeat("stranger", 15, fresh=True, announced=other))
    assert stand_by(send, store, announced=APP) == Stance("sought", True), "the other app does not have the task"
    send(store.at(NOW).seek("pay"))  # while its process starts
    send(store.at(NOW).heartbeat("w", 15, fresh=True, announced=APP))
    send(store.end_start())
    assert stand_by(send, store, announced=APP) == Stance("", False)


@pytest.mark.parametrize("ended", [True, False])
def test_a_task_is_sought_only_while_no_live_worker_has_it(send: Send, store: Store, *, ended: bool) -> None:
    announce(send, store)
    send(store.at(NOW).heartbeat("w", 15, fresh=True, announced=APP))
    assert send(store.at(NOW).seek("pay"))
    assert stand_by(send, store, announced=APP) == Stance("", False)
    if ended:
        send(store.requeue("w", "stopped"))
    now = NOW if ended else NOW + 20  # its lease has ended, and no dispatcher has noticed
    assert send(store.at(now).seek("pay")), "the parent's app has it"
    assert stand_by(send, store, announced=APP, now=now) == Stance("sought", True)


def test_a_task_is_known_while_a_worker_that_has_it_lives(send: Send, store: Store) -> None:
    announce(send, store)
    assert not send(store.at(NOW).seek("pay")), "no worker has a lease"
    for worker, lease in (("idle", 100), ("busy", 15)):
        send(store.at(NOW).heartbeat(worker, lease, fresh=True, announced=APP))
    assert send(store.at(NOW + 99).seek("pay"))
    assert not send(store.at(NOW).seek("charge"))
    assert not send(store.at(NOW + 101).seek("pay"))


@pytest.mark.parametrize("kind", ["worker", "parent"])
def test_task_is_unknown_once_its_last_process_has_stopped(send: Send, store: Store, kind: str) -> None:
    announce(send, store)
    if kind == "worker":
        send(store.at(NOW).heartbeat("w", 100, fresh=True, announced=APP))
    else:
        stand_by(send, store, announced=APP)
    assert send(store.at(NOW).seek("pay"))
    if kind == "worker":
        send(store.requeue("w", "stopped"))
    else:
        send(store.stand_down("p"))
    assert not send(store.at(NOW).seek("pay"))


def test_names_that_a_producer_invents_are_bounded(send: Send, store: Store, raw: Any) -> None:
    for n in range(150):
        send(store.at(NOW + n).seek(f"t{n}"))
    sought = f"evsched:{{{store.queue}}}:sought"
    assert raw.zcard(sought) == 100
    assert raw.zscore(sought, "t149") == NOW + 149
    assert raw.ttl(sought) > 0


@pytest.mark.parametrize("key", ["parents", "programs", "program:digest", "workers:digest", "sought", "revisions:app"])
def test_keys_of_another_type_stop_neither_workers_nor_parents(send: Send, store: Store, raw: Any, key: str) -> None:
    announce(send, store)
    raw.rpush(f"evsched:{{{store.queue}}}:ready", "a")
    raw.delete(f"evsched:{{{store.queue}}}:{key}")
    raw.set(f"evsched:{{{store.queue}}}:{key}", "x")
    send(store.at(NOW).seek("pay"))
    assert send(store.at(NOW).heartbeat("w", 15, fresh=True, announced=APP)).kept
    assert stand_by(send, store, announced=APP) == Stance("ready", True)
    assert send(store.at(NOW).queue_stats()).workers == 1
