"""Trees of EAGLE drafts: the likeliest (EAGLE-2), or drawn without replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.draws import UNUSABLE
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_chain import EagleChain, last_hidden, pair_counts
from specfast.drafters.layers import Places
from specfast.drafters.pairs import DraftedPairs, Pairs
from specfast.drafters.placed_shape import PlacedShape
from specfast.drafters.tree_sampler import TreeSampler
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


class Frontier:
    """Drafted nodes of B trees, level by level, and the ancestors that each attends to.

    Parameters
    ----------
    model : EagleModel
    hidden : [B, 1, hidden]
        Of the last committed pairs; then of the last level's nodes.
    behind : callable
        Takes the number of a level, from 0, and ``ancestors`` bool [B, n, m + n], which of the m
        nodes of the levels before and of its own n each of its nodes sees. Gives their places
        [B, n] and what they attend to.
    """

    def __init__(
        self,
        model: EagleModel,
        hidden: Tensor,
        behind: Callable[[int, Tensor], tuple[Places, Pairs]],
    ) -> None:
        self.model = model
        self._behind = behind
        self._ancestors: Tensor | None = None
        self._level = 0
        self.hidden = hidden

    @classmethod
    def of_chains(cls, chains: Sequence[EagleChain]) -> Frontier:
        """Behind the committed pairs of ``chains``, which stay as they are."""
        model, counts = chains[0].model, pair_counts(chains)[:, None]
        pairs = DraftedPairs([chain.cache for chain in chains])

        def behind(level: int, ancestors: Tensor) -> tuple[Places, DraftedPairs]:
            pairs.ancestors = ancestors
            positions = (counts + level).expand(-1, ancestors.shape[1])
            return model.places(positions), pairs

        return cls(model, last_hidden(chains), behind)

    def logits(self) -> Tensor:
        """[B, n, draft vocabulary] of the children of the last level's n nodes."""
        return self.model.logits(self.hidden)

    def descend(self, tokens: Tensor, parents: Tensor, ancestors: Tensor | None = None) -> None:
        """Run nodes ``tokens`` [B, n], children of nodes ``parents`` [B, n] of the last level.

        ``ancestors``, if they are known for all levels, are as ``behind`` takes them.
        """
        if ancestors is None:
            ancestors = self._ancestors = self._ancestors_of(tokens, parents)
        features = self.model.next_features(self.hidden)
        places, pairs = self._behind(self._level, ancestors)
        self.hidden = self.model.forward(tokens, features, places, pairs, parents=parents)
        self._level += 1

    def _ancestors_of(self, tokens: Tensor, parents: Tensor) -> Tensor:
        batch, count = tokens.shape
        own = torch.eye(count, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
        if self._ancestors is None:
            return own
        index = parents.long()[..., None].expand(-1, -1, self._ancestors.shape[-1])
        return torch.cat([self._ancestors.gather(1, index), own], -1)


def expand(frontier: Frontier, topk: int, depth: int) -> TreeCandidates:
    """The ``topk`` likeliest children of the ``topk`` likeliest nodes of each level.

    Likeliest by the product of probabilities at temperature 1 from the anchor on; equal ones in the
    order of their numbers.
    """
    d2t = frontier.model.weights.get("d2t")
    levels: list[ExpandedFrontier] = []
    above, first = None, 0
    for number in range(depth):
        logits = frontier.logits()
        level = ops.expand_frontier(logits, above, topk=topk, first_candidate=first, d2t=d2t)
        levels.append(level)
        if number < depth - 1:
            frontier.descend(level.tokens, level.parents)
            above, first = level.scores, first + level.candidate_scores.shape[1]
    usable = [((level.status & int(UNUSABLE)) == 0).all(1) for level in levels]
    root = torch.full_like(levels[0].tokens[:, :1], -1)
    return TreeCandidates(
        torch.cat([level.candidate_scores for level in levels], 1),
        torch.cat([level.candidate_tokens for level in levels], 1),
        torch.cat([root, *(level.parent_list for level in levels[:-1])], 1),
        torch.stack(usable, 1).long().cumprod(1).sum(1),
    )


def draw(frontier: Frontier, shape: PlacedShape, sampler: TreeSampler) -> Tensor:
    """Tokens int64 [B, N - 1] of the nodes behind the anchor, drawn level by level.

    ``sampler`` keeps what they were drawn from.
    """
    model = frontier.model
    levels: list[Tensor] = []
    for level in shape.levels:
        drawn = model.target_ids(sampler.draw(frontier.logits(), level.num_draws))
        levels.append(drawn.flatten(1)[:, level.columns])
        if level.going_on is not None:
            parents = level.parents.expand(len(drawn), -1)
            ancestors = level.ancestors.expand(len(drawn), -1, -1)
            frontier.descend(levels[-1][:, level.going_on], parents, ancestors)
    return torch.cat(levels, 1)
