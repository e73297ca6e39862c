"""EAGLE-1 and EAGLE-2, one checkpoint: predicts the target's next feature, head and all.

Entry i of the drafter is the pair of feature i and the token after it, at position i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specfast import ops
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
        return Places(positions, self.rotary, self.weights[EMBEDDING].dtype)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        places: Places,
        pairs: Pairs,
        *,
        parents: Tensor | None = None,
        are_draft_ids: bool = False,
    ) -> Tensor:
        """Hidden states [B, n, hidden] of new pairs, which are added to ``pairs``.

        tokens : [B, n]             of each pair, one position after its feature; -1: none
        features : [B, m, hidden]   without ``parents`` m is n
        places                      of the features
        parents : [B, n]            which of the m features each pair has
        are_draft_ids : bool        ``tokens`` are those of the draft vocabulary
        """
        inputs = ops.gather_eagle_inputs(
            tokens,
            self.weights[EMBEDDING],
            features,
            parents=parents,
            d2t=self.weights.get("d2t") if are_draft_ids else None,
        )
        x = self.weights.linear("fc", inputs)
        return self._behind_attention(self._attend(x, places, pairs), x)

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
        return self.attention.output(pairs.attend(self.attention, x, places))

    def _behind_attention(self, attended: Tensor, residual: Tensor) -> Tensor:
        name = "layers.0.post_attention_layernorm"
        normed, x = self.weights.add_norm(name, attended, residual)
        return x + gated_mlp(self.weights, "layers.0.mlp.", normed)
