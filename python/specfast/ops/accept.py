"""Accept: which drafts the target confirms, and what the round commits."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place
from specfast.records import AcceptRecord, FinishRules

__all__ = [
    "accept_chain",
    "accept_epilogue",
    "accept_tree",
    "verify_chain_greedy",
    "verify_tree_greedy",
]


def accept_tree(
    draft_tokens: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    prefix_lens: Tensor,
    *,
    width: int,
    target_logits: Tensor | None = None,
    target_predict: Tensor | None = None,
    vocab_size: int | None = None,
    retrieve_index: Tensor | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    finish: FinishRules | None = None,
    out_cache_loc: Tensor | None = None,
    out: AcceptRecord | None = None,
    accumulate_status: bool = False,
) -> AcceptRecord:
    """Accept the path of a draft tree that the target's argmax follows, and truncate it.

    From the root, descend to the child that carries the argmax of the current node's row, while
    there is one and the path has fewer than ``width`` rows. The visited rows (anchor and accepted
    drafts) are committed; the outputs are the accepted drafts and the argmax of the last row (the
    bonus), one position ahead of the rows. Then EOS, stop ids and limits cut the outputs, and the
    rows with them.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Token of each node; column 0, the anchor, is not read. Any row stride. N <= 1024.
    retrieve_next_token, retrieve_next_sibling : int32 [B, N]
        First child and next sibling of each node, local node indices, -1 = none. Children follow
        their parent and siblings ascend, as ``build_tree`` links them.
    prefix_lens : int32 [B]
        Committed KV length, the anchor not included.
    width : int
        S, the most rows a path may have: tree depth + 1. 1 <= S <= N.
    target_logits : float32 | bfloat16 | float16 [R, V]
        Logits of the verify rows, any row stride. NaN never wins; the lowest id wins ties.
    target_predict : int32 | int64 [R]
        The target's token after each row, instead of ``target_logits``.
    vocab_size : int, optional
        Logit columns and ids at or past it do not count; V if absent, and with predictions any
        id below 2³¹ - 1.
    retrieve_index : int32 [B, N], optional
        Verify row of each node, among the request's verified rows and ascending along a path;
        first row + node if absent, which is what the tree ops lay out.
    qo_indptr : int32 [B + 1], optional
        First row of each request (ragged batch); ``b * N`` if absent, and then R = B * N.
    verify_lens : int32 [B], optional
        Nodes that were verified, anchor included; later nodes do not exist for the walk. 0 is a
        padded slot: its record says ``commit_lens`` 0. All rows of the request if absent.
    finish : FinishRules, optional
        When a request ends. EOS comes before stop ids, both before the limit.
    out_cache_loc : int32 | int64 [R], optional
        KV slot of each row; asks for ``slots``.
    out : AcceptRecord, optional
        Buffers to fill (see ``AcceptRecord.empty``); needed under CUDA Graph capture.
    accumulate_status : bool
        OR into ``out.status`` what this op finds, after another op of the round wrote it. Needs
        ``out``.

    Returns
    -------
    AcceptRecord
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails; it gives a legal record and bits of ``status``: a row without a usable
    value ends the path and emits token 0 (NAN_LOGITS, EMPTY_SUPPORT), and so does a given
    prediction outside the vocabulary (BAD_TOKEN); a draft id outside of it is rejected (BAD_TOKEN),
    links that do not ascend end the search, a row outside the window ends the path (BAD_TREE),
    ``verify_lens``, ``qo_indptr`` and ``prefix_lens`` out of range are clamped (BAD_PARAM).
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch, slot and padding.
    Capturable with ``out``; one launch. Cost: reads V logits per visited row and nothing else of
    the logits. Source: EAGLE-2 (arXiv:2406.16858), SpecInfer (arXiv:2305.09781).

    Examples
    --------
    The tree R -> {A, B}, A -> {C, D} (A=10, B=11, C=12, D=13), the target says A, C, then 77:

    >>> import torch, specfast
    >>> def ids(*rows): return torch.tensor(rows, dtype=torch.int32)
    >>> record = specfast.ops.accept_tree(
    ...     ids([1, 10, 11, 12, 13]), ids([1, 3, -1, -1, -1]), ids([-1, 2, -1, 4, -1]),
    ...     torch.tensor([10], dtype=torch.int32), width=3,
    ...     target_predict=torch.tensor([10, 12, 0, 77, 0]))
    >>> record.accept_index.tolist(), record.out_tokens.tolist(), record.new_seq_lens.tolist()
    ([[0, 1, 3]], [[10, 12, 77]], [13])
    """
    if out is None:
        _require_written_status("accept_tree", accumulate_status)
        out = _empty_record(draft_tokens, width, target_logits, target_predict, out_cache_loc)
    finish = finish or FinishRules()
    torch.ops.specfast.accept_tree(
        draft_tokens,
        retrieve_next_token,
        retrieve_next_sibling,
        prefix_lens,
        retrieve_index,
        target_logits,
        target_predict,
        vocab_size,
        qo_indptr,
        verify_lens,
        finish.eos_token_ids,
        finish.stop_token_ids,
        finish.max_tokens_left,
        finish.min_tokens_left,
        finish.ignore_eos,
        out_cache_loc,
        accumulate_status,
        out.per_request,
        out.per_step,
        out.predict,
        out.slots,
    )
    return out


def accept_chain(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    *,
    target_logits: Tensor | None = None,
    target_predict: Tensor | None = None,
    vocab_size: int | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    finish: FinishRules | None = None,
    out_cache_loc: Tensor | None = None,
    return_trim: bool = False,
    out: AcceptRecord | None = None,
    accumulate_status: bool = False,
) -> AcceptRecord:
    """Accept the longest prefix of a draft chain that the target's argmax repeats, and truncate it.

    Draft i + 1 is accepted if drafts 1..i were and it equals the argmax of row i. Everything else
    is as in :func:`accept_tree`, with path width S = N. One row (N = 1, no drafts) is plain greedy
    decoding.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Anchor (column 0, not read) and N - 1 drafts.
    verify_lens : int32 [B], optional
        Rows that were verified, anchor included. The chain ends there: a later draft is not
        accepted, a later row is not read.
    return_trim : bool
        Also count in ``cap_trim_lens`` the drafts at or past ``verify_lens`` that would have been
        accepted. Reads the rows past the cut, which must exist; refused with ``qo_indptr``.
        Changes no other field.
    prefix_lens, target_logits, target_predict, vocab_size, qo_indptr, finish, out_cache_loc, out, \
accumulate_status
        As in :func:`accept_tree`.

    Returns
    -------
    AcceptRecord
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data, devices, determinism, capture: as :func:`accept_tree`. Cost: reads V logits per
    visited row, up to 3 rows beyond the last visited one in small batches, where reading them
    together is faster; never a row at or past ``verify_lens`` without ``return_trim``.
    Source: Leviathan et al. 2023 (arXiv:2211.17192) at temperature 0.

    Examples
    --------
    The drafts A, B, C (10, 11, 12), the target says A, B, then 77:

    >>> import torch, specfast
    >>> record = specfast.ops.accept_chain(
    ...     torch.tensor([[1, 10, 11, 12]]), torch.tensor([10], dtype=torch.int32),
    ...     target_predict=torch.tensor([10, 11, 77, 0]))
    >>> record.num_correct_drafts.tolist(), record.out_tokens.tolist()
    ([2], [[10, 11, 77, -1]])
    """
    if out is None:
        _require_written_status("accept_chain", accumulate_status)
        width = draft_tokens.shape[1]
        out = _empty_record(
            draft_tokens, width, target_logits, target_predict, out_cache_loc, return_trim
        )
    finish = finish or FinishRules()
    torch.ops.specfast.accept_chain(
        draft_tokens,
        prefix_lens,
        target_logits,
        target_predict,
        vocab_size,
        qo_indptr,
        verify_lens,
        finish.eos_token_ids,
        finish.stop_token_ids,
        finish.max_tokens_left,
        finish.min_tokens_left,
        finish.ignore_eos,
        out_cache_loc,
        accumulate_status,
        return_trim,
        out.per_request,
        out.per_step,
        out.predict,
        out.slots,
    )
    return out


def _require_written_status(op: str, accumulate_status: bool) -> None:
    if accumulate_status:
        raise RuntimeError(f"{op}: expected out with accumulate_status, got None")


def _empty_record(
    draft_tokens: Tensor,
    width: int,
    target_logits: Tensor | None,
    target_predict: Tensor | None,
    out_cache_loc: Tensor | None,
    cap_trim: bool = False,
) -> AcceptRecord:
    rows = target_logits if target_logits is not None else target_predict
    return AcceptRecord.empty(
        draft_tokens.shape[0],
        width,
        0 if rows is None else rows.shape[0],
        draft_tokens.device,
        slots_dtype=None if out_cache_loc is None else out_cache_loc.dtype,
        cap_trim=cap_trim,
    )


def verify_tree_greedy(
    draft_tokens: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    *,
    width: int,
    prefix_lens: Tensor | None = None,
    out: AcceptRecord | None = None,
) -> AcceptRecord:
    """SGLang's name for :func:`accept_tree` on given predictions, without truncation.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        SGLang's ``candidates``.
    retrieve_index, retrieve_next_token, retrieve_next_sibling : int32 [B, N]
        Verify row, first child and next sibling of each node.
    target_predict : int32 | int64 [B * N]
        The target's argmax of every row.
    width : int
        S, columns of ``accept_index``.
    prefix_lens : int32 [B], optional
        Committed KV length. Without it positions count from 0.
    out : AcceptRecord, optional
        Buffers to fill. Nothing needs to be pre-filled.

    Returns
    -------
    AcceptRecord
        ``predict``, ``accept_index`` and ``num_correct_drafts`` are SGLang's ``predicts``,
        ``accept_index`` and ``accept_token_num``.

    Notes
    -----
    Errors, bad data, devices, determinism, cost: as :func:`accept_tree`. Capturable with ``out``
    and ``prefix_lens``.
    """
    if prefix_lens is None:
        prefix_lens = _zero_lens(draft_tokens)
    return accept_tree(
        draft_tokens,
        retrieve_next_token,
        retrieve_next_sibling,
        prefix_lens,
        width=width,
        target_predict=target_predict,
        retrieve_index=retrieve_index,
        out=out,
    )


def verify_chain_greedy(
    draft_tokens: Tensor,
    target_predict: Tensor,
    *,
    prefix_lens: Tensor | None = None,
    verify_lens: Tensor | None = None,
    out: AcceptRecord | None = None,
) -> AcceptRecord:
    """:func:`accept_chain` on given predictions, without truncation.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Anchor and drafts.
    target_predict : int32 | int64 [B * N]
        The target's argmax of every row.
    prefix_lens : int32 [B], optional
        Committed KV length. Without it positions count from 0.
    verify_lens : int32 [B], optional
        Rows that were verified, anchor included; all if absent.
    out : AcceptRecord, optional
        Buffers to fill.

    Returns
    -------
    AcceptRecord
        ``num_correct_drafts`` and ``bonus`` are SGLang's ``correct_len`` and ``bonus`` for DFlash
        and DSpark.

    Notes
    -----
    Errors, bad data, devices, determinism, cost: as :func:`accept_chain`. Capturable with ``out``
    and ``prefix_lens``.
    """
    if prefix_lens is None:
        prefix_lens = _zero_lens(draft_tokens)
    return accept_chain(
        draft_tokens,
        prefix_lens,
        target_predict=target_predict,
        verify_lens=verify_lens,
        out=out,
    )


def _zero_lens(draft_tokens: Tensor) -> Tensor:
    return torch.zeros(draft_tokens.shape[0], dtype=torch.int32, device=draft_tokens.device)


#: DSpark's name for :func:`accept_chain` with its tail, inside the captured verify graph.
accept_epilogue = accept_chain

register_in_place("accept_tree", "accept_chain")
