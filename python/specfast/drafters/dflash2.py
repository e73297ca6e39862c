"""DFlash-2: the backbone of DFlash with dynamic convolutions, and a selector of candidates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.block_context import Contexts
from specfast.drafters.checkpoint.spec import ConvolutionSpec, DrafterSpec, SelectorSpec
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import UNUSABLE, ChainDrafts, DraftSampler


class DFlash2Model(DFlashModel):
    """Convolutions and selector of DFlash-2 over tensors of B requests."""

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        super().__init__(spec, weights)
        if spec.convolution is None or spec.selector is None:
            raise ValueError("DFlash2Model: expected a spec of DFlash-2")
        self.convolution: ConvolutionSpec = spec.convolution
        self.selector: SelectorSpec = spec.selector

    def draft(
        self, contexts: Contexts, anchors: Tensor, num_drafts: int, sampler: DraftSampler
    ) -> ChainDrafts:
        """As :meth:`DFlashModel.draft`; each draft is one of its slot's candidates.

        ``q`` is the law of the candidates after the draft that was walked.
        """
        hidden = self.draft_rows(contexts, anchors, num_drafts)
        values, candidates = _top_k(self.logits(hidden), self.selector.top_k)
        unary = values.float() * self.selector.output_multiplier
        if self.selector.softcap is not None:
            unary = self.selector.softcap * (unary / self.selector.softcap).tanh()
        keys = self.weights.linear("candidate_selector.hidden_projection", hidden)
        # A walk, not the best path: what comes later has no say in a choice.
        walk = sampler.walk(
            candidates,
            unary,
            keys,
            self.weights["candidate_selector.predecessor_codebook"],
            self.weights["candidate_selector.successor_codebook"],
            anchors,
        )
        # Where nothing can be taken the draft is dropped.
        return ChainDrafts(walk.tokens.long().clamp(min=0), candidates=candidates, q=walk.q)

    def _sublayer(self, name: str, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        base = self.weights[f"{name}.base_kernel"]
        dynamic = self.weights.linear(f"{name}.kernel_projection", normed)
        dynamic = dynamic.view(*dynamic.shape[:-1], 2, self.convolution.num_taps, -1)
        # Both sides take their coefficients from the rows before either convolution.
        before, after = dynamic.unbind(-3)
        inner = sublayer(ops.grouped_dynamic_conv(normed, base[0], before))
        return ops.grouped_dynamic_conv(inner, base[1], after)


def _top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, or all, largest first, the lower id first among equals.

    All are NaN in a row with a NaN, and in one with nothing above -inf.
    """
    k = min(k, logits.shape[-1])
    level = ops.expand_frontier(logits.flatten(0, -2)[:, None], topk=k)
    ids = level.candidate_tokens.long().view(*logits.shape[:-1], k)
    usable = ((level.status & int(UNUSABLE)) == 0).view(*logits.shape[:-1], 1)
    return logits.gather(-1, ids).masked_fill(~usable, torch.nan), ids
