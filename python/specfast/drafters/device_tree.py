"""EAGLE's trees, drafted on the device as a part of the verify round."""

from __future__ import annotations

import torch

from specfast.drafters.base import DeviceDrafts, DraftPages, DraftSlots
from specfast.drafters.device_trained import DeviceTrainedDrafter, is_live, padded
from specfast.drafters.eagle import EagleModel
from specfast.drafters.paged_pairs import PagedChains
from specfast.drafters.tree_choice import best_tree
from specfast.drafters.tree_drafter import checked_topk
from specfast.ops.attention import MAX_ATTENTION_ROWS
from specfast.status import Status


class DeviceTreeDrafter(DeviceTrainedDrafter):
    """Drafts the dynamic trees of ``TreeDrafter`` from the device alone: a ``DeviceDrafter``.

    With the same checkpoint, requests and rounds it proposes the same tokens, parents and
    survivals, up to the rounding of its attention. They are verified target-only, which is exact
    for greedy and for sampled requests.

    Parameters
    ----------
    model : EagleModel
        From ``load_drafter``, for the engine's target.
    num_nodes, topk, depth
        As ``TreeDrafter`` takes them. All levels are expanded in every round.

    Raises
    ------
    ValueError
        As ``TreeDrafter`` does; more than 128 nodes that are expanded, the anchor not counted,
        which are ``topk`` of each level but the last.
    """

    drafts_trees = True

    def __init__(
        self, model: EagleModel, num_nodes: int = 60, topk: int = 8, depth: int = 6
    ) -> None:
        self.topk = checked_topk(type(self).__name__, model, num_nodes, topk, depth)
        super().__init__(model, num_nodes - 1)
        self._depth = min(depth, num_nodes - 1)
        self._num_expanded = self.topk * (self._depth - 1)
        if self._num_expanded > MAX_ATTENTION_ROWS:
            raise ValueError(
                f"DeviceTreeDrafter: expected at most {MAX_ATTENTION_ROWS} expanded nodes "
                f"topk (depth - 1), got {self._num_expanded}"
            )

    def attach(self, pages: DraftPages) -> None:
        assert isinstance(self.model, EagleModel)
        self._chains = PagedChains(self.model, pages, self._num_expanded)

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        width = slots.tokens.shape[1]
        num_nodes = min(1 + self.num_drafts, width)
        depth = min(self._depth, num_nodes - 1)
        if depth == 0:
            slots.verify_lens.clamp_(max=1)
            return DeviceDrafts()
        if slots.parents is None:
            raise ValueError("DeviceTreeDrafter.draft: expected slots with parents, got none")
        live = is_live(slots)
        lens = torch.where(live, slots.prefix_lens, 0)
        chains = self._of_engine
        assert isinstance(chains, PagedChains)
        candidates = chains.expand(slots.slots, lens, live, self.topk, depth)
        # The bonus comes on top of the deepest path.
        limits = (slots.tokens_left - 1).clamp(0, depth)
        tree, nodes = best_tree(
            candidates,
            slots.tokens[:, 0].contiguous(),
            lens,
            limits.long(),
            topk=self.topk,
            num_nodes=num_nodes,
        )
        count = tree.parents.shape[1]
        slots.tokens[:, 1:count].copy_(tree.draft_tokens[:, 1:])
        slots.tokens[:, count:].fill_(-1)
        slots.parents[:, :count].copy_(tree.parents)
        slots.parents[:, count:].fill_(-1)
        torch.minimum(slots.verify_lens, nodes.verify_lens, out=slots.verify_lens)
        cut = live & (candidates.num_usable < limits)
        return DeviceDrafts(
            confidence=padded(nodes.survival, width - 1, 0.0),
            confidence_form="survival",
            status=cut.int() * int(Status.NAN_DRAFTS),
        )
