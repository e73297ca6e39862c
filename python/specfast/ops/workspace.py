"""Scratch that an accept op can be given, where it pays."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["accept_workspace"]

SampledRule = Literal["block", "rejection", "target_only"]

#: Up to so many verify rows a batch, reading them at once was faster (benchmarks/results).
_MOST_ROWS_AT_ONCE = {"block": 8, "rejection": 1024, "target_only": 512}


def accept_workspace(
    batch_size: int,
    num_nodes: int,
    device: torch.device | str | None = None,
    *,
    rule: SampledRule = "block",
) -> Tensor | None:
    """The ``workspace`` of :func:`accept_chain`, where it was measured to be faster with one.

    Parameters
    ----------
    batch_size, num_nodes : int
        B and N of ``draft_tokens``.
    device : torch.device, optional
        Of ``draft_tokens``.
    rule : "block" | "rejection" | "target_only"
        Which it is for.

    Returns
    -------
    int32 [B, N, 12] | None
        None on a CPU, and where reading rows one after the other is faster.

    Notes
    -----
    The sizes were measured on an H200 at V = 151936, with chains of 8. One workspace may serve many
    calls and every rule, but no two calls at the same time: one per stream.
    """
    place = torch.device(device) if device is not None else torch.get_default_device()
    if place.type != "cuda" or batch_size * num_nodes > _MOST_ROWS_AT_ONCE[rule]:
        return None
    return torch.zeros(batch_size, num_nodes, 12, dtype=torch.int32, device=place)
