"""Scratch that the accept ops can be given, where it pays."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specfast.ops._arguments import require_rule

__all__ = ["accept_workspace"]

#: Up to so many verify rows a batch, reading all of them at once was faster (benchmarks/results).
_MOST_ROWS_AT_ONCE = {"target_only": 8, "rejection": 8, "block": 512}


def accept_workspace(
    rule: Literal["target_only", "rejection", "block"],
    batch_size: int,
    num_nodes: int,
    device: torch.device | str | None = None,
) -> Tensor | None:
    """The ``workspace`` of a sampled accept of chains, where it was measured to be faster with one.

    Parameters
    ----------
    rule : "target_only" | "rejection" | "block"
        How the chains are accepted. Trees are faster without: few of their rows are visited.
    batch_size, num_nodes : int
        B and N of ``draft_tokens``.
    device : torch.device, optional
        Of ``draft_tokens``.

    Returns
    -------
    int32 [B, N, 12] | None
        None on a CPU, and where reading rows one after the other is faster.

    Raises
    ------
    RuntimeError
        An unknown rule.

    Notes
    -----
    The sizes were measured on an H200 at V = 151936. One workspace may serve many calls, but not at
    the same time.
    """
    require_rule("accept_workspace", rule, tuple(_MOST_ROWS_AT_ONCE))
    place = torch.device(device) if device is not None else torch.get_default_device()
    if place.type != "cuda" or batch_size * num_nodes > _MOST_ROWS_AT_ONCE[rule]:
        return None
    return torch.empty(batch_size, num_nodes, 12, dtype=torch.int32, device=place)
