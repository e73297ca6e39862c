"""Between a drafter's layers and its paged cache: where rows lie, and how they get there."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place
from specfast.records import DraftPlaces

__all__ = ["place_draft_rows", "rope_append_kv"]


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
    out: Tensor | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, and store keys and values, in one launch.

    What a layer does between the product that projects its rows and its attention.

    Parameters
    ----------
    qkv : float32 | bfloat16 | float16 [B, n, (Hq + 2 H) D]
        Of each row the heads of its queries, its keys and its values. D <= 1024,
        B n (Hq + H) < 2^30.
    key_cache, value_cache : [slots, H, D] of the same dtype
        With dense heads; changed in place.
    positions : int32 | int64 [B, n]
        Of each row; any strides.
    slots : int32 | int64 [B, n]
        Where keys and values of each row go; any strides. A row outside [0, slots) is not stored.
    cos, sin : float32 [P, rotary_dim / 2]
        Of the angles at each position. Channel d of the first half of ``rotary_dim`` is rotated
        with channel d of the second half; channels past ``rotary_dim`` stay as they are.
    q_norm_weight, k_norm_weight : float32 [D], optional
        Of the RMSNorm over each head of the queries, and of the keys; absent: none.
    eps : float
        Of these norms, added to the mean square; in [0, 1].
    out : [B, n, Hq, D] of the same dtype, optional
        Buffer for the queries; needed if read after a graph's replay.

    Returns
    -------
    [B, n, Hq, D]
        The queries: ``out``, or a new one.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails: a row whose position is outside [0, P) has queries of zeros, and is not
    stored. Slots are not compared: one that two rows have holds either, or parts of both. Values
    keep their bits; NaN stays in its head.
    Arithmetic is that of :func:`inject_context_kv`.
    Devices: CPU, CUDA; equal bits. Deterministic, and independent of how many rows there are.
    Capturable with ``out``. Cost: reads and writes each row once.
    Source: what vLLM calls ``fused_qk_norm_rope`` and ``reshape_and_cache``, in one.

    Examples
    --------
    A head of two channels each, turned by a right angle at position 1, stored in slot 2.

    >>> import torch, specfast
    >>> keys, values = torch.zeros(4, 1, 2), torch.zeros(4, 1, 2)
    >>> queries = specfast.ops.rope_append_kv(
    ...     torch.tensor([[[1.0, 2, 3, 4, 5, 6]]]), keys, values,
    ...     torch.tensor([[1]]), torch.tensor([[2]]),
    ...     cos=torch.tensor([[1.0], [0]]), sin=torch.tensor([[0.0], [1]]))
    >>> queries.tolist(), keys[2].tolist(), values[2].tolist()
    ([[[[-2.0, 1.0]]]], [[-4.0, 3.0]], [[5.0, 6.0]])
    """
    if out is None:
        # Of any rank and size: the op has the sentence for a wrong one.
        heads, head_dim = (0, 0, *key_cache.shape)[-2:]
        queries = qkv.shape[-1] // max(head_dim, 1) - 2 * heads if qkv.dim() else 0
        out = qkv.new_empty((*positions.shape, max(queries, 0), head_dim))
    torch.ops.specfast.rope_append_kv(
        qkv.view(-1, qkv.shape[-1]) if qkv.dim() == 3 else qkv,
        key_cache,
        value_cache,
        positions,
        slots,
        cos,
        sin,
        q_norm_weight,
        k_norm_weight,
        eps,
        out.flatten(0, 1) if out.dim() == 4 else out,
    )
    return out


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
    out: DraftPlaces | None = None,
) -> DraftPlaces:
    """Find the pages and slots of rows that a drafter on the device keeps behind committed ones.

    They lie in the rest of the last committed page, and then in scratch pages of the request's own:
    row t of the page table has ``first_scratch_page + t * scratch_pages`` onwards. Without scratch
    pages they lie in the pages of the table, as rows do that are being committed.

    Parameters
    ----------
    page_table : int32 | int64 [T, C]
        Pages of each row's positions, in order; any row stride.
    page_table_rows : int32 [B]
        Row of each request.
    prefix_lens : int32 [B]
        Committed positions of each; below 0 counts as 0.
    counts : int32 [B]
        Rows of each that exist.
    num_rows : int
        n, that any request has at most.
    page_size : int
        Slots of a page.
    num_pages : int
        Of the cache, scratch pages included; ``num_pages * page_size`` < 2^31.
    first_scratch_page, scratch_pages : int
        The first of all scratch pages, and how many a row of the table has.
    out : DraftPlaces, optional
        Buffers to fill (see ``DraftPlaces.empty``), of C + ``scratch_pages`` columns; needed if
        read after a graph's replay.

    Returns
    -------
    DraftPlaces
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails: a row past ``counts`` has no slot, nor one past the last column or in a
    page outside [0, ``num_pages``), which counts as none; a request whose ``page_table_rows`` is
    outside the table has no pages. Positions end at 2^31 - 1.
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch and slot. Capturable
    with ``out``. Cost: reads and writes the pages of each request.

    Examples
    --------
    Of three committed positions the last lies in page 7; the fifth is the first in a scratch page.

    >>> import torch, specfast
    >>> def int32(*values): return torch.tensor(values, dtype=torch.int32)
    >>> places = specfast.ops.place_draft_rows(
    ...     int32([5, 7, 6]), int32(0), int32(3), int32(2), num_rows=3,
    ...     page_size=2, num_pages=10, first_scratch_page=8, scratch_pages=2)
    >>> places.pages.tolist(), places.slots.tolist()
    ([[5, 7, 8, 9, -1]], [[15], [16], [-1]])
    """
    if out is None:
        columns = page_table.shape[-1] if page_table.dim() else 0
        columns += max(scratch_pages, 0)
        out = DraftPlaces.empty(len(prefix_lens), max(num_rows, 0), columns, page_table.device)
    if tuple(out.positions.shape[:1]) != (num_rows,):
        raise RuntimeError(
            f"place_draft_rows: expected num_rows={num_rows} rows of out.positions, "
            f"got {list(out.positions.shape)}"
        )
    if out.pages.shape[-1] != page_table.shape[-1] + scratch_pages:
        raise RuntimeError(
            f"place_draft_rows: expected out.pages of {page_table.shape[-1] + scratch_pages} "
            f"columns, got {out.pages.shape[-1]}"
        )
    torch.ops.specfast.place_draft_rows(
        page_table,
        page_table_rows,
        prefix_lens,
        counts,
        page_size,
        num_pages,
        first_scratch_page,
        out.pages,
        out.positions,
        out.slots,
        out.counts,
    )
    return out


register_in_place("rope_append_kv", "place_draft_rows")
