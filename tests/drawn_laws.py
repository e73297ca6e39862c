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
    """Independent requests of one target and one drafter, which go on round by round."""

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
        self.tokens: list[Context] = [()] * self.num_streams
        seeds = torch.arange(self.num_streams, device=self.impl.device) + FIRST_SEED
        self.sampling = plain_sampling(
            self.num_streams, self.impl.device, seeds=seeds, **self.options
        )
        self.proposing = plain_sampling(self.num_streams, self.impl.device, seeds=seeds)

    def rows(self, model: Model, contexts: list[Context]) -> Tensor:
        """float32 [B, V]."""
        known = {context: model(context) for context in set(contexts)}
        position = {context: i for i, context in enumerate(known)}
        index = torch.tensor([position[context] for context in contexts])
        return logits_of(list(known.values()))[index].to(self.impl.device)

    def round(self) -> Any:
        """Draft and verify once; every stream emits at least one token."""
        lens = [self.prompt_len + len(tokens) for tokens in self.tokens]
        prefix_lens = torch.tensor(lens, dtype=torch.int32, device=self.impl.device)
        drafted, logits, records = self._drafts(prefix_lens)
        nodes = drafted.shape[1]
        drafts = drafted.tolist()
        contexts = []
        for b, tokens in enumerate(self.tokens):
            for node in range(nodes):
                # Siblings of the root have nothing but it above them.
                above = drafts[b][1 if self.drafting.width == 1 else node : node + 1]
                contexts.append(tokens + tuple(above if node > 0 else ()))
        arguments: dict[str, Any] = {
            "target_logits": self.rows(self.target, contexts),
            "rule": self.rule,
            "sampling": self.sampling,
        }
        if self.rule != "target_only":
            arguments["proposal"] = self._proposal(logits, records)
        if self.drafting.width == 1:
            record = self.impl.accept_chain(drafted, prefix_lens, **arguments)
        else:
            tree = (x.to(self.impl.device) for x in links([0] * (nodes - 1), self.num_streams))
            record = self.impl.accept_tree(drafted, *tree, prefix_lens, width=2, **arguments)
        assert int(record.status.max()) == 0
        emitted = zip(record.out_tokens.tolist(), record.commit_lens.tolist(), strict=True)
        self.tokens = [
            tokens + tuple(out[:length])
            for tokens, (out, length) in zip(self.tokens, emitted, strict=True)
        ]
        return record

    def _drafts(self, prefix_lens: Tensor) -> tuple[Tensor, list[Tensor], list[Any]]:
        """Tokens int32 [B, N], and per level the rows that they were drawn from."""
        contexts = self.tokens
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
            last = drawn.tokens[:, 0].tolist()
            contexts = [(*context, token) for context, token in zip(contexts, last, strict=True)]
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
    while min(len(tokens) for tokens in streams.tokens) < length:
        streams.round()
    return Counter(tokens[:length] for tokens in streams.tokens)
