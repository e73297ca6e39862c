"""The context that inject_context_kv makes on pages is the one that block drafters keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drafters.block_comparison import CASES, load, only
from specfast import KvBuffer, KvLayout, ops
from specfast.drafters.layers import Rotary
from specfast.drafters.paged_blocks import ContextProjection

PAGE_SIZE, NUM_PAGES = 4, 10
# Two requests, three rounds of windows of five rows.
WINDOW = 5
COMMITS = ((5, 3), (2, 5), (1, 4))


@pytest.mark.parametrize("name", CASES)
def test_pages_hold_what_the_drafter_keeps(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, _ = load(case, tmp_path)
    backbone = model.spec.backbone
    heads, head_dim = backbone.num_kv_heads, backbone.head_dim
    layout = KvLayout(
        [
            KvBuffer.nhd(torch.full((NUM_PAGES, PAGE_SIZE, heads, head_dim), torch.nan))
            for _ in range(2 * backbone.num_layers)
        ]
    )
    cos, sin = Rotary(backbone.rope, torch.device("cpu")).tables(32)
    project = ContextProjection(model)
    generator = torch.Generator().manual_seed(4)
    page_table = torch.randperm(NUM_PAGES, generator=generator).view(2, 5).int()
    contexts = [model.new_context() for _ in range(2)]
    prefix_lens = torch.zeros(2, dtype=torch.int32)
    for commits in COMMITS:
        # Rows behind the committed ones are those of rejected drafts.
        taps = torch.randn(2, WINDOW, case.sizes.hidden * len(case.taps), generator=generator)
        status = ops.inject_context_kv(
            project(taps),
            layout,
            prefix_lens,
            torch.tensor(commits).int(),
            page_table,
            page_size=PAGE_SIZE,
            cos=cos,
            sin=sin,
            k_norm_weight=project.norms,
            eps=backbone.norm_eps,
        )
        assert status.tolist() == [0, 0]
        for b, count in enumerate(commits):
            model.extend(only(contexts[b]), taps[b : b + 1, :count])
        prefix_lens += torch.tensor(commits).int()
    for b, context in enumerate(contexts):
        length = int(prefix_lens[b])
        assert length == context.length
        for layer, cache in enumerate(context.layers):
            for buffer, kept in zip(layout.buffers[2 * layer :], cache.rows(), strict=False):
                rows = buffer.tensor[page_table[b].long()].flatten(0, 1)
                torch.testing.assert_close(
                    rows[length - len(kept) : length], kept, rtol=1e-6, atol=1e-6
                )
                assert rows[length:].isnan().all()
