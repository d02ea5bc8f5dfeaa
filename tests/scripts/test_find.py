"""Filters: which jobs `find` finds, and that a verb changes only jobs that still match."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evsched.client.sweep import Filter
from evsched.errors import StoreRefused
from evsched.jobs.job import Buried, Deferred
from evsched.jobs.redaction import REDACTED, redacted
from evsched.store.client_calls import New
from evsched.store.operator_calls import condition
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

PAYLOAD = b'{"task":"pay","args":[1]}'
OTHER = b'{"task":"mail","args":["pay"]}'
PAY = condition(task="pay")
HOUR = 3600.0


@pytest.fixture
def root(queue: str) -> str:
    return f"evsched:{{{queue}}}:"


def found(send: Send, store: Store, matching: bytes, place: str = "schedule") -> set[str]:
    """Return the ids that match, read slice by slice."""
    cursor, left, ids = "0", list[bytes](), set[str]()
    while True:
        part = send(store.find(place, matching, cursor, limit=50, ids=left))
        cursor, left = part.cursor, part.left
        ids |= {match.id for match in part.found}
        if cursor == "0" and not left:
            return ids


def bury(send: Send, store: Store, job: str, reason: str, now: float, error: str = "", location: str = "") -> None:
    """Run a job that is due, and give it up."""
    send(store.at(now).dispatch(limit=9, cap=999))
    runs = send(store.at(now).start("w", (), hold=9, lease=15)).jobs
    assert [run.id for run in runs] == [job]
    assert send(store.at(now).bury("w", [(runs[0], Buried(reason, False, error=error, location=location))])) == []


def test_conditions_combine_with_and(send: Send, store: Store) -> None:
    jobs = [(name, payload, group) for name, payload in (("p", PAYLOAD), ("m", OTHER)) for group in ("a", "b")]
    send(store.enqueue([New(f"{name}{group}", payload, group=group, due=NOW) for name, payload, group in jobs]))
    assert found(send, store, condition()) == {"pa", "pb", "ma", "mb"}
    assert found(send, store, PAY) == {"pa", "pb"}
    assert found(send, store, condition(group="a")) == {"pa", "ma"}
    assert found(send, store, condition(task="pay", group="a")) == {"pa"}
    assert found(send, store, condition(task="pa")) == set()


@pytest.mark.parametrize("payload", [b'{"task":"p\\u0061y"}', b'{"args":["x"], "task" : "pay"}'])
def test_a_task_is_found_however_its_json_is_written(send: Send, store: Store, payload: bytes) -> None:
    send(store.enqueue([New("a", payload, due=NOW)]))
    assert found(send, store, PAY) == {"a"}


@pytest.mark.parametrize("payload", [b"pay", b'["pay"]', b'{"task":["pay"]}', b'{"args":["pay"]}', b"pay" * 500_000])
def test_a_payload_that_cannot_be_read_has_no_task(send: Send, store: Store, payload: bytes) -> None:
    send(store.enqueue([New("a", payload, due=NOW)]))
    assert found(send, store, PAY) == set()


@pytest.mark.parametrize("inline", [False, True])
def test_jobs_are_found_by_all_of_their_tags(send: Send, store: Store, raw: Any, root: str, inline: bool) -> None:
    payloads = {
        "both": '{"task":"t","tags":["patient:42","vip"]}',
        "one": '{"task":"t","tags":["patient:42"]}',
        "escaped": '{"task":"t","tags":["patient:4\\u0032","vip"]}',
        "longer": '{"task":"t","tags":["patient:421"]}',
        "elsewhere": '{"task":"t","args":["patient:42"],"meta":{"tags":["patient:42"]}}',
    }
    ids = {name: payload if inline else name for name, payload in payloads.items()}
    if inline:
        raw.zadd(f"{root}schedule", dict.fromkeys(payloads.values(), NOW))
    else:
        send(store.enqueue([New(name, payload.encode(), due=NOW) for name, payload in payloads.items()]))
    assert found(send, store, condition(tags=["patient:42"])) == {ids["both"], ids["one"], ids["escaped"]}
    assert found(send, store, condition(tags=["vip", "patient:42"])) == {ids["both"], ids["escaped"]}
    tags = {match.id: match.tags for match in send(store.find("schedule", condition(task="t"))).found}
    assert tags[ids["escaped"]] == ("patient:42", "vip")
    assert tags[ids["elsewhere"]] == ()


def test_tags_that_are_not_valid_are_left_out(send: Send, store: Store) -> None:
    hostile = ["a\x00", "\u202egpj", {"a": ["b"]}, "x" * 65, "a,b", ["a"], None, 5, "", "a b", "x" * 250_000]
    payloads: list[Any] = [{"task": "t", "tags": [tag, "good"]} for tag in hostile]
    payloads += [{"task": "t", "tags": tags} for tags in ("a", {"a": "b"}, 5, ["bad tag"] * 20_000)]
    send(store.enqueue([New(f"j{n}", json.dumps(one).encode(), due=NOW) for n, one in enumerate(payloads)]))
    assert found(send, store, condition(tags=["good"])) == {f"j{n}" for n in range(len(hostile))}
    assert found(send, store, condition(task="t")) == {f"j{n}" for n in range(len(payloads))}
    for n in range(len(payloads)):
        (match,) = send(store.find("schedule", condition(), ids=[f"j{n}"])).found
        status = send(store.look(f"j{n}"))
        assert status is not None
        assert match.tags == status.tags == (("good",) if n < len(hostile) else ())


ARGUMENTS: dict[str, Any] = {
    "named": {"kwargs": {"patient": 42, "city": "Köln"}},
    "text": {"kwargs": {"patient": "42"}},
    "listed": {"args": [42, {"a": [1, None]}]},
    "other": {"args": [7, 42], "kwargs": {"doctor": 42}, "meta": {"patient": 42}},
    "none": {"kwargs": {"patient": None, "flag": False}},
    "empty": {},
}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "jobs"),
    [
        ("patient", 42, {"named"}),
        ("patient", 42.0, {"named"}),
        ("patient", "42", {"text"}),
        ("patient", None, {"none"}),
        ("patient", {}, set[str]()),
        ("flag", False, {"none"}),
        ("flag", None, set[str]()),
        ("city", "Köln", {"named"}),
        ("city", "K", set[str]()),
        ("1", 42, {"listed"}),
        ("2", 42, {"other"}),
        ("2", {"a": [1, None]}, {"listed"}),
        ("2", {"a": [1]}, set[str]()),
        ("2", {"a": [1, None, 2]}, set[str]()),
        ("3", None, set[str]()),
    ],
)
def test_jobs_are_found_by_their_arguments(
    send: Send, store: Store, raw: Any, root: str, name: str, value: Any, jobs: set[str], inline: bool
) -> None:
    payloads = {job: json.dumps({"task": "t", **more}) for job, more in ARGUMENTS.items()}
    matching = Filter(arguments={name: value}).condition(NOW)
    if inline:
        raw.zadd(f"{root}schedule", dict.fromkeys(payloads.values(), NOW))
        assert found(send, store, matching) == {payloads[job] for job in jobs}
    else:
        send(store.enqueue([New(job, payload.encode(), due=NOW) for job, payload in payloads.items()]))
        assert found(send, store, matching) == jobs
        assert send(store.cancel_matching(list(payloads), matching)) == len(jobs)


def test_argument_passed_by_position_is_found_by_the_name_of_its_parameter(send: Send, store: Store) -> None:
    payloads = {"a": b'{"task":"t","args":[1,42]}', "b": b'{"task":"other","args":[1,42]}', "c": b'{"args":[1,42]}'}
    send(store.enqueue([New(job, payload, due=NOW) for job, payload in payloads.items()]))
    matching = Filter(arguments={"patient": 42})
    assert found(send, store, matching.condition(NOW)) == set()
    assert found(send, store, matching.condition(NOW, {"t": ("at", "patient"), "u": ("patient",)})) == {"a"}


@pytest.mark.parametrize(
    "payload",
    [
        {"args": {"1": 42}, "kwargs": [42]},
        {"args": "42", "kwargs": "patient"},
        {"args": 42, "kwargs": 42},
        {"args": [[42]] * 9, "kwargs": {"patient": [42]}},
        {"args": ["\u202e42\x00"], "kwargs": {"patient": "\u202e42\x00" * 40_000}},
        {"task": ["t"], "args": None, "kwargs": None},
    ],
    ids=lambda payload: json.dumps(payload)[:40],
)
def test_hostile_arguments_match_nothing(send: Send, store: Store, payload: Any) -> None:
    deep = b'{"task":"t","args":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    send(store.enqueue([New("a", json.dumps({"task": "t", **payload}).encode(), due=NOW), New("b", deep, due=NOW)]))
    for name in ("1", "patient"):
        assert found(send, store, Filter(arguments={name: 42}).condition(NOW, {"t": ("patient",)})) == set()


@pytest.mark.parametrize("redact", [["card", "1"], ["1", "card"], "card", {"a": "b"}, [["card"], 1]])
def test_redacted_arguments_cannot_be_searched_for(send: Send, store: Store, redact: Any) -> None:
    job = {"task": "t", "args": [42], "redact": redact}
    by_name = {"task": "t", "kwargs": {"card": 42}, "redact": redact}
    jobs = {"a": job, "b": by_name, "c": {**job, "redact": []}, "d": {**by_name, "redact": None}}
    send(store.enqueue([New(name, json.dumps(one).encode(), due=NOW) for name, one in jobs.items()]))
    matching = Filter(arguments={"card": 42}).condition(NOW, {"t": ("card",)})
    assert found(send, store, matching) == {"c", "d"}
    assert found(send, store, Filter(arguments={"1": 42}).condition(NOW)) == {"c"}


def test_arguments_that_workers_declare_redacted_cannot_be_searched_for(
    send: Send, store: Store, raw: Any, root: str
) -> None:
    jobs = {
        "a": {"task": "t", "args": [42]},
        "b": {"task": "t", "kwargs": {"card": 42}},
        "c": {"task": "u", "args": [42]},
    }
    send(store.enqueue([New(name, json.dumps(one).encode(), due=NOW) for name, one in jobs.items()]))
    by_name = Filter(arguments={"card": 42}).condition(NOW, {"t": ("card",), "u": ("card",)})
    assert found(send, store, by_name) == {"a", "b", "c"}
    send(store.set_redactions({"t": '["card","1"]', "u": '["other"]', "v": "not a list"}))
    assert send(store.redactions()) == {"t": ("card", "1"), "u": ("other",)}
    assert found(send, store, by_name) == {"c"}
    assert found(send, store, Filter(arguments={"1": 42}).condition(NOW)) == {"c"}
    send(store.unset_redactions(["t"]))
    assert found(send, store, by_name) == {"a", "b", "c"}
    raw.set(f"{root}redactions", "x")
    assert found(send, store, by_name) == {"a", "b", "c"}
    status = send(store.look("a"))
    assert status is not None
    assert status.payload["args"] == [42]


@pytest.mark.parametrize(
    ("redact", "found_by"),
    [
        (["card"], {"order"}),
        (["order"], {"2"}),
        (["krad"], {"order"}),
        (["1", "krad"], {"order"}),
        (["3"], {"2"}),
        (["02"], set[str]()),
        (["2", "order"], set[str]()),
    ],
)
def test_argument_that_redact_may_mean_cannot_be_searched_for(
    send: Send, store: Store, redact: list[str], found_by: set[str]
) -> None:
    """The payload passes `card` by position, without the name, and `order` by name."""
    payload = {"task": "t", "args": [0, 42], "kwargs": {"order": 42}, "redact": redact}
    send(store.enqueue([New("a", json.dumps(payload).encode(), due=NOW)]))
    matched = {
        name for name in ("2", "order") if found(send, store, Filter(arguments={name: 42}).condition(NOW)) == {"a"}
    }
    assert matched == found_by
    assert redacted(payload)["args"][1] == (42 if "2" in found_by else REDACTED)
    assert redacted(payload)["kwargs"]["order"] == (42 if "order" in found_by else REDACTED)


def test_finished_jobs_are_found_among_all_keys(send: Send, store: Store, queue: str, raw: Any, root: str) -> None:
    for n in range(400):
        payload = json.dumps({"task": "t", "args": [n % 2]})
        raw.hset(f"{root}job:f{n}", mapping={"payload": payload, "finished": f"{NOW + n}"})
    raw.hset(f"evsched:{{{queue}x}}:job:f400", mapping={"payload": '{"task":"t","args":[1]}', "finished": "1"})
    for place in ("schedule", "dead"):
        raw.hset(f"{root}job:{place}", mapping={"payload": '{"task":"t","args":[1]}', "finished": "1"})
        raw.zadd(f"{root}{place}", {place: NOW})
    raw.hset(f"{root}job:running", mapping={"payload": '{"task":"t","args":[1]}', "finished": "1", "worker": "w"})
    raw.rpush(f"{root}processing:w", "running")
    raw.set(f"{root}job:text", "no hash")
    odd = {f"f{n}" for n in range(1, 400, 2)}
    assert found(send, store, Filter(arguments={"1": 1}).condition(NOW), "finished") == odd
    (match,) = send(store.find("finished", condition(), ids=["f7", "running"])).found
    assert (match.place, match.id, match.at, match.task) == ("finished", "f7", NOW + 7, "t")
    assert found(send, store, condition(after=NOW + 398), "finished") == {"f398", "f399"}
    assert found(send, store, condition(), "processing:w") == {"running"}


def test_verb_changes_only_jobs_with_the_tag(send: Send, store: Store) -> None:
    tagged = b'{"task":"t","tags":["vip"]}'
    send(store.enqueue([New("a", tagged, due=NOW), New("b", b'{"task":"t"}', due=NOW)]))
    assert send(store.cancel_matching(["a", "b"], condition(tags=["vip"]))) == 1
    assert found(send, store, condition()) == {"b"}


def test_match_has_the_known_fields_of_the_job(send: Send, queue: str) -> None:
    store = Store(queue, by="billing")
    send(store.at(NOW).enqueue([New("a", PAYLOAD, group="g", due=NOW + 9.5)]))
    (match,) = send(store.find("schedule", condition())).found
    assert (match.place, match.id, match.at, match.task, match.group) == ("schedule", "a", NOW + 9.5, "pay", "g")
    assert (match.created, match.by, match.reason, match.error) == (NOW, "billing", None, None)


def test_an_inline_job_is_found_by_its_member(send: Send, store: Store, raw: Any, root: str) -> None:
    member = '{"task":"pay","group":"g"}'
    raw.zadd(f"{root}schedule", {member: NOW, '{"task":"mail"}': NOW, "{no json": NOW})
    assert found(send, store, condition(task="pay", group="g")) == {member}


def test_age_counts_from_the_creation_or_else_from_the_due(send: Send, store: Store, raw: Any, root: str) -> None:
    send(store.at(NOW - HOUR).enqueue([New("old", PAYLOAD, due=NOW + HOUR)]))
    send(store.at(NOW).enqueue([New("new", PAYLOAD, due=NOW - HOUR)]))
    for job, due in (("raw-old", NOW - HOUR), ("raw-new", NOW + HOUR), ("raw-now", 0)):
        raw.hset(f"{root}job:{job}", "payload", PAYLOAD)
        raw.zadd(f"{root}schedule", {job: due})
    assert found(send, store, condition(before=NOW - 1)) == {"old", "raw-old"}
    assert found(send, store, condition(before=NOW)) == {"old", "raw-old", "new"}


def test_the_age_of_a_dead_job_counts_from_its_death(send: Send, store: Store) -> None:
    send(store.at(NOW - HOUR).enqueue([New("a", PAYLOAD, due=NOW)]))
    bury(send, store, "a", "x", NOW)
    assert found(send, store, condition(before=NOW - 1), "dead") == set()
    assert found(send, store, condition(before=NOW), "dead") == {"a"}


def test_the_age_of_an_ended_job_is_not_that_of_the_next_of_its_id(
    send: Send, store: Store, raw: Any, root: str
) -> None:
    send(store.at(NOW - HOUR).enqueue([New("a", PAYLOAD, due=NOW)]))
    bury(send, store, "a", "x", NOW)
    raw.zadd(f"{root}schedule", {"a": NOW + HOUR})
    assert found(send, store, condition(before=NOW)) == set()
    assert found(send, store, condition(reason="x")) == set()
    assert found(send, store, PAY) == {"a"}


def test_reason_matches_a_case_insensitive_literal_substring(send: Send, store: Store) -> None:
    send(store.enqueue([New("a", PAYLOAD, due=NOW)]))
    bury(send, store, "a", "ValueError: 100% of \u00c4", NOW)
    for part, there in (("valueerror", 1), ("VALUE", 1), ("100% OF", 1), ("value.*", 0), ("\u00c4", 1), ("\u00e4", 0)):
        assert found(send, store, condition(reason=part), "dead") == ({"a"} if there else set()), part


def test_error_matches_only_the_class_of_the_exception(send: Send, store: Store) -> None:
    classes = {"a": "ConnectionError", "b": "requests.exceptions.ConnectionError", "c": "MyConnectionError", "d": ""}
    for job, name in classes.items():
        send(store.at(NOW).enqueue([New(job, PAYLOAD, due=NOW)]))
        bury(send, store, job, "ConnectionError: x", NOW, name)
    wanted = {
        "ConnectionError": {"a", "b"},
        "requests.exceptions.ConnectionError": {"b"},
        "exceptions.ConnectionError": {"b"},
        "connectionerror": set[str](),
        "Error": set[str](),
        ".*Error": set[str](),
    }
    for name, ids in wanted.items():
        assert found(send, store, condition(error=name), "dead") == ids, name
    (match,) = send(store.find("dead", condition(error=classes["b"]))).found
    assert match.error == classes["b"]
    assert send(store.drop_matching(list(classes), condition(error="MyConnectionError"))) == 1
    assert found(send, store, condition(), "dead") == {"a", "b", "d"}


def test_the_error_of_an_ended_job_is_not_that_of_the_next_of_its_id(
    send: Send, store: Store, raw: Any, root: str
) -> None:
    send(store.at(NOW).enqueue([New("a", PAYLOAD, due=NOW)]))
    bury(send, store, "a", "x", NOW, "E")
    raw.zadd(f"{root}schedule", {"a": NOW + HOUR})
    assert found(send, store, condition(error="E")) == set()
    assert found(send, store, condition(error="E"), "dead") == {"a"}


def test_a_span_of_time_includes_its_ends(send: Send, store: Store, raw: Any, root: str) -> None:
    for n in range(4):
        send(store.at(NOW + n).enqueue([New(f"w{n}", PAYLOAD, due=NOW + HOUR)]))
        raw.hset(f"{root}job:d{n}", "payload", PAYLOAD)
        raw.zadd(f"{root}dead", {f"d{n}": NOW + n})
    span = condition(after=NOW + 1, before=NOW + 2)
    assert found(send, store, span) == {"w1", "w2"}
    assert found(send, store, span, "dead") == {"d1", "d2"}
    assert found(send, store, condition(after=NOW + 3), "dead") == {"d3"}


@pytest.mark.parametrize("place", ["backlog", "backlog:g", "ready"])
def test_due_jobs_are_found_where_they_wait(send: Send, store: Store, place: str) -> None:
    limits: dict[str, float | None] = {"concurrency:g": 1} if place == "backlog:g" else {}
    if place == "backlog":
        limits = {"concurrency": 1}
    send(store.limit(limits))
    send(store.at(NOW).enqueue([New(f"j{n}", PAYLOAD, group="g", due=NOW) for n in range(3)]))
    send(store.at(NOW).dispatch(limit=9, cap=99))
    assert found(send, store, PAY, place) == ({"j0", "j1", "j2"} if place == "ready" else {"j1", "j2"})
    assert found(send, store, condition(before=NOW - 1), place) == set()


def test_a_record_of_another_type_matches_nothing(send: Send, store: Store, raw: Any, root: str) -> None:
    raw.set(f"{root}job:a", "x")
    raw.zadd(f"{root}schedule", {"a": 5.0})
    assert found(send, store, condition(before=NOW)) == set()
    assert send(store.cancel_matching(["a"], condition(before=NOW))) == 0


@pytest.mark.extra
@pytest.mark.parametrize("place", ["schedule", "dead"])
def test_lasting_jobs_are_found_while_others_come_and_go(
    send: Send, store: Store, raw: Any, root: str, place: str
) -> None:
    """Also while Redis makes the table of the sorted set larger and smaller."""
    stay, go = [f"s{n}" for n in range(500)], [f"g{n}" for n in range(3000)]
    for job in stay + go:
        raw.hset(f"{root}job:{job}", "payload", PAYLOAD)
    raw.zadd(f"{root}{place}", dict.fromkeys(stay + go, NOW))
    cursor, ids, turn = "0", set[str](), 0
    while True:
        part = send(store.find(place, PAY, cursor, limit=50))
        ids |= {match.id for match in part.found}
        cursor, turn = part.cursor, turn + 1
        raw.zrem(f"{root}{place}", *go[turn * 100 : turn * 100 + 100], "none")
        raw.zadd(f"{root}{place}", {f"n{turn}-{n}": NOW for n in range(20)})
        if cursor == "0":
            break
    assert ids >= set(stay)


@pytest.mark.parametrize(("fetched", "returned"), [(0, 0), (1, 0), (10, 0), (0, 1), (0, 100), (3, 50)])
def test_lasting_ready_jobs_are_found_while_workers_fetch_and_return(
    send: Send, store: Store, raw: Any, root: str, fetched: int, returned: int
) -> None:
    jobs = [f"j{n:03}" for n in range(200)]
    for job in jobs:
        raw.hset(f"{root}job:{job}", "payload", PAYLOAD)
    raw.rpush(f"{root}ready", *jobs)
    cursor, ids = "0", set[str]()
    while True:
        part = send(store.find("ready", PAY, cursor, limit=30))
        ids |= {match.id for match in part.found}
        raw.lpop(f"{root}ready", fetched)
        raw.rpush(f"{root}ready", "late")
        if returned:
            raw.lpush(f"{root}ready", *["late"] * returned)
        cursor = part.cursor
        if cursor == "0":
            break
    assert ids >= {job.decode() for job in raw.lrange(f"{root}ready", 0, -1)} - {"late"}


def test_first_jobs_of_a_place_are_read_in_one_slice(send: Send, store: Store, raw: Any, root: str) -> None:
    for n in range(4):
        raw.hset(f"{root}job:j{n}", "payload", PAYLOAD)
        raw.zadd(f"{root}dead", {f"j{n}": NOW - n})
    part = send(store.find("dead", PAY, "first 2"))
    assert ([match.id for match in part.found], part.cursor, part.left) == (["j3", "j2"], "0", [])
    with pytest.raises(StoreRefused, match="the argument cursor is not one of this place"):
        send(store.find("ready", PAY, "first 2"))


def test_a_call_reads_a_bounded_number_of_bytes(send: Send, store: Store) -> None:
    long = b'{"task":"pay","args":["%s"]}' % (b"x" * 100_000)
    send(store.enqueue([New(f"j{n}", long, due=NOW) for n in range(9)]))
    part = send(store.find("schedule", PAY, limit=50))
    assert (len(part.found), len(part.left)) == (2, 7)
    assert found(send, store, PAY) == {f"j{n}" for n in range(9)}


# What the verbs change.


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
@pytest.mark.parametrize("place", ["schedule", "backlog", "ready"])
def test_verb_changes_only_jobs_that_still_match(send: Send, store: Store, state: State, verb: str, place: str) -> None:
    if place == "backlog":
        send(store.pause())
    payloads = {"a": PAYLOAD, "b": OTHER, "c": PAYLOAD}
    send(store.at(NOW).enqueue([New(job, payload, due=NOW) for job, payload in payloads.items()]))
    if place != "schedule":
        send(store.at(NOW).dispatch(limit=9, cap=99))
    before = state()
    if verb == "cancel":
        assert send(store.cancel_matching(["a", "b", "gone"], PAY)) == 1
        after = state()
        assert "job:a" not in after
        assert "a" not in after[place]
    else:
        assert send(store.reschedule_matching(["a", "b", "gone"], PAY, NOW + 60)) == 1
        after = state()
        assert after["schedule"].pop("a") == NOW + 60
        assert after["job:a"] == before["job:a"]
        assert "a" not in after.get(place, ()) or place == "schedule"
    for job in "bc":
        assert after[f"job:{job}"] == before[f"job:{job}"]
    assert [job for job in after[place] if job != "a"] == ["b", "c"]


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_job_that_a_worker_has_fetched_is_left_alone(
    send: Send, store: Store, state: State, raw: Any, root: str, verb: str, started: bool
) -> None:
    send(store.at(NOW).enqueue([New("a", PAYLOAD, due=NOW)]))
    send(store.at(NOW).dispatch(limit=9, cap=99))
    send(store.at(NOW).heartbeat("w", 15, fresh=True))
    raw.lmove(f"{root}ready", f"{root}processing:w", "LEFT", "RIGHT")
    if started:
        send(store.at(NOW).start("w", ["a"], hold=1, lease=15))
    before = state()
    call = store.cancel_matching(["a"], PAY) if verb == "cancel" else store.reschedule_matching(["a"], PAY, NOW + 9)
    assert send(call) == 0
    assert state() == before


@pytest.mark.parametrize("started", [True, False])
def test_cancelling_the_next_run_of_a_running_job_does_not_stop_its_run(
    send: Send, store: Store, state: State, raw: Any, root: str, started: bool
) -> None:
    send(store.at(NOW).enqueue([New("a", PAYLOAD, due=NOW)]))
    send(store.at(NOW).dispatch(limit=9, cap=99))
    send(store.at(NOW).heartbeat("w", 15, fresh=True))
    raw.lmove(f"{root}ready", f"{root}processing:w", "LEFT", "RIGHT")
    if started:
        send(store.at(NOW).start("w", ["a"], hold=1, lease=15))
    before = state()
    raw.zadd(f"{root}schedule", {"a": NOW + 60})
    assert send(store.at(NOW).cancel_matching(["a"], PAY)) == 1
    assert state() == before


def test_clients_waiting_for_a_cancelled_job_are_notified(
    send: Send, store: Store, state: State, raw: Any, root: str
) -> None:
    reply = b'{"task":"pay","reply":true}'
    inline = '{"task":"pay","reply":true,"id":"b"}'
    send(store.enqueue([New("a", reply, due=NOW)]))
    raw.zadd(f"{root}schedule", {inline: NOW})
    assert send(store.cancel_matching(["a", inline], PAY)) == 2
    after = state()
    assert after.keys() == {"reply:a", "reply:b"}
    assert [json.loads(after[f"reply:{job}"][0])["outcome"] for job in "ab"] == ["cancelled"] * 2


def test_cancelled_inline_job_without_a_waiting_client_leaves_nothing(
    send: Send, store: Store, state: State, raw: Any, root: str
) -> None:
    raw.zadd(f"{root}schedule", {'{"task":"pay"}': NOW})
    assert send(store.cancel_matching(['{"task":"pay"}'], PAY)) == 1
    assert state() == {}


def test_find_of_named_ids_leaves_out_those_in_other_places(send: Send, store: Store) -> None:
    send(store.enqueue([New("due", PAYLOAD, due=NOW)]))
    send(store.at(NOW).dispatch(limit=9, cap=999))
    send(store.enqueue([New("here", PAYLOAD, due=NOW)]))
    part = send(store.find("schedule", PAY, ids=[b"here", b"due", b"nowhere"]))
    assert [match.id for match in part.found] == ["here"]


def test_an_inline_job_is_rescheduled(send: Send, store: Store, state: State, raw: Any, root: str) -> None:
    inline = '{"task":"pay"}'
    raw.zadd(f"{root}schedule", {inline: NOW})
    assert send(store.reschedule_matching([inline], PAY, NOW + 9)) == 1
    assert state() == {"schedule": {inline: NOW + 9}}


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_a_dead_job_that_died_again_for_another_reason_is_left_alone(
    send: Send, store: Store, state: State, verb: str
) -> None:
    """Another operator revived it after it was found."""
    matching = condition(reason="ValueError")
    send(store.enqueue([New("a", PAYLOAD, due=NOW)]))
    bury(send, store, "a", "ValueError: x", NOW)
    assert found(send, store, matching, "dead") == {"a"}
    send(store.at(NOW).revive(["a"]))
    bury(send, store, "a", "TypeError: y", NOW + 1)
    before = state()
    assert send(getattr(store, f"{verb}_matching")(["a"], matching)) == 0
    assert state() == before


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_dead_jobs_that_match_are_changed_and_no_other(send: Send, store: Store, state: State, verb: str) -> None:
    for n, job in enumerate("abc"):
        send(store.enqueue([New(job, OTHER if job == "b" else PAYLOAD, due=NOW)]))
        bury(send, store, job, "x", NOW + n)
    before = state()
    assert send(getattr(store, f"{verb}_matching")(["b", "gone"], PAY)) == 0
    assert state() == before, "an empty list of ids means none, not the oldest"
    assert send(getattr(store, f"{verb}_matching")(["a", "b"], PAY)) == 1
    after = state()
    assert list(after["dead"]) == ["b", "c"]
    assert ("job:a" in after, "a" in after.get("schedule", {})) == (
        (True, True) if verb == "revive" else (False, False)
    )


def test_jobs_whose_last_run_raised_are_found_with_the_line(send: Send, store: Store) -> None:
    send(store.enqueue([New("raised", PAYLOAD, due=NOW)]))
    bury(send, store, "raised", "x", NOW, error="ValueError", location="/srv/pay.py:7 in pay")
    send(store.enqueue([New("expired", PAYLOAD, due=NOW)]))
    bury(send, store, "expired", "x", NOW)
    assert found(send, store, condition(), "dead") == {"raised", "expired"}
    assert found(send, store, condition(failed=True), "dead") == {"raised"}
    lines = {job.id: job.location for job in send(store.find("dead", condition())).found}
    assert lines == {"raised": "/srv/pay.py:7 in pay", "expired": None}


def test_jobs_of_an_unknown_task_are_found(send: Send, store: Store) -> None:
    send(store.at(NOW).enqueue([New("unknown", PAYLOAD, due=NOW), New("closed", PAYLOAD, due=NOW)]))
    send(store.at(NOW).dispatch(limit=9, cap=999))
    runs = {run.id: run for run in send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs}
    unknown = Deferred(NOW + 5, "unknown task 'pay'", cause="task", unknown_since=NOW)
    rows = [(runs["unknown"], unknown), (runs["closed"], Deferred(NOW + 5, "its window is closed"))]
    assert send(store.at(NOW).defer("w", rows)) == []
    assert found(send, store, condition()) == {"unknown", "closed"}
    assert found(send, store, condition(unknown=True)) == {"unknown"}
