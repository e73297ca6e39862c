"""The attention function that transformers calls: writes the pool, reads it through page tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from specfast.engine.pool import PagedKvPool
from specfast.engine.rows import RowBatch

IMPLEMENTATION = "specfast"

# Without cuDNN, which prepares a plan for every new length: each round has one.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class AttentionLayers(Protocol):
    """What answers the attention calls of one forward."""

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        """From [1, heads, R, dim] each to [1, R, heads, value_dim]."""


_active: ContextVar[AttentionLayers | None] = ContextVar("specfast_attention", default=None)


@contextmanager
def attending(layers: AttentionLayers) -> Iterator[None]:
    """Route the attention calls of the forward inside to ``layers``."""
    token = _active.set(layers)
    try:
        with sdpa_kernel(_BACKENDS):
            yield
    finally:
        _active.reset(token)


class PagedAttention:
    """Attention of a RowBatch over a PagedKvPool.

    A row sees the whole committed prefix of its request and, of the window, the rows that
    ``window_mask`` bool [B, N, N] allows; without one the window is a chain.

    Query heads that share a KV head are folded into the rows, so keys and values are not expanded
    and any SDPA backend takes the mask.
    """

    def __init__(
        self, pool: PagedKvPool, rows: RowBatch, window_mask: Tensor | None = None
    ) -> None:
        self._pool = pool
        self._rows = rows
        self._write_slots = rows.out_cache_loc.long()
        self._read_slots = rows.kv_slots.flatten()
        chain_alone = rows.batch_size == 1 and window_mask is None
        self._is_prefill = chain_alone and rows.starts_empty
        needs_mask = not self._is_prefill and not (chain_alone and rows.width == 1)
        self._kv_mask = _kv_mask(rows, window_mask) if needs_mask else None
        self._folded_masks: dict[int, Tensor] = {}

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        layer = self._pool.of_layer(cast(int, module.layer_idx))
        layer.write(self._write_slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        keys, values = map(self._by_request, layer.read(self._read_slots, query.dtype))
        groups = query.shape[1] // keys.shape[1]
        if self._is_prefill:
            # No mask is materialised; backends that know causality do not all know groups.
            keys = keys.repeat_interleave(groups, dim=1)
            values = values.repeat_interleave(groups, dim=1)
            out = scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale)
            return out.transpose(1, 2)
        out = scaled_dot_product_attention(
            self._fold(query, groups), keys, values, attn_mask=self._mask(groups), scale=scale
        )
        return self._unfold(out, groups)

    def _by_request(self, seen: Tensor) -> Tensor:
        """All that is visible, [B * K, heads, dim], as [B, heads, K, dim]."""
        return seen.view(*self._rows.kv_slots.shape, *seen.shape[1:]).transpose(1, 2)

    def _fold(self, query: Tensor, groups: int) -> Tensor:
        """[1, heads, R, dim] to [B, kv_heads, groups * W, dim]."""
        padded = query[0].transpose(0, 1)[self._rows.row_index]
        batch, width, heads, dim = padded.shape
        grouped = padded.view(batch, width, heads // groups, groups, dim)
        return grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)

    def _unfold(self, out: Tensor, groups: int) -> Tensor:
        """[B, kv_heads, groups * W, dim] to [1, R, heads, dim]."""
        batch, kv_heads, folded, dim = out.shape
        grouped = out.view(batch, kv_heads, groups, folded // groups, dim)
        return self._rows.flatten(grouped.permute(0, 3, 1, 2, 4).flatten(2, 3))[None]

    def _mask(self, groups: int) -> Tensor | None:
        """Visibility of the folded rows [B, 1, groups * W, K], made once per forward."""
        if self._kv_mask is None:
            return None
        if groups not in self._folded_masks:
            mask = self._kv_mask[:, None].expand(-1, groups, -1, -1)
            self._folded_masks[groups] = mask.flatten(1, 2)[:, None]
        return self._folded_masks[groups]


def _kv_mask(rows: RowBatch, window_mask: Tensor | None) -> Tensor:
    """Which of its request's positions each row may see; bool [B, W, K]."""
    batch, width, kv_len = rows.batch_size, rows.width, rows.kv_slots.shape[1]
    # Negative columns are the prefix. Columns past a request's rows are padding, and no row sees
    # them: the offset of a padded row is that of the last one.
    column = torch.arange(kv_len, device=rows.kv_slots.device) - rows.prefix_lens[:, None]
    column = column[:, None, :]
    if window_mask is None:
        return column <= rows.offsets[:, :, None]
    nodes = window_mask.shape[2]
    visible = window_mask.gather(1, rows.offsets[:, :, None].expand(batch, width, nodes))
    node = column.clamp(0, nodes - 1).expand(batch, width, kv_len)
    in_window = (column >= 0) & (column < rows.verify_lens[:, None, None])
    return (column < 0) | (in_window & visible.gather(2, node))


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    layers = _active.get()
    if layers is None:
        # Somebody else is running the model: behave as transformers does by default.
        sdpa = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call]
        out = sdpa(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options
        )
        return cast(tuple[Tensor, None], out)
    return layers.attend(module, query, key, value, scaling, options), None


def _attention_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    if _active.get() is not None:
        return None  # PagedAttention has its own
    sdpa_mask = AttentionMaskInterface()["sdpa"]  # type: ignore[no-untyped-call]
    return cast("Tensor | None", sdpa_mask(*args, **kwargs))


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, _attention_mask)
