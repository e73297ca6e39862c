"""Draft candidates as EAGLE-2 makes them, sound and unsound, and what a legal tree is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from specfast import TreeRecord
from torch import Tensor

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Candidates:
    """What a drafter proposes for B requests, ``depth`` levels of ``topk`` expansions."""

    topk: int
    depth: int
    scores: Tensor  # [B, C]
    tokens: Tensor  # [B, C]
    parent_list: Tensor  # [B, topk * (depth - 1) + 1]
    anchors: Tensor  # [B]
    prefix_lens: Tensor  # [B]

    @property
    def num_candidates(self) -> int:
        return self.scores.shape[1]

    def to(self, device: str) -> Candidates:
        return self._each(lambda tensor: tensor.to(device))

    def requests(self, order: Any) -> Candidates:
        """The requests that ``order`` picks, in its order."""
        return self._each(lambda tensor: tensor[order])

    def _each(self, change: Any) -> Candidates:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tensors = {name: change(v) for name, v in values.items() if isinstance(v, Tensor)}
        return dataclasses.replace(self, **tensors)

    def select(self, op: Any, num_nodes: int, **more: Any) -> tuple[Tensor, Tensor]:
        return op(self.scores, self.parent_list, topk=self.topk, num_nodes=num_nodes, **more)

    def build(self, op: Any, selected: Tensor, **more: Any) -> TreeRecord:
        drafts = self.tokens.gather(1, selected.long().clamp(0, self.num_candidates - 1))
        return op(
            self.anchors,
            drafts,
            self.parent_list,
            selected,
            self.prefix_lens,
            topk=self.topk,
            **more,
        )

    def select_and_build(self, op: Any, num_nodes: int, **more: Any) -> TreeRecord:
        return op(
            self.anchors,
            self.scores,
            self.tokens,
            self.parent_list,
            self.prefix_lens,
            topk=self.topk,
            num_nodes=num_nodes,
            **more,
        )


def random_candidates(seed: int, batch: int = 3, topk: int = 3, depth: int = 3) -> Candidates:
    """The lists of an EAGLE-2 draft: each level expands the best ``topk`` of the level above."""
    rng = torch.Generator().manual_seed(seed)

    def log_probs(*shape: int) -> Tensor:
        return torch.randn(*shape, topk, generator=rng).log_softmax(-1).sort(descending=True)[0]

    frontier = log_probs(batch)
    scores = [frontier]
    parents = [torch.arange(-1, topk).expand(batch, -1)] if depth > 1 else []
    for level in range(1, depth):
        expanded = (frontier[:, :, None] + log_probs(batch, topk)).flatten(1)
        scores.append(expanded)
        frontier, best = expanded.topk(topk)
        if level < depth - 1:
            parents.append(best + topk**2 * (level - 1) + topk)
    all_scores = torch.cat(scores, dim=1)
    empty = torch.zeros(batch, 0, dtype=torch.int64)
    return Candidates(
        topk,
        depth,
        all_scores,
        torch.randint(0, 1000, all_scores.shape, generator=rng),
        torch.cat(parents, dim=1) if parents else empty,
        torch.randint(0, 1000, (batch,), generator=rng),
        torch.randint(0, 40, (batch,), generator=rng, dtype=torch.int32),
    )


def unsound_candidates(seed: int, batch: int = 3, topk: int = 3, depth: int = 3) -> Candidates:
    """Ties, NaN and infinities, scores that grow along paths, parents that are none."""
    sound = random_candidates(seed, batch, topk, depth)
    rng = torch.Generator().manual_seed(seed)

    def some(tensor: Tensor, share: float) -> Tensor:
        return torch.rand(tensor.shape, generator=rng) < share

    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0])
    scores = torch.randint(-4, 3, sound.scores.shape, generator=rng).float()
    picks = torch.randint(0, 5, scores.shape, generator=rng)
    scores = torch.where(some(scores, 0.3), strange[picks], scores)
    parents = sound.parent_list.clone()
    wild = torch.randint(-3, sound.num_candidates + 4, parents.shape, generator=rng)
    parents = torch.where(some(parents, 0.3), wild, parents)
    parents = torch.where(some(parents, 0.05), torch.tensor(2**40 + 1), parents)
    lens = torch.tensor([-1, -(2**31), INT32_MAX, 0, 7], dtype=torch.int32)
    return dataclasses.replace(
        sound,
        scores=scores,
        parent_list=parents,
        prefix_lens=lens[torch.randint(0, 5, (batch,), generator=rng)],
    )


def random_selection(seed: int, candidates: Candidates, count: int, *, sound: bool) -> Tensor:
    """``count`` candidates per request, ascending but not a tree; or any numbers at all."""
    rng = torch.Generator().manual_seed(seed)
    batch_size, num_candidates = candidates.scores.shape
    if not sound:
        return torch.randint(-2, num_candidates + 3, (batch_size, count), generator=rng)
    order = torch.rand(batch_size, num_candidates, generator=rng).argsort()
    return order[:, :count].sort()[0]


def unpack_bits(mask: Tensor, num_nodes: int) -> Tensor:
    """bool [B, N, N] of a mask of mode "bits"; bits past column N are no columns."""
    bits = (mask.cpu()[..., None] >> torch.arange(32)) & 1
    columns = bits.flatten(2).bool()
    assert not columns[..., num_nodes:].any()
    return columns[..., :num_nodes]


def assert_legal_tree(record: TreeRecord, prefix_lens: Tensor) -> None:
    """Links, parents, positions and mask ("bits") describe one tree, and walks end."""
    batch_size, num_nodes = record.parents.shape
    mask = unpack_bits(record.mask, num_nodes).tolist()
    rows = torch.arange(batch_size * num_nodes).view(batch_size, num_nodes)
    assert torch.equal(record.retrieve_index.cpu().long(), rows)
    for b in range(batch_size):
        parents, first, following, positions = (
            tensor[b].tolist()
            for tensor in (
                record.parents,
                record.retrieve_next_token,
                record.retrieve_next_sibling,
                record.positions,
            )
        )
        prefix_len = int(prefix_lens[b])
        if not 0 <= prefix_len <= INT32_MAX - num_nodes:
            prefix_len = 0
        assert parents[0] == -1
        assert positions[0] == prefix_len
        for node in range(num_nodes):
            children = [c for c in range(num_nodes) if parents[c] == node]
            assert first[node] == (children[0] if children else -1)
            assert [following[c] for c in children] == [*children[1:], -1][: len(children)]
            if node > 0:
                assert -1 <= parents[node] < node
                above = max(parents[node], 0)
                assert positions[node] == positions[above] + 1
                expected = [*mask[b][above]]
            else:
                expected = [False] * num_nodes
            if parents[node] < 0:
                assert following[node] == -1
            expected[node] = True
            assert mask[b][node] == expected
