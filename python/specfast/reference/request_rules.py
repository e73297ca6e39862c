"""How one request samples, and its logits after edits and grammar."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.reference.float32 import f32
from specfast.sampling import LogitEdits, SamplingRules

GREEDY_TEMPERATURE = f32(1e-5)


@dataclass(frozen=True)
class RequestRules:
    """The parameters of one request; those that were not given are off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float

    @classmethod
    def of(cls, sampling: SamplingRules, b: int) -> RequestRules:
        def value(tensor: Tensor | None, off: float) -> float:
            return off if tensor is None else float(tensor[b])

        return cls(
            temperature=float(sampling.temperature[b]),
            top_k=0 if sampling.top_k is None else int(sampling.top_k[b]),
            top_p=value(sampling.top_p, 1),
            min_p=value(sampling.min_p, 0),
            repetition_penalty=value(sampling.repetition_penalty, 1),
            presence_penalty=value(sampling.presence_penalty, 0),
            frequency_penalty=value(sampling.frequency_penalty, 0),
        )

    @property
    def sound(self) -> bool:
        # Comparisons with NaN are false.
        return (
            0 <= self.temperature < math.inf
            and self.top_k >= -1
            and 0 < self.top_p <= 1
            and 0 <= self.min_p <= 1
            and 0 < self.repetition_penalty < math.inf
            and math.isfinite(self.presence_penalty)
            and math.isfinite(self.frequency_penalty)
        )

    @property
    def has_penalties(self) -> bool:
        neutral = (1, 0, 0)
        return neutral != (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)

    @property
    def greedy(self) -> bool:
        return not self.sound or self.temperature < GREEDY_TEMPERATURE or self.top_k == 1


def edited_row(
    logits: Tensor, rules: RequestRules, edits: LogitEdits | None, b: int, path: Sequence[int]
) -> Tensor:
    """float32 [V] after biases and penalties; ``path`` holds the drafts accepted so far."""
    values = logits.float().clone()
    if edits is None and not rules.has_penalties:
        return values
    counts: dict[int, int] = {}
    biases: dict[int, float] = {}
    if edits is not None:
        num_edits = edits.ids.shape[0]
        first, last = (min(max(int(x), 0), num_edits) for x in edits.indptr[b : b + 2])
        for entry in range(first, last):
            token = int(edits.ids[entry])
            if 0 <= token < len(values):
                counts[token] = int(edits.counts[entry])
                biases[token] = 0.0 if edits.biases is None else float(edits.biases[entry])
    for token, count in Counter(path).items():
        counts[token] = max(counts.get(token, 0), 0) + count
    if not counts:
        return values

    ids = list(counts)
    occurrences = torch.tensor(list(counts.values()), dtype=torch.float32)
    v = values[ids] + torch.tensor([biases.get(i, 0.0) for i in ids])
    penalised = torch.where(v > 0, v / rules.repetition_penalty, v * rules.repetition_penalty)
    v = torch.where(occurrences >= 0, penalised, v)
    v = torch.where(occurrences > 0, v - occurrences * rules.frequency_penalty, v)
    v = torch.where(occurrences > 0, v - rules.presence_penalty, v)
    values[ids] = v
    return values


def allowed_ids(token_bitmask: Tensor | None, row: int, vocab_size: int) -> Tensor | None:
    """bool [V], or None where the row has no bitmask."""
    if token_bitmask is None:
        return None
    words = token_bitmask[row]
    ids = torch.arange(vocab_size)
    return ((words[ids // 32] >> (ids % 32).to(torch.int32)) & 1).bool()
