"""EAGLE-1 and EAGLE-2, one checkpoint: predicts the target's next feature, head and all.

Entry i of the drafter is the pair of feature i and the token after it, at position i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.weights import EMBEDDING, Weights
from specfast.drafters.layers import Attention, Places, Rotary, gated_mlp
from specfast.drafters.pairs import Pairs


class EagleModel:
    """The layer of EAGLE-1/2 over tensors of B requests.

    A feature is the target's last hidden state after the final norm, [B, n, hidden].
    """

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights
        self.rotary = Rotary(spec.backbone.rope, weights[EMBEDDING].device)
        self.attention = Attention(weights, "layers.0.self_attn.", spec.backbone)

    @property
    def device(self) -> torch.device:
        return self.weights[EMBEDDING].device

    def features(self, taps: Tensor) -> Tensor:
        """What the layer reads, from what the target gave."""
        return taps

    def places(self, positions: Tensor) -> Places:
        """For :meth:`forward`, of features at ``positions`` [B, n]."""
        return Places(positions, self.rotary.at(positions, self.weights[EMBEDDING].dtype))

    def forward(self, tokens: Tensor, features: Tensor, places: Places, pairs: Pairs) -> Tensor:
        """Hidden states [B, n, hidden] of new pairs, which are added to ``pairs``.

        tokens : [B, n]             of each pair, one position after its feature
        features : [B, n, hidden]
        places                      of the features
        """
        embedded = self.weights[EMBEDDING][tokens]
        x = self.weights.linear("fc", torch.cat([embedded, features], dim=-1))
        x = x + self._attend(x, places, pairs)
        normed = self.weights.norm("layers.0.post_attention_layernorm", x)
        return x + gated_mlp(self.weights, "layers.0.mlp.", normed)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., draft vocabulary]."""
        return self.weights.linear("lm_head", hidden)

    def next_features(self, hidden: Tensor) -> Tensor:
        """What stands for the feature that the target has not computed yet."""
        return hidden

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Ids of the target for ids of the draft vocabulary."""
        return draft_ids + self.weights["d2t"][draft_ids] if "d2t" in self.weights else draft_ids

    def _attend(self, x: Tensor, places: Places, pairs: Pairs) -> Tensor:
        queries = self.attention.queries(x, places.rotation)
        keys, values = self.attention.keys_values(x, places.rotation)
        return self.attention.output(pairs.attend(queries, keys, values, places.positions))
