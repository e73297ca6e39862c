"""The shape of drawn trees on a device: drawing one copies nothing from the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.drafters.tree_shape import LevelShape, TreeShape


@dataclass(frozen=True)
class PlacedLevel:
    """Nodes of one level, in order; n of them, m of which have children.

    num_draws : int          from each row of the level before it
    columns : int64 [n]      row * num_draws + draw of each
    going_on : int64 [m]     those that have children; None where no one has
    parents : int64 [m]      row that each of these was drawn from
    ancestors : bool [m, l + m]
                             of these, and of the l such nodes of the levels before, those that are
                             on the path to each
    """

    num_draws: int
    columns: Tensor
    going_on: Tensor | None
    parents: Tensor
    ancestors: Tensor

    @classmethod
    def of(
        cls, level: LevelShape, ancestors: Sequence[Sequence[bool]], device: torch.device
    ) -> PlacedLevel:
        def placed(numbers: Iterable[int]) -> Tensor:
            return torch.tensor(list(numbers), dtype=torch.int64, device=device)

        num_draws = level.num_draws
        pairs = zip(level.rows, level.draws, strict=True)
        return cls(
            num_draws,
            placed(row * num_draws + draw for row, draw in pairs),
            placed(level.going_on) if level.going_on else None,
            placed(level.rows[i] for i in level.going_on),
            torch.tensor(ancestors, dtype=torch.bool, device=device),
        )


class PlacedShape:
    """A ``TreeShape`` of N nodes.

    levels : PlacedLevel of each level behind the anchor
    parents : int32 [N]    -1 for the anchor
    num_inner : int        nodes with children, the anchor not counted
    """

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        self.levels: list[PlacedLevel] = []
        # Of each node: rows in the levels before its own, rows in its own, and which it is.
        rows = [(-1, 0, 0)] * len(shape.parents)
        inner, run, before, first = [0], list[int](), 0, 1
        for level in shape.levels:
            for row, node in enumerate(inner):
                rows[node] = (before, len(inner), row)
            before += len(inner)
            inner = [first + i for i in level.going_on]
            first += len(level.rows)
            run += inner
            paths = [set(shape.path_to(node)) for node in inner]
            ancestors = [[other in path for other in run] for path in paths]
            self.levels.append(PlacedLevel.of(level, ancestors, device))
        self.num_inner = len(run)
        numbers = [shape.parents, shape.depths, *zip(*rows, strict=True)]
        table = torch.tensor(numbers, dtype=torch.int32, device=device)
        self.parents, self._depths, *self._rows = table

    @property
    def depth(self) -> int:
        return len(self.levels)

    def nodes_within(self, deepest: Tensor) -> Tensor:
        """int32 [B]: nodes of at most that depth, [B]; they come first."""
        within: Tensor = self._depths <= deepest[:, None]
        return within.sum(1, dtype=torch.int32)

    def row_of_node(self, batch_size: int) -> Tensor:
        """int32 [B, N]: row of q of each node's children, level after level; -1 of a leaf."""
        before, count, row = self._rows
        request = torch.arange(batch_size, dtype=torch.int32, device=before.device)[:, None]
        rows = before * batch_size + request * count + row
        return torch.where(before < 0, -1, rows)


class LikelyShapes:
    """``TreeShape.likely`` of any number of nodes, each placed once."""

    def __init__(self, topk: int, depth: int, device: torch.device) -> None:
        self._topk = topk
        self._depth = depth
        self._device = device
        self._placed: dict[int, PlacedShape] = {}

    def of(self, num_nodes: int) -> PlacedShape:
        if num_nodes not in self._placed:
            shape = TreeShape.likely(num_nodes, self._topk, self._depth)
            self._placed[num_nodes] = PlacedShape(shape, self._device)
        return self._placed[num_nodes]
