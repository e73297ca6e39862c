"""merge_row_stats in plain Python: the target's token after a row, from what all shards say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.reference.coins import RequestCoins, token_at
from specfast.reference.distribution import on_grid, row_distribution, weights
from specfast.reference.float32 import f32
from specfast.reference.shard_record import (
    DRAWN,
    FIRST_KEY,
    LARGEST,
    REST,
    ShardRules,
    coins_of,
    unsigned,
    value_and_token,
    verified_rows,
    verify_batch,
)
from specfast.reference.target_only import SMALLEST_THRESHOLD, is_at_least, is_below
from specfast.sampling import MergedRows, RowStats, SamplingRules
from specfast.status import Status

# Ragged windows say how many rows they have; no request has more.
MOST_NODES = 1024


def merge_row_stats(
    stats: RowStats,
    prefix_lens: Tensor,
    sampling: SamplingRules,
    *,
    vocab_size: int,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> MergedRows:
    """The target's token after each row, from the records of all shards; see the op."""
    thresholds = f32(threshold_single), max(f32(threshold_acc), SMALLEST_THRESHOLD)
    num_rows, num_requests = stats.packed.shape[1], len(prefix_lens)
    nodes = num_rows // max(num_requests, 1) if qo_indptr is None else MOST_NODES
    batch = verify_batch(
        torch.empty(num_requests, nodes),
        prefix_lens,
        stats.packed[0],
        vocab_size,
        qo_indptr,
        verify_lens,
    )
    merged = MergedRows.empty(num_rows, "cpu")
    merged.target_predict.fill_(-1)
    merged.status.zero_()
    for row, b, node in verified_rows(batch):
        rules = ShardRules.of(sampling, b, vocab_size, stats.max_top_k)
        records = [[unsigned(word) for word in words.tolist()] for words in stats.packed[:, row]]
        token, status = _token(
            records, stats.max_candidates, rules, coins_of(batch, sampling, b), node, thresholds
        )
        merged.target_predict[row] = token
        merged.status[row] = status | rules.status | batch.prefix_len(b)[1]
    return merged


@dataclass
class MergedRow:
    """A row as the shards tell it: masses of the candidates, and what is left for the last draw.

    Of ``rest`` an entry is a token with top-k, else a shard; ``names`` says which token that means.
    """

    candidates: list[int]
    masses: list[int]
    rest: list[int]
    names: list[int]
    last: int

    @property
    def total(self) -> int:
        return sum(self.masses) + sum(self.rest)


def _token(
    records: list[list[int]],
    max_candidates: int,
    rules: ShardRules,
    coins: RequestCoins,
    node: int,
    thresholds: tuple[float, float],
) -> tuple[int, Status]:
    """Decide by the target-only rule; -1 where the path ends without a token of the target's."""
    has_nan = any(record[LARGEST] & 1 for record in records)
    status = Status.NAN_LOGITS if has_nan else Status.OK
    largest = max(record[LARGEST] for record in records) & ~1
    if largest == 0:
        return -1, status or Status.EMPTY_SUPPORT
    maximum, argmax = value_and_token(largest)
    if rules.whole.greedy or maximum == math.inf:
        return argmax, status
    last_candidate = FIRST_KEY + max_candidates
    keys = [max(record[i] for record in records) for i in range(FIRST_KEY, last_candidate)]
    candidates = [value_and_token(key) for key in keys if key > 0]
    if rules.counts:
        keys = [key for record in records for key in record[last_candidate:] if key > 0]
        best = [value_and_token(key) for key in keys]
        row = _of_best(best, [token for _, token in candidates], rules)
    else:
        row = _of_shards(records, candidates, maximum, argmax, rules)
    accepted = _accepted(row, coins, node, thresholds)
    if accepted is not None:
        return accepted, status
    left = sum(row.rest)
    if left == 0:
        return row.last, status | Status.ZERO_RESIDUAL
    return row.names[token_at(torch.tensor(row.rest), coins.final(node, left))], status


def _accepted(
    row: MergedRow, coins: RequestCoins, node: int, thresholds: tuple[float, float]
) -> int | None:
    """The candidate that the coin falls on, or that is likely enough."""
    threshold_single, threshold_acc = thresholds
    accumulated = 0
    for token, mass in zip(row.candidates, row.masses, strict=True):
        coin = coins.accept(node, lane=0, column=node)
        accumulated += mass
        if mass > 0 and (
            is_below(coin * threshold_acc, accumulated, row.total)
            or is_at_least(mass, row.total, threshold_single)
        ):
            return token
    return None


def _of_best(best: list[tuple[float, int]], candidates: list[int], rules: ShardRules) -> MergedRow:
    """The row itself: no token that it keeps is missing from the lists."""
    best = sorted(best, key=lambda entry: (entry[0], -entry[1]))[-rules.whole.top_k :]
    ids = sorted(token for _, token in best)
    # One more column: a top_k of the row's size would be off.
    values = torch.full((len(ids) + rules.whole.top_k + 1,), -math.inf)
    for value, token in best:
        values[ids.index(token)] = value
    p = row_distribution(values, None, rules.whole)
    mass_of = dict(zip(ids, p.masses.tolist(), strict=False))
    return MergedRow(
        candidates,
        [mass_of.get(token, 0) for token in candidates],
        [0 if token in candidates else mass_of[token] for token in ids],
        ids,
        ids[p.last_kept],
    )


def _of_shards(
    records: list[list[int]],
    candidates: list[tuple[float, int]],
    maximum: float,
    argmax: int,
    rules: ShardRules,
) -> MergedRow:
    """Of each shard what it drew stands for all its tokens but the candidates."""
    scale = f32(1.0 / rules.whole.temperature)
    values = torch.tensor([value for value, _ in candidates], dtype=torch.float32)
    return MergedRow(
        [token for _, token in candidates],
        on_grid(weights(values, maximum, scale)).tolist(),
        [rescaled_rest(record, maximum, scale) for record in records],
        [record[DRAWN] for record in records],
        argmax,
    )


def rescaled_rest(record: list[int], maximum: float, scale: float) -> int:
    """The rest of a shard in units of the row's largest mass, rounded down."""
    largest = record[LARGEST] & ~1
    if largest == 0:
        return 0
    value, _ = value_and_token(largest)
    weight = float(weights(torch.tensor([value]), maximum, scale))
    numerator, denominator = weight.as_integer_ratio()
    return record[REST] * numerator // denominator
