"""EAGLE-3: predicts tokens from several layers of the target, with a head of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.drafters.checkpoint.spec import DrafterSpec, Eagle3Spec
from specfast.drafters.checkpoint.weights import EMBEDDING, Weights
from specfast.drafters.eagle import EagleModel
from specfast.drafters.layers import Places, gated_mlp
from specfast.drafters.pairs import Pairs


class Eagle3Model(EagleModel):
    """The layer of EAGLE-3 over tensors of B requests.

    Taps are the hidden states of ``spec.taps.layers``, in this order, side by side:
    [B, n, num_taps * width].
    """

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        super().__init__(spec, weights)
        if spec.eagle3 is None:
            raise ValueError("Eagle3Model: expected a spec of EAGLE-3")
        self.options: Eagle3Spec = spec.eagle3

    def features(self, taps: Tensor) -> Tensor:
        if self.options.fc_norm:
            assert self.spec.taps is not None
            parts = torch.split(taps, self.spec.taps.width, dim=-1)
            normed = [self.weights.norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)]
            taps = torch.cat(normed, dim=-1)
        if self.options.input_norm:
            taps = self.weights.norm("input_norm", taps)
        return self.weights.linear("fc", taps)

    def forward(self, tokens: Tensor, features: Tensor, places: Places, pairs: Pairs) -> Tensor:
        """Hidden states before the final norm; otherwise as :meth:`EagleModel.forward`."""
        embedded = self.weights.norm("layers.0.input_layernorm", self.weights[EMBEDDING][tokens])
        normed = self.weights.norm("layers.0.hidden_norm", features)
        residual = normed if self.options.norm_before_residual else features
        x = torch.cat([embedded, normed], dim=-1)
        x = residual + self._attend(x, places, pairs)
        normed = self.weights.norm("layers.0.post_attention_layernorm", x)
        return x + gated_mlp(self.weights, "layers.0.mlp.", normed)

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(self.weights.norm("norm", hidden))

    def next_features(self, hidden: Tensor) -> Tensor:
        return self.weights.norm("norm", hidden) if self.options.norm_output else hidden
