"""A histogram that counts a whole batch of values in one call.

The one of prometheus-client takes 0.7 us for each value, and each job has two; this one takes 0.1 us for each value of
a batch. The output of a scrape is made by the library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

LATENESS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds of buckets, in seconds: from the lateness of a good start to one that needs somebody's attention."""

RUN: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)


class Histogram(Collector):
    """A family of histograms, one for each set of label values. Observe from one thread; any may collect."""

    def __init__(self, name: str, what: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._what = what
        self._labels = labels
        self._bounds = bounds
        self._names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
        self._found: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, labels: tuple[str, ...], values: Iterable[float]) -> None:
        """Count the values of one set of label values."""
        found = self._found.get(labels)
        if found is None:
            found = self._found[labels] = [0] * len(self._names), [0.0]
        counts, total = found
        bounds = self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total[0] += value

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """Name the family, for the registry."""
        return [HistogramMetricFamily(self._name, self._what, labels=self._labels)]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return the counts so far, for a scrape."""
        family = HistogramMetricFamily(self._name, self._what, labels=self._labels)
        for labels, (counts, total) in list(self._found.items()):
            running, buckets = 0, list[tuple[str, float]]()
            for name, count in zip(self._names, list(counts), strict=True):
                running += count
                buckets.append((name, running))
            family.add_metric(labels, buckets, total[0])
        return [family]
