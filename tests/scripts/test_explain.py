"""Why has it not run yet? Each state that a job can be in, set up in Redis, and the sentence for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.client.explain import explain, no_explanation
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Requeued, Retried, Snoozed, encode
from evsched.store import server
from evsched.store.client_calls import New
from evsched.store.operator_calls import KEY_TYPES
from evsched.store.run_ends import NO_LEASE
from evsched.store.store import Store
from evsched.worker.slots import FetchPause
from tests.scripts.conftest import NOW, Send


class Scene:
    """A queue that a row of the table sets up; the job that is asked about is `a`."""

    def __init__(self, send: Send, store: Store, raw: Any) -> None:
        self.send, self.store, self.raw = send, store, raw

    def due(self, *ids: str, group: str | None = None) -> None:
        self.send(self.store.enqueue([New(name, b'{"task":"t"}', due=NOW, group=group) for name in ids]))
        self.dispatch()

    def dispatch(self, now: float = NOW) -> None:
        self.send(self.store.at(now).dispatch(limit=999, cap=999))

    def worker(self) -> None:
        self.send(self.store.at(NOW).heartbeat("w", 15, fresh=True))

    def limit(self, **limits: float) -> None:
        self.send(self.store.at(NOW).limit({name.replace("_", ":"): value for name, value in limits.items()}))

    def run(self, job: str = "a") -> FetchedJob:
        self.due(job)
        return self.send(self.store.at(NOW).start("w", (), hold=99, lease=15)).jobs[-1]


def window_unread(scene: Scene) -> None:
    run = scene.run()
    why = "its window 'nights' cannot be read: HGET: WRONGTYPE"
    scene.send(scene.store.at(NOW).defer("w", [(run, Deferred(NOW + 5, why))]))


def far(scene: Scene) -> None:
    scene.send(scene.store.enqueue([New("a", b"{}", due=NOW + 180)]))


def windowed(scene: Scene, due: float, expires: float | None = None) -> None:
    payload: dict[str, Any] = {"task": "t", "window": "03:00-04:00 UTC", "expires": expires}
    scene.send(scene.store.enqueue([New("a", encode(payload), due=due)]))


def due_outside_its_window(scene: Scene) -> None:
    windowed(scene, NOW + 300)


def due_in_its_window(scene: Scene) -> None:
    windowed(scene, NOW + 34000)


def expires_before_its_window(scene: Scene) -> None:
    windowed(scene, NOW + 300, NOW + 3600)


def ready_outside_its_window(scene: Scene) -> None:
    scene.worker()
    windowed(scene, NOW)
    scene.dispatch()


def overdue(scene: Scene) -> None:
    scene.send(scene.store.enqueue([New("a", b"{}", due=NOW - 60)]))


def awaited(scene: Scene) -> None:
    scene.raw.zadd(f"evsched:{{{scene.store.queue}}}:schedule", {"a": NOW})
    scene.dispatch()


def retried(scene: Scene) -> None:
    scene.send(scene.store.at(NOW).retry("w", [(scene.run(), Retried(30, "attempt 1 of 5: ValueError: no luck"))]))


def snoozed(scene: Scene) -> None:
    scene.send(scene.store.at(NOW).snooze("w", [(scene.run(), Snoozed("snoozed for at least 30.0 s: no file", 30.0))]))


def snoozed_often(scene: Scene) -> None:
    snoozed(scene)
    scene.raw.hset(f"evsched:{{{scene.store.queue}}}:job:a", "snoozes", 12)


def without_worker(scene: Scene) -> None:
    scene.due(*(f"x{n:02}" for n in range(16)), "a")


def paused(scene: Scene) -> None:
    scene.worker()
    scene.send(scene.store.at(NOW - 90).pause())
    scene.due("a")


def far_and_paused(scene: Scene) -> None:
    far(scene)
    scene.send(scene.store.at(NOW - 90).pause(until=NOW + 3600, why="moving"))


def far_and_resumed_before(scene: Scene) -> None:
    far(scene)
    scene.send(scene.store.at(NOW - 90).pause(until=NOW + 179))


def paused_without_worker(scene: Scene) -> None:
    scene.send(scene.store.at(NOW - 90).pause())
    scene.due("a")


def full(scene: Scene) -> None:
    scene.limit(concurrency=5)
    for n in range(5):
        scene.run(f"x{n}")
    scene.due("a")


def full_group(scene: Scene) -> None:
    scene.worker()
    scene.limit(concurrency_alice=2)
    scene.due("01", "02", "03", "a", group="alice")
    scene.send(scene.store.at(NOW).start("w", (), hold=99, lease=15))


def declared(scene: Scene) -> None:
    scene.send(scene.store.at(NOW).declare_limits("shop", 1, {"concurrency:*": 3}))
    full_group(scene)
    scene.send(scene.store.at(NOW).limit({"concurrency:alice": None}))


def slow(scene: Scene) -> None:
    scene.worker()
    scene.limit(rate=0.1, burst=1)
    scene.due("a", "0")


def slow_group(scene: Scene) -> None:
    scene.worker()
    scene.limit(rate_alice=0.1)
    scene.due("0", "a", group="alice")


def behind(scene: Scene) -> None:
    scene.worker()
    scene.due(*(f"b{n:02}" for n in range(36)), group="bob")
    scene.due(*(f"0c{n}" for n in range(5)), "a", group="alice")
    scene.limit(weight_alice=3)


def in_ready(scene: Scene) -> None:
    scene.worker()
    scene.due("0", "a")


def in_ready_without_worker(scene: Scene) -> None:
    scene.due("a")


def held(scene: Scene) -> None:
    scene.run()


def held_too_long(scene: Scene) -> None:
    scene.run()
    scene.send(scene.store.at(NOW).heartbeat("w", -4))


def asked_to_stop(scene: Scene) -> None:
    scene.run()
    scene.send(scene.store.at(NOW).cancel("a"))


def fetched(scene: Scene) -> None:
    scene.worker()
    scene.due("a")
    root = f"evsched:{{{scene.store.queue}}}:"
    scene.raw.lmove(f"{root}ready", f"{root}processing:w", "LEFT", "RIGHT")


def retried_and_due(scene: Scene) -> None:
    scene.worker()
    failed = Retried(0, "attempt 1 of 5: ValueError: no luck", error="ValueError")
    scene.send(scene.store.at(NOW - 20).retry("w", [(scene.run(), failed)]))
    scene.dispatch()


def lost(scene: Scene) -> None:
    run = scene.run()
    scene.send(scene.store.begin("w", [(run, "1")]))
    scene.raw.zrem(f"evsched:{{{scene.store.queue}}}:leases", "w")
    scene.send(scene.store.at(NOW - 7).requeue("w", "its worker died", lease=NO_LEASE))
    scene.worker()
    scene.dispatch()


def replaced(scene: Scene) -> None:
    scene.run()
    scene.send(scene.store.replace([New("a", b'{"task":"t"}', due=NOW + 60)]))


def replaced_and_due(scene: Scene) -> None:
    scene.run()
    scene.send(scene.store.replace([New("a", b'{"task":"t"}', due=NOW - 9)]))
    scene.dispatch()


def scheduled_again_at_once(scene: Scene) -> None:
    scene.run()
    scene.raw.zadd(f"evsched:{{{scene.store.queue}}}:schedule", {"a": 0})
    scene.dispatch()


def due_at_once(scene: Scene) -> None:
    scene.raw.hset(f"evsched:{{{scene.store.queue}}}:job:a", "payload", "{}")
    scene.raw.zadd(f"evsched:{{{scene.store.queue}}}:schedule", {"a": 0})


def replaced_and_retried(scene: Scene) -> None:
    run = scene.run()
    scene.send(scene.store.replace([New("a", b'{"task":"t"}', due=NOW + 60)]))
    scene.send(scene.store.at(NOW).retry("w", [(run, Retried(30, "attempt 1 of 5: ValueError"))]))


def dead(scene: Scene) -> None:
    scene.send(scene.store.at(NOW - 7200).bury("w", [(scene.run(), Buried("attempt 5 of 5: no luck", False))]))


def expired(scene: Scene) -> None:
    scene.send(scene.store.at(NOW - 10).bury("w", [(scene.run(), Buried("expired 3 s before", False, "expired"))]))


def cancelled(scene: Scene) -> None:
    scene.send(scene.store.at(NOW - 5).abort("w", [(scene.run(), Aborted(60, False))]))


def done(scene: Scene) -> None:
    scene.send(scene.store.at(NOW - 5).complete("w", [(scene.run(), Done(b"1", 60, False))]))


TABLE = [
    (far, "due in 3m 00s"),
    (
        due_outside_its_window,
        "due in 5m 00s; its window 03:00-04:00 UTC is closed then, so it can start in 9h 13m",
    ),
    (due_in_its_window, "due in 9h 26m"),
    (
        expires_before_its_window,
        (
            "due in 5m 00s; its window 03:00-04:00 UTC is closed then, so it can start in 9h 13m; "
            "it expires before, in 1h 00m"
        ),
    ),
    (
        ready_outside_its_window,
        (
            "ready, behind 0 more: it starts when a worker has a free slot; "
            "its window 03:00-04:00 UTC is closed now, so it can start in 9h 13m"
        ),
    ),
    (due_at_once, "due at once and still on the schedule: no dispatcher serves this queue"),
    (overdue, "due 60.0 s ago and still on the schedule: no dispatcher serves this queue"),
    (awaited, "its record is missing: HSET its payload within 2 s of the ZADD"),
    (snoozed, "snoozed for at least 30.0 s: no file; due again in 30.0 s, and snoozed once so far"),
    (snoozed_often, "snoozed for at least 30.0 s: no file; due again in 30.0 s, and snoozed 12 times so far"),
    (retried, "retried after attempt 1 of 5: ValueError: no luck; due again in 30.0 s"),
    (
        retried_and_due,
        (
            "ready, behind 0 more: it starts when a worker has a free slot; "
            "its last run failed 20.0 s ago: attempt 1 of 5: ValueError: no luck"
        ),
    ),
    (
        lost,
        (
            "ready, behind 0 more: it starts when a worker has a free slot; "
            "its last run was lost 7.0 s ago: its worker died"
        ),
    ),
    (
        replaced,
        (
            "attempt 1 has run for 0 ms on worker w, whose lease ends in 15.0 s; "
            "it was scheduled again: the next run waits for the end of this one, and is due in 60.0 s"
        ),
    ),
    (
        replaced_and_due,
        (
            "attempt 1 has run for 0 ms on worker w, whose lease ends in 15.0 s; "
            "it was scheduled again: the next run waits for the end of this one, and has been due for 9.0 s"
        ),
    ),
    (
        scheduled_again_at_once,
        (
            "attempt 1 has run for 0 ms on worker w, whose lease ends in 15.0 s; "
            "it was scheduled again: the next run waits for the end of this one, and was due at once"
        ),
    ),
    (
        replaced_and_retried,
        (
            "retried after attempt 1 of 5: ValueError; due again in 30.0 s; "
            "it was scheduled again: the next run waits for the end of this one, and is due in 60.0 s"
        ),
    ),
    (without_worker, "ready, but no worker serves this queue: start one with `evsched worker MODULE:APP --queue {q}`"),
    (
        in_ready_without_worker,
        "ready, but no worker serves this queue: start one with `evsched worker MODULE:APP --queue {q}`",
    ),
    (paused, "queue {q} has been paused for 90.0 s: resume it with `evsched resume`"),
    (
        far_and_paused,
        (
            "due in 3m 00s; queue {q} has been paused for 90.0 s, and is for 1h 00m more (moving): "
            "resume it with `evsched resume`"
        ),
    ),
    (far_and_resumed_before, "due in 3m 00s"),
    (
        paused_without_worker,
        "queue {q} has been paused for 90.0 s: resume it with `evsched resume`; no worker serves it either",
    ),
    (full, "the gate is closed by the concurrency limit: 5 of 5"),
    (full_group, "the gate is closed to group alice by the concurrency limit: 2 of 2"),
    (
        declared,
        "the gate is closed to group alice by the concurrency limit: 3 of 3 (declared by app shop)",
    ),
    (slow, "the gate is closed by the rate limit 0.1/s: it opens in 10.0 s"),
    (slow_group, "the gate is closed to group alice by the rate limit 0.1/s: it opens in 10.0 s"),
    (behind, "behind 10 of 26 jobs in the backlog; 2 groups share the gate, and group alice gets 75%"),
    (in_ready, "ready, behind 1 more: it starts when a worker has a free slot"),
    (held, "attempt 1 has run for 0 ms on worker w, whose lease ends in 15.0 s"),
    (
        held_too_long,
        (
            "attempt 1 has run for 0 ms on worker w, whose lease ended 4.0 s ago: "
            "a dispatcher that serves this queue requeues the job soon"
        ),
    ),
    (
        asked_to_stop,
        "attempt 1 has run for 0 ms on worker w, whose lease ends in 15.0 s; it was asked to stop",
    ),
    (fetched, "fetched by worker w, whose lease ends in 15.0 s; not started yet"),
    (window_unread, "its window 'nights' cannot be read: HGET: WRONGTYPE: it is tried again in 5.0 s"),
    (dead, "dead for 2h 00m: attempt 5 of 5: no luck"),
    (expired, "expired 10.0 s ago: expired 3 s before"),
    (cancelled, "cancelled 5.0 s ago"),
    (done, "completed 5.0 s ago, in attempt 1"),
]


@pytest.mark.parametrize(("state", "sentence"), TABLE, ids=[state.__name__ for state, _ in TABLE])
def test_each_state_is_explained(
    send: Send,
    store: Store,
    raw: Any,
    state: Callable[[Scene], None],
    sentence: str,
) -> None:
    state(Scene(send, store, raw))
    facts = send(store.at(NOW).explain("a"))
    explanation = explain(store.queue, facts)
    assert explanation.sentence == sentence.replace("{q}", store.queue)
    assert facts.status is not None
    assert explanation.facts["place"] == facts.status.place
    assert not [fact for fact in explanation.facts.values() if fact.startswith("2199")], "days since 1970"


SLOT = "ready, behind 1 more: it starts when a worker has a free slot"


@pytest.mark.parametrize(("free", "waits"), [(256, False), (1, False), (0, False), (256, True)])
def test_explain_names_free_slots_if_no_worker_waits_for_messages(
    send: Send, store: Store, raw: Any, free: int, waits: bool
) -> None:
    in_ready(Scene(send, store, raw))
    if waits:
        raw.zadd(f"evsched:{{{store.queue}}}:idle", {"w": 1})
    sentence = explain(store.queue, send(store.at(NOW).explain("a")), pauses=[None], free=free).sentence
    slots = {256: "256 slots are free", 1: "1 slot is free"}.get(free, "")
    if waits or not free:
        assert sentence == SLOT
    else:
        assert f"it starts when a worker asks for jobs: {slots}, but no worker waits for a message" in sentence


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        ([], SLOT),
        ([None], SLOT),
        (
            ["no process"],
            (
                "ready, behind 1 more: it starts when a process of a worker's pool is free; until then no worker "
                "fetches jobs of this queue"
            ),
        ),
        (
            ["busy loop"],
            (
                "ready, behind 1 more: it starts when a worker's event loop is free; until then no worker fetches "
                "jobs of this queue"
            ),
        ),
        (
            ["quiet"],
            (
                "ready, behind 1 more: it starts when you start another worker, or restart one that is quiet "
                "(`evsched workers` says which); until then no worker fetches jobs of this queue"
            ),
        ),
        (["no process", None], f"{SLOT}; 1 of 2 workers fetches none now, because no process of the pool is free"),
        (
            ["no process", "no process", "lone run", "stopping"],
            (
                f"{SLOT}; 2 of 4 workers fetch none now, because no process of the pool is free; 1 of 4 workers "
                "fetches none now, because a suspect runs alone; 1 of 4 workers fetches none now, because it stops"
            ),
        ),
    ],
)
def test_the_sentence_says_which_workers_fetch_nothing_and_why(
    send: Send, store: Store, raw: Any, workers: list[FetchPause | None], sentence: str
) -> None:
    in_ready(Scene(send, store, raw))
    explanation = explain(store.queue, send(store.at(NOW).explain("a")), pauses=workers)
    assert explanation.sentence == sentence


def test_a_named_window_is_explained_by_its_present_definition(send: Send, store: Store) -> None:
    payload = b'{"task":"t","window":"nights","expires":%d}' % (NOW + 7200)
    send(store.enqueue([New("a", payload, due=NOW + 300)]))
    found = explain(store.queue, send(store.at(NOW).explain("a")), window="03:00-04:00 UTC")
    assert "its window nights is closed then, so it can start in 9h 13m" in found.sentence
    assert found.facts["window"] == "nights: 03:00-04:00 UTC"
    assert (found.facts["can start"], found.facts["expires"]) == ("in 9h 13m", "in 2h 00m")


def test_an_inline_job_needs_no_record_before_it_is_due(send: Send, store: Store, raw: Any) -> None:
    member = '{"task":"t","args":[1]}'
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: NOW + 180})
    assert explain(store.queue, send(store.at(NOW).explain(member))).sentence == "due in 3m 00s"


def test_a_job_that_was_returned_needs_a_process_too(send: Send, store: Store, raw: Any) -> None:
    scene = Scene(send, store, raw)
    scene.send(store.requeue_runs("w", [(scene.run(), Requeued())]))
    sentence = explain(store.queue, send(store.at(NOW).explain("a"))).sentence
    assert sentence == ("ready, behind 0 more: it starts when a worker has a free slot and a free process in its pool")


def test_sentence_says_whether_a_dispatcher_will_requeue_the_job(send: Send, store: Store, raw: Any) -> None:
    held_too_long(Scene(send, store, raw))
    early, late = send(store.at(NOW).explain("a")), send(store.at(NOW + 60).explain("a"))
    for facts in (early, late):
        sentence = explain(store.queue, facts, dispatchers=0).sentence
        assert "no dispatcher is connected to requeue the job" in sentence
    assert "requeues the job soon" in explain(store.queue, early, dispatchers=1).sentence
    assert "check that one serves this queue" in explain(store.queue, late, dispatchers=1).sentence


def test_ids_that_resemble_a_missing_one_are_suggested() -> None:
    assert no_explanation("a", "q", ["a1", "a2"]).endswith(": did you mean a1, a2?")


@pytest.mark.parametrize("place", ["ready", "fair"])
def test_a_key_of_a_wrong_type_that_holds_a_due_job_up_is_named(
    send: Callable[[Any], Any], store: Store, raw: Any, place: str
) -> None:
    scene, key = Scene(send, store, raw), f"evsched:{{{store.queue}}}:{place}"
    raw.set(key, "x")
    overdue(scene)
    types = {name: send(server.kind(f"evsched:{{{store.queue}}}:{name}")) for name in KEY_TYPES}
    sentence = explain(store.queue, send(store.at(NOW).explain("a")), types=types).sentence
    assert f"{key} is a string, not a {KEY_TYPES[place]}; `evsched doctor --queue {store.queue}`" in sentence
    # Before the job is due, only its due time matters, not the type of the key.
    assert "string" not in explain(store.queue, send(store.at(NOW - 99).explain("a")), types=types).sentence


def test_malformed_record_keeps_its_reason_and_a_missing_one_is_omitted(
    send: Callable[[Any], Any], store: Store, raw: Any
) -> None:
    scene, key = Scene(send, store, raw), f"evsched:{{{store.queue}}}:job:a"
    scene.send(store.at(NOW).bury("w", [(scene.run(), Buried("no luck", False))]))
    raw.hset(key, mapping=dict.fromkeys(("member", "begun", "progress", "traceback"), "x" * 3000000))
    assert explain(store.queue, send(store.at(NOW).explain("a"))).sentence.endswith(": no luck")
    raw.hdel(key, "reason", "finished")
    raw.hset(key, "outcome", "dead")
    explanation = explain(store.queue, send(store.at(NOW).explain("a")))
    assert explanation.sentence == "dead: its record has no reason that can be read"


def test_a_job_outside_its_window_in_a_paused_queue_has_both_reasons(send: Send, store: Store, raw: Any) -> None:
    send(store.enqueue([New("a", b'{"task":"t","window":"nights","expires":%d}' % (NOW + 7200), due=NOW)]))
    Scene(send, store, raw).dispatch()
    (run,) = send(store.at(NOW).start("w", (), hold=99, lease=15)).jobs
    send(store.at(NOW).defer("w", [(run, Deferred(NOW + 34000, "outside its window nights"))]))
    send(store.at(NOW - 90).pause(why="moving"))
    found = explain(store.queue, send(store.at(NOW).explain("a")), window="03:00-04:00 UTC")
    assert found.sentence == (
        "outside its window 03:00-04:00 UTC: it opens in 9h 13m; it expires before, in 2h 00m; "
        f"queue {store.queue} has been paused for 90.0 s (moving): resume it with `evsched resume`"
    )


@pytest.mark.parametrize("groups", [999, 1001])
def test_groups_that_share_the_gate_are_counted_only_if_they_are_few(
    send: Send, store: Store, raw: Any, groups: int
) -> None:
    scene = Scene(send, store, raw)
    scene.limit(concurrency=0)
    scene.due("a")
    raw.hset(f"evsched:{{{store.queue}}}:fair", mapping={f"last:5:g{n}": 99 for n in range(groups - 1)})
    assert send(store.at(NOW).explain("a")).counts.get("groups") == (groups if groups < 1000 else None)
