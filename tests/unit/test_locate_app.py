"""MODULE:APP: how it is written, and the error for a module without an app."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from evsched.app import find_app
from evsched.errors import CannotStart, ConfigError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "to_be_located.py"
    sys.modules.pop("to_be_located", None)


@pytest.mark.parametrize(
    "name", ["tasks", "tasks:", ":app", "./tasks.py:app", "tasks.py:app", "shop/tasks:app", "a:b:c"]
)
def test_the_error_for_a_malformed_name_shows_the_form(name: str) -> None:
    with pytest.raises(ConfigError, match=r"write MODULE:APP, the dotted name of a module"):
        find_app(name)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit(5)", r"does not import: SystemExit: 5 \(\S+to_be_located.py:1 in <module>\)$"),
        ("1 / 0", r"does not import: ZeroDivisionError: division by zero \(\S+to_be_located.py:1 in <module>\)$"),
        ("def f(): json.loads('{')\nimport json\nf()", r": JSONDecodeError: .* \(\S+to_be_located.py:1 in f\)$"),
        ("import nothing_there", r": ModuleNotFoundError: No module named 'nothing_there' \(\S+.py:1 in <module>\)$"),
        ("", "has no app 'app'"),
    ],
)
def test_a_module_without_an_app_cannot_start(module: Path, code: str, says: str) -> None:
    module.write_text(code)
    with pytest.raises(CannotStart, match=says):
        find_app("to_be_located:app")


def test_traceback_of_a_module_that_does_not_import_is_logged(module: Path, caplog: pytest.LogCaptureFixture) -> None:
    module.write_text("1 / 0")
    with caplog.at_level(logging.DEBUG), pytest.raises(CannotStart):
        find_app("to_be_located:app")
    assert f'File "{module}", line 1, in <module>\n    1 / 0' in caplog.text


def test_the_app_of_a_module_is_found(module: Path) -> None:
    module.write_text("from evsched import App; app = App()")
    assert find_app("to_be_located:app").origin == "to_be_located:app"
