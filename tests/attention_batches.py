"""Random calls of verify_attention over memory that is poisoned wherever no row may look."""

from __future__ import annotations

from typing import Any

import torch
from accept_batches import to_device
from specfast import ops, reference
from torch import Tensor

Call = dict[str, Any]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

# Pages of the pool beyond those that requests own.
SPARE_PAGES = 3


def random_attention(
    seed: int,
    *,
    prefix_lens: list[int],
    rows: list[int],
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
    window: str = "chain",
    padding: int = 0,
    first_row: int = 0,
    sliding_window: int = 0,
    paged: bool = False,
    scales: int = 0,
) -> Call:
    """A sound call: ``rows[b]`` rows behind ``prefix_lens[b]`` keys, pages in random order.

    ``window``: "chain", "block", or "bits" and "qlen" with a random tree. Slots that no position of
    a request has, and pages of nobody, hold NaN. With ``scales``, 1 or as many as KV heads, keys
    and values are float8_e4m3fn.
    """
    rng = torch.Generator().manual_seed(seed)
    batch = len(rows)
    lens = [p + r for p, r in zip(prefix_lens, rows, strict=True)]
    owned = [-(-length // page_size) for length in lens]
    num_pages = sum(owned) + SPARE_PAGES
    order = torch.randperm(num_pages, generator=rng).int()
    # Entries behind a request's own are nobody's, or no pages at all.
    table = torch.randint(-(2**31), 2**31 - 1, (batch, max(owned, default=0) + 1), generator=rng)
    table = table.int()
    slots_used = torch.zeros(num_pages * page_size, dtype=torch.bool)
    given = 0
    for b, count in enumerate(owned):
        pages = order[given : given + count]
        given += count
        table[b, :count] = pages
        slots = (pages.long()[:, None] * page_size + torch.arange(page_size)).flatten()
        slots_used[slots[: lens[b]]] = True

    def cache() -> Tensor:
        values = torch.randn(num_pages * page_size, heads[1], head_dim, generator=rng)
        # A NaN of float8 is one of two bytes, and both occur.
        values[~slots_used] = values[~slots_used].sign() * float("nan")
        values = values.to(torch.float8_e4m3fn if scales else dtype)
        return values.view(num_pages, page_size, *values.shape[1:]) if paged else values

    total = first_row + sum(rows) + padding
    call: Call = {
        "query": (2 * torch.randn(total, heads[0], head_dim, generator=rng)).to(dtype),
        "key_cache": cache(),
        "value_cache": cache(),
        "page_table": table,
        "prefix_lens": torch.tensor(prefix_lens, dtype=torch.int32),
        "page_size": page_size,
        "qo_indptr": torch.tensor([0, *rows]).cumsum(0).int() + first_row,
        "sliding_window": sliding_window,
        "block_bidirectional": window == "block",
    }
    if scales:
        for name in ("key_scale", "value_scale"):
            call[name] = torch.rand(scales, generator=rng) + 0.5
    if window in ("bits", "qlen"):
        call["window_mask"] = random_trees(rng, batch, max([*rows, 1]), window)
    return call


def random_trees(rng: torch.Generator, batch: int, nodes: int, mode: str) -> Tensor:
    """The mask of trees in which every node hangs under one of the four before it."""
    back = torch.randint(1, 5, (batch, nodes), generator=rng)
    parents = (torch.arange(nodes) - back).clamp(min=0).int()
    parents[:, 0] = -1
    tree = reference.tree_from_parents(
        torch.zeros(batch, nodes, dtype=torch.int64),
        parents,
        torch.zeros(batch, dtype=torch.int32),
        mask_mode=mode,
    )
    assert tree.mask is not None
    return tree.mask


def assert_close(got: Tensor, call: Call) -> None:
    """Within what the arithmetic of the type allows, element by element; zeros are zeros.

    Out is rounded once, and 16-bit weights once before they are multiplied: each by 2^-8 (bfloat16)
    or 2^-11 (float16) of the weighted sum of |v|. float32 scores are exact to about 2^-21 of the
    largest product of norms; that error, times the same sum, is what weights may be off by.
    """
    expected = reference.verify_attention(**{**call, "query": call["query"].double()})
    spread = {
        "query": call["query"].double(),
        "value_cache": call["value_cache"].double().abs(),
    }
    magnitude = reference.verify_attention(**{**call, **spread})
    finite = call["query"].double().nan_to_num().norm(dim=-1).max() if got.numel() else 0
    longest = call["key_cache"].double().nan_to_num().norm(dim=-1).max() if got.numel() else 0
    longest = longest * call.get("key_scale", torch.ones(1)).max()
    scale = call.get("scale") or call["query"].shape[-1] ** -0.5
    rounding = {torch.float32: 2**-20, torch.bfloat16: 2**-8, torch.float16: 2**-11}[got.dtype]
    bound = magnitude * (2.1 * rounding + 2**-20 * scale * finite * longest) + 1e-7
    wrong = ~((got.cpu().double() - expected).abs() <= bound)
    assert not bool(wrong.any()), (
        f"{int(wrong.sum())} of {wrong.numel()} elements, first at {wrong.nonzero()[0].tolist()}: "
        f"got {got.cpu()[wrong][0]}, expected {expected[wrong][0]} +- {bound[wrong][0]}"
    )
    assert torch.equal(got.cpu()[magnitude == 0], torch.zeros_like(got.cpu()[magnitude == 0]))


def run(call: Call, device: str, **more: Any) -> Tensor:
    return ops.verify_attention(**{k: to_device(v, device) for k, v in (call | more).items()})


def workspace(call: Call, device: str, words: int | None = None) -> Tensor | None:
    heads, kv_heads = call["query"].shape[1], call["key_cache"].shape[-2]
    space = ops.verify_attention_workspace(
        len(call["prefix_lens"]), 128, heads, kv_heads, call["query"].shape[2], 8192, device
    )
    return space if space is None or words is None else space[:words].clone()
