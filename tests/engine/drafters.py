"""Drafters that know the target's text, that draw their drafts, and that misbehave."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from engine.models import VOCAB
from specfast import Proposal, RowRecord, SampledRows, SamplingRules, ops
from specfast.drafters import DraftBatch, DraftRequest
from specfast.drafters.sampling import sampling_rules
from torch import Tensor


class OracleDrafter:
    """Drafts the true continuation up to a depth that varies from round to round.

    As a tree every true node stands behind a wrong sibling that has a wrong child of its own, so
    that each accepted row has to move.
    """

    def __init__(self, texts: Sequence[Sequence[int]], tree: bool = False, seed: int = 0) -> None:
        self._texts = [list(text) for text in texts]
        self._tree = tree
        self._random = random.Random(seed)
        self.released: list[int] = []

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        drafts, parents = [], []
        for request in requests:
            rows = self._random.randint(0, verify_width - 1)
            path = self._path(request, self._random.randint(0, rows))
            tokens, above = self._bushy(path, rows) if self._tree else (self._long(path, rows), [])
            drafts.append(tokens)
            parents.append(above)
        return DraftBatch.from_lists(requests, drafts, parents if self._tree else None)

    def release(self, request_id: int) -> None:
        self.released.append(request_id)

    def _path(self, request: DraftRequest, length: int) -> list[int]:
        done = len(request.token_ids)
        (text,) = {tuple(t) for t in self._texts if t[:done] == request.token_ids}
        return list(text[done : done + length])

    @staticmethod
    def _long(path: list[int], rows: int) -> list[int]:
        """The true path and wrong tokens after it."""
        return [*path, *[(path[-1] + 1) % VOCAB if path else 0] * (rows - len(path))]

    @staticmethod
    def _bushy(path: list[int], rows: int) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        parents: list[int] = []
        above = 0
        for token in path:
            wrong = len(tokens) + 1
            tokens += [(token + 1) % VOCAB, (token + 2) % VOCAB, token]
            parents += [above, wrong, above]
            above = wrong + 2
        return tokens[:rows], parents[:rows]


class NoiseDrafter:
    """Any ids (a few true ones among them), any parents, any verify_lens."""

    def __init__(self, texts: Sequence[Sequence[int]], seed: int) -> None:
        self._texts = [list(text) for text in texts]
        self._random = random.Random(seed)

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        draw = self._random
        width = draw.randint(1, verify_width)
        tokens = [[self._token(request) for _ in range(width)] for request in requests]
        # Mostly a node before it, at times anything.
        parents = [
            [
                draw.choice([*range(max(node, 1))] * 6 + [-1, node, width, 10**6])
                for node in range(width)
            ]
            for _ in requests
        ]
        verify_lens = [draw.randint(0, width + 2) for _ in requests]
        chain = draw.random() < 0.3
        return DraftBatch(
            torch.tensor(tokens, dtype=torch.int32),
            verify_lens,
            None if chain else torch.tensor(parents, dtype=torch.int32),
        )

    def _token(self, request: DraftRequest) -> int:
        done = len(request.token_ids)
        text = next(text for text in self._texts if text[:done] == request.token_ids)
        true = text[done : done + 3]
        return self._random.choice([*true * 4, -1, VOCAB, -(2**31), self._random.randrange(VOCAB)])

    def release(self, request_id: int) -> None:
        pass


class DrawingDrafter:
    """Draws a tree of two levels without replacement, from logits by the token before.

    ``table`` [V, V] holds the logits, on the target's device. Every node has ``branches[level]``
    children; one branch each makes a chain.
    """

    def __init__(self, table: Tensor, branches: tuple[int, int] = (2, 2)) -> None:
        self._table = table
        self._branches = branches

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        batch, (first, second) = len(requests), self._branches
        device = self._table.device
        rules = sampling_rules(requests, device)
        lens = torch.tensor(
            [len(r.token_ids) - 1 for r in requests], dtype=torch.int32, device=device
        )
        anchors = torch.tensor([[r.token_ids[-1]] for r in requests], device=device)
        upper, upper_logits = self._draw(anchors, rules, lens, 0, first)
        lower, lower_logits = self._draw(upper.tokens, rules, lens, 1, second)
        tokens = [anchors, upper.tokens, lower.tokens.view(batch, -1)]
        # Level 1 begins after the rows of the anchors; leaves have none.
        nodes = 1 + first + first * second
        row_of_node = torch.full((batch, nodes), -1, dtype=torch.int32, device=device)
        row_of_node[:, 0] = torch.arange(batch, device=device)
        below = torch.arange(batch * first, device=device) + batch
        row_of_node[:, 1 : 1 + first] = below.view(batch, first)
        parents = [-1, *[0] * first, *[1 + i for i in range(first) for _ in range(second)]]
        is_chain = self._branches == (1, 1)
        return DraftBatch(
            torch.cat(tokens, dim=1).int(),
            [nodes] * batch,
            None if is_chain else torch.tensor([parents] * batch, dtype=torch.int32),
            Proposal(
                logits=torch.cat([upper_logits, lower_logits]),
                records=RowRecord(torch.cat([upper.records.packed, lower.records.packed])),
                row_of_node=row_of_node,
                without_replacement=True,
            ),
        )

    def _draw(
        self, before: Tensor, rules: SamplingRules, lens: Tensor, level: int, num_draws: int
    ) -> tuple[SampledRows, Tensor]:
        """Children of the tokens ``before`` [B, slots], in a row each."""
        batch, slots = before.shape
        logits = self._table[before.flatten().clamp(min=0)]
        rows = torch.arange(batch * slots, dtype=torch.int32, device=logits.device)
        drawn = ops.sample_rows(
            logits,
            rules,
            lens,
            request_of_row=rows // slots,
            slot_of_row=rows % slots,
            level=level,
            num_draws=num_draws,
        )
        drawn.tokens = drawn.tokens.view(batch, slots * num_draws)
        return drawn, logits

    def release(self, request_id: int) -> None:
        pass


class FixedDrafter:
    """Gives the same drafts to every request in every round."""

    def __init__(self, tokens: list[int], parents: list[int] | None = None) -> None:
        self.tokens = tokens
        self.parents = parents

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        parents = None if self.parents is None else [self.parents] * len(requests)
        return DraftBatch.from_lists(requests, [self.tokens] * len(requests), parents)

    def release(self, request_id: int) -> None:
        pass
