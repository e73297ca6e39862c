"""Keys and values of a drafter's layers in the engine's pages; lengths are on the device alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from specfast import ops
from specfast.drafters.base import DraftPages
from specfast.drafters.checkpoint.spec import BackboneSpec, SpanSpec
from specfast.drafters.layers import Attention, Rotary
from specfast.ops.attention import MAX_ATTENTION_ROWS
from specfast.records import DraftPlaces

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
                   the scratch pages by request
    num_pages : int           all of them
    scratch_pages : int       of each request
    angles : of all positions that a row may have, as ``Rotary.tables`` gives them
    """

    def __init__(
        self,
        pages: DraftPages,
        spec: BackboneSpec,
        num_scratch_rows: int,
        rotary: Rotary,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.pages = pages
        self.num_requests, self.num_columns = pages.table.shape
        self.scratch_pages = -(-num_scratch_rows // pages.page_size)
        self.num_pages = pages.pool_size + self.num_requests * self.scratch_pages
        self.angles = rotary.tables(self.num_columns * pages.page_size + num_scratch_rows)
        shape = (self.num_pages * pages.page_size, spec.num_kv_heads, spec.head_dim)

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

    def place(
        self,
        page_table_rows: Tensor,
        first: Tensor,
        counts: Tensor,
        num_rows: int,
        *,
        scratch_pages: int,
    ) -> DraftPlaces:
        """Of ``counts`` rows, at most ``num_rows``, from position ``first`` on; int32 [B] each.

        Without ``scratch_pages`` they are in the engine's pages, to be committed.
        """
        return ops.place_draft_rows(
            self.pages.table,
            page_table_rows,
            first,
            counts,
            num_rows=num_rows,
            page_size=self.pages.page_size,
            num_pages=self.num_pages,
            first_scratch_page=self.pages.pool_size,
            scratch_pages=scratch_pages,
        )

    def committed(
        self, page_table_rows: Tensor, first: Tensor, counts: Tensor, num_rows: int
    ) -> PagedWindow:
        """Rows that are being committed."""
        places = self.place(page_table_rows, first, counts, num_rows, scratch_pages=0)
        return PagedWindow.of(self, places, first, counts)

    def drafted(
        self, page_table_rows: Tensor, prefix_lens: Tensor, counts: Tensor, num_rows: int
    ) -> PagedWindow:
        """Rows behind the committed ones."""
        places = self.place(
            page_table_rows, prefix_lens, counts, num_rows, scratch_pages=self.scratch_pages
        )
        return PagedWindow.of(self, places, prefix_lens, counts)


@dataclass(frozen=True)
class PagedWindow:
    """Rows of B requests, n each, that are written and attend to all before them.

    places : DraftPlaces            of the rows, and pages of what is before them
    first : int32 [B]               position of the first row of each
    counts : int32 [B]              rows that exist; the others are not written, neither see nor are
                                    seen, and are zeros
    positions : int32 [B, n]
    slots : int32 [B, n]            slots of ``rows.keys`` where they are written; -1: nowhere

    In a :meth:`level` n counts the new rows alone.
    """

    rows: PagedRows
    places: DraftPlaces
    first: Tensor
    counts: Tensor
    positions: Tensor
    slots: Tensor
    _indptr: Tensor
    _mask: Tensor | None = None

    @classmethod
    def of(cls, rows: PagedRows, places: DraftPlaces, first: Tensor, counts: Tensor) -> PagedWindow:
        num_rows, batch = places.slots.shape
        indptr = _indptr(batch, num_rows, first.device)
        return cls(rows, places, first, counts, places.positions.T, places.slots.T, indptr)

    def one_by_one(self) -> list[PagedWindow]:
        """Its rows, each as a window of its own."""
        batch, num_rows = self.positions.shape
        indptr = _indptr(batch, 1, self.first.device)
        return [
            PagedWindow(
                self.rows,
                self.places,
                self.places.positions[i],
                self.places.counts[i],
                self.positions[:, i : i + 1],
                self.slots[:, i : i + 1],
                indptr,
            )
            for i in range(num_rows)
        ]

    def level(self, ancestors: Tensor) -> PagedWindow:
        """The first rows as nodes of trees: the last m of them are new, the others written already.

        ``ancestors`` bool [B, m, rows] says which of these rows each new one sees.
        """
        batch, count, num_rows = ancestors.shape
        num_old = num_rows - count
        return replace(
            self,
            positions=self.positions[:, num_old:num_rows],
            slots=self.slots[:, num_old:num_rows],
            _indptr=_indptr(batch, num_rows, self.first.device),
            # What the rows before the new ones see is of no use any more.
            _mask=functional.pad(ancestors, (0, 0, num_old, 0)).contiguous(),
        )

    def append(self, layer: int, attention: Attention, x: Tensor, positions: Tensor) -> Tensor:
        """Write keys and values of the rows ``x`` [B, n, hidden]; their queries.

        ``positions`` [B, n], or [B, 1] for all of them, is where they count as being.
        """
        return attention.append(
            x,
            positions.expand(self.slots.shape),
            self.slots,
            (self.rows.keys[layer], self.rows.values[layer]),
            self.rows.angles,
        )

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
            self.places.pages,
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
    last = batch * num_rows
    return torch.arange(0, last + 1, max(num_rows, 1), dtype=torch.int32, device=device)
