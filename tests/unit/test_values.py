"""The pure parts: backoff, settings, keys, tasks, log lines, times as people write them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from evsched import ConfigError, Retry, UnknownTask, config, keys
from evsched.cli.root import UsageError
from evsched.cli.time_args import parse_length, parse_time
from evsched.client.client import Options, new_job
from evsched.jobs.job import Payload, decode_payload, shorten
from evsched.jobs.tasks import Tasks, define
from evsched.telemetry.log import escape, json_text
from evsched.transport.backoff import reconnect_delay


def test_a_delay_doubles_up_to_its_bound_with_jitter_on_top() -> None:
    policy = Retry(attempts=9, interval=0.2, max_interval=1.0, jitter=0)
    assert [policy.delay(n) for n in range(1, 6)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert policy.delay(10_000) == 1.0
    assert all(0.2 <= Retry(interval=0.2, jitter=0.5).delay(1) <= 0.7 for _ in range(100))


@pytest.mark.parametrize("field", [{"attempts": 0}, {"interval": -1}, {"factor": 0.5}, {"jitter": float("nan")}])
def test_a_policy_that_makes_no_sense_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        Retry(**field)


@pytest.mark.parametrize(
    ("policy", "worst"),
    [
        (Retry(attempts=3, interval=0.2, jitter=0.5), 2.9),
        (Retry(attempts=1, interval=7, jitter=0), 7.0),
        (Retry(attempts=4, interval=10, max_interval=25, jitter=1), 10 + 20 + 25 + 25 + 4),
        (Retry(attempts=1000, interval=1, factor=1, jitter=0), 1000),
    ],
)
def test_the_worst_case_of_a_policy(policy: Retry, worst: float) -> None:
    assert policy.worst_case() == pytest.approx(worst)


def test_no_failure_is_answered_by_a_hot_loop() -> None:
    assert all(0.02 <= reconnect_delay(n) <= 1.0 for n in range(1, 100))


def test_settings_come_from_flags_then_environment_then_defaults() -> None:
    found = config.load({"EVSCHED_LEASE": "30", "EVSCHED_QUEUES": "a,b", "PATH": "x"}, lease=None, concurrency=7)
    assert (found.lease, found.queues, found.concurrency, found.heartbeat) == (30.0, ("a", "b"), 7, 5.0)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EVSCHED_LEASE", "soon", "EVSCHED_LEASE is 'soon'"),
        ("EVSCHED_LEASE", "6", "two heartbeats"),
        ("EVSCHED_CONCURRENCY", "1000", "from 1 to 999"),
        ("EVSCHED_PROCESS_POOL", "0", "from 1 to 999: processes"),
        ("EVSCHED_QUEUES", ",", "a queue's name is empty"),
        ("EVSCHED_QUEUES", "a b", "a queue's name is"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.load({variable: value})


def test_keys_that_show_a_queue() -> None:
    assert keys.parse(b"evsched:{q}:schedule") == ("q", None)
    assert keys.parse(b"evsched:{q}:processing:w-1") == ("q", "w-1")
    for other in (b"evsched:{q}:job:1", b"evsched:{a b}:schedule", b"x:{q}:schedule", b"evsched:{q}:processing:a\n"):
        assert keys.parse(other) is None


def bind(payload: bytes, handler: Any) -> Any:
    return define(handler).bind(decode_payload(payload))


def test_arguments_are_converted_to_the_annotations() -> None:
    def handler(at: datetime, *more: int, flag: bool = False) -> None: ...

    args, kwargs = bind(b'{"task":"t","args":["2030-01-01T00:00:00Z",1,2],"kwargs":{"flag":true}}', handler)
    assert (args, kwargs) == ([datetime(2030, 1, 1, tzinfo=UTC), 1, 2], {"flag": True})


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"task":"t","args":["x"]}', r"Expected `int`, got `str` - at `\$\.args\[0\]`"),
        (b'{"task":"t","args":[1,["x"]]}', r"at `\$\.args\[1\]\[0\]`"),
        (b'{"task":"t","args":[1,[],3]}', "takes 2 arguments, got 3"),
        (b'{"task":"t"}', "needs 'a'"),
        (b'{"task":"t","args":[1],"kwargs":{"a":1}}', "got 'a' twice"),
        (b'{"task":"t","args":[1],"kwargs":{"bb":1}}', "did you mean 'b'"),
        (b'{"task":"t","args":[1],"kwargs":{"b":7}}', r"at `\$\.kwargs\.b`"),
    ],
)
def test_arguments_that_do_not_fit_are_told_with_their_path(payload: bytes, words: str) -> None:
    def handler(a: int, b: list[int] | None = None) -> None: ...

    with pytest.raises(msgspec.ValidationError, match=words):
        bind(payload, handler)


def test_tasks_are_found_by_name_alone() -> None:
    tasks = Tasks()
    tasks.add(define(lambda: None, name="send_mail"))
    with pytest.raises(UnknownTask, match="did you mean 'send_mail'"):
        tasks.find("send_mial")
    with pytest.raises(ConfigError, match="registered twice"):
        tasks.add(define(lambda: None, name="send_mail"))


def test_a_payload_is_as_small_as_it_can_be() -> None:
    job = new_job("t", (1,), {}, Options())
    assert job.payload == b'{"task":"t","args":[1]}'
    assert msgspec.json.decode(job.payload, type=Payload).retry is None
    assert len({new_job("t", (), {}, Options()).id for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "a b"}, "an id is"),
        ({"priority": 10}, "from 0 to 9"),
        ({"group": ""}, "1 to 200 bytes"),
        ({"due": 1.0, "delay": 1.0}, "give one of them"),
        ({"timeout": 0}, "timeout is 0: over 0 s"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"retention": -1}, "retention is -1"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"delay": float("inf")}, "delay is inf"),
        ({"due": float("nan")}, "due is nan"),
        ({"expires": float("nan")}, "expires is nan"),
        ({"due": "tomorrow"}, "'tomorrow' is no time: give an aware datetime, or Unix seconds"),
        ({"expires": "12.5"}, "'12.5' is no time"),
        ({"due": date(2030, 1, 1)}, "is no time"),
        ({"due": 10**400}, "is no time"),
        ({"delay": "5m"}, "'5m' is no length: give a timedelta, or seconds"),
        ({"delay": []}, "is no length"),
        ({"timeout": "5"}, "timeout is '5': over 0 s, as a number"),
        ({"retention": timedelta(1)}, "retention is datetime.timedelta.*: 0 s or more, as a number"),
        ({"on_conflict": "repalce"}, "on_conflict is 'repalce', did you mean 'replace'[?]"),
        ({"on_conflict": "x"}, "on_conflict is 'x': 'replace' or 'keep'"),
        ({"on_conflict": True}, "on_conflict is True: 'replace' or 'keep'"),
        ({"due": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the mistake
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new_job("t", (), {}, Options(**options))


def test_what_a_job_says_cannot_steer_a_terminal_or_break_utf8() -> None:
    assert escape("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert shorten("\udcff" + "x" * 10_000).encode()
    assert len(shorten("x" * 10_000)) < 2100


def test_json_for_a_terminal_is_printable_and_says_the_same() -> None:
    value = {"a": "\x1b\x7f\x9b[31m\u202e\u2028\U000e0001\n", "ü": [1, None]}
    assert json_text(value).isprintable()
    assert json.loads(json_text(value)) == value


def test_lengths_and_times_as_people_write_them() -> None:
    assert [parse_length(text) for text in ("10s", "250ms", "1.5h", "2", "7d")] == [10, 0.25, 5400, 2, 604800]
    assert parse_time("1900000000.5") == 1900000000.5
    assert parse_time("2030-01-31T09:00+01:00") == datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()
    for wrong in ("soon", "nan", "10x", ""):
        with pytest.raises(UsageError):
            parse_time(wrong)
    for wrong in ("soon", "-1s", "10x", ""):
        with pytest.raises(UsageError):
            parse_length(wrong)
