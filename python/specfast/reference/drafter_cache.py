"""The ops between a drafter's layers and its paged cache, in plain torch: the meaning of each."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.records import DraftPlaces
from specfast.reference.context import rotated_heads


def rope_append_kv(
    qkv: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    cos: Tensor,
    sin: Tensor,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Store in place, one row after the other, and return new queries."""
    num_slots, kv_heads, head_dim = key_cache.shape
    heads = qkv.view(*positions.shape, qkv.shape[-1] // head_dim, head_dim)
    num_heads = heads.shape[-2] - 2 * kv_heads
    queries = torch.zeros(*heads.shape[:-2], num_heads, head_dim, dtype=qkv.dtype)
    for b, row in torch.cartesian_prod(*(torch.arange(n) for n in positions.shape)).tolist():
        place, slot = int(positions[b, row]), int(slots[b, row])
        if not 0 <= place < len(cos):
            continue
        q, k, v = torch.split(heads[b, row], [num_heads, kv_heads, kv_heads])
        queries[b, row] = rotated_heads(q, q_norm_weight, eps, cos[place], sin[place])
        if 0 <= slot < num_slots:
            key_cache[slot] = rotated_heads(k, k_norm_weight, eps, cos[place], sin[place])
            value_cache[slot] = v
    return queries


def place_draft_rows(
    page_table: Tensor,
    page_table_rows: Tensor,
    prefix_lens: Tensor,
    counts: Tensor,
    *,
    num_rows: int,
    page_size: int,
    num_pages: int,
    first_scratch_page: int = 0,
    scratch_pages: int = 0,
) -> DraftPlaces:
    """One request after the other."""
    batch = len(prefix_lens)
    num_columns = page_table.shape[1]
    out = DraftPlaces.empty(batch, num_rows, num_columns + scratch_pages, "cpu")
    for b in range(batch):
        table_row, begin = int(page_table_rows[b]), max(int(prefix_lens[b]), 0)
        committed = num_columns if scratch_pages == 0 else -(-begin // page_size)
        pages = []
        for column in range(num_columns + scratch_pages):
            page = first_scratch_page + table_row * scratch_pages + column - committed
            if not 0 <= table_row < len(page_table) or column >= committed + scratch_pages:
                page = -1
            elif column < committed:
                page = int(page_table[table_row, column]) if column < num_columns else -1
            pages.append(page if 0 <= page < num_pages else -1)
        out.pages[b] = torch.tensor(pages, dtype=torch.int32)
        for i in range(num_rows):
            place = begin + i
            column, exists = place // page_size, i < int(counts[b])
            page = pages[column] if exists and column < len(pages) else -1
            out.positions[i, b] = min(place, 2**31 - 1)
            out.slots[i, b] = page * page_size + place % page_size if 0 <= page < num_pages else -1
            out.counts[i, b] = int(exists)
    return out
