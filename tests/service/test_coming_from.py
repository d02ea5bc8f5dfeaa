"""The pages for those who come from other schedulers: our half of each program runs, and does what the page says."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evsched import GiveUp
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.patience import PATIENCE

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "from-rq.md",
    *(pytest.param(f"from-{one}.md", marks=pytest.mark.extra) for one in ("apscheduler", "sidekiq", "bullmq")),
]

pytestmark = pytest.mark.anyio


def programs(page: str) -> dict[str, str]:
    """Return the programs of a page in Python, by the names of the files in their first lines."""
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    return {name: text for text, name in blocks}


@pytest.mark.parametrize("page", PAGES)
def test_our_half_of_the_program_prints_what_the_page_says(page: str, own: EmbeddedRedis, tmp_path: Path) -> None:
    found = programs(page)
    for name in ("tasks.py", "send.py"):
        (tmp_path / name).write_text(found[name])
    cli = Cli(own.url, tmp_path)
    with cli.started("dev", "tasks:app") as (child, log):
        log.until("WorkerStarted")
        words = [sys.executable, "-W", "error", "send.py"]
        done = subprocess.run(
            words, env=cli.environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f"`send.py` prints\n`{done.stdout.strip()}`" in (DOCS / page).read_text().replace(
            "prints `", "prints\n`"
        )
        (recurrence,) = cli.json("recurrences", "--queue", "mail" if page == "from-bullmq.md" else "default")
        assert (recurrence["name"], recurrence["rule"], recurrence["zone"]) == (
            "report",
            "0 9 * * mon-fri",
            "Europe/Berlin",
        )
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0


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
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        compile(block, page.name, "exec")


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
