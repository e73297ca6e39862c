"""The order in which a warp of the ops adds up float32 numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NUM_SUMS, RUN = 32, 8


def lane_sum(count: int, shape: tuple[int, ...], add: Callable[[Tensor, int], Tensor]) -> Tensor:
    """The sum of ``count`` terms of ``shape``; ``add(sum, k)`` is a running sum with term k.

    Of 32 running sums number ``k // 8 % 32`` takes term k; then halves are added to halves.
    """
    sums = [torch.zeros(shape) for _ in range(NUM_SUMS)]
    for k in range(count):
        number = k // RUN % NUM_SUMS
        sums[number] = add(sums[number], k)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [low + high for low, high in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]
