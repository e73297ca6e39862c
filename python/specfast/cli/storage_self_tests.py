"""Quick tests of the ops that store in caches and pools; see self_tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import specfast
from specfast.cli.self_test_inputs import BATCH, NODES, prefix_lens, rng

Outputs = dict[str, Tensor | None]


def relocate_kv(impl: Any, device: str) -> Outputs:
    num_rows = BATCH * NODES
    keys = torch.randn(2 * num_rows, 2, 24, generator=rng()).to(device, torch.bfloat16)
    hidden = torch.randn(num_rows, 5, generator=rng()).to(device)
    layout = specfast.KvLayout([specfast.KvBuffer.nhd(keys), specfast.KvBuffer.rows(hidden)])
    first_rows = torch.arange(0, num_rows, NODES)[:, None]
    path = (first_rows + torch.tensor([0, 2, 3, 6])).int()
    status = impl.relocate_kv(
        layout,
        path.to(device),
        torch.tensor([4, 1, 3, 0], dtype=torch.int32).to(device),
        out_cache_loc=torch.randperm(2 * num_rows, generator=rng())[:num_rows].to(device),
        rows_per_request=NODES,
    )
    return {"keys": keys, "hidden": hidden, "status": status}


def commit_state(impl: Any, device: str) -> Outputs:
    numbers = rng()
    num_rows = BATCH * NODES
    states = [
        torch.randn(2, num_rows, 3, 8, generator=numbers),
        torch.randn(1, num_rows, 5, generator=numbers),
    ]
    pools = [torch.zeros(2, 6, 3, 8).to(device), torch.zeros(1, 6, 5).to(device)]
    path = (torch.arange(0, num_rows, NODES)[:, None] + torch.tensor([0, 2, 3, 6])).int()
    status = impl.commit_state(
        [tensor.to(device) for tensor in states],
        pools,
        path.to(device),
        torch.tensor([4, 1, 5, 0], dtype=torch.int32).to(device),
        torch.tensor([5, 0, 2, -1]).to(device),
    )
    return {"states": pools[0], "windows": pools[1], "status": status}


def inject_context_kv(impl: Any, device: str) -> Outputs:
    num_layers, heads, head_dim, page_size, num_pages = 3, 2, 24, 16, 70
    shape = (BATCH, NODES, num_layers, 2, heads, head_dim)
    keys_values = torch.randn(shape, generator=rng()).bfloat16()
    pools = torch.zeros(num_layers, 2, BATCH * num_pages * page_size, heads, head_dim)
    pools = pools.to(device, torch.bfloat16)
    layout = specfast.KvLayout([specfast.KvBuffer.nhd(cache) for cache in pools.flatten(0, 1)])
    angles = torch.randn(num_pages * page_size, head_dim // 3, generator=rng())
    status = impl.inject_context_kv(
        keys_values.to(device),
        layout,
        prefix_lens().to(device),
        torch.tensor([NODES, 1, 3, 0], dtype=torch.int32).to(device),
        torch.randperm(BATCH * num_pages, generator=rng()).view(BATCH, num_pages).to(device),
        page_size=page_size,
        cos=angles.cos().to(device),
        sin=angles.sin().to(device),
        k_norm_weight=torch.randn(num_layers, head_dim, generator=rng()).to(device),
    )
    return {"pools": pools, "status": status}
