"""The small checkpoints over a handful of tokens, and q along a path of drafts by the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from drafters.block_files import RANK, BlockCase, dflash2_cases, dflash_cases, dspark_cases
from drafters.block_formula import markov_bias, selected
from drafters.by_formula import Array, Pair, Tensors, eagle3_rows, eagle_rows, rms_norm
from drafters.checkpoints import as_formula, make_target
from drafters.eagle_files import EagleCase, eagle3_cases, eagle_cases
from specfast import SamplingParams
from specfast.drafters import DraftPages, TapDrafter
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.loader import DrafterModel, load_drafter
from torch import Tensor

VOCAB, DRAFT_VOCAB = 5, 4
PROMPT, ANCHOR = (3, 1, 0), 2
# Draft id j is target id j + OFFSETS[j]: 0, 1, 3, 4.
OFFSETS = (0, 0, 1, 1)
MASK_ROW = 7
Case = EagleCase | BlockCase
CASES: dict[str, Case] = {
    case.name: case
    for case in [
        *eagle3_cases(),
        *eagle_cases(),
        *dflash_cases(),
        *dspark_cases(),
        *dflash2_cases(),
    ]
}
_BY_TOKEN = ("embed_tokens", "markov_w1", "codebook")
_BY_DRAFT = ("lm_head", "markov_w2")


@dataclass
class SmallDrafter:
    """A checkpoint cut down to VOCAB tokens; with a reduced vocabulary, to DRAFT_VOCAB of them."""

    case: Case
    model: DrafterModel
    tensors: Tensors

    @classmethod
    def of(cls, name: str, path: Path, sharpness: float = 1.5) -> SmallDrafter:
        """``sharpness`` scales heads, so that rows differ clearly."""
        case = CASES[name]
        target = make_target(case.sizes)
        model = load_drafter(case.write(path), target)
        tensors = {**as_formula(target), **case.tensors}
        for key, value in tensors.items():
            if any(part in key for part in _BY_TOKEN):
                tensors[key] = value[:VOCAB]
            if any(part in key for part in _BY_DRAFT):
                tensors[key] = value[: DRAFT_VOCAB if case.mapped else VOCAB] * sharpness
        if isinstance(case, BlockCase):
            mask = as_formula(target)["embed_tokens.weight"][MASK_ROW]
            tensors.setdefault("mask_embedding", mask)
        values = {k: torch.tensor(v, dtype=torch.float32) for k, v in tensors.items()}
        if case.mapped:
            values["d2t"] = torch.tensor(OFFSETS)
        model.weights = Weights(values, model.spec.backbone.norm_eps)
        for attention in model.attentions if isinstance(model, DFlashModel) else [model.attention]:
            attention._weights = model.weights
        if getattr(model, "markov", None) is not None:
            model.markov._weights = model.weights  # type: ignore[union-attr]
        return cls(case, model, tensors)

    def taps(self, token_ids: Sequence[int]) -> Array:
        """Hidden states of the target by token, as far as this test has a target."""
        return self.tap_table[list(token_ids)].double().numpy()

    @cached_property
    def tap_table(self) -> Tensor:
        """float32 [VOCAB, width]."""
        width = self.case.sizes.hidden * max(len(self.case.taps), 1)
        return torch.randn(VOCAB, width, generator=torch.Generator().manual_seed(3))

    def scores(self, path: Sequence[int]) -> dict[int, float]:
        """What the formulas give each target id that may follow the prompt, ANCHOR and ``path``."""
        if isinstance(self.case, EagleCase):
            values = self._eagle(self.case, path)
        elif self.case.selector is not None:
            h = self._block(self.case)
            # The walk takes the path for what it has chosen before.
            return _after(self.tensors, h, path, *self.case.selector)
        else:
            h, t = self._block(self.case), self.tensors
            state, previous = np.zeros(RANK), ANCHOR
            values = t["lm_head.weight"] @ h[0]
            for row, token in zip(h, [*path, -1], strict=False):
                values = t["lm_head.weight"] @ row
                if self.case.markov is not None:
                    bias, state = markov_bias(t, self.case.markov, previous, row, state)
                    values = values + bias
                previous = token
        offsets = OFFSETS if self.case.mapped else (0,) * VOCAB
        return {j + offsets[j]: float(v) for j, v in enumerate(values)}

    def _eagle(self, case: EagleCase, path: Sequence[int]) -> Array:
        t = self.tensors
        features = [case.feature(t, row) for row in self.taps(PROMPT)]
        tokens = [*PROMPT[1:], ANCHOR]
        pairs = [Pair(token, features[i], i) for i, token in enumerate(tokens)]
        for token in [*path, None]:
            if case.family == "eagle":
                hidden = eagle_rows(t, case.sizes, pairs)[-1].hidden
                out = hidden
            else:
                option = case.norm_before_residual
                rows = eagle3_rows(t, case.sizes, pairs, norm_before_residual=option)
                hidden = rows[-1].hidden
                out = rms_norm(hidden, t["norm.weight"], case.sizes.eps)
            if token is not None:
                feature = out if case.norm_output else hidden
                pairs.append(Pair(token, feature, pairs[-1].position + 1))
        return t["lm_head.weight"] @ out

    def _block(self, case: BlockCase) -> list[Array]:
        formula = replace(case.formula({}), tensors=self.tensors)
        context = [formula.context(row) for row in self.taps(PROMPT)]
        rows = formula.block(context, ANCHOR, 0, case.num_rows)
        return rows if case.from_anchor else rows[1:]

    def q(self, path: Sequence[int], temperature: float) -> Array:
        """float64 [VOCAB]: the law of the draft after ``path``."""
        scores = self.scores(path)
        out = np.zeros(VOCAB)
        best = max(scores.values())
        for token, score in scores.items():
            out[token] = np.exp((score - best) / temperature)
        return out / out.sum()


def _after(
    t: Tensors, h: list[Array], path: Sequence[int], k: int, multiplier: float, cap: float | None
) -> dict[int, float]:
    previous = path[-1] if path else ANCHOR
    _, (table,) = selected(t, [h[len(path)]], previous, k, multiplier, cap)
    return table


@dataclass
class Stream:
    """A request as drafters see it."""

    request_id: int
    token_ids: list[int]
    params: SamplingParams
    seed: int
    tokens_left: int = 100
    slot: int = 0


def streams(count: int, params: SamplingParams, first_seed: int = 10_007) -> list[Stream]:
    return [Stream(i, [*PROMPT, ANCHOR], params, first_seed + i) for i in range(count)]


def paged(requests: Sequence[Stream], pages_each: int = 4, page_size: int = 4) -> DraftPages:
    """Gives every request a slot, and pages of its own."""
    for slot, request in enumerate(requests):
        request.slot = slot
    table = torch.arange(len(requests) * pages_each).flip(0).int().view(-1, pages_each)
    return DraftPages(table, page_size, table.numel())


def observe(
    small: SmallDrafter, drafter: TapDrafter, requests: Sequence[Stream], counts: Sequence[int]
) -> None:
    """Show the last ``counts[b]`` committed rows of each request."""
    rows = [
        small.tap_table[r.token_ids[-n - 1 : -1]] for r, n in zip(requests, counts, strict=True)
    ]
    drafter.observe(requests, rows)
