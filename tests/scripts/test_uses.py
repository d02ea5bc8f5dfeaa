"""The Lua files declare with USES exactly the names they use, so each script carries only what it needs."""

from __future__ import annotations

import re

import pytest

from evsched.transport.call import ALWAYS, Block, declared, folder, needed, script, seldom, shared

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
def test_each_block_appears_once_and_after_what_it_uses(name: str) -> None:
    source = script(name.removesuffix(".lua")).source.replace("rare().", "")
    blocks = needed((ALWAYS, *declared(SCRIPTS[name])))
    assert [source.count(block.text) for block in blocks] == [1] * len(blocks)
    at = {word: source.index(block.text) for block in blocks for word in block.names}
    for block in blocks:
        later = {used for used in block.uses if at[used] > at[block.names[0]]}
        assert later <= {*seldom(SCRIPTS[name])}


LEAN = [name for name, text in SCRIPTS.items() if seldom(text)]


@pytest.mark.parametrize("name", LEAN)
def test_rare_functions_are_made_only_when_a_call_comes_to_them(name: str) -> None:
    source, text = script(name.removesuffix(".lua")).source, SCRIPTS[name]
    names = (ALWAYS, *declared(text))
    common = needed(names, without=seldom(text))
    rare = {word for block in needed(names) if block not in common for word in block.names}
    before, _, rest = source.partition("\nrare = function()\n")
    _, _, after = rest.partition("\nreturn made\nend\n")
    code = code_of(before + after)
    assert not rare & set(re.findall(r"(?<![.\w])\w+", code))
    assert set(re.findall(r"rare\(\)\.(\w+)", code)) == {*seldom(text)}
    assert code.count("rare().") == (before + after).count("rare()."), "none in the text of a message"


@pytest.mark.parametrize(("verb", "most"), [("dispatch", 44), ("start", 19), ("complete", 37), ("enqueue", 12)])
def test_common_scripts_make_few_functions(verb: str, most: int) -> None:
    """Each of them costs an empty call as much as a small command."""
    before, _, rest = script(verb).source.partition("\nrare = function()\n")
    made = re.findall(r"^(?:local )?function ", before + rest.partition("\nreturn made\nend\n")[2], re.MULTILINE)
    assert len(made) <= most


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
