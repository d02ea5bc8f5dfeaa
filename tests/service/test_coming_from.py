"""The pages for those who come from other schedulers: what they must have, and the task that runs commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evsched import GiveUp

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.anyio


def programs(page: str) -> dict[str, str]:
    """Return the programs of a page in Python, by the names of the files in their first lines."""
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    return {name: text for text, name in blocks}


@pytest.mark.parametrize("page", [*DOCS.glob("from-*.md")], ids=lambda page: page.name)
def test_page_has_both_programs_words_and_differences(page: Path) -> None:
    text = page.read_text()
    assert {"tasks.py", "send.py"} <= set(programs(page.name))
    assert re.findall(r"^## (.+)$", text, re.M) == [
        "The same program twice",
        "Words",
        "What is different",
        "What evsched does not have",
    ]
    assert re.search(r"`send\.py` prints\s", text), "test_doc_examples.py looks whether it does"


async def test_task_that_runs_commands_does_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = tmp_path / "commands"
    commands.write_text(f"touch {tmp_path}/done\nexit 3\n")
    monkeypatch.setenv("COMMANDS", str(commands))
    program = dict[str, Any]()
    exec(programs("import.md")["tasks.py"], program)
    run_command = program["run_command"]
    await run_command(f"touch {tmp_path}/done")
    assert (tmp_path / "done").exists()
    with pytest.raises(RuntimeError, match="ended with 3"):
        await run_command("exit 3")
    with pytest.raises(GiveUp, match="is not among the commands"):
        await run_command(f"touch {tmp_path}/harm")
    assert not (tmp_path / "harm").exists()
