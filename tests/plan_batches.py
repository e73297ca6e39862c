"""Random calls of the planning ops, sound and unsound."""

from __future__ import annotations

import math
from typing import Any

import torch
from sampled_batches import Dice

Call = dict[str, Any]


def random_schedule(
    seed: int, batch_size: int, num_drafts: int, *, form: str, unsound: bool
) -> Call:
    """Arguments of schedule_verify_lens; coarse numbers, so that survivals tie."""
    dice = Dice(seed)
    confidence = dice.uniform(batch_size, num_drafts + 2)
    if form == "logits":
        confidence = 6 * dice.normal(batch_size, num_drafts + 2)
    if dice.happens(0.5):
        confidence = (confidence * 8).round() / 8
    if form == "survival" and not unsound:
        confidence = confidence.sort(dim=1, descending=True).values
    if unsound:
        faults = [math.nan, math.inf, -math.inf, -0.0, 0.0, -1.0, 1.0 + 2**-23, 2.0]
        confidence = dice.with_faults(confidence, faults, 0.2)
    low, high = (-1, num_drafts + 4) if unsound else (0, num_drafts + 2)
    call: Call = {
        "confidence": confidence[:, 1 : 1 + num_drafts],
        "form": form,
        "epsilon": float(dice.some_of([0.0, 1e-6, 0.1, 1.0])),
    }
    everything = batch_size * num_drafts
    if dice.happens(0.8):
        call["budget"] = int(dice.integers(0, everything + 2))
    if dice.happens(0.3):
        call["budget"] = dice.integers(-2 if unsound else 0, everything + 2, 1)
    if dice.happens(0.5):
        call["min_lens"] = dice.integers(low if unsound else 1, high, batch_size)
    if dice.happens(0.5):
        call["max_lens"] = dice.integers(low, high, batch_size)
    if dice.happens(0.3):
        dtype = torch.int64 if dice.happens(0.5) else torch.int32
        call["anchors"] = dice.integers(-1, 4, batch_size).to(dtype)
    if form == "logits" and dice.happens(0.7):
        call["temperatures"] = dice.some_of([0.5, 1.0, 1.3, 1e-38], num_drafts)
        if unsound:
            bad = [0.0, -1.0, math.nan, math.inf]
            call["temperatures"] = dice.with_faults(call["temperatures"], bad, 0.1)
    return call


def random_window(seed: int, batch_size: int, num_nodes: int, *, unsound: bool) -> Call:
    """Arguments of build_verify_window."""
    dice = Dice(seed)
    page_size = int(dice.some_of([1, 2, 3, 16]))
    context_len = int(dice.integers(1, 50))
    num_pages = -(-context_len // page_size)
    table_rows = batch_size + 3
    num_table = table_rows * (num_pages + 2)
    pages = torch.randperm(num_table, generator=dice.rng).view(table_rows, num_pages + 2)
    if unsound:
        missing = dice.uniform(table_rows, num_pages + 2) < 0.1
        pages[missing] = dice.some_of([-1, -(2**40), 2**31 - 1, 2**40], int(missing.sum())).long()
    tokens = dice.integers(0, 90, batch_size, num_nodes + 2).long()
    if unsound:
        wrong = dice.uniform(batch_size, num_nodes + 2) < 0.2
        tokens = torch.where(wrong, tokens - 45 + (tokens % 2) * 2**35, tokens)
    low, high = (-2, num_nodes + 3) if unsound else (0, num_nodes + 1)
    call: Call = {
        "draft_tokens": tokens[:, 1 : 1 + num_nodes],
        "prefix_lens": dice.integers(-2 * unsound, context_len + 1 + unsound, batch_size),
        "page_table": pages[:, 1 : 1 + num_pages],
        "page_size": page_size,
        "num_rows": int(dice.integers(0, batch_size * num_nodes + 5)),
    }
    if not unsound:
        call["num_rows"] = batch_size * num_nodes + int(dice.integers(0, 5))
    if dice.happens(0.8):
        call["verify_lens"] = dice.integers(low, high, batch_size)
    if dice.happens(0.5):
        call["anchors"] = dice.integers(-9, 90, batch_size)
    if dice.happens(0.7):
        order = torch.randperm(table_rows, generator=dice.rng)[:batch_size].int()
        call["page_table_rows"] = order - 3 * unsound if dice.happens(0.3) else order
    if dice.happens(0.5):
        call["context_len"] = int(dice.integers(0, context_len + 1))
    if dice.happens(0.5):
        call["vocab_size"] = 60
    if dice.happens(0.5):
        call["padding_slot"] = 0
    if dice.happens(0.3):
        call["draft_tokens"] = call["draft_tokens"].clamp(-(2**31), 2**31 - 1).int()
    if dice.happens(0.3):
        call["page_table"] = call["page_table"].clamp(-(2**31), 2**31 - 1).int()
    return call
