"""Which candidates of score-chosen trees are verified: the best of each, or of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.eagle_tree import TreeCandidates
from specfast.records import TreeRecord


@dataclass(frozen=True)
class ChosenNodes:
    """What becomes nodes 1, 2, ... of B trees, best first, so that any prefix is a tree.

    index : int32 [B, N - 1]         candidates; a parent comes before its children
    survival : float32 [B, N - 1]    the drafter's probability of the path to each
    verify_lens : int32 [B]          nodes that are verified, the anchor included
    """

    index: Tensor
    survival: Tensor
    verify_lens: Tensor


def choose_nodes(
    candidates: TreeCandidates,
    topk: int,
    num_nodes: int,
    deepest: Tensor,
    budget: int | None = None,
) -> ChosenNodes:
    """The ``num_nodes - 1`` best of each tree, by (score descending, candidate ascending).

    None that is verified lies deeper than ``deepest`` int64 [B] or has a score of -inf. With a
    ``budget`` only so many are, over the whole batch: the best by (score descending, node
    ascending, request ascending), where scores count as probabilities in float32.
    """
    numbers = torch.arange(candidates.scores.shape[1], device=deepest.device)
    depths = torch.where(numbers < topk, 1, 2 + (numbers - topk) // topk**2)
    scores = torch.where(depths <= deepest[:, None], candidates.scores, -torch.inf)
    index, _ = ops.select_draft_tokens(
        scores, candidates.parent_list, topk=topk, num_nodes=num_nodes
    )
    ranked = scores.gather(1, index.long()).sort(dim=1, descending=True, stable=True)
    lens = 1 + (ranked.values > -torch.inf).sum(1, dtype=torch.int32)
    survival = ranked.values.exp()
    if budget is not None:
        schedule = ops.schedule_verify_lens(survival, budget, max_lens=lens, epsilon=0)
        lens = schedule.verify_lens
    return ChosenNodes(index.gather(1, ranked.indices), survival, lens)


def best_tree(
    candidates: TreeCandidates,
    anchors: Tensor,
    prefix_lens: Tensor,
    limits: Tensor,
    *,
    topk: int,
    num_nodes: int,
    budget: int | None = None,
) -> tuple[TreeRecord, ChosenNodes]:
    """Trees of at most ``num_nodes`` nodes behind ``anchors`` int64 [B], and how they were chosen.

    ``limits`` int64 [B] says how many levels each request has a use for; the rest as
    :func:`choose_nodes` has it.
    """
    deepest = torch.minimum(candidates.num_usable, limits)
    num_nodes = min(num_nodes, candidates.scores.shape[1] + 1)
    nodes = choose_nodes(candidates, topk, num_nodes, deepest, budget)
    # Of it tokens and parents alone are used: links and mask are those of what is verified,
    # which is decided later. No smaller op has the parents.
    tree = ops.build_tree(
        anchors,
        candidates.tokens.gather(1, nodes.index.long()),
        candidates.parent_list,
        nodes.index,
        prefix_lens,
        topk=topk,
    )
    return tree, nodes
