"""Loaded block drafters beside their formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from drafters.block_files import (
    MASK,
    NUM_LAYERS,
    RANK,
    BlockCase,
    dflash2_cases,
    dflash_cases,
    dspark_cases,
)
from drafters.block_formula import BlockFormula, markov_bias, selected
from drafters.by_formula import Array
from drafters.checkpoints import as_formula, make_target, vocabulary_map
from specfast.drafters.block_context import BlockContext, CachedContexts
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.loader import load_drafter
from specfast.sampling import SamplingRules
from torch import Tensor

CASES = {case.name: case for case in [*dflash_cases(), *dspark_cases(), *dflash2_cases()]}
# Prompt and accepted drafts: more rows than any window holds.
NUM_PROMPT, NUM_COMMITTED = 7, 3
ANCHORS = (26, 5)


def load(
    case: BlockCase, path: Path, dtype: torch.dtype = torch.float32
) -> tuple[DFlashModel, BlockFormula]:
    target = make_target(case.sizes)
    model = load_drafter(case.write(path), target, dtype)
    assert isinstance(model, DFlashModel)
    return model, case.formula(as_formula(target))


def draft(
    model: DFlashModel, context: BlockContext, anchor: int, temperature: float = 0.0
) -> ChainDrafts:
    """Drafts of one request."""
    rules = SamplingRules(torch.tensor([temperature]), torch.tensor([5]))
    sampler = DraftSampler(rules, torch.zeros(1, dtype=torch.int32))
    num_drafts = model.block_spec.num_proposals
    drafts = model.draft(only(context), torch.tensor([anchor]), num_drafts, sampler)
    return drafts.of_request(0)


def only(context: BlockContext) -> CachedContexts:
    return CachedContexts([context], torch.device("cpu"))


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
        model.extend(only(context), torch.tensor(taps[None, start:end], dtype=torch.float32))
        context_rows = [formula.context(row) for row in taps[:end]]
        hidden = formula.block(context_rows, anchor, MASK, case.num_rows)
        close(model.block(only(context), torch.tensor([anchor]))[0], hidden)
        drafts = draft(model, context, anchor)
        rows = hidden if case.from_anchor else hidden[1:]
        if case.selector is None:
            check_drafts(case, formula, rows, anchor, drafts)
        else:
            check_walk(case, formula, rows, anchor, drafts)
            drawn = draft(model, context, anchor, temperature=3.0)
            check_walk(case, formula, rows, anchor, drawn, temperature=3.0)
        # Drafting leaves no rows behind.
        for layer in range(NUM_LAYERS):
            keys, values = context.layers[layer].rows()
            kept = len(keys)
            window = model.block_spec.spans[layer].window
            assert kept == (end if window is None else min(end, window - 1))
            close(keys, formula.context_keys(layer, context_rows)[-kept:])
            close(values, formula.context_values(layer, context_rows)[-kept:])


def check_drafts(
    case: BlockCase, formula: BlockFormula, h: list[Array], anchor: int, drafts: ChainDrafts
) -> None:
    t = formula.tensors
    assert drafts.logits is not None
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


def check_walk(
    case: BlockCase,
    formula: BlockFormula,
    h: list[Array],
    anchor: int,
    drafts: ChainDrafts,
    temperature: float = 0.0,
) -> None:
    """Candidates and their law in each slot, after the token that was taken before it."""
    assert case.selector is not None
    assert drafts.candidates is not None
    assert drafts.q is not None
    tokens = drafts.tokens.tolist()
    if temperature == 0:
        assert tokens == selected(formula.tensors, h, anchor, *case.selector)[0]
    for slot, row in enumerate(h):
        previous = tokens[slot - 1] if slot else anchor
        _, (table,) = selected(formula.tensors, [row], previous, *case.selector)
        assert drafts.candidates[slot].tolist() == list(table)
        scores = torch.tensor(list(table.values()))
        law = (scores / temperature).softmax(0) if temperature else scores == scores.max()
        close(drafts.q[slot], law.tolist())


def close(ours: Tensor, expected: Any) -> None:
    torch.testing.assert_close(
        ours, torch.tensor(np.array(expected), dtype=torch.float32), rtol=2e-4, atol=2e-4
    )
