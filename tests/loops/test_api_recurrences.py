"""The HTTP interface: recurrences. Each answer is held against the OpenAPI document (tests/support/api.py)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.api import LATER, READ, Caller


@pytest.fixture
def recurrences(queue: str) -> str:
    return f"/v1/queues/{queue}/recurrences"


async def test_a_recurrence_is_made_changed_and_deleted(api: Caller, recurrences: str, queue: str, raw: Any) -> None:
    body: dict[str, Any] = {
        "rule": "0 2 * * mon-fri",
        "zone": "Europe/Berlin",
        "task": "report",
        "args": ["sales"],
        "kwargs": {"a": 1},
        "start": "2030-01-01T00:00:00Z",
        "end": LATER,
        "count": 5,
        "spread": 1.5,
        "misfire": "skip",
        "overlap": "wait",
        "window": "mon-fri 01:00-03:00 Europe/Berlin",
        "pause_after": 3,
        "priority": 7,
        "group": "alice",
        "timeout": 30,
        "retry": {"attempts": 2},
    }
    made = await api.ask("PUT", f"{recurrences}/nightly", body)
    assert (made.status_code, made.headers["location"]) == (201, f"{recurrences}/nightly")
    assert made.json() == {"name": "nightly", "change": "made", "paused": False}
    fields = raw.hgetall(f"evsched:{{{queue}}}:recurrence:nightly")
    record = {name.decode(): text.decode() for name, text in fields.items()}
    assert msgspec.json.decode(record.pop("payload")) == {
        "task": "report",
        "args": ["sales"],
        "kwargs": {"a": 1},
        "timeout": 30,
        "retry": {"attempts": 2},
        "window": "mon-fri 01:00-03:00 Europe/Berlin",
    }
    expected = {
        "rule": "0 2 * * mon-fri",
        "zone": "Europe/Berlin",
        "start": "1893456000.0",
        "end": "4000000000.0",
        "count": "5",
        "spread": "1.5",
        "misfire": "skip",
        "overlap": "wait",
        "pause_after": "3",
        "priority": "7",
        "group": "alice",
    }
    assert {name: record[name] for name in expected} == expected
    same = await api.ask("PUT", f"{recurrences}/nightly", body)
    assert (same.status_code, same.json()["change"]) == (200, "same")
    changed = await api.ask("PUT", f"{recurrences}/nightly", {**body, "count": 6})
    assert (changed.status_code, changed.json()["change"]) == (200, "changed")
    assert (await api.ask("DELETE", f"{recurrences}/nightly")).status_code == 204
    assert (await api.ask("DELETE", f"{recurrences}/nightly")).status_code == 404


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rule": "0 25 * * *"}, "recurrence r:"),
        ({"rule": ""}, "$.rule"),
        ({"rule": "every 0"}, "every"),
        ({"zone": "Europe/Berln"}, "did you mean Europe/Berlin"),
        ({"count": 0}, "$.count"),
        ({"misfire": "all"}, "misfire='all' needs overlap='allow'"),
        ({"misfire": "never"}, "$.misfire"),
        ({"skip": "no-such-calendar"}, "no-such-calendar"),
        ({"window": "no-such-window"}, "there is no window no-such-window"),
        ({"end": 5}, "would never recur"),
        ({"start": 1e300}, "start and end"),
        ({"every": 5}, "unknown field `every`"),
        ({"task": None}, "$.task"),
        ({"args": ["x" * 300_000]}, "more than 262144"),
    ],
)
async def test_a_recurrence_that_is_not_valid_is_refused(
    api: Caller, recurrences: str, more: dict[str, Any], words: str, raw: Any
) -> None:
    refused = await api.ask("PUT", f"{recurrences}/r", {"rule": "@daily", "task": "t", **more})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert words in refused.json()["detail"]
    assert raw.dbsize() == 0


async def test_a_name_that_is_not_valid_is_refused(api: Caller, recurrences: str) -> None:
    for name, status in (("a b", 422), ("x" * 181, 404), ("%C3%A9", 422)):
        assert (await api.ask("PUT", f"{recurrences}/{name}", {"rule": "@daily", "task": "t"})).status_code == 422
        assert (await api.ask("GET", f"{recurrences}/{name}")).status_code == status


async def test_recurrences_are_listed(api: Caller, recurrences: str, queue: str, raw: Any) -> None:
    assert (await api.ask("GET", recurrences, token=READ)).json() == {"recurrences": [], "complete": True}
    for n in range(3):
        await api.ask("PUT", f"{recurrences}/r{n}", {"rule": "@daily", "task": "t", "zone": "Asia/Tokyo"})
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"no-record": 5})
    listed = (await api.ask("GET", recurrences, token=READ)).json()
    assert ({one["name"] for one in listed["recurrences"]}, listed["complete"]) == (
        {"r0", "r1", "r2", "no-record"},
        True,
    )
    assert all("it has no record" in one["reason"] for one in listed["recurrences"] if one["name"] == "no-record")
    first = (await api.ask("GET", f"{recurrences}?limit=3")).json()
    assert (len(first["recurrences"]), first["complete"]) == (3, False)
    one = (await api.ask("GET", f"{recurrences}/r1", token=READ)).json()
    assert one in listed["recurrences"]
    assert (one["rule"], one["zone"], one["runs"]) == ("@daily", "Asia/Tokyo", 0)
    assert (await api.ask("GET", f"{recurrences}/r9")).status_code == 404


async def test_a_recurrence_is_paused_resumed_and_triggered(
    api: Caller, recurrences: str, queue: str, raw: Any
) -> None:
    await api.ask("PUT", f"{recurrences}/r", {"rule": "@daily", "task": "t"})
    assert (await api.ask("POST", f"{recurrences}/r/pause", {"until": LATER, "why": "it moves"})).status_code == 204
    paused = (await api.ask("GET", f"{recurrences}/r")).json()
    assert (paused["paused_until"], paused["paused_why"]) == (LATER, "it moves")
    kept = await api.ask("PUT", f"{recurrences}/r", {"rule": "@hourly", "task": "t"})
    assert kept.json() == {"name": "r", "change": "changed", "paused": True}
    for body in ({"until": 5}, {"until": "2020-01-01T00:00:00Z"}, {"why": "x" * 501}, {"for": 5}):
        assert (await api.ask("POST", f"{recurrences}/r/pause", body)).status_code == 422
    triggered = await api.ask("POST", f"{recurrences}/r/trigger")
    assert (triggered.status_code, triggered.json()["begun"]) == (202, True)
    assert raw.zscore(f"evsched:{{{queue}}}:schedule", triggered.json()["id"]) is not None
    assert (await api.ask("POST", f"{recurrences}/r/resume")).json() == {"name": "r", "recurs": True}
    assert (await api.ask("GET", f"{recurrences}/r")).json()["paused"] is None


async def test_missing_recurrence_cannot_be_paused_resumed_or_triggered(api: Caller, recurrences: str) -> None:
    for path, body in (("pause", {"why": ""}), ("resume", None), ("trigger", None)):
        gone = await api.ask("POST", f"{recurrences}/r/{path}", body)
        assert (gone.status_code, gone.json()["code"]) == (404, "not-found")


async def test_write_tokens_are_needed_to_write(api: Caller, recurrences: str, raw: Any) -> None:
    for method, path, body in (
        ("PUT", "r", {"rule": "@daily", "task": "t"}),
        ("DELETE", "r", None),
        ("POST", "r/pause", {"why": ""}),
        ("POST", "r/resume", None),
        ("POST", "r/trigger", None),
    ):
        assert (await api.ask(method, f"{recurrences}/{path}", body, token=READ)).status_code == 403
        assert (await api.ask(method, f"{recurrences}/{path}", body, token=None)).status_code == 401
    assert raw.dbsize() == 0
