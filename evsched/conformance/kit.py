"""Runs scenes against a command. For each that fails, it prints what the scene expects and what it has seen."""

from __future__ import annotations

import time
from collections.abc import Sequence

from evsched.conformance.scenes import SCENES, Scene
from evsched.conformance.stage import Stage, Unexpected
from evsched.errors import ConfigError, EvschedError


def chosen(names: Sequence[str]) -> list[Scene]:
    """Return the scenes of these names; none given = all.

    Raises:
        ConfigError: there is no scene of a name.
    """
    known = {scene.name for scene in SCENES}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no scene {unknown[0]!r}: `evsched conformance --list` prints them all")
    return [scene for scene in SCENES if not names or scene.name in names]


def run_scenes(command: str, scenes: Sequence[Scene], lease: float) -> int:
    """Run scenes one after the other; return 0 if all passed, else 1.

    Raises:
        EvschedError: the stage could not be set up.
    """
    failed = list[str]()
    with Stage(command, lease) as stage:
        for scene in scenes:
            began, seen = time.monotonic(), ""
            try:
                stage.keep_running()
                scene.play(stage)
            except (Unexpected, EvschedError) as error:
                seen = str(error)
            took = time.monotonic() - began
            if not seen:
                print(f"ok      {scene.name}  ({took:.1f} s)", flush=True)
                continue
            failed.append(scene.name)
            output = stage.last_output()
            print(f"FAILED  {scene.name}  ({took:.1f} s)\n  expected: {scene.expected}\n  seen: {seen}", flush=True)
            if output:
                print("  the end of the worker's output:\n    " + output.replace("\n", "\n    "), flush=True)
            stage.start_over()
    passed = f"{len(scenes) - len(failed)} of {len(scenes)} scenes passed"
    print(passed if not failed else f"{passed}; failed: {', '.join(failed)}")
    return 1 if failed else 0
