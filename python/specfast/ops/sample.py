"""Draws from rows of logits: drafts with their q, and first tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specfast.ops._arguments import has_edits, said, sampling_tensors
from specfast.ops._fakes import register_in_place
from specfast.sampling import SampledRows, SamplingRules

__all__ = ["sample_rows"]

# The part of the random counter that keeps drafts, accept coins and final tokens apart.
PURPOSES = {"draft": 0, "final": 2}


def sample_rows(
    logits: Tensor,
    sampling: SamplingRules,
    prefix_lens: Tensor,
    *,
    vocab_size: int | None = None,
    request_of_row: Tensor | None = None,
    slot_of_row: Tensor | None = None,
    level: int = 0,
    num_draws: int = 1,
    purpose: Literal["draft", "final"] = "draft",
    out: SampledRows | None = None,
) -> SampledRows:
    """Draw tokens from each row, without replacement, and record what they were drawn from.

    The records with the same logits are the q of a :class:`~specfast.Proposal`: by construction the
    distribution that the draws came from. With ``purpose="final"`` the draw is that of a token to
    emit, such as the first one after a prefill.

    Parameters
    ----------
    logits : float32 | bfloat16 | float16 [R, V]
        Any row stride. V <= 2^20.
    sampling : SamplingRules
        Temperature, filters, penalties, bitmask and seed of each of B requests; ``token_bitmask``
        has a row per row of logits. ``coins`` have to be absent.
    prefix_lens : int32 [B]
        Committed KV length at this round. Counts the rounds for the random numbers.
    vocab_size : int, optional
        Columns at or past it do not count; V if absent.
    request_of_row : int32 [R], optional
        The request of each row; absent, row r is request r and R = B.
    slot_of_row : int32 [R], optional
        Number of the row among those of its request at this level, so that each has random numbers
        of its own; 0 if absent.
    level : int
        Draft step that the draws belong to, from 0; 0 for first tokens. Below 65536.
    num_draws : int
        K, tokens per row, at most 1024. 0 only records.
    purpose : "draft" | "final"
        Whether the tokens are proposals or go out.
    out : SampledRows, optional
        Buffers to fill (see ``SampledRows.empty``), of ``num_draws`` columns; needed under CUDA
        Graph capture.

    Returns
    -------
    SampledRows
        ``out``, or a new one; every element is written. ``tokens`` are in draw order, -1 where a
        row has no token left.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails: a row without a usable value gives its lowest allowed id (NAN_LOGITS,
    EMPTY_SUPPORT), a request with a parameter out of range is greedy, a negative ``prefix_lens``
    counts as 0, ``request_of_row`` is clamped (BAD_PARAM). A greedy request draws its argmax, and
    after it nothing.
    Devices: CPU, CUDA; equal results. Deterministic: random numbers come from seed,
    ``prefix_lens``, level, slot and draw alone. Capturable with ``out``; one launch. Cost: reads
    V logits per row. Source: inverse transform sampling with Philox4x32-10 (Salmon et al. 2011).

    Examples
    --------
    >>> import torch, specfast
    >>> rules = specfast.SamplingRules(torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    >>> rows = specfast.ops.sample_rows(
    ...     torch.tensor([[0.0, 2, 1], [3, 0, 3]]), rules, torch.zeros(2, dtype=torch.int32))
    >>> rows.tokens.tolist(), rows.records.kind.tolist()
    ([[1], [0]], [1, 1])
    """
    if purpose not in PURPOSES:
        raise RuntimeError(f'sample_rows: expected purpose "draft" or "final", got {said(purpose)}')
    tensors = sampling_tensors("sample_rows", sampling)
    if sampling.coins is not None:
        raise RuntimeError(
            "sample_rows: expected no sampling.coins (draws use the request's own random numbers), "
            f"got {said(sampling.coins)}"
        )
    if not 0 <= num_draws <= 1024:
        raise RuntimeError(f"sample_rows: expected num_draws in [0, 1024], got {num_draws}")
    if out is None:
        out = SampledRows.empty(logits.shape[:1].numel(), num_draws, logits.device)
    elif out.tokens.shape[-1:] != (num_draws,):
        raise RuntimeError(
            f"sample_rows: expected out.tokens of num_draws = {num_draws} columns, got shape "
            f"{list(out.tokens.shape)}"
        )
    torch.ops.specfast.sample_rows(
        logits,
        prefix_lens,
        vocab_size,
        request_of_row,
        slot_of_row,
        level,
        PURPOSES[purpose],
        *tensors,
        out.tokens,
        out.records.packed,
        out.status,
    )
    out.records.edited = has_edits(sampling)
    return out


register_in_place("sample_rows")
