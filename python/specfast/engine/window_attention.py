"""Attention of verify rounds by ``ops.verify_attention``: lengths and pages stay on the device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from specfast import ops
from specfast.engine.pool import KvShape, PagedKvPool
from specfast.engine.target import Target
from specfast.engine.verify_tiers import VerifyTiers
from specfast.ops.attention import MAX_ATTENTION_REQUESTS, MAX_ATTENTION_ROWS
from specfast.records import VerifyWindow


class WindowAttention:
    """Attention of the rows of a ``VerifyWindow`` over a ``PagedKvPool``.

    A row sees the committed prefix of its request and, of the window, the nodes that
    ``window_mask`` allows ("bits" of a ``TreeRecord``); without one the window is a chain. Nothing
    here waits for the device or depends on a length, so one capture serves every round.

    pages : int32 [P, num_pages]      of the page table
    page_table_rows : int32 [B]       its rows
    prefix_lens : int32 [B]
    max_rows : int                    of a request
    workspace : of ``ops.verify_attention_workspace``
    """

    def __init__(
        self,
        pool: PagedKvPool,
        window: VerifyWindow,
        pages: Tensor,
        page_table_rows: Tensor,
        prefix_lens: Tensor,
        max_rows: int,
        workspace: Tensor | None,
        window_mask: Tensor | None = None,
    ) -> None:
        self._pool = pool
        self._attention = partial(
            ops.verify_attention,
            page_table=pages,
            page_table_rows=page_table_rows,
            prefix_lens=prefix_lens,
            page_size=pool.page_size,
            qo_indptr=window.qo_indptr,
            window_mask=window_mask,
            max_rows=max_rows,
            workspace=workspace,
        )
        self._write_slots = window.out_cache_loc.long()

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        layer = self._pool.of_layer(cast(int, module.layer_idx))
        layer.write(self._write_slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        out = self._attention(
            query[0].transpose(0, 1),
            layer.keys,
            layer.values,
            scale=scale,
            key_scale=layer.key_scale,
            value_scale=layer.value_scale,
        )
        return out[None]


def why_not_padded(shapes: Iterable[KvShape], num_requests: int, width: int) -> str | None:
    """Why rounds of so many requests of ``width`` rows cannot be padded; None if they can.

    ``ops.verify_attention`` has to know them, and the ``shapes`` of the target's layers.
    """
    for shape in shapes:
        if shape.key_dim != shape.value_dim:
            return f"keys of width {shape.key_dim} and values of width {shape.value_dim}"
    if width > MAX_ATTENTION_ROWS:
        return f"{width} rows per request; at most {MAX_ATTENTION_ROWS} are known"
    if num_requests > MAX_ATTENTION_REQUESTS:
        return f"{num_requests} requests at once; at most {MAX_ATTENTION_REQUESTS} are known"
    return None


def attention_workspace(
    target: Target, tiers: VerifyTiers, context_len: int, pool_tokens: int
) -> Tensor | None:
    """One for the layers of all tiers: they run one after the other."""
    batch_size = max(tier.num_requests for tier in tiers.tiers)
    shape = next(iter(target.kv_shapes.values()), None)
    if shape is None:
        return None
    return ops.verify_attention_workspace(
        batch_size,
        tiers.width,
        target.num_query_heads,
        shape.num_heads,
        shape.key_dim,
        min(context_len, -(-pool_tokens // batch_size)),
        target.device,
    )
