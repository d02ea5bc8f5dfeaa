"""The codec: what it seals it opens, and nothing that was changed or exchanged; its keys and its options."""

from __future__ import annotations

import asyncio
import base64
import os
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from evsched.codec import Codec
from evsched.errors import CannotOpen, ConfigError
from evsched.jobs.job import decode, decode_payload, encode
from evsched.jobs.sealed import (
    About,
    Sealed,
    covers_all,
    masked,
    open_payload,
    put_value,
    seal_fixed,
    seal_payload,
    sealed_in,
)

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
CODECS: dict[str, Callable[[], Codec]] = {
    "key": lambda: Codec({"a": OLD}),
    "compressed": lambda: Codec({"a": OLD}, compress_above=0),
    "compressed only": lambda: Codec(compress_above=0),
    "neither": Codec,
}


def sealed(codec: Codec, payload: dict[str, Any], of: str = "42") -> dict[str, Any]:
    return decode(asyncio.run(seal_payload(codec, encode(payload), of)))


def opened(codec: Codec, payload: dict[str, Any], of: str = "42") -> dict[str, Any]:
    return decode(asyncio.run(open_payload(codec, encode(payload), of)))


@pytest.mark.parametrize("kind", CODECS)
@given(args=st.lists(JSON, max_size=3), kwargs=st.dictionaries(st.text(), JSON, max_size=3))
def test_arguments_are_the_same_once_sealed_and_opened(kind: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    codec = CODECS[kind]()
    payload = {"task": "pay", "timeout": 3, "args": args, "kwargs": kwargs, "meta": {"a": 1}}
    found = sealed(codec, payload)
    assert kind not in ("key", "compressed") or not {"args", "kwargs"} & {*found}
    assert {name: found[name] for name in ("task", "timeout", "meta")} == {
        "task": "pay",
        "timeout": 3,
        "meta": {"a": 1},
    }
    decode_payload(encode(found))
    assert opened(codec, found) == payload


@given(value=JSON)
def test_result_is_the_same_once_sealed_and_opened(value: Any) -> None:
    codec, about = Codec({"a": OLD}, compress_above=10), About("result", of="42")
    found = decode(asyncio.run(put_value(codec, about, encode(value))))
    assert (sealed_in(found) is None) == (value is None)
    if (one := sealed_in(found)) is not None:
        assert decode(codec.open(about, one)) == value


def test_value_that_looks_sealed_never_stands_for_itself() -> None:
    codec, about = Codec(), About("result", of="42")
    value = encode({"evsched.sealed": {"data": ""}})
    found = sealed_in(decode(asyncio.run(put_value(codec, about, value))))
    assert found is not None
    assert codec.open(about, found) == value


def test_no_value_is_in_the_ciphertext() -> None:
    found = encode(sealed(Codec({"a": OLD}), {"task": "pay", "args": ["DE89370400440532013000"]}))
    data = base64.b64decode(decode(found)["sealed"]["data"])
    assert b"DE89" not in found
    assert b"DE89" not in data
    first, second = (sealed(Codec({"a": OLD}), {"task": "pay", "args": [1]}) for _ in range(2))
    assert first != second, "equal arguments look different"


def flipped(payload: dict[str, Any], at: int) -> dict[str, Any]:
    data = bytearray(base64.b64decode(payload["sealed"]["data"]))
    data[at] ^= 1
    return payload | {"sealed": payload["sealed"] | {"data": base64.b64encode(data).decode()}}


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "nonce": lambda one: flipped(one, 0),
    "ciphertext": lambda one: flipped(one, 14),
    "tag": lambda one: flipped(one, -1),
    "task": lambda one: one | {"task": "refund"},
    "zip": lambda one: one | {"sealed": one["sealed"] | {"zip": "zlib"}},
    "no job": lambda one: one | {"sealed": {name: one["sealed"][name] for name in ("data", "key")}},
    "short": lambda one: one | {"sealed": one["sealed"] | {"data": "AAAA"}},
    "other key": lambda one: one | {"sealed": one["sealed"] | {"key": "b"}},
    "missing key": lambda one: one | {"sealed": one["sealed"] | {"key": "c"}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_ciphertext_that_was_changed_is_refused(change: str) -> None:
    codec = Codec({"a": OLD, "b": NEW}, write="a")
    found = sealed(codec, {"task": "pay", "args": ["x" * 9]})
    with pytest.raises(CannotOpen, match=r"key '[abc]' (does not fit|is missing)"):
        opened(codec, CHANGES[change](found))


def test_arguments_of_another_job_or_kind_are_refused() -> None:
    codec = Codec({"a": OLD})
    found = sealed(codec, {"task": "pay", "args": [1]})
    with pytest.raises(CannotOpen, match="it was sealed for job 42, and somebody has put it into job 43"):
        opened(codec, found, "43")
    moved = found | {"sealed": found["sealed"] | {"of": "43"}}
    with pytest.raises(CannotOpen, match="does not fit"):
        opened(codec, moved, "43")
    with pytest.raises(CannotOpen, match="does not fit"):
        codec.open(About("result", of="42"), msgspec.convert(found["sealed"], Sealed))


def test_several_keys_read_and_one_writes() -> None:
    old = sealed(Codec({"2026": OLD}), {"task": "pay", "args": [1]})
    both = Codec({"2026": OLD, "2027": base64.b64encode(NEW).decode()}, write="2027")
    assert opened(both, old)["args"] == [1]
    new = sealed(both, {"task": "pay", "args": [1]})
    assert new["sealed"]["key"] == "2027"
    with pytest.raises(CannotOpen, match="key '2027' is missing, and this codec has '2026': give it that key"):
        opened(Codec({"2026": OLD}), new)


def test_recurring_arguments_are_sealed_alike_by_each_process_and_differ_by_key() -> None:
    payload = b'{"task":"report","args":[1]}'
    first, again, other = (seal_fixed(Codec({"a": key}), payload) for key in (OLD, OLD, NEW))
    assert first == again != other
    assert seal_fixed(Codec({"a": OLD}), b'{"task":"report","args":[2]}')[:60] != first[:60]
    assert opened(Codec({"a": OLD}), decode(first), "report@1")["args"] == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": {"a": b"short"}}, "key 'a' has 5 bytes, and AES-256 needs 32"),
        ({"keys": {"a": "not base64!"}}, "key 'a' is not base64: make one with `openssl rand -base64 32`"),
        ({"keys": {"a": None}}, "key 'a' is of the type NoneType: give 32 bytes, or their base64"),
        ({"keys": {"a": 32}}, "key 'a' is of the type int"),
        ({"keys": {"a b": OLD}}, "'a b' is not an id for a key"),
        ({"keys": {"a": OLD, "b": NEW}}, "no key to write: say with write= which of a, b encrypts"),
        ({"keys": {"a": OLD}, "write": "b"}, "write is 'b', and the keys are a"),
        ({"keys": {}}, "keys has no key: give keys by their ids, or leave it out to compress only"),
        ({"keys": ["a"]}, "keys has no key"),
        ({"write": "b"}, "write is 'b', and the keys are none"),
        ({"id_key": b"1"}, "id_key has 1 bytes"),
        ({"put": print}, "put and get belong together"),
        ({"put": 1, "get": 2}, "put or get is no function"),
        ({"compress_above": -1}, "compress_above is -1"),
        ({"accept_plain": False}, "accept_plain needs keys"),
        ({"keys": {"a": OLD}, "accept_plain": "tell"}, "accept_plain is 'tell'"),
        ({"keys": {"a": OLD}, "accept_plain": [1]}, "accept_plain is [1]"),
        ({"keys": {"a": OLD}, "accept_plain": 1}, "accept_plain is 1"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Codec(**options)
    assert message in str(raised.value)


def test_bomb_of_zeros_is_not_decompressed() -> None:
    codec = Codec()
    data = zlib.compress(bytes(80_000_000), 9)
    with pytest.raises(CannotOpen, match="more than 67,108,864 bytes"):
        codec.open(About("result"), Sealed(data, zip="zlib"))
    with pytest.raises(CannotOpen, match="no end"):
        codec.open(About("result"), Sealed(zlib.compress(b"1")[:-3], zip="zlib"))
    with pytest.raises(CannotOpen, match="not compressed by zlib"):
        codec.open(About("result"), Sealed(b"plain", zip="zlib"))


def test_large_value_is_stored_and_a_small_one_is_not() -> None:
    stored = dict[str, bytes]()

    async def put(name: str, data: bytes) -> None:
        stored[name] = data

    async def get(name: str) -> bytes:
        return stored[name]

    codec = Codec({"a": OLD}, put=put, get=get, put_above=100)
    small, large = (sealed(codec, {"task": "t", "args": [os.urandom(size).hex()]}) for size in (10, 200))
    assert "ref" not in small["sealed"]
    assert "data" not in large["sealed"]
    assert [*stored] == [large["sealed"]["ref"]]
    assert len(opened(codec, large)["args"][0]) == 400
    with pytest.raises(CannotOpen, match="this codec has none: give it put and get"):
        opened(Codec({"a": OLD}), large)
    stored.clear()
    with pytest.raises(CannotOpen, match=r"the store has nothing under '[0-9a-f]{32}' any more") as raised:
        opened(codec, large)
    assert not raised.value.later


def test_store_that_fails_may_answer_later() -> None:
    async def fail(name: str, data: bytes = b"") -> bytes:
        raise ConnectionError("no route")

    codec = Codec({"a": OLD}, put=fail, get=fail)
    with pytest.raises(CannotOpen, match="the store does not give 'x': ConnectionError: no route") as raised:
        asyncio.run(codec.get(Sealed(key="a", ref="x")))
    assert raised.value.later

    async def forget(name: str) -> Any:
        return None

    codec = Codec({"a": OLD}, put=fail, get=forget)
    with pytest.raises(CannotOpen, match="get returned NoneType for 'x': return bytes") as raised:
        asyncio.run(codec.get(Sealed(key="a", ref="x")))
    assert raised.value.later


@pytest.mark.parametrize(
    ("of", "beside", "named"),
    [
        ("42", {"args": [None]}, "by position"),
        ("42", {"kwargs": {"n": None, "also": None}}, "also, n"),
        ("42", {"kwargs": {"also": None}}, "also"),
        ("", {"kwargs": {"n": 5, "also": None}}, "n"),
    ],
)
def test_sealed_arguments_are_not_changed_by_others_beside_them(of: str, beside: dict[str, Any], named: str) -> None:
    codec = Codec({"a": OLD})
    found = sealed(codec, {"task": "pay", "args": [1], "kwargs": {"n": 8}}, of)
    with pytest.raises(CannotOpen, match=rf"somebody has put others beside them \({named}\): find out who"):
        opened(codec, found | beside)
    assert opened(codec, found | {"args": [], "kwargs": []}) == {"task": "pay", "args": [1], "kwargs": {"n": 8}}


def test_empty_ones_of_another_kind_are_opened() -> None:
    codec = Codec({"a": OLD})
    text = codec.seal(About("arguments", "pay", "42"), b"[[5],[]]")
    assert opened(codec, {"task": "pay", "sealed": text}) == {"task": "pay", "args": [5], "kwargs": {}}


def test_results_in_arguments_are_opened_and_come_after_sealed_ones() -> None:
    codec = Codec({"a": OLD})
    one = decode(asyncio.run(put_value(codec, About("result", of="g.load"), b'{"rows":3}')))
    found = sealed(codec, {"task": "save", "args": [1], "kwargs": {"to": "x"}}, "")
    found |= {"args": [one, [one, None]], "kwargs": {"load": one}}
    assert covers_all(encode(found))
    assert opened(codec, found)["args"] == [1, {"rows": 3}, [{"rows": 3}, None]]
    assert opened(codec, found)["kwargs"] == {"to": "x", "load": {"rows": 3}}
    hook = {"task": "tell", "args": [{"id": "a", "result": one}]}
    assert opened(codec, hook)["args"] == [{"id": "a", "result": {"rows": 3}}]
    assert not covers_all(encode(hook))
    assert not covers_all(encode(found | {"args": [one, 5]}))


def test_reader_without_the_key_sees_how_a_value_is_sealed() -> None:
    codec = Codec({"2026-11": OLD})
    one = decode(asyncio.run(put_value(codec, About("result", of="a"), b"5")))
    found = sealed(codec, {"task": "pay", "tags": ["x"]}) | {"args": [{"result": one}]}
    mark = "[encrypted with key 2026-11]"
    assert masked(found) == {"task": "pay", "tags": ["x"], "sealed": mark, "args": [{"result": mark}]}
    assert masked(one) == mark
    assert masked({"task": "pay", "sealed": {"data": 5}})["sealed"] == "[sealed]"
    assert str(Sealed(b"", zip="zlib")) == "[compressed]"
    assert str(replace(Sealed(), ref="x")) == "[in the store of the app]"


def test_id_of_a_unique_job_cannot_be_computed_without_the_id_key() -> None:
    plain, keyed, other = Codec(), Codec(id_key=OLD), Codec(id_key=NEW)
    assert len({codec.digest(b"[1]") for codec in (plain, keyed, other)}) == 3
    assert keyed.digest(b"[1]") == Codec({"a": NEW}, id_key=OLD).digest(b"[1]")


def test_payload_that_is_sealed_by_null_is_plain() -> None:
    codec, payload = Codec({"a": OLD}), {"task": "pay", "args": [1], "sealed": None}
    assert decode_payload(encode(payload)).sealed is None
    assert opened(codec, payload)["args"] == [1]
    assert not covers_all(encode(payload))
