"""Expansion of a draft tree by one level: likeliest children, and which of them go on."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place
from specfast.records import ExpandedFrontier

__all__ = ["expand_frontier"]

# BestTokens::kMost in csrc/core/best_tokens.h
MAX_CHILDREN = 32


def expand_frontier(
    logits: Tensor,
    scores: Tensor | None = None,
    *,
    topk: int,
    first_candidate: int = 0,
    vocab_size: int | None = None,
    d2t: Tensor | None = None,
    out: ExpandedFrontier | None = None,
) -> ExpandedFrontier:
    """Expand the frontier of each draft tree by one level, as EAGLE-2 does.

    The ``topk`` likeliest children of each frontier node become candidates; a candidate's score is
    its parent's plus its log probability, at temperature 1. The ``topk`` best candidates are the
    next frontier. Both orders are by value descending, then by id or number ascending.

    Parameters
    ----------
    logits : float32 | bfloat16 | float16 [B, n, V]
        What the drafter says after each of n <= k nodes; any strides but the last. V <= 2^20.
    scores : float32 [B, n], optional
        Log probability of the path to each node; absent: 0, as of the anchor. NaN counts as -inf.
    topk : int
        k, children of a node and nodes of the next frontier; k <= 32 and k <= ``vocab_size``.
    first_candidate : int
        Candidates of the tree before this level: 0, then k, then k² more per level; at most 2^30.
        ``parent_list`` counts from it.
    vocab_size : int, optional
        Columns at or past it do not count; V if absent.
    d2t : int64 [V], optional
        Target id of draft id i is i + d2t[i]; absent: i.
    out : ExpandedFrontier, optional
        Buffers to fill (see ``ExpandedFrontier.empty``); needed if read after a graph's replay.

    Returns
    -------
    ExpandedFrontier
        ``out``, or a new one; every element is written. Level after level, ``candidate_tokens``,
        ``candidate_scores`` and, behind a first column, ``parent_list`` side by side are what
        :func:`select_and_build_tree` takes.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    The logarithms are right to 6e-6 and float32; their sums have an order of their own
    (docs/numerics.md), so that scores are bit-equal everywhere. Bad data never fails: NaN counts as
    -inf (NAN_LOGITS); a row without anything above -inf (EMPTY_SUPPORT, unless it has a NaN) has
    its k lowest ids as children, with score -inf; at +inf the lowest such id has score log 1, and
    all others log 0. A target id that an int32 record cannot hold becomes -1.
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch and slot.
    Capturable with ``out``; two launches. Cost: one read of the logits.
    The sampled counterpart is :func:`sample_rows` with ``num_draws``: draws without replacement,
    with their q. Source: EAGLE-2 (arXiv:2406.16858), section 4.1.

    Examples
    --------
    Two nodes, of probabilities 1/2 and 1/4, over a vocabulary of four:

    >>> import torch, specfast
    >>> rows = torch.tensor([[[0.5, 0.25, 0.125, 0.125], [0.0, 0.75, 0.125, 0.125]]])
    >>> level = specfast.ops.expand_frontier(
    ...     rows.log(), torch.tensor([[0.5, 0.25]]).log(), topk=2, first_candidate=2)
    >>> children = level.candidate_scores.exp().round(decimals=5)
    >>> level.candidate_tokens.tolist(), children.tolist()
    ([[0, 1, 1, 2]], [[0.25, 0.125, 0.1875, 0.03125]])
    >>> level.parent_list.tolist(), level.parents.tolist(), level.tokens.tolist()
    ([[2, 4]], [[0, 1]], [[0, 1]])
    """
    if out is None:
        # Of any rank and size: the op has the sentence for a wrong one.
        batch_size, num_nodes = (0, 0, *logits.shape)[-3:-1]
        count = min(max(topk, 0), MAX_CHILDREN)
        out = ExpandedFrontier.empty(batch_size, num_nodes, count, logits.device)
    torch.ops.specfast.expand_frontier(
        logits,
        scores,
        topk,
        first_candidate,
        vocab_size,
        d2t,
        out.candidate_tokens,
        out.candidate_scores,
        out.parent_list,
        out.parents,
        out.tokens,
        out.scores,
        out.status,
    )
    return out


register_in_place("expand_frontier")
