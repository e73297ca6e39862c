"""Drafts drawn from a proposal leave the law of the text as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from chi_square import assert_follows
from engine.drafters import DrawingDrafter
from engine.models import tiny_model
from specfast import SamplingParams
from specfast.drafters import DraftBatch, Drafter, DraftRequest, PlainDecoding
from specfast.engine import Engine
from torch import Tensor

VOCAB = 4
NUM_REQUESTS = 256
NUM_TOKENS = 48
ANCHOR = 1


def tables() -> tuple[Tensor, Tensor]:
    """Logits [V, V] of target and drafter by the token before; they disagree."""
    generator = torch.Generator().manual_seed(2)
    p, q = 1.5 * torch.randn(2, VOCAB, VOCAB, generator=generator)
    return p, q


def engine_with(drafter: Drafter, p: Tensor, batch_size: int, **options: Any) -> Engine:
    """The target forgets the token before in every third row, as if it were the anchor.

    So each output is a row of independent texts of three tokens, however rounds divide it.
    """
    engine = Engine(
        tiny_model(vocab_size=VOCAB).to(p.device),
        drafter,
        max_batch_size=batch_size,
        num_pages=batch_size * 4,
        **{"seed": 7, "check_invariants": False, **options},
    )

    def forward(
        ids: Tensor, positions: Tensor, *_layers: object, last_only: bool = False
    ) -> Tensor:
        rows = torch.where(positions % 3 == 0, ANCHOR, ids)
        return p[rows[-1:] if last_only else rows]

    engine.target.forward = forward  # type: ignore[method-assign]
    return engine


def filtered(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities fp64 [V, V] after temperature and top-k."""
    values = logits.double() / params.temperature
    if params.top_k > 0:
        values[values < values.topk(params.top_k, dim=1).values[:, -1:]] = -torch.inf
    return values.softmax(1)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.6}, {"top_k": 3}], ids=str)
@pytest.mark.parametrize("branches", [None, (1, 1), (2, 2), (3, 1)], ids=str)
def test_joint_law_of_three_tokens(
    device: str, branches: tuple[int, int] | None, params: dict[str, Any]
) -> None:
    p, q = (table.to(device) for table in tables())
    sampling = SamplingParams(**{"temperature": 1.0, **params}, max_new_tokens=NUM_TOKENS)
    drafter = PlainDecoding() if branches is None else DrawingDrafter(q, branches)
    engine = engine_with(drafter, p, NUM_REQUESTS)
    generations = engine.generate([[ANCHOR]] * NUM_REQUESTS, sampling)
    accepted = {g.rounds[1].num_accepted for g in generations}
    assert accepted == ({0} if branches is None else {0, 1, 2})
    texts = Counter(
        tuple(g.token_ids[at : at + 3]) for g in generations for at in range(0, NUM_TOKENS, 3)
    )
    law = filtered(p.cpu(), sampling)
    joint = law[ANCHOR][:, None, None] * law[:, :, None] * law[None, :, :]
    every_text = product(range(VOCAB), repeat=3)
    assert_follows(texts, {text: float(joint[text]) for text in every_text})


@pytest.mark.parametrize("branches", [(1, 1), (2, 2)], ids=str)
def test_a_seeded_request_is_the_same_alone_and_in_company(
    device: str, branches: tuple[int, int]
) -> None:
    # cases.md B30: drafts, accept coins and last draws all come from the request's one seed.
    p, q = (table.to(device) for table in tables())
    sampling = SamplingParams(temperature=1.0, seed=1, max_new_tokens=40)

    def text(place: int, batch_size: int, seed: int) -> list[int]:
        engine = engine_with(DrawingDrafter(q, branches), p, batch_size, seed=seed)
        others = SamplingParams(temperature=1.3, max_new_tokens=25)
        queue = [others] * place + [sampling] + [others] * (batch_size - 1 - place)
        ids = [engine.add_request([ANCHOR], params) for params in queue]
        tokens: list[int] = []
        while engine.has_unfinished:
            for output in engine.step():
                tokens += output.token_ids if output.request_id == ids[place] else []
        return tokens

    alone = text(0, 1, seed=3)
    assert len(alone) == 40
    assert [text(place, 4, seed=place) for place in range(4)] == [alone] * 4


def test_greedy_and_penalised_requests_beside_drawn_ones(device: str) -> None:
    p, q = (table.to(device) for table in tables())
    params = [
        SamplingParams(max_new_tokens=12),
        SamplingParams(frequency_penalty=0.8, max_new_tokens=12),
        SamplingParams(temperature=1.0, max_new_tokens=12),
    ]
    texts = []
    for drafter in (PlainDecoding(), DrawingDrafter(q)):
        engine = engine_with(drafter, p, 3)
        for each in params:
            engine.add_request([ANCHOR], each)
        text: dict[int, list[int]] = {0: [], 1: [], 2: []}
        while engine.has_unfinished:
            for output in engine.step():
                text[output.request_id] += output.token_ids
        texts.append(text)
    plain, drawn = texts
    assert (drawn[0], drawn[1]) == (plain[0], plain[1])
    assert drawn[0] != drawn[1]


class WithoutOrder(DrawingDrafter):
    """Draws a tree, and does not vouch for the order of its siblings."""

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        batch = super().propose(requests, verify_width)
        assert batch.proposal is not None
        batch.proposal.without_replacement = False
        return batch


def test_a_tree_that_the_rule_cannot_take_is_refused() -> None:
    p, q = tables()
    sampled = SamplingParams(temperature=1.0, max_new_tokens=4)
    for params in (sampled, SamplingParams(max_new_tokens=4)):
        engine = engine_with(WithoutOrder(q), p, 1)
        engine.add_request([ANCHOR], params)
        engine.step()
        with pytest.raises(RuntimeError, match="proposal of a tree to be without_replacement"):
            engine.step()
    # A chain has no order among siblings.
    chain = engine_with(WithoutOrder(q, (1, 1)), p, 1)
    assert len(chain.generate([[ANCHOR]], sampled)[0].token_ids) == 4
