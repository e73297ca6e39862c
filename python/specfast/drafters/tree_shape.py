"""The shape of a tree whose drafts are drawn: it is fixed before the draw."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

# Of a node's children each is taken to be this much less worth than the one drawn before it.
_DECAY = 0.4


@dataclass(frozen=True)
class LevelShape:
    """Nodes of one level, in order.

    rows : of each node, which node with children of the level before it was drawn from
    draws : of each node, the number of its draw from that row
    going_on : those nodes of this level, counted from 0, that have children themselves
    """

    rows: tuple[int, ...]
    draws: tuple[int, ...]
    going_on: tuple[int, ...]

    @property
    def num_draws(self) -> int:
        return max(self.draws) + 1


@dataclass(frozen=True)
class TreeShape:
    """Nodes by number, level after level; 0 is the anchor and siblings are in draw order.

    parents : N ints, -1 for the anchor
    depths : N ints, 0 for the anchor
    levels : the same, as they are drawn
    """

    parents: tuple[int, ...]
    depths: tuple[int, ...]
    levels: tuple[LevelShape, ...]

    @classmethod
    def of_parents(cls, parents: Sequence[int]) -> TreeShape:
        """Of the parents of nodes 1, 2, ..., which come level by level.

        Raises
        ------
        ValueError
            A parent that is no earlier node, or nodes out of order.
        """
        depths = [0]
        for node, parent in enumerate(parents, start=1):
            if not 0 <= parent < node:
                raise ValueError(f"expected the parent of node {node} before it, got {parent}")
            depths.append(depths[parent] + 1)
        if list(parents) != sorted(parents) or depths != sorted(depths):
            raise ValueError(f"expected nodes in the order of their parents, got {list(parents)}")
        with_children = set(parents)
        levels = []
        row_of = {0: 0}  # of the nodes with children of the level before
        for depth, group in groupby(range(len(depths)), key=depths.__getitem__):
            if depth == 0:
                continue
            nodes = list(group)
            above = [parents[node - 1] for node in nodes]
            inner = [i for i, node in enumerate(nodes) if node in with_children]
            num_drawn: Counter[int] = Counter()
            draws = []
            for parent in above:
                draws.append(num_drawn[parent])
                num_drawn[parent] += 1
            rows = tuple(row_of[parent] for parent in above)
            levels.append(LevelShape(rows, tuple(draws), tuple(inner)))
            row_of = {nodes[i]: row for row, i in enumerate(inner)}
        return cls((-1, *parents), tuple(depths), tuple(levels))

    @classmethod
    def likely(cls, num_nodes: int, topk: int, depth: int) -> TreeShape:
        """N nodes with at most ``topk`` children each and ``depth`` levels.

        Which ones: those that are worth most if each draw from a row is worth a fixed share of the
        one before it.
        """
        # Paths of draw numbers, likeliest first; a prefix is never less likely.
        heap: list[tuple[float, tuple[int, ...]]] = [(-1.0, (0,))]
        paths: list[tuple[int, ...]] = []
        while heap and len(paths) < num_nodes - 1:
            worth, path = heapq.heappop(heap)
            paths.append(path)
            if path[-1] + 1 < topk:
                heapq.heappush(heap, (worth * _DECAY, (*path[:-1], path[-1] + 1)))
            if len(path) < depth:
                heapq.heappush(heap, (worth * (1 - _DECAY), (*path, 0)))
        paths.sort(key=lambda path: (len(path), path))
        number = {(): 0, **{path: i for i, path in enumerate(paths, start=1)}}
        return cls.of_parents([number[path[:-1]] for path in paths])

    def path_to(self, node: int) -> list[int]:
        """The node and its ancestors, the anchor included."""
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return path
