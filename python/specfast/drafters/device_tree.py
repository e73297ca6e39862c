"""EAGLE's trees, drafted on the device as a part of the verify round."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specfast.drafters.base import DeviceDrafts, DraftPages, DraftSlots
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_tree import draw, expand
from specfast.drafters.paged_drafter import PagedDrafter, flagged, is_live, padded, rules_of
from specfast.drafters.paged_pairs import PagedChains
from specfast.drafters.placed_shape import LikelyShapes
from specfast.drafters.tree_choice import best_tree
from specfast.drafters.tree_drafter import checked_topk
from specfast.drafters.tree_sampler import TreeSampler
from specfast.ops.attention import MAX_ATTENTION_ROWS


class DeviceTreeDrafter(PagedDrafter):
    """Drafts the trees of ``TreeDrafter`` from the device alone: a ``DeviceDrafter``.

    With the same checkpoint, requests and rounds it proposes the same tokens, parents, survivals
    and q, up to the rounding of its attention. Dynamic trees are verified target-only, drawn ones
    by recursive rejection; both are exact for greedy and for sampled requests.

    Parameters
    ----------
    model : EagleModel
        From ``load_drafter``, for the engine's target.
    num_nodes, topk, depth, drawn
        As ``TreeDrafter`` takes them. All levels are expanded, or drawn, in every round.

    Raises
    ------
    ValueError
        As ``TreeDrafter`` does; more than 128 nodes that are expanded, the anchor not counted:
        ``topk`` of each level but the last, or those of a drawn tree that have children.
    """

    drafts_trees = True

    def __init__(
        self,
        model: EagleModel,
        num_nodes: int = 60,
        topk: int = 8,
        depth: int = 6,
        *,
        drawn: bool = False,
    ) -> None:
        self.topk = checked_topk(type(self).__name__, model, num_nodes, topk, depth)
        super().__init__(model, num_nodes - 1, depth=min(depth, num_nodes - 1))
        self.drawn = drawn
        # Others than that of all nodes are placed when a round of their width is first met, which
        # is never one that is being captured.
        self._shapes = LikelyShapes(self.topk, depth, model.device)
        num_expanded = self.topk * (self._depth - 1)
        if drawn:
            num_expanded = max(num_expanded, self._shapes.of(num_nodes).num_inner)
        if num_expanded > MAX_ATTENTION_ROWS:
            raise ValueError(
                f"DeviceTreeDrafter: expected at most {MAX_ATTENTION_ROWS} expanded nodes, "
                f"topk (depth - 1) or those of a drawn tree with children, got {num_expanded}"
            )
        self._num_expanded = num_expanded

    def attach(self, pages: DraftPages) -> None:
        assert isinstance(self.model, EagleModel)
        self._chains = PagedChains(self.model, pages, self._num_expanded)

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        num_nodes = min(1 + self.num_drafts, slots.tokens.shape[1])
        if num_nodes == 1:
            slots.verify_lens.clamp_(max=1)
            return DeviceDrafts()
        if slots.parents is None:
            raise ValueError("DeviceTreeDrafter.draft: expected slots with parents, got none")
        live = is_live(slots)
        prefix_lens = slots.prefix_lens * live
        draft = self._draw if self.drawn and slots.is_sampled else self._expand
        return draft(slots, live, prefix_lens, num_nodes)

    def _expand(
        self, slots: DraftSlots, live: Tensor, prefix_lens: Tensor, num_nodes: int
    ) -> DeviceDrafts:
        depth = min(self._depth, num_nodes - 1)
        frontier = self._paged.frontier(
            slots.page_table_rows, prefix_lens, live, self.topk * (depth - 1), depth - 1
        )
        candidates = expand(frontier, self.topk, depth)
        limits = _levels_of_use(slots, depth)
        tree, nodes = best_tree(
            candidates,
            slots.tokens[:, 0].contiguous(),
            prefix_lens,
            limits.long(),
            topk=self.topk,
            num_nodes=num_nodes,
        )
        _write_nodes(slots, tree.draft_tokens[:, 1:], tree.parents, nodes.verify_lens)
        return DeviceDrafts(
            confidence=padded(nodes.survival, slots.tokens.shape[1] - 1, 0.0),
            confidence_form="survival",
            status=flagged(live & (candidates.num_usable < limits)),
        )

    def _draw(
        self, slots: DraftSlots, live: Tensor, prefix_lens: Tensor, num_nodes: int
    ) -> DeviceDrafts:
        shape = self._shapes.of(num_nodes)
        frontier = self._paged.frontier(
            slots.page_table_rows, prefix_lens, live, shape.num_inner, shape.depth - 1
        )
        sampler = TreeSampler(rules_of(slots), slots.prefix_lens)
        tokens = draw(frontier, shape, sampler)
        limits, usable = _levels_of_use(slots, shape.depth), sampler.num_usable()
        nodes = shape.nodes_within(torch.minimum(usable, limits))
        _write_nodes(slots, tokens, shape.parents.expand(len(tokens), -1), nodes)
        rows = shape.row_of_node(len(tokens))
        missing = slots.tokens.shape[1] - rows.shape[1]
        rows = functional.pad(rows, (0, missing), value=-1)
        return DeviceDrafts(
            sampler.proposal(rows, self.model.weights.get("d2t")),
            status=flagged(live & (usable < limits)),
        )

    @property
    def _paged(self) -> PagedChains:
        chains = self._of_engine
        assert isinstance(chains, PagedChains)
        return chains


def _levels_of_use(slots: DraftSlots, depth: int) -> Tensor:
    """int32 [B]: the bonus comes on top of the deepest path."""
    return (slots.tokens_left - 1).clamp(0, depth)


def _write_nodes(slots: DraftSlots, tokens: Tensor, parents: Tensor, verify_lens: Tensor) -> None:
    """``tokens`` [B, N - 1] and ``parents`` [B, N] of nodes, of which so many may be verified."""
    assert slots.parents is not None
    count = parents.shape[1]
    slots.tokens[:, 1:count].copy_(tokens)
    slots.tokens[:, count:].fill_(-1)
    slots.parents[:, :count].copy_(parents)
    slots.parents[:, count:].fill_(-1)
    torch.minimum(slots.verify_lens, verify_lens, out=slots.verify_lens)
