"""EAGLE-1/2 and EAGLE-3 on the device alone: their pairs are in pages."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.drafters.base import DraftPages
from specfast.drafters.checkpoint.weights import EMBEDDING
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_chain import draft_pairs
from specfast.drafters.eagle_tree import Frontier
from specfast.drafters.layers import Attention, Places
from specfast.drafters.paged_rows import PagedRows, PagedWindow
from specfast.ops.attention import MAX_ATTENTION_ROWS


class PagedChains:
    """The pairs of all requests of an engine, and the hidden state of the last one of each.

    last : [S + 1, hidden]    by row of the page table; where there was nothing to commit, the last
                              one is written
    """

    def __init__(self, model: EagleModel, pages: DraftPages, num_drafted: int) -> None:
        """With room for ``num_drafted`` pairs of a request behind its committed ones."""
        self._model = model
        spec, dtype = model.spec.backbone, model.weights[EMBEDDING].dtype
        self.rows = PagedRows(pages, spec, num_drafted, model.rotary, dtype, model.device)
        self.last = torch.zeros(
            self.rows.num_requests + 1, spec.hidden_size, dtype=dtype, device=model.device
        )

    def extend(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        counts: Tensor,
        next_tokens: Tensor,
        taps: Tensor,
    ) -> None:
        # Prompts are longer than what an attention takes at once.
        for first in range(0, taps.shape[1], MAX_ATTENTION_ROWS):
            part = slice(first, first + MAX_ATTENTION_ROWS)
            tokens, features = next_tokens[:, part], self._model.features(taps[:, part])
            width = tokens.shape[1]
            here = (counts - first).clamp(0, width)
            window = self.rows.committed(page_table_rows, prefix_lens + first, here, width)
            places = self._model.places(window.positions)
            hidden = self._model.forward(tokens, features, places, PagedPairs(window))
            index = (here - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[-1])
            owners = torch.where(here > 0, page_table_rows, self.rows.num_requests)
            self.last.index_copy_(0, owners.long(), hidden.gather(1, index.long())[:, 0])

    def draft(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        live: Tensor,
        anchors: Tensor,
        num_drafts: int,
        sampler: DraftSampler,
    ) -> ChainDrafts:
        # The last draft is no pair yet.
        num_pairs = num_drafts - 1
        counts = live.int() * num_pairs
        window = self.rows.drafted(page_table_rows, prefix_lens, counts, num_pairs)
        places, pairs = self._model.places(window.positions), window.one_by_one()

        def behind(number: int) -> tuple[Places, PagedPairs]:
            return places.column(number), PagedPairs(pairs[number])

        hidden = self._last_hidden(page_table_rows)
        return draft_pairs(self._model, hidden, num_drafts, sampler, behind)

    def frontier(
        self,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        live: Tensor,
        num_nodes: int,
        num_levels: int,
    ) -> Frontier:
        """Behind the committed pairs, for trees; the arguments are those of :meth:`draft`.

        At most ``num_nodes`` nodes in ``num_levels`` levels are run; they lie there in the order in
        which they are.
        """
        counts = live.int() * num_nodes
        window = self.rows.drafted(page_table_rows, prefix_lens, counts, num_nodes)
        places = self._model.places(window.positions[:, :num_levels])

        def behind(level: int, ancestors: Tensor) -> tuple[Places, PagedPairs]:
            return places.column(level), PagedPairs(window.level(ancestors))

        return Frontier(self._model, self._last_hidden(page_table_rows), behind)

    def _last_hidden(self, page_table_rows: Tensor) -> Tensor:
        return self.last.index_select(0, page_table_rows)[:, None]


class PagedPairs:
    """New pairs of B requests in pages; each sees those before it."""

    def __init__(self, window: PagedWindow) -> None:
        self._window = window

    def attend(self, attention: Attention, x: Tensor, places: Places) -> Tensor:
        return self._window.attend(0, self._window.append(0, attention, x, places.positions))
