"""Adds to the documentation site what mkdocs.yml cannot say, so that the pages stay as a forge shows them.

The menu is the index, docs/README.md: a page is listed once. Pages outside docs/ become pages of the site, and the
docstrings of the public names and the help of the commands make two more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

import evsched
from evsched.cli.commands import reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]

OUTSIDE: Final = {
    "README.md": "evsched.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "clients/node/README.md": "node.md",
    "lua/README.md": "lua.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository outside docs/, and their names on the site."""

NAMES: Final = "names.md"
OPTIONS: Final = "options.md"
_AFTER: Final = {"python.md": NAMES, "commands.md": OPTIONS}
"""The place of each generated page in the menu: after this one."""


def on_config(config: MkDocsConfig) -> None:
    """Make the menu of the links in the index, under its headings."""
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in (ROOT / "docs/README.md").read_text().splitlines():
        if found := re.fullmatch(r"## (.+)|(For .+):", line):
            heading = found[1] or found[2]
        for link in re.findall(r"\]\(([^)#]+)\)", line) if heading else []:
            page = _on_site("docs/README.md", link)
            sections.setdefault(heading, []).extend([page, *([_AFTER[page]] if page in _AFTER else [])])
    listed = {page for pages in sections.values() for page in pages}
    rest = [page for page in OUTSIDE.values() if page not in {*listed, OUTSIDE["README.md"]}]
    config.nav = [
        "README.md",
        OUTSIDE["README.md"],
        *({name: pages} for name, pages in sections.items()),
        {"Project": rest},
    ]
    config.site_name = f"evsched {evsched.__version__}"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside docs/, and the generated ones."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    for name, content in ((NAMES, _names()), (OPTIONS, _options())):
        files.append(File.generated(config, name, content=content))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have the links to files of the repository lead to pages of the site."""
    outside = {name: path for path, name in OUTSIDE.items()}
    path = outside.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return re.sub(r"\]\((?!\w+:)([^)\s#]+)", lambda link: f"]({_on_site(path, link[1])}", markdown)


def _on_site(path: str, link: str) -> str:
    """Return where a link leads that is in the file `path` of the repository."""
    target = os.path.normpath(f"{os.path.dirname(path)}/{link}") if "/" in path else link  # noqa: PTH120
    return OUTSIDE.get(target, target.removeprefix("docs/"))


def _names() -> str:
    public = [name for name in evsched.__all__ if name != "__version__"]
    return (
        "# The public names\n\nThe names of the package `evsched`, with their docstrings. "
        "[The Python API](python.md) says how to use them.\n\n" + "\n".join(f"::: evsched.{name}\n" for name in public)
    )


def _options() -> str:
    head = "# Commands with their options\n\nThe help of each command. [Commands](commands.md) is shorter.\n\n"
    return head + reference()
