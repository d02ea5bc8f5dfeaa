"""The console on which rich draws the help and the page of `top`."""

from __future__ import annotations

from rich.console import Console


class PipeConsole(Console):
    """A console whose broken pipe is handled by `main`, as that of any other output: rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that rich is handling."""
        raise
