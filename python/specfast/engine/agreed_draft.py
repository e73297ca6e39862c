"""A round of one engine per rank: what they have to have in common before the target runs."""

from __future__ import annotations

from dataclasses import replace

import torch

from specfast.drafters.base import DraftBatch
from specfast.engine.rank_agreement import RankAgreement, Site


def agreed_draft(
    agreement: RankAgreement, draft: DraftBatch, verify_width: int, device: torch.device
) -> DraftBatch:
    """The draft of rank 0, of its width and form; what drafts were drawn from stays a rank's own.

    A rank that drafted in another form cannot verify by what its own drafts were drawn from and
    gives that up; the accept site then brings rank 0's outcome. The message lies on ``device``, as
    those of the accept site, and has room for ``verify_width`` nodes, whatever a rank has drafted.
    """
    batch_size, num_nodes = draft.tokens.shape
    own_form = [num_nodes, draft.parents is not None, draft.proposal is not None]
    form = torch.tensor(own_form, dtype=torch.int64, device=device)
    verify_lens = torch.tensor(draft.verify_lens, device=device)
    tokens = torch.full((batch_size, verify_width), -1, dtype=torch.int64, device=device)
    tokens[:, :num_nodes] = draft.tokens
    parents = torch.full_like(tokens, -1)
    if draft.parents is not None:
        parents[:, :num_nodes] = draft.parents
    agreement.decide(Site.DRAFT, form, verify_lens, tokens, parents)
    num_nodes, is_tree, _ = agreed_form = form.tolist()
    place = draft.tokens.device
    return replace(
        draft,
        tokens=tokens[:, :num_nodes].to(place, draft.tokens.dtype),
        verify_lens=verify_lens.tolist(),
        parents=parents[:, :num_nodes].to(place, torch.int32) if is_tree else None,
        proposal=draft.proposal if agreed_form == own_form else None,
    )


def agreed_plan(
    agreement: RankAgreement,
    draft: DraftBatch,
    verify_lens: list[int],
    at_tier: bool,
    device: torch.device,
) -> tuple[DraftBatch, list[int], bool]:
    """The rows that rank 0 verifies of each request, and whether in a round at a tier.

    A rank that could not follow to a tier has a proposal that is too large, and gives it up: all
    else that its rounds depend on is the same on all ranks.
    """
    plan = torch.tensor([*verify_lens, at_tier], device=device)
    agreement.decide(Site.PLAN, plan)
    *lens, at_tiers = plan.tolist()
    if at_tiers and not at_tier:
        draft = replace(draft, proposal=None)
    return draft, lens, bool(at_tiers)
