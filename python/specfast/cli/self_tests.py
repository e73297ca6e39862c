"""A quick test of every op: one call on seeded inputs, against the op's definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import specfast

BATCH, NODES, VOCAB, TOPK, DEPTH = 4, 8, 1003, 3, 3

Outputs = dict[str, Tensor | None]
# Called with specfast.ops or specfast.reference, and the device of all tensors.
SelfTest = Callable[[Any, str], Outputs]


def first_difference(op: str, device: str) -> str | None:
    """Name an output of ``op`` on ``device`` that is not what specfast.reference says, or None."""
    got = SELF_TESTS[op](specfast.ops, device)
    expected = SELF_TESTS[op](specfast.reference, "cpu")
    for name, value in expected.items():
        mine = got[name]
        if value is None or mine is None:
            if value is not mine:
                return name
        elif not torch.equal(mine.cpu(), value):
            return name
    return None


def _accept_chain(impl: Any, device: str) -> Outputs:
    logits = _logits()
    drafts = _drafts(logits, torch.arange(NODES - 1).expand(BATCH, -1))
    record = impl.accept_chain(
        drafts.to(device), _prefix_lens().to(device), target_logits=logits.to(device)
    )
    return {**vars(record)}


def _accept_tree(impl: Any, device: str) -> Outputs:
    logits = _logits()
    parents = _parents()
    drafts = _drafts(logits, parents[:, 1:])
    tree = specfast.reference.tree_from_parents(drafts, parents, _prefix_lens())
    record = impl.accept_tree(
        drafts.to(device),
        tree.retrieve_next_token.to(device),
        tree.retrieve_next_sibling.to(device),
        _prefix_lens().to(device),
        width=NODES,
        target_logits=logits.to(device),
    )
    return {**vars(record)}


def _select_draft_tokens(impl: Any, device: str) -> Outputs:
    scores, _, parent_list = _candidates()
    selected, status = impl.select_draft_tokens(
        scores.to(device), parent_list.to(device), topk=TOPK, num_nodes=NODES
    )
    return {"selected_index": selected, "status": status}


def _build_tree(impl: Any, device: str) -> Outputs:
    scores, tokens, parent_list = _candidates()
    selected, _ = specfast.reference.select_draft_tokens(
        scores, parent_list, topk=TOPK, num_nodes=NODES
    )
    record = impl.build_tree(
        _anchors().to(device),
        tokens.gather(1, selected.long()).to(device),
        parent_list.to(device),
        selected.to(device),
        _prefix_lens().to(device),
        topk=TOPK,
    )
    return {**vars(record)}


def _select_and_build_tree(impl: Any, device: str) -> Outputs:
    scores, tokens, parent_list = (tensor.to(device) for tensor in _candidates())
    record = impl.select_and_build_tree(
        _anchors().to(device),
        scores,
        tokens,
        parent_list,
        _prefix_lens().to(device),
        topk=TOPK,
        num_nodes=NODES,
    )
    return {**vars(record)}


def _tree_from_parents(impl: Any, device: str) -> Outputs:
    drafts = _drafts(_logits(), _parents()[:, 1:])
    record = impl.tree_from_parents(
        drafts.to(device), _parents().to(device), _prefix_lens().to(device)
    )
    return {**vars(record)}


def _relocate_kv(impl: Any, device: str) -> Outputs:
    num_rows = BATCH * NODES
    keys = torch.randn(2 * num_rows, 2, 24, generator=_rng()).to(device, torch.bfloat16)
    hidden = torch.randn(num_rows, 5, generator=_rng()).to(device)
    layout = specfast.KvLayout([specfast.KvBuffer.nhd(keys), specfast.KvBuffer.rows(hidden)])
    first_rows = torch.arange(0, num_rows, NODES)[:, None]
    path = (first_rows + torch.tensor([0, 2, 3, 6])).int()
    status = impl.relocate_kv(
        layout,
        path.to(device),
        torch.tensor([4, 1, 3, 0], dtype=torch.int32).to(device),
        out_cache_loc=torch.randperm(2 * num_rows, generator=_rng())[:num_rows].to(device),
        rows_per_request=NODES,
    )
    return {"keys": keys, "hidden": hidden, "status": status}


SELF_TESTS: dict[str, SelfTest] = {
    "accept_chain": _accept_chain,
    "accept_tree": _accept_tree,
    "build_tree": _build_tree,
    "relocate_kv": _relocate_kv,
    "select_and_build_tree": _select_and_build_tree,
    "select_draft_tokens": _select_draft_tokens,
    "tree_from_parents": _tree_from_parents,
}


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _prefix_lens() -> Tensor:
    return torch.tensor([0, 7, 64, 1000], dtype=torch.int32)


def _anchors() -> Tensor:
    return torch.tensor([3, 1, 4, 1])


def _logits() -> Tensor:
    """[BATCH * NODES, VOCAB] in bf16, where ties are common."""
    return torch.randn(BATCH * NODES, VOCAB, generator=_rng()).bfloat16()


def _parents() -> Tensor:
    """Node i follows node i // 2 or the one before it: int32 [BATCH, NODES]."""
    halves = torch.arange(NODES) // 2 - torch.randint(0, 2, (BATCH, NODES), generator=_rng())
    parents = halves.clamp(min=0).int()
    parents[:, 0] = -1
    return parents


def _drafts(logits: Tensor, parents: Tensor) -> Tensor:
    """Anchor and drafts int64 [BATCH, NODES]; most are what the target says after the parent."""
    predicted = logits.float().argmax(dim=1).view(BATCH, NODES)
    drafts = predicted.gather(1, parents.long())
    wrong = torch.rand(drafts.shape, generator=_rng()) < 0.2
    return torch.cat([predicted[:, :1], drafts + wrong], dim=1)


def _candidates() -> tuple[Tensor, Tensor, Tensor]:
    """Scores and tokens [BATCH, C] and the parent list of an EAGLE-2 draft."""
    groups = 1 + TOPK * (DEPTH - 1)
    scores = -torch.rand(BATCH, groups * TOPK, generator=_rng())
    tokens = torch.randint(0, VOCAB, scores.shape, generator=_rng())
    # Level 1 hangs under the root's children, level 2 under some of level 1.
    level1 = torch.arange(TOPK)
    level2 = TOPK + torch.randperm(TOPK * TOPK, generator=_rng())[:TOPK]
    parent_list = torch.cat([torch.tensor([-1]), level1, level2])
    return scores, tokens, parent_list.expand(BATCH, -1).contiguous()
