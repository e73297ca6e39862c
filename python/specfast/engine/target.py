"""The target: a transformers causal LM behind our attention function."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from specfast.engine.attention import IMPLEMENTATION, AttentionLayers, attending
from specfast.engine.pool import KvShape

# Options that models pass to their attention function and that leave its result alone.
_HARMLESS_OPTIONS = {"position_ids", "use_cache", "output_router_logits"}


class Target:
    """Runs flattened rows of many requests through a ``transformers`` causal LM.

    The model's attention implementation becomes ours in place. Outside of :meth:`forward` it
    behaves as ``sdpa``, so the model stays usable.

    Supported: every layer is softmax attention over all that came before (multi-head, grouped or
    latent) and calls transformers' attention function; positions are given by ``position_ids``.

    Raises
    ------
    ValueError
        For a model that needs something else (sliding windows, recurrent layers, an encoder,
        several devices ...); names it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        model.train(False)
        self.device = model.device
        config = model.config.get_text_config()
        self.context_length = _context_length(config)
        _refuse_layer_types(model)
        previous = model.config._attn_implementation
        model.set_attn_implementation(IMPLEMENTATION)
        try:
            probe = _Probe(model)
            with torch.inference_mode():
                ids, positions = torch.tensor([[0, 0], [0, 1]], device=self.device).unbind()
                logits = self.forward(ids, positions, probe)
            self.kv_shapes = probe.kv_shapes(config.num_hidden_layers)
        except ValueError:
            model.set_attn_implementation(previous)
            raise
        self.kv_dtype = probe.dtype
        self.num_query_heads = probe.num_query_heads
        self.vocab_size = logits.shape[-1]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention: AttentionLayers,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """Logits [R, V] of the rows ``input_ids`` [R] at ``positions`` [R].

        With ``last_only`` the LM head runs for the last row alone: [1, V].
        """
        with attending(attention):
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


class _Probe:
    """Answers one forward as plain causal attention and notes what each layer asks for."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._layers: dict[int, KvShape] = {}
        self.dtype = torch.float32
        self.num_query_heads = 0

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        for name, option in options.items():
            if name not in _HARMLESS_OPTIONS and option is not None:
                raise _unsupported(self._model, f"attention with {name}")
        if not getattr(module, "is_causal", True):
            raise _unsupported(self._model, "bidirectional attention")
        if key.device != self._model.device:
            raise _unsupported(self._model, "layers on several devices")
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self._layers:
            raise _unsupported(self._model, f"attention layers without an index ({layer})")
        self._layers[layer] = KvShape(key.shape[1], key.shape[3], value.shape[3])
        self.dtype = key.dtype
        self.num_query_heads = max(self.num_query_heads, query.shape[1])
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        return out.transpose(1, 2)

    def kv_shapes(self, num_layers: int) -> list[KvShape]:
        missing = set(range(num_layers)) - self._layers.keys()
        if missing:
            raise _unsupported(
                self._model, f"{len(missing)} layers that bypass transformers' attention function"
            )
        return [self._layers[layer] for layer in sorted(self._layers)]


def _unsupported(model: PreTrainedModel, what: str) -> ValueError:
    return ValueError(f"{type(model).__name__} is not supported as a target: it has {what}")


def _refuse_layer_types(model: PreTrainedModel) -> None:
    """Refuse what a forward of two rows cannot show."""
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        raise _unsupported(model, "an encoder")
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if others:
        raise _unsupported(model, f"layers of type {', '.join(sorted(others))}")


def _context_length(config: Any) -> int | None:
    """Positions that the model knows, or None if it names no limit."""
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Past this length all frequencies change, for every request of the batch and against the
        # keys already stored.
        limit = rope["original_max_position_embeddings"]
    return limit
