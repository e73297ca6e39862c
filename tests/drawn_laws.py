"""Laws of what is drawn with the requests' own random numbers, over one round and over several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from exact_laws import links
from implementations import Implementation
from specfast import Proposal, RowRecord
from torch import Tensor
from toy_models import Context, Model, logits_of, plain_sampling

FIRST_SEED = 1_000_003


@dataclass(frozen=True)
class Drafting:
    """How the tokens of a round come about: a chain of ``depth``, or ``width`` siblings of a root.

    ``greedy`` drafts are the likeliest tokens of q; others are drawn.
    """

    depth: int = 1
    width: int = 1
    greedy: bool = False


@dataclass
class Streams:
    """Independent requests of one target and one drafter, which go on round by round.

    A context is one number: its tokens + 1 are the digits, in base V + 1 and the last one lowest.
    """

    impl: Implementation
    rule: str
    target: Model
    draft: Model
    drafting: Drafting
    num_streams: int
    options: dict[str, Any]
    # What the prompt holds: rounds count from here.
    prompt_len: int = 7

    def __post_init__(self) -> None:
        device = self.impl.device
        self.base = len(self.target(())) + 1
        self.contexts = torch.zeros(self.num_streams, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(self.num_streams, dtype=torch.int32, device=device)
        seeds = torch.arange(self.num_streams, device=device) + FIRST_SEED
        self.sampling = plain_sampling(self.num_streams, device, seeds=seeds, **self.options)
        self.proposing = plain_sampling(self.num_streams, device, seeds=seeds)

    def decoded(self, context: int) -> Context:
        tokens: Context = ()
        while context > 0:
            context, digit = divmod(context, self.base)
            tokens = (digit - 1, *tokens)
        return tokens

    def rows(self, model: Model, contexts: Tensor) -> Tensor:
        """float32 [B, V] of the contexts [B]."""
        known, index = contexts.unique(return_inverse=True)
        rows = [model(self.decoded(context)) for context in known.tolist()]
        return logits_of(rows).to(self.impl.device)[index]

    def round(self) -> Any:
        """Draft and verify once; every stream emits at least one token."""
        prefix_lens = self.lengths + self.prompt_len
        drafts, logits, records = self._drafts(prefix_lens)
        nodes = drafts.shape[1]
        contexts = [self.contexts]
        for node in range(1, nodes):
            # Siblings of the root have nothing but it above them.
            above = contexts[-1] if self.drafting.width == 1 else self.contexts
            contexts.append(above * self.base + drafts[:, node] + 1)
        arguments: dict[str, Any] = {
            "target_logits": self.rows(self.target, torch.stack(contexts, 1).flatten()),
            "rule": self.rule,
            "sampling": self.sampling,
        }
        if self.rule != "target_only":
            arguments["proposal"] = self._proposal(logits, records)
        if self.drafting.width == 1:
            record = self.impl.accept_chain(drafts, prefix_lens, **arguments)
        else:
            tree = (x.to(self.impl.device) for x in links([0] * (nodes - 1), self.num_streams))
            record = self.impl.accept_tree(drafts, *tree, prefix_lens, width=2, **arguments)
        assert int(record.status.max()) == 0
        self._append(record.out_tokens, record.commit_lens)
        return record

    def _append(self, tokens: Tensor, commit_lens: Tensor) -> None:
        for i, emitted in enumerate(tokens.unbind(1)):
            longer = self.contexts * self.base + emitted + 1
            self.contexts = torch.where(i < commit_lens, longer, self.contexts)
        self.lengths = self.lengths + commit_lens
        assert self.base ** int(self.lengths.max()) < 2**63

    def beginnings(self, length: int) -> Counter[Context]:
        """How often each beginning of ``length`` tokens came."""
        behind = (self.lengths - length).long()
        first = self.contexts // torch.full_like(behind, self.base).pow(behind)
        known, counts = first.unique(return_counts=True)
        return Counter(dict(zip(map(self.decoded, known.tolist()), counts.tolist(), strict=True)))

    def _drafts(self, prefix_lens: Tensor) -> tuple[Tensor, list[Tensor], list[Any]]:
        """Tokens int32 [B, N], and per level the rows that they were drawn from."""
        contexts = self.contexts
        columns = [torch.zeros(self.num_streams, 1, dtype=torch.int32, device=self.impl.device)]
        logits, records = [], []
        for level in range(self.drafting.depth):
            rows = self.rows(self.draft, contexts)
            drawn = self.impl.sample_rows(
                rows, self.proposing, prefix_lens, level=level, num_draws=self.drafting.width
            )
            if self.drafting.greedy:
                best = rows.topk(self.drafting.width, dim=1).indices
                drawn.tokens.copy_(best)
            columns.append(drawn.tokens)
            logits.append(rows)
            records.append(drawn.records.packed)
            contexts = contexts * self.base + drawn.tokens[:, 0] + 1
        return torch.cat(columns, 1), logits, records

    def _proposal(self, logits: list[Tensor], packed: list[Tensor]) -> Proposal:
        rows = torch.stack(logits, 1).flatten(0, 1)
        if self.drafting.greedy:
            # What is not drawn is proposed with probability 1.
            probs = torch.zeros_like(rows).scatter(1, rows.argmax(1, keepdim=True), 1.0)
            q = Proposal(probs=probs)
        else:
            records = RowRecord(torch.stack(packed, 1).flatten(0, 1))
            q = Proposal(logits=rows, records=records, without_replacement=True)
        nodes = self.drafting.depth * self.drafting.width + 1
        index = torch.arange(self.num_streams * self.drafting.depth, device=rows.device)
        q.row_of_node = torch.full(
            (self.num_streams, nodes), -1, dtype=torch.int32, device=rows.device
        )
        q.row_of_node[:, : self.drafting.depth] = index.view(self.num_streams, -1)
        return q


def first_tokens(streams: Streams, length: int) -> Counter[Context]:
    """Run rounds until every stream has ``length`` tokens; how often each beginning came."""
    while int(streams.lengths.min()) < length:
        streams.round()
    return streams.beginnings(length)
