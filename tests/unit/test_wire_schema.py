"""`evsched schema` allows exactly the payloads and records that their readers accept."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from evsched import App
from evsched.client.wire_schema import Written, wire_schema
from evsched.errors import ConfigError
from evsched.execution.run import prepare, read_payload
from evsched.jobs import record
from evsched.jobs.job import Buried, FetchedJob, Payload, RetryFields, decode_payload
from evsched.jobs.sealed import Sealed
from evsched.recurrence.recurrence import Declared, Recurrence, read_declared, read_recurrence
from tests.support.cli import Cli

PROTOCOL = (Path(__file__).parents[2] / "docs/protocol.md").read_text()
EXAMPLES = sorted({*re.findall(r"'(\{\"task\".*?\})'", PROTOCOL)})

REPORT = {"rule": "0 2 * * *", "payload": '{"task":"report"}', "zone": "Europe/Berlin", "start": "1900000000.5"}


def errors(of: Written, value: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(wire_schema(of)).iter_errors(value)]


@pytest.mark.parametrize("of", ["payload", "inline", "recurrence", None])
def test_each_document_is_a_valid_json_schema(of: Written | None) -> None:
    schema = wire_schema(of)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["$defs"]) == {"JobPayload", "InlineJob", "RetryPolicy", "RecurrenceRecord", "SealedArguments"}


def keywords(schema: Any) -> set[str]:
    """Return the keywords of a schema and of those in it."""
    if isinstance(schema, list):
        return {*()}.union(*map(keywords, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return set()
    found = cast("dict[str, Any]", schema)
    inner = [[*value.values()] if name in ("$defs", "properties") else value for name, value in found.items()]
    return {*found} | keywords(inner)


def test_validators_that_refuse_unknown_keywords_take_the_schema() -> None:
    """Ajv does by default, and has no `$anchor`."""
    core = "$schema $defs $ref anyOf items properties additionalProperties required type enum"
    limits = "exclusiveMinimum minimum maximum maxItems maxLength maxProperties minLength pattern"
    notes = "title description default contentEncoding contentMediaType contentSchema"
    assert keywords(wire_schema()) == {*f"{core} {limits} {notes}".split()}


def test_schema_has_the_fields_that_are_read() -> None:
    fields = {name: set(schema["properties"]) for name, schema in wire_schema()["$defs"].items()}
    assert fields["JobPayload"] == fields["InlineJob"] == set(Payload.__struct_fields__)
    assert fields["RetryPolicy"] == set(RetryFields.__struct_fields__)
    assert fields["SealedArguments"] == set(Sealed.__struct_fields__)
    assert fields["RecurrenceRecord"] == set(Declared.__struct_fields__) - {"name"}


def test_an_inline_job_has_the_fields_that_clients_write_to_a_record() -> None:
    inline, payload = (wire_schema()["$defs"][name]["properties"] for name in ("InlineJob", "JobPayload"))
    own = {name for name in inline if inline[name] != payload[name]}
    written = {field.name for field in record.FIELDS if field.writer == "client"}
    assert own == written - {"payload"} | {"id"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_protocol_are_valid(example: str) -> None:
    assert errors("payload", json.loads(example)) == []
    assert errors("inline", json.loads(example)) == []


def test_the_protocol_has_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "send_mail",
        {},
        {"task": 1},
        {"task": "t", "arg": []},
        {"task": "t", "args": {"a": 1}},
        {"task": "t", "args": "x"},
        {"task": "t", "kwargs": [1]},
        {"task": "t", "timeout": 0},
        {"task": "t", "timeout": "30"},
        {"task": "t", "retry": {"attempts": 0}},
        {"task": "t", "retry": {"attempts": 1001}},
        {"task": "t", "retry": {"attempts": 1.5}},
        {"task": "t", "retry": {"interval": -1}},
        {"task": "t", "retry": {"factor": 0.5}},
        {"task": "t", "retry": {"tries": 1}},
        {"task": "t", "retention": -1},
        {"task": "t", "expires": "2030-01-01"},
        {"task": "t", "reply": 1},
        {"task": "t", "meta": [1]},
        {"task": "t", "window": 5},
        {"task": "t", "tags": "a"},
        {"task": "t", "tags": {"a": 1}},
        {"task": "t", "tags": ["a b"]},
        {"task": "t", "tags": ["a"] * 6},
        {"task": "t", "sealed": "AAAA"},
        {"task": "t", "sealed": {"zip": "gzip"}},
        {"task": "t", "sealed": {"iv": "AAAA"}},
    ],
    ids=json.dumps,
)
def test_hostile_payloads_are_refused(payload: Any) -> None:
    assert errors("payload", payload)
    assert errors("inline", payload)


@pytest.mark.parametrize(
    "more",
    [
        *({"id": id_} for id_ in ("", "a b", "x" * 201, 5)),
        *({"priority": priority} for priority in (10, -1, 5.5, "5")),
        *({"group": group} for group in ("}", 7)),
    ],
    ids=json.dumps,
)
def test_hostile_fields_of_an_inline_job_are_refused(more: dict[str, Any]) -> None:
    assert errors("inline", {"task": "t", **more})
    assert errors("payload", {"task": "t", **more}) == [], "they are ignored in a record's payload"


def test_php_and_lua_may_write_empty_containers() -> None:
    written: dict[str, Any] = {"task": "t", "args": {}, "kwargs": [], "retry": [], "meta": [], "tags": {}, "redact": {}}
    assert errors("payload", written) == []
    assert decode_payload(msgspec.json.encode(written)) == Payload("t", retry=RetryFields())


FIELDS = {
    "args": st.sampled_from([[], {}, [1], {"a": 1}, "a", None]),
    "kwargs": st.sampled_from([[], {}, [1], {"a": 1}, "a", None]),
    "timeout": st.sampled_from([None, 1, 0.5, 1e300, "1", True, -1, 0]),
    "retry": st.none()
    | st.just([])
    | st.dictionaries(
        st.sampled_from(["attempts", "interval", "factor", "max_interval", "jitter", "more"]),
        st.sampled_from([0, 1, 1000, 1001, 0.5, -1, "1", None]),
        max_size=2,
    ),
    "retention": st.sampled_from([None, 0, 1.5, -1, -0.5, "1"]),
    "expires": st.sampled_from([None, 0, -5, 1e18, "1"]),
    "reply": st.sampled_from([True, False, None, 1]),
    "meta": st.sampled_from([[], {}, {"a": [1]}, [1], 5]),
    "window": st.sampled_from(["w", None, 5]),
    "tags": st.sampled_from([["a:1"], [], {}, {"a": 1}, "a", None, [None], ["x" * 65], ["a,b"], ["ü"]]),
    "redact": st.sampled_from([["card"], ["1"], [], {}, {"a": 1}, "card", None, [None], [1]]),
    "id": st.sampled_from(["a", 5, None]),
    "other": st.just(1),
}


app = App()


@app.task(name="t")
async def any_task(*args: Any, **kwargs: Any) -> None:
    """A task whose arguments always fit."""


def is_read(written: Any) -> bool:
    """Tell whether a worker that has the task accepts a payload; it has not expired yet."""
    job = FetchedJob("a", 1, 0.0, msgspec.json.encode(written))
    payload = read_payload(job)
    if isinstance(payload, Buried):
        return False
    return not isinstance(prepare(app.tasks, job, structs.replace(payload, task="t"), -math.inf), Buried)


@given(st.fixed_dictionaries({"task": st.sampled_from(["t", "", 5])}, optional=FIELDS))
def test_payload_schema_allows_exactly_what_workers_accept(written: dict[str, Any]) -> None:
    assert (errors("payload", written) == []) is is_read(written)


RECORD: dict[str, Any] = {
    "zone": st.sampled_from(["UTC", "Europe/Berlin"]),
    "priority": st.sampled_from(["0", "9", "", "x"]),
    "start": st.sampled_from(["0", "-5", "1900000000.25", "1e9", "", "05", "5.", "soon"]),
    "count": st.sampled_from(["1", "0", "-1", "x", "100"]),
    "most": st.sampled_from(["1", "0", "100"]),
    "spread": st.sampled_from(["0", "5.5", "-1", "x"]),
    "misfire": st.sampled_from(["once", "skip", "never", ""]),
    "overlap": st.sampled_from(["wait", "skip", "never"]),
    "pause_after": st.sampled_from(["3", "0"]),
}


def recurs(fields: dict[str, str]) -> Recurrence | None:
    """Return the recurrence that a dispatcher reads from a record; None if it refuses it."""
    try:
        return read_recurrence(read_declared("r", {name: text.encode() for name, text in fields.items()}))
    except ConfigError:
        return None


@given(st.fixed_dictionaries({}, optional=RECORD))
def test_recurrence_schema_allows_exactly_what_dispatchers_accept(more: dict[str, str]) -> None:
    assert (errors("recurrence", REPORT | more) == []) is (recurs(REPORT | more) is not None)


@pytest.mark.extra
@pytest.mark.parametrize("left_out", ["rule", "payload"])
def test_a_record_needs_a_rule_and_a_payload(left_out: str) -> None:
    assert errors("recurrence", REPORT) == []
    assert errors("recurrence", {name: text for name, text in REPORT.items() if name != left_out})
    assert errors("recurrence", {**REPORT, "rul": "@daily"})


def test_the_documentation_has_the_document_of_all() -> None:
    """To write it again: evsched schema > docs/protocol.schema.json."""
    found = Path(__file__).parents[2] / "docs/protocol.schema.json"
    assert json.loads(found.read_text()) == wire_schema()


def test_the_command_prints_the_schema(tmp_path: Path) -> None:
    cli = Cli("unix:///none", tmp_path)  # it needs no Redis
    assert json.loads(cli.run("schema").stdout) == wire_schema()
    assert json.loads(cli.run("schema", "inline").stdout) == wire_schema("inline")
    assert cli.run("schema", "jobs").returncode == 2
