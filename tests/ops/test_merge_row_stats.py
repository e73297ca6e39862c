"""merge_row_stats: the target's token after every verify row, from what all shards say.

ids       0    1    2    3  |  4    5    6    7        greedy: 6, the lowest id of the largest value
logits    1    7    2    0  |  0    3    8    8

with top_k 3 the lists 1 2 0 | 6 7 5 merge to 6 7 1, and the masses are those of the whole row
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from accept_batches import assert_same_record, int32, to_device
from guards import assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from sampled_batches import Dice
from shard_batches import ShardBatch, random_shards
from specfast import Coins, MergedRows, RowStats, SamplingRules, Status, ops, reference
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHARDS = (1, 2, 4)


def whole_accept(batch: ShardBatch, device: str, **more: Any) -> Any:
    """The round as the owner of all logits decides it."""
    options = {**batch.batch.options, "rule": "target_only", "sampling": batch.sampling}
    whole = replace(batch.batch, options=options)
    return whole.run(ops.accept_tree if batch.batch.links else ops.accept_chain, device, **more)


def with_full_width(batch: ShardBatch) -> ShardBatch:
    """A row does not know that the path ends with it: it looks at the coin of its children."""
    if batch.batch.links:
        batch.batch.options["width"] = batch.batch.draft_tokens.shape[1]
    return batch


def merged(
    rows: list[list[float]], cuts: tuple[int, ...], device: str, **sampling: Any
) -> MergedRows:
    """Of rows without drafts, a request each."""
    logits = torch.tensor(rows, dtype=torch.float32, device=device)
    count, vocab = logits.shape
    sampling.setdefault("temperature", torch.ones(count))
    rules = to_device(SamplingRules(seeds=torch.arange(count), **sampling), device)
    drafts = torch.zeros(count, 1, dtype=torch.int32, device=device)
    prefix_lens = torch.zeros(count, dtype=torch.int32, device=device)
    sizes = {"max_candidates": 1, "max_top_k": 4}
    shards = [
        ops.row_stats(
            drafts,
            prefix_lens,
            logits[:, begin:end],
            rules,
            vocab_size=vocab,
            vocab_offset=begin,
            **sizes,
        ).packed
        for begin, end in zip(cuts, (*cuts[1:], vocab), strict=True)
    ]
    stats = RowStats(torch.stack(shards), **sizes)
    return ops.merge_row_stats(stats, prefix_lens, rules, vocab_size=vocab)


ROW = [1.0, 7, 2, 0, 0, 3, 8, 8]
CUTS = [(0,), (0, 4), (0, 1, 2, 7), (0, 0, 7, 8)]


@pytest.mark.parametrize("cuts", CUTS)
def test_the_lowest_id_of_the_largest_value_wins(device: str, cuts: tuple[int, ...]) -> None:
    out = merged([ROW, [5.0] * 8], cuts, device, temperature=torch.zeros(2))
    assert out.target_predict.tolist() == [6, 0]
    assert out.status.tolist() == [0, 0]


@pytest.mark.parametrize("cuts", CUTS)
def test_top_k_keeps_the_best_of_all_shards(device: str, cuts: tuple[int, ...]) -> None:
    count = 64
    out = merged([ROW] * count, cuts, device, top_k=int32([3] * count), min_p=torch.zeros(count))
    assert {*out.target_predict.tolist()} <= {1, 6, 7}
    assert {6, 7} <= {*out.target_predict.tolist()}


@pytest.mark.parametrize("cuts", CUTS)
def test_infinity_has_all_the_mass(device: str, cuts: tuple[int, ...]) -> None:
    infinite = [0.0, 0, -math.inf, 0, 0, math.inf, math.inf, 0]
    out = merged([infinite] * 2, cuts, device, top_k=int32([0, 2]))
    assert out.target_predict.tolist() == [5, 5]
    assert out.status.tolist() == [0, 0]


@pytest.mark.parametrize("cuts", CUTS)
def test_a_row_without_a_value_gives_no_token(device: str, cuts: tuple[int, ...]) -> None:
    rows = [[-math.inf] * 8, [math.nan] + [-math.inf] * 7, [math.nan] * 7 + [0.0]]
    out = merged(rows, cuts, device)
    assert out.target_predict.tolist() == [-1, -1, 7]
    assert out.status.tolist() == [Status.EMPTY_SUPPORT, Status.NAN_LOGITS, Status.NAN_LOGITS]


def test_filters_that_shards_cannot_follow_are_greedy(device: str) -> None:
    out = merged(
        [ROW] * 5,
        (0, 4),
        device,
        top_k=int32([0, 0, 5, 4, 8]),
        top_p=torch.tensor([0.9, 1.0, 1.0, 0.9, 1.0]),
        min_p=torch.tensor([0.0, 0.1, 0.0, 0.1, 0.0]),
    )
    bad = [Status.BAD_PARAM] * 3
    assert out.status.tolist() == [*bad, 0, 0]
    assert out.target_predict.tolist()[:3] == [6, 6, 6]


def assert_equals_the_reference(batch: ShardBatch, device: str, **more: Any) -> None:
    stats = batch.stats(reference, "cpu")
    expected = batch.merge(reference, stats, "cpu", **more)
    got = batch.merge(ops, stats, device, **more)
    for name in ("status", "target_predict"):
        mine, theirs = getattr(got, name).cpu(), getattr(expected, name)
        assert torch.equal(mine, theirs), f"{name}: expected\n{theirs}\ngot\n{mine}"


@pytest.mark.parametrize("counts", [None, True, False])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, counts: bool | None, unsound: bool) -> None:
    for seed in range(36):
        batch = random_shards(
            seed,
            tree=seed % 2 == 1,
            num_shards=SHARDS[seed // 2 % 3],
            ragged=seed % 4 > 1,
            unsound=unsound,
            vocab=(5, 9, 70)[seed % 3],
            dtype=DTYPES[seed // 3 % 3],
            counts=counts,
        )
        thresholds = {"threshold_single": 0.4, "threshold_acc": 0.7} if seed % 5 == 4 else {}
        assert_equals_the_reference(batch, device, **thresholds)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31 - 1), vocab=st.integers(2, 40), unsound=st.booleans())
def test_any_call_equals_the_reference(seed: int, vocab: int, unsound: bool) -> None:
    batch = random_shards(
        seed,
        tree=seed % 2 == 1,
        num_shards=SHARDS[seed % 3],
        unsound=unsound,
        vocab=vocab,
        counts=(None, True, False)[seed // 3 % 3],
    )
    assert_equals_the_reference(batch, "cpu")


@pytest.mark.parametrize("num_shards", SHARDS)
def test_with_top_k_shards_decide_as_the_whole_row(device: str, num_shards: int) -> None:
    for seed in range(60):
        batch = random_shards(
            seed,
            tree=seed % 2 == 1,
            num_shards=num_shards,
            ragged=seed % 4 > 1,
            vocab=(3, 9, 40)[seed % 3],
            dtype=DTYPES[seed // 3 % 3],
            counts=True,
        )
        thresholds = {"threshold_single": 0.4, "threshold_acc": 0.7} if seed % 5 == 4 else {}
        batch = with_full_width(batch)
        expected = whole_accept(batch, device, **thresholds)
        assert_same_record(batch.accept(ops, device, **thresholds), expected)


def test_a_long_top_k_of_a_large_vocabulary(device: str) -> None:
    logits = Dice(3).normal(4, 5003).round(decimals=1)
    batch = random_shards(0, tree=False, num_shards=1, counts=True)
    batch.batch.options.clear()
    batch.batch.options["target_logits"] = logits
    batch.batch.draft_tokens = torch.zeros(4, 1, dtype=torch.int32)
    batch.vocab_size, batch.offsets, batch.max_top_k = 5003, (0, 1251, 2502, 3753), 512
    batch.sampling = SamplingRules(
        torch.tensor([1.0, 0.7, 2.0, 30.0]),
        torch.arange(4),
        top_k=int32([512, 50, 512, 512]),
        top_p=torch.tensor([1.0, 0.9, 0.99, 1.0]),
    )
    for prefix_len in range(8):
        batch.batch.prefix_lens = torch.full((4,), prefix_len, dtype=torch.int32)
        assert_same_record(batch.accept(ops, device), whole_accept(batch, device))


def test_one_shard_accepts_what_the_whole_row_does(device: str) -> None:
    """Without top-k the last draw has other random numbers; the coins are the same."""
    for seed in range(60):
        batch = with_full_width(
            random_shards(seed, tree=seed % 2 == 1, num_shards=1, vocab=6, counts=False)
        )
        mine, whole = batch.accept(ops, device), whole_accept(batch, device)
        assert torch.equal(mine.num_correct_drafts, whole.num_correct_drafts)
        assert torch.equal(mine.accept_index, whole.accept_index)
        assert torch.equal(mine.status, whole.status)


def test_greedy_requests_equal_greedy_verification(device: str) -> None:
    for seed in range(40):
        batch = random_shards(
            seed, tree=seed % 2 == 1, num_shards=SHARDS[seed % 3], vocab=6, counts=False
        )
        batch.sampling.temperature.zero_()
        greedy = batch.batch.run(ops.accept_tree if batch.batch.links else ops.accept_chain, device)
        assert_same_record(batch.accept(ops, device), greedy)


@pytest.mark.parametrize("counts", [True, False])
def test_records_that_no_shard_wrote(device: str, counts: bool) -> None:
    """Any bytes give a token of the vocabulary or -1."""
    for seed in range(40):
        batch = random_shards(seed, tree=True, num_shards=SHARDS[seed % 3], counts=counts, vocab=9)
        stats = batch.stats(ops, "cpu")
        rng = torch.Generator().manual_seed(seed)
        garbage = torch.randint(-(2**63), 2**63 - 1, stats.packed.shape, generator=rng)
        wrong = torch.rand(stats.packed.shape, generator=rng) < (0.05, 0.3, 1.0)[seed % 3]
        zeros = torch.rand(stats.packed.shape, generator=rng) < 0.2
        stats.packed = torch.where(wrong, torch.where(zeros, 0, garbage), stats.packed)
        out = batch.merge(ops, stats, device)
        assert int(out.target_predict.min()) >= -1
        assert int(out.target_predict.max()) < 9
        expected = batch.merge(ops, stats, "cpu")
        assert torch.equal(out.target_predict.cpu(), expected.target_predict)
        assert torch.equal(out.status.cpu(), expected.status)


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(12):
        batch = random_shards(
            seed, tree=True, num_shards=2, unsound=seed % 4 > 1, ragged=seed % 3 == 0
        )
        stats = batch.stats(ops, device)
        template = batch.merge(ops, stats, device)
        call = partial(batch.merge, ops, stats, device)
        assert_written_whole(lambda out, call=call: call(out=out), template, device, stats.packed)


def sound_call(**options: Any) -> MergedRows:
    """Of two requests with two rows each."""
    arguments: dict[str, Any] = {
        "stats": RowStats(torch.zeros(3, 4, 6, dtype=torch.int64), 1, 2),
        "prefix_lens": int32([0, 0]),
        "sampling": SamplingRules(torch.ones(2), torch.zeros(2, dtype=torch.int64)),
        "vocab_size": 8,
        **options,
    }
    return ops.merge_row_stats(**arguments)


def int64(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "not gathered": ({"stats": RowStats(int64(4, 6), 1, 2)}, r"stats.packed of shape \[G, R"),
    "no shards": ({"stats": RowStats(int64(0, 4, 6), 1, 2)}, r"shards G in \[1, 1024\], got 0"),
    "words": ({"stats": RowStats(int64(1, 4, 6), 2, 2)}, "stats.packed of .* = 7 words, got W = 6"),
    "type": ({"stats": int64(1, 4, 6)}, "stats as RowStats, got Tensor"),
    "rows": ({"stats": RowStats(int64(1, 5, 6), 1, 2)}, "got R = 5 rows of B = 2 requests"),
    "ragged": ({"qo_indptr": int32([0, 1])}, r"qo_indptr of shape \[B \+ 1=3\], got \[2\]"),
    "vocabulary": ({"vocab_size": 2**21}, r"vocab_size in \[1, 1048576\], got 2097152"),
    "threshold": ({"threshold_acc": 1.5}, r"threshold_acc in \[0, 1\], got 1.5"),
    "out": (
        {"out": MergedRows(int32([0] * 3), int32([0] * 4))},
        r"out.target_predict of shape \[R=4\], got \[3\]",
    ),
    "coins": (
        {"sampling": SamplingRules(torch.ones(2), int64(2), coins=Coins())},
        "no sampling.coins",
    ),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_wrong_arguments(name: str) -> None:
    options, message = BAD_ARGUMENTS[name]
    with pytest.raises(RuntimeError, match=rf"merge_row_stats: expected .*{message}"):
        sound_call(**options)


def replayed_round(impl: Any, inputs: tuple[Tensor, ...], rules: SamplingRules, **out: Any) -> Any:
    """Chains of 40 ids in two shards, with a top_k."""
    drafts, prefix_lens, logits = inputs
    stats = out.get("stats") or RowStats(torch.empty(2, len(logits), 12, dtype=torch.int64), 1, 8)
    for i, (begin, end) in enumerate([(0, 17), (17, 40)]):
        shard = impl.row_stats(
            drafts,
            prefix_lens,
            logits[:, begin:end],
            rules,
            vocab_size=40,
            vocab_offset=begin,
            max_candidates=1,
            max_top_k=8,
            **({"out": RowStats(stats.packed[i], 1, 8)} if out else {}),
        )
        if not out:
            stats.packed[i] = shard.packed
    merged = {"out": out["merged"]} if out else {}
    return impl.merge_row_stats(stats, prefix_lens, rules, vocab_size=40, **merged)


def test_replay_follows_new_inputs() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    batches = [random_shards(i, tree=False, num_shards=1, vocab=40, counts=True) for i in range(5)]
    rounds = [(b.batch.draft_tokens, b.batch.prefix_lens, b.logits) for b in batches]
    rules = SamplingRules(torch.ones(4), torch.arange(4), top_k=int32([0, 2, 5, 8]))
    inputs = tuple(tensor.cuda() for tensor in rounds[0])
    given = to_device(rules, "cuda")
    rows = len(rounds[0][2])
    out = {
        "stats": RowStats.empty(rows, "cuda", 1, 8, num_shards=2),
        "merged": MergedRows.empty(rows, "cuda"),
    }
    replayed_round(ops, inputs, given, **out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed_round(ops, inputs, given, **out)
    for values in rounds:
        for tensor, value in zip(inputs, values, strict=True):
            tensor.copy_(value)
        graph.replay()
        expected = replayed_round(reference, values, rules)
        assert torch.equal(out["merged"].target_predict.cpu(), expected.target_predict)
        assert torch.equal(out["merged"].status.cpu(), expected.status)


def test_no_rows(device: str) -> None:
    stats = RowStats(torch.zeros(2, 0, 4, dtype=torch.int64, device=device), 1)
    rules = to_device(SamplingRules(torch.ones(0), int64(0)), device)
    out = ops.merge_row_stats(stats, int32([], device=device), rules, vocab_size=8)
    assert out.target_predict.shape == (0,)


def test_opcheck(device: str) -> None:
    stats = RowStats(torch.zeros(3, 4, 6, dtype=torch.int64, device=device), 1, 2)
    rules = to_device(SamplingRules(torch.ones(2), int64(2)), device)
    prefix_lens = int32([0, 0], device=device)
    assert_opcheck(lambda: sound_call(stats=stats, prefix_lens=prefix_lens, sampling=rules))
