"""What the rows of a block drafter attend to: keys and values of committed rows, and the block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specfast.drafters.checkpoint.spec import SpanSpec
from specfast.drafters.layers import Attention, KeyRows, LayerCache, Places, attend


class BlockContext:
    """Keys and values of the committed rows of one request, per layer; L rows before the anchor.

    They are made of the target's taps and never change. A layer with a window keeps as many of them
    as its block can see.
    """

    def __init__(self, spans: Sequence[SpanSpec]) -> None:
        self.spans = spans
        self.layers = [LayerCache(span.window) for span in spans]

    @property
    def length(self) -> int:
        return self.layers[0].length


class Contexts(Protocol):
    """The contexts of B requests, wherever they are kept."""

    def positions(self, num_rows: int) -> Tensor:
        """int64 [B, num_rows] from the first position after each context."""

    def attend(self, layer: int, attention: Attention, x: Tensor, places: Places) -> Tensor:
        """What the rows ``x`` [B, n, hidden] of a block mix of the context and of each other.

        [B, n, heads, head_dim]. The block starts at the first position after each context. It never
        becomes context.
        """


class CachedContexts:
    """Contexts that are kept per request."""

    def __init__(self, contexts: Sequence[BlockContext], device: torch.device) -> None:
        self._contexts = contexts
        self._device = device

    def positions(self, num_rows: int) -> Tensor:
        lengths = torch.tensor([context.length for context in self._contexts], device=self._device)
        return lengths[:, None] + torch.arange(num_rows, device=self._device)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Commit rows [B, n, kv_heads, head_dim] of the first n positions after each context."""
        for context, own_keys, own_values in zip(self._contexts, keys, values, strict=True):
            context.layers[layer].append(own_keys, own_values)

    def attend(self, layer: int, attention: Attention, x: Tensor, places: Places) -> Tensor:
        positions = places.positions
        queries = attention.queries(x, places.rotation)
        keys, values = attention.keys_values(x, places.rotation)
        caches = [context.layers[layer] for context in self._contexts]
        past = KeyRows.behind(caches, keys, values, positions)
        span = self._contexts[0].spans[layer]
        return attend(queries, past, block_visibility(span, positions, past.positions))


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
