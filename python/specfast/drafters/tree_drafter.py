"""EAGLE in an engine, drafting trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from specfast.drafters.base import DraftBatch, DraftRequest
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_chain import EagleChain
from specfast.drafters.eagle_tree import Frontier, draw, expand
from specfast.drafters.placed_shape import LikelyShapes
from specfast.drafters.sampling import prefix_lens_of
from specfast.drafters.trained import TrainedDrafter, draft_status
from specfast.drafters.tree_choice import best_tree
from specfast.drafters.tree_sampler import TreeSampler
from specfast.ops.frontier import MAX_CHILDREN
from specfast.ops.tree import MAX_CANDIDATES


class TreeDrafter(TrainedDrafter):
    """Drafts trees with EAGLE-1/2 or EAGLE-3.

    The dynamic tree of EAGLE-2 is verified target-only, which is exact for greedy and for sampled
    requests. With ``drawn``, a batch with a request that samples gets a tree of fixed shape
    instead, siblings drawn without replacement, and is verified by recursive rejection.

    Parameters
    ----------
    model : EagleModel
        From ``load_drafter``, for the engine's target.
    num_nodes : int
        Nodes of a tree at most, the anchor included; further limited by ``verify_width``.
    topk : int
        Children of a node at most, and nodes of a level that are expanded; at most 32.
    depth : int
        Levels behind the anchor at most. Those that a request has no use for, near the end of its
        text, are not verified.
    drawn : bool
        Whether a batch with a request that samples gets drawn trees.
    budget : int, optional
        Drafts of a round over the whole batch, the anchors not counted. The likeliest ones of all
        requests are verified; trees that are drawn get equal shares, since what was drawn must not
        decide. It may be changed from round to round; B (num_nodes - 1) <= 24576 with it. Absent:
        every tree has ``num_nodes``.

    Raises
    ------
    ValueError
        A number that is out of range, or a model of another family.

    Notes
    -----
    Source: EAGLE-2 (arXiv:2406.16858), SpecInfer (arXiv:2305.09781) for siblings that are drawn.
    """

    def __init__(
        self,
        model: EagleModel,
        num_nodes: int = 60,
        topk: int = 8,
        depth: int = 6,
        *,
        drawn: bool = False,
        budget: int | None = None,
    ) -> None:
        self.topk = checked_topk(type(self).__name__, model, num_nodes, topk, depth)
        super().__init__(model)
        self.num_nodes = num_nodes
        self.depth = depth
        self.drawn = drawn
        self.budget = budget
        self._shapes = LikelyShapes(self.topk, depth, model.device)

    @property
    def budget(self) -> int | None:
        """Drafts of a round over the whole batch, from the next round on."""
        return self._budget

    @budget.setter
    def budget(self, budget: int | None) -> None:
        if budget is not None and not (isinstance(budget, int) and budget >= 0):
            raise ValueError(f"TreeDrafter: expected budget >= 0, a whole number, got {budget}")
        self._budget = budget

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        num_nodes = min(self.num_nodes, verify_width)
        # The bonus comes on top of the deepest path.
        limits = [max(0, min(self.depth, request.tokens_left - 1)) for request in requests]
        draws = self.drawn and any(not request.params.is_greedy for request in requests)
        if draws and self.budget is not None:
            num_nodes = min(num_nodes, 1 + self.budget // len(requests))
        depth = min(max(limits, default=0), num_nodes - 1)
        if depth == 0 or self.budget == 0:
            return DraftBatch.from_lists(requests, [[] for _ in requests])
        if draws:
            return self._draw(requests, num_nodes, limits)
        return self._expand(requests, num_nodes, depth, limits)

    def _expand(
        self, requests: Sequence[DraftRequest], num_nodes: int, depth: int, limits: list[int]
    ) -> DraftBatch:
        candidates = expand(self._frontier(requests), self.topk, depth)
        tree, nodes = best_tree(
            candidates,
            self._anchors(requests)[:, 0],
            prefix_lens_of(requests, self.model.device),
            candidates.num_usable.new_tensor(limits),
            topk=self.topk,
            num_nodes=num_nodes,
            budget=self.budget,
        )
        lens: list[int] = nodes.verify_lens.tolist()
        usable = candidates.num_usable.tolist()
        status = draft_status([min(limit, depth) for limit in limits], usable)
        return DraftBatch(
            tree.draft_tokens.int(),
            lens,
            tree.parents,
            confidence=nodes.survival,
            status=status,
        )

    def _draw(
        self, requests: Sequence[DraftRequest], num_nodes: int, limits: list[int]
    ) -> DraftBatch:
        shape, device = self._shapes.of(num_nodes), self.model.device
        sampler = TreeSampler.of(requests, device)
        tokens = draw(self._frontier(requests), shape, sampler)
        usable = sampler.num_usable()
        lens: list[int] = shape.nodes_within(
            torch.minimum(usable, usable.new_tensor(limits))
        ).tolist()
        return DraftBatch(
            torch.cat([self._anchors(requests), tokens], 1).int(),
            lens,
            shape.parents.repeat(len(requests), 1),
            sampler.proposal(shape.row_of_node(len(requests)), self.model.weights.get("d2t")),
            status=draft_status([min(limit, shape.depth) for limit in limits], usable.tolist()),
        )

    def _frontier(self, requests: Sequence[DraftRequest]) -> Frontier:
        chains = [cast(EagleChain, self._chains[request.request_id]) for request in requests]
        return Frontier.of_chains(chains)


def checked_topk(name: str, model: EagleModel, num_nodes: int, topk: int, depth: int) -> int:
    """Children of a node that there can be; raises ValueError as :class:`TreeDrafter` does.

    ``name`` is the class that asks.
    """
    if not isinstance(model, EagleModel):
        raise ValueError(f"{name}: expected a model of EAGLE, got {type(model).__name__}")
    for option, value, least in (
        ("num_nodes", num_nodes, 2),
        ("topk", topk, 1),
        ("depth", depth, 1),
    ):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: expected {option} >= {least}, a whole number, got {value}")
    if topk > MAX_CHILDREN:
        raise ValueError(f"{name}: expected topk <= {MAX_CHILDREN}, got {topk}")
    topk = min(topk, model.spec.draft_vocab_size)
    candidates = topk + (min(depth, num_nodes - 1) - 1) * topk**2
    if candidates > MAX_CANDIDATES:
        raise ValueError(
            f"{name}: expected at most {MAX_CANDIDATES} candidates topk + (depth - 1) "
            f"topk², got {candidates}"
        )
    return topk
