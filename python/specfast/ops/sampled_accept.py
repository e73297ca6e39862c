"""Accept by a sampled rule: the outputs follow the target's own distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._arguments import (
    Logprobs,
    accept_buffers,
    coin_tensors,
    finish_tensors,
    proposal_tensors,
    sampling_tensors,
)
from specfast.ops._fakes import register_in_place
from specfast.records import AcceptRecord, FinishRules
from specfast.sampling import Proposal, SamplingRules

__all__ = ["accept_block", "accept_rejection", "accept_target_only"]


def accept_target_only(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    *,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_index: Tensor | None = None,
    width: int | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    vocab_size: int | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    finish: FinishRules | None = None,
    out_cache_loc: Tensor | None = None,
    return_trim: bool = False,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
    accumulate_status: bool = False,
    workspace: Tensor | None = None,
) -> AcceptRecord:
    """Accept by one coin per visited row, without knowing how the drafts were drawn.

    At a row with distribution p, the children divide [0, 1) among them in sibling order, each with
    p of its token; the child that the coin falls on is accepted. If it falls on none, the path
    ends with a token drawn from p without the children's tokens. Every token is then distributed
    as p, whatever the drafts are, as long as no coin of this round chose them: argmax, n-gram,
    top-k and reranked drafts. A greedy request accepts exactly its argmax.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Token of each node; column 0, the anchor, is not read. Any row stride. N <= 1024.
    prefix_lens : int32 [B]
        Committed KV length, the anchor not included. Counts the rounds for the random numbers.
    target_logits : float32 | bfloat16 | float16 [R, V]
        Logits of the verify rows, any row stride. V <= 2^20.
    sampling : SamplingRules
        Temperature, filters, penalties, bitmask and seed of each request.
    retrieve_next_token, retrieve_next_sibling, retrieve_index : int32 [B, N], optional
        Links of a tree and the row of each node, as in :func:`accept_tree`. Absent: a chain.
    width : int, optional
        S, the most rows a path may have; N if absent, and in a chain.
    threshold_single, threshold_acc : float
        In [0, 1]. Also accept a child of probability ``threshold_single``, and compare the coin
        times ``threshold_acc`` (at least 1e-9). 1 is lossless; less trades that for longer paths.
    return_trim : bool
        Of a chain: also count in ``cap_trim_lens`` the drafts at or past ``verify_lens`` that would
        have been accepted, as in :func:`accept_chain`. Changes no other field.
    logprobs : "raw" | "processed", optional
        Fill ``logprobs``: of softmax of the logits as they come, or of p.
    vocab_size, qo_indptr, verify_lens, finish, out_cache_loc, out, accumulate_status
        As in :func:`accept_tree`. At or past ``verify_lens`` no node exists and no row is read: a
        path that ends there ends with a draw from the whole p of its last row.
    workspace : int32 [B, N, 12], optional
        Scratch of :func:`accept_workspace`, or zeros; every call leaves it ready for the next one,
        and no two use it at the same time. With it the rows of a chain are read at once, some of
        them in vain, instead of one after the other. Changes no result; without effect on trees,
        with ``return_trim``, where ``sampling`` has penalties, edits or a bitmask, on float16, and
        on more than 1024 rows or 21 nodes.

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
    Bad data never fails: as in :func:`accept_tree`, and a request with a parameter out of range is
    greedy (BAD_PARAM), a NaN coin is 0 (BAD_PARAM). A token equal to an earlier sibling's has no
    share of its own.
    Devices: CPU, CUDA; equal results. Deterministic: random numbers come from seed,
    ``prefix_lens`` and node alone, so a result is independent of batch, slot and padding.
    Capturable with ``out``; one launch. Cost: reads V logits per visited
    row, twice more for raw ``logprobs``, and nothing else of the logits. Source: SGLang's
    target-only sampling.

    Examples
    --------
    p = (.5, .3, .2); the drafts B and C take [0, .3) and [.3, .5), the coin .4 falls on C:

    >>> import torch, specfast
    >>> def ids(*rows): return torch.tensor(rows, dtype=torch.int32)
    >>> rules = specfast.SamplingRules(
    ...     torch.ones(1), torch.zeros(1, dtype=torch.int64),
    ...     coins=specfast.Coins(torch.tensor([[0.4, 0, 0]]), torch.tensor([0.6])))
    >>> record = specfast.ops.accept_target_only(
    ...     ids([9, 1, 2]), ids(10), torch.tensor([[0.5, 0.3, 0.2]] * 3).log(), rules,
    ...     retrieve_next_token=ids([1, -1, -1]), retrieve_next_sibling=ids([-1, 2, -1]), width=2)
    >>> record.accept_index.tolist(), record.out_tokens.tolist()
    ([[0, 2]], [[2, 1]])
    """
    out = accept_buffers(
        "accept_target_only",
        out,
        draft_tokens,
        width,
        target_logits,
        out_cache_loc,
        accumulate_status=accumulate_status,
        cap_trim=return_trim,
        logprobs=logprobs,
    )
    torch.ops.specfast.accept_target_only(
        draft_tokens,
        prefix_lens,
        target_logits,
        retrieve_next_token,
        retrieve_next_sibling,
        retrieve_index,
        vocab_size,
        qo_indptr,
        verify_lens,
        *finish_tensors("accept_target_only", finish),
        out_cache_loc,
        accumulate_status,
        *sampling_tensors("accept_target_only", sampling),
        *coin_tensors("accept_target_only", sampling),
        threshold_single,
        threshold_acc,
        return_trim,
        logprobs == "processed",
        out.per_request,
        out.per_step,
        out.predict,
        out.slots,
        out.logprobs,
        workspace,
    )
    return out


def accept_rejection(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    proposal: Proposal,
    *,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_index: Tensor | None = None,
    width: int | None = None,
    vocab_size: int | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    finish: FinishRules | None = None,
    out_cache_loc: Tensor | None = None,
    return_trim: bool = False,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
    accumulate_status: bool = False,
    workspace: Tensor | None = None,
) -> AcceptRecord:
    """Accept draft x with probability min(1, p(x) / q(x)), where the drafts were drawn from q.

    A rejected draft leaves the residual max(p - q, 0); the next sibling is tested against it and
    against q without the drafts tried so far, and when none is left the path ends with a token
    drawn from it. Every token is then distributed as p, and more drafts are accepted than by
    :func:`accept_target_only` where q is spread out. Siblings of a tree have to be drawn from q
    without replacement, all of them kept, and tried in draw order; top-k and reranked trees are
    not, for them only target-only is lossless.

    Parameters
    ----------
    draft_tokens, prefix_lens, target_logits, sampling
        As in :func:`accept_target_only`.
    proposal : Proposal
        q of each draft: logits with the records of :func:`sample_rows`, dense probabilities, or
        sparse ones, over the target's vocabulary or mapped into it by ``d2t``. In a tree
        ``without_replacement`` has to be true.
    retrieve_next_token, retrieve_next_sibling, retrieve_index, width, vocab_size, qo_indptr, \
verify_lens, finish, out_cache_loc, return_trim, logprobs, out, accumulate_status, workspace
        As in :func:`accept_target_only`.

    Returns
    -------
    AcceptRecord
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; a proposal over another vocabulary
        without ``d2t``; a tree whose siblings were not drawn without replacement.

    Notes
    -----
    Bad data never fails: as in :func:`accept_target_only`; a q(draft) that is no probability (NaN,
    negative, above 1 by more than rounding) rejects the draft (BAD_Q), and a residual without mass
    ends the path with the last kept token (ZERO_RESIDUAL). A greedy request never looks at q.
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch, slot and padding.
    Capturable with ``out``; one launch. Cost: reads V logits per visited
    row, and per rejected draft a row of p and one of q. Source: Leviathan et al. 2023
    (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318); for siblings Jeon et al. 2024
    (arXiv:2402.14160).

    Examples
    --------
    p = (.5, .3, .2), q = (.2, .3, .5): draft C has p / q = .4, which the coin .6 exceeds. The
    residual holds token A alone:

    >>> import torch, specfast
    >>> rules = specfast.SamplingRules(
    ...     torch.ones(1), torch.zeros(1, dtype=torch.int64),
    ...     coins=specfast.Coins(torch.tensor([[0.6, 0]]), torch.tensor([0.9])))
    >>> record = specfast.ops.accept_rejection(
    ...     torch.tensor([[9, 2]]), torch.tensor([10], dtype=torch.int32),
    ...     torch.tensor([[0.5, 0.3, 0.2]] * 2).log(), rules,
    ...     specfast.Proposal(probs=torch.tensor([[0.2, 0.3, 0.5]])))
    >>> record.out_tokens.tolist()
    [[0, -1]]
    """
    out = accept_buffers(
        "accept_rejection",
        out,
        draft_tokens,
        width,
        target_logits,
        out_cache_loc,
        accumulate_status=accumulate_status,
        cap_trim=return_trim,
        logprobs=logprobs,
    )
    q = proposal_tensors("accept_rejection", proposal)
    if retrieve_next_token is not None and not proposal.without_replacement:
        raise RuntimeError(
            "accept_rejection: expected proposal.without_replacement on a tree (siblings drawn "
            "without replacement, all of them kept, in draw order), got False: other trees are "
            'verified by rule "target_only"'
        )
    torch.ops.specfast.accept_rejection(
        draft_tokens,
        prefix_lens,
        target_logits,
        retrieve_next_token,
        retrieve_next_sibling,
        retrieve_index,
        *q,
        vocab_size,
        qo_indptr,
        verify_lens,
        *finish_tensors("accept_rejection", finish),
        out_cache_loc,
        accumulate_status,
        *sampling_tensors("accept_rejection", sampling),
        *coin_tensors("accept_rejection", sampling),
        return_trim,
        logprobs == "processed",
        out.per_request,
        out.per_step,
        out.predict,
        out.slots,
        out.logprobs,
        workspace,
    )
    return out


def accept_block(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    proposal: Proposal,
    *,
    vocab_size: int | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    finish: FinishRules | None = None,
    out_cache_loc: Tensor | None = None,
    logprobs: Logprobs | None = None,
    out: AcceptRecord | None = None,
    accumulate_status: bool = False,
    workspace: Tensor | None = None,
) -> AcceptRecord:
    """Accept a prefix of a chain by one decision on the whole chain.

    With r_i = min(1, r_{i-1} p_i / q_i) at draft i, the prefix of i drafts is kept with a
    probability that counts what its continuations could still make good; the longest prefix whose
    coin says so is accepted. Every token is distributed as p, as by :func:`accept_rejection`, and
    on average more drafts are accepted.

    Parameters
    ----------
    draft_tokens, prefix_lens, target_logits, sampling
        As in :func:`accept_target_only`, of a chain.
    proposal : Proposal
        q of each draft, as in :func:`accept_rejection`.
    vocab_size, qo_indptr, verify_lens, finish, out_cache_loc, logprobs, out, accumulate_status
        As in :func:`accept_target_only`.
    workspace : int32 [B, N, 12], optional
        Scratch, as from :func:`accept_workspace`; its contents do not matter and are overwritten.
        With it all rows are read at once by a launch before, whether the path comes to them or not,
        instead of one after the other. Changes no result; without effect where ``sampling`` has
        penalties, edits or a bitmask, and on float16.

    Returns
    -------
    AcceptRecord
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; a proposal over another vocabulary
        without ``d2t``.

    Notes
    -----
    Bad data: as in :func:`accept_rejection`; rows up to the first draft that no prefix can keep
    are looked at. Devices: CPU, CUDA; equal results. Deterministic, and independent of batch, slot
    and padding. Capturable with ``out``; one launch, with ``workspace`` two. Cost: reads V logits
    for every draft up to the first with r = 0, whether it is accepted or not, and where two tokens
    do not decide also V of q. Source: Sun et al. 2024 (arXiv:2403.10444).

    Examples
    --------
    One draft is the rule p / q = .4 of :func:`accept_rejection`; the coin .3 accepts it:

    >>> import torch, specfast
    >>> rules = specfast.SamplingRules(
    ...     torch.ones(1), torch.zeros(1, dtype=torch.int64),
    ...     coins=specfast.Coins(torch.tensor([[0.3, 0]]), torch.tensor([0.9])))
    >>> record = specfast.ops.accept_block(
    ...     torch.tensor([[9, 2]]), torch.tensor([10], dtype=torch.int32),
    ...     torch.tensor([[0.5, 0.3, 0.2]] * 2).log(), rules,
    ...     specfast.Proposal(probs=torch.tensor([[0.2, 0.3, 0.5]])))
    >>> record.out_tokens.tolist()
    [[2, 2]]
    """
    out = accept_buffers(
        "accept_block",
        out,
        draft_tokens,
        None,
        target_logits,
        out_cache_loc,
        accumulate_status=accumulate_status,
        logprobs=logprobs,
    )
    torch.ops.specfast.accept_block(
        draft_tokens,
        prefix_lens,
        target_logits,
        *proposal_tensors("accept_block", proposal),
        vocab_size,
        qo_indptr,
        verify_lens,
        *finish_tensors("accept_block", finish),
        out_cache_loc,
        accumulate_status,
        *sampling_tensors("accept_block", sampling),
        *coin_tensors("accept_block", sampling),
        logprobs == "processed",
        out.per_request,
        out.per_step,
        out.predict,
        out.slots,
        out.logprobs,
        workspace,
    )
    return out


register_in_place("accept_target_only", "accept_rejection", "accept_block")
