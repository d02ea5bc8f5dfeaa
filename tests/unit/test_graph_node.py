"""Nodes of graphs are untrusted input, like all that any client may write to Redis."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from evsched.batches.node import StoredNode, Take, read_node
from evsched.jobs.job import encode

PAYLOAD = {"task": "t", "args": [1], "kwargs": {"a": 1}, "retention": 9.0}
NODE = StoredNode("n", "q", PAYLOAD, 1.0, takes=(Take("a", 0, "q", "x"),), over=Take("b", 1, "q"), limit=3)


def test_node_is_read_as_it_was_written() -> None:
    assert read_node(encode(NODE)) == NODE
    assert read_node(None) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": "a b"},
        {"name": "a b"},
        {"name": 7},
        {"payload": []},
        {"payload": {**PAYLOAD, "args": 1}},
        {"payload": {**PAYLOAD, "kwargs": []}},
        {"payload": {**PAYLOAD, "retention": "x"}},
        {"payload": {**PAYLOAD, "retention": 1e300}},
        {"retention": -1},
        {"takes": [{"node": "a", "ordinal": 0, "queue": "}"}]},
        {"over": {"node": "a/b", "ordinal": 0, "queue": "q"}},
    ],
)
def test_malformed_nodes_are_not_read(wrong: dict[str, Any]) -> None:
    assert read_node(encode(to_builtins(NODE) | wrong)) is None


def test_text_that_is_not_json_is_not_read() -> None:
    for text in (b"", b"{", b"\xff", b"[" * 100_000):
        assert read_node(text) is None
