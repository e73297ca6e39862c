"""DFlash: fills a block of masks in one forward, over context made of the target's taps.

Also the backbone of DSpark and DFlash-2, which add heads and convolutions to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.drafters.checkpoint.spec import BlockSpec, DrafterSpec, SpanSpec
from specfast.drafters.checkpoint.weights import EMBEDDING, Weights
from specfast.drafters.layers import Attention, LayerCache, Rotary, gated_mlp


@dataclass(frozen=True)
class BlockDrafts:
    """Drafts of one request; m of them.

    tokens : int64 [m]              ids of the target
    logits : [m, draft vocabulary]  what each was chosen from, biases of the head included
    confidence : [m] or None        before the sigmoid: is this draft accepted if those before are
    """

    tokens: Tensor
    logits: Tensor
    confidence: Tensor | None = None


class BlockContext:
    """Keys and values of the committed rows of one request, per layer; L rows before the anchor.

    They are made of the target's taps and never change.
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]

    @property
    def length(self) -> int:
        return self.layers[0].length


class BlockChain:
    """What one request keeps between rounds: its context and its anchor."""

    def __init__(self, model: DFlashModel) -> None:
        self.model = model
        self.context = model.new_context()
        self._anchor = -1

    def extend(self, next_tokens: Tensor, taps: Tensor) -> None:
        """Commit rows that ``taps`` [n, width] are of; they emitted ``next_tokens`` [n]."""
        self.model.extend(self.context, taps)
        self._anchor = int(next_tokens[-1])

    def draft(self, num_drafts: int) -> BlockDrafts:
        """At most ``num_drafts`` after the anchor: the block is whole, what it drafts is cut."""
        if self._anchor < 0:
            raise ValueError("BlockChain.draft: expected committed rows")
        drafts = self.model.draft(self.context, self._anchor)
        confidence = None if drafts.confidence is None else drafts.confidence[:num_drafts]
        return BlockDrafts(drafts.tokens[:num_drafts], drafts.logits[:num_drafts], confidence)


class DFlashModel:
    """The layers of DFlash over tensors of one request.

    Taps are the hidden states of ``spec.taps.layers``, in this order, side by side:
    [n, num_taps * width].
    """

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        if spec.block is None:
            raise ValueError(f"{type(self).__name__}: expected a spec of a block drafter")
        self.spec = spec
        self.weights = weights
        self.block_spec: BlockSpec = spec.block
        rotary = Rotary(spec.backbone.rope, weights[EMBEDDING].device)
        self.attentions = [
            Attention(weights, f"layers.{layer}.self_attn.", spec.backbone, rotary)
            for layer in range(spec.backbone.num_layers)
        ]

    def new_context(self) -> BlockContext:
        return BlockContext(self.spec.backbone.num_layers)

    def extend(self, context: BlockContext, taps: Tensor) -> None:
        """Commit rows: ``taps`` [n, width] of positions ``context.length`` onwards.

        Rows of the anchor and of accepted drafts; never of a rejected draft, and not of the bonus,
        which has no taps yet.
        """
        rows = self.weights.norm("hidden_norm", self.weights.linear("fc", taps))
        positions = torch.arange(len(taps), device=taps.device) + context.length
        for attention, cache in zip(self.attentions, context.layers, strict=True):
            # No input norm: that belongs to the rows of the block.
            cache.append(*attention.keys_values(rows, positions))

    def block(self, context: BlockContext, anchor: int) -> Tensor:
        """Hidden states [num_rows, hidden] of the anchor and the masks behind it, normalised.

        Stores nothing: the rows of a block never become context.
        """
        num_rows, length = self.block_spec.num_rows, context.length
        x = self._embedded(anchor)
        positions = torch.arange(num_rows, device=x.device) + length
        for layer, attention in enumerate(self.attentions):
            cache = context.layers[layer]
            visible = block_visibility(self.block_spec.spans[layer], positions)

            def attend(
                rows: Tensor,
                attention: Attention = attention,
                cache: LayerCache = cache,
                visible: Tensor = visible,
            ) -> Tensor:
                keys, values = cache.with_rows(*attention.keys_values(rows, positions))
                return attention.attend(rows, positions, keys, values, visible)

            def mlp(rows: Tensor, prefix: str = f"layers.{layer}.mlp.") -> Tensor:
                return gated_mlp(self.weights, prefix, rows)

            normed = self.weights.norm(f"layers.{layer}.input_layernorm", x)
            x = x + self._sublayer(f"layers.{layer}.attention_conv", normed, attend)
            normed = self.weights.norm(f"layers.{layer}.post_attention_layernorm", x)
            x = x + self._sublayer(f"layers.{layer}.mlp_conv", normed, mlp)
        return self.weights.norm("norm", x)

    def proposal_rows(self, hidden: Tensor) -> Tensor:
        """Those rows of a block that draft, in the order of their drafts: [num_proposals, ...]."""
        return hidden if self.block_spec.sample_from_anchor else hidden[1:]

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, draft vocabulary]."""
        return self.weights.linear("lm_head", hidden)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Ids of the target for ids of the draft vocabulary."""
        return draft_ids + self.weights["d2t"][draft_ids] if "d2t" in self.weights else draft_ids

    def draft(self, context: BlockContext, anchor: int) -> BlockDrafts:
        """The ``num_proposals`` tokens after the anchor, each the argmax; changes nothing."""
        logits = self.logits(self.proposal_rows(self.block(context, anchor)))
        return BlockDrafts(self.target_ids(logits.argmax(-1)), logits)

    def _embedded(self, anchor: int) -> Tensor:
        masks = self.block_spec.num_rows - 1
        ids = torch.tensor([anchor] + [self.block_spec.mask_token_id] * masks)
        rows = self.weights[EMBEDDING][ids.to(self.weights[EMBEDDING].device)]
        if "mask_embedding" in self.weights:
            rows = torch.cat([rows[:1], self.weights["mask_embedding"].expand(masks, -1)])
        return rows * self.block_spec.embedding_scale

    def _sublayer(self, name: str, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What a sublayer adds to the residual; ``name`` is for those with convolutions."""
        return sublayer(normed)


def block_visibility(span: SpanSpec, positions: Tensor) -> Tensor:
    """Which keys, context and block from position 0, the rows at ``positions`` see."""
    distance = positions[:, None] - torch.arange(int(positions[-1]) + 1, device=positions.device)
    visible = torch.ones_like(distance, dtype=torch.bool)
    if span.causal:
        visible &= distance >= 0
    if span.window is not None:
        visible &= distance.abs() < span.window
    return visible
