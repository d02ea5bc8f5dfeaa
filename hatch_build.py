"""Makes the manual page evsched(1) from the help of the commands when hatchling builds a wheel."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPage(BuildHookInterface[Any]):
    """Adds the page to a wheel. An editable install has none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the page, and tell the build where it is."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from evsched import __version__
        from evsched.cli.commands import INTRODUCTION, reference

        self._folder = TemporaryDirectory()
        page = Path(self._folder.name, "evsched.1")
        page.write_text(manual(__version__, INTRODUCTION, reference()), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/evsched.1"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the page: the wheel has it now."""
        if version != "editable":
            self._folder.cleanup()


def manual(version: str, introduction: tuple[str, ...], help_text: str) -> str:
    """Return the manual page. `help_text` has the commands, in the Markdown of cyclopts."""
    summary, *paragraphs = introduction
    lines = [
        f'.TH EVSCHED 1 "" "evsched {version}" "User Commands"',
        *(".SH NAME", rf"evsched \- {_text(summary[0].lower() + summary[1:].rstrip('.'))}"),
        *(".SH SYNOPSIS", ".B evsched", ".I COMMAND"),
        ".SH DESCRIPTION",
        *_body("\n\n".join(paragraphs)),
        ".SH COMMANDS",
    ]
    for command, body in re.findall(r"^##+ (evsched .+)\n(?s:(.*?))(?=^##+ |\Z)", help_text, re.MULTILINE):
        lines += [f".SS {_text(command)}", *_body(body)]
    lines += [".SH EXIT STATUS", "0: done. 1: refused, or not found. 2: the command line is not valid."]
    return "\n".join(lines) + "\n"


def _body(markdown: str) -> Iterator[str]:
    """Yield the lines of paragraphs, of lists of options, and of the usage, which is a block of code."""
    for number, block in enumerate(re.split(r"\n{2,}", markdown.strip())):
        if block.startswith("* "):
            for name, text in re.findall(r"^\* (\[?`.+?`(?:\]\(.+?\))?): (.*)$", block, re.MULTILINE):
                yield from (".TP", _text(name), _text(text))
            continue
        if number:
            yield ".PP"
        if usage := re.fullmatch(r"```console\n(.*)\n```", block, re.DOTALL):
            yield f".B {_text(usage[1])}"
        elif heading := re.fullmatch(r"\*\*(.+)\*\*:", block):
            yield f".I {_text(heading[1])}:"
        else:
            yield _text(" ".join(block.split()))


def _text(markdown: str) -> str:
    """Return one line in the language of manual pages."""
    text = re.sub(r"\[(`.+?`)\]\(.+?\)", r"\1", markdown)
    text = re.sub(r"\*+(\[.+?\])\*+", r"\1", text)
    text = re.sub(r"\\([*_<>`])", r"\1", text)
    text = text.replace("\\", r"\e").replace("-", r"\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return re.sub(r"^([.'])", r"\\&\1", text)
