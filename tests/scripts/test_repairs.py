"""The doctor's repairs and remedies work for each violation and each kind of id."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from msgspec import Struct

from evsched.diagnostics import audit
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.finding import Finding
from evsched.store.store import Store
from evsched.transport.call import text
from evsched.transport.senders import BatchingSender
from tests.scripts.conftest import State

FAR = 4e9
MOMENT = "some time by Redis's clock"
PAYLOAD = '{"task":"t"}'
NAMES = {
    "valid": b"x1",
    "a brace": b"{x1",
    "not UTF-8": b"\xff\xfe1",
    "quotes and a newline": b"a \"'\\\nb",
    "too long": b"x" * 201,
    "over 1 MiB": b"x" * 1_048_577,
    "empty": b"",
}


class Planted(Struct):
    """A paused queue, in which nothing passes the gate, with a live worker `w`."""

    raw: Any
    root: bytes
    id: bytes

    def key(self, name: bytes) -> bytes:
        return self.root + name

    def record(self, **fields: object) -> None:
        self.raw.hset(self.key(b"job:" + self.id), mapping={"payload": PAYLOAD, **fields})

    def put(self, place: str, score: float = FAR) -> None:
        if place == "ready" or place.startswith("processing"):
            self.raw.rpush(self.key(place.encode()), self.id)
        else:
            self.raw.zadd(self.key(place.encode()), {self.id: score})


def orphan(at: Planted) -> None:
    at.record(due=5, group="g")


def unscheduled(at: Planted) -> None:
    at.record()


def no_record(place: str) -> Callable[[Planted], None]:
    def plant(at: Planted) -> None:
        at.put(place)
        if ":" in place and place.startswith("backlog"):
            at.raw.zadd(at.key(b"throttled"), {"g": "inf"})

    return plant


def no_record_in_all_places(at: Planted) -> None:
    for place in ("schedule", "backlog", "ready", "dead", "backlog:g"):
        no_record(place)(at)


def no_payload(at: Planted) -> None:
    at.put("schedule")
    at.raw.hset(at.key(b"job:" + at.id), mapping={"priority": 7})


def no_payload_and_expires(at: Planted) -> None:
    no_payload(at)
    at.raw.expire(at.key(b"job:" + at.id), 100)


def record_type(at: Planted) -> None:
    at.raw.set(at.key(b"job:" + at.id), "x")


def two_places(at: Planted) -> None:
    at.record(due=5)
    at.put("ready")
    at.put("backlog")


def parked(at: Planted) -> None:
    at.record(due=5, parked="nobody")
    at.put("backlog")


def parked_empty(at: Planted) -> None:
    at.record(due=5, parked="")
    at.put("ready")


def parked_alone(at: Planted) -> None:
    at.raw.hset(at.key(b"job:" + at.id), mapping={"parked": "nobody"})


def unparked(at: Planted) -> None:
    at.record(due=5)
    no_record("backlog:g")(at)


def stale_dead(at: Planted) -> None:
    at.record(due=5)
    at.put("backlog")
    at.put("dead")


def record_expires(at: Planted) -> None:
    at.record()
    at.raw.expire(at.key(b"job:" + at.id), 100)
    at.put("schedule")


def no_ttl(at: Planted) -> None:
    at.record(finished=5, outcome="done")


def stuck(at: Planted) -> None:
    """The occurrence's id begins with the name of its recurrence, so the kind of id is that of the name."""
    name, at.id = at.id, at.id + b"@6"
    at.raw.hset(at.key(b"job:" + at.id), mapping={"payload": PAYLOAD, "planned": 6, "recurrence": name})
    at.raw.hset(at.key(b"recurrence:" + name), mapping={"waiting": at.id})
    at.put("schedule", float("inf"))


def in_flight(at: Planted) -> None:
    at.raw.hset(at.key(b"limits"), mapping={"concurrency": 5})
    at.raw.hset(at.key(b"in_flight"), mapping={"*": 1, "#": 1})
    at.raw.hset(at.key(b"in_flight"), mapping={at.id: ""})


def stray(at: Planted) -> None:
    at.record(due=5, worker="gone")
    at.put("processing:gone")


# Violations of groups and keys: the kind of id is that of the group, or of the end of the key.


def stranded(at: Planted) -> None:
    at.raw.hset(at.key(b"job:waits"), mapping={"payload": PAYLOAD, "due": 5, "parked": at.id})
    at.raw.zadd(at.key(b"backlog:" + at.id), {"waits": 1})


def throttled(at: Planted) -> None:
    at.raw.zadd(at.key(b"throttled"), {at.id: "inf"})


def key_type(at: Planted) -> None:
    at.raw.set(at.key(b"reply:" + at.id), "x")


def past_type(name: str, kind: str) -> Callable[[Planted], None]:
    def plant(at: Planted) -> None:
        at.raw.rpush(at.key(name.encode()), f"not a {kind}")

    return plant


def place_type(at: Planted) -> None:
    at.raw.rpush(at.key(b"dead"), at.id)


PLANTS: dict[str, tuple[str, Callable[[Planted], None]]] = {
    "orphan": ("orphan", orphan),
    "unscheduled": ("unscheduled", unscheduled),
    **{f"no-record in {place}": ("no-record", no_record(place)) for place in ("schedule", "backlog", "ready")},
    "no-record in a group's backlog": ("no-record", no_record("backlog:g")),
    "no-record in a worker's list": ("no-record", no_record("processing:w")),
    "no-record in all places": ("no-record", no_record_in_all_places),
    "no payload": ("no-record", no_payload),
    "no payload and an expiry": ("no-record", no_payload_and_expires),
    "an expiry and no payload": ("record-expires", no_payload_and_expires),
    "record-type": ("record-type", record_type),
    "two-places": ("two-places", two_places),
    "parked": ("parked", parked),
    "an empty `parked`": ("parked", parked_empty),
    "a record of `parked` alone": ("parked", parked_alone),
    "unparked": ("unparked", unparked),
    "dead-without-record": ("dead-without-record", no_record("dead")),
    "stale-dead": ("stale-dead", stale_dead),
    "record-expires": ("record-expires", record_expires),
    "no-ttl": ("no-ttl", no_ttl),
    "stuck": ("stuck", stuck),
    "in_flight": ("in_flight", in_flight),
    "stray": ("stray", stray),
    "stranded": ("stranded", stranded),
    "throttled": ("throttled", throttled),
    "key-type": ("key-type", key_type),
    **{
        f"key-type of {name}": ("key-type", past_type(name, kind))
        for name, kind in (("history", "stream"), ("hour:5", "hash"), ("audit", "stream"), ("ends", "stream"))
    },
    "place-type": ("place-type", place_type),
}
KEEPS_ITS_CODE = {"record-type", "dead-without-record", "in_flight", "stray", "key-type", "place-type"} | {
    "stranded",
    "throttled",
}
BY_HAND = {"unscheduled", "record-type", "two-places", "no-ttl", "key-type", "place-type"}


@pytest.fixture(params=NAMES)
def at(request: pytest.FixtureRequest, raw: Any, store: Store) -> Planted:
    root = f"evsched:{{{store.queue}}}:".encode()
    raw.hset(root + b"limits", mapping={"paused": 5})
    raw.zadd(root + b"leases", {"w": FAR})
    return Planted(raw, root, NAMES[request.param])


def is_valid(job_id: bytes) -> bool:
    return re.fullmatch(rb"[A-Za-z0-9._:@-]{1,200}", job_id) is not None


def kept_as(job_id: bytes) -> str:
    """Return the id under which a job is kept whose id is not valid."""
    whole = job_id if len(job_id) <= 1_048_576 else str(len(job_id)).encode() + job_id[:4096] + job_id[-4096:]
    return "bad-" + hashlib.sha1(whole, usedforsecurity=False).hexdigest()


def remove(state: dict[str, Any], job_id: str, *places: str) -> None:
    """Remove an id from places; a place that is empty is gone, and so is a group of which no job waits."""
    for place in places:
        held = state.get(place)
        if held is not None and job_id in held:
            held.remove(job_id) if isinstance(held, list) else held.pop(job_id)
            if not held:
                del state[place]
    if "backlog:g" not in state:
        state.pop("throttled", None)


def buried(before: dict[str, Any], job_id: bytes, kept: str, reason: str) -> dict[str, Any]:
    """Return the state in which the job is in the dead-letter set alone, as `kept`, with all fields of its record."""
    after, name = deepcopy(before), text(job_id)
    places = ["backlog", "backlog:g", "ready", "dead"]
    remove(after, name, *places, *([] if job_id.startswith(b"{") else ["schedule"]))
    fields = after.pop(f"job:{name}", {})
    fields.pop("parked", None)
    ended = {"outcome": "dead", "reason": reason, "finished": MOMENT}
    member = {} if is_valid(job_id) else {"member": text(job_id[:1024])}
    after.setdefault("dead", {})[kept] = MOMENT
    return {**after, f"job:{kept}": fields | ended | member}


def expected(before: dict[str, Any], job_id: bytes, code: str, finding: Finding) -> dict[str, Any]:
    """Return the state after the repair."""
    after, name = deepcopy(before), text(job_id)
    if finding.check == "bad-id":
        rule = "the id is not 1 to 200 of A-Z a-z 0-9 . _ : @ -: schedule it again under such an id"
        return buried(before, job_id, kept_as(job_id), rule)
    if code == "no-record" or (finding.check == "record-expires" and "payload" not in after[f"job:{name}"]):
        reason = "it had no payload: HSET one into its record and revive it, or drop it"
        return buried(before, job_id, name, reason)
    if code == "orphan":
        after["schedule"] = {name: 5.0}
    elif code == "parked":
        del after[f"job:{name}"]["parked"]
        if not after[f"job:{name}"]:
            del after[f"job:{name}"]
    elif code == "unparked":
        after[f"job:{name}"]["parked"] = "g"
    elif code in ("dead-without-record", "stale-dead"):
        remove(after, name, "dead")
    elif code == "stuck":
        after["schedule"][name] = 6.0
    elif code == "in_flight":
        after["in_flight"] = {"*": "0"}
    elif code == "stray":
        after["leases"]["gone"] = MOMENT
    elif code == "throttled":
        del after["throttled"]
    elif code == "stranded":
        if is_group(job_id):
            after["throttled"] = {name: 0.0}
        else:
            after["backlog"] = after.pop(f"backlog:{name}")
            after["job:waits"].pop("parked")
    return after


def is_group(name: bytes) -> bool:
    """Return whether a record may name this group."""
    return 0 < len(name) <= 200 and b"}" not in name


def without_times(state: dict[str, Any], job_id: str) -> dict[str, Any]:
    """Replace the times that a repair takes from Redis's clock."""
    state = deepcopy(state)
    for place, member in (("dead", job_id), (f"job:{job_id}", "finished"), ("leases", "gone")):
        if member in state.get(place, {}):
            assert 1e9 < float(state[place][member]) < FAR
            state[place][member] = MOMENT
    return state


def by_hand(at: Planted, store: Store, finding: Finding) -> list[bytes]:
    """Return the command that a remedy names, as redis-cli reads it."""
    assert finding.repaired is False
    words = re.search(
        r"""\b(DEL|EXPIRE|LREM|HSET) ("[^"]*"|\S+?)(?=[; ]|$)( payload| \d+)?( "[^"]*"| [^,]+)?""", finding.mend
    )
    assert words, finding.mend
    found = [word.strip().replace("WORKER", "w") for word in words.groups(default="") if word]
    raw = [
        word[1:-1].encode().decode("unicode_escape").encode("latin-1") if word.startswith('"') else word.encode()
        for word in found
    ]
    return {b"DEL": raw[:2], b"EXPIRE": raw[:3], b"LREM": raw[:4], b"HSET": [*raw[:3], PAYLOAD.encode()]}[raw[0]]


def test_every_violation_is_planted() -> None:
    others = {"bad-id", "uncounted", "more", "refused", "stuck-move"}  # seen as the first; not repaired, and of no id
    assert {code for code, _ in PLANTS.values()} | others == set(audit.CODES)


def _with_each_id() -> list[Any]:
    """Return each id with each violation. `make test` has all violations with one id that is not valid."""
    always = {
        name: [*PLANTS] if name in ("valid", "not UTF-8") else ["orphan", "no-record in schedule"] for name in NAMES
    }
    return [
        pytest.param(name, planted, marks=[] if planted in always[name] else pytest.mark.extra)
        for name in NAMES
        for planted in PLANTS
    ]


@pytest.mark.parametrize(("at", "planted"), _with_each_id(), indirect=["at"])
async def test_violation_ends_by_its_repair_or_its_remedy(
    at: Planted, store: Store, sender: BatchingSender, state: State, planted: str
) -> None:
    code, plant = PLANTS[planted]

    async def audit(*, repair: bool = False) -> list[Finding]:
        return await Audit(sender, [store.queue], pause=0.0).run(repair=repair)

    plant(at)
    before = state()
    first = await audit()
    assert state() == before
    misnamed = code not in KEEPS_ITS_CODE and not is_valid(at.id)
    check = "bad-id" if misnamed else code
    if planted == "no-record in schedule" and at.id.startswith(b"{"):
        assert first == []  # an inline job that is not due
        return
    (finding,) = [finding for finding in first if finding.check == check]
    repaired = await audit(repair=True)
    held = planted == "no-record in a worker's list"
    assert {one.check: one.repaired for one in repaired}[check] is not (held or (code in BY_HAND and not misnamed))
    if finding in repaired:  # it was not repaired
        assert state() == before
        if code == "two-places":
            assert f"evsched cancel {text(at.id)} " in finding.mend
            await sender.send(store.cancel(text(at.id)))
        else:
            command = by_hand(at, store, finding)
            at.raw.execute_command(*command)
        assert finding.where not in {one.where for one in await audit(repair=True) if not one.repaired}
    else:
        kept = kept_as(at.id) if misnamed else text(at.id)
        assert without_times(state(), kept) == expected(before, at.id, code, finding)
        assert at.raw.ttl(at.key(f"job:{kept}".encode())) in (-1, -2)
        # A worker holds the job of a stray list still, whatever its id.
        assert {one.check for one in await audit()} <= ({"bad-id"} if code == "stray" else set[str]())
    assert check not in {one.check for one in await audit()}


@pytest.mark.parametrize("existing", [1, 99])
async def test_a_job_that_has_the_id_already_is_kept(
    at: Planted, store: Store, sender: BatchingSender, state: State, existing: int
) -> None:
    occupy(at, existing)
    at.record(due=5)
    at.put("backlog")
    before = state()
    found = await Audit(sender, [store.queue], pause=0.0).run(repair=True)
    if is_valid(at.id):
        assert found == []
        return
    assert [(finding.check, finding.repaired) for finding in found] == [("bad-id", True)]
    kept = f"{kept_as(at.id)}-{existing + 1}"
    rule = "the id is not 1 to 200 of A-Z a-z 0-9 . _ : @ -: schedule it again under such an id"
    assert without_times(state(), kept) == buried(before, at.id, kept, rule)
    assert await Audit(sender, [store.queue], pause=0.0).run() == []


async def test_an_id_of_which_too_many_jobs_are_kept_is_repaired_by_hand(
    at: Planted, store: Store, sender: BatchingSender, state: State
) -> None:
    occupy(at, 100)
    at.record(due=5)
    at.put("backlog")
    before = state()
    found = await Audit(sender, [store.queue], pause=0.0).run(repair=True)
    assert state() == before
    if is_valid(at.id):
        assert found == []
        return
    (finding,) = found
    assert (finding.check, finding.repaired) == ("bad-id", False)
    assert "RENAME" in finding.mend
    at.raw.rename(at.key(b"job:" + at.id), at.key(b"job:good"))
    at.raw.zadd(at.key(b"schedule"), {"good": 0})
    (finding,) = await Audit(sender, [store.queue], pause=0.0).run(repair=True)
    assert (finding.check, finding.repaired) == ("bad-id", True)
    after = deepcopy(before)
    del after["backlog"]
    after["job:good"] = after.pop(f"job:{text(at.id)}")
    after["schedule"]["good"] = 0.0
    assert state() == after
    assert await Audit(sender, [store.queue], pause=0.0).run() == []


def occupy(at: Planted, count: int) -> None:
    """Schedule jobs under the first ids under which a job is kept whose id is not valid."""
    first = kept_as(at.id)
    for kept in [first, *(f"{first}-{n}" for n in range(2, count + 1))]:
        at.raw.hset(at.key(f"job:{kept}".encode()), mapping={"payload": "another"})
        at.raw.zadd(at.key(b"schedule"), {kept: FAR})


@pytest.mark.parametrize("name", ["a brace", "empty", "over 1 MiB"])
async def test_a_lost_job_with_an_id_that_is_not_valid_can_be_revived(
    raw: Any, store: Store, sender: BatchingSender, name: str
) -> None:
    job_id = NAMES[name]
    at = Planted(raw, f"evsched:{{{store.queue}}}:".encode(), job_id)
    at.record(due=5, attempt=1)
    await Audit(sender, [store.queue], pause=0.0).run(repair=True)
    assert await sender.send(store.revive([kept_as(job_id)])) == [kept_as(job_id)]
    await sender.send(store.dispatch(limit=9, cap=1000))
    (job,) = (await sender.send(store.start("w", (), hold=9, lease=60))).jobs
    assert (job.id, job.attempt, job.payload) == (kept_as(job_id), 1, PAYLOAD.encode())


async def test_id_in_the_backlog_of_another_group_is_not_lost(raw: Any, store: Store, sender: BatchingSender) -> None:
    at = Planted(raw, f"evsched:{{{store.queue}}}:".encode(), b"x1")
    raw.hset(at.key(b"limits"), mapping={"paused": 5})
    unparked(at)
    assert [finding.check for finding in await Audit(sender, [store.queue], pause=0.0).run()] == ["unparked"]
