"""States of transformers' own recurrent layers, which are run with the cache that they know."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionLayer

from specfast.engine.state_adapter import ChainRows, StateItem

# What transformers calls the argument by which a layer gets its cache.
_CACHE_ARGUMENTS = ("cache", "cache_params", "past_key_values")


class CacheStates:
    """A ``StateAdapter`` for transformers' recurrent layers with a convolution.

    Mamba, Mamba 2 and gated delta nets among them: a layer computes by its own code, a prompt at
    once, the rows of a round one after the other, all requests together. So a round of W rows runs
    the layer W times, each time over B rows: right, and not fast.

    Raises
    ------
    ValueError
        From ``state_items``, for a model without such layers, or with one that does not keep its
        states there.
    """

    def __init__(self) -> None:
        # Of each module: does its item i belong to the convolution?
        self._is_window: dict[nn.Module, list[bool]] = {}

    def state_items(self, model: PreTrainedModel) -> Mapping[str, Sequence[StateItem]]:
        items = {}
        for name, module in _convolving(model):
            hidden_size = model.config.get_text_config().hidden_size
            row = torch.zeros(1, 1, hidden_size, dtype=model.dtype, device=model.device)
            layer = LinearAttentionLayer()
            with torch.inference_mode():
                out = _run(module, row, layer)
            states = _states(layer)
            if not isinstance(out, Tensor) or out.shape != row.shape or not states:
                raise ValueError(
                    f"CacheStates: expected hidden states and a cached state from {name!r} "
                    f"({type(module).__name__}), got something else"
                )
            self._is_window[module] = [is_window for is_window, _ in states]
            items[name] = [StateItem(tuple(s.shape[1:]), s.dtype) for _, s in states]
        if not items:
            raise ValueError(
                "CacheStates: expected recurrent layers that have a convolution and take a cache, "
                f"found none in {type(model).__name__}"
            )
        return items

    def advance(
        self, module: nn.Module, hidden_states: Tensor, states: Sequence[Tensor], rows: ChainRows
    ) -> tuple[Tensor, Sequence[Tensor]]:
        if rows.last_only and rows.starts_empty:
            layer = LinearAttentionLayer()
            out = cast(Tensor, _run(module, hidden_states[None], layer))[0]
            return out, [state for _, state in _states(layer)]
        layer = _holding(zip(self._is_window[module], states, strict=True))
        outs, kept = [], []
        for row in rows.by_request(hidden_states).unbind(1):
            outs.append(cast(Tensor, _run(module, row[:, None], layer)))
            # The layer changes its states in place.
            kept.append([state.clone() for _, state in _states(layer)])
        out = rows.by_row(torch.cat(outs, dim=1))
        after = [rows.by_row(torch.stack(item, dim=1)) for item in zip(*kept, strict=True)]
        return out, [item[-1:] for item in after] if rows.last_only else after


def _convolving(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """The modules that have a convolution of their own and take a cache."""
    for name, module in model.named_modules():
        has_convolution = any(isinstance(child, nn.Conv1d) for child in module.children())
        if has_convolution and _cache_argument(module) is not None:
            yield name, module


def _cache_argument(module: nn.Module) -> str | None:
    arguments = inspect.signature(type(module).forward).parameters
    return next((name for name in _CACHE_ARGUMENTS if name in arguments), None)


def _run(module: nn.Module, hidden_states: Tensor, layer: LinearAttentionLayer) -> Any:
    """The module's own forward of [B, T, H] after the states in ``layer``, which it moves on."""
    # It asks for the layer by its index.
    cache = Cache(layers=[layer] * (cast(int, module.layer_idx) + 1))
    argument = _cache_argument(module)
    assert argument is not None
    return type(module).forward(module, hidden_states, **{argument: cache})


def _states(layer: LinearAttentionLayer) -> list[tuple[bool, Tensor]]:
    """Those that the module keeps, and of each whether it is the window of its convolution."""
    states = [(True, s) for s in layer.conv_states.values()]
    states += [(False, s) for s in layer.recurrent_states.values()]
    return [(is_window, state) for is_window, state in states if state is not None]


def _holding(states: Iterable[tuple[bool, Tensor]]) -> LinearAttentionLayer:
    """What :func:`_states` takes apart."""
    layer = LinearAttentionLayer()
    for is_window, state in states:
        if is_window:
            layer.update_conv_state(state)
        else:
            layer.update_recurrent_state(state)
    return layer
