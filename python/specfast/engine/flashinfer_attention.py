"""Attention of eager rounds by FlashInfer, where somebody has it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn

from specfast.engine.pool import KvShape, PagedKvPool
from specfast.engine.requests import Request
from specfast.engine.rows import RowBatch
from specfast.engine.target import Target

_DEVICES = ("cuda",)
_DTYPES = (torch.float16, torch.bfloat16)
_WORKSPACE_BYTES = 128 << 20  # what its documentation recommends


def why_not_flashinfer(
    shapes: Iterable[KvShape],
    dtype: torch.dtype,
    device: torch.device,
    *,
    pool_dtype: torch.dtype | None = None,
) -> str | None:
    """Why it cannot attend for layers of these shapes; None if it can."""
    if find_spec("flashinfer") is None:
        return "the package flashinfer-python is not installed"
    if device.type not in _DEVICES:
        return f"it needs a GPU, and the target is on {device.type}"
    if dtype not in _DTYPES:
        return f"it computes in float16 and bfloat16, and the target in {str(dtype)[6:]}"
    if pool_dtype not in (None, dtype):
        return f"keys and values in {str(pool_dtype)[6:]}, whose scales it is not given here"
    for shape in shapes:
        if shape.key_dim != shape.value_dim:
            return f"keys of width {shape.key_dim} and values of width {shape.value_dim}"
    return None


class FlashInfer:
    """Its paged prefill over a ``PagedKvPool``; one plan on the host per forward and kind of layer.

    Raises ValueError where :func:`why_not_flashinfer` has a reason.
    """

    def __init__(self, pool: PagedKvPool, target: Target) -> None:
        shapes = target.kv_shapes.values()
        why_not = why_not_flashinfer(shapes, target.kv_dtype, target.device, pool_dtype=pool.dtype)
        if why_not is not None:
            raise ValueError(f'attention_backend "flashinfer" cannot be used: {why_not}')
        self.pool = pool
        library = importlib.import_module("flashinfer")
        self._wrapper: Any = library.BatchPrefillWithPagedKVCacheWrapper
        # Layers run one after the other.
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=target.device)
        self._wrappers: dict[tuple[Any, ...], Any] = {}

    def wrapper_for(self, kind: tuple[Any, ...]) -> Any:
        """Kept: each has memory of its own for its plans."""
        if kind not in self._wrappers:
            self._wrappers[kind] = self._wrapper(self._workspace, "NHD")
        return self._wrappers[kind]


class FlashInferAttention:
    """What ``PagedAttention`` computes; a row sees the prefix and what ``window_mask`` allows.

    Without a mask the window is a chain: FlashInfer's causal rows end where the keys end. With one
    it takes a dense mask of all rows and keys, made here.
    """

    def __init__(
        self,
        backend: FlashInfer,
        requests: Sequence[Request],
        verify_lens: Sequence[int],
        rows: RowBatch,
        window_mask: Tensor | None = None,
    ) -> None:
        self._backend = backend
        self._write_slots = rows.out_cache_loc.long()
        page_size, device = backend.pool.page_size, self._write_slots.device
        kv_lens = [r.committed_len + n for r, n in zip(requests, verify_lens, strict=True)]
        counts = [-(-length // page_size) for length in kv_lens]
        pages = [p for r, n in zip(requests, counts, strict=True) for p in r.pages[:n]]

        def int32(values: Iterable[int]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.int32, device=device)

        self._places = (
            int32(accumulate(verify_lens, initial=0)),
            int32(accumulate(counts, initial=0)),
            int32(pages),
            int32((length - 1) % page_size + 1 for length in kv_lens),
        )
        self._mask = None
        if window_mask is not None:
            seen = [
                torch.cat([window_mask.new_ones(n, length - n), mask[:n, :n]], dim=1).flatten()
                for mask, n, length in zip(window_mask, verify_lens, kv_lens, strict=True)
            ]
            self._mask = torch.cat(seen)
        self._planned: set[tuple[Any, ...]] = set()

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        pool = self._backend.pool
        layer = pool.of_layer(cast(int, module.layer_idx))
        layer.write(self._write_slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        kind = (query.shape[1], key.shape[1], query.shape[3], scale)
        wrapper = self._backend.wrapper_for(kind)
        if kind not in self._planned:
            self._planned.add(kind)
            wrapper.plan(
                *self._places,
                *kind[:3],
                pool.page_size,
                custom_mask=self._mask,
                causal=self._mask is None,
                sm_scale=scale,
                q_data_type=query.dtype,
                kv_data_type=layer.keys.dtype,
            )
        storages = layer.keys, layer.values
        paged = tuple(x.view(-1, pool.page_size, *x.shape[1:]) for x in storages)
        out: Tensor = wrapper.run(query[0].transpose(0, 1).contiguous(), paged)
        return out[None]
