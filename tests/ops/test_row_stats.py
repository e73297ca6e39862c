"""row_stats: what one shard of the vocabulary says of every verify row.

ids            0  1  2  3 | 4  5  6  7        two shards of four ids
logits         0  0  5  0 | 0  0  0  0
draft after it 2                              the candidate, known to the first shard alone

shard 0   largest 5 at 2   rest 3 e^-5, of which one of 0, 1, 3 is drawn   candidate 5 at 2
shard 1   largest 0 at 4   rest 4, of which one of 4 ... 7 is drawn        no candidate
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from accept_batches import int32
from guards import assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from shard_batches import ShardBatch, random_shards, rows_of
from specfast import Coins, LogitEdits, RowStats, SamplingRules, ops, reference
from specfast.reference.shard_record import DRAWN, FIRST_KEY, LARGEST, REST, key_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rules(count: int, device: str, temperature: float = 1.0, **options: Any) -> SamplingRules:
    return SamplingRules(
        torch.full((count,), temperature, device=device),
        torch.arange(count, dtype=torch.int64, device=device),
        **options,
    )


def chain_stats(
    logits: list[list[float]], drafts: list[int], device: str, **options: Any
) -> RowStats:
    """Of one chain: a row of logits per node; ``drafts`` follow the anchor."""
    options.setdefault("sampling", rules(1, device))
    options.setdefault("vocab_size", 8)
    options.setdefault("max_candidates", 1)
    return ops.row_stats(
        int32([[0, *drafts]], device=device),
        int32([0], device=device),
        torch.tensor(logits, dtype=torch.float32, device=device),
        **options,
    )


def test_the_drawing(device: str) -> None:
    row = [0.0, 0, 5, 0, 0, 0, 0, 0]
    first = chain_stats([row[:4], row[:4]], [2], device).packed.tolist()
    second = chain_stats([row[4:], row[4:]], [2], device, vocab_offset=4).packed.tolist()
    small = math.floor(math.exp(-5) * 2**40)
    assert first[0][LARGEST] == first[0][FIRST_KEY] == int(rows_of([[key_of(5.0, 2)]]))
    assert math.isclose(first[0][REST], 3 * small, rel_tol=1e-6)
    assert first[0][DRAWN] in (0, 1, 3)
    assert second[0][LARGEST] == int(rows_of([[key_of(0.0, 4)]]))
    assert second[0][REST] == 4 << 40
    assert second[0][DRAWN] in (4, 5, 6, 7)
    assert second[0][FIRST_KEY] == 0
    # The last row has no draft after it, so that all tokens are in the rest.
    assert math.isclose(first[1][REST], (1 << 40) + 3 * small, rel_tol=1e-6)
    assert first[1][FIRST_KEY] == 0


def test_the_best_come_in_order_and_ties_by_id(device: str) -> None:
    stats = chain_stats(
        [[1.0, 3, 2, 3, -math.inf]],
        [],
        device,
        sampling=rules(1, device, top_k=int32([3], device=device)),
        vocab_size=100,
        vocab_offset=10,
        max_candidates=2,
        max_top_k=4,
    )
    keys = [key_of(3.0, 11), key_of(3.0, 13), key_of(2.0, 12), 0]
    assert stats.packed[0, FIRST_KEY + 2 :].tolist() == rows_of([keys])[0].tolist()
    assert stats.packed[0, [REST, DRAWN]].tolist() == [0, -1]


def test_more_equal_tokens_than_can_be_collected(device: str) -> None:
    stats = chain_stats(
        [[0.0] * 3000 + [1.0] * 2],
        [],
        device,
        sampling=rules(1, device, top_k=int32([5], device=device)),
        vocab_size=5000,
        max_candidates=0,
        max_top_k=5,
    )
    keys = [key_of(1.0, 3000), key_of(1.0, 3001), *(key_of(0.0, i) for i in range(3))]
    assert stats.packed[0, FIRST_KEY:].tolist() == rows_of([keys])[0].tolist()


def test_a_shard_of_padding_says_nothing(device: str) -> None:
    nothing = [0, 0, -1, 0]
    assert chain_stats([[9.0, 9]], [], device, vocab_offset=8).packed.tolist() == [nothing]
    assert chain_stats([[]], [], device, vocab_offset=4).packed.tolist() == [nothing]
    # Of the columns past the vocabulary as well.
    stats = chain_stats([[1.0, 9]], [], device, vocab_offset=7)
    assert stats.packed[0, LARGEST] == rows_of([[key_of(1.0, 7)]])[0, 0]


def test_nan_is_a_flag(device: str) -> None:
    stats = chain_stats([[math.nan, 1, 0, 0], [math.nan] * 4], [3], device)
    assert stats.packed[:, LARGEST].tolist() == [int(rows_of([[key_of(1.0, 1) | 1]])), 1]


def test_a_draft_counts_once_and_bad_ones_not_at_all(device: str) -> None:
    """Children 3, 3, -1, 8, 2, 1 of one node; the last is past the four that are looked at."""
    drafts = int32([[0, 3, 3, -1, 2, 1]], device=device)
    first_child = int32([[1, -1, -1, -1, -1, -1]], device=device)
    siblings = int32([[-1, 2, 3, 4, 5, -1]], device=device)
    stats = ops.row_stats(
        drafts,
        int32([0], device=device),
        torch.zeros(6, 4, device=device),
        rules(1, device),
        vocab_size=4,
        max_candidates=4,
        retrieve_next_token=first_child,
        retrieve_next_sibling=siblings,
    )
    keys = [key_of(0.0, 3), 0, 0, key_of(0.0, 2)]
    assert stats.packed[0, FIRST_KEY:].tolist() == rows_of([keys])[0].tolist()
    assert stats.packed[0, REST] == 2 << 40
    assert stats.packed[0, DRAWN] in (0, 1)


def assert_equals_the_reference(batch: ShardBatch, device: str) -> None:
    for shard in range(len(batch.offsets)):
        positional, options = batch.arguments(shard, device)
        got = ops.row_stats(*positional, **options).packed.cpu()
        positional, options = batch.arguments(shard, "cpu")
        expected = reference.row_stats(*positional, **options).packed
        assert torch.equal(got, expected), f"expected\n{expected}\ngot\n{got}"


@pytest.mark.parametrize("vocab", [1, 5, 33, 1030])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, vocab: int, unsound: bool) -> None:
    for seed in range(18):
        batch = random_shards(
            seed,
            tree=seed % 2 == 1,
            num_shards=(1, 2, 4)[seed // 2 % 3],
            ragged=seed % 4 > 1,
            unsound=unsound,
            vocab=vocab,
            dtype=DTYPES[seed % 3],
        )
        assert_equals_the_reference(batch, device)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**31 - 1), vocab=st.integers(1, 40), unsound=st.booleans())
def test_any_call_equals_the_reference(seed: int, vocab: int, unsound: bool) -> None:
    batch = random_shards(
        seed, tree=seed % 2 == 1, num_shards=2, unsound=unsound, vocab=vocab, ragged=seed % 3 == 0
    )
    assert_equals_the_reference(batch, "cpu")


def test_rows_that_are_not_verified_are_not_read(device: str) -> None:
    logits = torch.tensor([[1.0, 0], [math.nan, math.nan]], device=device)
    stats = ops.row_stats(
        int32([[0, 1]], device=device),
        int32([0], device=device),
        logits,
        rules(1, device),
        vocab_size=2,
        max_candidates=1,
        verify_lens=int32([1], device=device),
    )
    assert stats.packed[1].tolist() == [0, 0, -1, 0]
    # Nor is the draft past the window a candidate.
    assert stats.packed[0, FIRST_KEY] == 0


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(12):
        batch = random_shards(
            seed, tree=seed % 2 == 1, num_shards=2, unsound=seed % 4 > 1, ragged=seed % 3 == 0
        )
        positional, options = batch.arguments(1, device)
        template = ops.row_stats(*positional, **options)
        inputs = [value for value in (*positional, *options.values()) if torch.is_tensor(value)]
        inputs += [positional[3].temperature, positional[3].seeds, positional[3].top_k]
        call = partial(ops.row_stats, *positional, **options)
        assert_written_whole(lambda out, call=call: call(out=out), template, device, *inputs)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": ({"vocab_size": 0}, r"vocab_size in \[1, 1048576\], got 0"),
    "offset": ({"vocab_offset": 9}, r"vocab_offset in \[0, 8\], got 9"),
    "candidates": ({"max_candidates": -1}, r"max_candidates in \[0, 1023\], got -1"),
    "top_k": ({"max_top_k": 513}, r"max_top_k in \[0, 512\], got 513"),
    "links": ({"retrieve_next_token": int32([[1, -1]])}, "retrieve_next_sibling of a tree"),
    "rows": ({"verify_lens": int32([1, 2])}, r"verify_lens of shape \[B=1\], got \[2\]"),
    "out": (
        {"out": RowStats(torch.zeros(2, 4, dtype=torch.int64), 0, 1)},
        "out with max_candidates = 1 and max_top_k = 0, got 0 and 1",
    ),
    "width of out": (
        {"out": RowStats(torch.zeros(2, 5, dtype=torch.int64), 1)},
        r"W = 3 \+ max_candidates \+ max_top_k = 4 words, got W = 5",
    ),
    "type of out": ({"out": torch.zeros(2, 4)}, "out as RowStats, got Tensor"),
    "sampling": ({"sampling": None}, "sampling as SamplingRules, got None"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_wrong_arguments(name: str) -> None:
    options, message = BAD_ARGUMENTS[name]
    with pytest.raises(RuntimeError, match=rf"row_stats: expected .*{message}"):
        chain_stats([[0.0] * 4] * 2, [2], "cpu", **options)


UNFOLLOWED = {
    "repetition_penalty": torch.ones(1),
    "presence_penalty": torch.ones(1),
    "frequency_penalty": torch.ones(1),
    "edits": LogitEdits(int32([0, 0]), int32([]), int32([])),
    "token_bitmask": int32([[-1], [-1]]),
    "coins": Coins(),
}


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_what_shards_cannot_follow_is_refused(name: str) -> None:
    sampling = replace(rules(1, "cpu"), **{name: UNFOLLOWED[name]})
    with pytest.raises(RuntimeError, match=rf"row_stats: expected no sampling\.{name} \("):
        chain_stats([[0.0] * 4] * 2, [2], "cpu", sampling=sampling)


def test_no_rows(device: str) -> None:
    stats = ops.row_stats(
        torch.empty(0, 3, dtype=torch.int32, device=device),
        int32([], device=device),
        torch.empty(0, 4, device=device),
        rules(0, device),
        vocab_size=8,
        max_candidates=1,
        max_top_k=2,
    )
    assert stats.packed.shape == (0, 6)


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: chain_stats([[0.0] * 4] * 2, [2], device))
