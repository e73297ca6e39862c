"""The context of a block drafter: keys and values of committed rows into its paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.kv_layout import KvLayout
from specfast.ops._fakes import register_in_place

__all__ = ["inject_context_kv"]


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
    status: Tensor | None = None,
    accumulate_status: bool = False,
) -> Tensor:
    """Store what all layers of a block drafter keep of the committed rows, in one launch.

    DFlash, DSpark and DFlash-2 attend to the target's hidden rows: one product projects the taps of
    the verified rows to keys and values of every layer, and this op takes those of the committed
    rows, normalises the keys of each head, rotates them and stores both. Committed row i of a
    request has the position ``prefix_lens[b] + i``. Rows that the target rejected are not read.

    Parameters
    ----------
    keys_values : float32 | bfloat16 | float16 [B, S, L, 2, H, D] | [R, L, 2, H, D]
        Per row and layer, the keys (0) and values (1) of its H KV heads, as they are projected; any
        strides but that of the last dimension. The rows of a request begin with its committed
        ones; with ``accept_index``, rows are numbered over the batch. L <= 512, D <= 1024,
        S L H < 2^30.
    layout : KvLayout
        The drafter's cache: buffers of keys and values of layer 0, of layer 1, and so on, each
        [slots, H, D] or [pages, slots of a page, H, D] (``KvBuffer.nhd``, ``hnd`` or ``paged``) of
        the dtype of ``keys_values`` with dense heads; changed in place.
    prefix_lens : int32 [B]
        Position of each request's first row: committed rows before this round.
    commit_lens : int32 [B]
        Rows to store; 0 is a padded or finished slot, of which nothing is touched.
    page_table : int32 | int64 [T, num_pages]
        Pages in order of position, any row stride; position p lies in slot
        ``page_table[row, p // page_size] * page_size + p % page_size``.
    page_size : int
        Slots of a page.
    cos, sin : float32 [P, rotary_dim / 2]
        Of the angles at each position. Channel d of the first half of ``rotary_dim`` is rotated
        with channel d of the second half; channels past ``rotary_dim`` stay as they are.
    k_norm_weight : float32 [L, D], optional
        Of the RMSNorm over each head of the keys. Absent: keys are not normalised.
    eps : float
        Of that norm, added to the mean square; in [0, 1].
    accept_index : int32 [B, S], optional
        Committed rows, numbered over the batch; what follows them is not read. Any row stride.
    page_table_rows : int32 [B], optional
        Row of each request's pages; absent: b, and T is B.
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
    Bad data never fails, and a request of which something is bad stores nothing. BAD_PATH:
    ``commit_lens`` below 0 or above S, a row outside [0, R). BAD_PARAM: positions below 0 or past
    ``cos`` or the page table, a ``page_table_rows`` outside it, an entry that is no page. Pages are
    not compared: a slot that two rows get holds either, or parts of both. Values keep their bits;
    NaN among the keys of a head stays in that head.
    Arithmetic is float32, rounded once to the dtype: ``x * (1 / sqrt(mean(x ** 2) + eps)) *
    weight``, then ``x * cos - y * sin`` and ``y * cos + x * sin``. The squares are added up in an
    order that is fixed.
    Devices: CPU, CUDA; equal bits. Deterministic, and independent of batch, slot and padding.
    Capturable with ``status``; one launch.
    Cost: reads and writes the keys and values of each committed row once.
    Source: the context of DFlash (z-lab) and DSpark.

    Examples
    --------
    Of two rows, one is committed; its keys are turned by a right angle at position 3.

    >>> import torch, specfast
    >>> keys, values = torch.zeros(4, 1, 2), torch.zeros(4, 1, 2)
    >>> nhd = specfast.KvBuffer.nhd
    >>> status = specfast.ops.inject_context_kv(
    ...     torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]]).view(1, 2, 1, 2, 1, 2),
    ...     specfast.KvLayout([nhd(keys), nhd(values)]), torch.tensor([3]).int(),
    ...     torch.tensor([1]).int(), torch.tensor([[1, 0]]), page_size=2,
    ...     cos=torch.tensor([[1.0], [1], [1], [0]]), sin=torch.tensor([[0.0], [0], [0], [1]]))
    >>> keys[1].tolist(), values[1].tolist(), status.tolist()
    ([[-2.0, 1.0]], [[3.0, 4.0]], [0])
    """
    num_layers, _, *item = (0, 0, 0, 0, *keys_values.shape)[-4:]
    _require_caches(layout, tuple(item), num_layers)
    if status is None:
        status = torch.zeros_like(commit_lens)
    torch.ops.specfast.inject_context_kv(
        keys_values,
        layout.tensors,
        layout.geometry,
        layout.pieces,
        layout.page_size,
        layout.num_slots,
        prefix_lens,
        commit_lens,
        page_table,
        page_size,
        cos,
        sin,
        k_norm_weight,
        eps,
        accept_index,
        page_table_rows,
        status,
        accumulate_status,
    )
    return status


def _require_caches(layout: KvLayout, item: tuple[int, ...], num_layers: int) -> None:
    """What the description on the device says of the buffers, and the op cannot see."""
    op = "inject_context_kv"
    if len(layout.buffers) != 2 * num_layers:
        raise RuntimeError(
            f"{op}: expected layout of keys and values of L={num_layers} layers, "
            f"got {len(layout.buffers)} buffers"
        )
    for number, buffer in enumerate(layout.buffers):
        view = buffer.views[0]
        if buffer.by_row or len(buffer.views) != 1 or tuple(view.shape[2:]) != item:
            kind = "rows" if buffer.by_row else "slots"
            raise RuntimeError(
                f"{op}: expected buffer {number} of layout by slot with items {list(item)}, "
                f"got {kind} with items {list(view.shape[2:])}"
            )
        if item[-1] > 1 and view.stride(-1) != 1:
            raise RuntimeError(
                f"{op}: expected buffer {number} of layout with dense heads, "
                f"got stride {view.stride(-1)}"
            )


register_in_place("inject_context_kv")
