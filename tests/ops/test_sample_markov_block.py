"""sample_markov_block: drafts of a block, each after a bias that the draft before it gives.

token   w1 = one-hot   w2 column: what it makes likely      anchor 2, zeros for logits
  0                    1                                    step 0: 2 -> 0
  1                    1                                    step 1: 0 -> 1
  2                    0                                    step 2: 1 -> 1
"""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from accept_batches import int32, to_device
from guards import assert_written_whole, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from markov_batches import (
    assert_equals_the_reference,
    greedy,
    hand_drawn,
    random_call,
    run,
    strided_copy,
)
from registered_ops import assert_opcheck
from sampled_batches import Dice
from specfast import (
    Coins,
    DraftedBlock,
    Proposal,
    RowKind,
    SamplingRules,
    Status,
    ops,
    reference,
)
from torch import Tensor


def test_each_draft_leads_to_the_next(device: str) -> None:
    call = hand_drawn(device)
    block = ops.sample_markov_block(**call)
    assert block.tokens.tolist() == [[0, 1, 1]]
    assert call["logits"].tolist() == [[[5, 0, 0], [0, 5, 0], [0, 5, 0]]]
    assert block.records.kind.tolist() == [RowKind.POINT_MASS] * 3
    assert block.records.max.tolist() == [5.0] * 3
    assert block.status.tolist() == [Status.OK]


def test_the_sum_is_rounded_before_it_is_compared(device: str) -> None:
    """256.5 rounds to 256 in bf16, a tie that goes to the lower id."""
    one = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
    block = ops.sample_markov_block(
        torch.tensor([[[256.0, 256.0]]], dtype=torch.bfloat16, device=device),
        one,
        torch.tensor([[0.0], [0.5]], dtype=torch.bfloat16, device=device),
        int32([0], device=device),
        greedy(1, device),
        int32([0], device=device),
    )
    assert block.tokens.tolist() == [[0]]


@pytest.mark.parametrize("vocab", [1, 2, 7, 33, 1030])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, vocab: int, unsound: bool) -> None:
    for seed in range(18):
        assert_equals_the_reference(random_call(seed, vocab, unsound=unsound), device)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**31 - 1), vocab=st.integers(1, 40), unsound=st.booleans())
def test_any_call_equals_the_reference(seed: int, vocab: int, unsound: bool) -> None:
    assert_equals_the_reference(random_call(seed, vocab, unsound=unsound), "cpu")


def test_sums_of_any_weights_have_one_order() -> None:
    """Where sums are rounded, the order of adding up is part of the result."""
    dice = Dice(3)
    for rank in (1, 5, 8, 21, 64):
        call = random_call(rank * 3, 50, unsound=False, rank=rank)
        call["w1"] = dice.normal(*call["w1"].shape)
        call["w2"] = dice.normal(50, rank)
        call["logits"] = dice.normal(3, 4, 50)
        assert_equals_the_reference(call, "cpu")


def test_records_and_corrected_logits_are_the_q_of_a_chain(device: str) -> None:
    """What sample_rows says of the logits that are left: the same tokens and records."""
    dice = Dice(9)
    call = random_call(2, 400, unsound=False, rank=64)
    call |= {
        "logits": dice.normal(3, 4, 400).bfloat16(),
        "w1": dice.normal(400, 64).bfloat16(),
        "w2": (dice.normal(400, 64) / 4).bfloat16(),
        "anchors": int32([3, 4, 5]),
        "sampling": greedy(3, temperature=0.8, top_k=int32([0, 20, 0])),
    }
    call.pop("d2t", None)
    block, left = run(call, device)
    sampling, lens = to_device(call["sampling"], device), call["prefix_lens"].to(device)
    records = block.records.packed.view(3, 4, 8)
    for step in range(4):
        rows = ops.sample_rows(left[:, step], sampling, lens, level=step)
        assert torch.equal(rows.tokens[:, 0], block.tokens[:, step])
        assert torch.equal(rows.records.packed, records[:, step])
    drafts = torch.cat([call["anchors"][:, None].to(device), block.tokens], dim=1)
    proposal = Proposal(logits=left.contiguous().flatten(0, 1), records=block.records)
    target = torch.cat([left, left[:, :1]], dim=1).contiguous().flatten(0, 1)
    record = ops.accept_rejection(drafts.int(), lens, target, sampling, proposal)
    assert record.num_correct_drafts.tolist() == [4] * 3  # p = q accepts everything


def test_the_bias_comes_from_the_draft_that_was_drawn(device: str) -> None:
    """Sampled: the logits of step 1 name the token of step 0."""
    call = hand_drawn(device, temperature=1.0, count=200)
    call["w2"] = torch.eye(3, device=device)
    block = ops.sample_markov_block(**call)
    after = torch.nn.functional.one_hot(block.tokens[:, :-1].long(), 3)
    assert torch.equal(call["logits"][:, 1:], after.float())
    assert len({tuple(row) for row in block.tokens.tolist()}) > 10


def test_padded_slots_are_left_alone(device: str) -> None:
    call = hand_drawn(device, count=3)
    call["anchors"] = int32([2, -1, 2], device=device)
    call["logits"][1] = math.nan
    block = ops.sample_markov_block(**call)
    assert block.tokens.tolist() == [[0, 1, 1], [-1, -1, -1], [0, 1, 1]]
    assert block.status.tolist() == [0, 0, 0]
    assert bool(call["logits"][1].isnan().all())
    assert block.records.kind[3:6].tolist() == [RowKind.UNUSABLE] * 3


def test_a_token_without_an_embedding_adds_nothing(device: str) -> None:
    call = hand_drawn(device)
    call["anchors"] = int32([3], device=device)
    call["logits"][0, 0, 2] = 1
    block = ops.sample_markov_block(**call)
    assert block.tokens.tolist() == [[2, 0, 1]]
    assert block.status.tolist() == [Status.BAD_TOKEN]


def test_a_small_vocabulary_is_mapped_before_the_next_step(device: str) -> None:
    """Column 0 is target token 1, whose embedding leads to column 1, token 2."""
    block = ops.sample_markov_block(
        torch.tensor([[[1.0, 0], [0, 0], [0, 0]]], device=device),
        torch.eye(3, device=device),
        torch.tensor([[0.0, 0, 0], [0, 5, 0]], device=device),
        int32([0], device=device),
        greedy(1, device),
        int32([0], device=device),
        d2t=torch.tensor([1, 1], device=device),
    )
    assert block.tokens.tolist() == [[1, 2, 1]]


def test_a_request_does_not_depend_on_its_batch(device: str) -> None:
    """In any slot, beside padding, in a batch of two launches; also in tensor cores."""
    dice = Dice(1)
    one = random_call(2, 300, unsound=False, rank=64)
    one |= {
        "logits": dice.normal(3, 4, 300).bfloat16(),
        "w1": dice.normal(300, 64).bfloat16(),
        "w2": dice.normal(300, 64).bfloat16(),
        "anchors": int32([1, 2, 3]),
        "sampling": greedy(3, temperature=0.9),
    }
    one.pop("d2t", None)
    alone, alone_logits = run(one, device)
    for size in (7, 40, 100):
        places = torch.tensor([0, 3, size - 1])
        many = {**one, "logits": torch.zeros(size, 4, 300, dtype=torch.bfloat16)}
        many["logits"][places] = one["logits"]
        many["anchors"] = torch.full((size,), -1, dtype=torch.int32)
        many["anchors"][places] = one["anchors"]
        many["prefix_lens"] = torch.zeros(size, dtype=torch.int32)
        many["prefix_lens"][places] = one["prefix_lens"]
        many["sampling"] = greedy(size, temperature=0.9)
        many["sampling"].seeds[places] = one["sampling"].seeds
        together, left = run(many, device)
        places = places.to(device)
        assert torch.equal(together.tokens[places], alone.tokens)
        assert torch.equal(left[places], alone_logits)
        records = together.records.packed.view(size, 4, 8)
        assert torch.equal(records[places].flatten(0, 1), alone.records.packed)


def test_replays_of_a_graph_draw_anew(device: str) -> None:
    """Each replay starts from the logits that it is given, in the round that it is given."""
    call = hand_drawn(device, temperature=30.0, count=5)
    base = call["logits"].clone()
    lens = call["prefix_lens"]
    out = DraftedBlock.empty(5, 3, device)
    workspace = ops.markov_workspace(device)

    def step() -> None:
        call["logits"].copy_(base)
        ops.sample_markov_block(**call, out=out, workspace=workspace)
        lens.add_(1)

    again = step
    if device == "cuda":
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        again = graph.replay
    seen = set()
    for number in range(8):
        lens.fill_(number)
        again()
        cpu = hand_drawn("cpu", temperature=30.0, count=5)
        cpu["prefix_lens"].fill_(number)
        expected = reference.sample_markov_block(**cpu)
        assert torch.equal(out.tokens.cpu(), expected.tokens)
        assert torch.equal(out.records.packed.cpu(), expected.records.packed)
        seen.add(tuple(out.tokens.flatten().tolist()))
    assert len(seen) == 8


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(9):
        call = {
            name: to_device(value, device)
            for name, value in random_call(seed, 9, unsound=bool(seed % 2)).items()
        }
        base = call["logits"].clone()
        inputs = [call[name] for name in ("w1", "w2", "anchors", "prefix_lens")]
        inputs += [
            value
            for field in fields(call["sampling"])
            if isinstance(value := getattr(call["sampling"], field.name), Tensor)
        ]

        def again(out: DraftedBlock, call: dict = call, base: Tensor = base) -> None:
            call["logits"].copy_(base)
            ops.sample_markov_block(**call, out=out)

        template = DraftedBlock.empty(*base.shape[:2], device)
        again(template)
        assert_written_whole(again, template, device, *inputs)
        around = strided_copy(base, device)
        beside = around.as_strided(around.shape[:2], around.stride()[:2], 0)
        with unchanged(beside):  # the column before the first
            ops.sample_markov_block(**{**call, "logits": around})


def test_no_requests(device: str) -> None:
    block = ops.sample_markov_block(**hand_drawn(device, count=0))
    assert block.tokens.shape == (0, 3)


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: ops.sample_markov_block(**hand_drawn(device)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"logits": torch.zeros(1, 3)}, r"expected logits of shape \[B, G, V\], got \[1, 3\]"),
        ({"logits": torch.zeros(1, 0, 3)}, r"number of steps G in \[1, 65536\], got 0"),
        ({"logits": torch.zeros(1, 3, 3).half()}, "logits of dtype float32 or bfloat16"),
        (
            {"logits": torch.zeros(1, 1, 3).expand(1, 3, 3)},
            r"logits with rows of their own, got strides \[3, 0, 1\]",
        ),
        ({"w1": torch.eye(4)}, r"expected w2 of shape \[V=3, r=4\], got \[3, 3\]"),
        ({"w1": torch.eye(3).bfloat16()}, "expected w1 and w2 of one dtype"),
        ({"w1": torch.eye(3).half()}, "w1 of dtype float32 or bfloat16, got float16"),
        ({"w2": torch.zeros(4, 3)}, r"expected w2 of shape \[V=3, r=3\], got \[4, 3\]"),
        ({"w1": torch.eye(3).t()[:, :2]}, "expected w1 to be contiguous"),
        (
            {"logits": torch.zeros(1, 3, 3).bfloat16()},
            "expected w1 and w2 of dtype bfloat16 with logits of dtype bfloat16, got float32",
        ),
        ({"w1": torch.zeros(3, 1025), "w2": torch.zeros(3, 1025)}, r"rank r of w1 in \[1, 1024\]"),
        ({"w1": torch.zeros(0, 3)}, "number of rows E of w1"),
        ({"anchors": torch.zeros(1)}, "anchors of dtype int32 or int64"),
        ({"anchors": int32([1, 2])}, r"expected anchors of shape \[B=1\], got \[2\]"),
        ({"prefix_lens": torch.zeros(1)}, "prefix_lens of dtype int32"),
        ({"d2t": torch.zeros(4, dtype=torch.int64)}, r"d2t of shape \[V=3\]"),
        ({"sampling": None}, "expected sampling as SamplingRules, got None"),
        (
            {"sampling": SamplingRules([1.0], torch.zeros(1, dtype=torch.int64))},  # type: ignore[arg-type]
            "expected sampling.temperature as Tensor, got list",
        ),
        ({"sampling": greedy(2)}, r"sampling.temperature of shape \[B=1\]"),
        ({"sampling": greedy(1, coins=Coins())}, "temperature, filters and seeds alone"),
        ({"sampling": greedy(1, token_bitmask=int32([[7]]))}, "got edits, penalties, a bitmask"),
        ({"out": DraftedBlock.empty(1, 2, "cpu")}, r"out.tokens of shape \[B=1, G=3\]"),
        ({"workspace": torch.zeros(3, dtype=torch.int64)}, r"workspace of shape \[words=18472\]"),
    ],
)
def test_wrong_arguments(wrong: dict, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"sample_markov_block: .*{message}"):
        ops.sample_markov_block(**{**hand_drawn("cpu"), **wrong})
