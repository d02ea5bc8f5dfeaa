"""Where the nodes of a graph are drawn: from left to right in layers, each node to the right of those before it. Pure.

A line that passes a layer has a lane there, between the boxes, so that it never seems to end in a box that it passes.
All lines of a node share its lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from msgspec import Struct

BOX_WIDTH: Final = 168
BOX_HEIGHT: Final = 48

NODES_MOST: Final = 150
"""Nodes of a graph that is drawn: people do not find their way in a larger drawing."""

_LINES_MOST: Final = 1500
"""Pieces of lines, from one layer to the next."""

_LANE: Final = 2
"""The height of a lane."""

_GAP: Final = 14
"""Between two boxes, one above the other; around a lane it is half of that."""

_BETWEEN: Final = 40
"""From one layer to the next."""

_SWEEPS: Final = 4
"""How often the order in the layers is improved, from the left and from the right."""


class Box(Struct, frozen=True):
    """The place of a node: its left upper corner."""

    node: int
    x: int
    y: int


class NodeLine(Struct, frozen=True):
    """The lines that lead from a node to those after it, as a path of SVG."""

    node: int
    path: str


class Drawing(Struct, frozen=True):
    """A graph that can be drawn."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[NodeLine]


def layers_of(befores: Sequence[Sequence[int]]) -> list[int]:
    """Return the layer of each node: one more than the last layer of those before it, whose numbers are lower."""
    layers = list[int]()
    for before in befores:
        layers.append(max((layers[one] for one in before), default=-1) + 1)
    return layers


def lay_out(befores: Sequence[Sequence[int]]) -> Drawing | None:
    """Lay a graph out; None if it is too large. `befores`: for each node those before it, whose numbers are lower."""
    if len(befores) > NODES_MOST:
        return None
    plan = _Plan(befores)
    if len(plan.links) > _LINES_MOST:
        return None
    for _ in range(_SWEEPS):
        plan.order(rightwards=False)
        plan.order(rightwards=True)
    for rightwards in (True, False, True):
        plan.shift(rightwards=rightwards)
    return plan.draw()


class _Plan:
    """A graph whose nodes and lanes are the items of layers. The numbers of lanes follow those of the nodes."""

    def __init__(self, befores: Sequence[Sequence[int]]) -> None:
        self._nodes = len(befores)
        self._layer = layers_of(befores)
        self.links = list[tuple[int, int, int]]()
        """Pieces of lines: the item on the left, the one on the right, and the node from which the line comes."""
        ends = self._add_lanes(befores)
        for node, before in enumerate(befores):
            self.links += [(ends[one, self._layer[node] - 1], node, one) for one in before]
        self._columns = [list[int]() for _ in range(max(self._layer, default=-1) + 1)]
        for item, layer in enumerate(self._layer):
            self._columns[layer].append(item)
        self._lefts: list[list[int]] = [[] for _ in self._layer]
        self._rights: list[list[int]] = [[] for _ in self._layer]
        for left, right, _ in self.links:
            self._lefts[right].append(left)
            self._rights[left].append(right)
        self._middle = [0.0] * len(self._layer)

    def _add_lanes(self, befores: Sequence[Sequence[int]]) -> Mapping[tuple[int, int], int]:
        """Add the lanes of all lines. Return the item that a line of a node has in a layer: the node, or its lane."""
        last = self._layer[:]
        for node, before in enumerate(befores):
            for one in before:
                last[one] = max(last[one], self._layer[node] - 1)
        ends = {(node, layer): node for node, layer in enumerate(self._layer)}
        for node in range(self._nodes):
            for layer in range(self._layer[node] + 1, last[node] + 1):
                ends[node, layer] = len(self._layer)
                self.links.append((ends[node, layer - 1], ends[node, layer], node))
                self._layer.append(layer)
        return ends

    def order(self, *, rightwards: bool) -> None:
        """Put the items of each layer in the order of the means of their neighbors' places, so that few lines cross."""
        near = self._lefts if rightwards else self._rights
        for column, beside in self._pairs(rightwards=rightwards):
            places = {item: place for place, item in enumerate(beside)}
            own = {item: place for place, item in enumerate(column)}
            wanted = {item: fmean(map(places.__getitem__, near[item])) if near[item] else own[item] for item in column}
            column.sort(key=lambda item: wanted[item])

    def shift(self, *, rightwards: bool) -> None:
        """Move the items of each layer towards the middle of their neighbors, as far as there is room."""
        near = self._lefts if rightwards else self._rights
        columns = self._columns if rightwards else self._columns[::-1]
        for column in columns:
            wanted = [
                fmean(map(self._middle.__getitem__, near[item])) if near[item] else self._middle[item]
                for item in column
            ]
            for item, middle in zip(column, _spread(wanted, [self._height(item) for item in column]), strict=True):
                self._middle[item] = middle

    def _pairs(self, *, rightwards: bool) -> list[tuple[list[int], list[int]]]:
        """Return each layer, and the one beside it that was ordered before it."""
        columns = self._columns if rightwards else self._columns[::-1]
        return [*zip(columns[1:], columns, strict=False)]

    def _height(self, item: int) -> int:
        return BOX_HEIGHT if item < self._nodes else _LANE

    def draw(self) -> Drawing:
        tops = [middle - self._height(item) / 2 for item, middle in enumerate(self._middle)]
        middles = [round(middle - min(tops)) + 1 for middle in self._middle] if tops else []
        bottom = max((middle + self._height(item) // 2 for item, middle in enumerate(middles)), default=0)
        x = [layer * (BOX_WIDTH + _BETWEEN) + 1 for layer in self._layer]
        paths = dict[int, str]()
        for left, right, node in self.links:
            begin, end = x[left] + BOX_WIDTH, x[right]
            half = (begin + end) // 2
            curve = f"C{half},{middles[left]} {half},{middles[right]} {end},{middles[right]}"
            across = f"h{BOX_WIDTH}" if right >= self._nodes else ""
            paths[node] = f"{paths.get(node, '')}M{begin},{middles[left]}{curve}{across}"
        return Drawing(
            max((place + BOX_WIDTH for place in x), default=0) + 1,
            bottom + 1,
            [Box(node, x[node], middles[node] - BOX_HEIGHT // 2) for node in range(self._nodes)],
            [NodeLine(node, path) for node, path in paths.items()],
        )


def _spread(wanted: Sequence[float], heights: Sequence[int]) -> list[float]:
    """Return the middles of items that stand below each other with gaps, as near as possible to the wanted ones.

    Items that want to overlap become a block, which stands in the mean of what its items want.
    """
    offsets, below = list[float](), 0.0
    for height, following in zip(heights, [*heights[1:], 0], strict=True):
        offsets.append(below + height / 2)
        below += height + (_GAP if min(height, following) == BOX_HEIGHT else _GAP / 2)
    blocks = list[list[float]]()  # the sum of the wanted places of their first items, and how many items they have
    for middle, offset in zip(wanted, offsets, strict=True):
        blocks.append([middle - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, items = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += items
    firsts = [total / items for total, items in blocks for _ in range(int(items))]
    return [first + offset for first, offset in zip(firsts, offsets, strict=True)]
