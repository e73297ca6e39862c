"""sample_rows: draws without replacement, and the distribution that they come from.

p of equal logits    A 1/4   B 1/4   C 1/4   D 1/4
first draw C         A 1/3   B 1/3     -     D 1/3      second draw from these, and so on
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from accept_batches import int32, to_device
from guards import assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from sampled_batches import Dice, random_rules
from specfast import (
    LogitEdits,
    Proposal,
    RowKind,
    RowRecord,
    SampledRows,
    SamplingRules,
    Status,
    ops,
    reference,
)


def rules(count: int, device: str, temperature: float = 1.0, **options) -> SamplingRules:
    return SamplingRules(
        torch.full((count,), temperature, device=device),
        torch.arange(count, dtype=torch.int64, device=device),
        **options,
    )


def random_call(seed: int, vocab: int, *, unsound: bool) -> dict:
    """Arguments whose rows belong to any request, at any level and slot."""
    dice = Dice(seed)
    num_requests, num_rows = 3, 5
    dtype = (torch.float32, torch.bfloat16, torch.float16)[seed % 3]
    logits = (dice.normal(num_rows, vocab + 2) * dice.some_of([0.1, 1, 5], num_rows, 1)).to(dtype)
    if dice.happens(0.4):
        logits = logits.round()
    if unsound:
        logits = dice.with_faults(
            logits.float(), [math.nan, math.inf, -math.inf, -0.0, 0.0], 0.2
        ).to(dtype)
        logits[dice.uniform(num_rows) < 0.1] = -math.inf
        logits[dice.uniform(num_rows) < 0.1] = math.nan
    call = {
        "logits": logits[:, 1:],
        "sampling": random_rules(
            dice, num_requests, num_rows, vocab, edits=dice.happens(0.5), unsound=unsound
        ),
        "prefix_lens": dice.integers(-2 if unsound else 0, 50, num_requests),
        "vocab_size": vocab,
        "request_of_row": dice.integers(-unsound, num_requests + unsound, num_rows),
        "level": int(dice.integers(0, 4)),
        "num_draws": int(dice.integers(0, 5)),
        "purpose": "final" if dice.happens(0.3) else "draft",
    }
    if dice.happens(0.5):
        call["slot_of_row"] = dice.integers(0, 4, num_rows)
    return call


def run(call: dict, device: str, **more) -> SampledRows:
    return ops.sample_rows(**{k: to_device(v, device) for k, v in call.items()}, **more)


def assert_same_rows(got: SampledRows, expected: SampledRows) -> None:
    for name in ("status", "tokens"):
        mine, theirs = getattr(got, name).cpu(), getattr(expected, name)
        assert torch.equal(mine, theirs), f"{name}: expected\n{theirs}\ngot\n{mine}"
    mine, theirs = got.records.packed.cpu(), expected.records.packed
    assert torch.equal(mine, theirs), f"records: expected\n{theirs}\ngot\n{mine}"


@pytest.mark.parametrize("vocab", [1, 2, 7, 33, 1030, 3000])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, vocab: int, unsound: bool) -> None:
    for seed in range(25):
        call = random_call(seed, vocab, unsound=unsound)
        assert_same_rows(run(call, device), reference.sample_rows(**call))


@settings(max_examples=200)
@given(seed=st.integers(0, 2**31 - 1), vocab=st.integers(1, 40), unsound=st.booleans())
def test_any_call_equals_the_reference(seed: int, vocab: int, unsound: bool) -> None:
    call = random_call(seed, vocab, unsound=unsound)
    assert_same_rows(run(call, "cpu"), reference.sample_rows(**call))


def test_draws_take_every_token_once(device: str) -> None:
    rows = ops.sample_rows(
        torch.zeros(50, 4, device=device),
        rules(50, device),
        torch.zeros(50, dtype=torch.int32, device=device),
        num_draws=6,
    )
    tokens = rows.tokens.tolist()
    assert all(sorted(row[:4]) == [0, 1, 2, 3] and row[4:] == [-1, -1] for row in tokens)
    assert len({tuple(row) for row in tokens}) > 10


def test_only_kept_tokens_are_drawn(device: str) -> None:
    rows = ops.sample_rows(
        torch.tensor([[0.0, 3, 1, 2, 3]] * 20, device=device),
        rules(20, device, top_k=int32([3] * 20, device=device)),
        torch.zeros(20, dtype=torch.int32, device=device),
        num_draws=4,
    )
    assert all(sorted(row) == [-1, 1, 3, 4] for row in rows.tokens.tolist())
    assert rows.records.cut_value.tolist() == [2.0] * 20
    assert rows.records.cut_id.tolist() == [3] * 20


def test_the_record_of_equal_logits(device: str) -> None:
    rows = ops.sample_rows(
        torch.full((1, 4), 2.5, device=device),
        rules(1, device, temperature=0.5),
        int32([0], device=device),
    )
    record = rows.records
    assert record.scale.tolist() == [2.0]
    assert record.max.tolist() == [2.5]
    assert record.mass.tolist() == [4 << 40]
    assert record.argmax.tolist() == [0]
    assert record.kind.tolist() == [RowKind.ORDINARY]
    assert record.cut_value.tolist() == [-math.inf]
    assert record.cut_id.tolist() == [2**31 - 1]


@pytest.mark.parametrize(
    ("value", "status"), [(-math.inf, Status.EMPTY_SUPPORT), (math.nan, Status.NAN_LOGITS)]
)
def test_a_row_without_a_value_gives_its_lowest_allowed_id(device: str, value, status) -> None:
    rows = ops.sample_rows(
        torch.full((1, 6), value, device=device),
        rules(1, device, token_bitmask=int32([[0b101000]], device=device)),
        int32([0], device=device),
        num_draws=2,
    )
    assert rows.tokens.tolist() == [[3, -1]]
    assert rows.status.tolist() == [status]
    assert rows.records.kind.tolist() == [RowKind.UNUSABLE]


def test_level_slot_purpose_and_round_draw_anew(device: str) -> None:
    logits = torch.zeros(8, 10**5, device=device)
    row_zero = torch.zeros(8, dtype=torch.int32, device=device)

    def tokens(prefix_len: int = 3, **options) -> list[int]:
        drawn = ops.sample_rows(
            logits,
            rules(1, device),
            int32([prefix_len], device=device),
            request_of_row=row_zero,
            **options,
        )
        return drawn.tokens.flatten().tolist()

    plain = tokens()
    assert len(set(plain)) == 1
    slots = tokens(slot_of_row=torch.arange(8, dtype=torch.int32, device=device))
    assert slots[0] == plain[0]
    assert len(set(slots)) == 8
    assert len({plain[0], tokens(level=1)[0], tokens(purpose="final")[0], tokens(4)[0]}) == 4


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(12):
        call = random_call(seed, 7, unsound=bool(seed % 2))
        template = run(call, device)
        inputs = [call["logits"], call["prefix_lens"], call["request_of_row"]]
        inputs += [
            value
            for field in fields(call["sampling"])
            if isinstance(value := getattr(call["sampling"], field.name), torch.Tensor)
        ]
        assert_written_whole(
            lambda out, call=call: run(call, device, out=out), template, device, *inputs
        )


def test_no_rows(device: str) -> None:
    rows = ops.sample_rows(
        torch.empty(0, 4, device=device), rules(0, device), int32([], device=device)
    )
    assert rows.tokens.shape == (0, 1)


def test_opcheck(device: str) -> None:
    assert_opcheck(
        lambda: ops.sample_rows(
            torch.zeros(2, 4, device=device), rules(2, device), int32([3, 4], device=device)
        )
    )


@pytest.mark.parametrize(
    "edits",
    [
        {"presence_penalty": torch.tensor([1.0])},
        {"token_bitmask": torch.tensor([[-1]], dtype=torch.int32)},
        {"edits": LogitEdits(int32([0, 1]), int32([2]), int32([0]), torch.tensor([2.0]))},
    ],
)
def test_records_of_edited_logits_are_no_q_of_the_logits_as_they_came(edits: dict) -> None:
    """With the raw logits the accept would emit another law, and say nothing."""
    logits = torch.randn(1, 6)
    rules = SamplingRules(torch.ones(1), torch.zeros(1, dtype=torch.int64))
    drawn = ops.sample_rows(logits, replace(rules, **edits), int32([3]))
    draft = torch.cat([int32([[0]]), drawn.tokens], dim=1)

    def accept(proposal: Proposal) -> None:
        ops.accept_rejection(draft, int32([3]), torch.randn(2, 6), rules, proposal)

    with pytest.raises(RuntimeError, match=r"expected proposal\.logits_edited"):
        accept(Proposal(logits=logits, records=drawn.records))
    accept(Proposal(logits=logits, records=drawn.records, logits_edited=True))
    plain = ops.sample_rows(logits, rules, int32([3]), out=drawn)
    accept(Proposal(logits=logits, records=plain.records))


def test_levels_become_the_proposal_of_a_chain() -> None:
    """Row b * levels + level; one edited level makes the whole edited."""
    levels = [SampledRows.empty(2, 0, "cpu").records for _ in range(3)]
    for number, level in enumerate(levels):
        level.packed[:] = int32([[10 + number] * 8, [20 + number] * 8])
    levels[1].edited = True
    chain = RowRecord.of_levels(levels)
    assert chain.packed[:, 0].tolist() == [10, 11, 12, 20, 21, 22]
    assert chain.edited
    assert not RowRecord.of_levels([levels[0], levels[2]]).edited
