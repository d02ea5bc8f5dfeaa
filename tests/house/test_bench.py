"""The benchmark itself: what the files of schedulers say, which rows a table has, and when a round begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import environments, targets
from bench.comparison import tables
from bench.environments import SCHEDULERS, header, language, note, programs, title
from bench.figures import Failed, Measured, Table, markdown, measure, median
from bench.quiet import settled
from bench.scale import QUICK
from tests.support import postgres

BENCH = Path(environments.__file__).parent


def test_each_other_scheduler_says_what_it_needs() -> None:
    assert all(header(name).dependencies for name in SCHEDULERS if not name.startswith("evsched"))


def test_the_note_of_celery_says_where_jobs_with_an_eta_wait() -> None:
    [text] = note("celery")
    assert text.startswith("celery ")
    assert "jobs with an ETA" in text
    assert "memory" in text
    assert "\n" not in text


def test_the_packages_of_node_are_those_of_the_lock_which_names_no_registry() -> None:
    package = json.loads((BENCH / "package.json").read_text())
    lock = json.loads((BENCH / "package-lock.json").read_text())["packages"]
    needed = {one for name in SCHEDULERS if language(name) == "Node" for one in header(name).dependencies}
    assert needed == set(package["dependencies"])
    assert package["dependencies"] == {name: lock[f"node_modules/{name}"]["version"] for name in needed}
    assert not [path for path, one in lock.items() if "resolved" in one]


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_MODULES", tmp_path)
    monkeypatch.setattr(postgres, "_VERSIONS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    environments.gem_version.cache_clear()


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("bullmq", "npm ci --prefix bench"),
        ("bee_queue", "npm ci --prefix bench"),
        ("sidekiq", "Debian: ruby-sidekiq"),
        ("procrastinate", "Debian: postgresql"),
        ("pg_boss", "Debian: postgresql"),
    ],
)
def test_a_scheduler_that_is_not_installed_says_how_to_get_it(name: str, how: str) -> None:
    with pytest.raises(Failed, match=how):
        programs(name)
    assert title(name)


def test_the_row_of_a_scheduler_that_is_not_installed_says_so_beside_the_others() -> None:
    table = tables([], QUICK, {"bullmq": "not installed (how)"})["sparse"]
    rows = {**table.rows, "another": lambda: {"p50, ms": 1.0}}
    text = markdown(measure(Table(table.title, rows), lambda: 0.25), median)
    assert text.splitlines()[2:] == [
        f"| {'':20}| p50, ms |",
        f"| {'-' * 19} | ------- |",
        f"| {title('bullmq'):19} | -       |",
        f"| {'another':19} | 1       |",
        "",
        f"{title('bullmq')}: not installed (how)",
        "",
        "Load average before each round: 0.25.",
    ]


def test_a_round_waits_until_the_machine_is_quiet_but_not_forever() -> None:
    loads, pauses = [3.0, 0.5, 0.4, 0.3], list[float]()
    assert settled(1, iter(loads).__next__, pauses.append) == 0.4
    assert len(pauses) == 2
    assert settled(1, lambda: 3.0, pauses.append) == 3.0
    assert sum(pauses[2:]) == 60


def test_each_round_says_how_busy_the_machine_was_before_it() -> None:
    loads = [0.2, 0.4, 0.3]
    measured = measure(Table("Title", {"row": lambda: {"x": 1.0}}, rounds=3), iter(loads).__next__)
    assert measured.loads == loads
    assert markdown(measured, median).endswith("\nLoad average before each round: 0.20, 0.40, 0.30.\n")


def test_the_targets_compare_with_the_fastest_of_each_language() -> None:
    rates = {
        "evsched inline": 60.0,
        title("huey"): 2.0,
        title("celery"): 1.0,
        title("bee_queue"): 30.0,
        title("bullmq"): 20.0,
    }
    rows = {row: {"jobs/s": [value]} for row, value in rates.items()}
    lines = targets.table({"throughput": Measured("Title", rows)}).splitlines()
    [python] = [line.split("|")[3].strip() for line in lines if "fastest Python peer" in line]
    [node] = [line.split("|")[3].strip() for line in lines if "fastest Node peer" in line]
    assert (python, node) == ("30 x", "2 x")
