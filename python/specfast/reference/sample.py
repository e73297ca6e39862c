"""sample_rows in plain Python: tokens without replacement, and the distribution of their row."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specfast.reference.coins import RequestCoins, token_at
from specfast.reference.distribution import row_distribution
from specfast.reference.philox import Purpose
from specfast.reference.request_rules import RequestRules, allowed_ids, edited_row
from specfast.sampling import RowKind, SampledRows, SamplingRules
from specfast.status import Status

_PURPOSES = {"draft": Purpose.DRAFT, "final": Purpose.FINAL}


def sample_rows(
    logits: Tensor,
    sampling: SamplingRules,
    prefix_lens: Tensor,
    *,
    vocab_size: int | None = None,
    request_of_row: Tensor | None = None,
    slot_of_row: Tensor | None = None,
    level: int = 0,
    num_draws: int = 1,
    purpose: Literal["draft", "final"] = "draft",
) -> SampledRows:
    """Draw tokens from each row, and record what they were drawn from; see the op."""
    num_rows = logits.shape[0]
    vocab_size = logits.shape[1] if vocab_size is None else vocab_size
    result = SampledRows.empty(num_rows, num_draws, "cpu")
    for row in range(num_rows):
        status = Status.OK
        wanted = row if request_of_row is None else int(request_of_row[row])
        b = min(max(wanted, 0), len(prefix_lens) - 1)
        if b != wanted:
            status = Status.BAD_PARAM
        prefix_len = int(prefix_lens[b])
        if prefix_len < 0:
            prefix_len, status = 0, Status.BAD_PARAM
        slot = 0 if slot_of_row is None else int(slot_of_row[row])
        rules = RequestRules.of(sampling, b)
        if not rules.sound:
            status |= Status.BAD_PARAM
        values = edited_row(logits[row, :vocab_size], rules, sampling.edits, b, [])
        p = row_distribution(values, allowed_ids(sampling.token_bitmask, row, vocab_size), rules)
        coins = RequestCoins(b, int(sampling.seeds[b]), prefix_len, None)
        masses = p.masses.clone()
        for draw in range(num_draws):
            total = int(masses.sum())
            if p.kind == RowKind.UNUSABLE and draw == 0:
                # A row without a distribution still says how its request goes on.
                token = p.token
            elif total == 0:
                token = -1
            else:
                lane = slot * num_draws + draw
                token = token_at(masses, coins.drawn(_PURPOSES[purpose], level, lane, total))
                masses[token] = 0
            result.tokens[row, draw] = token
        result.records.packed[row] = torch.tensor(p.record_words, dtype=torch.int32)
        result.status[row] = status | p.status
    return result
