"""DFlash, DSpark and DFlash-2 against their formulas: context, rows, logits, drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafters.block_files import (
    MASK,
    NUM_LAYERS,
    RANK,
    BlockCase,
    both_ways_within,
    dflash2_cases,
    dflash_cases,
    dspark_cases,
)
from drafters.block_formula import BlockFormula, markov_bias, selected
from drafters.by_formula import Array
from drafters.checkpoints import as_formula, make_target, vocabulary_map
from specfast.drafters import dflash2
from specfast.drafters.checkpoint.spec import SpanSpec
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.dflash import BlockContext, BlockDrafts, DFlashModel, block_visibility
from specfast.drafters.dflash2 import DFlash2Model
from specfast.drafters.dspark import DSparkModel, MarkovHead
from specfast.drafters.layers import LayerCache
from specfast.drafters.loader import load_drafter
from torch import Tensor

CASES = {case.name: case for case in [*dflash_cases(), *dspark_cases(), *dflash2_cases()]}
# Prompt and accepted drafts: more rows than any window holds.
NUM_PROMPT, NUM_COMMITTED = 7, 3
ANCHORS = (26, 5)


def load(case: BlockCase, path: Path) -> tuple[DFlashModel, BlockFormula]:
    target = make_target(case.sizes)
    model = load_drafter(case.write(path), target)
    assert isinstance(model, DFlashModel)
    return model, case.formula(as_formula(target))


def random_taps(case: BlockCase, num_rows: int) -> Array:
    width = case.sizes.hidden * len(case.taps)
    rows = np.random.default_rng(9).standard_normal((num_rows, width))
    return rows.astype(np.float32).astype(np.float64)


def compare(case: BlockCase, path: Path) -> None:
    """A prefill, a block, rows of it committed, another block."""
    model, formula = load(case, path)
    taps = random_taps(case, NUM_PROMPT + NUM_COMMITTED)
    context = model.new_context()
    for start, end, anchor in (
        (0, NUM_PROMPT, ANCHORS[0]),
        (NUM_PROMPT, NUM_PROMPT + NUM_COMMITTED, ANCHORS[1]),
    ):
        model.extend(context, torch.tensor(taps[start:end], dtype=torch.float32))
        rows = [formula.context(row) for row in taps[:end]]
        hidden = formula.block(rows, anchor, MASK, case.num_rows)
        close(model.block(context, anchor), hidden)
        drafts = model.draft(context, anchor)
        check_drafts(case, formula, hidden if case.from_anchor else hidden[1:], anchor, drafts)
        # Drafting leaves no rows behind.
        for layer in range(NUM_LAYERS):
            keys, values = context.layers[layer].rows()
            close(keys, formula.context_keys(layer, rows))
            close(values, formula.context_values(layer, rows))


def check_drafts(
    case: BlockCase, formula: BlockFormula, h: list[Array], anchor: int, drafts: BlockDrafts
) -> None:
    t = formula.tensors
    if case.selector is not None:
        tokens, tables = selected(t, h, anchor, *case.selector)
        assert drafts.tokens.tolist() == tokens
        for row, table in zip(drafts.logits, tables, strict=True):
            assert set(torch.isfinite(row).nonzero()[:, 0].tolist()) == set(table)
            close(row[list(table)], list(table.values()))
        return
    offsets = vocabulary_map(case.sizes)[0]
    tokens, logits, state = [anchor], [], np.zeros(RANK)
    for row in h:
        logits.append(t["lm_head.weight"] @ row)
        if case.markov is not None:
            bias, state = markov_bias(t, case.markov, tokens[-1], row, state)
            logits[-1] = logits[-1] + bias
        best = int(np.argmax(logits[-1]))
        tokens.append(best + offsets[best])
    close(drafts.logits, logits)
    assert drafts.tokens.tolist() == tokens[1:]
    if case.confidence is None:
        assert drafts.confidence is None
        return
    assert drafts.confidence is not None
    w1 = t.get("markov_head.markov_w1.weight")
    expected = []
    for row, previous in zip(h, tokens[:-1], strict=True):
        inputs = row if case.confidence == "alone" else np.concatenate([row, w1[previous]])
        expected.append(t["confidence_head.proj.weight"][0] @ inputs)
    close(drafts.confidence, np.array(expected) + t["confidence_head.proj.bias"])


def close(ours: Tensor, expected: Any) -> None:
    torch.testing.assert_close(
        ours, torch.tensor(np.array(expected), dtype=torch.float32), rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formulas(name: str, tmp_path: Path) -> None:
    compare(CASES[name], tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_what_was_understood(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    spec = load(case, tmp_path)[0].spec
    assert (spec.family, spec.dialect) == (case.family, case.dialect)
    assert spec.taps is not None
    assert spec.taps.layers == case.taps
    assert spec.block is not None
    assert spec.block.num_rows == case.num_rows
    # DFlash block 6: 5 proposals; DSpark block 4: 4.
    assert spec.block.num_proposals == case.num_rows - (not case.from_anchor)


Mutate = Callable[[pytest.MonkeyPatch], None]


def shifted_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    extend = DFlashModel.extend
    monkeypatch.setattr(
        DFlashModel, "extend", lambda self, context, taps: extend(self, context, taps.roll(1, 0))
    )


def shifted_context(monkeypatch: pytest.MonkeyPatch) -> None:
    length = BlockContext.length.fget
    assert length is not None
    monkeypatch.setattr(BlockContext, "length", property(lambda self: length(self) + 1))


def shifted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: DFlashModel, hidden: Tensor) -> Tensor:
        return hidden.roll(1, 0) if self.block_spec.sample_from_anchor else hidden[:-1]

    monkeypatch.setattr(DFlashModel, "proposal_rows", other)


def opposite_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specfast.drafters.dflash.block_visibility",
        lambda span, positions: block_visibility(SpanSpec(not span.causal, span.window), positions),
    )


def blocks_become_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerCache, "with_rows", _appending)


def _appending(self: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    old = self._rows
    rows = (
        (keys, values) if old is None else (torch.cat([old[0], keys]), torch.cat([old[1], values]))
    )
    self._rows = rows
    return rows


def normed_context(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = Weights.norm

    def twice(self: Weights, name: str, x: Tensor) -> Tensor:
        out = norm(self, name, x)
        return norm(self, "layers.0.input_layernorm", out) if name == "hidden_norm" else out

    monkeypatch.setattr(Weights, "norm", twice)


MUTANTS = [
    shifted_taps,
    shifted_context,
    shifted_rows,
    opposite_mask,
    blocks_become_context,
    normed_context,
]


@pytest.mark.parametrize("name", ["dflash", "dflash-sliding", "dspark", "dflash2"])
@pytest.mark.parametrize("mutate", MUTANTS)
def test_mutants_fail(
    mutate: Mutate, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    # Keys that come twice no longer fit the mask.
    with pytest.raises((AssertionError, RuntimeError)):
        compare(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["dspark", "dspark-nested", "dspark-rnn", "dspark-speculators"])
class TestMutantsOfTheHead:
    def fails(self, name: str, path: Path) -> None:
        with pytest.raises(AssertionError):
            compare(CASES[name], path)

    def test_logits_from_before_the_correction(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draft = DSparkModel.draft

        def uncorrected(self: DSparkModel, context: BlockContext, anchor: int) -> BlockDrafts:
            logits = self.logits(self.proposal_rows(self.block(context, anchor)))
            return replace(draft(self, context, anchor), logits=logits)

        monkeypatch.setattr(DSparkModel, "draft", uncorrected)
        self.fails(name, tmp_path)

    def test_the_token_before_is_late(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bias = MarkovHead.bias
        seen: list[Tensor] = []

        def late(self: MarkovHead, previous: Tensor, hidden: Tensor, state: Tensor) -> Any:
            seen.append(previous)
            return bias(self, seen[max(len(seen) - 2, 0)], hidden, state)

        monkeypatch.setattr(MarkovHead, "bias", late)
        self.fails(name, tmp_path)

    def test_state_is_lost(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if CASES[name].markov != "rnn":
            return
        bias = MarkovHead.bias
        monkeypatch.setattr(
            MarkovHead, "bias", lambda self, p, h, s: bias(self, p, h, torch.zeros_like(s))
        )
        self.fails(name, tmp_path)


def test_confidence_looks_at_the_token_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    confidence = DSparkModel._confidence
    monkeypatch.setattr(
        DSparkModel, "_confidence", lambda self, h, t, a: confidence(self, h, t.roll(-1), a)
    )
    with pytest.raises(AssertionError):
        compare(CASES["dspark"], tmp_path)


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
            model.extend(context, torch.randn(5, 36, generator=generator))
            differs += best_path(model, context, 26) != model.draft(context, 26).tokens.tolist()
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

        def around(kernel: Tensor, rows: Tensor) -> Tensor:
            return sum(kernel[:, s] * rows.roll(s, 0) for s in range(kernel.shape[1]))

        monkeypatch.setattr(dflash2, "_convolved", around)
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
        for model, context in zip((one, two), contexts, strict=True):
            model.extend(context, taps)
        assert torch.equal(one.block(contexts[0], 7), two.block(contexts[1], 7))
        assert torch.equal(one.draft(contexts[0], 7).tokens, two.draft(contexts[1], 7).tokens)


def best_path(model: DFlash2Model, context: BlockContext, anchor: int) -> list[int]:
    """What dynamic programming over all candidates would draft."""
    hidden = model.proposal_rows(model.block(context, anchor))
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


@pytest.mark.parametrize("name", ["dflash", "dspark", "dflash2"])
def test_context_does_not_know_what_comes_later(name: str, tmp_path: Path) -> None:
    """Rows committed later, and anchors, change no earlier key or value."""
    model, _ = load(CASES[name], tmp_path)
    taps = torch.tensor(random_taps(CASES[name], 6), dtype=torch.float32)
    short, long = model.new_context(), model.new_context()
    model.extend(short, taps[:4])
    model.extend(long, taps)
    for one, other in zip(short.layers, long.layers, strict=True):
        for rows, more in zip(one.rows(), other.rows(), strict=True):
            torch.testing.assert_close(rows, more[:4])
    before = model.draft(short, 3)
    model.draft(short, 9)
    assert torch.equal(model.draft(short, 3).logits, before.logits)
