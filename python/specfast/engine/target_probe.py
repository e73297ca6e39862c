"""What a model must be to serve as a target, found by its config and by forwards of two rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from specfast.engine.attention import AttentionLayers
from specfast.engine.pool import KvShape
from specfast.engine.recurrent_layers import RecurrentLayers
from specfast.engine.state_adapter import ChainRows

# Options that models pass to their attention function and that leave its result alone.
_HARMLESS_OPTIONS = {"position_ids", "use_cache", "output_router_logits"}
# Entries of a config's layer_types whose layers hold a state that rows change one after the other.
_RECURRENT_TYPES = {"linear_attention", "hybrid", "hybrid_sliding", "conv"}


class CausalProbe:
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
                raise unsupported(self._model, f"attention with {name}")
        if not getattr(module, "is_causal", True):
            raise unsupported(self._model, "bidirectional attention")
        if key.device != self._model.device:
            raise unsupported(self._model, "layers on several devices")
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self._layers:
            raise unsupported(self._model, f"attention layers without an index ({layer})")
        self._layers[layer] = KvShape(key.shape[1], key.shape[3], value.shape[3])
        self.dtype = key.dtype
        self.num_query_heads = max(self.num_query_heads, query.shape[1])
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        return out.transpose(1, 2)

    def refuse_others(self, num_layers: int) -> None:
        """Refuse a model that has layers beside those that were seen."""
        missing = set(range(num_layers)) - self._layers.keys()
        if missing:
            raise unsupported(
                self._model,
                f"{len(missing)} layers that bypass transformers' attention function; recurrent "
                "ones need a state adapter",
            )

    def kv_shapes(self) -> dict[int, KvShape]:
        """By the layers' indices, in order."""
        return {layer: self._layers[layer] for layer in sorted(self._layers)}


class _EachRowItself:
    """Answers one forward as attention in which every row sees itself alone."""

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)


class ProbeStates:
    """Answers one forward of two rows from empty states and checks what the adapter says.

    The rows are a prompt, or, with ``apart``, a round of two requests.
    """

    def __init__(self, recurrent: RecurrentLayers, *, apart: bool = False) -> None:
        self._recurrent = recurrent
        self._apart = apart
        self._called: set[str] = set()

    def advance(self, name: str, module: nn.Module, hidden_states: Tensor) -> Tensor:
        self._called.add(name)
        assert self._recurrent.adapter is not None
        device, places = hidden_states.device, [[0], [1]] if self._apart else [[0, 1]]
        rows = ChainRows(
            torch.tensor([0, 1, 2] if self._apart else [0, 2], dtype=torch.int32, device=device),
            torch.tensor(places, device=device),
            torch.tensor([0, 1], device=device),
            starts_empty=not self._apart,
            last_only=not self._apart,
        )
        items, count = self._recurrent.items[name], len(places)
        before = [torch.zeros(count, *i.shape, dtype=i.dtype, device=device) for i in items]
        out, after = self._recurrent.adapter.advance(module, hidden_states, before, rows)
        # One state: after the last row of the prompt, or after the only row of each request.
        expected = [(hidden_states.shape, hidden_states.dtype)]
        expected += [(torch.Size([count, *item.shape]), item.dtype) for item in items]
        got = [(tensor.shape, tensor.dtype) for tensor in (out, *after)]
        if got != expected:
            raise ValueError(
                f"state adapter: expected outputs and states of {name!r} to be "
                f"{_in_words(expected)}, got {_in_words(got)}"
            )
        return out

    def require_all(self) -> None:
        unseen = sorted(self._recurrent.items.keys() - self._called)
        if unseen:
            raise ValueError(
                f"state adapter: expected modules that a forward calls, got {', '.join(unseen)}"
            )


def _in_words(tensors: list[tuple[torch.Size, torch.dtype]]) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')} {list(s)}" for s, dtype in tensors)


def unsupported(model: PreTrainedModel, what: str) -> ValueError:
    return ValueError(f"{type(model).__name__} is not supported as a target: it has {what}")


def is_recurrent(model: PreTrainedModel) -> bool:
    """As far as its config and its class say."""
    return bool(_recurrent_types(model)) or model._is_stateful


def _recurrent_types(model: PreTrainedModel) -> set[str]:
    return _layer_types(model) & _RECURRENT_TYPES


def _layer_types(model: PreTrainedModel) -> set[str]:
    return set(getattr(model.config.get_text_config(), "layer_types", None) or ())


def refuse_by_config(model: PreTrainedModel, has_adapter: bool) -> None:
    """Refuse what a forward of two rows cannot show, or not so well."""
    if model.config.is_encoder_decoder:
        raise unsupported(model, "an encoder")
    others = _layer_types(model) - {"full_attention"}
    recurrent = _recurrent_types(model)
    if not has_adapter and (recurrent or (model._is_stateful and not others)):
        named = f" (layer_types {', '.join(sorted(recurrent))})" if recurrent else ""
        raise unsupported(model, f"recurrent layers{named} and no state adapter")
    if others - _RECURRENT_TYPES:
        raise unsupported(model, f"layers of type {', '.join(sorted(others))}")


def refuse_hidden_state(
    model: PreTrainedModel,
    recurrent: RecurrentLayers,
    forward: Callable[[Tensor, AttentionLayers, ProbeStates], Tensor],
    vocab_size: int,
) -> None:
    """Refuse a model in which a row reaches another, although nothing is known to carry it.

    So recurrences and convolutions are found that no config and no adapter names. ``forward`` takes
    ids [2]: two requests of one row.
    """
    one, other = (
        forward(
            torch.tensor([token, 0], device=model.device),
            _EachRowItself(),
            ProbeStates(recurrent, apart=True),
        )[1]
        for token in (vocab_size // 3, 2 * vocab_size // 3)
    )
    # Experts multiply another number of rows when the first one goes elsewhere: that rounds.
    rounding = max(16 * torch.finfo(one.dtype).eps, 1e-4) * one.float().std()
    if bool((one - other).abs().max() > rounding):
        carried = "layers that carry a state from row to row outside of attention functions"
        lacks = "no state adapter"
        if recurrent.adapter is not None:
            lacks = "a state adapter that does not name them"
        raise unsupported(model, f"{carried} and {lacks}")
