"""Attention of the verify rows over paged KV."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place

__all__ = ["verify_attention", "verify_attention_workspace"]

# csrc/core/attention_params.h: rows of a request, and requests.
MAX_ATTENTION_ROWS = 128
MAX_ATTENTION_REQUESTS = 1024
# csrc/core/attention_chunks.h: positions of a chunk, the same far behind, and where that begins;
# attention_plan.cuh: places for counters.
_CHUNK_KEYS = 512
_COARSE_CHUNK_KEYS = 2048
_FINE_KEYS = 8192
_COUNTERS = 32768
# Batches that have more chunks than that are hardly ever worth dividing.
_MOST_CHUNKS = 6144


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
    max_rows: int | None = None,
    sliding_window: int = 0,
    block_bidirectional: bool = False,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """Attend from a few query rows per request to its paged keys and values.

    The KV of the rows is in the cache already, at positions ``prefix_lens[b]`` and on. Row i of a
    request sees the whole prefix and, of the window, itself and its ancestors in ``window_mask``,
    or rows 0 .. i of a chain, or the whole block.

    Parameters
    ----------
    query : float32 | bfloat16 | float16 [R, H, D]
        Any row and head stride.
    key_cache, value_cache : like query [slots, KV heads, D] or [pages, page_size, KV heads, D]
        Or both float8_e4m3fn, with their scales. Any strides but that of the last dimension, pages
        a whole number of slots apart. Query head h reads KV head ``h // (H / KV heads)``. A view
        with heads before slots (HND) serves as well: ``cache.transpose(1, 2)``.
    page_table : int32 | int64 [T, num_pages]
        Pages in order of position, any row stride; position p lies in slot
        ``page_table[row, p // page_size] * page_size + p % page_size``.
    prefix_lens : int32 [B]
        Committed KV length; B <= 1024.
    page_size : int
        Slots of a page.
    qo_indptr : int32 [B + 1]
        Request b owns rows ``qo_indptr[b]`` up to ``qo_indptr[b + 1]``, at most 128.
    scale : float, optional
        Of the scores, above 0; absent: ``D ** -0.5``.
    key_scale, value_scale : float32 [1] | [KV heads], optional
        Of a cache in float8_e4m3fn, and needed for one: what its elements are multiplied by, one
        for all of the layer or one for each KV head.
    window_mask : int32 [B, N, ceil(N / 32)] | bool [B, N, N], optional
        The tree mask of ``tree_from_parents`` in its forms "bits" and "qlen", N <= 128; absent:
        chains.
    verify_lens : int32 [B], optional
        Rows of each request that count; those behind them neither see nor are seen, and are zeros.
    page_table_rows : int32 [B], optional
        Row of each request's pages; absent: b, and T is B.
    max_rows : int, optional
        No request has more rows; absent: N of ``window_mask``, or 128. Only the shape of the launch
        depends on it, as long as it is true; rows beyond it are zeros.
    sliding_window : int
        A row sees no key that lies so many positions before its own, or more; 0: no limit. So it
        sees as many keys, itself counted, as in transformers. A node of a tree has the position
        ``prefix_lens + depth``, and a row of a block sees all rows of the block behind it.
    block_bidirectional : bool
        Every row of a request sees all its rows: the blocks of drafters. Without ``window_mask``.
    out : like query [R, H, D], optional
        Written whole; needed if read after a graph's replay.
    workspace : int32 [W], optional
        Scratch of :func:`verify_attention_workspace`, of any size: without it, or with too small a
        one, the keys of a request are shared out among fewer CTAs. Results are the same bits.

    Returns
    -------
    [R, H, D]
        ``out``, or a new one. Rows that belong to no request, and rows that see no key, are zeros.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails. Entries of the page table that are no pages, and positions past it, are
    keys that do not exist. Lengths are clamped: ``prefix_lens`` into [0, num_pages * page_size],
    rows into what there is. Of requests whose rows overlap, only those rows are undefined. What
    lies in the cache at positions that no row of the request sees is not read, NaN or not; a NaN
    that some row of a request sees may reach others of that request, and no other request.
    Devices: CPU, CUDA. Scores and sums are float32; on CUDA 16-bit inputs go through tensor cores
    with weights rounded to the input's type, so that CPU and CUDA differ by rounding.
    Deterministic: keys are added up in chunks of absolute positions, whose order is fixed, so
    that the result of a row does not depend on batch, slot, padding, workspace or launch.
    Capturable with ``out``; one launch; lengths and pages may change between replays. A workspace
    serves any number of calls of one stream, not two at the same time. With one the launch is
    cooperative, as CTAs wait for each other: it begins when there is room for all of them.
    Tensor cores are used where D is 64, 128 or 256, rows of keys and values lie at multiples of 8
    elements and those of ``query`` and ``out`` at multiples of 2; a slow kernel serves the rest,
    and float32.
    Elements of float8_e4m3fn are exact numbers of the query's type, and scales are factors of
    scores and results. A scale that is not finite or not above 0 counts as NaN.
    Cost: reads keys and values of a request once per tile of 64 or 128 rows, a row counted for each
    head that shares a KV head, whatever the mask; of the prefix no mask is formed.
    Source: FlashAttention (arXiv:2205.14135), its split form, and tree attention of SpecInfer
    (arXiv:2305.09781).

    Examples
    --------
    Two rows of one request over a prefix of one key; equal keys are averaged:

    >>> import torch, specfast
    >>> keys, values = torch.zeros(4, 1, 8), torch.arange(4.0).repeat_interleave(8).view(4, 1, 8)
    >>> out = specfast.ops.verify_attention(
    ...     torch.zeros(2, 1, 8), keys, values, torch.tensor([[0, 1]]),
    ...     torch.tensor([1], dtype=torch.int32), page_size=2,
    ...     qo_indptr=torch.tensor([0, 2], dtype=torch.int32))
    >>> out[:, 0, 0].tolist()
    [0.5, 1.0]
    """
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if scale is None:
        scale = max(1, query.shape[-1:].numel()) ** -0.5
    torch.ops.specfast.verify_attention(
        query,
        key_cache,
        value_cache,
        page_table,
        prefix_lens,
        qo_indptr,
        page_table_rows,
        verify_lens,
        window_mask,
        key_scale,
        value_scale,
        page_size,
        max_rows,
        scale,
        sliding_window,
        block_bidirectional,
        out,
        workspace,
    )
    return out


def verify_attention_workspace(
    batch_size: int,
    max_rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    context_len: int,
    device: torch.device | str | None = None,
    *,
    max_bytes: int = 1 << 28,
) -> Tensor | None:
    """The ``workspace`` of :func:`verify_attention` for batches up to a size.

    Parameters
    ----------
    batch_size, max_rows : int
        Requests, and rows of each.
    num_heads, num_kv_heads, head_dim : int
        Of the attention.
    context_len : int
        Mean length of a request's keys in the largest batch. Where it is exceeded, the op shares
        out the work more coarsely.
    device : torch.device, optional
        Of ``query``.
    max_bytes : int
        It gets no larger than that.

    Returns
    -------
    int32 [W] | None
        Zeros; the op leaves behind what it needs to find. None on a CPU.
    """
    place = torch.device(device) if device is not None else torch.get_default_device()
    if place.type != "cuda":
        return None
    rows = min(max_rows, MAX_ATTENTION_ROWS) * num_heads // num_kv_heads
    tile = 64 if rows <= 64 or head_dim == 256 else 128
    units = batch_size * num_kv_heads * -(-rows // tile)
    chunks = -(-min(context_len, _FINE_KEYS) // _CHUNK_KEYS)
    chunks += -(-max(0, context_len - _FINE_KEYS) // _COARSE_CHUNK_KEYS)
    places = min(units * (chunks + 3), _MOST_CHUNKS)  # runs of four may be incomplete
    kept_rows = 16 * -(-min(rows, tile) // 16)
    words = _COUNTERS + places * kept_rows * (head_dim + 2)
    return torch.zeros(min(words, max_bytes // 4), dtype=torch.int32, device=place)


register_in_place("verify_attention")
