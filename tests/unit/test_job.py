"""A job's payload and record, to and from the bytes that Redis holds."""

from __future__ import annotations

import msgspec
import pytest

from evsched.jobs.job import Payload, decode_payload, encode, shorten
from evsched.jobs.record import JobRun, JobStatus, read_status
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import define


def test_a_payload_comes_back_as_it_was() -> None:
    text = b'{"task":"t","args":[1,"x"],"kwargs":{"a":null},"timeout":2.5,"retry":{"attempts":3},"reply":true}'
    assert encode(decode_payload(text)) == text
    assert encode(Payload("t")) == b'{"task":"t"}'


@pytest.mark.parametrize(
    "text",
    [
        b'{"task":"t","kwargs":[]}',
        b'{"task":"t","args":[],"kwargs":[],"retry":[],"meta":[]}',
        b'{"task":"t","args":{},"retry":{}}',
    ],
)
def test_an_empty_object_may_be_written_as_an_empty_array_and_the_reverse(text: bytes) -> None:
    payload = decode_payload(text)
    assert (payload.args, payload.kwargs, payload.meta) == ([], {}, {})
    assert define(lambda: None, name="t").policy(payload) == Retry()


@pytest.mark.parametrize("value", ["5", '"high"', "true", "[1]", '{"a":1}', "null"])
@pytest.mark.parametrize("field", ["id", "priority", "group"])
def test_fields_of_inline_jobs_are_ignored_in_the_payload_of_a_record(field: str, value: str) -> None:
    assert decode_payload(f'{{"task":"t","args":[1],"{field}":{value}}}'.encode()).args == [1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `task`"),
        ('{"task":7}', r"Expected `str`, got `int` - at `\$\.task`"),
        ('{"task":"t","arg":[]}', "unknown field `arg`"),
        ('{"task":"t","args":{"0":1}}', r"Expected `array`, got `object` - at `\$\.args`"),
        ('{"task":"t","kwargs":[1]}', r"Expected `object`, got `array` - at `\$\.kwargs`"),
        ('{"task":"t","kwargs":[],"retry":[3]}', r"at `\$\.retry`"),
        ('{"task":"t","kwargs":[],"x":1}', "unknown field `x`"),
        ('{"task":"t","args":""}', r"at `\$\.args`"),
        ('{"task":"t","retry":{"attempt":1}}', "unknown field `attempt`"),
        ('{"task":"t","timeout":"soon"}', r"at `\$\.timeout`"),
        ('{"task":"t","args":[NaN]}', "malformed"),
        ('{"task":"t"', "truncated"),
    ],
)
def test_the_error_for_an_invalid_payload_names_the_fault(text: str, words: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=words):
        decode_payload(text.encode())


def test_a_record_becomes_a_status() -> None:
    fields = {
        "payload": b'{"task":"t"}',
        "priority": b"7",
        "group": b"g",
        "due": b"1.5",
        "attempt": b"2",
        "worker": b"w",
        "started": b"2.5",
        "finished": b"3.5",
        "outcome": b"done",
        "result": b'{"n":1}',
    }
    assert read_status("q", "a", "finished", "", fields) == JobStatus(
        id="a",
        queue="q",
        place="finished",
        due=1.5,
        attempt=2,
        priority=7,
        group="g",
        task="t",
        worker="w",
        started=2.5,
        finished=3.5,
        outcome="done",
        result={"n": 1},
        runs=[JobRun(2, "w", 2.5, 3.5, "done")],
        payload={"task": "t"},
    )


def test_on_the_schedule_the_score_is_the_due() -> None:
    assert read_status("q", "a", "schedule", "9.5", {"payload": b"{}", "due": b"1"}).due == 9.5


def test_a_record_with_malformed_fields_can_be_read() -> None:
    fields = {"payload": b"\xffpickle", "priority": b"high", "group": b"\xfe"}
    status = read_status("q", "a", "dead", "1", fields)
    assert (status.payload, status.priority, status.group, status.task) == ("\\xffpickle", 5, "\\xfe", None)
    assert read_status("q", "a", "dead", "1", {"payload": b'{"task":[1]}'}).task is None
    assert read_status("q", "a", "dead", "1", {}) == JobStatus(id="a", queue="q", place="dead")


def test_a_long_reason_keeps_its_beginning_and_its_end() -> None:
    short = shorten("begin" + "x" * 10_000 + "end")
    assert short.startswith("begin")
    assert short.endswith("end")
    assert shorten("short") == "short"


def test_a_stored_reason_is_valid_utf8_and_short() -> None:
    assert shorten("\udcff" + "x" * 10_000).encode()
    assert len(shorten("x" * 10_000)) < 2100
