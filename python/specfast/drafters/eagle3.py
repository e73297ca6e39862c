"""EAGLE-3: predicts tokens from several layers of the target, with a head of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.checkpoint.spec import DrafterSpec, Eagle3Spec
from specfast.drafters.checkpoint.weights import EMBEDDING, Weights
from specfast.drafters.eagle import EagleModel
from specfast.drafters.layers import Places
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
        """Hidden states before the final norm; otherwise as :meth:`EagleModel.forward`."""
        width, residual = features.shape[-1], features
        if parents is not None:
            residual = features.new_empty((*tokens.shape, width))
        inputs = ops.gather_eagle_inputs(
            tokens,
            self.weights[EMBEDDING],
            features,
            parents=parents,
            d2t=self.weights.get("d2t") if are_draft_ids else None,
            embedding_norm_weight=self.weights["layers.0.input_layernorm.weight"],
            features_norm_weight=self.weights["layers.0.hidden_norm.weight"],
            eps=self.weights.norm_eps,
            gathered=None if parents is None else residual,
        )
        if self.options.norm_before_residual:
            residual = inputs[..., width:]
        return self._behind_attention(self._attend(inputs, places, pairs), residual)

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(self.weights.norm("norm", hidden))

    def next_features(self, hidden: Tensor) -> Tensor:
        return self.weights.norm("norm", hidden) if self.options.norm_output else hidden
