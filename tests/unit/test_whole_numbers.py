"""Each command reads its whole numbers by the same rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from cyclopts import App, Parameter

from evsched.cli.commands import COMMANDS, build
from evsched.cli.options import whole


def _functions(app: App) -> list[Callable[..., Any]]:
    found: list[Callable[..., Any]] = [app.default_command] if app.default_command else []
    for name in app:
        if not name.startswith("-"):
            found += _functions(app[name])
    return found


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_whole_numbers_are_read_by_one_rule(command: str) -> None:
    for function in _functions(build([command])[command]):
        for name, hint in get_type_hints(function, include_extras=True).items():
            kinds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            if name != "return" and (kinds[0] is int or int in get_args(kinds[0])):
                assert [one.converter for one in kinds if isinstance(one, Parameter)] == [whole], f"{function} {name}"
