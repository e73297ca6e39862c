"""The order in which a warp of the ops adds up float32 numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

NUM_SUMS, NUM_GROUPS, RUN = 32, 16, 8


def lane_sum(count: int, shape: tuple[int, ...], add: Callable[[Tensor, int], Tensor]) -> Tensor:
    """The sum of ``count`` terms of ``shape``; ``add(sum, k)`` is a running sum with term k.

    Of 32 running sums number ``k // 8 % 32`` takes term k; then halves are added to halves.
    """
    sums = [torch.zeros(shape) for _ in range(NUM_SUMS)]
    for k in range(count):
        number = k // RUN % NUM_SUMS
        sums[number] = add(sums[number], k)
    return _added_by_halves(torch.stack(sums))


def row_sum(terms: Tensor) -> Tensor:
    """The sum of ``terms`` [..., count] over the last dimension.

    Of 512 running sums number ``k // 8 % 512`` takes term k; each 32 neighbours are added up halves
    to halves, and then the 16 results.
    """
    per_turn = NUM_GROUPS * NUM_SUMS * RUN
    padded = functional.pad(terms, (0, -terms.shape[-1] % per_turn))
    num_turns = padded.shape[-1] // per_turn
    in_turns = padded.view(*terms.shape[:-1], num_turns, NUM_GROUPS, NUM_SUMS, RUN)
    sums = torch.zeros(*terms.shape[:-1], NUM_GROUPS, NUM_SUMS)
    for turn in in_turns.unbind(-4):
        for term in turn.unbind(-1):
            sums = sums + term
    groups = _added_by_halves(sums.movedim(-1, 0))
    return _added_by_halves(groups.movedim(-1, 0))


def _added_by_halves(sums: Tensor) -> Tensor:
    """The sum over the first dimension."""
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return sums[0]
