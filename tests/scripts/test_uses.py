"""The Lua files declare with USES exactly the names they use, so each script carries only what it needs."""

from __future__ import annotations

import re

import pytest

from evsched.transport.call import ALWAYS, Block, declared, folder, needed, script, shared

SCRIPTS = {path.name: path.read_text() for path in sorted(folder().glob("[a-z]*.lua"))}
PARTS = {
    **{name: Block((), declared(text), text) for name, text in SCRIPTS.items()},
    **{block.names[0]: block for block in shared().values()},
}
KEY_NAMES = set(shared()[ALWAYS].names)
LOCALS = r"\blocal function (\w+)|\blocal (?!function)([\w, ]+)|\bfor ([\w, ]+?) (?:=|in)\b"
PARAMETERS = r"\bfunction ?\w*\(([\w, ]*)\)"


def code_of(text: str) -> str:
    """Return Lua code without its comments and without the contents of its strings."""
    return re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "''", re.sub(r"--.*", "", text))


@pytest.mark.parametrize("name", PARTS)
def test_declared_shared_names_match_the_used_ones(name: str) -> None:
    part = PARTS[name]
    words = set(re.findall(r"(?<![.\w])\w+", code_of(part.text)))  # not fields: `rule.burst`
    assert sorted(part.uses) == sorted(words & shared().keys() - KEY_NAMES - set(part.names))


@pytest.mark.parametrize("name", PARTS)
def test_no_local_name_hides_a_shared_one(name: str) -> None:
    """Otherwise a word in the code would be no proof of a use."""
    code = code_of(PARTS[name].text)
    local = ["".join(found) for found in re.findall(LOCALS, code)] + re.findall(PARAMETERS, code)
    words = re.findall(r"\w+", " ".join(local))
    assert not set(words) & shared().keys() - set(PARTS[name].names)


def test_a_name_is_defined_once() -> None:
    defined = [
        name
        for path in folder().glob("_*.lua")
        for names in re.findall(r"^local (?:function )?([\w, ]+)", path.read_text(), re.MULTILINE)
        for name in re.findall(r"\w+", names)
    ]
    assert sorted(defined) == sorted(shared())


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_block_appears_once_and_before_its_users(name: str) -> None:
    source = script(name.removesuffix(".lua")).source
    seen = set[str]()
    for block in needed((ALWAYS, *declared(SCRIPTS[name]))):
        assert source.count(block.text) == 1
        assert set(block.uses) <= seen
        seen.update(block.names)


def test_each_shared_block_is_needed_by_a_script() -> None:
    used = {block for text in SCRIPTS.values() for block in needed((ALWAYS, *declared(text)))}
    assert used == set(shared().values())


@pytest.mark.parametrize("name", [name for name, text in SCRIPTS.items() if "turn_to" in declared(text)])
def test_script_that_turns_to_another_queue_leaves_no_name_of_a_key_behind(name: str) -> None:
    lines = re.findall(r"^  ([\w, ]+) = ", shared()["turn_to"].text, re.MULTILINE)
    turned = {word for line in lines for word in line.split(", ")}
    for block in needed((ALWAYS, *declared(SCRIPTS[name]))):
        for names in re.findall(r"^local ([\w, ]+) = root ", block.text, re.MULTILINE):
            assert {*names.split(", ")} - {"arrived"} <= turned
