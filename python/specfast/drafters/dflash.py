"""DFlash: fills a block of masks in one forward, over context made of the target's taps.

Also the backbone of DSpark and DFlash-2, which add heads and convolutions to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specfast.drafters.block_context import BlockContext, CachedContexts, Contexts
from specfast.drafters.checkpoint.spec import BlockSpec, DrafterSpec
from specfast.drafters.checkpoint.weights import EMBEDDING, Weights
from specfast.drafters.draws import ChainDrafts, DraftSampler, drawn_ids
from specfast.drafters.layers import Attention, Places, Rotary, gated_mlp


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
    chains[0].model.extend(cached_contexts(chains), taps)
    for chain, anchor in zip(chains, next_tokens[:, -1].tolist(), strict=True):
        chain.anchor = anchor


def draft_block_chains(
    chains: Sequence[BlockChain], num_drafts: int, sampler: DraftSampler
) -> ChainDrafts:
    """At most ``num_drafts`` each."""
    anchors = [chain.anchor for chain in chains]
    if min(anchors) < 0:
        raise ValueError("draft_block_chains: expected chains with committed rows")
    model = chains[0].model
    tokens = torch.tensor(anchors, device=model.device)
    return model.draft(cached_contexts(chains), tokens, num_drafts, sampler)


def cached_contexts(chains: Sequence[BlockChain]) -> CachedContexts:
    return CachedContexts([chain.context for chain in chains], chains[0].model.device)


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
        self.rotary = Rotary(spec.backbone.rope, weights[EMBEDDING].device)
        self.attentions = [
            Attention(weights, f"layers.{layer}.self_attn.", spec.backbone)
            for layer in range(spec.backbone.num_layers)
        ]

    @property
    def device(self) -> torch.device:
        return self.weights[EMBEDDING].device

    def new_context(self) -> BlockContext:
        return BlockContext(self.block_spec.spans)

    def context_rows(self, taps: Tensor) -> Tensor:
        """What the keys and values of the context are made of, in every layer: [B, n, hidden]."""
        return self.weights.norm("hidden_norm", self.weights.linear("fc", taps))

    def extend(self, contexts: CachedContexts, taps: Tensor) -> None:
        """Commit rows: ``taps`` [B, n, width] of the first n positions after each context.

        Rows of the anchor and of accepted drafts; never of a rejected draft, and not of the bonus,
        which has no taps yet.
        """
        rows = self.context_rows(taps)
        rotation = self.rotary.at(contexts.positions(taps.shape[1]), rows.dtype)
        for layer, attention in enumerate(self.attentions):
            # No input norm: that belongs to the rows of the block.
            contexts.append(layer, *attention.keys_values(rows, rotation))

    def block(self, contexts: Contexts, anchors: Tensor) -> Tensor:
        """Hidden states [B, num_rows, hidden] of the anchors [B] and the masks behind them, normed.

        The rows of a block never become context.
        """
        x = self._embedded(anchors)
        places = Places(contexts.positions(self.block_spec.num_rows), self.rotary, x.dtype)
        normed = self.weights.norm("layers.0.input_layernorm", x)
        for layer in range(len(self.attentions)):

            def attend(rows: Tensor, layer: int = layer) -> Tensor:
                attention = self.attentions[layer]
                return attention.output(contexts.attend(layer, attention, rows, places))

            def mlp(rows: Tensor, prefix: str = f"layers.{layer}.mlp.") -> Tensor:
                return gated_mlp(self.weights, prefix, rows)

            attended = self._sublayer(f"layers.{layer}.attention_conv", normed, attend)
            behind = f"layers.{layer}.post_attention_layernorm"
            normed, x = self.weights.add_norm(behind, attended, x)
            inner = self._sublayer(f"layers.{layer}.mlp_conv", normed, mlp)
            is_last = layer + 1 == len(self.attentions)
            behind = "norm" if is_last else f"layers.{layer + 1}.input_layernorm"
            normed, x = self.weights.add_norm(behind, inner, x)
        return normed

    def draft_rows(self, contexts: Contexts, anchors: Tensor, num_drafts: int) -> Tensor:
        """The rows of the blocks that draft the first ``num_drafts``, [B, <= num_drafts, hidden].

        Blocks are whole, whatever is drafted of them.
        """
        return self.proposal_rows(self.block(contexts, anchors))[:, :num_drafts]

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
        self, contexts: Contexts, anchors: Tensor, num_drafts: int, sampler: DraftSampler
    ) -> ChainDrafts:
        """At most ``num_drafts`` after each anchor [B], one per proposal of a block."""
        logits = self.logits(self.draft_rows(contexts, anchors, num_drafts))
        return ChainDrafts(self._drawn(logits, sampler), logits)

    def _drawn(self, logits: Tensor, sampler: DraftSampler) -> Tensor:
        """Target ids [B, m] drawn from ``logits`` [B, m, draft vocabulary], each by itself."""
        columns = [sampler.draw(level) for level in logits.unbind(1)]
        return self.target_ids(drawn_ids(columns))

    def _embedded(self, anchors: Tensor) -> Tensor:
        masks = self.block_spec.num_rows - 1
        embedding = self.weights[EMBEDDING]
        mask = self.weights.get("mask_embedding")
        if mask is None:
            mask = embedding[self.block_spec.mask_token_id]
        # A padded slot has the anchor -1.
        rows = [embedding[anchors.clamp(min=0)][:, None], mask.expand(len(anchors), masks, -1)]
        return torch.cat(rows, 1) * self.block_spec.embedding_scale

    def _sublayer(self, name: str, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What a sublayer adds to the residual; ``name`` is for those with convolutions."""
        return sublayer(normed)
