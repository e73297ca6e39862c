"""DFlash: fills a block of masks in one forward, over context made of the target's taps.

Also the backbone of DSpark and DFlash-2, which add heads and convolutions to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specfast.drafters.checkpoint.spec import BlockSpec, DrafterSpec, SpanSpec
from specfast.drafters.checkpoint.weights import EMBEDDING, Weights
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.layers import Attention, KeyRows, LayerCache, Rotary, gated_mlp


class BlockContext:
    """Keys and values of the committed rows of one request, per layer; L rows before the anchor.

    They are made of the target's taps and never change. A layer with a window keeps as many of them
    as its block can see.
    """

    def __init__(self, spans: Sequence[SpanSpec]) -> None:
        self.layers = [LayerCache(span.window) for span in spans]

    @property
    def length(self) -> int:
        return self.layers[0].length


class BlockChain:
    """What one request keeps between rounds: its context and its anchor."""

    def __init__(self, model: DFlashModel) -> None:
        self.model = model
        self.context = model.new_context()
        self.anchor = -1

    def extend(self, next_tokens: Tensor, taps: Tensor) -> None:
        """Commit rows that ``taps`` [n, width] are of; they emitted ``next_tokens`` [n]."""
        extend_block_chains([self], next_tokens[None], taps[None])

    def draft(self, num_drafts: int) -> ChainDrafts:
        """At most ``num_drafts`` after the anchor, each the argmax; without the batch."""
        sampler = DraftSampler.greedy(1, self.model.device)
        return draft_block_chains([self], num_drafts, sampler).of_request(0)


def extend_block_chains(chains: Sequence[BlockChain], next_tokens: Tensor, taps: Tensor) -> None:
    """Commit rows of B requests, n each: ``next_tokens`` [B, n], ``taps`` [B, n, width]."""
    chains[0].model.extend([chain.context for chain in chains], taps)
    for chain, anchor in zip(chains, next_tokens[:, -1].tolist(), strict=True):
        chain.anchor = anchor


def draft_block_chains(
    chains: Sequence[BlockChain], num_drafts: int, sampler: DraftSampler
) -> ChainDrafts:
    """At most ``num_drafts`` each: the blocks are whole, what they draft is cut."""
    anchors = [chain.anchor for chain in chains]
    if min(anchors) < 0:
        raise ValueError("draft_block_chains: expected chains with committed rows")
    model = chains[0].model
    contexts = [chain.context for chain in chains]
    drafts = model.draft(contexts, torch.tensor(anchors, device=model.device), sampler)
    return drafts.first(num_drafts)


class DFlashModel:
    """The layers of DFlash over tensors of B requests.

    Taps are the hidden states of ``spec.taps.layers``, in this order, side by side:
    [B, n, num_taps * width].
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

    @property
    def device(self) -> torch.device:
        return self.weights[EMBEDDING].device

    def new_context(self) -> BlockContext:
        return BlockContext(self.block_spec.spans)

    def extend(self, contexts: Sequence[BlockContext], taps: Tensor) -> None:
        """Commit rows: ``taps`` [B, n, width] of positions ``context.length`` onwards.

        Rows of the anchor and of accepted drafts; never of a rejected draft, and not of the bonus,
        which has no taps yet.
        """
        rows = self.weights.norm("hidden_norm", self.weights.linear("fc", taps))
        positions = self._positions(contexts, taps.shape[1])
        for layer, attention in enumerate(self.attentions):
            # No input norm: that belongs to the rows of the block.
            keys, values = attention.keys_values(rows, positions)
            for b, context in enumerate(contexts):
                context.layers[layer].append(keys[b], values[b])

    def block(self, contexts: Sequence[BlockContext], anchors: Tensor) -> Tensor:
        """Hidden states [B, num_rows, hidden] of the anchors [B] and the masks behind them, normed.

        Stores nothing: the rows of a block never become context.
        """
        x = self._embedded(anchors)
        positions = self._positions(contexts, self.block_spec.num_rows)
        for layer, attention in enumerate(self.attentions):
            caches = [context.layers[layer] for context in contexts]
            span = self.block_spec.spans[layer]

            def attend(
                rows: Tensor,
                attention: Attention = attention,
                caches: list[LayerCache] = caches,
                span: SpanSpec = span,
            ) -> Tensor:
                keys_values = attention.keys_values(rows, positions)
                past = KeyRows.behind(caches, *keys_values, positions)
                visible = block_visibility(span, positions, past.positions)
                return attention.attend(rows, positions, past, visible)

            def mlp(rows: Tensor, prefix: str = f"layers.{layer}.mlp.") -> Tensor:
                return gated_mlp(self.weights, prefix, rows)

            normed = self.weights.norm(f"layers.{layer}.input_layernorm", x)
            x = x + self._sublayer(f"layers.{layer}.attention_conv", normed, attend)
            normed = self.weights.norm(f"layers.{layer}.post_attention_layernorm", x)
            x = x + self._sublayer(f"layers.{layer}.mlp_conv", normed, mlp)
        return self.weights.norm("norm", x)

    def proposal_rows(self, hidden: Tensor) -> Tensor:
        """Rows of the blocks that draft, in the order of their drafts: [B, num_proposals, ...]."""
        return hidden if self.block_spec.sample_from_anchor else hidden[:, 1:]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., draft vocabulary]."""
        return self.weights.linear("lm_head", hidden)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Ids of the target for ids of the draft vocabulary."""
        return draft_ids + self.weights["d2t"][draft_ids] if "d2t" in self.weights else draft_ids

    def draft(
        self, contexts: Sequence[BlockContext], anchors: Tensor, sampler: DraftSampler
    ) -> ChainDrafts:
        """The ``num_proposals`` tokens after each anchor [B]; changes nothing."""
        logits = self.logits(self.proposal_rows(self.block(contexts, anchors)))
        tokens = torch.stack([sampler.draw(level) for level in logits.unbind(1)], 1)
        return ChainDrafts(self.target_ids(tokens), logits)

    def _embedded(self, anchors: Tensor) -> Tensor:
        masks = self.block_spec.num_rows - 1
        embedding = self.weights[EMBEDDING]
        mask = self.weights.get("mask_embedding")
        if mask is None:
            mask = embedding[self.block_spec.mask_token_id]
        rows = [embedding[anchors][:, None], mask.expand(len(anchors), masks, -1)]
        return torch.cat(rows, 1) * self.block_spec.embedding_scale

    def _positions(self, contexts: Sequence[BlockContext], num_rows: int) -> Tensor:
        """int64 [B, num_rows] from the first position after each context."""
        lengths = torch.tensor([context.length for context in contexts], device=self.device)
        return lengths[:, None] + torch.arange(num_rows, device=self.device)

    def _sublayer(self, name: str, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What a sublayer adds to the residual; ``name`` is for those with convolutions."""
        return sublayer(normed)


def block_visibility(span: SpanSpec, positions: Tensor, key_positions: Tensor) -> Tensor:
    """Which keys [B, K], context and block, rows at ``positions`` [B, n] see: bool [B, n, K]."""
    keys = key_positions[:, None]
    distance = positions[..., None] - keys
    visible = (keys >= 0).expand_as(distance)
    if span.causal:
        visible = visible & (distance >= 0)
    if span.window is not None:
        visible = visible & (distance.abs() < span.window)
    return visible
