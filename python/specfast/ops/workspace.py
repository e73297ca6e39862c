"""Scratch that an accept op can be given, where it pays."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accept_workspace"]

#: Up to so many verify rows a batch, reading all of them at once was faster (benchmarks/results).
_MOST_ROWS_AT_ONCE = 8


def accept_workspace(
    batch_size: int, num_nodes: int, device: torch.device | str | None = None
) -> Tensor | None:
    """The ``workspace`` of :func:`accept_block`, where it was measured to be faster with one.

    Parameters
    ----------
    batch_size, num_nodes : int
        B and N of ``draft_tokens``.
    device : torch.device, optional
        Of ``draft_tokens``.

    Returns
    -------
    int32 [B, N, 12] | None
        None on a CPU, and where reading rows one after the other is faster.

    Notes
    -----
    The sizes were measured on an H200 at V = 151936. One workspace may serve many calls, but not at
    the same time.
    """
    place = torch.device(device) if device is not None else torch.get_default_device()
    if place.type != "cuda" or batch_size * num_nodes > _MOST_ROWS_AT_ONCE:
        return None
    return torch.empty(batch_size, num_nodes, 12, dtype=torch.int32, device=place)
