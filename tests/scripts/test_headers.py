"""The header of each script matches its code."""

from __future__ import annotations

import re

import pytest

from evsched.store.store import Store
from evsched.transport.call import arguments, declared, folder, shared
from tests.support.headers import VERBS, read_header

FAIL = r"fail\('(\w+)'"


@pytest.mark.parametrize("verb", VERBS)
def test_a_header_is_complete_and_matches_the_code(verb: str) -> None:
    lines, code, names = read_header(verb)
    first = (folder() / f"{verb}.lua").read_text().splitlines()[0]
    assert re.fullmatch(r"#!lua( flags=(allow-oom|no-writes)(,allow-cross-slot-keys)?)?", first)
    assert lines[0].startswith(f"-- {verb}: ")
    for mark in ("KEYS", "ARGV", "REPLY", "FAILS", "TWICE"):
        assert mark in names, mark
    assert names["KEYS"] == ["root"]
    unpacked = re.search(r"^local ([\w, ]+) = unpack\(ARGV, 1, (\d+)\)$", code, re.MULTILINE)
    assert unpacked
    assert unpacked[1].split(", ") == names["ARGV"]
    assert int(unpacked[2]) == len(names["ARGV"])
    for start, width in re.findall(r"(?:rows|end_runs)\((\d+), (\d+)", code):
        assert int(start) == len(names["ARGV"]) + 1
        assert int(width) == len(names["ROWS"])
    codes = set(re.findall(FAIL, code))
    for name in declared("\n".join(lines)):
        codes.update(re.findall(FAIL, shared()[name].text))
    assert codes == set(names["FAILS"]) - {"none"}
    assert not re.search(r"\b(KEYS|ARGV)\[", code)


@pytest.mark.parametrize("verb", VERBS)
def test_an_argument_that_is_read_as_a_number_has_a_kind(verb: str) -> None:
    lines, code, _ = read_header(verb)
    kinds = {name: kind for mark in ("ARGV", "ROWS") for name, kind, _ in arguments("\n".join(lines), mark)}
    assert all(kinds.get(name, "kind") for name in re.findall(r"\btonumber\((\w+)\)", code))


def test_each_verb_is_a_method_of_the_store() -> None:
    for verb in VERBS:
        assert callable(getattr(Store, verb)), verb
