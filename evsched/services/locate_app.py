"""Finding the app: from MODULE:APP on the command line to the app itself."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from evsched.app import App
from evsched.errors import CannotStart, ConfigError


def find_app(name: str) -> App:
    """Import MODULE:APP.

    Raises:
        ConfigError: that is not the form of a name.
        CannotStart: there is no such app; the message says why.
    """
    module_name, colon, attribute = name.partition(":")
    dotted = all(map(str.isidentifier, module_name.split("."))) and not module_name.endswith(".py")
    if not colon or not dotted or not attribute.isidentifier():
        raise ConfigError(
            f"{name!r} names no app: write MODULE:APP, the dotted name of a module (no path) and the variable that "
            "holds the app in it, such as tasks:app or shop.tasks:app"
        )
    place = "in this folder and in the installed packages"
    try:
        if "" not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
    except FileNotFoundError:
        place = "in the installed packages alone: the current folder has been deleted, change to one that exists"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        hint = f" (looked {place})" if error.name == module_name else ""
        raise CannotStart(f"module {module_name!r} does not import: {error}{hint}") from None
    # Whatever a user's module raises while it is imported is the user's mistake, and is reported in one line.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        raise CannotStart(f"module {module_name!r} does not import: {type(error).__name__}: {error}") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        there = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f": it has {', '.join(there)}" if there else ": make one with app = evsched.App()"
        raise CannotStart(f"module {module_name!r} has no app {attribute!r}{hint}")
    app.origin = name
    return app
