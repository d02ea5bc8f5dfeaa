"""Comments, docstrings and test names are plain English: none has a phrase that this project once overused.

A clause without a noun ("what is left"), a fronted "Of ..." or a private word must be read twice.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PHRASES = re.compile(
    r"""
    \b[Mm]end(s|ed|ing)?\b(?!:)                                 # repair, correct; `mend` is a verb of the store
    | \b[Ww]ho(so)?ever\b | \banew\b | \btold\b
    | (?<!there\ )\b(is|are|was|were)\ none\b                   # is not valid
    | \bso\ (many|much)\b(?!\ (that|as)\b)                      # this many, this much
    | \b(is|are|was|were|be|stays?)\ away\b                     # is down, cannot be reached
    | \bof\ one\ that\b
    | \bthose\ (that|which|who)\b                               # name the things: jobs that
    | \b[Ww]hat\ (is|are|was|were|has|had|came|became|becomes|of)\b
    | (?:\A|(?<=[.:;]\s)|(?<=\n\n))\s*(Of|What)\b[^?]*?\.(\s|\Z)  # at the head of a sentence
    """,
    re.VERBOSE,
)

NAMES = re.compile(
    r"_(mends|mended|whoever|anew|told|so_many|so_much|is_away|are_none)(_|\Z)|_those_(that|which|who)_"
    r"|_of_one_that_|_what_(is|are|was|were|has|had|came|became|becomes)_|\Atest_(of|those)_"
)


def prose_of(path: Path) -> Iterator[str]:
    """Yield the comments and docstrings of a file; adjacent comment lines as one text. Quoted code is left out."""
    source = path.read_text()
    if path.suffix == ".lua":
        blocks = re.findall(r"(?:^[^\n]*?--(?!\[)[^\n]*\n)+", source, re.M)
        texts = ["\n".join(re.findall(r"--\ ?(.*)", block)) for block in blocks]
    else:
        nodes = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        texts += [
            token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        ]
    for text in texts:
        yield re.sub(r"`[^`\n]*`", "`", text)


def phrases_in(text: str) -> list[str]:
    return [" ".join(match[0].split()) for match in PHRASES.finditer(text)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Mend what is left.", 2),
        ("Say which job it is.", 0),
        ("Of one that is no shard, it has none.", 1),
        ("Return the jobs: those that are due, whoever made them.", 2),
        ("Return the jobs. Of these, none is late.", 1),
        ("None if there is none. So many jobs wait that it stops.", 0),
        ("The time of course.", 0),
    ],
)
def test_the_phrases_are_recognised(text: str, count: int) -> None:
    assert len(phrases_in(text)) == count


@pytest.mark.parametrize("folder", ["evsched", "lua"])
def test_comments_and_docstrings_have_none_of_the_phrases(folder: str) -> None:
    files = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in {".py", ".lua"}]
    assert len(files) > 50
    found = {str(path.relative_to(ROOT)): [p for text in prose_of(path) for p in phrases_in(text)] for path in files}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_the_names_of_tests_have_none_of_the_phrases() -> None:
    files = sorted(
        path for path in (ROOT / "tests").rglob("test_*.py") if not {".venv", "node_modules"} & {*path.parts}
    )
    names = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(names) > 1000
    assert sorted(name for name in names if NAMES.search(name)) == []


def test_the_documentation_has_none_of_the_private_words() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]
    words = re.compile(r"\bmend(?:s|ed|ing)?\b|\bwho(?:so)?ever\b|\banew\b|(?<=[.] )Of \w+")
    found = {page.name: words.findall(re.sub(r"`[^`\n]*`|^#.*", "", page.read_text(), flags=re.M)) for page in pages}
    assert {name: phrases for name, phrases in found.items() if phrases and name != "CHANGELOG.md"} == {}
