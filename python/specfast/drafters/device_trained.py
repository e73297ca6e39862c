"""Chains of a loaded drafter, drafted on the device as a part of the verify round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specfast.drafters.base import DeviceDrafts, DraftPages, DraftSlots
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import ChainDrafts, DraftSampler, proposal_of
from specfast.drafters.loader import DrafterModel
from specfast.drafters.paged_blocks import PagedBlocks, why_not_paged
from specfast.drafters.paged_drafter import PagedDrafter, flagged, is_live, padded, rules_of
from specfast.drafters.paged_pairs import PagedChains
from specfast.drafters.trained import check_options


class DeviceTrainedDrafter(PagedDrafter):
    """Drafts as ``TrainedDrafter`` does, from the device alone: a :class:`DeviceDrafter`.

    With the same checkpoint, requests and rounds it proposes the same tokens, q and confidences, up
    to the rounding of its attention.

    Parameters
    ----------
    model : EagleModel or DFlashModel
        From ``load_drafter``, for the engine's target.
    num_drafts, temperatures
        As ``TrainedDrafter`` takes them.

    Raises
    ------
    ValueError
        As ``TrainedDrafter`` does; a model that ``why_not_on_device`` has something against.
    """

    drafts_trees = False

    def __init__(
        self,
        model: DrafterModel,
        num_drafts: int = 7,
        *,
        temperatures: Sequence[float] | None = None,
    ) -> None:
        check_options(type(self).__name__, model, num_drafts, temperatures)
        why_not = why_not_on_device(model)
        if why_not is not None:
            raise ValueError(
                f"{type(self).__name__}: expected a drafter for the device, got {why_not}"
            )
        if isinstance(model, DFlashModel):
            num_drafts = min(num_drafts, model.block_spec.num_proposals)
        super().__init__(model, num_drafts, depth=num_drafts)
        self._temperatures: Tensor | None = None
        if temperatures is not None:
            self._temperatures = torch.tensor(
                temperatures, dtype=torch.float32, device=model.device
            )

    def attach(self, pages: DraftPages) -> None:
        if isinstance(self.model, DFlashModel):
            self._chains = PagedBlocks(self.model, pages)
        else:
            # The last draft is no pair yet.
            self._chains = PagedChains(self.model, pages, self.num_drafts - 1)

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        width = slots.tokens.shape[1]
        count = min(self.num_drafts, width - 1)
        if count == 0:
            slots.verify_lens.clamp_(max=1)
            return DeviceDrafts()
        anchors, live = slots.tokens[:, 0], is_live(slots)
        sampler = DraftSampler(rules_of(slots), slots.prefix_lens)
        prefix_lens = slots.prefix_lens * live
        drafts = self._of_engine.draft(
            slots.page_table_rows,
            prefix_lens,
            live,
            torch.where(live, anchors, -1).long(),
            count,
            sampler,
        )
        slots.tokens[:, 1 : 1 + count].copy_(drafts.tokens)
        slots.tokens[:, 1 + count :].fill_(-1)
        wanted = torch.minimum(slots.verify_lens, slots.tokens_left).clamp(0, 1 + count)
        torch.minimum(wanted, sampler.num_usable().int() + 1, out=slots.verify_lens)
        is_cut = live & (slots.verify_lens < wanted)
        proposal = None
        if slots.is_sampled:
            proposal = proposal_of(drafts, sampler, self.model.weights.get("d2t"))
            if count < width - 1:
                proposal.row_of_node = rows_of_nodes(slots.tokens, count)
        return DeviceDrafts(
            proposal,
            confidence=padded(drafts.confidence, width - 1, -torch.inf),
            confidence_form="logits",
            temperatures=self._temperatures_of(drafts, width - 1),
            status=flagged(is_cut),
        )

    def _temperatures_of(self, drafts: ChainDrafts, count: int) -> Tensor | None:
        if drafts.confidence is None:
            return None
        return padded(self._temperatures, count, 1.0)


def why_not_on_device(model: DrafterModel) -> str | None:
    """Why ``model`` cannot draft on the device alone; None if it can."""
    return why_not_paged(model) if isinstance(model, DFlashModel) else None


def rows_of_nodes(tokens: Tensor, num_drafts: int) -> Tensor:
    """int32 [B, N]: row of q of each node, where only the first ``num_drafts`` have children."""
    batch, width = tokens.shape
    node = torch.arange(width, dtype=torch.int32, device=tokens.device)
    first = torch.arange(batch, dtype=torch.int32, device=tokens.device) * num_drafts
    return torch.where(node < num_drafts, first[:, None] + node, -1)
