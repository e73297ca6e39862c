"""EAGLE-1/2 and EAGLE-3 against their formulas: hidden rows, keys, values, logits, drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafters.by_formula import (
    Array,
    Pair,
    PairRow,
    Tensors,
    eagle3_rows,
    eagle_rows,
    rms_norm,
)
from drafters.checkpoints import as_formula, make_target, vocabulary_map
from drafters.eagle_files import EagleCase, eagle3_cases, eagle_cases
from specfast import ops
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle3 import Eagle3Model
from specfast.drafters.eagle_chain import EagleChain
from specfast.drafters.layers import Rotation
from specfast.drafters.loader import load_drafter
from specfast.drafters.pairs import CommittedPairs
from torch import Tensor

CASES = {case.name: case for case in [*eagle3_cases(), *eagle_cases()]}
PROMPT = [3, 31, 8, 0, 22, 39, 17]
ANCHOR, BONUS = 26, 5
NUM_DRAFTS = 4


@dataclass(frozen=True)
class Formula:
    """One case by its formulas."""

    case: EagleCase
    tensors: Tensors

    def rows(self, pairs: list[Pair]) -> list[PairRow]:
        if self.case.family == "eagle":
            return eagle_rows(self.tensors, self.case.sizes, pairs)
        option = self.case.norm_before_residual
        return eagle3_rows(self.tensors, self.case.sizes, pairs, norm_before_residual=option)

    def normed(self, hidden: Array) -> Array:
        return rms_norm(hidden, self.tensors["norm.weight"], self.case.sizes.eps)

    def logits(self, hidden: Array) -> Array:
        out = self.normed(hidden) if self.case.family == "eagle3" else hidden
        return self.tensors["lm_head.weight"] @ out

    def draft(self, committed: list[Pair]) -> tuple[list[int], list[Array]]:
        """Every step from scratch; pair L + s - 1 holds draft s and the hidden state before it."""
        pairs, tokens, logits = list(committed), [], []
        for _ in range(NUM_DRAFTS):
            hidden = self.rows(pairs)[-1].hidden
            logits.append(self.logits(hidden))
            best = int(np.argmax(logits[-1]))
            tokens.append(best + vocabulary_map(self.case.sizes)[0][best])
            feature = self.normed(hidden) if self.case.norm_output else hidden
            pairs.append(Pair(tokens[-1], feature, pairs[-1].position + 1))
        return tokens, logits


def compare(case: EagleCase, path: Path) -> None:
    """A prefill, a round of drafts, two of them and a bonus committed, another round."""
    target = make_target(case.sizes)
    model = load_drafter(case.write(path), target)
    formula = Formula(case, {**as_formula(target), **case.tensors})
    width = case.sizes.hidden * max(len(case.taps), 1)
    taps = np.random.default_rng(8).standard_normal((len(PROMPT) + 3, width)).astype(np.float32)
    features = [formula.case.feature(formula.tensors, row.astype(np.float64)) for row in taps]
    chain = EagleChain(model)

    def check_round(next_tokens: list[int], pairs: list[Pair]) -> list[int]:
        start = chain.cache.length
        hidden = chain.extend(
            torch.tensor(next_tokens), torch.tensor(taps[start : start + len(next_tokens)])
        )
        rows = formula.rows(pairs)
        close(hidden, [row.hidden for row in rows[start:]])
        keys, values = chain.cache.rows()
        close(keys, [row.key for row in rows])
        close(values, [row.value for row in rows])
        drafts = chain.draft(NUM_DRAFTS)
        tokens, logits = formula.draft(pairs)
        close(drafts.logits, logits)
        assert drafts.tokens.tolist() == tokens
        assert chain.cache.length == len(pairs)
        return tokens

    tokens = [*PROMPT[1:], ANCHOR]
    pairs = [Pair(token, features[i], i) for i, token in enumerate(tokens)]
    first = check_round(tokens, pairs)
    accepted = [*first[:2], BONUS]
    pairs += [Pair(t, features[7 + i], 7 + i) for i, t in enumerate(accepted)]
    check_round(accepted, pairs)


def close(ours: Tensor, expected: Any) -> None:
    torch.testing.assert_close(
        ours, torch.tensor(np.array(expected), dtype=torch.float32), rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formulas(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    # Without a map a draft id is a target id.
    if not case.mapped:
        assert vocabulary_map(case.sizes)[0] == [0] * case.sizes.vocab
    compare(case, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_what_was_understood(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    spec = load_drafter(case.write(tmp_path), make_target(case.sizes)).spec
    assert (spec.family, spec.dialect) == (case.family, case.dialect)
    assert (None if spec.taps is None else spec.taps.layers) == (case.taps or None)
    for reading in case.readings:
        assert any(reading in sentence for sentence in spec.readings), reading
    if not case.readings:
        assert set(spec.readings) <= {
            "norm_before_residual is absent: False, the residual is not normalised"
        }


def shifted_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (EagleModel, Eagle3Model):
        features = model.features
        monkeypatch.setattr(
            model, "features", lambda self, taps, f=features: f(self, taps.roll(1, -2))
        )


def _with_forward(monkeypatch: pytest.MonkeyPatch, change: Callable[..., tuple[Any, ...]]) -> None:
    for model in (EagleModel, Eagle3Model):
        forward = model.forward
        monkeypatch.setattr(
            model, "forward", lambda self, *args, f=forward, **more: f(self, *change(*args), **more)
        )


def shifted_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    places = EagleModel.places
    monkeypatch.setattr(EagleModel, "places", lambda self, p: places(self, p + 1))


def shifted_draft_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    places = EagleModel.places
    monkeypatch.setattr(EagleModel, "places", lambda self, p: places(self, p + (p.shape[1] == 1)))


def shifted_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_forward(monkeypatch, lambda t, f, p, c: (t.roll(1), f, p, c))


def shifted_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EagleModel, "target_ids", lambda self, ids: ids + 1)


def whole_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specfast.drafters.pairs.causal_visibility",
        lambda rows, keys: torch.ones(*rows.shape, keys.shape[1], dtype=torch.bool),
    )


def kept_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specfast.drafters.eagle_chain.DraftedPairs", CommittedPairs)


def interleaved_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate = Rotation.__call__

    def pairs(self: Rotation, x: Tensor) -> Tensor:
        return rotate(self, x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2))

    monkeypatch.setattr(Rotation, "__call__", pairs)


def exchanged_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = ops.gather_eagle_inputs

    def exchanged(*arguments: Any, **options: Any) -> Tensor:
        inputs = gather(*arguments, **options)
        return inputs.roll(inputs.shape[-1] // 2, -1)

    monkeypatch.setattr(ops, "gather_eagle_inputs", exchanged)


@pytest.mark.parametrize("name", ["safeailab", "speculators", "llama2"])
@pytest.mark.parametrize(
    "mutate",
    [
        shifted_taps,
        shifted_positions,
        shifted_draft_positions,
        shifted_tokens,
        shifted_labels,
        whole_attention,
        kept_drafts,
        interleaved_rotation,
        exchanged_halves,
    ],
)
def test_mutants_fail(
    mutate: Callable[[pytest.MonkeyPatch], None],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        compare(CASES[name], tmp_path)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("eagle-3.1", {"norm_output": False}),
        ("speculators", {"norm_before_residual": False}),
        ("nested-aux-ids", {"rope_theta": 10000.0}),
        ("deepspec", {"rms_norm_eps": 1e-2}),
    ],
)
def test_every_switch_matters(name: str, wrong: dict[str, Any], tmp_path: Path) -> None:
    case = CASES[name]
    spoilt = EagleCase(**{**vars(case), "config": {**case.config, **wrong}})
    with pytest.raises(AssertionError):
        compare(spoilt, tmp_path)


def test_norms_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = Weights.norm
    monkeypatch.setattr(
        Weights, "norm", lambda self, name, x: x if name == "input_norm" else norm(self, name, x)
    )
    with pytest.raises(AssertionError):
        compare(CASES["speculators"], tmp_path)
