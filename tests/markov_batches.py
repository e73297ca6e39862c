"""Random blocks for a Markov head, and what the op and its definition make of them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from accept_batches import to_device
from sampled_batches import Dice, random_rules
from specfast import DraftedBlock, SamplingRules, ops, reference
from torch import Tensor

DTYPES = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16)]
DTYPES += [(torch.bfloat16, torch.bfloat16)]


def greedy(count: int, device: str = "cpu", temperature: float = 0.0, **options) -> SamplingRules:
    seeds = torch.arange(count, dtype=torch.int64, device=device)
    return SamplingRules(torch.full((count,), temperature, device=device), seeds, **options)


def hand_drawn(device: str, temperature: float = 0.0, count: int = 1) -> dict:
    w2 = torch.zeros(3, 3)
    w2[1, 0] = w2[1, 1] = w2[0, 2] = 5
    call = {
        "logits": torch.zeros(count, 3, 3),
        "w1": torch.eye(3),
        "w2": w2,
        "anchors": torch.full((count,), 2),
        "sampling": greedy(count, temperature=temperature),
        "prefix_lens": torch.zeros(count, dtype=torch.int32),
    }
    return {name: to_device(value, device) for name, value in call.items()}


def random_call(
    seed: int, vocab: int, *, unsound: bool, rank: int | None = None, kind: str = "vanilla"
) -> dict:
    """Weights on a coarse grid: no sum is rounded, so that tensor cores have to agree as well.

    What a head of another kind mixes is on no grid, so it has ranks that they do not take.
    """
    dice = Dice(seed)
    batch, steps, embeddings = 3, int(dice.integers(1, 5)), int(dice.integers(1, 9))
    if rank is None:
        rank = int(dice.some_of([1, 7, 8, 32, 64] if kind == "vanilla" else [1, 7, 8, 20, 40]))
    dtype, weights = DTYPES[seed % 3]
    logits = (dice.normal(batch, steps, vocab + 3) * 8).round() / 8
    if unsound:
        logits = dice.with_faults(logits, [math.nan, math.inf, -math.inf, -0.0], 0.1)
        logits[dice.uniform(batch, steps) < 0.2] = math.nan
        logits[dice.uniform(batch, steps) < 0.2] = -math.inf
    rules = random_rules(dice, batch, batch, vocab, edits=False, unsound=unsound)
    call = {
        "logits": logits.to(dtype)[..., 1 : vocab + 1],
        "w1": (dice.integers(-4, 5, embeddings, rank) / 8).to(weights),
        "w2": (dice.integers(-4, 5, vocab, rank) / 4).to(weights),
        "anchors": dice.integers(-1 if unsound else 0, embeddings + unsound, batch),
        "sampling": replace(rules, token_bitmask=None),
        "prefix_lens": dice.integers(-2 if unsound else 0, 50, batch),
    }
    if dice.happens(0.5):
        call["anchors"] = call["anchors"].long()
    if unsound or vocab > embeddings or dice.happens(0.3):
        ids = dice.integers(-unsound, embeddings + unsound, vocab).long()
        call["d2t"] = ids - torch.arange(vocab)
    if kind != "vanilla":
        inputs, outputs = (1, 1) if kind == "gated" else (2, 3)
        call["kind"] = kind
        projection = (dice.normal(outputs * rank, inputs * rank + 3) / 2).to(weights)
        call["projection"] = projection[:, seed % 4 : seed % 4 + inputs * rank]
        hidden_rows = dice.normal(batch, steps, outputs * rank)
        if unsound:
            hidden_rows = dice.with_faults(hidden_rows, [math.nan, math.inf, -math.inf], 0.002)
        call["hidden_rows"] = hidden_rows
    return call


def run(call: dict, device: str, **more) -> tuple[DraftedBlock, Tensor]:
    """The block and the logits as the call leaves them; ``call`` stays as it is."""
    moved = {name: to_device(value, device) for name, value in call.items()}
    moved["logits"] = strided_copy(call["logits"], device)
    block = ops.sample_markov_block(**moved, **more)
    return block, moved["logits"]


def strided_copy(logits: Tensor, device: str) -> Tensor:
    whole = torch.full((*logits.shape[:2], logits.shape[2] + 3), 7.0, dtype=logits.dtype)
    whole = whole.to(device)
    inner = whole[..., 1 : logits.shape[2] + 1]
    inner.copy_(logits)
    return inner


def assert_equals_the_reference(call: dict, device: str) -> None:
    got, left = run(call, device)
    expected_logits = call["logits"].clone()
    expected = reference.sample_markov_block(**{**call, "logits": expected_logits})
    for name in ("status", "tokens"):
        mine, theirs = getattr(got, name).cpu(), getattr(expected, name)
        assert torch.equal(mine, theirs), f"{name}: expected\n{theirs}\ngot\n{mine}"
    torch.testing.assert_close(left.cpu(), expected_logits, rtol=0, atol=0, equal_nan=True)
    mine, theirs = got.records.packed.cpu(), expected.records.packed
    assert torch.equal(mine, theirs), f"records: expected\n{theirs}\ngot\n{mine}"
