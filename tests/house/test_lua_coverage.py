"""The measure of which blocks of the Lua scripts are reached: it counts each kind of block, and changes no reply."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from evsched.transport.embedded import EmbeddedRedis
from tests.support.lua_coverage import instrument, numbers_of, report

PRELUDE = "local root = KEYS[1]\n"
VERB = """
local function never() return 1 end
local way = ARGV[1]
local n = 0
for i = 1, 2 do n = n + i end
for _, word in ipairs({}) do n = word end
while n > 99 do n = 0 end
repeat n = n + 1 until n > 5
if way == 'a' then n = 10 end
if way == 'a' then
  n = n + 1
elseif way == 'b' then
  n = n + 2
else
  n = n + 3
end
if way == 'error' then error({ err = 'CODE a refusal' }) end
if way == 'early' then return root end
return { n, way }
"""


@pytest.fixture
def source() -> tuple[str, list[Any]]:
    prelude, none = instrument("_prelude.lua", PRELUDE, 0)
    assert none == []
    verb, blocks = instrument("verb.lua", VERB, 0)
    return f"#!lua\n\n{prelude}\n{verb}", blocks


def test_blocks_that_no_call_reaches_are_reported(
    server: EmbeddedRedis, raw: Any, source: tuple[str, list[Any]]
) -> None:
    text, blocks = source
    before = len(server.log.read_text())
    assert raw.eval(text, 1, "x", "a") == [11, b"a"]
    with pytest.raises(ResponseError, match="CODE a refusal"):
        raw.eval(text, 1, "x", "error")
    lines = server.log.read_text()[before:].splitlines()
    met = {number for line in lines for number in numbers_of(line) or ()}
    assert report(blocks, met).splitlines() == [
        "lua/verb.lua:2: function never",
        "lua/verb.lua:6: for loop",
        "lua/verb.lua:7: while loop",
        "lua/verb.lua:12: elseif",
        "lua/verb.lua:18: if",
        "9 of 14 blocks reached: 64.3 %",
    ]
    assert raw.eval(text, 1, "x", "early") == b"x"
    assert raw.eval(text, 1, "x", "b")[1] == b"b"
    assert raw.dbsize() == 0
