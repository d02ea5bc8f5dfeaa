"""A scene, and how scenes are run: one after the other on one stage. For each that fails, it prints the difference.

`worker_scenes.py`, `sealed_scenes.py` and `producer_scenes.py` have the scenes, in the order in which they play.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from evsched.conformance.stage import Stage, Unexpected
from evsched.errors import ConfigError, EvschedError

S = TypeVar("S", bound=Stage)

_SEEN: Final = 300
"""Characters of a message that quotes the program."""


class Scene(Struct, Generic[S], frozen=True):
    """A scene, and the behaviour that it expects."""

    name: str
    expected: str
    play: Callable[[S], None]


class NotSupported(Exception):
    """The program under test says that it cannot do what a scene asks for, and need not."""


def adding_to(scenes: list[Scene[S]]) -> Callable[[str], Callable[[Callable[[S], None]], Callable[[S], None]]]:
    """Return a decorator that adds a scene to a list, named after its function."""

    def scene(expected: str) -> Callable[[Callable[[S], None]], Callable[[S], None]]:
        def add(play: Callable[[S], None]) -> Callable[[S], None]:
            scenes.append(Scene(play.__name__.strip("_").replace("_", "-"), expected, play))
            return play

        return add

    return scene


def chosen(scenes: Sequence[Scene[S]], names: Sequence[str]) -> list[Scene[S]]:
    """Return the scenes of these names; none given = all.

    Raises:
        ConfigError: there is no scene of a name.
    """
    known = {scene.name for scene in scenes}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no scene {unknown[0]!r}: `evsched conformance --list` prints them all")
    return [scene for scene in scenes if not names or scene.name in names]


def conform(stage: S, scenes: Sequence[Scene[S]], names: Sequence[str]) -> int:
    """Run the scenes of these names, or all, on a stage; return 0 if some passed and none failed, else 1.

    Raises:
        EvschedError: there is no scene of a name, or the stage could not be set up.
    """
    some = chosen(scenes, names)
    with stage:
        return run_scenes(stage, some)


def run_scenes(stage: S, scenes: Sequence[Scene[S]]) -> int:
    """Run scenes one after the other; return 0 if some passed and none failed, else 1."""
    failed, skipped = list[str](), list[str]()
    for scene in scenes:
        began, seen, lacks = time.monotonic(), "", None
        try:
            stage.keep_running()
            try:
                scene.play(stage)
            except NotSupported as error:
                lacks = str(error)
            stage.check_after()
        except (Unexpected, EvschedError) as error:
            seen = str(error)
        except Exception as error:  # noqa: BLE001 - a program may write anything, and the other scenes are to run
            seen = f"what the program wrote or answered has another form: {type(error).__name__}: {error}"[:_SEEN]
        took = time.monotonic() - began
        if not seen and lacks is not None:
            skipped.append(scene.name)
            _say(f"skipped {scene.name}: {lacks}")
            continue
        if not seen:
            _say(f"ok      {scene.name}  ({took:.1f} s)")
            continue
        failed.append(scene.name)
        _say(f"FAILED  {scene.name}  ({took:.1f} s)\n  expected: {scene.expected}\n  seen: {seen}")
        if output := stage.last_output():
            _say("  the end of its output:\n    " + output.replace("\n", "\n    "))
        stage.start_over()
    passed = len(scenes) - len(failed) - len(skipped)
    lists = [f"{name}: {', '.join(some)}" for name, some in (("failed", failed), ("skipped", skipped)) if some]
    _say("; ".join([f"{passed} of {len(scenes)} scenes passed", *lists]))
    return 0 if passed and not failed else 1


def _say(text: str) -> None:
    """Print a text that may quote the program: half of a surrogate pair cannot be printed."""
    print(text.encode(errors="backslashreplace").decode(), flush=True)
