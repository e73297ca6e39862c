"""inject_context_kv in plain torch: the meaning of the op."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.kv_layout import KvLayout
from specfast.reference.float32 import sqrt
from specfast.reference.lane_sums import lane_sum
from specfast.status import Status


def inject_context_kv(
    keys_values: Tensor,
    layout: KvLayout,
    prefix_lens: Tensor,
    commit_lens: Tensor,
    page_table: Tensor,
    *,
    page_size: int,
    cos: Tensor,
    sin: Tensor,
    k_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    accept_index: Tensor | None = None,
    page_table_rows: Tensor | None = None,
) -> Tensor:
    """Store in place, one request after the other, and return a new status."""
    assert layout.num_slots is not None
    caches = [buffer.views[0] for buffer in layout.buffers]
    status = torch.zeros_like(commit_lens)
    norms = None if k_norm_weight is None else k_norm_weight[:, None]
    for b, (count, begin) in enumerate(
        zip(commit_lens.tolist(), prefix_lens.tolist(), strict=True)
    ):
        rows_of_b = keys_values if accept_index is not None else keys_values[b]
        path = accept_index[b].tolist() if accept_index is not None else list(range(len(rows_of_b)))
        if not 0 <= count <= len(path):
            status[b] = Status.BAD_PATH
            continue
        if count == 0:
            continue
        table_row = b if page_table_rows is None else int(page_table_rows[b])
        positions = min(len(cos), page_table.shape[1] * page_size)
        if begin < 0 or begin + count > positions or not 0 <= table_row < len(page_table):
            status[b] = Status.BAD_PARAM
            continue
        places = list(range(begin, begin + count))
        pages = [int(page_table[table_row, place // page_size]) for place in places]
        if not all(0 <= row < len(rows_of_b) for row in path[:count]):
            status[b] |= Status.BAD_PATH
        if not all(0 <= page < layout.num_slots // page_size for page in pages):
            status[b] |= Status.BAD_PARAM
        if status[b] != Status.OK:
            continue
        for row, place, page in zip(path[:count], places, pages, strict=True):
            slot = page * page_size + place % page_size
            keys = rotated_heads(rows_of_b[row, :, 0], norms, eps, cos[place], sin[place])
            for layer, values in enumerate(rows_of_b[row, :, 1]):
                for cache, item in zip(caches[2 * layer :], (keys[layer], values), strict=False):
                    cache[slot // cache.shape[1], slot % cache.shape[1]] = item
    return status


def rotated_heads(
    heads: Tensor, weight: Tensor | None, eps: float, cos: Tensor, sin: Tensor
) -> Tensor:
    """``heads`` [..., H, D] at one position, normed and rotated, in their dtype."""
    x = heads.float()
    if weight is not None:
        head_dim = x.shape[-1]
        squares = lane_sum(head_dim, x.shape[:-1], lambda total, k: total + x[..., k] * x[..., k])
        scale = 1.0 / sqrt(squares / float(head_dim) + torch.tensor(eps))
        x = x * scale[..., None] * weight
    half = len(cos)
    first, second, rest = x.tensor_split([half, 2 * half], dim=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(rotated, -1).to(heads.dtype)
