"""The rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import evsched
from evsched import events, process_events
from evsched.app import find_app

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "evsched").rglob("*.py"))


def test_the_public_names_are_there_and_sorted() -> None:
    assert sorted(evsched.__all__) == sorted(set(evsched.__all__))
    assert all(hasattr(evsched, name) for name in evsched.__all__)


def test_every_file_has_a_docstring_and_a_telling_name() -> None:
    hidden = {"utils", "helpers", "common", "base", "types", "constants", "misc"}
    assert not hidden & {path.stem for path in SOURCES}
    assert all(path.read_text().startswith('"""') for path in SOURCES)


def test_each_class_and_each_file_has_a_name_of_its_own() -> None:
    classes = Counter(
        node.name for path in SOURCES for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    )
    # A view of the console has the name of its page.
    named = [path for path in SOURCES if path.stem not in {"__init__", "__main__"} and path.parent.name != "views"]
    files = Counter(path.stem for path in named)
    assert [name for names in (classes, files) for name, count in names.items() if count > 1] == []


def test_every_event_is_emitted_somewhere() -> None:
    text = "\n".join(path.read_text() for path in SOURCES if path.stem not in {"events", "process_events", "log"})
    values = [*vars(events).values(), *vars(process_events).values()]
    kinds = [kind for kind in values if isinstance(kind, type) and issubclass(kind, events.Event)]
    names = {kind.__name__ for kind in kinds if not kind.__subclasses__()}
    assert names <= {*re.findall(r"\b(\w+)\(", text)}


def test_only_the_store_calls_scripts() -> None:
    calls = re.compile(r"from evsched.transport.call import .*\bscript\b")
    assert {path.parent.name for path in SOURCES if calls.search(path.read_text())} == {"store"}


def test_only_the_transport_imports_redis() -> None:
    imports = re.compile(r"^(import|from) redis", re.MULTILINE)
    found = {path for path in SOURCES if imports.search(path.read_text())}
    assert {path.parent.name for path in found if path.stem != "demo"} == {"transport"}


def test_the_example_is_an_app() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        app = find_app("tasks:app")
    assert set(app.program.tasks) == {"send_mail", "mail_all"}


def test_dir_lists_every_name_before_it_is_imported() -> None:
    script = "import evsched; print(set(evsched.__all__) <= set(dir(evsched)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"
