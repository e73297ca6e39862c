"""DFlash, DSpark and DFlash-2 on the device alone: their contexts are in pages."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specfast import ops
from specfast.drafters.base import DraftPages
from specfast.drafters.checkpoint.spec import SpanSpec
from specfast.drafters.checkpoint.weights import EMBEDDING
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.layers import Attention, Places
from specfast.drafters.paged_rows import PagedRows, PagedWindow
from specfast.kv_layout import KvBuffer, KvLayout
from specfast.ops.attention import MAX_ATTENTION_ROWS


class ContextProjection:
    """Keys and values of all layers by one product, as the projections give them.

    norms : [layers, head_dim]    of the keys of each layer, or None
    """

    def __init__(self, model: DFlashModel) -> None:
        self._model = model
        layers = range(model.spec.backbone.num_layers)
        names = [f"layers.{i}.self_attn.{part}_proj" for i in layers for part in "kv"]
        self._weight = torch.cat([model.weights[f"{name}.weight"] for name in names])
        self._bias = None
        if model.spec.backbone.qkv_bias:
            self._bias = torch.cat([model.weights[f"{name}.bias"] for name in names])
        self.norms = None
        if model.spec.backbone.qk_norm:
            norms = [model.weights[f"layers.{i}.self_attn.k_norm.weight"] for i in layers]
            self.norms = torch.stack(norms).float()

    def __call__(self, taps: Tensor) -> Tensor:
        """[B, n, layers, 2, kv_heads, head_dim] of rows ``taps`` [B, n, width]."""
        spec = self._model.spec.backbone
        rows = functional.linear(self._model.context_rows(taps), self._weight, self._bias)
        return rows.view(*taps.shape[:2], spec.num_layers, 2, spec.num_kv_heads, spec.head_dim)


class PagedBlocks:
    """The contexts of all requests of an engine, and the blocks behind them."""

    def __init__(self, model: DFlashModel, pages: DraftPages) -> None:
        self._model = model
        dtype = model.weights[EMBEDDING].dtype
        self._num_rows = model.block_spec.num_rows
        self.rows = PagedRows(
            pages, model.spec.backbone, self._num_rows, model.rotary, dtype, model.device
        )
        self._project = ContextProjection(model)
        storages = [s for pair in zip(self.rows.keys, self.rows.values, strict=True) for s in pair]
        self._layout = KvLayout([KvBuffer.nhd(storage) for storage in storages])

    def extend(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        counts: Tensor,
        next_tokens: Tensor,
        taps: Tensor,
    ) -> None:
        cos, sin = self.rows.angles
        ops.inject_context_kv(
            self._project(taps),
            self._layout,
            prefix_lens,
            counts,
            self.rows.pages.table,
            page_size=self.rows.pages.page_size,
            cos=cos,
            sin=sin,
            k_norm_weight=self._project.norms,
            eps=self._model.spec.backbone.norm_eps,
            page_table_rows=page_table_rows,
        )

    def draft(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        live: Tensor,
        anchors: Tensor,
        num_drafts: int,
        sampler: DraftSampler,
    ) -> ChainDrafts:
        counts = live.int() * self._num_rows
        window = self.rows.drafted(page_table_rows, prefix_lens, counts, self._num_rows)
        contexts = PagedContexts(window, self._model.block_spec.spans)
        return self._model.draft(contexts, anchors, num_drafts, sampler)


class PagedContexts:
    """The contexts of B requests, with a block behind each."""

    def __init__(self, window: PagedWindow, spans: tuple[SpanSpec, ...]) -> None:
        self._window = window
        self._spans = spans

    def positions(self, num_rows: int) -> Tensor:
        return self._window.positions

    def attend(self, layer: int, attention: Attention, x: Tensor, places: Places) -> Tensor:
        queries = self._window.append(layer, attention, x, places.positions)
        return self._window.attend(layer, queries, self._spans[layer])


def why_not_paged(model: DFlashModel) -> str | None:
    """Why the blocks of ``model`` cannot be in pages; None if they can."""
    block = model.block_spec
    if block.num_rows > MAX_ATTENTION_ROWS:
        return f"blocks of {block.num_rows} rows; at most {MAX_ATTENTION_ROWS} are known"
    for layer, span in enumerate(block.spans):
        # ``ops.verify_attention`` cuts what is before a row by the window, not what is behind it.
        if not span.causal and span.window is not None and span.window < block.num_rows:
            return (
                f"layer {layer} looks both ways within {span.window} positions, fewer than the "
                f"{block.num_rows} rows of a block"
            )
    return None
