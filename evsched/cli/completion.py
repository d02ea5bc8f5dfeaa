"""The command that prints a script for tab completion."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from evsched.cli.root import build


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Your shell.")], /) -> None:
    """Print a script for tab completion of commands, flags and their choices. Save it where your shell looks for it.

    bash: evsched completion bash > ~/.local/share/bash-completion/completions/evsched

    zsh: evsched completion zsh > ~/.zfunc/_evsched, with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc

    fish: evsched completion fish > ~/.config/fish/completions/evsched.fish
    """
    print(build().generate_completion(shell=shell))
