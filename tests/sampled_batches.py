"""Random batches for the sampled rules: parameters, edits, bitmasks, coins and proposals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from accept_batches import AcceptBatch, random_batch
from specfast import Coins, LogitEdits, Proposal, SamplingRules, reference
from torch import Tensor

Q_FORMS = ("records", "probs", "sparse", "mapped")


class Dice:
    """Random tensors of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.rng, dtype=torch.int32)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.rng)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.rng)

    def happens(self, chance: float) -> bool:
        return bool(self.uniform() < chance)

    def some_of(self, values: Sequence[float], *shape: int) -> Tensor:
        picks = self.integers(0, len(values), *shape).long()
        return torch.tensor(values, dtype=torch.float32)[picks]

    def with_faults(self, values: Tensor, faults: Sequence[float], chance: float) -> Tensor:
        wrong = self.uniform(*values.shape) < chance
        return torch.where(wrong, self.some_of(faults, *values.shape), values)


def random_rules(
    dice: Dice, num_requests: int, num_rows: int, vocab: int, *, edits: bool, unsound: bool
) -> SamplingRules:
    """Every parameter absent in some rules; off, mild, and extreme values in the others."""
    bad = [math.nan, math.inf, -math.inf, -0.5, 0.0, 1.5]

    def floats(values: Sequence[float], present: float) -> Tensor | None:
        if not dice.happens(present):
            return None
        chosen = dice.some_of(values, num_requests)
        return dice.with_faults(chosen, bad, 0.1) if unsound else chosen

    temperature = floats([0.0, 9e-6, 0.02, 0.5, 1.0, 1.0, 1.7, 30.0], present=1.0)
    assert temperature is not None
    rules = SamplingRules(
        temperature,
        torch.randint(-(2**63), 2**63 - 1, (num_requests,), generator=dice.rng),
        top_p=floats([1.0, 0.95, 0.5, 0.2, 1e-6], present=0.5),
        min_p=floats([0.0, 1e-3, 0.2, 0.7, 1.0], present=0.3),
    )
    if dice.happens(0.5):
        ks = torch.tensor([0, -1, 1, 2, 3, vocab - 1, vocab, 2**31 - 1, *([-2] * unsound)])
        rules.top_k = ks[dice.integers(0, len(ks), num_requests).long()].to(torch.int32)
    if edits:
        rules.repetition_penalty = floats([1.0, 1.3, 0.5, 7.0], present=0.7)
        rules.presence_penalty = floats([0.0, 0.6, -0.4], present=0.7)
        rules.frequency_penalty = floats([0.0, 0.3, -0.2], present=0.7)
        rules.edits = random_edits(dice, num_requests, vocab)
    if dice.happens(0.5 if edits else 0.3):
        rules.token_bitmask = random_bitmask(dice, num_rows, vocab)
    return rules


def random_edits(dice: Dice, num_requests: int, vocab: int) -> LogitEdits | None:
    if dice.happens(0.2):
        return None
    ids = [
        torch.nonzero(dice.uniform(vocab) < min(0.4, 30 / vocab)).flatten()
        for _ in range(num_requests)
    ]
    indptr = torch.tensor([0, *(len(part) for part in ids)]).cumsum(0)
    total = int(indptr[-1])
    biases = [0.0, 1.5, -2.0, 0.125, -math.inf, 100.0]
    return LogitEdits(
        indptr.to(torch.int32),
        torch.cat(ids).to(torch.int32),
        dice.integers(-1, 4, total),
        dice.some_of(biases, total) if dice.happens(0.6) else None,
    )


def random_bitmask(dice: Dice, num_rows: int, vocab: int) -> Tensor:
    """Mostly allowed tokens, some strict rows, some that forbid everything; in wider storage."""
    words = (vocab + 31) // 32
    allowed = dice.uniform(num_rows, words + 1, 32) < dice.some_of([0.9, 0.3, 0.0], num_rows, 1, 1)
    bits = (allowed.long() << torch.arange(32)).sum(-1)
    return bits.to(torch.uint32).view(torch.int32)[:, :words]


def random_coins(dice: Dice, num_requests: int, num_nodes: int, *, unsound: bool) -> Coins:
    """Coins between the grid points, and the ends of the range."""

    def coins(*shape: int) -> Tensor:
        values = dice.with_faults(dice.uniform(*shape) ** 2, [0.0, 1.0, 1 - 2**-24, 1e-30], 0.1)
        return dice.with_faults(values, [math.nan, -1.0, 2.0], 0.05) if unsound else values

    accept = coins(num_requests, num_nodes) if dice.happens(0.8) else None
    return Coins(accept, coins(num_requests) if dice.happens(0.8) else None)


def random_proposal(
    dice: Dice, form: str, num_requests: int, num_nodes: int, vocab: int, *, unsound: bool
) -> Proposal:
    """q in one of ``Q_FORMS``, by row number or by a map of rows."""
    nodes = num_nodes - int(dice.integers(0, 2))
    num_rows = num_requests * nodes
    row_of_node = None
    if nodes == 0 or dice.happens(0.3):
        num_rows = 7
        row_of_node = dice.integers(-unsound, num_rows, num_requests, num_nodes)
        if unsound:
            row_of_node[dice.uniform(num_requests, num_nodes) < 0.05] = 2**31 - 1

    columns, d2t = vocab, None
    if form == "mapped":
        kept = torch.nonzero(dice.uniform(vocab) < 0.7).flatten()
        kept = kept if len(kept) else torch.tensor([0])
        columns, d2t = len(kept), kept - torch.arange(len(kept))
    logits = dice.normal(num_rows, columns) * dice.some_of([0.1, 1.0, 4.0], num_rows, 1)
    if form == "sparse":
        count = min(vocab, 4)
        order = torch.argsort(dice.uniform(num_rows, vocab), dim=1)[:, :count].contiguous()
        values = logits[:, :count].softmax(-1)
        return Proposal(
            sparse_ids=order.to(torch.int32) if dice.happens(0.5) else order,
            sparse_values=_faulty_probs(dice, values) if unsound else values,
            row_of_node=row_of_node,
        )
    if form == "probs" or (form == "mapped" and dice.happens(0.5)):
        probs = logits.softmax(-1)
        probs[dice.uniform(*probs.shape) < 0.2] = 0.0
        wide = torch.full((num_rows, columns + 3), math.nan)
        wide[:, :columns] = _faulty_probs(dice, probs) if unsound else probs
        return Proposal(probs=wide[:, :columns], row_of_node=row_of_node, d2t=d2t)
    request_of_row = dice.integers(0, num_requests, num_rows)
    rules = random_rules(dice, num_requests, num_rows, columns, edits=False, unsound=False)
    # A bitmask would leave tokens in the logits that the record does not have.
    rules.token_bitmask = None
    drawn = reference.sample_rows(
        logits,
        rules,
        torch.zeros(num_requests, dtype=torch.int32),
        request_of_row=request_of_row,
        num_draws=0,
    )
    return Proposal(logits=logits, records=drawn.records, row_of_node=row_of_node, d2t=d2t)


def _faulty_probs(dice: Dice, probs: Tensor) -> Tensor:
    return dice.with_faults(probs, [math.nan, -0.1, 1.0003, 1.1, math.inf, -math.inf], 0.1)


def random_sampled_batch(
    seed: int,
    rule: str,
    *,
    tree: bool,
    q_form: str = "records",
    dtype: torch.dtype = torch.float32,
    ragged: bool = False,
    edits: bool = False,
    unsound: bool = False,
    batch: int = 4,
    nodes: int = 6,
    vocab: int = 5,
) -> AcceptBatch:
    """An accept batch whose requests mix temperatures, filters and points of failure."""
    sampled = random_batch(
        seed,
        tree=tree,
        batch=batch,
        nodes=nodes,
        vocab=vocab,
        dtype=dtype,
        ragged=ragged,
        unsound=unsound,
    )
    dice = Dice(seed + 1)
    logits = sampled.options["target_logits"]
    if dice.happens(0.6):
        noise = (dice.normal(*logits.shape) * dice.some_of([0.2, 1.0, 5.0], len(logits), 1)).to(
            dtype
        )
        logits = torch.where(logits.isfinite(), noise, logits)
    wide = torch.full((len(logits), logits.shape[1] + 3), math.nan, dtype=dtype)
    wide[:, 1 : logits.shape[1] + 1] = logits
    sampled.options["target_logits"] = wide[:, 1 : logits.shape[1] + 1]

    rules = random_rules(dice, batch, len(logits), vocab, edits=edits, unsound=unsound)
    if dice.happens(0.5):
        rules = replace(rules, coins=random_coins(dice, batch, nodes, unsound=unsound))
    sampled.options |= {"rule": rule, "sampling": rules}
    if rule == "target_only" and dice.happens(0.4):
        thresholds = dice.some_of([0.0, 0.3, 0.9, 1.0], 2).tolist()
        sampled.options |= dict(zip(("threshold_single", "threshold_acc"), thresholds, strict=True))
    if rule in ("rejection", "block"):
        proposal = random_proposal(dice, q_form, batch, nodes, vocab, unsound=unsound)
        sampled.options["proposal"] = replace(proposal, without_replacement=tree)
    if not tree and rule != "block":
        sampled.options["return_trim"] = not ragged and dice.happens(0.5)
    sampled.options["logprobs"] = (None, "raw", "processed")[int(dice.integers(0, 3))]
    return sampled
