"""The documentation site, and the pictures of the documentation."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import evsched
from tests.support.command import run

ROOT = Path(__file__).parents[2]
PICTURES = [path for path in (ROOT / "docs").glob("*.svg") if "Matplotlib" not in path.read_text()]


class Loads(HTMLParser):
    """Collects the addresses that a browser loads to show a page; links that a reader follows are not among them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "srcset", "data", "poster", *(["href"] if tag in ("link", "use", "image") else []))
        self.addresses += [value for name, value in attrs if name in names and value]


def foreign(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the addresses on other hosts that pages and style sheets load."""
    for page in folder.rglob("*.html"):
        yield from (
            (page.name, one) for one in Loads(page.read_text()).addresses if re.match(r"\w+:(?!image/)|//", one)
        )
    for sheet in folder.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", sheet.read_text())
        yield from ((sheet.name, one) for one in loaded if re.match(r"https?:|//", one))


CONFIG = """
INHERIT: {root}/mkdocs.yml
docs_dir: {root}/docs
hooks: [{root}/docs/hooks.py]
"""


@pytest.mark.extra
def test_the_site_of_a_release_is_whole_and_loads_nothing_from_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "evsched")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "evsched@example.com")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "mkdocs.yml").write_text(CONFIG.format(root=ROOT))
    run("git", "init", "--quiet", cwd=tmp_path)
    run("git", "commit", "--quiet", "--allow-empty", "--message", "Begin", cwd=tmp_path)
    run("mike", "deploy", "--update-aliases", "0.1", "latest", cwd=tmp_path)
    [version] = json.loads(run("git", "show", "gh-pages:versions.json", cwd=tmp_path))
    assert (version["version"], version["aliases"]) == ("0.1", ["latest"])
    site = tmp_path / "site"
    assert list(foreign(site)) == []
    pages = {path.relative_to(site).parent.name: path.read_text() for path in site.rglob("index.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"} <= {*pages}
    assert "hooks.py" not in {path.name for path in site.rglob("*")}
    assert "evsched dead list [OPTIONS]" in pages["options"]
    for name in {*evsched.__all__} - {"__version__"}:
        assert f'id="evsched.{name}"' in pages["names"], name
    for name, page in pages.items():
        # A table or a list that only a forge shows as one.
        assert re.findall(r"<p>(?:\||[^<]*\n[*-] )", page) == [], name
        assert 'class="mermaid"' not in page, name
    found = {entry["location"] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    assert {"design/#recovery", "names/#evsched.Retry", "options/#evsched-worker", "security/"} <= found


@pytest.mark.parametrize("page", ['<img src="https://a.test/b.png">', '<script src="//a.test/b.js"></script>'])
def test_a_foreign_address_is_found(tmp_path: Path, page: str) -> None:
    (tmp_path / "index.html").write_text(f'<a href="https://a.test">a</a><img src="b.svg">{page}')
    assert len(list(foreign(tmp_path))) == 1


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_used_and_can_be_read_in_the_light_and_in_the_dark(path: Path) -> None:
    drawn = ElementTree.parse(path).getroot()
    words = drawn.findtext("{http://www.w3.org/2000/svg}title")
    assert words
    assert any(f"]({path.name})" in page.read_text() for page in (ROOT / "docs").glob("*.md"))
    light, _, dark = path.read_text().partition("@media (prefers-color-scheme: dark)")
    used = {name for names in re.findall(r'class="([^"]+)"', dark) for name in names.split()}
    drawn_with = {name for name in used if f".{name} {{" in light and re.search(rf"\.{name} {{[^}}]*#", light)}
    assert all(f".{name} {{" in dark for name in drawn_with)
    assert "ground" in drawn_with
