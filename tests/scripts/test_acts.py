"""The audit trail: a verb that an operator calls leaves one entry, in the same call, and a refused one leaves none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from evsched.errors import JobError, JobMissing
from evsched.store.acts import Act, AuditEntry, Operator, as_acts
from evsched.store.client_calls import New
from evsched.store.operator_calls import condition
from evsched.store.queue import IdempotentRequest
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from tests.scripts.conftest import NOW, Send, State
from tests.scripts.test_wrong_types import BY_FILTER, CALLS, WAITING, Seeded, seeded

__all__ = ["seeded"]

ANN = Operator("ann", "cli")
Verb = Callable[[Store, Seeded], Call[Any]]
FILTER = json.loads(condition(task="t"))
MATCHING = [job for job in WAITING if job != "running"]

ACTS: dict[str, tuple[Verb, str, dict[str, Any], int | None, list[str]]] = {
    "pause": (
        lambda store, _: store.at(NOW).pause(until=NOW + 9, why="x"),
        "pause",
        {"until": NOW + 9, "why": "x"},
        None,
        [],
    ),
    "limit": (CALLS["limit"], "limit", {"limits": {"concurrency": 9.0, "concurrency:g": 2.0}}, None, []),
    "cancel": (CALLS["cancel"], "cancel", {}, 1, ["r4"]),
    "cancel of a run": (lambda store, _: store.at(NOW).cancel("running"), "cancel", {}, 1, ["running"]),
    "cancel matching": (BY_FILTER["cancel matching"], "cancel", {"filter": FILTER}, 5, MATCHING),
    "reschedule": (CALLS["reschedule"], "reschedule", {"due": NOW}, 1, ["g1"]),
    "reschedule by a delay": (
        lambda store, _: store.reschedule("g1", None, delay=9.0),
        "reschedule",
        {"delay": 9.0},
        1,
        ["g1"],
    ),
    "reschedule matching": (
        BY_FILTER["reschedule matching"],
        "reschedule",
        {"filter": FILTER, "due": NOW},
        5,
        MATCHING,
    ),
    "revive": (CALLS["revive"], "revive", {}, 1, ["dead"]),
    "revive matching": (BY_FILTER["revive matching"], "revive", {"filter": FILTER}, 1, ["dead"]),
    "drop": (CALLS["drop"], "drop", {}, 1, ["dead"]),
    "drop matching": (BY_FILTER["drop matching"], "drop", {"filter": FILTER}, 1, ["dead"]),
    "trigger": (CALLS["trigger"], "trigger", {"recurrence": "r"}, 1, [f"r@{NOW:.6f}"]),
    "backfill": (CALLS["backfill"], "backfill", {"recurrence": "r"}, 1, [f"r@{NOW - 97:.0f}"]),
    "pause of a recurrence": (CALLS["hold"], "pause", {"recurrence": "r"}, None, []),
    "resume of a recurrence": (
        lambda store, _: store.at(NOW).hold("paused", False),
        "resume",
        {"recurrence": "paused"},
        None,
        [],
    ),
    "remove": (CALLS["remove"], "remove", {"recurrence": "r"}, None, []),
    "prune": (CALLS["prune"], "prune", {"recurrence": "retired"}, None, []),
    "vacate": (CALLS["vacate"], "move", {}, 1, []),
}
SOME = [verb if verb in ("pause", "cancel") else pytest.param(verb, marks=pytest.mark.extra) for verb in ACTS]


@pytest.fixture
def operator(store: Store) -> Store:
    """The calls of the queue, as those of one act."""
    return Store(store.queue, act=Act(ANN))


def entries(send: Send, store: Store) -> list[AuditEntry]:
    """Return the entries of the audit trail, the latest first."""
    return [entry for entry in send(store.acts("+", None, 1000)).entries if entry is not None]


@pytest.mark.parametrize("verb", ACTS)
def test_act_has_one_entry_also_if_its_call_is_repeated(
    send: Send, store: Store, operator: Store, seeded: Seeded, verb: str
) -> None:
    make, act, what, count, ids = ACTS[verb]
    call = make(operator, seeded)
    send(call)
    for _ in range(2):
        (entry,) = entries(send, store)
        assert (entry.known.who, entry.known.source, entry.known.act) == ("ann", "cli", act)
        assert (entry.what, entry.count, entry.ids) == (what, count, ids)
        try:
            send(call)  # as if its reply was lost
        except JobMissing:
            pass


@pytest.mark.parametrize("verb", SOME)
def test_wrong_type_of_the_audit_trail_does_not_stop_an_act(
    send: Send, operator: Store, raw: Any, state: State, seeded: Seeded, verb: str
) -> None:
    key = f"evsched:{{{operator.queue}}}:audit"
    raw.set(key, "wrong")
    before = state()
    send(ACTS[verb][0](operator, seeded))
    assert state() != before
    assert raw.get(key) == b"wrong"


@pytest.mark.usefixtures("seeded")
def test_act_that_cannot_be_noted_is_in_the_log_of_redis(
    send: Send, operator: Store, raw: Any, server: EmbeddedRedis
) -> None:
    key = f"evsched:{{{operator.queue}}}:audit"
    raw.set(key, "wrong")
    send(operator.at(NOW).pause())
    assert f"evsched: an act is not in the audit trail {key}: WRONGTYPE" in server.log.read_text(errors="replace")


@pytest.mark.parametrize("verb", SOME)
def test_program_that_does_the_same_leaves_no_entry(
    send: Send, store: Store, raw: Any, seeded: Seeded, verb: str
) -> None:
    send(ACTS[verb][0](store, seeded))
    assert not raw.exists(f"evsched:{{{store.queue}}}:audit")


REFUSED: dict[str, Callable[[Store], Call[Any]]] = {
    "cancel": lambda store: store.cancel("nobody"),
    "reschedule": lambda store: store.reschedule("nobody", NOW),
    "reschedule of a run": lambda store: store.reschedule("running", NOW),
    "revive": lambda store: store.revive(["dead", "nobody"]),
    "drop": lambda store: store.drop(["dead", "nobody"]),
    "trigger": lambda store: store.trigger("nobody", f"{NOW:.6f}"),
    "backfill": lambda store: store.backfill("nobody", [f"{NOW:.0f}"]),
    "pause of a recurrence": lambda store: store.hold("nobody", True),
    "remove": lambda store: store.remove("nobody"),
}
NOTHING: dict[str, Callable[[Store], Call[Any]]] = {
    "resume": lambda store: store.resume(),
    "limit": lambda store: store.limit(),
    "limit that is not set": lambda store: store.limit({"weight:nobody": None, "history": None}),
    "reserve": lambda store: store.reserve({}),
    "cancel matching": lambda store: store.cancel_matching(WAITING, condition(task="other")),
    "reschedule matching": lambda store: store.reschedule_matching(WAITING, condition(task="other"), NOW),
    "revive matching": lambda store: store.revive_matching(["dead"], condition(task="other")),
    "drop matching": lambda store: store.drop_matching(["dead"], condition(task="other")),
    "backfill": lambda store: store.backfill("r", [f"{NOW - 99:.0f}"]),
    "trigger": lambda store: store.trigger("r", f"{NOW - 99:.0f}"),
    "resume of a recurrence": lambda store: store.hold("r", False),
    "prune": lambda store: store.prune("r"),
    "mend": lambda store: store.mend([]),
}


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("verb", REFUSED)
def test_refused_act_leaves_no_entry(send: Send, operator: Store, raw: Any, verb: str) -> None:
    with pytest.raises(JobError):
        send(REFUSED[verb](operator))
    assert not raw.exists(f"evsched:{{{operator.queue}}}:audit")


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("verb", NOTHING)
def test_act_that_finds_nothing_to_do_leaves_no_entry(send: Send, operator: Store, raw: Any, verb: str) -> None:
    send(NOTHING[verb](operator))
    assert not raw.exists(f"evsched:{{{operator.queue}}}:audit")


def test_limit_that_is_as_it_was_has_no_entry(send: Send, store: Store, operator: Store) -> None:
    send(store.limit({"concurrency": 9, "rate": 5}))
    send(operator.limit({"concurrency": 9}))
    assert entries(send, store) == []
    send(operator.limit({"concurrency": 9, "rate": 6}))
    assert [entry.known.act for entry in entries(send, store)] == ["limit"]


def test_resume_has_an_entry_if_the_queue_was_paused(send: Send, store: Store, operator: Store) -> None:
    send(store.pause())
    call = operator.resume()
    send(call)
    send(call)
    assert [entry.known.act for entry in entries(send, store)] == ["resume"]


def test_mend_has_an_entry_with_the_repaired_ids(send: Send, store: Store, operator: Store, raw: Any) -> None:
    raw.hset(f"evsched:{{{store.queue}}}:job:lost", mapping={"payload": '{"task":"t"}', "due": NOW})
    send(operator.at(NOW).mend(send(store.at(NOW).audit([b"lost"]))))
    (entry,) = entries(send, store)
    assert (entry.known.act, entry.count, entry.ids) == ("mend", 1, ["lost"])


def test_request_that_is_done_once_has_one_entry(send: Send, store: Store, seeded: Seeded) -> None:
    request = IdempotentRequest("key", "asked")
    for planned in (NOW, NOW + 1):
        send(Store(store.queue, act=Act(ANN)).at(NOW).trigger_once(request, "r", f"{planned:.6f}"))
    assert [entry.ids for entry in entries(send, store)] == [[f"r@{NOW:.6f}"]]


def test_calls_of_one_act_have_one_entry_with_all_that_they_changed(send: Send, store: Store, operator: Store) -> None:
    send(store.at(NOW).enqueue([New(f"j{n}", b'{"task":"t"}', due=NOW + 9) for n in range(9)]))
    slices = [operator.cancel_matching([f"j{n}", f"j{n + 1}", f"j{n + 2}"], condition(task="t")) for n in (0, 3, 6)]
    others = Store(store.queue, act=Act(ANN))
    for call in slices:
        send(call)
        send(call)
        send(others.pause())
    send(slices[0])  # late, of all
    other, entry = entries(send, store)
    assert other.known.act == "pause"
    assert (entry.count, entry.ids) == (9, [f"j{n}" for n in range(9)])


def test_entry_out_of_reach_is_put_together_by_the_reader(send: Send, store: Store, operator: Store) -> None:
    send(store.at(NOW).enqueue([New(f"j{n}", b'{"task":"t"}', due=NOW + 9) for n in range(4)]))
    first, second = (operator.cancel_matching([f"j{n}", f"j{n + 1}"], condition(task="t")) for n in (0, 2))
    send(first)
    for n in range(30):
        send(Store(store.queue, act=Act(ANN)).limit({"concurrency": n + 1}))
    send(second)
    found = entries(send, store)
    assert [entry.count for entry in found if entry.known.act == "cancel"] == [2, 2]
    latest, *others = as_acts(store.queue, found)
    assert (latest.act, latest.count, sorted(latest.ids)) == ("cancel", 4, ["j0", "j1", "j2", "j3"])
    assert {other.act for other in others} == {"limit"}


def test_entry_has_the_first_ids_of_many(send: Send, store: Store, operator: Store) -> None:
    ids = [f"{n:03}" + "x" * 97 for n in range(100)]
    send(store.at(NOW).enqueue([New(job, b'{"task":"t"}', due=NOW + 9) for job in ids]))
    send(operator.cancel_matching(ids, condition(task="t")))
    (entry,) = entries(send, store)
    assert (entry.count, entry.ids) == (100, ids[:37])  # 4,096 bytes


def test_stream_is_capped(send: Send, store: Store, raw: Any) -> None:
    key = f"evsched:{{{store.queue}}}:audit"
    pipe = raw.pipeline(transaction=False)
    for _ in range(11_000):
        pipe.xadd(key, {"x": "y"})
    pipe.execute()
    send(Store(store.queue, act=Act(ANN)).limit({"concurrency": 9}))
    assert 10_000 <= raw.xlen(key) <= 10_200
    assert [entry.known.act for entry in entries(send, store)] == ["limit"]  # what others wrote is left out


@pytest.mark.parametrize("fields", [{"act": "{"}, {"act": "[]"}, {"act": b"\xff"}, {"count": "x"}, {"x": b"\xff"}])
def test_entry_of_another_program_is_left_out(send: Send, store: Store, raw: Any, fields: dict[str, Any]) -> None:
    send(Store(store.queue, act=Act(ANN)).limit({"concurrency": 9}))
    key = f"evsched:{{{store.queue}}}:audit"
    known = {name.decode(): value for name, value in raw.xrange(key)[0][1].items()}
    raw.xadd(key, (known | fields) if "count" in fields else fields)
    send(Store(store.queue, act=Act(ANN)).resume())
    assert [entry.known.act for entry in entries(send, store)] == ["limit"]
