"""verify_attention in plain torch: the meaning of the op."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_ROWS = 128


def verify_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    page_table: Tensor,
    prefix_lens: Tensor,
    *,
    page_size: int,
    qo_indptr: Tensor,
    scale: float | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    window_mask: Tensor | None = None,
    verify_lens: Tensor | None = None,
    page_table_rows: Tensor | None = None,
    max_rows: int = MAX_ROWS,
    sliding_window: int = 0,
    block_bidirectional: bool = False,
) -> Tensor:
    """One softmax per row and head, in float64, over the keys that the row sees."""
    num_rows, num_heads, head_dim = query.shape
    group = num_heads // key_cache.shape[-2]
    scale = head_dim**-0.5 if scale is None else scale
    keys = _by_page(key_cache, page_size, key_scale)
    values = _by_page(value_cache, page_size, value_scale)
    nodes = max_rows if window_mask is None else min(window_mask.shape[1], max_rows)
    out = torch.zeros_like(query)
    owned = qo_indptr.clamp(0, num_rows).tolist()
    for b, prefix_len in enumerate(prefix_lens.tolist()):
        table_row = b if page_table_rows is None else int(page_table_rows[b])
        pages = page_table[table_row].tolist() if 0 <= table_row < len(page_table) else []
        prefix_len = min(max(prefix_len, 0), page_table.shape[1] * page_size)
        count = min(max(owned[b + 1] - owned[b], 0), nodes)
        if verify_lens is not None:
            count = min(count, max(int(verify_lens[b]), 0))
        sees = _window(b, count, window_mask, block_bidirectional)
        depths = list(range(count))
        if window_mask is not None:
            depths = (sees.sum(1) - 1).clamp(min=0).tolist()
        for i in range(count):
            positions = list(range(prefix_len))
            positions += [prefix_len + c for c in range(count) if sees[i, c]]
            if sliding_window > 0:
                own = prefix_len + depths[i]
                at = {prefix_len + c: prefix_len + depth for c, depth in enumerate(depths)}
                positions = [p for p in positions if own - at.get(p, p) < sliding_window]
            slots = [
                (pages[p // page_size], p % page_size)
                for p in positions
                if p // page_size < len(pages) and 0 <= pages[p // page_size] < len(keys)
            ]
            if not slots:
                continue
            page, offset = torch.tensor(slots).T
            k = keys[page, offset].repeat_interleave(group, dim=1)  # [K, H, D]
            v = values[page, offset].repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,khd->hk", query[owned[b] + i].double(), k) * scale
            mixed = torch.einsum("hk,khd->hd", scores.softmax(dim=1), v)
            out[owned[b] + i] = mixed.to(query.dtype)
    return out


def _by_page(cache: Tensor, page_size: int, scale: Tensor | None) -> Tensor:
    """[pages, page_size, heads, dim] in float64, of whole pages; ``scale`` [1] or [heads]."""
    if cache.dim() == 3:
        pages = cache.shape[0] // page_size
        cache = cache[: pages * page_size].reshape(pages, page_size, *cache.shape[1:])
    return cache.double() if scale is None else cache.double() * scale.double()[:, None]


def _window(b: int, count: int, mask: Tensor | None, bidirectional: bool) -> Tensor:
    """Which of the window's rows each row sees; bool [count, count]."""
    if mask is None:
        everything = torch.ones(count, count, dtype=torch.bool)
        return everything if bidirectional else everything.tril()
    if mask.dtype != torch.int32:
        return mask[b, :count, :count] != 0
    column = torch.arange(count)
    return (mask[b, :count][:, column // 32] >> (column % 32) & 1) != 0
