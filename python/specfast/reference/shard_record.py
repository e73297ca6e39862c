"""What row_stats and merge_row_stats share: the words of a record, and whose row is which."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

import torch
from torch import Tensor

from specfast.records import FinishRules
from specfast.reference.accept_batch import AcceptBatch
from specfast.reference.coins import RequestCoins
from specfast.reference.distribution import GRID
from specfast.reference.request_rules import RequestRules
from specfast.sampling import SamplingRules
from specfast.status import Status

INT32_MAX = 2**31 - 1
# The words of a record; keys of candidates, then of the best tokens, begin at FIRST_KEY.
LARGEST, REST, DRAWN, FIRST_KEY = range(4)


def key_of(value: float, token: int) -> int:
    """64 bits that compare like (value, -token); 0 for -inf and NaN, bit 0 is free."""
    if not value > float("-inf"):
        return 0
    bits: int = struct.unpack("<I", struct.pack("<f", value + 0.0))[0]
    order = bits ^ 0xFFFFFFFF if bits >> 31 else bits | 1 << 31
    return order << 32 | (INT32_MAX - token) << 1


def value_and_token(key: int) -> tuple[float, int]:
    """What a key was made of."""
    order = key >> 32
    bits = order ^ 1 << 31 if order >> 31 else order ^ 0xFFFFFFFF
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return value, INT32_MAX - (key >> 1 & INT32_MAX)


def signed(word: int) -> int:
    """64 bits as an int64 holds them."""
    return word - (1 << 64) if word >> 63 else word


def unsigned(word: int) -> int:
    return word & (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class ShardRules:
    """A request's parameters as far as shards can follow them: what they cannot is greedy."""

    whole: RequestRules
    counts: bool
    status: Status

    @classmethod
    def of(cls, sampling: SamplingRules, b: int, vocab_size: int, max_top_k: int) -> ShardRules:
        rules = RequestRules.of(sampling, b)
        counts = 0 < rules.top_k < vocab_size
        sorts = rules.top_p < 1 or rules.min_p * GRID > 1
        follows = rules.top_k <= max_top_k if counts else not sorts
        if rules.sound and (rules.greedy or follows):
            return cls(rules, counts, Status.OK)
        return cls(dataclasses.replace(rules, temperature=0.0), counts, Status.BAD_PARAM)


def verify_batch(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    rows: Tensor,
    vocab_size: int,
    qo_indptr: Tensor | None,
    verify_lens: Tensor | None,
    links: tuple[Tensor, Tensor] | None = None,
) -> AcceptBatch:
    """The batch without what only an accept needs; ``rows`` counts them."""
    return AcceptBatch(
        draft_tokens,
        prefix_lens,
        rows,
        None,
        vocab_size,
        qo_indptr,
        verify_lens,
        FinishRules(),
        None,
        0,
        links or (draft_tokens, draft_tokens),
        None,
    )


def verified_rows(batch: AcceptBatch) -> Iterator[tuple[int, int, int]]:
    """Row, request and node of every verified row."""
    ends = None if batch.qo_indptr is None else batch.qo_indptr[1:]
    for row in range(batch.num_rows):
        b = row // batch.num_nodes if ends is None else int((ends <= row).sum())
        if b < batch.num_requests:
            window = batch.window(b)
            if 0 <= row - window.base < window.verified:
                yield row, b, row - window.base


def coins_of(batch: AcceptBatch, sampling: SamplingRules, b: int) -> RequestCoins:
    return RequestCoins(b, int(sampling.seeds[b]), batch.prefix_len(b)[0], None)


def on_no_ids(values: Tensor) -> Tensor:
    """A shard that holds padding only has nothing above -inf."""
    return values if len(values) > 0 else torch.tensor([float("-inf")])
