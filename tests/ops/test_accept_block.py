"""accept_block: the longest prefix of a chain whose coin keeps it, decided on the chain as a whole.

p = (1/4, 1/4, 1/4, 1/4), q = (1/2, 1/2, 0, 0): every draft has p / q = 1/2.

         r      Z of max(r p' - q', 0)      h = Z / (Z + 1 - r)
draft 1  1/2    2 * 1/8 = 1/4               1/3
draft 2  1/4    the end of the chain        1/4
"""

from __future__ import annotations

import math

import pytest
import torch
from accept_batches import assert_same_record, int32, random_batch
from registered_ops import assert_opcheck
from sampled_batches import random_sampled_batch
from specfast import AcceptRecord, Coins, Proposal, SamplingRules, Status, ops

A, B, C, D = range(4)
ONE_BELOW = 2.0**-24
HALVES = [0.5, 0.5, 0.0, 0.0]


def accept(
    tokens: list[int], coins: list[float], final: float, device: str, **options
) -> AcceptRecord:
    nodes = len(tokens) + 1
    given = Coins(
        torch.tensor([[*coins, 0.0]], device=device),
        torch.tensor([final], dtype=torch.float32).to(device),
    )
    seeds = torch.zeros(1, dtype=torch.int64, device=device)
    sampling = SamplingRules(torch.ones(1, device=device), seeds, coins=given)
    arguments = {
        "target_logits": torch.zeros(nodes, 4, device=device),
        "proposal": Proposal(probs=torch.tensor([HALVES] * (nodes - 1)).to(device)),
    }
    arguments |= options
    return ops.accept_block(
        int32([[9, *tokens]], device=device),
        int32([10], device=device),
        arguments.pop("target_logits"),
        sampling,
        arguments.pop("proposal"),
        **arguments,
    )


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (0.34, 0.25, 0),
        (0.33, 0.25, 1),
        (0.34, 0.25 - ONE_BELOW, 2),
        (0.99, 0.0, 2),
        (0.0, 0.99, 1),
    ],
)
def test_the_longest_kept_prefix_is_accepted(device: str, first, second, kept: int) -> None:
    record = accept([A, B], [first, second], 0.0, device)
    assert record.num_correct_drafts.tolist() == [kept]


def test_the_residual_of_the_kept_prefix_ends_the_path(device: str) -> None:
    # Nothing kept: max(p - q, 0), C and D. One draft: max(p / 2 - q, 0), the same two.
    # Both drafts: plain p.
    assert accept([A, B], [0.9, 0.9], 0.5, device).out_tokens.tolist() == [[D, -1, -1]]
    assert accept([A, B], [0.1, 0.9], 0.4, device).out_tokens.tolist() == [[A, C, -1]]
    assert accept([A, B], [0.9, 0.1], 0.4, device).out_tokens.tolist() == [[A, B, B]]


def test_a_draft_that_p_excludes_ends_the_block(device: str) -> None:
    logits = torch.zeros(3, 4, device=device)
    logits[0, A] = -math.inf
    logits[1:] = math.nan
    record = accept([A, B], [0.0, 0.0], 0.0, device, target_logits=logits)
    assert record.num_correct_drafts.tolist() == [0]
    # Rows behind it were not read.
    assert record.status.tolist() == [Status.OK]


@pytest.mark.parametrize(("coin", "kept"), [(0.5 - ONE_BELOW, 1), (0.5, 0)])
def test_a_row_without_a_value_is_the_end_of_the_chain(device: str, coin: float, kept: int) -> None:
    # The prefix before it stands for itself: r = 1/2. An end otherwise would change its law.
    logits = torch.zeros(3, 4, device=device)
    logits[1] = -math.inf
    record = accept([B, B], [coin, 0.0], 0.0, device, target_logits=logits)
    assert record.out_tokens.tolist() == [[B, 0, -1]] if kept else [[C, -1, -1]]
    assert record.status.tolist() == [Status.EMPTY_SUPPORT]


@pytest.mark.parametrize(("coin", "status"), [(0.0, Status.BAD_TOKEN), (0.9, Status.OK)])
def test_a_bad_id_is_the_end_of_the_chain(device: str, coin: float, status: Status) -> None:
    record = accept([B, -1, B], [coin, 0.0, 0.0], 0.6, device)
    assert record.num_correct_drafts.tolist() == [int(coin == 0)]
    assert record.status.tolist() == [status]


def test_one_draft_is_rejection(device: str) -> None:
    for seed in range(30):
        batch = random_sampled_batch(
            seed, "block", tree=False, q_form="probs", nodes=2, edits=bool(seed % 2)
        )
        block = batch.run(ops.accept_chain, device)
        batch.options["rule"] = "rejection"
        assert_same_record(batch.run(ops.accept_chain, device), block)


def test_at_temperature_0_it_is_greedy(device: str) -> None:
    for seed in range(20):
        batch = random_batch(seed, tree=False, ragged=bool(seed % 3))
        greedy = batch.run(ops.accept_chain, device)
        batch.options |= {
            "rule": "block",
            "sampling": SamplingRules(torch.zeros(4), torch.arange(4)),
            "proposal": Proposal(probs=torch.full((24, 5), math.nan)),
        }
        assert_same_record(batch.run(ops.accept_chain, device), greedy)


def test_the_field_s_name_agrees(device: str) -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).to(device)
    drafts, lens = int32([[9, A, B], [9, B, D]], device=device), int32([3, 4], device=device)
    sampling = SamplingRules(torch.ones(2), torch.tensor([5, 6]))
    sampling = SamplingRules(*(x.to(device) for x in (sampling.temperature, sampling.seeds)))
    proposal = Proposal(probs=torch.full((4, 4), 0.25, device=device))
    for block, op in ((True, ops.accept_block), (False, ops.accept_rejection)):
        assert_same_record(
            ops.verify_chain_rejection(drafts, logits, sampling, proposal, lens, block=block),
            op(drafts, lens, logits, sampling, proposal),
        )


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: accept([A, B], [0.5, 0.5], 0.0, device, logprobs="raw"))
