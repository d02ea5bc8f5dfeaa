"""The designs by name."""

from __future__ import annotations

from typing import Final

from bench.alternatives.client import Design
from bench.alternatives.event_script import EventScript
from bench.alternatives.key_expiry import KeyExpiry
from bench.alternatives.negative_scores import NegativeScores
from bench.alternatives.polling import Polling
from bench.alternatives.timestamp_lists import TimestampLists
from bench.alternatives.watch_multi import WatchMulti

DESIGNS: Final[dict[str, Design]] = {
    "evsched's: script, sleep until due, events": EventScript(),
    "polling each second": Polling(1.0),
    "polling each 10 ms": Polling(0.01),
    "WATCH and MULTI": WatchMulti(),
    "key expiry": KeyExpiry(),
    "a list per timestamp": TimestampLists(),
    "negative scores": NegativeScores(),
}
