"""Seeded inputs that several self-tests share."""

from __future__ import annotations

import torch
from torch import Tensor

BATCH, NODES, VOCAB, TOPK, DEPTH = 4, 8, 1003, 3, 3


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def prefix_lens() -> Tensor:
    return torch.tensor([0, 7, 64, 1000], dtype=torch.int32)


def anchors() -> Tensor:
    return torch.tensor([3, 1, 4, 1])


def logits() -> Tensor:
    """[BATCH * NODES, VOCAB] in bf16, where ties are common."""
    return torch.randn(BATCH * NODES, VOCAB, generator=rng()).bfloat16()


def parents() -> Tensor:
    """Node i follows node i // 2 or the one before it: int32 [BATCH, NODES]."""
    halves = torch.arange(NODES) // 2 - torch.randint(0, 2, (BATCH, NODES), generator=rng())
    parents = halves.clamp(min=0).int()
    parents[:, 0] = -1
    return parents


def drafts(logits: Tensor, parents: Tensor) -> Tensor:
    """Anchor and drafts int64 [BATCH, NODES]; most are what the target says after the parent."""
    predicted = logits.float().argmax(dim=1).view(BATCH, NODES)
    drafts = predicted.gather(1, parents.long())
    wrong = torch.rand(drafts.shape, generator=rng()) < 0.2
    return torch.cat([predicted[:, :1], drafts + wrong], dim=1)


def candidates() -> tuple[Tensor, Tensor, Tensor]:
    """Scores and tokens [BATCH, C] and the parent list of an EAGLE-2 draft."""
    groups = 1 + TOPK * (DEPTH - 1)
    scores = -torch.rand(BATCH, groups * TOPK, generator=rng())
    tokens = torch.randint(0, VOCAB, scores.shape, generator=rng())
    # Level 1 hangs under the root's children, level 2 under some of level 1.
    level1 = torch.arange(TOPK)
    level2 = TOPK + torch.randperm(TOPK * TOPK, generator=rng())[:TOPK]
    parent_list = torch.cat([torch.tensor([-1]), level1, level2])
    return scores, tokens, parent_list.expand(BATCH, -1).contiguous()
