"""Accept under the names that the field uses."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._arguments import Logprobs
from specfast.ops.accept import accept_chain, accept_tree
from specfast.records import AcceptRecord
from specfast.sampling import Proposal, SamplingRules

__all__ = [
    "verify_chain_greedy",
    "verify_chain_rejection",
    "verify_tree_greedy",
    "verify_tree_rejection",
    "verify_tree_target_only",
]


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


def verify_tree_target_only(
    draft_tokens: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    prefix_lens: Tensor,
    *,
    width: int,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
) -> AcceptRecord:
    """SGLang's ``tree_speculative_sampling_target_only`` from logits, without truncation.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        SGLang's ``candidates``.
    retrieve_index, retrieve_next_token, retrieve_next_sibling : int32 [B, N]
        Verify row, first child and next sibling of each node.
    target_logits : float32 | bfloat16 | float16 [B * N, V]
        Logits in place of SGLang's ``target_probs``; nothing of that size is written.
    sampling : SamplingRules
        ``sampling.coins`` are SGLang's ``uniform_samples`` and
        ``uniform_samples_for_final_sampling``; without them the seeds decide.
    prefix_lens : int32 [B]
        Committed KV length; counts the rounds for the random numbers.
    width : int
        S, columns of ``accept_index``.
    threshold_single, threshold_acc : float
        SGLang's; 1 is lossless.
    logprobs : "raw" | "processed", optional
        As in :func:`accept_target_only`.
    out : AcceptRecord, optional
        Buffers to fill. Nothing needs to be pre-filled.

    Returns
    -------
    AcceptRecord
        ``predict``, ``accept_index`` and ``num_correct_drafts`` are SGLang's ``predicts``,
        ``accept_index`` and ``accept_token_num``.

    Notes
    -----
    Errors, bad data, devices, determinism, capture, cost: as :func:`accept_target_only`.
    """
    return accept_tree(
        draft_tokens,
        retrieve_next_token,
        retrieve_next_sibling,
        prefix_lens,
        width=width,
        target_logits=target_logits,
        retrieve_index=retrieve_index,
        rule="target_only",
        sampling=sampling,
        threshold_single=threshold_single,
        threshold_acc=threshold_acc,
        logprobs=logprobs,
        out=out,
    )


def verify_tree_rejection(
    draft_tokens: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    proposal: Proposal,
    prefix_lens: Tensor,
    *,
    width: int,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
) -> AcceptRecord:
    """Recursive rejection sampling of a tree, without truncation.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Anchor and drafts.
    retrieve_index, retrieve_next_token, retrieve_next_sibling : int32 [B, N]
        Verify row, first child and next sibling of each node; siblings in draw order.
    target_logits : float32 | bfloat16 | float16 [B * N, V]
        Logits of the verify rows.
    sampling : SamplingRules
        How each request samples.
    proposal : Proposal
        q, with ``without_replacement`` true.
    prefix_lens : int32 [B]
        Committed KV length; counts the rounds for the random numbers.
    width : int
        S, columns of ``accept_index``.
    logprobs : "raw" | "processed", optional
        As in :func:`accept_target_only`.
    out : AcceptRecord, optional
        Buffers to fill.

    Returns
    -------
    AcceptRecord
        ``out``, or a new one.

    Notes
    -----
    Errors, bad data, devices, determinism, capture, cost: as :func:`accept_rejection`.
    """
    return accept_tree(
        draft_tokens,
        retrieve_next_token,
        retrieve_next_sibling,
        prefix_lens,
        width=width,
        target_logits=target_logits,
        retrieve_index=retrieve_index,
        rule="rejection",
        sampling=sampling,
        proposal=proposal,
        logprobs=logprobs,
        out=out,
    )


def verify_chain_rejection(
    draft_tokens: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    proposal: Proposal,
    prefix_lens: Tensor,
    *,
    verify_lens: Tensor | None = None,
    block: bool = False,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
    workspace: Tensor | None = None,
) -> AcceptRecord:
    """Speculative sampling of a chain from logits, without truncation.

    SGLang's ``chain_speculative_sampling_triton``, FlashInfer's ``chain_speculative_sampling`` and
    vLLM's ``rejection_sample``.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Anchor and drafts.
    target_logits : float32 | bfloat16 | float16 [B * N, V]
        Logits in place of target probabilities.
    sampling : SamplingRules
        How each request samples.
    proposal : Proposal
        q; ``probs`` are the others' ``draft_probs``.
    prefix_lens : int32 [B]
        Committed KV length; counts the rounds for the random numbers.
    verify_lens : int32 [B], optional
        Rows that were verified, anchor included; all if absent.
    block : bool
        Decide on the whole chain at once: SGLang's ``block_verification``.
    logprobs : "raw" | "processed", optional
        As in :func:`accept_target_only`.
    out : AcceptRecord, optional
        Buffers to fill.
    workspace : int32 [B, N, 12], optional
        As in :func:`accept_rejection`, with ``block`` as in :func:`accept_block`.

    Returns
    -------
    AcceptRecord
        ``out_tokens`` and ``num_correct_drafts`` are FlashInfer's ``output_token_ids`` and
        ``output_emitted_draft_token_num``.

    Notes
    -----
    Errors, bad data, devices, determinism, capture, cost: as :func:`accept_rejection` and
    :func:`accept_block`.
    """
    return accept_chain(
        draft_tokens,
        prefix_lens,
        target_logits=target_logits,
        verify_lens=verify_lens,
        rule="block" if block else "rejection",
        sampling=sampling,
        proposal=proposal,
        logprobs=logprobs,
        out=out,
        workspace=workspace,
    )


def _zero_lens(draft_tokens: Tensor) -> Tensor:
    return torch.zeros(draft_tokens.shape[0], dtype=torch.int32, device=draft_tokens.device)
