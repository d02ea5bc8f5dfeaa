"""The documentation: its links lead somewhere, its tables of commands and findings are those of the code, and its
figures are those of bench/results.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cyclopts import App
from cyclopts.exceptions import CoercionError, MissingArgumentError

from bench import pages
from bench.figures import Failed, Measured
from bench.result import Result
from evsched.cli.commands import build
from evsched.jobs.record import FIELDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "lua/README.md", ROOT / "grafana/README.md"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_is_whole(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for block in re.split(r"\n\s*\n", text):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        if rows:
            assert re.fullmatch(r"\|(-+\|)+", rows[1].replace(" ", "")), f"a table without a header: {rows[0]}"
            assert {len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) for row in rows} == {rows[1].count("|")}


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text())) == pages


def test_the_map_answers_questions_with_files_and_sections_that_exist() -> None:
    table = (DOCS / "design.md").read_text().partition("## Where to find it")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+\?) \| (.+) \|$", table, re.M)
    assert len(rows) > 10
    sections = re.findall(r"^##+ (.+)$", (DOCS / "design.md").read_text(), re.M)
    for question, answer in rows:
        files = re.findall(r"`((?:evsched|lua)/[\w/.]+)`", answer)
        links = re.findall(r"\[([^]]+)\]\(#", answer)
        assert files or links, question
        assert all((ROOT / file).is_file() for file in files), question
        assert set(links) <= set(sections), question


def test_the_folders_that_contributing_names_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
    named = {path.rstrip("/") for path in re.findall(r"`((?:evsched|tests)/\w+/?)`", table)}
    real = {path.parent.relative_to(ROOT) for path in (*ROOT.glob("evsched/*/*.py"), *ROOT.glob("tests/*/*.py"))}
    assert named == {str(path) for path in real}


def test_the_fields_of_a_record_in_the_protocol_are_those_of_the_table() -> None:
    table = (DOCS / "protocol.md").read_text().partition("| field | form | meaning |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| .+ \|$", table, re.M)
    assert rows == [(field.name, field.kind) for field in FIELDS]


def commands_of(app: App, *before: str) -> set[str]:
    """Return the names of all commands below an app, without those that only group others."""
    found = set[str]()
    for name in app:
        if not name.startswith("-"):
            below = commands_of(app[name], *before, name)
            own, others = app[name].default_command, [app[name][one].default_command for one in app[name] if below]
            found |= below if below and (own is None or own in others) else {*below, " ".join([*before, name])}
    return found


def test_the_commands_in_the_docs_are_the_commands() -> None:
    rows = re.findall(r"^\| `evsched ([a-z -]+?)(?: [A-Z\[].*)?` \|", (DOCS / "commands.md").read_text(), re.M)
    assert len(rows) == len(set(rows))
    assert set(rows) == commands_of(build())


def parse(words: Sequence[str]) -> None:
    """Parse a command line as `evsched` does; a command or an option that does not exist is an error."""
    _, _, ignored = build(words[:1]).parse_args(words, exit_on_error=False, print_error=False)
    assert set(ignored) <= {"config"}, words


BEFORE = r"(?:\w+=\S+ )*(?:\S+/)?|.*(?: \||--|&&|manage\.py) "
"""What may stand before `evsched` in a line of a shell: variables, a folder, another command."""


def shell_commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command of evsched in a page's blocks for a shell."""
    for kind, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(), re.M | re.S):
        lines = block.replace("\\\n", " ") if kind in ("", "sh", "bash", "console") else ""
        for before, rest in re.findall(rf"^ *({BEFORE})evsched ([a-z].*)$", lines, re.M):
            words = shlex.split(rest, comments=True)
            own = words[: min([words.index(end) for end in ("|", "&&", ";", ">", "&") if end in words], default=None)]
            is_of_django = "manage.py" in before and own[0] in ("worker", "dev")  # the project is the app
            yield [own[0], "site:app", *own[1:]] if is_of_django else own


def test_the_commands_that_a_reader_copies_are_valid() -> None:
    commands = [words for page in PAGES for words in shell_commands(page)]
    assert len(commands) > 120
    for words in commands:
        parse(words)
    for wrong in ("worker tasks:app --metric-port 1", "workers tasks:app", "worker"):
        with pytest.raises(Exception, match=r"."):
            parse(wrong.split())


def test_the_commands_in_sentences_exist_with_their_options() -> None:
    text = "".join(re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S) for page in DOCS.glob("*.md"))
    found = {" ".join(span.split()) for span in re.findall(r"`(?:\w+=\S+ )?evsched\s([a-z][^`]*)`", text)}
    assert len(found) > 150
    for command in found:
        try:
            parse(shlex.split(command))
        except (MissingArgumentError, CoercionError):
            pass  # a sentence may leave arguments out, or name them


def test_the_findings_in_the_docs_are_those_of_the_doctor() -> None:
    files = [*(ROOT / "evsched/diagnostics").glob("*.py"), ROOT / "evsched/cli/doctor_commands.py"]
    sources = "\n".join(path.read_text() for path in files)
    rows = re.findall(r"^\| (`[^|]+`) \| (?:fault|warning|info)", (DOCS / "doctor.md").read_text(), re.M)
    documented = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    made = set(re.findall(r'Finding\(\s*"([\w-]+)"', sources)) | set(
        re.findall(r'^    "([\w-]+)": _Rule\(', sources, re.M)
    )
    assert made <= documented
    assert {name for name in documented if f'"{name}"' not in sources} == set()


def test_the_tests_that_the_security_page_names_exist() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if "::" in line]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.M), test


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_figures_of_a_page_are_those_of_the_results(page: Path) -> None:
    assert pages.filled(page) == page.read_text(encoding="utf-8"), "python -m bench pages"


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_with_figures_of_results_has_no_table_of_others(page: Path) -> None:
    text, rest = page.read_text(encoding="utf-8"), pages.unmarked(page)
    cells = [cell.strip() for row in re.findall(r"^\|(.+)\|$", rest, re.M) for cell in row.split("|")]
    assert rest == text or [cell for cell in cells if re.fullmatch(r"\d[\d.,]*( (%|s|ms|µs|bytes))?", cell)] == []


def test_a_page_receives_the_figures_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"a": {"x, s": [1.0, 2.0, 6.0], "y": [0.5]}, "b": {"x, s": [4.0]}}
    result = Result(date="2026-11-24", commit="abc", machine="two cores", command="make it")
    result.tables["run"], result.figures["lost"] = Measured("Title", rows), 0
    (tmp_path / "run.json").write_bytes(result.json())
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    places = {
        "run; lost": "0",
        "run; date": "2026-11-24",
        "run; a; x, s": "2",
        "run/run; a; x, s; most": "6",
        "run; a; x, s; against b": "0.50",
    }
    inline = " ".join(f"{{}}<!-- {place} -->" for place in places) + " `{}`<!-- run; command -->\n"
    blocks = "\n\n".join(f"<!-- figures: {place} -->\n\n{{}}\n\n<!-- end -->" for place in ("run", "run/run; x, s"))
    table = "**Title**\n\n|   | x, s       |\n| - | ---------- |\n| a | 2 (1 to 6) |\n| b | 4          |"
    source = "Measured on 2026-11-24 at commit abc by `make it`. Machine: two cores."
    (tmp_path / "page.md").write_text((inline + blocks).format(*"?" * 8))
    assert pages.filled(tmp_path / "page.md") == (inline + blocks).format(*places.values(), "make it", source, table)


@pytest.mark.parametrize(
    "place",
    [
        "<!-- figures: scaling/none -->\n<!-- end -->",
        "<!-- figures: scaling/burst; none -->\n<!-- end -->",
        "<!-- figures: none -->\n<!-- end -->",
        "1<!-- scaling/burst; none; Redis µs/job -->",
        "1<!-- scaling/burst; one queue; none -->",
        "1<!-- scaling; none -->",
        "1<!-- none -->",
        "<!-- figures: scaling/burst none -->",
        "1 <!-- none: a comment that follows no figure -->",
    ],
)
def test_a_page_that_names_a_missing_figure_is_refused(tmp_path: Path, place: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(place)
    with pytest.raises(Failed, match=r"page\.md: .*none"):
        pages.filled(page)
