"""DFlash, DSpark and DFlash-2 on the device alone: their contexts are in pages."""

from __future__ import annotations

from torch import Tensor

from specfast.drafters.base import DraftPages
from specfast.drafters.checkpoint.spec import SpanSpec
from specfast.drafters.checkpoint.weights import EMBEDDING
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.paged_rows import MAX_ROWS, PagedRows, PagedWindow


class PagedBlocks:
    """The contexts of all requests of an engine, and the blocks behind them."""

    def __init__(self, model: DFlashModel, pages: DraftPages) -> None:
        self._model = model
        dtype = model.weights[EMBEDDING].dtype
        self._num_rows = model.block_spec.num_rows
        self.rows = PagedRows(pages, model.spec.backbone, self._num_rows, dtype, model.device)

    def extend(
        self, requests: Tensor, lens: Tensor, counts: Tensor, next_tokens: Tensor, taps: Tensor
    ) -> None:
        table = self.rows.committed_pages(requests)
        window = PagedWindow(self.rows, table, lens, counts, taps.shape[1])
        self._model.extend(self._contexts(window), taps)

    def draft(
        self,
        requests: Tensor,
        lens: Tensor,
        live: Tensor,
        anchors: Tensor,
        num_drafts: int,
        sampler: DraftSampler,
    ) -> ChainDrafts:
        table = self.rows.drafted_pages(requests, lens)
        window = PagedWindow(self.rows, table, lens, live.int() * self._num_rows, self._num_rows)
        return self._model.draft(self._contexts(window), anchors, num_drafts, sampler)

    def _contexts(self, window: PagedWindow) -> PagedContexts:
        return PagedContexts(window, self._model.block_spec.spans)


class PagedContexts:
    """The contexts of B requests, and n rows behind each: committed ones, or a block."""

    def __init__(self, window: PagedWindow, spans: tuple[SpanSpec, ...]) -> None:
        self._window = window
        self._spans = spans

    def positions(self, num_rows: int) -> Tensor:
        return self._window.positions

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._window.write(layer, keys, values)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._window.write(layer, keys, values)
        return self._window.attend(layer, queries, self._spans[layer])


def why_not_paged(model: DFlashModel) -> str | None:
    """Why the blocks of ``model`` cannot be in pages; None if they can."""
    block = model.block_spec
    if block.num_rows > MAX_ROWS:
        return f"blocks of {block.num_rows} rows; at most {MAX_ROWS} are known"
    for layer, span in enumerate(block.spans):
        # ``ops.verify_attention`` cuts what is before a row by the window, not what is behind it.
        if not span.causal and span.window is not None and span.window < block.num_rows:
            return (
                f"layer {layer} looks both ways within {span.window} positions, fewer than the "
                f"{block.num_rows} rows of a block"
            )
    return None
