"""The limits that apps declare: set when a declaration changes, and otherwise left as an operator has set them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from evsched.errors import StoreRefused
from evsched.jobs.job import Done
from evsched.shards import Share
from evsched.store.client_calls import New
from evsched.store.gate_limits import DeclaredLimit, Limits
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State
from tests.support.patience import PATIENCE


def declare(
    send: Send, store: Store, limits: Mapping[str, float | Share], revision: float = 1, app: str = "app"
) -> Any:
    """Declare as a starting worker does; return the changed limits."""
    send(store.at(NOW).register(app, str(limits), given=int(revision)))
    return send(store.at(NOW).declare_limits(app, revision, limits))


def test_new_changed_and_removed_declarations_update_limits(send: Send, store: Store) -> None:
    assert declare(send, store, {"concurrency": 5, "rate:alice": 0.5}) == {"concurrency": "5", "rate:alice": "0.5"}
    assert declare(send, store, {"concurrency": 5, "rate:alice": 0.5}) == {}
    assert declare(send, store, {"concurrency": 6}) == {"concurrency": "6", "rate:alice": ""}
    assert send(store.limits()) == Limits(queue={"concurrency": 6})
    assert send(store.declared_limits()) == {"concurrency": DeclaredLimit(6, "app")}
    assert declare(send, store, {}) == {"concurrency": ""}
    assert (send(store.limits()), send(store.declared_limits())) == (Limits(), {})


def test_a_change_by_hand_is_kept_until_the_declaration_changes(send: Send, store: Store) -> None:
    declare(send, store, {"concurrency": 5, "rate": 7})
    send(store.at(NOW).limit({"concurrency": 9, "rate": None}))
    assert declare(send, store, {"concurrency": 5, "rate": 7}, revision=2) == {}
    found = send(store.limits())
    assert found == Limits(queue={"concurrency": 9})
    assert declare(send, store, {"concurrency": 6, "rate": 7}, revision=3) == {"concurrency": "6"}
    assert declare(send, store, {}, revision=4) == {"concurrency": "", "rate": ""}


def test_a_change_by_hand_is_kept_when_a_declared_limit_is_only_divided_again(send: Send, store: Store) -> None:
    declare(send, store, {"rate": Share(5, 10)})
    send(store.at(NOW).limit({"rate": 9}))
    assert declare(send, store, {"rate": Share(2, 10)}, revision=2) == {}
    assert send(store.limits()) == Limits(queue={"rate": 9})
    assert declare(send, store, {"rate": Share(2, 8)}, revision=3) == {"rate": "2"}


def test_undeclared_limits_are_kept_until_they_are_declared(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"concurrency": 9, "weight:alice": 2}))
    assert declare(send, store, {"rate": 5}) == {"rate": "5"}
    assert send(store.limits()).queue == {"concurrency": 9, "rate": 5}
    assert declare(send, store, {"rate": 5, "concurrency": 3}) == {"concurrency": "3"}
    assert declare(send, store, {}) == {"rate": "", "concurrency": ""}
    assert send(store.limits()).groups == {"alice": {"weight": 2}}


def test_a_revision_that_is_older_changes_nothing(send: Send, store: Store, state: State) -> None:
    declare(send, store, {"concurrency": 5}, revision=2)
    before = state()
    send(store.at(NOW).register("app", "old", given=1))
    assert send(store.at(NOW).declare_limits("app", 1, {"concurrency": 4, "rate": 3})) is None
    assert send(store.at(NOW).declare_limits("app", 1, {})) is None
    after = state()
    assert after.pop("revisions:app") != before.pop("revisions:app")
    assert after == before


def test_apps_do_not_change_limits_that_only_another_app_declares(send: Send, store: Store) -> None:
    declare(send, store, {"concurrency": 5, "rate": 5}, app="one")
    assert declare(send, store, {"burst": 2, "rate": 6}, app="other") == {"burst": "2", "rate": "6"}
    assert declare(send, store, {}, app="one") == {"concurrency": ""}
    assert send(store.limits()).queue == {"burst": 2, "rate": 6}


def test_new_limits_admit_jobs_at_once_and_notify_dispatchers(send: Send, store: Store, state: State, raw: Any) -> None:
    declare(send, store, {"concurrency": 2, "concurrency:task:slow": 1})
    send(store.enqueue([New(f"j{n}", b'{"task":"slow"}', due=NOW) for n in range(9)]))
    send(store.at(NOW).dispatch(limit=99, cap=99))
    assert (state()["ready"], state()["limits"]["tasks"]) == (["j0"], "slow")
    with raw.pubsub() as gate:
        gate.subscribe(f"evsched:{{{store.queue}}}:gate")
        gate.get_message(timeout=PATIENCE)
        declare(send, store, {"concurrency": 3})
        assert gate.get_message(timeout=PATIENCE) is not None
    assert state()["ready"] == ["j0", "j1", "j2"]
    assert "tasks" not in state()["limits"]
    (job, *_) = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW).complete("w", [(job, Done(b"1", 0, False))]))
    assert state()["ready"] == ["j3"]


@pytest.mark.parametrize("text", ["", "5", "many app", " app", "5  app"])
def test_manual_entry_among_the_declarations_is_replaced_or_ignored(
    send: Send, store: Store, state: State, raw: Any, text: str
) -> None:
    raw.hset(f"evsched:{{{store.queue}}}:declared_limits", "rate", text)
    send(store.declared_limits())
    assert declare(send, store, {"rate": 5}) == {"rate": "5"}
    assert state()["declared_limits"] == {"rate": "5 app"}


@pytest.mark.parametrize("key", ["declared_limits", "limits", "backlog", "ready"])
def test_a_key_of_a_wrong_type_refuses_it_before_it_writes(
    send: Send, store: Store, state: State, raw: Any, key: str
) -> None:
    send(store.at(NOW).register("app", "a", given=1))
    raw.set(f"evsched:{{{store.queue}}}:{key}", "x")
    before = state()
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(store.at(NOW).declare_limits("app", 1, {"rate": 5}))
    assert state() == before
    if key == "declared_limits":  # explain shows the rest
        send(store.enqueue([New("a", b"{}", due=NOW)]))
        assert send(store.explain("a")).limits.declared == {}
