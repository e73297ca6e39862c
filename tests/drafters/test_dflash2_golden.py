"""DFlash-2 beyond its formulas: the walk, the convolutions, DFlash as a special case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafters.block_comparison import (
    CASES,
    compare,
    draft,
    load,
    only,
    random_taps,
)
from drafters.block_files import (
    NUM_LAYERS,
    BlockCase,
    both_ways_within,
)
from specfast import ops
from specfast.drafters import dflash2
from specfast.drafters.block_context import BlockContext
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.dflash2 import DFlash2Model
from torch import Tensor


class TestDFlash2:
    def test_the_walk_is_not_the_best_path(self, tmp_path: Path) -> None:
        """Of the same scores, the path with the largest sum is another."""
        case = CASES["dflash2-three-taps"]
        model, _ = load(case, tmp_path)
        assert isinstance(model, DFlash2Model)
        differs = 0
        for seed in range(20):
            context = model.new_context()
            generator = torch.Generator().manual_seed(seed)
            model.extend(only(context), torch.randn(1, 5, 36, generator=generator))
            differs += best_path(model, context, 26) != draft(model, context, 26).tokens.tolist()
        assert differs > 0

    def test_coefficients_from_the_convolved_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sublayer = DFlash2Model._sublayer

        def late(self: DFlash2Model, name: str, normed: Tensor, inner: Any) -> Tensor:
            outputs: list[Tensor] = []

            def keep(rows: Tensor) -> Tensor:
                outputs.append(rows)
                return inner(rows)

            sublayer(self, name, normed, keep)
            return sublayer(self, name, outputs[0], lambda rows: inner(outputs[0]))

        monkeypatch.setattr(DFlash2Model, "_sublayer", late)
        with pytest.raises(AssertionError):
            compare(CASES["dflash2"], tmp_path)

    def test_convolution_within_the_block(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before row 0 there are zeros, not the end of the block."""

        convolve = ops.grouped_dynamic_conv

        def around(x: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
            count = x.shape[1]
            rows = (tensor.repeat(1, 2, *[1] * (tensor.dim() - 2)) for tensor in (x, dynamic))
            x, dynamic = rows
            return convolve(x, base, dynamic)[:, count:]

        monkeypatch.setattr(ops, "grouped_dynamic_conv", around)
        with pytest.raises(AssertionError):
            compare(CASES["dflash2"], tmp_path)

    def test_identity_is_dflash(self, tmp_path: Path) -> None:
        """Convolutions that keep their rows and empty codebooks: nothing of DFlash-2 is left."""
        case = CASES["dflash2-three-taps"]
        changed = dict(case.tensors)
        for name in changed:
            if "kernel_projection" in name or "codebook" in name:
                changed[name] = np.zeros_like(changed[name])
            if "base_kernel" in name:
                changed[name] = np.zeros_like(changed[name])
                changed[name][:, 0] = 1
        two, _ = load(replace(case, tensors=changed), tmp_path / "two")
        plain = {n: v for n, v in changed.items() if "conv" not in n and "selector" not in n}
        config = {**case.config, "architectures": ["DFlashDraftModel"]}
        one, _ = load(
            BlockCase(
                "plain",
                "dflash",
                "z-lab",
                config,
                plain,
                case.taps,
                case.num_rows,
                sees=(both_ways_within(4),) * NUM_LAYERS,
            ),
            tmp_path / "one",
        )
        assert type(one) is DFlashModel
        taps = torch.tensor(random_taps(case, 9), dtype=torch.float32)
        contexts = (one.new_context(), two.new_context())
        anchors, blocks = torch.tensor([7]), []
        for model, context in zip((one, two), contexts, strict=True):
            model.extend(only(context), taps[None])
            blocks.append(model.block(only(context), anchors))
        assert torch.equal(*blocks)
        assert torch.equal(draft(one, contexts[0], 7).tokens, draft(two, contexts[1], 7).tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_candidates_in_order(dtype: torch.dtype) -> None:
    """By value, equal ones by id; a row that cannot be drafted from has none that count."""
    generator = torch.Generator().manual_seed(1)
    logits = (20 * torch.randn(2, 5, 300, generator=generator)).round().to(dtype)
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    assert (values[..., :16].diff() == 0).any()
    logits[0, 1, 7], logits[1, 2] = torch.nan, -torch.inf
    ours, candidates = dflash2._top_k(logits, 16)
    unusable = torch.zeros(2, 5, dtype=torch.bool)
    unusable[0, 1] = unusable[1, 2] = True
    assert torch.equal(candidates[~unusable], ids[..., :16][~unusable])
    assert torch.equal(ours[~unusable], values[..., :16][~unusable])
    assert ours[unusable].isnan().all()


def test_candidates_of_a_vocabulary_that_has_no_more() -> None:
    values, ids = dflash2._top_k(torch.tensor([[[0.5, 2.0, 2.0]]]), 4)
    assert (values.tolist(), ids.tolist()) == ([[[2.0, 2.0, 0.5]]], [[[1, 2, 0]]])


def best_path(model: DFlash2Model, context: BlockContext, anchor: int) -> list[int]:
    """What dynamic programming over all candidates would draft."""
    hidden = model.proposal_rows(model.block(only(context), torch.tensor([anchor])))[0]
    values, ids = dflash2._top_k(model.logits(hidden), model.selector.top_k)
    w = model.weights.linear("candidate_selector.hidden_projection", hidden)
    before = model.weights["candidate_selector.predecessor_codebook"]
    after = model.weights["candidate_selector.successor_codebook"]
    paths = {anchor: (0.0, [])}
    for slot in range(len(ids)):
        longer = {}
        for b, unary in zip(ids[slot].tolist(), values[slot].tolist(), strict=True):
            longer[b] = max(
                (score + unary + float((before[a] * w[slot]) @ after[b]), [*path, b])
                for a, (score, path) in paths.items()
            )
        paths = longer
    return max(paths.values())[1]
