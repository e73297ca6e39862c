"""Relocate: committed rows to the front of their window."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.kv_layout import KvLayout
from specfast.ops._fakes import register_in_place

__all__ = ["relocate_kv"]


def relocate_kv(
    layout: KvLayout,
    accept_index: Tensor,
    commit_lens: Tensor,
    *,
    out_cache_loc: Tensor | None = None,
    rows_per_request: int | None = None,
    qo_indptr: Tensor | None = None,
    status: Tensor | None = None,
    accumulate_status: bool = False,
) -> Tensor:
    """Move the committed rows of a tree to the front of the request's window, in all buffers.

    A tree's accepted rows lie scattered over the rows that the round verified. Row
    ``accept_index[b, i]`` moves to row ``i`` of the window of request b, for i < commit_lens[b]:
    in buffers by slot from the KV slot of the one row to the KV slot of the other, in buffers by
    row from row to row. Afterwards the KV of the request is contiguous in its slots, as after
    plain decoding. Rows that are in place already (the anchor always, a chain entirely) are not
    touched, and neither is anything else of the window.

    Parameters
    ----------
    layout : KvLayout
        The buffers, of all layers and side buffers; changed in place.
    accept_index : int32 [B, S]
        Committed rows (anchor, accepted drafts), numbered over the batch; what follows them is
        not read. Any row stride. S <= 1024.
    commit_lens : int32 [B]
        Committed rows of each request; 0 is a padded or finished slot, of which nothing moves.
    out_cache_loc : int32 | int64 [R], optional
        KV slot of each row, in any order. Needed if the layout has buffers by slot.
    rows_per_request : int, optional
        Every window has so many rows: request b's begins at row ``b * rows_per_request``.
    qo_indptr : int32 [B + 1], optional
        First row of each window in a ragged batch. Exactly one of the two is given.
    status : int32 [B], optional
        Written; needed if read after a graph's replay.
    accumulate_status : bool
        OR into ``status`` what this op finds, after another op of the round wrote it.

    Returns
    -------
    int32 [B]
        ``status``, or a new one.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    BAD_PATH, and no byte of the request moves in any buffer: a path that does not begin at the
    window's first row, does not increase strictly or leaves the window, ``commit_lens`` below 0
    or above S, a slot below 0 or past a buffer's end, one slot in two rows of the path or of its
    destinations. Slots of different requests are not compared.
    Devices: CPU, CUDA; equal bytes. Deterministic, and independent of batch, slot and padding.
    Capturable with ``status``; one launch. Under ``torch.compile`` the buffers count as mutated
    arguments, whatever allocation they are in.
    Cost: reads and writes each moved row once, nothing of the others; every block of 256 threads
    checks its request's path, commit_len ** 2 / 256 comparisons of slots.
    Source: the commit of EAGLE (arXiv:2401.15077) and SpecInfer (arXiv:2305.09781) trees.

    Examples
    --------
    The tree R -> {A, B}, A -> {C, D}: rows R, A, C of [R, A, B, C, D] are committed.

    >>> import torch, specfast
    >>> keys = torch.tensor([[1.0], [10.0], [11.0], [12.0], [13.0]])
    >>> layout = specfast.KvLayout([specfast.KvBuffer.slots(keys)])
    >>> path = torch.tensor([[0, 1, 3]], dtype=torch.int32)
    >>> length = torch.tensor([3], dtype=torch.int32)
    >>> status = specfast.ops.relocate_kv(
    ...     layout, path, length, out_cache_loc=torch.arange(5), rows_per_request=5)
    >>> keys.flatten().tolist(), status.tolist()
    ([1.0, 10.0, 12.0, 12.0, 13.0], [0])
    """
    if status is None:
        status = torch.zeros_like(commit_lens)
    torch.ops.specfast.relocate_kv(
        layout.tensors,
        layout.geometry,
        layout.pieces,
        layout.chunks,
        layout.page_size,
        layout.num_slots,
        layout.num_rows,
        accept_index,
        commit_lens,
        out_cache_loc,
        qo_indptr,
        rows_per_request,
        status,
        accumulate_status,
    )
    return status


register_in_place("relocate_kv")
