"""Trees of EAGLE drafts: the likeliest (EAGLE-2), or drawn without replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.draws import UNUSABLE
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_chain import EagleChain, last_hidden, pair_counts
from specfast.drafters.pairs import DraftedPairs
from specfast.drafters.tree_sampler import TreeSampler
from specfast.drafters.tree_shape import TreeShape
from specfast.records import ExpandedFrontier


@dataclass(frozen=True)
class TreeCandidates:
    """Candidates of B trees, C each, numbered as ``ops.select_draft_tokens`` has them.

    scores : float32 [B, C]         log probability of the path to each
    tokens : int32 [B, C]           ids of the target
    parent_list : int32 [B, k (D - 1) + 1]
    num_usable : int64 [B]          levels before the first whose rows are no distribution
    """

    scores: Tensor
    tokens: Tensor
    parent_list: Tensor
    num_usable: Tensor


class _Frontier:
    """Drafted nodes, level by level, and the ancestors that each attends to."""

    def __init__(self, chains: Sequence[EagleChain]) -> None:
        self._model: EagleModel = chains[0].model
        self._counts = pair_counts(chains)[:, None]
        self._pairs = DraftedPairs([chain.cache for chain in chains])
        self._ancestors: Tensor | None = None
        self._level = 0
        self.hidden = last_hidden(chains)

    def logits(self) -> Tensor:
        """[B, n, draft vocabulary] of the children of the last level's n nodes."""
        return self._model.logits(self.hidden)

    def descend(self, tokens: Tensor, parents: Tensor) -> None:
        """Run nodes ``tokens`` [B, n], children of nodes ``parents`` [B, n] of the last level."""
        batch, count = tokens.shape
        own = torch.eye(count, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
        if self._ancestors is None:
            self._ancestors = own
        else:
            index = parents[..., None].expand(-1, -1, self._ancestors.shape[-1])
            self._ancestors = torch.cat([self._ancestors.gather(1, index), own], -1)
        index = parents[..., None].expand(-1, -1, self.hidden.shape[-1])
        features = self._model.next_features(self.hidden.gather(1, index))
        positions = (self._counts + self._level).expand(-1, count)
        self._pairs.ancestors = self._ancestors
        self.hidden = self._model.forward(tokens, features, positions, self._pairs)
        self._level += 1


def expand(chains: Sequence[EagleChain], topk: int, depth: int) -> TreeCandidates:
    """The ``topk`` likeliest children of the ``topk`` likeliest nodes of each level.

    Likeliest by the product of probabilities at temperature 1 from the anchor on; equal ones in the
    order of their numbers.
    """
    model, frontier = chains[0].model, _Frontier(chains)
    d2t = model.weights.get("d2t")
    levels: list[ExpandedFrontier] = []
    above, first = None, 0
    for number in range(depth):
        logits = frontier.logits()
        level = ops.expand_frontier(logits, above, topk=topk, first_candidate=first, d2t=d2t)
        levels.append(level)
        if number < depth - 1:
            frontier.descend(level.tokens.long(), level.parents.long())
            above, first = level.scores, first + level.candidate_scores.shape[1]
    usable = [((level.status & int(UNUSABLE)) == 0).all(1) for level in levels]
    root = torch.full_like(levels[0].tokens[:, :1], -1)
    return TreeCandidates(
        torch.cat([level.candidate_scores for level in levels], 1),
        torch.cat([level.candidate_tokens for level in levels], 1),
        torch.cat([root, *(level.parent_list for level in levels[:-1])], 1),
        torch.stack(usable, 1).long().cumprod(1).sum(1),
    )


def draw(chains: Sequence[EagleChain], shape: TreeShape, sampler: TreeSampler) -> Tensor:
    """Tokens int64 [B, N - 1] of the nodes behind the anchor, drawn level by level.

    ``sampler`` keeps what they were drawn from.
    """
    model, frontier = chains[0].model, _Frontier(chains)
    levels: list[Tensor] = []
    for level in shape.levels:
        drawn = model.target_ids(sampler.draw(frontier.logits(), level.num_draws))
        rows = torch.tensor(level.rows, device=model.device)
        draws = torch.tensor(level.draws, device=model.device)
        levels.append(drawn[:, rows, draws])
        if level.going_on:
            index = torch.tensor(level.going_on, device=model.device)
            parents = rows[index].expand(len(chains), -1)
            frontier.descend(levels[-1][:, index], parents)
    return torch.cat(levels, 1)
