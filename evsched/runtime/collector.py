"""The garbage collector: what it need not look at, and how often it looks.

In a service, runs leave no circles of references, so the collector finds nothing of ours, but each time it looks it
walks what is alive: by default after 700 new objects, several times for each batch of jobs. That was a tenth of a busy
worker's time.
"""

from __future__ import annotations

import gc
from typing import Final

_NEW_OBJECTS: Final = 10_000
"""New objects after which the collector looks for circles among them. A batch of jobs has fewer: 256 runs of async
handlers that wait have 25 each."""

_YOUNG: Final = 2
"""Collections of new objects after which those that survived them are looked at once more. With the default of 10, that
takes 15 to 20 ms while a dispatcher finds thousands of queues, and its due jobs wait."""

_OLD: Final = 50
"""Collections of both after which all objects are looked at: as seldom as with the defaults of 10 and 10."""

_IMPORTED: Final = 100_000
"""More objects than the imports of any command make. They live to its end, so the collector would find nothing."""


def skip_imports() -> None:
    """Have the collector first look when more objects exist than imports make: it takes 20 ms of a command's start."""
    gc.set_threshold(_IMPORTED, *gc.get_threshold()[1:])


def settle() -> None:
    """Have the collector pass over all that exists: modules and the app, which live as long as the process.

    Call it once, when they are imported.
    """
    gc.collect()  # circles that the imports left would stay for good
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, _YOUNG, _OLD)
