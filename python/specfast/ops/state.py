"""Commit of recurrent layers: the state after the last committed row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place

__all__ = ["commit_state"]

# csrc/ops/commit_state.h
MAX_STATE_BUFFERS = 256


def commit_state(
    states: Sequence[Tensor],
    pools: Sequence[Tensor],
    accept_index: Tensor,
    commit_lens: Tensor,
    state_slots: Tensor,
    *,
    status: Tensor | None = None,
    accumulate_status: bool = False,
) -> Tensor:
    """Bring each request's slot to the state after its last committed row, in all buffers.

    A recurrent layer has no row to keep or to leave, as attention has: its state holds all that
    came before. So the verify forward writes the state after each row to a place of its own, and
    when it is known how far the target agreed, one of them becomes the request's state:
    ``pool[:, state_slots[b]] = states[:, accept_index[b, commit_lens[b] - 1]]`` for each pair.

    Parameters
    ----------
    states : sequence of Tensor [L, R, \\*item]
        What layers hold after each verify row: recurrent states, windows of a convolution, scales.
        Any dtype; an item's elements lie as in a contiguous tensor, layers and rows at any stride.
        Equal R in all of them; layers that lie apart are buffers with L = 1. At most 256.
    pools : sequence of Tensor [L, slots, \\*item]
        One for each of ``states``, of its dtype; changed in place. Equal numbers of slots.
    accept_index : int32 [B, S]
        Committed rows, numbered over the batch; only entry ``commit_lens[b] - 1`` is read.
    commit_lens : int32 [B]
        Committed rows of each request; 0 is a padded or finished slot, whose state stays.
    state_slots : int32 | int64 [B]
        Where each request has its state.
    status : int32 [B], optional
        Written; needed if read after a graph's replay.
    accumulate_status : bool
        OR into ``status`` what this op finds, after another op of the round wrote it.

    Returns
    -------
    int32 [B]
        ``status``, or a new one.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    BAD_PATH, and no byte of the request's states changes: ``commit_lens`` below 0 or above S, a
    row outside [0, R), a slot outside [0, slots). Slots of different requests are not compared;
    states and pools share no bytes.
    Devices: CPU, CUDA; equal bytes. Deterministic, and independent of batch, slot and padding.
    Capturable with ``status``; one launch.
    Cost: reads and writes a slot's bytes once per request that commits anything.
    Source: speculative decoding over recurrent layers (arXiv:2408.15237).

    Examples
    --------
    Of four rows, the first two are committed; then the state is that after row 1.

    >>> import torch, specfast
    >>> states = torch.tensor([[[0.5], [1.5], [2.5], [3.5]]])
    >>> pool = torch.zeros(1, 2, 1)
    >>> path, length = torch.tensor([[0, 1, -1]]).int(), torch.tensor([2]).int()
    >>> status = specfast.ops.commit_state([states], [pool], path, length, torch.tensor([1]))
    >>> pool.flatten().tolist(), status.tolist()
    ([0.0, 1.5], [0])
    """
    if status is None:
        status = torch.zeros_like(commit_lens)
    torch.ops.specfast.commit_state(
        list(states),
        list(pools),
        accept_index,
        commit_lens,
        state_slots,
        status,
        accumulate_status,
    )
    return status


register_in_place("commit_state")
