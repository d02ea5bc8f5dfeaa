"""A scene, and how scenes are run: one after the other on one stage. For each that fails, it prints the difference.

`worker_scenes.py`, `sealed_scenes.py` and `producer_scenes.py` have the scenes, in the order in which they play.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from evsched.conformance.stage import Stage, Unexpected
from evsched.errors import ConfigError, EvschedError

S = TypeVar("S", bound=Stage)


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
    """Run the scenes of these names, or all, on a stage; return 0 if none has failed, else 1.

    Raises:
        EvschedError: there is no scene of a name, or the stage could not be set up.
    """
    some = chosen(scenes, names)
    with stage:
        return run_scenes(stage, some)


def run_scenes(stage: S, scenes: Sequence[Scene[S]]) -> int:
    """Run scenes one after the other; return 0 if none has failed, else 1."""
    failed, skipped = list[str](), list[str]()
    for scene in scenes:
        began, seen = time.monotonic(), ""
        try:
            stage.keep_running()
            scene.play(stage)
        except NotSupported as error:
            skipped.append(scene.name)
            print(f"skipped {scene.name}: {error}", flush=True)
            continue
        except (Unexpected, EvschedError) as error:
            seen = str(error)
        took = time.monotonic() - began
        if not seen:
            print(f"ok      {scene.name}  ({took:.1f} s)", flush=True)
            continue
        failed.append(scene.name)
        print(f"FAILED  {scene.name}  ({took:.1f} s)\n  expected: {scene.expected}\n  seen: {seen}", flush=True)
        if output := stage.last_output():
            print("  the end of its output:\n    " + output.replace("\n", "\n    "), flush=True)
        stage.start_over()
    passed = f"{len(scenes) - len(failed) - len(skipped)} of {len(scenes)} scenes passed"
    lists = [f"{name}: {', '.join(some)}" for name, some in (("failed", failed), ("skipped", skipped)) if some]
    print("; ".join([passed, *lists]))
    return 1 if failed else 0
