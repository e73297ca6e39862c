"""walk_selector: a candidate of each slot, by scores that the token before has a part in.

anchor 0      slot 0: 4 (0)  5 (1)      slot 1: 2 (0)  3 (1)        (unary scores)
5 before 2 is worth 4, so the walk takes 5, then 2 with 0 + 4.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from accept_batches import int32, to_device
from chi_square import assert_follows
from guards import assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from sampled_batches import Dice, random_rules
from specfast import Coins, Proposal, SamplingRules, SelectedWalk, Status, ops, reference


def plain(count: int, temperature: float = 0.0, **options) -> SamplingRules:
    seeds = torch.arange(count, dtype=torch.int64)
    return SamplingRules(torch.full((count,), temperature), seeds, **options)


def hand_drawn(device: str, temperature: float = 0.0, count: int = 1) -> dict:
    predecessor, successor = torch.zeros(6, 8), torch.zeros(6, 8)
    predecessor[5, 0] = successor[2, 0] = 2
    call = {
        "candidates": torch.tensor([[[4, 5], [2, 3]]]).repeat(count, 1, 1),
        "unary": torch.tensor([[[0.0, 1], [0, 1]]]).repeat(count, 1, 1),
        "keys": torch.ones(count, 2, 8),
        "predecessor": predecessor,
        "successor": successor,
        "anchors": torch.zeros(count, dtype=torch.int64),
        "sampling": plain(count, temperature),
        "prefix_lens": torch.zeros(count, dtype=torch.int32),
    }
    return {name: to_device(value, device) for name, value in call.items()}


def random_call(seed: int, *, unsound: bool) -> dict:
    dice = Dice(seed)
    batch, slots = 3, int(dice.integers(1, 8))
    count, vocab = int(dice.some_of([1, 2, 5, 16, 32])), int(dice.integers(40, 90))
    rank = int(dice.some_of([8, 8, 16, 24, 40, 264]))
    dtype = (torch.float32, torch.bfloat16)[seed % 2]
    candidates = torch.stack(
        [torch.randperm(vocab, generator=dice.rng)[:count] for _ in range(batch * slots)]
    ).view(batch, slots, count)
    unary = (
        dice.normal(batch, slots, count).round() if seed % 3 else dice.normal(batch, slots, count)
    )
    if unsound:
        unary = dice.with_faults(unary, [math.nan, math.inf, -math.inf, -0.0], 0.2)
        unary[dice.uniform(batch, slots) < 0.2] = -math.inf
        candidates[dice.uniform(batch, slots, count) < 0.1] = -1
        candidates[dice.uniform(batch, slots, count) < 0.1] = vocab
    rules = random_rules(dice, batch, batch, vocab, edits=False, unsound=unsound)
    # Other filters have no part in q; a bad one is not looked at.
    rules = SamplingRules(rules.temperature, rules.seeds, rules.top_k)
    return {
        "candidates": candidates if seed % 5 else candidates.int(),
        "unary": unary,
        "keys": dice.normal(batch, slots, rank),
        "predecessor": (dice.normal(vocab, rank) / 8).to(dtype),
        "successor": (dice.normal(vocab, rank) / 8).to(dtype),
        "anchors": dice.integers(-1 if unsound else 0, vocab + unsound, batch),
        "sampling": rules,
        "prefix_lens": dice.integers(-1 if unsound else 0, 50, batch),
    }


def run(call: dict, device: str, **more) -> SelectedWalk:
    return ops.walk_selector(**{k: to_device(v, device) for k, v in call.items()}, **more)


def assert_equals_the_reference(call: dict, device: str) -> None:
    got, expected = run(call, device), reference.walk_selector(**call)
    for name in ("status", "tokens", "q"):
        mine, theirs = getattr(got, name).cpu(), getattr(expected, name)
        assert torch.equal(mine, theirs), f"{name}: expected\n{theirs}\ngot\n{mine}"


def test_a_token_counts_for_the_next_slot(device: str) -> None:
    walk = ops.walk_selector(**hand_drawn(device))
    assert walk.tokens.tolist() == [[5, 2]]
    assert walk.q.tolist() == [[[0, 1], [1, 0]]]
    assert walk.status.tolist() == [Status.OK]


def test_it_walks_and_does_not_look_ahead(device: str) -> None:
    """The best path is 4, 2 with 0 + 9; the walk takes 5 first and never sees it."""
    call = hand_drawn(device)
    call["predecessor"][5] = 0
    call["predecessor"][4, 0] = 4.5
    assert ops.walk_selector(**call).tokens.tolist() == [[5, 3]]


def test_ties_go_to_the_first_candidate(device: str) -> None:
    call = hand_drawn(device)
    call["unary"][:] = 1
    call["candidates"][0, 0] = torch.tensor([5, 4])
    call["predecessor"][:] = 0
    assert ops.walk_selector(**call).tokens.tolist() == [[5, 2]]


@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, unsound: bool) -> None:
    for seed in range(25):
        assert_equals_the_reference(random_call(seed, unsound=unsound), device)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31 - 1), unsound=st.booleans())
def test_any_call_equals_the_reference(seed: int, unsound: bool) -> None:
    assert_equals_the_reference(random_call(seed, unsound=unsound), "cpu")


def test_draws_follow_the_q_that_is_handed_over(device: str) -> None:
    """Pairs of tokens: q of slot 1 is that after the token of slot 0."""
    call = hand_drawn(device, temperature=1.0, count=4000)
    walk = ops.walk_selector(**call)
    first = torch.tensor([0.0, 1]).double().softmax(0)
    after = {4: torch.tensor([0.0, 1]).double().softmax(0)}
    after[5] = torch.tensor([4.0, 1]).double().softmax(0)
    law = {
        (a, b): float(first[i] * after[a][j])
        for i, a in enumerate((4, 5))
        for j, b in enumerate((2, 3))
    }
    assert_follows(Counter(map(tuple, walk.tokens.tolist())), law)
    rows = torch.where((walk.tokens[:, :1] == 5).cpu(), after[5], after[4])
    torch.testing.assert_close(walk.q[:, 1].cpu().double(), rows, rtol=1e-5, atol=0)


def test_the_walk_is_a_sparse_proposal(device: str) -> None:
    """A target that says what q says accepts everything."""
    call = random_call(2, unsound=False)
    call["sampling"].temperature[:] = 1
    call["sampling"].top_k = None
    walk = run(call, device)
    slots, vocab = walk.tokens.shape[1], len(call["predecessor"])
    ids = call["candidates"].to(device)
    target = torch.full((3, slots + 1, vocab), -math.inf, device=device)
    target[:, :slots].scatter_(2, ids.long(), walk.q.log())
    target[:, slots] = 0
    drafts = torch.cat([call["anchors"][:, None].to(device), walk.tokens], dim=1)
    proposal = Proposal(sparse_ids=ids.flatten(0, 1), sparse_values=walk.q.flatten(0, 1))
    sampling = to_device(call["sampling"], device)
    record = ops.accept_rejection(
        drafts, call["prefix_lens"].to(device), target.flatten(0, 1), sampling, proposal
    )
    assert record.num_correct_drafts.tolist() == [slots] * 3


def test_top_k_1_is_greedy_and_other_filters_have_no_part(device: str) -> None:
    call = hand_drawn(device, temperature=1.0, count=50)
    drawn = ops.walk_selector(**call)
    assert len({tuple(row) for row in drawn.tokens.tolist()}) == 4
    odd = replace(
        call["sampling"],
        top_k=torch.full((50,), 2, dtype=torch.int32, device=device),
        top_p=torch.full((50,), 0.1, device=device),
    )
    filtered = ops.walk_selector(**{**call, "sampling": odd})
    assert torch.equal(filtered.q, drawn.q)
    ones = replace(odd, top_k=torch.ones(50, dtype=torch.int32, device=device))
    assert ops.walk_selector(**{**call, "sampling": ones}).tokens.tolist() == [[5, 2]] * 50


def test_padded_and_bad_requests(device: str) -> None:
    call = hand_drawn(device, count=5)
    call["anchors"] = torch.tensor([-1, 6, 0, 0, 0], device=device)
    call["unary"][2, 0] = math.nan
    call["unary"][3, 0] = -math.inf
    call["candidates"][4, 0, 1] = 6
    walk = ops.walk_selector(**call)
    assert walk.tokens.tolist() == [[-1, -1], [5, 2], [-1, 3], [-1, 3], [4, 3]]
    expected = [Status.OK, Status.BAD_TOKEN, Status.NAN_LOGITS, Status.EMPTY_SUPPORT]
    assert walk.status.tolist() == [*expected, Status.BAD_TOKEN]
    assert walk.q.sum(2).tolist() == [[0, 0], [1, 1], [0, 1], [0, 1], [1, 1]]


def test_a_request_does_not_depend_on_its_batch(device: str) -> None:
    call = random_call(4, unsound=False)
    whole = run(call, device)
    for b in range(3):
        one = {
            name: value if name in ("predecessor", "successor", "sampling") else value[b : b + 1]
            for name, value in call.items()
        }
        rules = call["sampling"]
        top_k = None if rules.top_k is None else rules.top_k[b : b + 1]
        one["sampling"] = SamplingRules(rules.temperature[b : b + 1], rules.seeds[b : b + 1], top_k)
        alone = run(one, device)
        assert torch.equal(alone.tokens[0], whole.tokens[b])
        assert torch.equal(alone.q[0], whole.q[b])


def test_replays_of_a_graph_draw_anew(device: str) -> None:
    call = hand_drawn(device, temperature=3.0, count=12)
    out = SelectedWalk.empty(12, 2, 2, device)
    lens = call["prefix_lens"]

    def again() -> None:
        ops.walk_selector(**call, out=out)

    if device == "cuda":
        again()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.walk_selector(**call, out=out)
        again = graph.replay
    seen = set()
    for number in range(6):
        lens.fill_(number)
        again()
        cpu = hand_drawn("cpu", temperature=3.0, count=12)
        cpu["prefix_lens"].fill_(number)
        expected = reference.walk_selector(**cpu)
        assert torch.equal(out.tokens.cpu(), expected.tokens)
        assert torch.equal(out.q.cpu(), expected.q)
        seen.add(tuple(out.tokens.flatten().tolist()))
    assert len(seen) == 6


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(8):
        call = {k: to_device(v, device) for k, v in random_call(seed, unsound=seed > 3).items()}
        inputs = [value for value in call.values() if isinstance(value, torch.Tensor)]
        assert_written_whole(
            lambda out, call=call: ops.walk_selector(**call, out=out),
            ops.walk_selector(**call),
            device,
            *inputs,
        )


def test_no_requests(device: str) -> None:
    assert ops.walk_selector(**hand_drawn(device, count=0)).tokens.shape == (0, 2)


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: ops.walk_selector(**hand_drawn(device)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"candidates": torch.zeros(1, 2)}, "candidates of dtype int32 or int64, got float32"),
        ({"candidates": int32([[1, 2]])}, r"candidates of shape \[B, M, K\], got \[1, 2\]"),
        ({"candidates": torch.zeros(1, 2, 33).long()}, r"candidates K in \[1, 32\], got 33"),
        ({"candidates": torch.zeros(1, 65, 2).long()}, r"slots M in \[1, 64\], got 65"),
        ({"unary": torch.zeros(1, 2, 3)}, r"unary of shape \[B=1, M=2, K=2\], got \[1, 2, 3\]"),
        ({"unary": torch.zeros(1, 2, 2).half()}, "unary of dtype float32, got float16"),
        ({"keys": torch.ones(1, 2, 16)}, r"predecessor of shape \[V, R=16\], got \[6, 8\]"),
        ({"predecessor": torch.zeros(6, 8).half()}, "predecessor of dtype float32 or bfloat16"),
        ({"predecessor": torch.zeros(6, 8).bfloat16()}, "predecessor and successor of one dtype"),
        ({"successor": torch.zeros(7, 8)}, r"successor of shape \[V=6, R=8\], got \[7, 8\]"),
        ({"successor": torch.zeros(8, 6).t()}, "expected successor to be contiguous"),
        ({"successor": torch.zeros(49)[1:].view(6, 8)}, "successor to start at a multiple of 16"),
        ({"anchors": torch.zeros(1)}, "anchors of dtype int32 or int64"),
        ({"prefix_lens": torch.zeros(1)}, "prefix_lens of dtype int32"),
        ({"sampling": None}, "expected sampling as SamplingRules, got None"),
        (
            {"sampling": SamplingRules([1.0], torch.zeros(1, dtype=torch.int64))},  # type: ignore[arg-type]
            "expected sampling.temperature as Tensor, got list",
        ),
        ({"sampling": plain(2)}, r"sampling.temperature of shape \[B=1\]"),
        ({"sampling": plain(1, coins=Coins())}, "temperature, filters and seeds alone"),
        ({"out": SelectedWalk.empty(1, 2, 3, "cpu")}, r"out.q of shape \[B=1, M=2, K=2\]"),
    ],
)
def test_wrong_arguments(wrong: dict, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"walk_selector: .*{message}"):
        ops.walk_selector(**{**hand_drawn("cpu"), **wrong})


@pytest.mark.parametrize(("rank", "message"), [(4, r"in \[8, 512\]"), (12, "multiple of 8")])
def test_wrong_ranks(rank: int, message: str) -> None:
    codebooks = {name: torch.zeros(6, rank) for name in ("predecessor", "successor")}
    with pytest.raises(RuntimeError, match=f"rank R of keys.*{message}"):
        ops.walk_selector(**{**hand_drawn("cpu"), **codebooks, "keys": torch.ones(1, 2, rank)})
