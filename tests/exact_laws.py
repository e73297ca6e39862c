"""The law of a round, by going through all drafts and all coins that make a difference.

Every decision compares a coin with a threshold. If the thresholds of a coin are multiples of 1 / n,
then its n cells are equally likely and the middle of a cell stands for all of it. So the law of the
outputs is a sum of fractions, and has to be equal to the target's: no tolerance, no luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import torch
from accept_batches import to_device
from implementations import Implementation
from specfast import Coins
from torch import Tensor
from toy_models import (
    Context,
    Model,
    Row,
    completed,
    logits_of,
    ordered_draws,
    plain_sampling,
    proposal,
    sequences,
)

# Into how many cells a coin has to be divided: of the accept coins by column (1 where absent), and
# of the final coin.
Cells = tuple[tuple[int, ...], int]


@dataclass(frozen=True)
class Round:
    """One round of a toy target and drafter.

    parents : parent node of the nodes 1, 2, ...; siblings are drawn without replacement
    drafts : the tokens of those nodes where they are not drawn at all
    filtered : what the target's rows are once filtered, where ``options`` filter
    """

    target: Model
    draft: Model
    parents: tuple[int, ...] = (0,)
    drafts: tuple[int, ...] | None = None
    filtered: Model | None = None

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(len(self.parents)))

    @property
    def law(self) -> Model:
        return self.filtered or self.target

    @property
    def num_nodes(self) -> int:
        return len(self.parents) + 1

    @property
    def width(self) -> int:
        return 1 + max(
            len(self.context(node, [0] * self.num_nodes)) for node in range(self.num_nodes)
        )

    def context(self, node: int, tokens: Sequence[int]) -> Context:
        """The drafts from below the root down to a node, of ``tokens`` per node."""
        context: Context = ()
        while node > 0:
            context = (tokens[node], *context)
            node = self.parents[node - 1]
        return context

    def drafted(self) -> list[tuple[list[int], Fraction]]:
        """All tokens per node that may be drafted (the root's is 0), and how likely they are."""
        if self.drafts is not None:
            return [([0, *self.drafts], Fraction(1))]
        partial = [([0] * self.num_nodes, Fraction(1))]
        for parent in range(self.num_nodes):
            children = [i + 1 for i, p in enumerate(self.parents) if p == parent]
            if not children:
                continue
            grown = []
            for tokens, weight in partial:
                q = self.draft(self.context(parent, tokens))
                for drawn, probability in ordered_draws(q, len(children)):
                    more = list(tokens)
                    for child, token in zip(children, drawn, strict=True):
                        more[child] = token
                    grown.append((more, weight * probability))
            partial = grown
        return partial


def links(parents: Sequence[int], num_requests: int) -> tuple[Tensor, Tensor]:
    """First children and next siblings of one tree, for each request."""
    next_token = torch.full((num_requests, len(parents) + 1), -1, dtype=torch.int32)
    next_sibling = next_token.clone()
    for parent in set(parents):
        children = [i + 1 for i, p in enumerate(parents) if p == parent]
        next_token[:, parent] = children[0]
        for left, right in pairwise(children):
            next_sibling[:, left] = right
    return next_token, next_sibling


def coin_cells(cells: Sequence[int]) -> Tensor:
    """float32 [product of cells, columns]: every combination of the middles of cells."""
    middles = [[(i + 0.5) / n for i in range(n)] for n in cells]
    return torch.tensor(list(product(*middles)), dtype=torch.float32).view(-1, len(cells))


def outputs(
    impl: Implementation,
    rule: str,
    case: Round,
    cells: Cells,
    q_form: str = "dense",
    **options: Any,
) -> dict[Context, Fraction]:
    """What comes out of the round, with exact probabilities."""
    drafted = case.drafted()
    combinations = coin_cells([*cells[0], cells[1]])
    num_coins, nodes = len(combinations), case.num_nodes
    columns = torch.full((num_coins, nodes), 0.5)
    columns[:, : len(cells[0])] = combinations[:, :-1]
    num_requests = len(drafted) * num_coins

    tokens = torch.tensor([tokens for tokens, _ in drafted], dtype=torch.int32)
    rows: list[Row] = []
    q_rows: list[Row] = []
    for assigned, _ in drafted:
        contexts = [case.context(node, assigned) for node in range(nodes)]
        rows += [case.target(context) for context in contexts]
        q_rows += [case.draft(context) for context in contexts]
    logits = logits_of(rows).view(len(drafted), nodes, -1)
    row_of_node = torch.arange(len(drafted) * nodes, dtype=torch.int32).view(-1, nodes)

    def per_coin(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(num_coins, 0).to(impl.device)

    arguments: dict[str, Any] = {"rule": rule, "target_logits": per_coin(logits).flatten(0, 1)}
    accept_options = {k: options.pop(k) for k in list(options) if k.startswith("threshold")}
    if "verify_len" in options:
        accept_options["verify_lens"] = torch.full(
            (num_requests,), options.pop("verify_len"), dtype=torch.int32, device=impl.device
        )
    coins = Coins(
        columns.repeat(len(drafted), 1).to(impl.device),
        combinations[:, -1].repeat(len(drafted)).to(impl.device),
    )
    arguments["sampling"] = plain_sampling(num_requests, impl.device, coins=coins, **options)
    if rule != "target_only":
        q = to_device(proposal(q_form, q_rows, impl.sample_rows), impl.device)
        q.row_of_node = per_coin(row_of_node)
        arguments["proposal"] = q
    prefix_lens = torch.zeros(num_requests, dtype=torch.int32, device=impl.device)
    if case.is_chain:
        record = impl.accept_chain(per_coin(tokens), prefix_lens, **arguments, **accept_options)
    else:
        tree = (tensor.to(impl.device) for tensor in links(case.parents, num_requests))
        record = impl.accept_tree(
            per_coin(tokens), *tree, prefix_lens, width=case.width, **arguments, **accept_options
        )
    assert record.status.tolist() == [0] * num_requests

    law: dict[Context, Fraction] = {}
    for i, (out, length) in enumerate(
        zip(record.out_tokens.tolist(), record.accept_lens.tolist(), strict=True)
    ):
        output = tuple(out[:length])
        law[output] = law.get(output, Fraction(0)) + drafted[i // num_coins][1] / num_coins
    return law


def assert_exact(
    impl: Implementation,
    rule: str,
    case: Round,
    cells: Cells,
    q_form: str = "dense",
    **options: Any,
) -> dict[Context, Fraction]:
    """Fail unless the round, and the target after it, are exactly the target; give its outputs."""
    law = outputs(impl, rule, case, cells, q_form, **options)
    got = completed(law, case.law, case.width)
    expected = sequences(case.law, case.width)
    if got != expected:
        keys = {*got, *expected}
        wrong = {k: (got.get(k), expected.get(k)) for k in keys if got.get(k) != expected.get(k)}
        raise AssertionError(f"{rule}: got, expected {wrong}")
    assert math.isclose(sum(law.values()), 1)
    return law


def mean_accepted(law: dict[Context, Fraction]) -> Fraction:
    """Accepted drafts per round."""
    return sum(((len(output) - 1) * p for output, p in law.items()), Fraction(0))
