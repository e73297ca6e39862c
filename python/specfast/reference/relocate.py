"""relocate_kv in plain Python: the meaning of the op."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specfast.kv_layout import KvLayout
from specfast.status import Status


def relocate_kv(
    layout: KvLayout,
    accept_index: Tensor,
    commit_lens: Tensor,
    *,
    out_cache_loc: Tensor | None = None,
    rows_per_request: int | None = None,
    qo_indptr: Tensor | None = None,
) -> Tensor:
    """Move in place, one request after the other, and return a new status."""
    width = accept_index.shape[1]
    slots = out_cache_loc.tolist() if out_cache_loc is not None else None
    num_rows = len(slots) if slots is not None else layout.num_rows
    assert num_rows is not None
    status = torch.zeros_like(commit_lens)
    for b, count in enumerate(commit_lens.tolist()):
        if qo_indptr is not None:
            begin, end = qo_indptr[b : b + 2].tolist()
        else:
            assert rows_per_request is not None
            begin, end = b * rows_per_request, (b + 1) * rows_per_request
        if count == 0:
            continue
        in_bounds = 0 <= begin <= end <= num_rows and 0 < count <= min(width, end - begin)
        path = accept_index[b, :count].tolist() if in_bounds else []
        front = list(range(begin, begin + count)) if in_bounds else []
        if not _is_path(path, begin, end) or not _have_own_slots({*path, *front}, slots, layout):
            status[b] = Status.BAD_PATH
            continue
        _move(layout, path, front, slots)
    return status


def _is_path(path: Sequence[int], begin: int, end: int) -> bool:
    """It starts at the window's first row, increases strictly and stays in the window."""
    return bool(path) and path[0] == begin and path == sorted(set(path)) and path[-1] < end


def _have_own_slots(rows: set[int], slots: Sequence[int] | None, layout: KvLayout) -> bool:
    if layout.num_slots is None:
        return True
    assert slots is not None
    used = {slots[row] for row in rows}
    return len(used) == len(rows) and min(used) >= 0 and max(used) < layout.num_slots


def _move(
    layout: KvLayout, path: Sequence[int], front: Sequence[int], slots: Sequence[int] | None
) -> None:
    for buffer in layout.buffers:
        sources, destinations = path, front
        if not buffer.by_row:
            assert slots is not None
            sources, destinations = [slots[r] for r in path], [slots[r] for r in front]
        for view in buffer.views:
            size = view.shape[1]
            items = [view[i // size, i % size].clone() for i in sources]
            for i, item in zip(destinations, items, strict=True):
                view[i // size, i % size] = item
