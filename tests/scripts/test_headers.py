"""The header of each script matches its code."""

from __future__ import annotations

import re

import pytest

from evsched.store.store import Store
from evsched.transport.call import declared, folder, shared

VERBS = sorted(path.stem for path in folder().glob("*.lua") if not path.stem.startswith("_"))
FAIL = r"fail\('(\w+)'"
MARKS = ("KEYS", "ARGV", "ROWS", "REPLY", "FAILS", "TWICE")


def read(verb: str) -> tuple[list[str], str, dict[str, list[str]]]:
    """Return the header's lines, the code, and the names under each mark."""
    lines = (folder() / f"{verb}.lua").read_text().splitlines()
    end = next(n for n, line in enumerate(lines[1:], 1) if not line.startswith("--"))
    names: dict[str, list[str]] = {}
    mark = ""
    for line in lines[1:end]:
        found = re.match(r"-- (\w+)  +(.*)|--        (\w+)  +(.*)", line)
        if found and found[1] in MARKS:
            mark = found[1]
            names[mark] = [found[2].split()[0]]
        elif found and found[3] and mark in ("ARGV", "ROWS", "FAILS"):
            names[mark].append(found[3])
        elif line == "--":
            mark = ""
    return lines[1:end], "\n".join(lines[end:]), names


@pytest.mark.parametrize("verb", VERBS)
def test_a_header_is_complete_and_matches_the_code(verb: str) -> None:
    lines, code, names = read(verb)
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


def test_each_verb_is_a_method_of_the_store() -> None:
    for verb in VERBS:
        assert callable(getattr(Store, verb)), verb
