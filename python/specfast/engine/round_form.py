"""What a captured round holds, besides its size; and which rounds cannot be captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specfast.drafters.base import DeviceDrafter, DraftBatch, Drafter
from specfast.engine.requests import Request
from specfast.engine.round_inputs import MAX_END_IDS
from specfast.engine.round_proposal import ProposalForm, num_rows_of
from specfast.sampling_params import LogprobsMode

CapturedRule = Literal["greedy", "temperature", "filtered"]


@dataclass(frozen=True)
class RoundForm:
    """Which kernels a round runs.

    drafted : on the host, before the round, or on the device, as a part of it
    tree : drafts are trees, not chains
    rule : the greedy rule; a sampled one by temperature alone, or with top-k, top-p, min-p
    logprobs : which log-probabilities are asked for, if any
    proposal : of the host's drafts; they are then tested by p / q, others are target-only
    is_sampled : a drafter on the device draws, since a request is sampled; log-probabilities alone
                 ask for a sampled rule as well
    """

    drafted: Literal["host", "device"]
    tree: bool
    rule: CapturedRule
    logprobs: LogprobsMode | None = None
    proposal: ProposalForm | None = None
    is_sampled: bool = False

    @classmethod
    def of(
        cls, requests: Sequence[Request], draft: DraftBatch | None, drafter: Drafter
    ) -> RoundForm:
        """The form of a round that :func:`why_eager` has nothing against.

        Without a ``draft``, ``drafter`` makes it on the device.
        """
        params = [request.params for request in requests]
        modes = {p.logprobs for p in params if p.logprobs is not None}
        rule: CapturedRule = "temperature"
        if all(p.is_plain_greedy for p in params) and not modes:
            rule = "greedy"
        elif any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params):
            rule = "filtered"
        if draft is None:
            tree = isinstance(drafter, DeviceDrafter) and drafter.drafts_trees
        else:
            tree = draft.parents is not None
        proposal = None
        if draft is not None and draft.proposal is not None and rule != "greedy":
            proposal = ProposalForm.of(draft.proposal)
        drafted: Literal["host", "device"] = "host" if draft is not None else "device"
        is_sampled = draft is None and any(not p.is_greedy for p in params)
        return cls(drafted, tree, rule, min(modes, default=None), proposal, is_sampled)


def why_eager(requests: Sequence[Request], draft: DraftBatch | None) -> str | None:
    """Why this round cannot be captured; None if it can."""
    params = [request.params for request in requests]
    if draft is not None and draft.proposal is not None:
        rows, most = num_rows_of(draft.proposal), draft.tokens.numel()
        if rows > most:
            return f"a proposal has {rows} rows for {most} nodes"
    if any(p.has_penalties or p.logit_bias for p in params):
        return "penalties and biases change from round to round"
    if len({p.logprobs for p in params if p.logprobs is not None}) > 1:
        return "requests ask for two kinds of log-probabilities"
    ends = max(len(request.end_token_ids) for request in requests)
    if ends > MAX_END_IDS:
        return f"a request has {ends} ids that end it, and {MAX_END_IDS} are captured"
    return None
