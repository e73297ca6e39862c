"""DFlash-2: the backbone of DFlash with dynamic convolutions, and a selector of candidates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specfast.drafters.checkpoint.spec import ConvolutionSpec, DrafterSpec, SelectorSpec
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.dflash import BlockContext, BlockDrafts, DFlashModel


class DFlash2Model(DFlashModel):
    """Convolutions and selector of DFlash-2 over tensors of one request."""

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        super().__init__(spec, weights)
        if spec.convolution is None or spec.selector is None:
            raise ValueError("DFlash2Model: expected a spec of DFlash-2")
        self.convolution: ConvolutionSpec = spec.convolution
        self.selector: SelectorSpec = spec.selector

    def draft(self, context: BlockContext, anchor: int) -> BlockDrafts:
        """As :meth:`DFlashModel.draft`; each draft is the best of its candidates after the last.

        ``logits`` are -inf but for the candidates, which have the scores that were compared.
        """
        hidden = self.proposal_rows(self.block(context, anchor))
        base = self.logits(hidden)
        values, candidates = _top_k(base, self.selector.top_k)
        unary = values.float() * self.selector.output_multiplier
        if self.selector.softcap is not None:
            unary = self.selector.softcap * (unary / self.selector.softcap).tanh()
        keys = self.weights.linear("candidate_selector.hidden_projection", hidden)
        before = self.weights["candidate_selector.predecessor_codebook"]
        after = self.weights["candidate_selector.successor_codebook"]
        scores = torch.full_like(base, -torch.inf, dtype=torch.float32)
        tokens = [anchor]
        for slot, ids in enumerate(candidates):
            # A walk, not the best path: what comes later has no say in this choice.
            row = unary[slot] + (after[ids] @ (before[tokens[-1]] * keys[slot]))
            scores[slot, ids] = row.to(torch.float32)
            tokens.append(int(ids[row.argmax()]))
        return BlockDrafts(torch.tensor(tokens[1:], device=hidden.device), scores)

    def _sublayer(self, name: str, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        base = self.weights[f"{name}.base_kernel"]
        dynamic = self.weights.linear(f"{name}.kernel_projection", normed)
        dynamic = dynamic.view(len(normed), 2, self.convolution.num_taps, -1)
        # Both sides take their coefficients from the rows before either convolution.
        kernel = base + dynamic.repeat_interleave(self.convolution.group_size, dim=-1)
        return _convolved(kernel[:, 1], sublayer(_convolved(kernel[:, 0], normed)))


def _convolved(kernel: Tensor, rows: Tensor) -> Tensor:
    """Row t becomes the sum over s of ``kernel`` [t, s] times row t - s; zeros before row 0."""
    out = kernel[:, 0] * rows
    for shift in range(1, min(kernel.shape[1], len(rows))):
        out[shift:] += kernel[shift:, shift] * rows[:-shift]
    return out


def _top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, largest first, the lower id first among equals."""
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], ids[:, :k]
