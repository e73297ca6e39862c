"""Quick tests of the ops within a drafter's layers; see self_tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specfast.cli.self_test_inputs import BATCH, NODES, prefix_lens, rng

Outputs = dict[str, Tensor | None]


def fused_add_rms_norm(impl: Any, device: str) -> Outputs:
    numbers = rng()
    x, residual = (torch.randn(5, 1032, generator=numbers).bfloat16() for _ in range(2))
    weight = torch.randn(1032, generator=numbers).bfloat16()
    normed, total = impl.fused_add_rms_norm(x.to(device), residual.to(device), weight.to(device))
    return {"normed": normed, "total": total}


def silu_and_mul(impl: Any, device: str) -> Outputs:
    x = 4 * torch.randn(5, 2 * 1003, generator=rng())
    return {"rows": impl.silu_and_mul(x.bfloat16().to(device))}


def gather_eagle_inputs(impl: Any, device: str) -> Outputs:
    numbers = rng()
    embedding, features, weight = (
        torch.randn(shape, generator=numbers).bfloat16().to(device)
        for shape in ((50, 264), (BATCH, 3, 264), (264,))
    )
    rows = impl.gather_eagle_inputs(
        torch.randint(-1, 51, (BATCH, NODES), generator=numbers).to(device),
        embedding,
        features,
        parents=torch.randint(0, 4, (BATCH, NODES), generator=numbers).to(device),
        embedding_norm_weight=weight,
        features_norm_weight=weight,
    )
    return {"rows": rows}


def grouped_dynamic_conv(impl: Any, device: str) -> Outputs:
    numbers = rng()
    x, base, dynamic = (
        torch.randn(shape, generator=numbers).bfloat16().to(device)
        for shape in ((BATCH, NODES, 272), (3, 272), (BATCH, NODES, 3, 17))
    )
    return {"rows": impl.grouped_dynamic_conv(x, base, dynamic)}


def rope_append_kv(impl: Any, device: str) -> Outputs:
    numbers = rng()
    heads, kv_heads, head_dim, num_rows = 6, 2, 24, BATCH * NODES
    caches = torch.zeros(2, 2 * num_rows, kv_heads, head_dim).to(device, torch.bfloat16)
    qkv = torch.randn(BATCH, NODES, (heads + 2 * kv_heads) * head_dim, generator=numbers)
    angles = torch.randn(40, head_dim // 3, generator=numbers)
    weight = torch.randn(head_dim, generator=numbers).to(device)
    queries = impl.rope_append_kv(
        qkv.bfloat16().to(device),
        *caches,
        torch.randint(0, 41, (BATCH, NODES), generator=numbers).to(device),
        torch.randperm(2 * num_rows, generator=numbers)[:num_rows].view(BATCH, NODES).to(device),
        cos=angles.cos().to(device),
        sin=angles.sin().to(device),
        q_norm_weight=weight,
        k_norm_weight=weight,
    )
    return {"queries": queries, "caches": caches}


def place_draft_rows(impl: Any, device: str) -> Outputs:
    numbers = rng()
    pages, size, scratch = 280, 16, 2
    places = impl.place_draft_rows(
        torch.randperm(pages, generator=numbers).view(BATCH, -1).to(device),
        torch.tensor([2, 0, 3, 1], dtype=torch.int32).to(device),
        prefix_lens().to(device),
        torch.tensor([NODES, 0, 3, NODES], dtype=torch.int32).to(device),
        num_rows=NODES,
        page_size=size,
        num_pages=pages + BATCH * scratch,
        first_scratch_page=pages,
        scratch_pages=scratch,
    )
    return {**vars(places)}
