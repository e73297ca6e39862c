"""Accept: which drafts the target confirms, and what the round commits."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from specfast.ops._arguments import (
    Logprobs,
    accept_buffers,
    finish_tensors,
    refuse,
    refuse_thresholds,
    require_rule,
    required,
)
from specfast.ops._fakes import register_in_place
from specfast.ops.sampled_accept import accept_block, accept_rejection, accept_target_only
from specfast.records import AcceptRecord, FinishRules
from specfast.sampling import Proposal, SamplingRules

__all__ = ["accept_chain", "accept_epilogue", "accept_tree"]

TreeRule = Literal["greedy", "target_only", "rejection"]
ChainRule = Literal["greedy", "target_only", "rejection", "block"]


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
    rule: TreeRule = "greedy",
    sampling: SamplingRules | None = None,
    proposal: Proposal | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
    accumulate_status: bool = False,
) -> AcceptRecord:
    """Accept the path of a draft tree that the target follows, and truncate it.

    From the root, descend to the child that the rule accepts, greedy: the one that carries the
    argmax of the current node's row, while there is one and the path has fewer than ``width`` rows.
    The visited rows (anchor and accepted drafts) are committed; the outputs are the accepted drafts
    and the target's token after the last row (the bonus), one position ahead of the rows. Then EOS,
    stop ids and limits cut the outputs, and the rows with them.

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
        The target's token after each row, instead of ``target_logits``; greedy only.
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
    rule : "greedy" | "target_only" | "rejection"
        "greedy" takes the argmax. The others sample, and are lossless:
        :func:`accept_target_only` for any drafts, :func:`accept_rejection` for siblings drawn
        without replacement from a known q.
    sampling : SamplingRules, optional
        How each request samples; needed by every rule but "greedy". Requests of temperature 0 are
        greedy among sampled ones.
    proposal : Proposal, optional
        q; needed by "rejection", refused otherwise.
    threshold_single, threshold_acc : float
        Of "target_only"; below 1 not lossless.
    logprobs : "raw" | "processed", optional
        Fill ``logprobs``, with a sampled rule: of softmax of the logits as they come, or of the
        distribution that was sampled from.
    out : AcceptRecord, optional
        Buffers to fill (see ``AcceptRecord.empty``); needed if read after a graph's replay.
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
        An argument of wrong shape, dtype, device or range, or one that the rule lacks or has no use
        for; names it, what was expected and got.

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
    require_rule("accept_tree", rule, ("greedy", "target_only", "rejection"))
    if rule != "greedy":
        return _accept_sampled(
            "accept_tree",
            rule,
            target_logits,
            target_predict,
            sampling,
            proposal,
            (threshold_single, threshold_acc),
            draft_tokens=draft_tokens,
            prefix_lens=prefix_lens,
            retrieve_next_token=retrieve_next_token,
            retrieve_next_sibling=retrieve_next_sibling,
            retrieve_index=retrieve_index,
            width=width,
            vocab_size=vocab_size,
            qo_indptr=qo_indptr,
            verify_lens=verify_lens,
            finish=finish,
            out_cache_loc=out_cache_loc,
            logprobs=logprobs,
            out=out,
            accumulate_status=accumulate_status,
        )
    _refuse_sampling("accept_tree", sampling, proposal, logprobs, threshold_single, threshold_acc)
    out = accept_buffers(
        "accept_tree",
        out,
        draft_tokens,
        width,
        target_logits if target_predict is None else target_predict,
        out_cache_loc,
        accumulate_status=accumulate_status,
    )
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
        *finish_tensors("accept_tree", finish),
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
    rule: ChainRule = "greedy",
    sampling: SamplingRules | None = None,
    proposal: Proposal | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
    accumulate_status: bool = False,
    workspace: Tensor | None = None,
) -> AcceptRecord:
    """Accept the longest prefix of a draft chain that the target follows, and truncate it.

    Draft i + 1 is accepted if drafts 1..i were and the rule says so; greedy: it equals the argmax
    of row i. Everything else is as in :func:`accept_tree`, with path width S = N. One row (N = 1,
    no drafts) is plain decoding, greedy or sampled.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Anchor (column 0, not read) and N - 1 drafts.
    verify_lens : int32 [B], optional
        Rows that were verified, anchor included. The chain ends there: a later draft is not
        accepted, a later row is not read.
    return_trim : bool
        Also count in ``cap_trim_lens`` the drafts at or past ``verify_lens`` that would have been
        accepted. Reads the rows past the cut, which must exist; refused with ``qo_indptr``
        and rule "block". Changes no other field.
    rule : "greedy" | "target_only" | "rejection" | "block"
        "greedy" repeats the argmax. The others sample, and are lossless:
        :func:`accept_target_only` for any drafts, :func:`accept_rejection` and
        :func:`accept_block` for drafts from a known q, of which block accepts more.
    proposal : Proposal, optional
        q; needed by "rejection" and "block", refused otherwise.
    prefix_lens, target_logits, target_predict, vocab_size, qo_indptr, finish, out_cache_loc, \
sampling, threshold_single, threshold_acc, logprobs, out, accumulate_status
        As in :func:`accept_tree`.
    workspace : int32 [B, N, 12], optional
        Of a sampled rule: read all rows at once; see :func:`accept_target_only` and
        :func:`accept_block`.

    Returns
    -------
    AcceptRecord
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range, or one that the rule lacks or has no use
        for; names it, what was expected and got.

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
    require_rule("accept_chain", rule, ("greedy", "target_only", "rejection", "block"))
    if rule != "greedy":
        of_rule: dict[str, Any] = {"return_trim": return_trim}
        if rule == "block":
            of_rule = {}
            why = "drafts past the cut would change what is kept before it"
            refuse("accept_chain", "return_trim", return_trim or None, rule, why)
        return _accept_sampled(
            "accept_chain",
            rule,
            target_logits,
            target_predict,
            sampling,
            proposal,
            (threshold_single, threshold_acc),
            draft_tokens=draft_tokens,
            prefix_lens=prefix_lens,
            vocab_size=vocab_size,
            qo_indptr=qo_indptr,
            verify_lens=verify_lens,
            finish=finish,
            out_cache_loc=out_cache_loc,
            **of_rule,
            logprobs=logprobs,
            out=out,
            accumulate_status=accumulate_status,
            workspace=workspace,
        )
    refuse("accept_chain", "workspace", workspace, rule, "it has no use for one")
    _refuse_sampling("accept_chain", sampling, proposal, logprobs, threshold_single, threshold_acc)
    out = accept_buffers(
        "accept_chain",
        out,
        draft_tokens,
        None,
        target_logits if target_predict is None else target_predict,
        out_cache_loc,
        accumulate_status=accumulate_status,
        cap_trim=return_trim,
    )
    torch.ops.specfast.accept_chain(
        draft_tokens,
        prefix_lens,
        target_logits,
        target_predict,
        vocab_size,
        qo_indptr,
        verify_lens,
        *finish_tensors("accept_chain", finish),
        out_cache_loc,
        accumulate_status,
        return_trim,
        out.per_request,
        out.per_step,
        out.predict,
        out.slots,
    )
    return out


def _accept_sampled(
    op: str,
    rule: str,
    target_logits: Tensor | None,
    target_predict: Tensor | None,
    sampling: SamplingRules | None,
    proposal: Proposal | None,
    thresholds: tuple[float, float],
    **arguments: Any,
) -> AcceptRecord:
    """Call the op of a sampled rule, once its inputs are complete."""
    refuse(op, "target_predict", target_predict, rule, "it samples from target_logits")
    arguments["target_logits"] = required(op, "target_logits", target_logits, rule)
    arguments["sampling"] = required(op, "sampling", sampling, rule)
    if rule == "target_only":
        refuse(op, "proposal", proposal, rule, "it needs no q")
        single, acc = thresholds
        return accept_target_only(**arguments, threshold_single=single, threshold_acc=acc)
    refuse_thresholds(op, rule, *thresholds)
    arguments["proposal"] = required(op, "proposal", proposal, rule)
    return (accept_rejection if rule == "rejection" else accept_block)(**arguments)


def _refuse_sampling(
    op: str,
    sampling: SamplingRules | None,
    proposal: Proposal | None,
    logprobs: Logprobs | None,
    threshold_single: float,
    threshold_acc: float,
) -> None:
    """A request to sample is never verified greedily in silence."""
    refuse(op, "sampling", sampling, "greedy", "name a sampled rule")
    refuse(op, "proposal", proposal, "greedy", "it needs no q")
    refuse(op, "logprobs", logprobs, "greedy", "name a sampled rule, with temperature 0")
    refuse_thresholds(op, "greedy", threshold_single, threshold_acc)


#: DSpark's name for :func:`accept_chain` with its tail, inside the captured verify graph.
accept_epilogue = accept_chain

register_in_place("accept_tree", "accept_chain")
