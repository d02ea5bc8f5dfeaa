"""How a graph is laid out: layers, the order in them, and lines that pass other nodes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from evsched.console.graph_layout import BOX_HEIGHT, BOX_WIDTH, NODES_MOST, Drawing, lay_out, layers_of

DIAMOND = [(), (0,), (0,), (1, 2)]


def drawn(befores: list[tuple[int, ...]]) -> Drawing:
    found = lay_out(befores)
    assert found is not None
    return found


def test_node_stands_one_layer_behind_the_last_one_before_it() -> None:
    assert layers_of([*DIAMOND, (0, 3), ()]) == [0, 1, 1, 2, 3, 0]


def test_chain_is_a_straight_line() -> None:
    found = drawn([(), (0,), (1,), (2,)])
    assert {box.y for box in found.boxes} == {1}
    assert all(left.x + BOX_WIDTH < right.x for left, right in pairwise(found.boxes))
    assert found.height == BOX_HEIGHT + 2


def test_diamond_stands_around_its_middle() -> None:
    first, upper, lower, last = drawn(DIAMOND).boxes
    assert first.y == last.y == (upper.y + lower.y) / 2
    assert lower.y >= upper.y + BOX_HEIGHT


def test_order_in_a_layer_follows_the_layer_before_it() -> None:
    boxes = drawn([(), (), (), (2,), (0,), (1,)]).boxes
    assert [boxes[3].y, boxes[4].y, boxes[5].y] == [boxes[2].y, boxes[0].y, boxes[1].y]


def test_boxes_do_not_overlap_and_are_inside() -> None:
    befores: list[tuple[int, ...]] = [(), *[(0,)] * 20, *[(at, at + 1, 0) for at in range(1, 19)], tuple(range(39))]
    found = drawn(befores)
    assert len({(box.x, box.y) for box in found.boxes}) == len(befores)
    for x in {box.x for box in found.boxes}:
        column = sorted(box.y for box in found.boxes if box.x == x)
        assert all(lower - upper >= BOX_HEIGHT for upper, lower in pairwise(column))
    assert min(box.y for box in found.boxes) >= 1
    assert max(box.y for box in found.boxes) + BOX_HEIGHT < found.height
    assert max(box.x for box in found.boxes) + BOX_WIDTH < found.width


def test_line_that_passes_a_layer_goes_between_the_boxes() -> None:
    found = drawn([(), (0,), (1,), (0, 2)])
    path = next(line.path for line in found.lines if line.node == 0)
    lanes = [int(y) for y in re.findall(r",(\d+)h", path)]
    assert len(lanes) == 2, "one for each of the two layers between them"
    for box, lane in zip(found.boxes[1:3], lanes, strict=True):
        assert not box.y <= lane <= box.y + BOX_HEIGHT


def test_lines_of_a_node_share_their_lanes() -> None:
    befores: list[tuple[int, ...]] = [(), (0,), (1,), *[(0, 2)] * 30]
    path = next(line.path for line in drawn(befores).lines if line.node == 0)
    assert path.count("h") == 2


@pytest.mark.parametrize(
    "befores",
    [[()] * (NODES_MOST + 1), [(), *[tuple(range(at)) for at in range(1, 100)]]],
    ids=["many nodes", "many lines"],
)
def test_large_graph_is_not_drawn(befores: list[tuple[int, ...]]) -> None:
    assert lay_out(befores) is None


@pytest.mark.extra
def test_chain_of_as_many_nodes_as_are_drawn() -> None:
    assert len(drawn([(at - 1,) if at else () for at in range(NODES_MOST)]).boxes) == NODES_MOST
    assert drawn([()]).width == BOX_WIDTH + 2
