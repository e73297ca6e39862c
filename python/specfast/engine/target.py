"""The target: a transformers causal LM behind our attention function."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specfast.engine.attention import IMPLEMENTATION, AttentionLayers, attending
from specfast.engine.constant_rope import ConstantRope
from specfast.engine.layer_kv import Float8Kv
from specfast.engine.pool import PagedKvPool
from specfast.engine.recurrent_layers import RecurrentLayers, StateLayers
from specfast.engine.state_adapter import StateAdapter
from specfast.engine.target_probe import (
    CausalProbe,
    ProbeStates,
    refuse_by_config,
    refuse_hidden_state,
)


class Target:
    """Runs flattened rows of many requests through a ``transformers`` causal LM.

    The model's attention implementation becomes ours in place. Outside of :meth:`forward` it
    behaves as ``sdpa``, so the model stays usable.

    Supported: every layer is softmax attention over all that came before (multi-head, grouped or
    latent) and calls transformers' attention function, or is recurrent and known to
    ``state_adapter``; positions are given by ``position_ids``.

    kv_shapes : of the layers with attention, by their indices
    recurrent : RecurrentLayers

    Raises
    ------
    ValueError
        For a model that needs something else (sliding windows, recurrent layers without an adapter,
        an encoder, several devices ...); names it. For an adapter that does not fit the model.
    """

    def __init__(self, model: PreTrainedModel, state_adapter: StateAdapter | None = None) -> None:
        self.model = model
        model.train(False)
        self.device = model.device
        config = model.config.get_text_config()
        self.context_length = _context_length(config)
        refuse_by_config(model, state_adapter is not None)
        self.recurrent = RecurrentLayers(model, state_adapter)
        self._rope = ConstantRope(model)
        previous = model.config._attn_implementation
        model.set_attn_implementation(IMPLEMENTATION)
        try:
            attention, states = CausalProbe(model), ProbeStates(self.recurrent)
            with torch.inference_mode():
                ids, positions = torch.tensor([[0, 0], [0, 1]], device=self.device).unbind()
                logits = self.forward(ids, positions, attention, states)
                if state_adapter is None:
                    attention.refuse_others(config.num_hidden_layers)
                states.require_all()
                refuse_hidden_state(
                    model,
                    self.recurrent,
                    lambda ids, *layers: self.forward(ids, positions, *layers),
                    logits.shape[-1],
                )
        except ValueError:
            model.set_attn_implementation(previous)
            raise
        self.kv_shapes = attention.kv_shapes()
        self.kv_dtype = attention.dtype
        self.num_query_heads = attention.num_query_heads
        self.vocab_size = logits.shape[-1]

    def kv_pool(
        self, num_pages: int, page_size: int, float8: Float8Kv | None = None
    ) -> PagedKvPool:
        """A pool for the keys and values of the model, in its dtype or in float8_e4m3fn."""
        return PagedKvPool(
            self.kv_shapes,
            num_pages=num_pages,
            page_size=page_size,
            dtype=self.kv_dtype,
            device=self.device,
            float8=float8,
        )

    @property
    def is_recurrent(self) -> bool:
        return bool(self.recurrent.items)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention: AttentionLayers,
        states: StateLayers | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """Logits [R, V] of the rows ``input_ids`` [R] at ``positions`` [R].

        ``states`` answers the recurrent layers, if there are any. With ``last_only`` the LM head
        runs for the last row alone: [1, V].
        """
        with attending(attention), self.recurrent.answered_by(states), self._rope.held():
            out = self.model(
                input_ids=input_ids[None],
                position_ids=positions[None],
                # Without a mask transformers looks for packed sequences in the positions, which
                # waits for the device.
                attention_mask=torch.ones_like(positions)[None],
                use_cache=False,
                logits_to_keep=int(last_only),
            )
        logits = cast(Tensor, out.logits)[0]
        return logits[-1:] if last_only else logits


def as_target(model: PreTrainedModel | Target, state_adapter: StateAdapter | None) -> Target:
    """The target of a model, or the one that is given: it has been probed.

    Raises ValueError as ``Target`` does, and for a target with an adapter beside it.
    """
    if not isinstance(model, Target):
        return Target(model, state_adapter)
    if state_adapter is not None:
        raise ValueError("expected state_adapter with a model, got a Target, which has its own")
    return model


def _context_length(config: Any) -> int | None:
    """Positions that the model knows, or None if it names no limit."""
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        limit = rope["original_max_position_embeddings"]
    return limit
