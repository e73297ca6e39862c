"""Plan: how many rows of each request are verified, and the rows of the target's forward."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place
from specfast.records import VerifySchedule, VerifyWindow

__all__ = ["build_verify_window", "schedule_verify_lens"]

ConfidenceForm = Literal["survival", "confidence", "logits"]

# csrc/ops/schedule_verify_lens.h
MAX_SCHEDULED_DRAFTS = 24576

_FLOAT32 = torch.finfo(torch.float32)


def is_temperature(value: float) -> bool:
    """Whether a logit may be divided by ``value``: above 0 and finite as float32."""
    return _FLOAT32.tiny <= value <= _FLOAT32.max


def schedule_verify_lens(
    confidence: Tensor,
    budget: int | Tensor | None = None,
    *,
    form: ConfidenceForm = "survival",
    temperatures: Tensor | None = None,
    min_lens: Tensor | None = None,
    max_lens: Tensor | None = None,
    anchors: Tensor | None = None,
    epsilon: float = 1e-6,
    out: VerifySchedule | None = None,
) -> VerifySchedule:
    """Spread a budget of drafts over a batch: the likeliest are verified, whoever made them.

    Each request verifies its first ``min_lens`` rows. Of the drafts behind them, up to ``max_lens``
    rows and down to a survival of ``epsilon``, the ``budget`` best of the whole batch are added, by
    (survival descending, position ascending, request ascending). A survival never exceeds the one
    before it, so what is added to a request continues its prefix.

    Parameters
    ----------
    confidence : float32 [B, gamma]
        Of each draft in chain order, any row stride; B * max(gamma, 1) <= 24576. What the numbers
        are says ``form``:
    form : "survival" | "confidence" | "logits"
        "survival": probability that the target accepts the draft and all before it. "confidence":
        that it accepts the draft, given those before it; the survival is the product so far.
        "logits": of the confidence, ``1 / (1 + exp(-x / temperature))``.
    budget : int | int32 [1], optional
        Drafts beyond ``min_lens``, on the host or on the device; absent: all.
    temperatures : float32 [gamma], optional
        With form "logits": of each position (sequential temperature scaling). Absent: 1.
    min_lens : int32 [B], optional
        Rows verified whatever their survival, the anchor included; absent: 1, the anchor.
    max_lens : int32 [B], optional
        Rows that a request may verify, the anchor included: where its context or its tokens end.
        0 is a padded slot. Absent: gamma + 1. Where it is below ``min_lens``, it holds.
    anchors : int32 | int64 [B], optional
        A negative one, the ``next_anchor`` of a request that has finished, is a padded slot, too.
    epsilon : float
        In [0, 1]; compared as float32.
    out : VerifySchedule, optional
        Buffers to fill (see ``VerifySchedule.empty``); needed if read after a graph's replay.

    Returns
    -------
    VerifySchedule
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Lossless: a draft's place in the order depends on its own survival and on those that come before
    it, so that, with confidences that do not look at their own draft's token, whether a draft is
    verified never depends on it or on drafts behind it. That holds for a budget that does not
    depend on this round's drafts either; one chosen from this round's survivals breaks the law.
    Bad data never fails. ``BAD_PARAM``: a number that is no probability counts as the nearest one
    that is, NaN, and a logit whose temperature is not a finite number above 0, as 0; a length out
    of range is clamped, a negative budget is 0. A survival above the one before it counts as that
    one. Only drafts within ``max_lens`` are looked at.
    Devices: CPU, CUDA; equal results. Deterministic: comparisons of integers and, but for the form
    "survival", IEEE arithmetic on one chain each; a rank that got the same confidences gets the
    same lengths. Padded slots change nothing for others. Capturable with ``out``, and with a budget
    on the device it may change between replays; one launch. Cost: reads B * gamma numbers, writes
    as many. Source: the confidence-scheduled verification of DSpark.

    Examples
    --------
    Two requests, four drafts: .95, .90, .85 and .70 are the best.

    >>> import torch, specfast
    >>> survival = torch.tensor([[0.95, 0.90, 0.85], [0.70, 0.30, 0.10]])
    >>> specfast.ops.schedule_verify_lens(survival, 4).verify_lens.tolist()
    [4, 2]
    """
    if out is None:
        # Of any rank: the op has the sentence for a wrong one.
        batch_size, num_drafts = (1, 1, *confidence.shape)[-2:]
        out = VerifySchedule.empty(batch_size, num_drafts, confidence.device)
    on_device = isinstance(budget, Tensor)
    torch.ops.specfast.schedule_verify_lens(
        confidence,
        form,
        temperatures,
        min_lens,
        max_lens,
        anchors,
        budget if on_device else None,
        None if on_device else budget,
        epsilon,
        out.verify_lens,
        out.survival,
        out.status,
    )
    return out


def build_verify_window(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    page_table: Tensor,
    *,
    num_rows: int,
    page_size: int,
    anchors: Tensor | None = None,
    verify_lens: Tensor | None = None,
    page_table_rows: Tensor | None = None,
    context_len: int | None = None,
    vocab_size: int | None = None,
    padding_slot: int = -1,
    out: VerifyWindow | None = None,
) -> VerifyWindow:
    """Lay the verify rows of all requests back to back, for one forward of the target.

    Request b gets rows for its anchor and its first ``verify_lens[b] - 1`` drafts, right behind
    those of request b - 1; what is left of ``num_rows`` is padding, so that a batch fits the tier
    that a graph was captured with.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Anchor and drafts, any row stride; B <= 2^20, B * N < 2^31. A request whose anchor is
        negative has finished, and gets no rows.
    prefix_lens : int32 [B]
        Committed KV length, which is the anchor's position.
    page_table : int32 | int64 [P, num_pages]
        Pages in order of position, any row stride; a negative entry is no page. Position p lies in
        slot ``page_table[row, p // page_size] * page_size + p % page_size``. With ``page_size`` 1
        it is a table of slots. Only the entries of the rows' own positions are read.
    num_rows : int
        R, the tier: rows in all, padding included.
    page_size : int
        Slots of a page.
    anchors : int32 | int64 [B], optional
        Tokens of the first rows in place of column 0, which is not read then: the ``next_anchor``
        of the round before.
    verify_lens : int32 [B], optional
        Rows wanted, the anchor included; 0 is a padded slot. Absent: N.
    page_table_rows : int32 [B], optional
        Row of each request's pages; absent: b.
    context_len : int, optional
        No row lies at this position or past it. Absent: what ``page_table`` has room for.
    vocab_size : int, optional
        Ids at or past it are laid out as 0, as negative drafts always are.
    padding_slot : int
        Slot of the rows that belong to no request: -1, or one that nobody reads.
    out : VerifyWindow, optional
        Buffers to fill (see ``VerifyWindow.empty``), of ``num_rows`` rows; needed under CUDA Graph
        capture.

    Returns
    -------
    VerifyWindow
        ``out``, or a new one; every element is written. Its ``verify_lens`` and ``qo_indptr`` are
        what accept and attention go by.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    A request has fewer rows than wanted where its context ends (no flag). ``BAD_PARAM``: fewer rows
    where a page is missing or the tier is full; ``verify_lens`` outside [0, N] is clamped; a
    ``prefix_lens`` outside [0, context_len] or a ``page_table_rows`` outside the table gives no
    rows. An illegal id is not flagged here: accept rejects it.
    Devices: CPU, CUDA; equal results. Deterministic. Rows of a request depend on those of the
    requests before it only in where they lie. Capturable with ``out``; one launch, also for a batch
    of 0, whose rows are padding. Cost: reads a few numbers per request and a token and a page per
    row, writes the record. Source: the ragged verify window of DSpark.

    Examples
    --------
    Lengths 4, 2 and 6 in a tier of 16:

    >>> import torch, specfast
    >>> window = specfast.ops.build_verify_window(
    ...     torch.arange(18).view(3, 6), torch.tensor([10, 20, 30], dtype=torch.int32),
    ...     torch.arange(9).view(3, 3), num_rows=16, page_size=16,
    ...     verify_lens=torch.tensor([4, 2, 6], dtype=torch.int32))
    >>> window.qo_indptr.tolist()
    [0, 4, 6, 12]
    >>> window.positions.tolist()
    [10, 11, 12, 13, 20, 21, 30, 31, 32, 33, 34, 35, 0, 0, 0, 0]
    """
    if out is None:
        if num_rows < 0:
            raise RuntimeError(f"build_verify_window: expected num_rows >= 0, got {num_rows}")
        out = VerifyWindow.empty(
            draft_tokens.shape[:1].numel(),
            num_rows,
            draft_tokens.device,
            tokens_dtype=draft_tokens.dtype,
            slots_dtype=page_table.dtype,
        )
    elif out.input_ids.shape != (num_rows,):
        raise RuntimeError(
            f"build_verify_window: expected out.input_ids of num_rows = {num_rows} rows, got shape "
            f"{list(out.input_ids.shape)}"
        )
    torch.ops.specfast.build_verify_window(
        draft_tokens,
        anchors,
        prefix_lens,
        verify_lens,
        page_table,
        page_size,
        page_table_rows,
        context_len,
        vocab_size,
        padding_slot,
        out.verify_lens,
        out.qo_indptr,
        out.input_ids,
        out.positions,
        out.out_cache_loc,
        out.window_index,
        out.status,
    )
    return out


register_in_place("schedule_verify_lens", "build_verify_window")
