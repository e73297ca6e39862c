"""DFlash, DSpark and DFlash-2 against their formulas: context, rows, logits, drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.block_comparison import (
    CASES,
    NUM_PROMPT,
    close,
    compare,
    draft,
    load,
    only,
    random_taps,
)
from drafters.block_files import (
    MASK,
)
from specfast import ops
from specfast.drafters.block_context import BlockContext, Contexts, block_visibility
from specfast.drafters.checkpoint.spec import SpanSpec
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.dspark import DSparkModel, MarkovHead
from specfast.drafters.layers import KeyRows, LayerCache
from specfast.sampling import DraftedBlock, RowRecord
from torch import Tensor


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
        DFlashModel, "extend", lambda self, contexts, taps: extend(self, contexts, taps.roll(1, 1))
    )


def shifted_context(monkeypatch: pytest.MonkeyPatch) -> None:
    length = BlockContext.length.fget
    assert length is not None
    monkeypatch.setattr(BlockContext, "length", property(lambda self: length(self) + 1))


def shifted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: DFlashModel, hidden: Tensor) -> Tensor:
        return hidden.roll(1, 1) if self.block_spec.sample_from_anchor else hidden[:, :-1]

    monkeypatch.setattr(DFlashModel, "proposal_rows", other)


def opposite_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specfast.drafters.block_context.block_visibility",
        lambda span, *positions: block_visibility(
            SpanSpec(not span.causal, span.window), *positions
        ),
    )


def blocks_become_context(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = KeyRows.behind

    def appending(
        caches: Sequence[LayerCache], keys: Tensor, values: Tensor, positions: Tensor
    ) -> KeyRows:
        rows = behind(caches, keys, values, positions)
        for cache, one, other in zip(caches, keys, values, strict=True):
            cache.append(one, other)
        return rows

    monkeypatch.setattr(KeyRows, "behind", appending)


def kept_rows_change(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    init = LayerCache.__init__

    def other(self: LayerCache, window: int | None = None) -> None:
        init(self, None if window is None else window + by)

    monkeypatch.setattr(LayerCache, "__init__", other)


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
    with pytest.raises(AssertionError):
        compare(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["dflash-sliding", "dflash-speculators", "dflash2"])
def test_a_cache_that_is_cut_too_short_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    model, formula = load(case, tmp_path)
    taps = random_taps(case, NUM_PROMPT)
    rows = [formula.context(row) for row in taps]
    expected = formula.block(rows, 26, MASK, case.num_rows)

    def block() -> Tensor:
        context = model.new_context()
        model.extend(only(context), torch.tensor(taps[None], dtype=torch.float32))
        return model.block(only(context), torch.tensor([26]))[0]

    close(block(), expected)
    kept_rows_change(monkeypatch, -1)
    with pytest.raises(AssertionError):
        close(block(), expected)


def step_by_step(
    monkeypatch: pytest.MonkeyPatch, previous: Callable[[list[Tensor]], Tensor]
) -> None:
    """Blocks of one step each, so that no state goes on, after a token of those ``seen``."""
    whole = ops.sample_markov_block

    def mutant(
        logits: Tensor,
        w1: Tensor,
        w2: Tensor,
        anchors: Tensor,
        *sampling: Any,
        hidden_rows: Tensor | None,
        **head: Any,
    ) -> DraftedBlock:
        seen, records = [anchors], []
        for step in range(logits.shape[1]):
            at = slice(step, step + 1)
            rows = None if hidden_rows is None else hidden_rows[:, at].contiguous()
            token = previous(seen)
            block = whole(logits[:, at], w1, w2, token, *sampling, hidden_rows=rows, **head)
            seen.append(block.tokens[:, 0])
            records.append(block.records)
        return DraftedBlock(torch.stack(seen[1:], 1), RowRecord.of_levels(records), block.status)

    monkeypatch.setattr(ops, "sample_markov_block", mutant)


@pytest.mark.parametrize("name", ["dspark", "dspark-nested"])
def test_a_block_without_a_state_may_go_step_by_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two mutants of the head are made of is no mutant itself."""
    step_by_step(monkeypatch, lambda seen: seen[-1])
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

        def uncorrected(
            self: DSparkModel,
            contexts: Contexts,
            anchors: Tensor,
            num_drafts: int,
            sampler: DraftSampler,
        ) -> ChainDrafts:
            logits = self.logits(self.draft_rows(contexts, anchors, num_drafts))
            return replace(draft(self, contexts, anchors, num_drafts, sampler), logits=logits)

        monkeypatch.setattr(DSparkModel, "draft", uncorrected)
        self.fails(name, tmp_path)

    def test_the_token_before_is_late(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step_by_step(monkeypatch, lambda seen: seen[max(len(seen) - 2, 0)])
        self.fails(name, tmp_path)

    def test_state_is_lost(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if CASES[name].markov != "rnn":
            return
        step_by_step(monkeypatch, lambda seen: seen[-1])
        self.fails(name, tmp_path)

    def test_hidden_state_of_another_row(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if CASES[name].markov == "vanilla":
            return
        split = MarkovHead._split

        def shifted(self: MarkovHead, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
            return split(self, hidden.roll(1, 1))

        monkeypatch.setattr(MarkovHead, "_split", shifted)
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


@pytest.mark.parametrize("name", ["dflash", "dspark", "dflash2"])
def test_context_does_not_know_what_comes_later(name: str, tmp_path: Path) -> None:
    """Rows committed later, and anchors, change no earlier key or value."""
    model, _ = load(CASES[name], tmp_path)
    taps = torch.tensor(random_taps(CASES[name], 6), dtype=torch.float32)
    short, long = model.new_context(), model.new_context()
    model.extend(only(short), taps[None, :4])
    model.extend(only(long), taps[None])
    for one, other in zip(short.layers, long.layers, strict=True):
        # Of a layer with a window the positions that both still have.
        first = other.length - other.num_rows
        for rows, more in zip(one.rows(), other.rows(), strict=True):
            own = rows[max(first - (one.length - one.num_rows), 0) :]
            assert len(own) > 0
            torch.testing.assert_close(own, more[: len(own)])
    anchors = torch.tensor([3])
    before = model.block(only(short), anchors)
    draft(model, short, 9)
    assert torch.equal(model.block(only(short), anchors), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["dspark", "dspark-nested", "dspark-rnn", "dflash2"])
def test_heads_in_16_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """They draft, the first draft from nearly what it is drawn from in float32."""
    case = CASES[name]
    taps = torch.tensor(random_taps(case, NUM_PROMPT))[None]
    drafts = []
    for precision in (torch.float32, dtype):
        model, _ = load(case, tmp_path, precision)
        context = model.new_context()
        model.extend(only(context), taps.to(precision))
        drafts.append(draft(model, context, 26, temperature=4.0))
    exact, rounded = drafts
    assert rounded.tokens.shape == exact.tokens.shape
    assert bool((rounded.tokens >= 0).all() & (rounded.tokens < case.sizes.vocab).all())
    if exact.logits is not None:
        assert rounded.logits is not None
        torch.testing.assert_close(rounded.logits[0].float(), exact.logits[0], rtol=0.05, atol=0.1)
    else:
        laws = []
        for one in drafts:
            assert one.candidates is not None
            assert one.q is not None
            laws.append(torch.zeros(case.sizes.vocab).scatter(0, one.candidates[0], one.q[0]))
        torch.testing.assert_close(laws[1], laws[0], rtol=0, atol=0.1)
