"""The table in docs/settings.md names every setting as it is in the code, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evsched.cli.commands import build
from evsched.cli.options import default, flag
from evsched.config import SETTINGS, Setting, variable

TABLE = Path(__file__).parents[2] / "docs" / "settings.md"


def _row(name: str, setting: Setting) -> list[str]:
    """Return the cells that the table must have for a setting, except its meaning."""
    bounds = "" if setting.range is None else f"{setting.range.least:.12g} to {setting.range.most:.12g}"
    shown = "none" if setting.secret else f"`{flag(name)}`"
    return [shown, f"`{variable(name)}`", default(name), bounds, ", ".join(setting.commands)]


def test_the_table_in_the_docs_has_each_setting_as_it_is_in_the_code() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in TABLE.read_text().splitlines()
        if line.startswith(("| `--", "| none |"))
    ]
    documented = {cells[1]: [cell.strip().strip("`") for cell in cells[:5]] for cells in rows}
    expected = {
        f"`{variable(name)}`": [cell.strip("`") for cell in _row(name, setting)] for name, setting in SETTINGS.items()
    }
    assert documented == expected
    assert len(rows) == len(SETTINGS), "one line each"
    assert all(len(cells) == 6 and cells[5] for cells in rows), "each has a meaning"


@pytest.mark.parametrize("service", ["dispatcher", "worker", "dev", "api", "console"])
def test_each_service_has_a_flag_for_each_of_its_settings(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    returned: Any = build([service])([service, "--help"], exit_on_error=False, result_action="return_value")
    assert returned is None
    shown = " ".join(capsys.readouterr().out.split())
    own = {flag(name) for name, setting in SETTINGS.items() if service in setting.commands and not setting.secret}
    for name, setting in SETTINGS.items():
        has_flag = service in setting.commands and not setting.secret
        assert flag(name) not in own or has_flag or name.startswith(("api_", "console_")), name
        if flag(name) in own and not has_flag:
            continue  # `evsched api` and `console` each have a --host
        assert bool(re.search(rf"{flag(name)}(?![a-z-])", shown)) == has_flag, name
        assert (variable(name) in shown.replace("│ ", "")) or not has_flag
