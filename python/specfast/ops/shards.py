"""Verification with a vocabulary divided among ranks: a small record per row, and its merge."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._arguments import expect, filter_tensors, said
from specfast.ops._fakes import register_in_place
from specfast.sampling import MergedRows, RowStats, SamplingRules

__all__ = ["merge_row_stats", "row_stats"]


def row_stats(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    *,
    vocab_size: int,
    max_candidates: int,
    max_top_k: int = 0,
    vocab_offset: int = 0,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    out: RowStats | None = None,
) -> RowStats:
    """Say of each verify row what one shard of the vocabulary has to say, in a few words.

    Gathered from all shards, the records give :func:`merge_row_stats` the target's token after
    every row: no logits travel between ranks.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Anchor in column 0 (not read), then the drafts. Last dimension dense.
    prefix_lens : int32 [B]
        Committed KV length at this round. Counts the rounds for the random numbers.
    target_logits : float32 | bfloat16 | float16 [R, V_s]
        This shard's columns of the verify rows, R = B * N or as ``qo_indptr`` says, node after
        node. Any row stride. Column 0 is id ``vocab_offset``.
    sampling : SamplingRules
        Temperature, filters and seed of each request, the same on all ranks. ``top_p`` and
        ``min_p`` need a ``top_k`` beside them. Edits, penalties, bitmask and coins have to be
        absent.
    vocab_size : int
        Ids of all shards together, at most 2^20. Columns past it are padding.
    max_candidates : int
        How many children of a node are looked at, in sibling order; of a chain 1. A draft past them
        can be accepted all the same, only not by the coin. Below 1024.
    max_top_k : int
        The largest ``top_k`` that a request may have, at most 512; 0 where none has one.
    vocab_offset : int
        Id of column 0, in [0, vocab_size]. Shards must not overlap; they may differ in size.
    retrieve_next_token, retrieve_next_sibling : int32 [B, N], optional
        First child and next sibling of each node, -1 for none; absent for chains.
    qo_indptr : int32 [B + 1], optional
        Request b owns rows ``qo_indptr[b] .. qo_indptr[b + 1]``; absent: ``b * N ..``.
    verify_lens : int32 [B], optional
        Nodes verified per request. The logits of other rows are not read.
    out : RowStats, optional
        Buffer to fill (see ``RowStats.empty``); needed if read after a graph's replay.

    Returns
    -------
    RowStats
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.
        Edits, penalties, a bitmask or coins, which shards cannot follow.

    Notes
    -----
    Bad data never fails; what was met is said by :func:`merge_row_stats`. A request whose filters
    shards cannot follow (``top_p`` below 1 or ``min_p`` above 2^-40 without ``top_k``, ``top_k``
    above ``max_top_k``) is greedy (BAD_PARAM).
    Devices: CPU, CUDA; equal results. Deterministic. Capturable with ``out``; one launch. Cost:
    reads V_s logits per verified row. Source: target-only verification of SGLang, with the sums of
    a vocabulary-parallel softmax (Megatron-LM).

    Examples
    --------
    >>> import torch, specfast
    >>> rules = specfast.SamplingRules(torch.ones(1), torch.zeros(1, dtype=torch.int64))
    >>> stats = specfast.ops.row_stats(
    ...     torch.tensor([[9, 2]]), torch.zeros(1, dtype=torch.int32), torch.zeros(2, 4), rules,
    ...     vocab_size=8, max_candidates=1)
    >>> stats.packed.shape, (stats.packed[:, 1] >> 40).tolist()
    (torch.Size([2, 4]), [3, 4])
    """
    tensors = _sampling("row_stats", sampling)
    if out is None:
        rows = target_logits.shape[:1].numel()
        out = RowStats.empty(rows, target_logits.device, max(max_candidates, 0), max(max_top_k, 0))
    else:
        expect("row_stats", "out", out, RowStats)
        if (out.max_candidates, out.max_top_k) != (max_candidates, max_top_k):
            raise RuntimeError(
                f"row_stats: expected out with max_candidates = {max_candidates} and max_top_k = "
                f"{max_top_k}, got {out.max_candidates} and {out.max_top_k}"
            )
    torch.ops.specfast.row_stats(
        draft_tokens,
        prefix_lens,
        target_logits,
        retrieve_next_token,
        retrieve_next_sibling,
        qo_indptr,
        verify_lens,
        vocab_size,
        vocab_offset,
        *tensors,
        max_candidates,
        max_top_k,
        out.packed,
    )
    return out


def merge_row_stats(
    stats: RowStats,
    prefix_lens: Tensor,
    sampling: SamplingRules,
    *,
    vocab_size: int,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    out: MergedRows | None = None,
) -> MergedRows:
    """Decide each verify row by the target-only rule, from the records of all shards.

    What comes out is the ``target_predict`` of ``accept_tree`` or ``accept_chain``, without
    ``target_logits``: they follow the child that carries it and write the record. Ranks that have
    gathered the same bytes decide the same.

    Parameters
    ----------
    stats : RowStats
        Of all shards: ``packed`` is int64 [G, R, W] by rank, as an all-gather leaves what
        :func:`row_stats` wrote. G at most 1024.
    prefix_lens, sampling, vocab_size, qo_indptr, verify_lens
        As :func:`row_stats` had them.
    threshold_single, threshold_acc : float
        As in ``accept_target_only``; below 1 not lossless.
    out : MergedRows, optional
        Buffers to fill (see ``MergedRows.empty``); needed if read after a graph's replay.

    Returns
    -------
    MergedRows
        ``out``, or a new one; every element is written. ``target_predict`` is -1 at rows that are
        not verified, and where no value is above -inf: the accept ends there with token 0.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.
        Edits, penalties, a bitmask or coins, which shards cannot follow.

    Notes
    -----
    Bad data never fails: ``status`` has the bits of each row (NAN_LOGITS, EMPTY_SUPPORT, BAD_PARAM,
    ZERO_RESIDUAL). Records that no shard wrote give legal tokens, or -1 with BAD_PARAM.
    Devices: CPU, CUDA; equal results. Deterministic: random numbers come from seed,
    ``prefix_lens`` and node alone. With top-k the tokens are those of the whole row in
    ``accept_target_only``, without it they have the same law. Capturable with ``out``; one launch.
    Cost: reads G * W words per row. Source: SGLang's target-only sampling, decided in integers.

    Examples
    --------
    >>> import torch, specfast
    >>> rules = specfast.SamplingRules(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    >>> drafts, prefix_lens = torch.tensor([[9, 5]]), torch.zeros(1, dtype=torch.int32)
    >>> logits = torch.tensor([[0.0, 1, 2, 3, 4, 7, 6, 5], [5, 0, 0, 0, 0, 0, 0, 9]])
    >>> shards = [specfast.ops.row_stats(
    ...     drafts, prefix_lens, logits[:, 4 * i : 4 * i + 4], rules, vocab_size=8,
    ...     max_candidates=1, vocab_offset=4 * i) for i in range(2)]
    >>> gathered = specfast.RowStats(torch.stack([shard.packed for shard in shards]), 1)
    >>> merged = specfast.ops.merge_row_stats(gathered, prefix_lens, rules, vocab_size=8)
    >>> record = specfast.ops.accept_chain(
    ...     drafts, prefix_lens, target_predict=merged.target_predict)
    >>> record.out_tokens.tolist()
    [[5, 7]]
    """
    tensors = _sampling("merge_row_stats", sampling)
    expect("merge_row_stats", "stats", stats, RowStats)
    if out is None:
        out = MergedRows.empty(stats.packed.shape[1:2].numel(), stats.packed.device)
    torch.ops.specfast.merge_row_stats(
        stats.packed,
        prefix_lens,
        qo_indptr,
        verify_lens,
        vocab_size,
        *tensors,
        stats.max_candidates,
        stats.max_top_k,
        threshold_single,
        threshold_acc,
        out.target_predict,
        out.status,
    )
    return out


def _sampling(op: str, sampling: SamplingRules) -> tuple[Tensor | None, ...]:
    """Temperature, seeds and filters; refuses what needs the logits of other shards."""
    filters = filter_tensors(op, sampling)
    for name in (
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "edits",
        "token_bitmask",
        "coins",
    ):
        value = getattr(sampling, name)
        if value is not None:
            raise RuntimeError(
                f"{op}: expected no sampling.{name} (shards of a vocabulary sample from their "
                f"logits as they are, with the request's own random numbers), got {said(value)}"
            )
    return filters


register_in_place("row_stats", "merge_row_stats")
