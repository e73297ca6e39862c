"""accept_target_only: one coin per row, which the children share in sibling order.

p        A 1/4   B 1/4   C 1/4   D 1/4
drafts   B, D                              coin  0    1/4    1/2          1
                                                 |-- B --|-- D --|-- A or C --|
"""

from __future__ import annotations

import math

import pytest
import torch
from accept_batches import assert_same_record, int32, random_batch
from registered_ops import assert_opcheck
from sampled_batches import random_sampled_batch
from specfast import AcceptRecord, Coins, SamplingRules, Status, ops, reference

A, B, C, D = range(4)
ONE_BELOW = 2.0**-24


def rules(accept: list[float], final: float, device: str, **options) -> SamplingRules:
    coins = Coins(
        torch.tensor([accept], device=device), torch.tensor([final], dtype=torch.float32).to(device)
    )
    seeds = torch.zeros(1, dtype=torch.int64, device=device)
    return SamplingRules(torch.ones(1, device=device), seeds, coins=coins, **options)


def accept(tokens: list[int], coin: float, final: float, device: str, **options) -> AcceptRecord:
    """The root and its children, under a target without preference."""
    nodes = len(tokens) + 1
    arguments = {
        "retrieve_next_token": int32([[1, *[-1] * (nodes - 1)]], device=device),
        "retrieve_next_sibling": int32([[-1, *range(2, nodes), -1]], device=device),
        "width": 2,
    }
    return ops.accept_target_only(
        int32([[9, *tokens]], device=device),
        int32([10], device=device),
        torch.zeros(nodes, 4, device=device),
        rules([coin] * nodes, final, device),
        **arguments | options,
    )


@pytest.mark.parametrize(
    ("coin", "row"),
    [(0.0, 1), (0.25 - ONE_BELOW, 1), (0.25, 2), (0.5 - ONE_BELOW, 2), (0.5, -1), (0.99, -1)],
)
def test_the_children_share_the_coin(device: str, coin: float, row: int) -> None:
    record = accept([B, D], coin, 0.0, device)
    assert record.accept_index.tolist() == [[0, row]]
    assert record.out_tokens[0, 0] == [A, B, D][max(row, 0)]


@pytest.mark.parametrize(("final", "token"), [(0.0, A), (0.5 - ONE_BELOW, A), (0.5, C), (1.0, C)])
def test_the_rest_of_the_tokens_end_the_path(device: str, final: float, token: int) -> None:
    assert accept([B, D], 0.5, final, device).out_tokens.tolist() == [[token, -1]]


def test_a_repeated_sibling_has_no_share(device: str) -> None:
    # The second B would have been [1/4, 1/2), which is D's.
    record = accept([B, B, D], 0.3, 0.0, device)
    assert record.accept_index.tolist() == [[0, 3]]
    assert accept([B, B], 0.3, 0.4, device).out_tokens.tolist() == [[C, -1]]


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_a_bad_sibling_has_no_share(device: str, bad: int) -> None:
    record = accept([bad, D], 0.1, 0.0, device)
    assert record.accept_index.tolist() == [[0, 2]]
    assert record.status.tolist() == [Status.BAD_TOKEN]


def test_a_full_path_ends_with_a_plain_draw(device: str) -> None:
    # No child is considered, and the draft's token may come out all the same.
    assert accept([B, D], 0.0, 0.3, device, width=1).out_tokens.tolist() == [[B]]


def test_thresholds_accept_more(device: str) -> None:
    assert accept([B], 0.4, 0.0, device).num_correct_drafts.tolist() == [0]
    assert accept([B], 0.4, 0.0, device, threshold_acc=0.6).num_correct_drafts.tolist() == [1]
    assert accept([B], 0.4, 0.0, device, threshold_single=0.25).num_correct_drafts.tolist() == [1]
    assert accept([B], 0.4, 0.0, device, threshold_single=0.26).num_correct_drafts.tolist() == [0]


def test_the_cut_ends_with_a_plain_draw(device: str) -> None:
    # Row 2 holds NaN and is not read; the draft past the cut may come out of the final draw.
    logits = torch.zeros(3, 4, device=device)
    logits[2] = math.nan
    record = ops.accept_target_only(
        int32([[9, B, C]], device=device),
        int32([10], device=device),
        logits,
        rules([0.0, 0.0, 0.0], 0.6, device),
        verify_lens=int32([2], device=device),
    )
    assert record.out_tokens.tolist() == [[B, C, -1]]
    assert record.status.tolist() == [Status.OK]


def test_logprobs_are_of_what_was_asked_for(device: str) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]] * 2, device=device)

    def logprobs(kind: str) -> list[list[float]]:
        record = ops.accept_target_only(
            int32([[9, B]], device=device),
            int32([10], device=device),
            logits,
            rules([0.0, 0.0], 0.0, device, top_k=int32([2], device=device)),
            logprobs=kind,
        )
        assert record.out_tokens.tolist() == [[B, A]]
        assert record.logprobs is not None
        return record.logprobs.tolist()

    raw, processed = (x.log_softmax(-1)[0] for x in (logits.cpu(), logits.cpu()[:, :2]))
    assert logprobs("raw") == [pytest.approx([raw[B].item(), raw[A].item()])]
    assert logprobs("processed") == [pytest.approx([processed[B].item(), processed[A].item()])]


def test_accepted_drafts_count_for_the_next_row(device: str) -> None:
    # B was accepted, so a presence penalty leaves A, C and D to the rows behind it.
    record = ops.accept_target_only(
        int32([[9, B, B]], device=device),
        int32([10], device=device),
        torch.zeros(3, 4, device=device),
        rules([0.0] * 3, 0.4, device, presence_penalty=torch.full((1,), 100.0, device=device)),
    )
    assert record.out_tokens.tolist() == [[B, C, -1]]


@pytest.mark.parametrize("tree", [True, False])
def test_at_temperature_0_it_is_greedy(device: str, tree: bool) -> None:
    op = ops.accept_tree if tree else ops.accept_chain
    for seed in range(20):
        batch = random_batch(seed, tree=tree, unsound=bool(seed % 2), ragged=bool(seed % 3))
        greedy = batch.run(op, device)
        seeds = torch.arange(4)
        batch.options |= {
            "rule": "target_only",
            "sampling": SamplingRules(torch.zeros(4), seeds),
        }
        assert_same_record(batch.run(op, device), greedy)


def test_a_request_is_the_same_in_any_slot(device: str) -> None:
    logits = torch.randn(8, 100, generator=torch.Generator().manual_seed(0)).to(device)
    drafts = int32([[9, 1], [9, 2], [9, 3], [9, 4]], device=device)
    lens = int32([5, 6, 7, 8], device=device)
    seeds = torch.tensor([11, 22, 33, 44], device=device)
    whole = ops.accept_target_only(
        drafts, lens, logits, SamplingRules(torch.ones(4, device=device), seeds)
    )
    for b in range(4):
        alone = ops.accept_target_only(
            drafts[b : b + 1],
            lens[b : b + 1],
            logits[2 * b : 2 * b + 2],
            SamplingRules(torch.ones(1, device=device), seeds[b : b + 1]),
        )
        assert alone.out_tokens.tolist() == whole.out_tokens[b : b + 1].tolist()


def test_rounds_and_seeds_draw_anew(device: str) -> None:
    def tokens(seeds: torch.Tensor, prefix_lens: torch.Tensor) -> list[int]:
        count = len(seeds)
        record = ops.accept_target_only(
            int32([[9]] * count, device=device),
            prefix_lens.to(torch.int32).to(device),
            torch.zeros(count, 1000, device=device),
            SamplingRules(torch.ones(count, device=device), seeds.to(device)),
        )
        return record.bonus.tolist()

    same, counting = torch.full((20,), 7), torch.arange(20)
    assert len(set(tokens(same, same))) == 1
    assert len(set(tokens(counting, same))) > 15
    assert len(set(tokens(same, counting))) > 15


def test_an_empty_batch(device: str) -> None:
    record = ops.accept_target_only(
        int32([], device=device).view(0, 3),
        int32([], device=device),
        torch.empty(0, 8, device=device),
        SamplingRules(torch.ones(0, device=device), torch.ones(0, dtype=torch.int64).to(device)),
    )
    assert record.out_tokens.shape == (0, 3)


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: accept([B, D], 0.5, 0.0, device, logprobs="raw"))


def test_replay_follows_new_inputs() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    batches = [random_sampled_batch(seed, "target_only", tree=False, nodes=8) for seed in range(5)]
    drafts, lens = batches[0].draft_tokens.cuda(), batches[0].prefix_lens.cuda()
    logits = batches[0].options["target_logits"].cuda()
    sampling = SamplingRules(torch.ones(4), torch.arange(4))
    static = SamplingRules(torch.ones(4).cuda(), torch.arange(4).cuda())
    record = AcceptRecord.empty(4, 8, 32, "cuda")

    def call() -> None:
        ops.accept_target_only(drafts, lens, logits, static, vocab_size=5, out=record)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for batch in batches:
        drafts.copy_(batch.draft_tokens)
        lens.copy_(batch.prefix_lens)
        logits.copy_(batch.options["target_logits"])
        graph.replay()
        expected = reference.accept_chain(
            batch.draft_tokens,
            batch.prefix_lens,
            target_logits=batch.options["target_logits"],
            vocab_size=5,
            rule="target_only",
            sampling=sampling,
        )
        assert_same_record(record, expected)


@pytest.mark.parametrize("filters", [{"top_p": 0.5}, {"top_k": 2}])
def test_a_temperature_may_be_as_large_as_a_float_goes(
    device: str, filters: dict[str, float]
) -> None:
    # All tokens weigh the same, and no finite logit is too low to count.
    options = {
        name: torch.tensor([x], dtype=torch.int32 if name == "top_k" else torch.float32).to(device)
        for name, x in filters.items()
    }
    sampling = SamplingRules(
        torch.full((1,), 3e38, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
        coins=Coins(None, torch.tensor([0.75], device=device)),
        **options,
    )
    record = ops.accept_target_only(
        int32([[9]], device=device),
        int32([10], device=device),
        torch.tensor([[0.0, 3.0, 2.0, 1.0]], device=device),
        sampling,
    )
    # The two largest are kept, in the order of their ids 1 and 2.
    assert record.out_tokens.tolist() == [[2]]


def test_minus_zero_is_a_coin_of_zero(device: str) -> None:
    for coin in (0.0, -0.0):
        assert accept([B, D], coin, coin, device).out_tokens[0, 0] == B
        assert accept([B, D], 0.5, coin, device).out_tokens.tolist() == [[A, -1]]
