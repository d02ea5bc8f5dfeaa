"""Revisions of declarations: an older one changes nothing; recurrences missing from the newest stop but are kept."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from evsched.errors import StoreRefused
from evsched.recurrence.recurrence import Declared, Occurrence, content_of, describe_revision
from evsched.store.queue import Announced
from evsched.store.recurrence_calls import Registered
from evsched.store.store import Store
from evsched.transport.call import Call
from tests.scripts.conftest import NOW, Send, State

INF = float("inf")


def rule(name: str, text: str = "@daily") -> Declared:
    return Declared(name=name, rule=text, payload=b'{"task":"t"}')


def register(send: Send, store: Store, content: str, now: float = NOW, **more: Any) -> Registered:
    return send(store.at(now).register("app", content, **more))


def deploy(send: Send, store: Store, content: str, *declared: Declared, now: float = NOW) -> float:
    """Declare as a worker does that starts; return the revision."""
    found = register(send, store, content, now)
    for one in declared:
        assert send(store.declare(one, "app", found.revision)) != "older"
    for name in set(found.declared) - {one.name for one in declared}:
        send(store.at(now).retire(name, "app", found.revision))
    return found.revision


def put(send: Send, store: Store, name: str, seen: bytes = b"0") -> str:
    """Put an occurrence on the schedule; return its id."""
    made = send(store.recur(name, seen, [Occurrence(f"{name}@9", NOW + 9, NOW + 9, 5.0)], next_=NOW + 99))
    assert made is not None
    return made[0]


# Which revision is the newer one.


def test_a_content_keeps_its_revision_and_a_new_one_gets_a_higher_one(send: Send, store: Store) -> None:
    first = register(send, store, "one").revision
    second = register(send, store, "two").revision  # in the same second
    third = register(send, store, "three", NOW - 3600).revision  # the clock was set back
    assert first < second < third < 0
    assert register(send, store, "one", NOW + 9999) == Registered(first, third, [])
    assert register(send, store, "three", NOW + 9999) == Registered(third, third, [])


def test_revision_given_by_the_app_counts_with_any_content(send: Send, store: Store) -> None:
    counted = register(send, store, "one").revision
    assert counted < 1
    assert register(send, store, "two", given=5) == Registered(5, 5, [])
    assert register(send, store, "one").revision == counted
    assert register(send, store, "three", given=4) == Registered(4, 5, [])
    assert register(send, store, "two", given=6) == Registered(6, 6, [])
    assert register(send, store, "two", given=5) == Registered(5, 6, [])
    # The app gives none: what it declares now was never seen, so it is the newest, until the app gives the next number.
    assert register(send, store, "four") == Registered(6.5, 6.5, [])
    assert register(send, store, "five") == Registered(6.75, 6.75, [])
    assert register(send, store, "six", given=7) == Registered(7, 7, [])
    assert register(send, store, "five") == Registered(6.75, 7, [])
    assert send(store.at(NOW).retire("r", "app", 6.75)) == "older"


def test_an_app_that_declares_nothing_has_a_revision_too(send: Send, store: Store) -> None:
    """Otherwise a worker from before the first recurrence would be the newest when it restarts."""
    before = deploy(send, store, content_of([]))
    after = deploy(send, store, content_of([rule("r")]), rule("r"))
    assert register(send, store, content_of([])).revision == before < after


@pytest.mark.parametrize("order", list(permutations(["old", "new", "newest"])))
def test_after_a_loss_of_data_the_running_workers_restore_the_order(
    send: Send, store: Store, raw: Any, order: tuple[str, ...]
) -> None:
    known = {name: register(send, store, name, NOW + at).revision for at, name in enumerate(("old", "new", "newest"))}
    raw.flushall()
    for name in order:
        register(send, store, name, NOW + 60, known=known[name])
    assert register(send, store, "old", NOW + 61) == Registered(known["old"], known["newest"], [])
    assert register(send, store, "new", NOW + 61).revision == known["new"]


def test_a_release_that_starts_right_after_a_loss_of_data_is_the_newest(send: Send, store: Store, raw: Any) -> None:
    running = register(send, store, "running").revision
    raw.flushall()
    release = register(send, store, "release", NOW + 1).revision
    assert register(send, store, "running", NOW + 2, known=running) == Registered(running, release, [])
    assert running < release


def test_the_newest_hundred_contents_are_remembered(send: Send, store: Store, state: State) -> None:
    for n in range(150):
        register(send, store, f"content {n}", NOW + n)
    remembered = state()["revisions:app"]
    assert list(remembered) == [f"content {n}" for n in range(50, 150)]
    assert register(send, store, "content 60", NOW + 999).revision == remembered["content 60"]


def test_apps_and_queues_have_revisions_of_their_own(send: Send, store: Store) -> None:
    register(send, store, "content", given=9)
    assert send(store.register("other", "content", given=1)) == Registered(1, 1, [])
    assert send(Store(store.queue + "2").register("app", "content", given=1)) == Registered(1, 1, [])
    assert send(store.declare(rule("r"), "other", 1)) == "made"
    assert send(store.declare(rule("s"))) == "made"


def test_content_ignores_the_order_of_declarations() -> None:
    assert content_of([rule("a"), rule("b")]) == content_of([rule("b"), rule("a")])
    assert content_of([], {"rate": 5, "burst": 2}) == content_of([], {"burst": 2.0, "rate": 5.0})
    assert len({content_of([], limits) for limits in ({}, {"rate": 5}, {"rate": 6}, {"burst": 5})}) == 4
    assert content_of([rule("a")], {}) == content_of([rule("a")])
    assert len({content_of(of) for of in ([], [rule("a")], [rule("b")], [rule("a", "@hourly")], [rule("ab")])}) == 5


def test_option_of_a_later_release_changes_the_content_only_if_set() -> None:
    """The digest of an evsched without the option, so that an upgrade alone makes nothing the newest."""
    assert content_of([rule("a")]).startswith("7ba23416bb3cb5e8")
    assert content_of([rule("a")]) != content_of([msgspec.structs.replace(rule("a"), pause_after=3)])


def test_revision_is_described_as_number_or_time() -> None:
    assert describe_revision(412) == "412"
    assert describe_revision(NOW - 1e11) == "2030-03-17T17:46:40Z"
    assert [describe_revision(value) for value in (INF, -INF, -1e300)] == ["inf", "-inf", "-1e+300"]


# What an older revision may do: nothing.


def test_an_older_revision_changes_adds_and_stops_nothing(send: Send, store: Store, state: State) -> None:
    old = deploy(send, store, "old", rule("same"), rule("changed"), rule("gone"))
    new = deploy(send, store, "new", rule("same"), rule("changed", "@hourly"), rule("added"))
    put(send, store, "changed", b"-1")
    before = state()
    calls: list[Call[Any]] = [
        *(store.declare(rule(name), "app", old) for name in ("same", "changed", "gone", "never seen")),
        store.declare(rule("changed"), "app"),
        *(store.retire(name, "app", old) for name in ("same", "added", "gone")),
    ]
    for call in calls:
        assert send(call) == "older"
    assert state() == before
    scores = {"same": 0, "changed": NOW + 99, "added": 0, "gone": INF}
    assert before["recurrences"] == scores
    assert {before[f"recurrence:{name}"]["revision"] for name in ("same", "changed", "added")} == {f"{new:.0f}"}


def test_records_of_an_evsched_without_revisions_are_older_than_any(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    root = f"evsched:{{{store.queue}}}:"
    for name in ("r", "gone"):
        raw.hset(f"{root}recurrence:{name}", mapping={"rule": "@daily", "payload": b'{"task":"t"}', "owner": "app"})
        raw.zadd(f"{root}recurrences", {name: NOW + 60})
        raw.sadd(f"{root}declared:app", name)
    deploy(send, store, "content", rule("r"))
    after = state()
    assert after["recurrences"] == {"r": 0, "gone": INF}
    assert "revision" in after["recurrence:r"]


# What the newest leaves out.


def test_undeclared_recurrence_stops_and_keeps_its_record(send: Send, store: Store, state: State) -> None:
    old = deploy(send, store, "old", rule("r"), rule("kept"))
    job_id = put(send, store, "r")
    send(store.at(NOW + 1).hold("r", True))
    send(store.at(NOW + 2).hold("r", False))
    job_id = put(send, store, "r")
    record = state()["recurrence:r"]
    new = deploy(send, store, "new", rule("kept"), now=NOW + 3)
    after = state()
    assert (after["recurrences"]["r"], after["recurrences"]["kept"]) == (INF, 0)
    assert "schedule" not in after
    assert f"job:{job_id}" not in after
    assert after["recurrence:r"] == {**{k: v for k, v in record.items() if k != "ahead"}, "retired": f"{NOW + 3:.6f}"}
    # Once more, as after a lost reply: nothing changes.
    assert send(store.at(NOW + 9).retire("r", "app", new)) == "retired"
    assert state() == after
    assert old < new


def test_retired_recurrence_resumes_when_a_newer_revision_declares_it(send: Send, store: Store, state: State) -> None:
    deploy(send, store, "old", rule("r"))
    put(send, store, "r")
    deploy(send, store, "new")
    deploy(send, store, "newest", rule("r"), rule("other"))
    record = state()["recurrence:r"]
    assert ("retired" in record, record["made"], state()["recurrences"]["r"]) == (False, "1", 0)


@pytest.mark.parametrize("taken_by", ["a user", "another app", "nobody"])
def test_recurrence_taken_over_or_removed_is_not_stopped(send: Send, store: Store, state: State, taken_by: str) -> None:
    deploy(send, store, "old", rule("r"))
    if taken_by == "nobody":
        send(store.remove("r"))
    else:
        send(store.declare(rule("r", "@hourly"), "" if taken_by == "a user" else "other"))
    before = state()
    revision = deploy(send, store, "new")
    after = state()
    assert after.pop("revisions:app")["new"] == revision
    before.pop("revisions:app")
    assert after == before
    assert register(send, store, "new").declared == []


def test_prune_deletes_only_retired_recurrences(send: Send, store: Store, state: State, raw: Any) -> None:
    deploy(send, store, "old", rule("retired"), rule("by hand"), rule("declared"), rule("paused"))
    deploy(send, store, "new", rule("declared"), rule("paused"))
    send(store.hold("paused", True))
    raw.zadd(f"evsched:{{{store.queue}}}:recurrences", {"by hand": 0})  # a client has started it again
    names = ("retired", "by hand", "declared", "paused", "nobody", "retired")
    assert [send(store.prune(name)) for name in names] == [True, False, False, False, False, False]
    after = state()
    assert after["recurrences"].keys() == {"by hand", "declared", "paused"}
    assert "recurrence:retired" not in after


# A pause outlives deploys.


def test_a_pause_outlives_a_change_and_ends_by_resume(send: Send, store: Store, state: State) -> None:
    deploy(send, store, "old", rule("r"))
    send(store.at(NOW).hold("r", True))
    deploy(send, store, "new", rule("r", "@hourly"))
    assert send(store.declare(rule("r", "@weekly"))) == "changed"
    record = state()["recurrence:r"]
    assert (record["rule"], record["paused"], state()["recurrences"]) == ("@weekly", f"{NOW:.6f}", {"r": INF})
    assert send(store.at(NOW).hold("r", False))
    assert state()["recurrences"] == {"r": 0}


def test_a_pause_outlives_a_time_in_which_the_recurrence_is_retired(send: Send, store: Store, state: State) -> None:
    deploy(send, store, "old", rule("r"))
    send(store.at(NOW).hold("r", True))
    deploy(send, store, "new")
    deploy(send, store, "newest", rule("r", "@hourly"))
    assert state()["recurrences"] == {"r": INF}
    assert "paused" in state()["recurrence:r"]


def test_resume_does_not_start_a_retired_recurrence(send: Send, store: Store, state: State) -> None:
    deploy(send, store, "old", rule("r"))
    send(store.at(NOW).hold("r", True))
    deploy(send, store, "new")
    assert not send(store.at(NOW).hold("r", False))
    assert state()["recurrences"] == {"r": INF}
    deploy(send, store, "newest", rule("r"), rule("other"))
    assert state()["recurrences"]["r"] == 0


def test_rewind_does_not_start_a_retired_recurrence(send: Send, store: Store, state: State) -> None:
    deploy(send, store, "old", rule("r"))
    send(store.at(NOW + 3600).recur("r", b"0", [], next_=NOW + 7200))
    deploy(send, store, "new")
    assert send(store.at(NOW).rewind(15, 0, 9)) == (1, [])
    assert state()["recurrences"] == {"r": INF}


def test_recurrence_declared_again_after_its_removal_is_not_paused(send: Send, store: Store, raw: Any) -> None:
    deploy(send, store, "content", rule("r"))
    send(store.at(NOW).hold("r", True))
    raw.zrem(f"evsched:{{{store.queue}}}:recurrences", "r")  # how a client stops it, says the protocol
    assert send(store.declare(rule("r"))) == "made"
    assert raw.zscore(f"evsched:{{{store.queue}}}:recurrences", "r") == 0
    assert send(store.recurrence("r")).keys().isdisjoint({"paused", "owner", "revision"})


# What other clients write.


def test_a_key_of_a_wrong_type_in_the_place_of_a_record_stops_no_other(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    deploy(send, store, "old", rule("r"), rule("gone"))
    for name in ("r", "gone"):
        raw.delete(f"evsched:{{{store.queue}}}:recurrence:{name}")
        raw.set(f"evsched:{{{store.queue}}}:recurrence:{name}", "x")
    revision = register(send, store, "new").revision
    with pytest.raises(StoreRefused, match="recurrence:r is a string"):
        send(store.declare(rule("r"), "app", revision))
    assert send(store.declare(rule("s"), "app", revision)) == "made"
    assert send(store.retire("gone", "app", revision)) == "gone"


@pytest.mark.parametrize(
    "value", [b"", b"nan", b"inf", b"abc", b"-1", b"9" * 400, b"}:job:x", b"\xff\x00", b"x" * 99999]
)
@pytest.mark.parametrize("field", ["owner", "revision", "retired", "paused"])
def test_malformed_fields_break_nothing(
    send: Send, store: Store, state: State, raw: Any, field: str, value: bytes
) -> None:
    deploy(send, store, "old", rule("r"), rule("s"))
    for name in ("r", "s"):
        raw.hset(f"evsched:{{{store.queue}}}:recurrence:{name}", field, value)
    deploy(send, store, "new", rule("r", "@hourly"))
    after = state()
    assert after["recurrence:r"]["owner"] == "app"
    assert after["recurrences"]["r"] == (INF if field == "paused" else -1)  # from now on, and not 0 as before
    assert after["recurrences"]["s"] == (0 if field == "owner" else INF)
    send(store.prune("s"))
    send(store.remove("r"))
    assert state().get("recurrences", {}).keys() <= {"s"}


@pytest.mark.parametrize("score", ["inf", "-inf", 1e300])
def test_a_revision_that_no_app_gives_is_read_and_forgotten(
    send: Send, store: Store, raw: Any, score: float | str
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:revisions:app", {"content": score})
    found = register(send, store, "content")
    assert send(store.declare(rule("r"), "app", found.revision)) == "made"
    send(store.forget_revisions("app"))
    assert register(send, store, "content", given=1) == Registered(1, 1, ["r"])


def test_heartbeat_returns_whether_the_declarations_exist(send: Send, store: Store, raw: Any) -> None:
    register(send, store, "content")
    send(store.heartbeat("w", 15, fresh=True))
    assert send(store.heartbeat("w", 15, announced=Announced("app", "content"))).declared
    assert not send(store.heartbeat("w", 15, announced=Announced("app", "other"))).declared
    assert not send(store.heartbeat("w", 15, announced=Announced("other", "content"))).declared
    raw.flushall()
    assert send(store.heartbeat("w", 15)).declared
    assert not send(store.heartbeat("w", 15, announced=Announced("app", "content"))).declared
    raw.set(f"evsched:{{{store.queue}}}:revisions:app", "x")
    assert send(store.heartbeat("w", 15, announced=Announced("app", "content"))).declared
