"""Sampled verification of small batches written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from exact_laws import links
from implementations import Implementation
from specfast import AcceptRecord, Coins, Proposal
from torch import Tensor
from toy_models import plain_sampling


def log(*rows: list[float]) -> Tensor:
    return torch.tensor(rows).log()


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def one_hot_q(drafts: Tensor, vocab_size: int) -> Proposal:
    """q of drafts that were not drawn: each is certain; bad ids have no q."""
    inside = ((drafts[:, 1:] >= 0) & (drafts[:, 1:] < vocab_size)).flatten()
    safe = torch.where(inside, drafts[:, 1:].flatten(), 0).long()
    probs = torch.nn.functional.one_hot(safe, vocab_size).float()
    return Proposal(probs=(probs * inside[:, None]).to(drafts.device))


def chain(
    impl: Implementation,
    rule: str,
    logits: Tensor,
    drafts: Tensor,
    *,
    q: Proposal | None = None,
    coins: tuple[list[float], float] | None = None,
    prefix_len: int = 3,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> AcceptRecord:
    """Verify chains of drafts; each request sees the same logits [N, V] if there are as many."""
    batch_size, num_drafts = drafts.shape
    anchored = torch.cat([torch.zeros(batch_size, 1, dtype=torch.int32), drafts], 1)
    rows = logits if len(logits) == anchored.numel() else logits.repeat(batch_size, 1)
    given = dict(sampling or {})
    if coins is not None:
        accept = torch.tensor([[*coins[0], 0.5]] * batch_size)
        given["coins"] = Coins(
            accept.to(impl.device), torch.full((batch_size,), coins[1], device=impl.device)
        )
    if rule != "target_only":
        q = q or one_hot_q(anchored, logits.shape[1])
        assert q.probs is not None
        if len(q.probs) == num_drafts:
            q = replace(q, probs=q.probs.repeat(batch_size, 1))
        options["proposal"] = replace(q, probs=q.probs.to(impl.device))
    return impl.accept_chain(
        anchored.to(impl.device),
        torch.full((batch_size,), prefix_len, dtype=torch.int32, device=impl.device),
        target_logits=rows.to(impl.device),
        rule=rule,
        sampling=plain_sampling(batch_size, impl.device, **given),
        **options,
    )


def tree(
    impl: Implementation,
    rule: str,
    logits: Tensor,
    tokens: list[int],
    *,
    parents: list[int] | None = None,
    width: int = 2,
    batch_size: int = 1,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> AcceptRecord:
    """Verify the same tree (siblings of the root unless told) for each of the seeds."""
    drafts = ids([0, *tokens]).repeat(batch_size, 1)
    edges = links(parents or [0] * len(tokens), batch_size)
    return impl.accept_tree(
        drafts.to(impl.device),
        *(edge.to(impl.device) for edge in edges),
        torch.full((batch_size,), 3, dtype=torch.int32, device=impl.device),
        width=width,
        target_logits=logits.repeat(batch_size, 1).to(impl.device),
        rule=rule,
        sampling=plain_sampling(batch_size, impl.device, **(sampling or {})),
        **options,
    )
