"""commit_state in plain Python: the meaning of the op."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specfast.status import Status


def commit_state(
    states: Sequence[Tensor],
    pools: Sequence[Tensor],
    accept_index: Tensor,
    commit_lens: Tensor,
    state_slots: Tensor,
) -> Tensor:
    """Copy in place, one request after the other, and return a new status."""
    num_rows, num_slots = states[0].shape[1], pools[0].shape[1]
    status = torch.zeros_like(commit_lens)
    requests = zip(accept_index.tolist(), commit_lens.tolist(), state_slots.tolist(), strict=True)
    for b, (path, count, slot) in enumerate(requests):
        if count == 0:
            continue
        if not 0 < count <= len(path) or not 0 <= slot < num_slots:
            status[b] = Status.BAD_PATH
            continue
        row = path[count - 1]
        if not 0 <= row < num_rows:
            status[b] = Status.BAD_PATH
            continue
        for source, destination in zip(states, pools, strict=True):
            destination[:, slot] = source[:, row]
    return status
