"""Levels of a drawn tree say the same as its parents."""

from __future__ import annotations

import random

import pytest
from specfast.drafters.tree_shape import TreeShape


def random_parents(seed: int) -> list[int]:
    """Of a tree whose nodes come level by level, those of one parent beside each other."""
    draw = random.Random(seed)
    parents, level, count = [], [0], 1
    while level and count < 30:
        above = sorted(draw.choices(level, k=draw.randint(0, 9)))
        parents += above
        level = list(range(count, count + len(above)))
        count += len(above)
    return parents


@pytest.mark.parametrize("seed", range(60))
def test_levels_are_those_of_the_parents(seed: int) -> None:
    parents = random_parents(seed)
    shape = TreeShape.of_parents(parents)
    assert shape.parents == (-1, *parents)
    first, rows = 1, [0]
    for depth, level in enumerate(shape.levels, start=1):
        nodes = list(range(first, first + len(level.rows)))
        assert [shape.depths[node] for node in nodes] == [depth] * len(nodes)
        assert [rows[row] for row in level.rows] == [parents[node - 1] for node in nodes]
        siblings = [[n for n in nodes if parents[n - 1] == parents[node - 1]] for node in nodes]
        assert list(level.draws) == [s.index(n) for s, n in zip(siblings, nodes, strict=True)]
        rows = [node for node in nodes if node in parents]
        assert [nodes[i] for i in level.going_on] == rows
        first += len(nodes)
    assert first == len(parents) + 1
    assert rows == [] or not shape.levels
