"""accept_tree and accept_chain in plain Python: the meaning of the accept ops, under every rule."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specfast.records import AcceptRecord, FinishRules
from specfast.reference.accept_batch import (
    AcceptBatch,
    Path,
    Window,
    write_padding,
    write_request,
)
from specfast.reference.block import block_path
from specfast.reference.rejection import rejection_rule
from specfast.reference.sampled_request import SampledRequest
from specfast.reference.target_only import target_only_rule
from specfast.reference.walk import Rule, greedy_rule, trimmed_drafts, walk
from specfast.sampling import Proposal, SamplingRules
from specfast.status import Status

RuleName = Literal["greedy", "target_only", "rejection", "block"]
LogprobsMode = Literal["raw", "processed"]


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
    previous_status: Tensor | None = None,
    rule: RuleName = "greedy",
    sampling: SamplingRules | None = None,
    proposal: Proposal | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    logprobs: LogprobsMode | None = None,
) -> AcceptRecord:
    """Follow, from the root, the children that the rule accepts; see the op."""
    batch = AcceptBatch(
        draft_tokens,
        prefix_lens,
        target_logits,
        target_predict,
        vocab_size,
        qo_indptr,
        verify_lens,
        finish or FinishRules(),
        out_cache_loc,
        width,
        (retrieve_next_token, retrieve_next_sibling),
        retrieve_index,
    )
    thresholds = (threshold_single, threshold_acc)
    return _accept(batch, rule, sampling, proposal, thresholds, logprobs, False, previous_status)


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
    previous_status: Tensor | None = None,
    rule: RuleName = "greedy",
    sampling: SamplingRules | None = None,
    proposal: Proposal | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    logprobs: LogprobsMode | None = None,
) -> AcceptRecord:
    """Accept the prefix of the drafts that the rule keeps; see the op."""
    batch = AcceptBatch(
        draft_tokens,
        prefix_lens,
        target_logits,
        target_predict,
        vocab_size,
        qo_indptr,
        verify_lens,
        finish or FinishRules(),
        out_cache_loc,
        draft_tokens.shape[1],
        chain_links(draft_tokens),
        None,
    )
    thresholds = (threshold_single, threshold_acc)
    return _accept(
        batch, rule, sampling, proposal, thresholds, logprobs, return_trim, previous_status
    )


def chain_links(draft_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """First children and next siblings of chains: node i + 1 follows node i."""
    following = torch.arange(1, draft_tokens.shape[1] + 1, dtype=torch.int32)
    following[-1] = -1
    return following.expand(draft_tokens.shape), torch.full(draft_tokens.shape, -1).int()


def _accept(
    batch: AcceptBatch,
    rule: RuleName,
    sampling: SamplingRules | None,
    proposal: Proposal | None,
    thresholds: tuple[float, float],
    logprobs: LogprobsMode | None,
    return_trim: bool,
    previous_status: Tensor | None,
) -> AcceptRecord:
    loc = batch.out_cache_loc
    record = AcceptRecord.empty(
        batch.num_requests,
        batch.width,
        batch.num_rows,
        batch.draft_tokens.device,
        slots_dtype=None if loc is None else loc.dtype,
        cap_trim=return_trim,
        logprobs=logprobs is not None,
    )
    write_padding(record)
    for b in range(batch.num_requests):
        window = batch.window(b)
        request: SampledRequest | None = None
        if rule != "greedy":
            assert sampling is not None
            request = SampledRequest(batch, b, sampling, proposal)
        path, trimmed = _path(batch, b, window, rule, request, thresholds, return_trim)
        if previous_status is not None:
            path.status |= Status(int(previous_status[b]))
        write_request(record, batch, b, window, path)
        if record.cap_trim_lens is not None:
            record.cap_trim_lens[b] = trimmed
        if record.logprobs is not None:
            assert request is not None
            _write_logprobs(record.logprobs[b], int(record.commit_lens[b]), request, path, logprobs)
    return record


def _path(
    batch: AcceptBatch,
    b: int,
    window: Window,
    rule: RuleName,
    request: SampledRequest | None,
    thresholds: tuple[float, float],
    return_trim: bool,
) -> tuple[Path, int]:
    """The path of one request, and the drafts past its window that would have been accepted."""
    step: Rule | None = None
    if request is None:
        step = greedy_rule(batch)
    elif rule == "target_only":
        step = target_only_rule(request, *thresholds)
    elif rule == "rejection":
        step = rejection_rule(request)
    if step is not None:
        path = walk(batch, b, window, step)
    else:
        assert request is not None
        path = block_path(request, window)
    if request is not None and window.verified > 0:
        path.status |= request.status
    trimmed = 0
    if return_trim and step is not None:
        trimmed = trimmed_drafts(batch, b, window, step, path)
    return path, trimmed


def _write_logprobs(
    out: Tensor,
    commit_len: int,
    request: SampledRequest,
    path: Path,
    mode: LogprobsMode | None,
) -> None:
    for i in range(commit_len):
        row, token = path.rows[i], path.tokens[i]
        if mode == "raw":
            out[i] = request.raw_logprob(row, token)
        else:
            out[i] = request.processed_logprob(row, path.tokens[:i], token)
