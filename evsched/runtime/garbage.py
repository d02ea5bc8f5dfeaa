"""Settings of the garbage collector: which objects it skips, and how often it runs.

In a service, runs leave no reference cycles, so the collector finds nothing of ours. But each time it runs it walks all
live objects: by default after 700 new ones, several times for each batch of jobs. That was a tenth of a busy worker's
time.
"""

from __future__ import annotations

import gc
from typing import Final

_NEW_OBJECTS: Final = 10_000
"""New objects after which the collector looks for cycles among them. A batch of jobs has fewer: 256 runs of async
handlers that wait have 25 each."""

_YOUNG: Final = 2
"""Collections of new objects after which the survivors are looked at once more. With the default of 10, that
takes 15 to 20 ms while a dispatcher finds thousands of queues, and its due jobs wait."""

_OLD: Final = 50
"""Collections of both after which all objects are looked at: as seldom as with the defaults of 10 and 10."""

_IMPORTED: Final = 100_000
"""More objects than the imports of any command make. They live to its end, so the collector would find nothing."""


def skip_imports() -> None:
    """Delay the first collection until a command has imported its modules: it would take 20 ms of the start."""
    gc.set_threshold(_IMPORTED, *gc.get_threshold()[1:])


def settle() -> None:
    """Exclude all existing objects from collections: modules and the app, which live as long as the process.

    Call it once, when they are imported.
    """
    gc.collect()  # cycles that the imports left would stay for good
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, _YOUNG, _OLD)
