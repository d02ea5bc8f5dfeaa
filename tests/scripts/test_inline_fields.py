"""`evsched schema inline` allows exactly the `id`, `priority` and `group` that the dispatcher accepts.

Except a priority that is a digit in quotes: it is accepted, as in a record, but not recommended.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from evsched.client.wire_schema import wire_schema
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send

VALUES: dict[str, list[Any]] = {
    "id": ["a", "a@1", "a b", "", "x" * 200, "x" * 201, 5, True, None, ["a"], {}],
    "priority": [0, 9, 5.0, 10, -1, 5.5, "", "x", True, False, None, [], 1e300],
    "group": ["g", "", "ü", "g" * 200, "g" * 201, "}", 5, True, None, []],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in VALUES.items() for value in values], ids=repr
)
def test_schema_of_an_inline_job_allows_what_the_dispatcher_accepts(
    send: Send, store: Store, raw: Any, field: str, value: Any
) -> None:
    written = {"task": "t", field: value}
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {json.dumps(written): NOW})
    refused = send(store.at(NOW).dispatch(limit=9, cap=1000)).buried
    allowed = jsonschema.Draft202012Validator(wire_schema("inline")).is_valid(written)
    assert allowed is (refused == []), refused
