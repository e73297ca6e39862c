"""accept_rejection: min(1, p / q), and the residual max(p - q, 0) where a draft is rejected.

                     A     B     C     D
p                   1/4   1/4   1/4   1/4
q                   1/2   1/2    0     0        B: accepted below 1/2
rejected             0     0    1/4   1/4       C or D
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from accept_batches import assert_same_record, int32, random_batch
from registered_ops import assert_opcheck
from sampled_batches import random_sampled_batch
from specfast import AcceptRecord, Coins, Proposal, RowRecord, SamplingRules, Status, ops

A, B, C, D = range(4)
ONE_BELOW = 2.0**-24
HALVES = [0.5, 0.5, 0.0, 0.0]


def rules(accept: list[float], final: float) -> SamplingRules:
    seeds = torch.zeros(1, dtype=torch.int64)
    coins = Coins(torch.tensor([accept]), torch.tensor([final], dtype=torch.float32))
    return SamplingRules(torch.ones(1), seeds, coins=coins)


def on(device: str, value):
    """A record or tensor with all its tensors there."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if hasattr(value, "__dict__"):
        return type(value)(**{k: on(device, v) for k, v in vars(value).items()})
    return value


def accept(
    tokens: list[int], coins: list[float], final: float, q: list[float], device: str, **options
) -> AcceptRecord:
    """A chain under a target without preference; q is that of every row."""
    nodes = len(tokens) + 1
    proposal = options.pop("proposal", Proposal(probs=torch.tensor([q] * (nodes - 1))))
    return ops.accept_rejection(
        int32([[9, *tokens]], device=device),
        int32([10], device=device),
        torch.zeros(nodes, 4, device=device),
        on(device, rules([*coins, 0.0], final)),
        on(device, proposal),
        **options,
    )


def siblings(tokens: list[int], coins: list[float], final: float, q: list[float], device: str):
    nodes = len(tokens) + 1
    return accept(
        tokens,
        coins,
        final,
        q,
        device,
        proposal=Proposal(probs=torch.tensor([q] * nodes), without_replacement=True),
        retrieve_next_token=int32([[1, *[-1] * (nodes - 1)]], device=device),
        retrieve_next_sibling=int32([[-1, *range(2, nodes), -1]], device=device),
        width=2,
    )


@pytest.mark.parametrize(("coin", "accepted"), [(0.0, 1), (0.5 - ONE_BELOW, 1), (0.5, 0), (1.0, 0)])
def test_accepted_with_p_over_q(device: str, coin: float, accepted: int) -> None:
    record = accept([B], [coin], 0.0, HALVES, device)
    assert record.num_correct_drafts.tolist() == [accepted]


@pytest.mark.parametrize(("final", "token"), [(0.0, C), (0.5 - ONE_BELOW, C), (0.5, D), (1.0, D)])
def test_the_residual_ends_the_path(device: str, final: float, token: int) -> None:
    assert accept([B], [0.5], final, HALVES, device).out_tokens.tolist() == [[token, -1]]


def test_where_q_is_p_every_draft_is_accepted(device: str) -> None:
    record = accept([D, A, B], [1.0] * 3, 0.3, [0.25] * 4, device)
    assert record.out_tokens.tolist() == [[D, A, B, B]]


@pytest.mark.parametrize(("second", "row"), [(0.5 - ONE_BELOW, 2), (0.5, -1)])
def test_a_sibling_is_tested_against_the_residual(device: str, second: float, row: int) -> None:
    # B rejected: the residual is A, C, D = 1/2, 1/4, 1/4, and q without B is C, D = 1/2, 1/2.
    record = siblings([B, C], [0.5, second], 0.0, [0.0, 0.75, 0.125, 0.125], device)
    assert record.accept_index.tolist() == [[0, row]]
    # C rejected as well: A alone is left.
    assert record.out_tokens[0, 0] == (C if row > 0 else A)


def test_a_sibling_outside_the_residual_is_rejected(device: str) -> None:
    record = siblings([B, A], [0.5, 0.0], 0.6, HALVES, device)
    assert record.out_tokens.tolist() == [[D, -1]]


def test_a_repeated_sibling_is_never_accepted(device: str) -> None:
    record = siblings([B, B], [0.5, 0.0], 0.6, HALVES, device)
    assert record.out_tokens.tolist() == [[D, -1]]


@pytest.mark.parametrize("bad", [math.nan, -0.25, 1.001, math.inf])
def test_what_is_no_probability_rejects_the_draft(device: str, bad: float) -> None:
    record = accept([B], [0.0], 0.3, [0.5, bad, 0.0, 0.0], device)
    assert record.num_correct_drafts.tolist() == [0]
    assert record.status.tolist() == [Status.BAD_Q]


def test_a_bad_value_elsewhere_is_none_of_the_draft_s_business(device: str) -> None:
    record = accept([B], [0.0], 0.3, [math.nan, 0.5, 0.0, 0.0], device)
    assert record.num_correct_drafts.tolist() == [1]
    assert record.status.tolist() == [Status.OK]


def test_rounding_above_1_counts_as_1(device: str) -> None:
    record = accept([B], [0.25 - ONE_BELOW], 0.0, [0.0, 1.0004, 0.0, 0.0], device)
    assert record.num_correct_drafts.tolist() == [1]
    record = accept([B], [0.25], 0.0, [0.0, 1.0004, 0.0, 0.0], device)
    assert record.num_correct_drafts.tolist() == [0]
    assert record.status.tolist() == [Status.OK]


def test_a_residual_without_mass_gives_the_last_token(device: str) -> None:
    # q is at least p everywhere: not what a draft could have been drawn from.
    record = accept([B], [0.99], 0.0, [0.5] * 4, device)
    assert record.out_tokens.tolist() == [[D, -1]]
    assert record.status.tolist() == [Status.ZERO_RESIDUAL]


@pytest.mark.parametrize("row", [-1, 3, 2**31 - 1])
def test_a_draft_without_a_row_of_q_is_rejected(device: str, row: int) -> None:
    proposal = Proposal(probs=torch.tensor([HALVES] * 3), row_of_node=int32([[row, 0]]))
    record = accept([B], [0.0], 0.3, HALVES, device, proposal=proposal)
    assert record.out_tokens.tolist() == [[B, -1]]
    assert record.num_correct_drafts.tolist() == [0]
    assert record.status.tolist() == [Status.BAD_Q]


def test_the_forms_of_q_agree(device: str) -> None:
    dense = accept([B, A], [0.3, 0.6], 0.7, HALVES, device)
    for proposal in (
        Proposal(
            sparse_ids=torch.tensor([[1, 0, 3]] * 2),
            sparse_values=torch.tensor([[0.5, 0.5, 0]] * 2),
        ),
        # Draft ids 0, 1, 2 are A, B and D.
        Proposal(probs=torch.tensor([[0.5, 0.5, 0]] * 2), d2t=torch.tensor([0, 0, 1])),
        Proposal(probs=torch.tensor([HALVES]), row_of_node=int32([[0, 0, 0]])),
    ):
        same = accept([B, A], [0.3, 0.6], 0.7, HALVES, device, proposal=proposal)
        assert_same_record(same, dense)


def test_the_record_of_a_draw_is_its_q(device: str) -> None:
    # Of equal logits a top-k of 2 keeps A and B, as HALVES says it.
    logits = torch.zeros(2, 4)
    seeds = torch.zeros(1, dtype=torch.int64)
    drawn = ops.sample_rows(
        logits,
        SamplingRules(torch.ones(1), seeds, top_k=int32([2])),
        int32([10]),
        request_of_row=int32([0, 0]),
    )
    assert set(drawn.tokens.flatten().tolist()) <= {A, B}
    proposal = Proposal(logits=logits, records=drawn.records)
    for coin in (0.5 - ONE_BELOW, 0.5):
        recorded = accept([B, A], [coin, 0.6], 0.7, HALVES, device, proposal=proposal)
        assert_same_record(recorded, accept([B, A], [coin, 0.6], 0.7, HALVES, device))


def test_records_of_other_rows_do_no_harm(device: str) -> None:
    # Whatever the words say, the record is legal and the same on every run.
    words = torch.randint(-(2**31), 2**31 - 1, (24, 8), generator=torch.Generator().manual_seed(0))
    batch = random_sampled_batch(3, "rejection", tree=False, q_form="records")
    batch.options["proposal"] = Proposal(
        logits=torch.randn(24, 5), records=RowRecord(words.to(torch.int32))
    )
    record = batch.run(ops.accept_chain, device)
    assert ((record.accept_lens >= 0) & (record.accept_lens <= 6)).all()
    assert (record.out_tokens < 5).all()
    assert_same_record(batch.run(ops.accept_chain, device), record)


@pytest.mark.parametrize("tree", [True, False])
def test_at_temperature_0_it_is_greedy(device: str, tree: bool) -> None:
    op = ops.accept_tree if tree else ops.accept_chain
    for seed in range(20):
        batch = random_batch(seed, tree=tree, unsound=bool(seed % 2), ragged=bool(seed % 3))
        greedy = batch.run(op, device)
        # q is not looked at: it may be anything.
        batch.options |= {
            "rule": "rejection",
            "sampling": SamplingRules(torch.zeros(4), torch.arange(4)),
            "proposal": Proposal(probs=torch.full((24, 5), math.nan), without_replacement=True),
        }
        assert_same_record(batch.run(op, device), greedy)


def test_the_last_node_needs_no_row_of_q(device: str) -> None:
    for seed in range(10):
        batch = random_sampled_batch(seed, "rejection", tree=False, q_form="probs", nodes=5)
        rows = torch.rand(4, 5, 5).softmax(-1)
        records = []
        for probs in (rows.flatten(0, 1), rows[:, :4].flatten(0, 1)):
            batch.options["proposal"] = replace(Proposal(), probs=probs)
            records.append(batch.run(ops.accept_chain, device))
        assert_same_record(*records)


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: accept([B], [0.5], 0.0, HALVES, device, logprobs="processed"))
