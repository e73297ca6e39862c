"""The tree ops in plain Python: their meaning.

Candidates are numbered as SGLang does: ``0 .. topk - 1`` are the root's children, and group
``g = candidate // topk >= 1`` holds the children of candidate ``parent_list[g]``. A parent stands
in an earlier group than its children; an entry that does not makes its whole group malformed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specfast.records import MaskMode, TreeRecord
from specfast.status import Status

INT32_MAX = 2**31 - 1


def select_draft_tokens(
    scores: Tensor, parent_list: Tensor, *, topk: int, num_nodes: int
) -> tuple[Tensor, Tensor]:
    """The best ``num_nodes - 1`` candidates of each request, ascending, and the status."""
    selected, status = [], []
    for row, parents in zip(scores.tolist(), parent_list.tolist(), strict=True):
        # The lowest score on the path, so that no candidate comes before its ancestors; None if the
        # path misses the root.
        effective: list[float | None] = []
        for candidate, score in enumerate(row):
            lowest = -math.inf if math.isnan(score) else score
            if candidate < topk:
                effective.append(lowest)
                continue
            parent = _parent_candidate(candidate, parents, topk)
            above = None if parent is None else effective[parent]
            effective.append(None if above is None else min(lowest, above))
        order = [-math.inf if score is None else score for score in effective]
        best = sorted(range(len(row)), key=lambda c: (-order[c], c))[: num_nodes - 1]
        selected.append(sorted(best))
        malformed = any(effective[c] is None for c in best)
        status.append(Status.BAD_TREE if malformed else Status.OK)
    shape = (len(selected), num_nodes - 1)
    return (
        torch.tensor(selected, dtype=torch.int32).reshape(shape),
        torch.tensor(status, dtype=torch.int32),
    )


def _parent_candidate(candidate: int, parents: list[int], topk: int) -> int | None:
    """The candidate above one that is not a child of the root; None where malformed."""
    group = candidate // topk
    return parents[group] if 0 <= parents[group] < group * topk else None


def build_tree(
    anchors: Tensor,
    draft_tokens: Tensor,
    parent_list: Tensor,
    selected_index: Tensor,
    prefix_lens: Tensor,
    *,
    topk: int,
    mask_mode: MaskMode = "bits",
    mask_capacity: int | None = None,
) -> TreeRecord:
    """Node i >= 1 is candidate ``selected_index[i - 1]``, under the node of its parent."""
    num_candidates = topk * max(parent_list.shape[1], 1)
    parents = []
    for selected, parent_row in zip(selected_index.tolist(), parent_list.tolist(), strict=True):
        node_of: dict[int, int] = {}
        for node, candidate in enumerate(selected, start=1):
            if 0 <= candidate < num_candidates:
                node_of.setdefault(candidate, node)
        row = [-1]
        for node, candidate in enumerate(selected, start=1):
            parent: int | None = None
            if node_of.get(candidate) == node:
                if candidate < topk:
                    parent = 0
                else:
                    above = _parent_candidate(candidate, parent_row, topk)
                    parent = None if above is None else node_of.get(above)
            row.append(parent if parent is not None and parent < node else -1)
        parents.append(row)
    # A draft that the anchors' type cannot hold is no token.
    drafts = draft_tokens.to(anchors.dtype)
    drafts = torch.where(drafts == draft_tokens, drafts, -1)
    tokens = torch.cat([anchors[:, None], drafts], dim=1)
    return tree_from_parents(
        tokens,
        torch.tensor(parents, dtype=torch.int32).reshape(tokens.shape),
        prefix_lens,
        mask_mode=mask_mode,
        mask_capacity=mask_capacity,
    )


def select_and_build_tree(
    anchors: Tensor,
    scores: Tensor,
    tokens: Tensor,
    parent_list: Tensor,
    prefix_lens: Tensor,
    *,
    topk: int,
    num_nodes: int,
    mask_mode: MaskMode = "bits",
    mask_capacity: int | None = None,
) -> TreeRecord:
    """select_draft_tokens, then build_tree with the tokens of the selected candidates."""
    selected, _ = select_draft_tokens(scores, parent_list, topk=topk, num_nodes=num_nodes)
    return build_tree(
        anchors,
        tokens.cpu().gather(1, selected.long()),
        parent_list,
        selected,
        prefix_lens,
        topk=topk,
        mask_mode=mask_mode,
        mask_capacity=mask_capacity,
    )


def tree_from_parents(
    draft_tokens: Tensor,
    parents: Tensor,
    prefix_lens: Tensor,
    *,
    verify_lens: Tensor | None = None,
    mask_mode: MaskMode = "bits",
    mask_capacity: int | None = None,
) -> TreeRecord:
    """Links, positions and mask of trees in which parents come before their children."""
    batch_size, num_nodes = draft_tokens.shape
    record = TreeRecord.empty(
        batch_size,
        num_nodes,
        "cpu",
        tokens_dtype=draft_tokens.dtype,
        mask_mode=mask_mode,
        mask_capacity=mask_capacity,
    )
    record.draft_tokens.copy_(draft_tokens)
    record.retrieve_index.copy_(torch.arange(batch_size * num_nodes).view(batch_size, num_nodes))
    record.mask.zero_()
    mask_begin = 0
    for b in range(batch_size):
        status = Status.OK
        verify_len = num_nodes if verify_lens is None else int(verify_lens[b])
        if not 0 <= verify_len <= num_nodes:
            status |= Status.BAD_PARAM
        prefix_len = int(prefix_lens[b])
        if not 0 <= prefix_len <= INT32_MAX - num_nodes:
            prefix_len = 0
            status |= Status.BAD_PARAM

        tree = [-1]
        depths = [0]
        first_child = [-1] * num_nodes
        next_sibling = [-1] * num_nodes
        last_child: dict[int, int] = {}
        rows = torch.eye(num_nodes, dtype=torch.bool)
        for node, parent in enumerate(parents[b, 1:].tolist(), start=1):
            detached = node >= verify_len
            if not detached and not 0 <= parent < node:
                detached = True
                status |= Status.BAD_TREE
            tree.append(-1 if detached else parent)
            # A detached node is laid out as if it hung under the root, but no link leads to it.
            above = 0 if detached else parent
            depths.append(depths[above] + 1)
            rows[node] |= rows[above]
            if not detached:
                if parent in last_child:
                    next_sibling[last_child[parent]] = node
                else:
                    first_child[parent] = node
                last_child[parent] = node
        record.parents[b] = torch.tensor(tree)
        record.positions[b] = prefix_len + torch.tensor(depths)
        record.retrieve_next_token[b] = torch.tensor(first_child)
        record.retrieve_next_sibling[b] = torch.tensor(next_sibling)

        if mask_mode == "bits":
            record.mask[b] = _pack_bits(rows)
        elif mask_mode == "qlen":
            record.mask[b] = rows
        else:
            full = torch.cat([torch.ones(num_nodes, prefix_len, dtype=torch.bool), rows], dim=1)
            mask_end = mask_begin + full.numel()
            if mask_end <= record.mask.numel():
                record.mask[mask_begin:mask_end] = full.flatten()
            else:
                status |= Status.BAD_PARAM
            mask_begin = mask_end
        record.status[b] = status
    return record


def _pack_bits(rows: Tensor) -> Tensor:
    """int32 words of bool rows, bit c % 32 of word c // 32 for column c."""
    num_words = (rows.shape[1] + 31) // 32
    columns = torch.zeros(rows.shape[0], num_words * 32, dtype=torch.int64)
    columns[:, : rows.shape[1]] = rows
    words = (columns.view(-1, num_words, 32) << torch.arange(32)).sum(dim=-1)
    # Two's complement: the upper half of the unsigned words is negative as int32.
    return torch.where(words > INT32_MAX, words - 2**32, words).to(torch.int32)
