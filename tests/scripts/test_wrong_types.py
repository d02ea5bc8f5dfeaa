"""A key of the wrong type: the verb is refused whole, and after the repair the same call does its work."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha1
from typing import Any

import pytest

from evsched.client.edit import digest_of
from evsched.errors import JobChanged, JobMissing, StoreRefused
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Forwarded, Message, Retried, Snoozed
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.batch_calls import PlanRow
from evsched.store.batch_pauses import Hold
from evsched.store.client_calls import Edit, New
from evsched.store.moves import Arrival, MovingBatch
from evsched.store.operator_calls import Violation, condition
from evsched.store.queue import Announced
from evsched.store.relay_calls import Report, RowJob
from evsched.store.reseal_calls import Kept
from evsched.store.run_ends import PutBack
from evsched.store.store import Store
from evsched.transport.call import Call, folder
from tests.scripts.conftest import NOW, Send, State

DONE = Done(b"1", 300.0, True)
FORWARDED = Forwarded(b"1", 300.0, True, message=Message("channel", "news", b"1"), otherwise=Retried(1.0, "x"))


Seeded = dict[str, FetchedJob]


def seed(send: Send, store: Store, raw: Any) -> FetchedJob:
    """Put a job into every place; return the run that worker "w" holds."""

    def run(job_id: str) -> FetchedJob:
        send(store.at(NOW).enqueue([New(job_id, b'{"task":"t","reply":true}', due=NOW)]))
        send(store.at(NOW).dispatch(limit=100, cap=1000))
        return send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs[0]

    send(store.at(NOW).bury("w", [(run("dead"), Buried("x", False))]))
    running = run("running")
    send(store.at(NOW).enqueue([New(f"r{n:02}", b'{"task":"t"}', due=NOW) for n in range(18)]))
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    send(store.at(NOW).enqueue([New("scheduled", b'{"task":"t"}', due=NOW)]))
    return running


@pytest.fixture
def seeded(send: Send, store: Store, raw: Any) -> Seeded:
    """A queue that has every kind of key, and jobs in every place."""
    due = b'{"task":"t","reply":true}'

    def put(*ids: str, **more: Any) -> None:
        send(store.at(NOW - 5).enqueue([New(job_id, due, due=NOW - 5, **more) for job_id in ids]))
        send(store.at(NOW).dispatch(limit=100, cap=1000))

    put("dead")
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=99)).jobs
    send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
    send(store.at(NOW).limit({"concurrency": 7, "rate": 1000, "concurrency:g": 1, "rate:g": 1, "weight:g": 2}))
    put("g0", "g1", "g2", group="g")
    put("running")
    jobs = send(store.at(NOW).start("w", ["running"], hold=2, lease=99)).jobs
    put("r1", "r2", "r3", "r4", "r5", "r6", "r7")
    send(store.ask("running"))
    send(store.at(NOW).start("v", (), hold=1, lease=99))
    send(store.declare(Declared(name="r", payload=b'{"task":"t"}', rule="@hourly")))
    send(store.recur("r", b"0", [Occurrence("r@1", NOW - 1, NOW - 1, None)], next_=NOW + 9))
    send(store.at(NOW).register("app", "content", given=1))
    send(store.declare(Declared(name="retired", payload=b'{"task":"t"}', rule="@hourly"), "app", 1))
    send(store.at(NOW).retire("retired", "app", 1))
    send(store.declare(Declared(name="kept", payload=b'{"task":"t"}', rule="@hourly"), "app", 1))
    send(store.at(NOW).enqueue([New("scheduled", due, due=NOW - 1)]))
    for planned in (NOW - 99, NOW - 98):
        send(store.at(NOW).backfill("r", [f"{planned:.0f}"]))
    send(store.declare(Declared(name="paused", payload=b'{"task":"t"}', rule="@hourly")))
    send(store.at(NOW - 9).hold("paused", True, until=NOW - 5))
    send(store.set_window("night", "22:00-06:00"))
    send(store.at(NOW).enqueue([New(job_id, due, due=NOW + 50) for job_id in ("leaves", "later", "later-too")]))
    send(store.at(NOW).depart("there", "first", [b"leaves"], calm=9.0))
    send(store.at(NOW).batch_open("b", "t", retention=9, fields={"on_failed": "{}"}))
    send(store.at(NOW).batch_add("b", "r", 2, "q", ids=["y"]))
    send(store.at(NOW).batch_open("g", "t", retention=9))
    send(store.batch_plan("g", 0, [PlanRow(b"{}", "n", "q"), PlanRow(b"{}", "", "q", [0])]))
    send(store.at(NOW).batch_open("h", "t", retention=9))
    send(store.batch_plan("h", 0, [PlanRow(b"{}", "n", "q"), PlanRow(b"{}", "", "q", [0])]))
    send(store.at(NOW).batch_close("h"))
    send(store.at(NOW).batch_open("f", "t", retention=9))
    send(store.batch_plan("f", 0, [PlanRow(b"{}", "n", "q"), PlanRow(b"{}", "", "q", [0])]))
    send(store.at(NOW).batch_close("f"))
    send(store.fail_node("f", 0, "why"))
    send(store.at(NOW).batch_count([("f", 0, b"\x02")]))
    raw.hset(f"evsched:{{{store.queue}}}:arrived", "there", '{"number":"1","token":"x","stay":{}}')
    raw.rpush(f"evsched:{{{store.queue}}}:reply:running", "{}")
    raw.zadd(f"evsched:{{{store.queue}}}:canary", {"": 0})
    return {job.id: job for job in jobs}


RUN = "running"
ARRIVING = MovingBatch("5", "t", "here", [(b"{}", b"\x91\xa11")])
LEAVING = MovingBatch(f"{NOW * 1e6:.0f}", "first", "there", [])
TASK = condition(task="t")
OCCURRENCE = Occurrence("r@2", NOW + 9, NOW + 9, None)
CALLS: dict[str, Callable[[Store, Seeded], Call[Any]]] = {
    "abort": lambda store, runs: store.at(NOW).abort("w", [(runs[RUN], Aborted(9, True))]),
    "agenda": lambda store, runs: store.at(NOW).agenda(99, 9),
    "ask": lambda store, runs: store.ask("r1"),
    "audit": lambda store, runs: store.at(NOW).audit([b"running", b"g1", b"r3", b"scheduled", b"dead"]),
    "heartbeat": lambda store, runs: store.at(NOW).heartbeat("w", 99),
    "backfill": lambda store, runs: store.at(NOW).backfill("r", [f"{NOW - 97:.0f}"]),
    "batch_open": lambda store, runs: store.at(NOW).batch_open("c", "t", retention=9, expires=9),
    "batch_add": lambda store, runs: store.at(NOW).batch_add("b", "t", 2, "q", ids=["x"]),
    "batch_plan": lambda store, runs: store.batch_plan("g", 2, [PlanRow(b"{}", "m", "q", [1])]),
    "batch_close": lambda store, runs: store.at(NOW).batch_close("b", confirms="r", how="cancelled"),
    "batch_pause": lambda store, runs: store.at(NOW).batch_pause("b", held=True, after=5, until=NOW + 9, why="x"),
    "batch_hold": lambda store, runs: store.at(NOW).batch_hold(NOW, [Hold("q/b", 1, "1")]),
    "batch_count": lambda store, runs: store.at(NOW).batch_count([("b", 0, b"\x01\x02"), ("h", 0, b"\x01")]),
    "batch_ask": lambda store, runs: store.at(NOW).batch_ask("h", 1),
    "batch_revive": lambda store, runs: store.at(NOW).batch_revive("f", 0),
    "batch_list": lambda store, runs: store.at(NOW).batch_list(0, 9),
    "begin": lambda store, runs: store.begin("w", [(runs[RUN], "1")]),
    "bury": lambda store, runs: store.at(NOW).bury("w", [(runs[RUN], Buried("x", True))]),
    "cancel": lambda store, runs: store.at(NOW).cancel("r4"),
    "queue_stats": lambda store, runs: store.at(NOW).queue_stats(),
    "recurrence_stats": lambda store, runs: store.recurrence_stats(),
    "complete": lambda store, runs: store.at(NOW).complete("w", [(runs[RUN], DONE)]),
    "declare": lambda store, runs: store.declare(Declared(name="r", payload=b"{}", rule="@daily"), "app", 1),
    "declare_limits": lambda store, runs: store.at(NOW).declare_limits("app", 1, {"rate": 9, "concurrency:g": 2}),
    "depart": lambda store, runs: store.at(NOW).depart("there", "t", [b"later", b"later-too"], calm=9.0),
    "arrive": lambda store, runs: store.at(NOW).arrive("there", ARRIVING),
    "vacate": lambda store, runs: store.vacate(LEAVING, Arrival(False, 0, [])),
    "defer": lambda store, runs: store.at(NOW).defer("w", [(runs[RUN], Deferred(NOW + 1, "x"))]),
    "dispatch": lambda store, runs: store.at(NOW).dispatch(limit=100, cap=1000, canary="c"),
    "drop": lambda store, runs: store.drop(["dead"]),
    "enqueue": lambda store, runs: store.at(NOW).enqueue([New("n1", b"{}", due=NOW), New("n2", b"{}", due=NOW)]),
    "explain": lambda store, runs: store.at(NOW).explain("g1"),
    "find": lambda store, runs: store.find("schedule", TASK),
    "forward": lambda store, runs: store.at(NOW).forward("w", [(runs[RUN], FORWARDED)]),
    "forecast": lambda store, runs: store.forecast(NOW, 60.0, 9),
    "forget": lambda store, runs: store.at(NOW).forget([store.queue]),
    "glance": lambda store, runs: store.at(NOW).glance([store.queue]),
    "fronts": lambda store, runs: store.fronts(),
    "hashes": lambda store, runs: store.hours([(store.queue, int(NOW // 3600))]),
    "hold": lambda store, runs: store.at(NOW).hold("r", True),
    "keep": lambda store, runs: store.at(NOW).keep("w", runs[RUN], '"s"', b"1"),
    "limit": lambda store, runs: store.at(NOW).limit({"concurrency": 9, "concurrency:g": 2}),
    "look": lambda store, runs: store.at(NOW).look("g1"),
    "mend": lambda store, runs: store.at(NOW).mend(
        [Violation(b"", "in_flight", "", b""), Violation(b"g", "stranded", "", b"")]
    ),
    "pause": lambda store, runs: store.at(NOW).pause(),
    "prune": lambda store, runs: store.prune("retired"),
    "progress": lambda store, runs: store.progress("w", [(runs[RUN], Progress(1, 2, ""))]),
    "recall": lambda store, runs: store.recall("w", runs[RUN]),
    "recount": lambda store, runs: store.recount([b"g"]),
    "recur": lambda store, runs: store.recur("r", str(int(NOW + 9)).encode(), [OCCURRENCE], next_=NOW + 99),
    "register": lambda store, runs: store.at(NOW).register("app", "content"),
    "remove": lambda store, runs: store.remove("r"),
    "reopen": lambda store, runs: store.at(NOW).reopen("night"),
    "relay": lambda store, runs: store.at(NOW).relay(
        [RowJob("r5", b"{}", None, None, NOW, 8), RowJob("n1", b"{}", None, None, NOW, 9)]
    ),
    "replace": lambda store, runs: store.at(NOW).replace([New("r5", b"{}", due=NOW), New("n1", b"{}", due=NOW)]),
    "request_status": lambda store, runs: store.request_statuses("asker", [store.queue]),
    "requeue": lambda store, runs: store.at(NOW).requeue("w", "x"),
    "replan": lambda store, runs: store.at(NOW).replan("r"),
    "reschedule": lambda store, runs: store.at(NOW).reschedule("g1", NOW),
    "reseal": lambda store, runs: store.reseal(
        "job", [(Kept("job", job, "payload", b'{"task":"t","reply":true}'), b"{}") for job in ("g1", "r4")]
    ),
    "resume": lambda store, runs: store.at(NOW).resume(),
    "retire": lambda store, runs: store.at(NOW).retire("retired", "app", 1),
    "retry": lambda store, runs: store.at(NOW).retry("w", [(runs[RUN], Retried(1.0, "x"))]),
    "revive": lambda store, runs: store.at(NOW).revive(["dead"]),
    "rewind": lambda store, runs: store.at(NOW - 9999).rewind(9, 0, 9),
    "roster": lambda store, runs: store.at(NOW).roster(0, 9, ["rule", "paused"]),
    "seek": lambda store, runs: store.at(NOW).seek("t"),
    "signal": lambda store, runs: store.at(NOW).signal("scheduled", "ok", b"1"),
    "snooze": lambda store, runs: store.at(NOW).snooze("w", [(runs[RUN], Snoozed("x", 1.0))]),
    "stand_by": lambda store, runs: store.at(NOW).stand_by("p", Announced("app", "content", "d"), lease=9, claim=9),
    "settle": lambda store, runs: store.settle([Report("1-1", "dead", "7", "done", "", "9")]),
    "start": lambda store, runs: store.at(NOW).start("w", [RUN], hold=5, lease=99, ticket=0),
    "decline": lambda store, runs: store.decline("w"),
    "survey": lambda store, runs: store.at(NOW).survey(),
    "unpause": lambda store, runs: store.unpause("paused", f"{NOW - 5:.0f}".encode(), NOW + 5),
    "trigger": lambda store, runs: store.at(NOW).trigger("r", f"{NOW:.6f}"),
    "wait_for": lambda store, runs: store.at(NOW).wait_for("w", runs[RUN], "ok", 9.0),
    "withdraw": lambda store, runs: store.at(NOW).withdraw([("dead", 7)]),
}
READY = Edit(
    digest_of({"payload": b'{"task":"t","reply":true}', "created": b"%d" % (NOW - 5)}), b'{"task":"t"}', 9, "g", "k", ()
)
WAITING = ["scheduled", "r4", "g1", "g2", "running", "r@1"]
BY_FILTER: dict[str, Callable[[Store, Seeded], Call[Any]]] = {
    "find in ready": lambda store, runs: store.find("ready", TASK),
    "find in a group": lambda store, runs: store.find("backlog:g", TASK),
    "cancel matching": lambda store, runs: store.at(NOW).cancel_matching(WAITING, TASK),
    "reschedule matching": lambda store, runs: store.at(NOW).reschedule_matching(WAITING, TASK, NOW),
    "edit": lambda store, runs: store.at(NOW).reschedule("r4", NOW, edit=READY),
    "revive matching": lambda store, runs: store.at(NOW).revive_matching(["dead"], TASK),
    "drop matching": lambda store, runs: store.drop_matching(["dead"], TASK),
}
"""Jobs whose record is of another type do not match, so they stop no other."""

WHOLE = [
    "schedule",
    "backlog",
    "ready",
    "processing:w",
    "dead",
    "leases",
    "idle",
    "limits",
    "in_flight",
    "throttled",
    "fair",
]
NAMED = [
    "processing:v",
    "backlog:g",
    "arrival",
    "arrival:g",
    "recurrence:r",
    "reply:running",
    "canary",
    "windows",
    "pauses",
]
REQUESTS = ["requests:r", "requested:r"]
MOVES = ["moving", "arrived"]
BATCHES = [f"batch_{part}:b" for part in ("ends", "parts", "ids", "inner", "over")] + ["chores", "batches", "batch:b"]
HELD = ["batch_sums", "batch_holds"]
GRAPHS = [f"batch{part}:{name}" for part in ("", "_ends", "_parts", "_ids", "_nodes", "_ripple") for name in "fgh"]
OF_APP = ["declared:app", "revisions:app", "apps", "recurrence:retired", "declared_limits"]
JOBS = ["job:running", "job:g1", "job:r4", "job:scheduled", "job:dead", "job:r@1"]
OF_ONE = {"cancel", "ask", "reschedule", "edit", "look", "explain", "enqueue", "revive", "drop", "signal"}
OF_APPS = {"declare", "declare_limits", "register", "retire"}
OF_REQUESTS = {"trigger", "backfill", "replan", "unpause"}
OF_RECURRENCES = {"agenda", "roster", "hold", "recur", "remove", "rewind", "prune"} | OF_APPS | OF_REQUESTS


def test_the_calls_cover_every_verb() -> None:
    assert set(CALLS) == {path.stem for path in folder().glob("*.lua") if not path.stem.startswith("_")}


@pytest.mark.long
@pytest.mark.parametrize("verb", [*CALLS, *BY_FILTER])
def test_key_of_the_wrong_type_never_stops_a_verb_after_a_write(
    send: Send, store: Store, state: State, raw: Any, seeded: Seeded, verb: str
) -> None:
    """Either the verb is refused by the type and writes nothing, or it succeeds. After the repair every job runs."""
    root = f"evsched:{{{store.queue}}}:"
    dumped = {key: raw.dump(key) for key in raw.scan_iter(match=root + "*", count=1000)}
    for name in [*WHOLE, *NAMED, *OF_APP, *REQUESTS, *MOVES, *BATCHES, *HELD, *GRAPHS, "recurrences", *JOBS]:
        pipe = raw.pipeline()
        pipe.delete(*raw.keys(root + "*"))
        for key, value in dumped.items():
            pipe.restore(key, 0, value)
        pipe.execute()
        key = root + name
        kept = dumped.get(key.encode())
        raw.delete(key)
        if name.startswith(("arrival", "batch_ends")):
            raw.rpush(key, "wrong")
        else:
            raw.set(key, "wrong")
        before = state(), raw.type(key)
        before[0].pop("canary", None)  # dispatch writes it before it checks: no job depends on it
        if refusal := refused(send, (CALLS | BY_FILTER)[verb](store, seeded)):
            assert "WRONGTYPE" in refusal, name
            after = state()
            after.pop("canary", None)
            assert (after, raw.type(key)) == before, f"{verb} wrote something before {name} stopped it"
            allowed = name in WHOLE or (name in JOBS and verb in OF_ONE)
            allowed = allowed or (verb in OF_RECURRENCES and name == "recurrences")
            allowed = allowed or (verb in OF_RECURRENCES and name in OF_APP)
            allowed = allowed or (verb == "unpause" and name == "pauses")
            allowed = allowed or (verb in ("trigger", "backfill") and name in REQUESTS)
            allowed = allowed or (verb in ("depart", "arrive", "vacate") and name in MOVES)
            allowed = allowed or (verb.startswith("batch_") and name in (*BATCHES, *HELD, *GRAPHS))
            assert allowed or (verb in OF_RECURRENCES - {"agenda"} and name == "recurrence:r"), name
        raw.delete(key)
        if kept is not None:
            raw.restore(key, 0, kept)
        bring_back(send, store)
        run_all(send, store, name)
        after = state()
        places = {"schedule", "backlog", "backlog:g", "ready", "processing:w", "processing:v"} & set(after)
        assert not places, (name, places, after)
        lost = [
            key for key, record in after.items() if key.startswith("job:") and key != name and "finished" not in record
        ]
        assert not lost, (name, lost)


def refused(send: Send, call: Call[Any]) -> str:
    """Send a call; return why Redis refused it, or '' if it did not."""
    try:
        send(call)
    except StoreRefused as refusal:
        return str(refusal)
    except (JobChanged, JobMissing):
        pass
    return ""


def bring_back(send: Send, store: Store) -> None:
    """Put the batch that leaves the queue back on the schedule."""
    if (batch := send(store.depart()).batch) is not None:
        send(store.vacate(batch, Arrival(True, 0, [])))


def run_all(send: Send, store: Store, name: str) -> None:
    """Hand back the jobs of all workers, open all gates, and run everything."""
    send(store.at(NOW).limit({"concurrency": None, "rate": None, "concurrency:g": None, "rate:g": None}))
    send(store.at(NOW).resume())
    for worker in "wv":
        send(store.at(NOW).requeue(worker, "x"))
    for n in range(6):  # a requested run brings the next when it ends
        now = NOW + 9999 + 9 * n
        send(store.at(now).dispatch(limit=100, cap=1000))
        jobs = send(store.at(now).start("u", (), hold=100, lease=99)).jobs
        assert send(store.at(now).complete("u", [(job, DONE) for job in jobs])) == [], name


def test_an_invalid_due_leaves_no_record(send: Send, store: Store, state: State) -> None:
    with pytest.raises(StoreRefused, match="the argument due is not a valid score"):
        send(store.enqueue([New("a", b"{}", due=1.0), New("b", b"{}", due=float("nan"))]))
    assert state() == {}


def test_a_reply_list_of_the_wrong_type_does_not_stop_the_end_of_a_job(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    run = seed(send, store, raw)
    raw.set(f"evsched:{{{store.queue}}}:reply:running", "wrong")
    assert send(store.at(NOW).complete("w", [(run, DONE)])) == []
    assert state()["job:running"]["outcome"] == "done"
    assert "processing:w" not in state()


def test_a_retention_over_64_bits_becomes_the_longest_possible(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    run = seed(send, store, raw)
    assert send(store.at(NOW).complete("w", [(run, Done(b"1", 1e300, True))])) == []
    after = state()
    assert after["job:running"]["outcome"] == "done"
    assert json.loads(after["reply:running"][0])["outcome"] == "done"
    assert raw.pttl(f"evsched:{{{store.queue}}}:job:running") > 300 * 365 * 86400 * 1000


def test_an_inline_job_whose_record_is_of_the_wrong_type_stops_no_other(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    raw.set(f"evsched:{{{store.queue}}}:job:x", "wrong")
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {'{"task":"t","id":"x"}': NOW - 1})
    send(store.enqueue([New("next", b'{"task":"t"}', due=NOW)]))
    step = send(store.at(NOW).dispatch(limit=10, cap=1000))
    ((job_id, reason),) = step.buried
    assert "DEL it and schedule the job again" in reason
    after = state()
    assert (after["ready"], list(after["dead"]), "schedule" in after) == (["next"], [job_id], False)
    assert after[f"job:{job_id}"]["payload"] == '{"task":"t","id":"x"}'


@pytest.fixture
def runs(send: Send, store: Store, raw: Any) -> list[FetchedJob]:
    """Three runs of worker "w"; the record of the second was overwritten meanwhile."""
    send(store.enqueue([New(job_id, b'{"task":"t"}', due=NOW) for job_id in "abc"]))
    raw.hset(f"evsched:{{{store.queue}}}:job:b", "by", "x")  # so it is no light job
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    runs = send(store.at(NOW).start("w", (), hold=3, lease=15)).jobs
    raw.set(f"evsched:{{{store.queue}}}:job:b", "wrong")
    return runs


@pytest.mark.parametrize("end", ["complete", "retry", "bury"])
def test_a_record_that_was_overwritten_does_not_stop_the_end_of_other_runs(
    send: Send, store: Store, state: State, runs: list[FetchedJob], end: str
) -> None:
    calls = {
        "complete": store.at(NOW).complete("w", [(run, DONE) for run in runs]),
        "retry": store.at(NOW).retry("w", [(run, Retried(1.0, "x")) for run in runs]),
        "bury": store.at(NOW).bury("w", [(run, Buried("x", False)) for run in runs]),
    }
    assert send(calls[end]) == ["b"]
    assert state()["processing:w"] == ["b"]


@pytest.mark.parametrize("in_the_way", [1, 2, 3])
@pytest.mark.parametrize("member", ['{"task":"t","args":[1]}', '{"task":"t","priority":7}', "{no JSON", "no id"])
def test_keys_in_the_way_of_a_bad_jobs_record_do_not_stop_other_jobs(
    send: Send, store: Store, state: State, raw: Any, member: str, in_the_way: int
) -> None:
    digest = sha1(member.encode()).hexdigest()
    names = ["no id" if member == "no id" else digest, f"bad-{digest}", f"bad-{digest}-2", f"bad-{digest}-3"]
    for name in names[:in_the_way]:
        raw.set(f"evsched:{{{store.queue}}}:job:{name}", "wrong")
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: NOW, '{"task":"good"}': NOW})
    send(store.heartbeat("w", 60, busy=60, fresh=True))  # so that good jobs are light
    step = send(store.at(NOW).dispatch(limit=10, cap=1000))
    ((kept, reason),) = step.buried
    assert kept == names[in_the_way]
    assert ("is not a hash" in reason) == (member.endswith("}"))
    assert [job.payload for job in send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs] == [b'{"task":"good"}']
    after = state()
    assert after["dead"] == {kept: NOW}
    assert member in (after[f"job:{kept}"].get("payload"), after[f"job:{kept}"].get("member"))


@pytest.mark.usefixtures("runs")
def test_overwritten_record_is_dead_at_its_next_start_and_others_run(send: Send, store: Store, state: State) -> None:
    assert send(store.requeue("w", "it died")) == PutBack("all", ["a", "b", "c"], [])
    reply = send(store.at(NOW).start("v", (), hold=9, lease=15))
    assert [job.id for job in reply.jobs] == ["a", "c"]
    ((job_id, reason),) = reply.buried
    assert "is not a hash" in reason
    after = state()
    assert (after["dead"], after["processing:v"], after[f"job:{job_id}"]["member"]) == (
        {job_id: NOW},
        ["a", "c"],
        "b",
    )
