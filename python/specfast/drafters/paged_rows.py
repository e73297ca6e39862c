"""Keys and values of a drafter's layers in the engine's pages; lengths are on the device alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specfast import ops
from specfast.drafters.base import DraftPages
from specfast.drafters.checkpoint.spec import BackboneSpec, SpanSpec
from specfast.ops.attention import MAX_ATTENTION_ROWS

EVERYTHING_BEFORE = SpanSpec(causal=True, window=None)


class PagedRows:
    """Room for keys and values of the positions of all requests, per layer.

    A committed position lies in the page that the engine has given it for the target's own KV.
    Rows that are only drafted lie where the next ones will be committed, as far as the last
    committed page goes, and then in *scratch pages*, a few for each request: so they need no page
    that the engine might not have reserved, and are in nobody else's.

    Lifetime: all of it is allocated here, and keeps its address.

    num_scratch_rows : int    that a request drafts behind its committed ones at most
    keys, values : of each layer [slots, kv_heads, head_dim]: those of the engine's pages, then of
                   the scratch pages by request, then a page whose first slot is padding_slot
    scratch_pages : int       of each request
    """

    def __init__(
        self,
        pages: DraftPages,
        spec: BackboneSpec,
        num_scratch_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.pages = pages
        self.num_requests, self.num_columns = pages.table.shape
        self.scratch_pages = -(-num_scratch_rows // pages.page_size)
        num_pages = pages.pool_size + self.num_requests * self.scratch_pages
        # Skipped rows are written here, and nobody reads them.
        self.padding_slot = num_pages * pages.page_size
        shape = (self.padding_slot + pages.page_size, spec.num_kv_heads, spec.head_dim)

        def storage() -> list[Tensor]:
            layers = range(spec.num_layers)
            return [torch.empty(shape, dtype=dtype, device=device) for _ in layers]

        self.keys, self.values = storage(), storage()
        self.workspace = ops.verify_attention_workspace(
            self.num_requests,
            min(max(num_scratch_rows, 1), MAX_ATTENTION_ROWS),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            # Keys of a request on average, if all requests fill the pool.
            min(self.num_columns, -(-pages.pool_size // self.num_requests)) * pages.page_size,
            device,
        )

    def committed_pages(self, page_table_rows: Tensor) -> Tensor:
        """int32 [B, num_pages]: pages of what is committed, of ``page_table_rows`` int32 [B]."""
        return self.pages.table.index_select(0, page_table_rows)

    def drafted_pages(self, page_table_rows: Tensor, prefix_lens: Tensor) -> Tensor:
        """int32 [B, more pages]: the same, for what is drafted behind ``prefix_lens`` [B]."""
        size, extra = self.pages.page_size, self.scratch_pages
        columns = torch.arange(self.num_columns + extra, device=prefix_lens.device)
        behind = columns - torch.div(prefix_lens[:, None] + size - 1, size, rounding_mode="floor")
        own = functional.pad(self.committed_pages(page_table_rows), (0, extra), value=-1)
        scratch = self.pages.pool_size + page_table_rows[:, None] * extra + behind
        scratch = torch.where(behind < extra, scratch, -1)
        return torch.where(behind < 0, own, scratch).int()


@dataclass(frozen=True)
class PagedWindow:
    """Rows of B requests, n each, that are written and attend to all before them.

    table : int32 [B, num_pages]    of ``PagedRows``
    first : int32 [B]               position of the first row of each
    counts : int32 [B]              rows that exist; the others are not written, neither see nor are
                                    seen, and are zeros
    positions : int64 [B, n]
    slots : int64 [B * n]           slots of ``rows.keys`` where they are written

    In a :meth:`level` n counts the new rows alone.
    """

    rows: PagedRows
    table: Tensor
    first: Tensor
    counts: Tensor
    positions: Tensor
    slots: Tensor
    _indptr: Tensor
    _mask: Tensor | None = None

    @classmethod
    def of(
        cls, rows: PagedRows, table: Tensor, first: Tensor, counts: Tensor, num_rows: int
    ) -> PagedWindow:
        steps = torch.arange(num_rows, device=first.device)
        positions = first[:, None] + steps
        size = rows.pages.page_size
        column = torch.div(positions, size, rounding_mode="floor")
        page = table.gather(1, column.clamp(0, table.shape[1] - 1)).long()
        exists = (steps < counts[:, None]) & (page >= 0) & (column < table.shape[1])
        slots = torch.where(exists, page * size + positions % size, rows.padding_slot)
        indptr = _indptr(len(first), num_rows, first.device)
        return cls(rows, table, first, counts, positions, slots.flatten(), indptr)

    def one_by_one(self) -> list[PagedWindow]:
        """Its rows, each as a window of its own."""
        batch, num_rows = self.positions.shape
        steps = torch.arange(num_rows, device=self.first.device)[:, None]
        parts = (
            (self.first + steps).int(),
            (steps < self.counts).int(),
            self.positions.T.contiguous()[..., None],
            self.slots.view(batch, num_rows).T.contiguous(),
        )
        indptr = _indptr(batch, 1, self.first.device)
        return [
            PagedWindow(self.rows, self.table, *row, indptr) for row in zip(*parts, strict=True)
        ]

    def level(self, ancestors: Tensor) -> PagedWindow:
        """The first rows as nodes of trees: the last m of them are new, the others written already.

        ``ancestors`` bool [B, m, rows] says which of these rows each new one sees.
        """
        batch, count, num_rows = ancestors.shape
        num_old = num_rows - count
        new = slice(num_old, num_rows)
        return PagedWindow(
            self.rows,
            self.table,
            self.first,
            self.counts,
            self.positions[:, new],
            self.slots.view(batch, -1)[:, new].flatten(),
            _indptr(batch, num_rows, self.first.device),
            # What the rows before the new ones see is of no use any more.
            functional.pad(ancestors, (0, 0, num_old, 0)).contiguous(),
        )

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """``keys`` and ``values`` [B, n, kv_heads, head_dim] of the rows."""
        self.rows.keys[layer].index_copy_(0, self.slots, keys.flatten(0, 1))
        self.rows.values[layer].index_copy_(0, self.slots, values.flatten(0, 1))

    def attend(self, layer: int, queries: Tensor, span: SpanSpec = EVERYTHING_BEFORE) -> Tensor:
        """What ``queries`` [B, n, heads, head_dim] mix; the rows themselves have been written.

        ``span`` says what they see of each other, and how far they look back.
        """
        num_old = 0 if self._mask is None else self._mask.shape[1] - queries.shape[1]
        # The op takes a query of each row that is seen.
        queries = functional.pad(queries, (0, 0, 0, 0, num_old, 0)) if num_old else queries
        mixed = ops.verify_attention(
            queries.flatten(0, 1),
            self.rows.keys[layer],
            self.rows.values[layer],
            self.table,
            self.first,
            page_size=self.rows.pages.page_size,
            qo_indptr=self._indptr,
            window_mask=self._mask,
            verify_lens=self.counts,
            max_rows=queries.shape[1],
            sliding_window=span.window or 0,
            block_bidirectional=not span.causal,
            workspace=self.rows.workspace,
        )
        return mixed.view(queries.shape)[:, num_old:]


def _indptr(batch: int, num_rows: int, device: torch.device) -> Tensor:
    """int32 [B + 1]: where the rows of each request begin."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * num_rows
