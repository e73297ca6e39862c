"""The candidate selector of a block drafter: one token per slot, after the one taken before."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._arguments import filter_tensors, has_edits
from specfast.ops._fakes import register_in_place
from specfast.sampling import SamplingRules, SelectedWalk

__all__ = ["walk_selector"]


def walk_selector(
    candidates: Tensor,
    unary: Tensor,
    keys: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    anchors: Tensor,
    sampling: SamplingRules,
    prefix_lens: Tensor,
    *,
    out: SelectedWalk | None = None,
) -> SelectedWalk:
    """Take a candidate of each slot, left to right, by scores that the token before has a part in.

    The score of candidate c of slot j after token a is ``unary[c]`` plus the sum over r of
    ``predecessor[a, r] * keys[j, r] * successor[c, r]``; a is the token taken in slot j - 1, and
    the anchor for j = 0. Greedy requests take the largest score, the first on ties; others draw
    from the softmax of the K scores over the temperature, which is q. It is a walk: a later slot
    has no say in an earlier one.

    Parameters
    ----------
    candidates : int32 | int64 [B, M, K]
        Tokens, distinct within a slot. K <= 32, M <= 64.
    unary : float32 [B, M, K]
        Their own scores.
    keys : float32 [B, M, R]
        The projected hidden row of each slot. R a multiple of 8, at most 512.
    predecessor, successor : float32 | bfloat16 [V, R]
        Codebooks, of one dtype; contiguous.
    anchors : int32 | int64 [B]
        Token before the first slot; negative in a padded slot.
    sampling : SamplingRules
        Temperature and seed of each request; ``top_k`` 1 makes one greedy. All other filters have
        no part in q and are not looked at; penalties, edits, bitmask and coins have to be absent.
    prefix_lens : int32 [B]
        Committed KV length at this round. Counts the rounds for the random numbers.
    out : SelectedWalk, optional
        Buffers to fill (see ``SelectedWalk.empty``); needed if read after a graph's replay.

    Returns
    -------
    SelectedWalk
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails: a candidate outside the vocabulary is never taken, an anchor outside it
    adds nothing (BAD_TOKEN); NaN scores are not taken (NAN_LOGITS), and where none is left the
    token is -1, q is 0 (EMPTY_SUPPORT, unless it was NaN) and the next slot goes by ``unary``.
    Devices: CPU, CUDA; equal results. Deterministic: random numbers come from seed,
    ``prefix_lens`` and slot alone. Capturable with ``out``; one launch. Cost: 2 M K R codebook
    elements per request. Source: the candidate selector of DFlash-2 (z-lab).

    Examples
    --------
    Candidate 1 of slot 0 leads to candidate 0 of slot 1:

    >>> import torch, specfast
    >>> predecessor = successor = torch.zeros(6, 8)
    >>> predecessor[5, 0] = successor[2, 0] = 4
    >>> walk = specfast.ops.walk_selector(
    ...     torch.tensor([[[4, 5], [2, 3]]]), torch.tensor([[[0.0, 1], [0, 1]]]),
    ...     torch.ones(1, 2, 8), predecessor, successor, torch.tensor([0]),
    ...     specfast.SamplingRules(torch.zeros(1), torch.zeros(1, dtype=torch.int64)),
    ...     torch.zeros(1, dtype=torch.int32))
    >>> walk.tokens.tolist(), walk.q.tolist()
    ([[5, 2]], [[[0.0, 1.0], [1.0, 0.0]]])
    """
    op = "walk_selector"
    temperature, seeds, top_k, *_ = filter_tensors(op, sampling)
    if has_edits(sampling) or sampling.coins is not None:
        raise RuntimeError(
            f"{op}: expected sampling of temperature, filters and seeds alone, got edits, "
            "penalties, a bitmask or coins"
        )
    if out is None:
        # Of any rank: the op has the sentence for a wrong one.
        batch_size, num_slots, num_candidates = (0, 0, 0, *candidates.shape)[-3:]
        out = SelectedWalk.empty(batch_size, num_slots, num_candidates, candidates.device)
    torch.ops.specfast.walk_selector(
        candidates,
        unary,
        keys,
        predecessor,
        successor,
        anchors,
        prefix_lens,
        temperature,
        seeds,
        top_k,
        out.tokens,
        out.q,
        out.status,
    )
    return out


register_in_place("walk_selector")
