"""A sampled request's text depends on its seed and params, not on its company."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from engine.drafters import FixedDrafter
from engine.models import VOCAB, answer_from_table, random_prompt, table_row, tiny_model
from specfast import SamplingParams, SamplingRules, reference
from specfast.drafters import Drafter, NgramDrafter, PlainDecoding
from specfast.engine import Engine, Generation
from torch import Tensor

PROMPT = random_prompt(12, seed=5)
NUM_TOKENS = 30
DRAFTERS = {
    "plain": PlainDecoding,
    "chain": NgramDrafter,
    "tree": lambda: NgramDrafter(tree=True, max_ngram=1),
}
COMPANY = [
    SamplingParams(max_new_tokens=20),
    SamplingParams(max_new_tokens=7, temperature=1.3),
    SamplingParams(max_new_tokens=31, temperature=0.4, seed=8, top_k=4),
    SamplingParams(max_new_tokens=12, frequency_penalty=0.7, logit_bias={3: 2.0}),
    SamplingParams(max_new_tokens=25, temperature=1.0, top_p=0.6, min_p=0.05, seed=1),
    SamplingParams(max_new_tokens=3, temperature=0.9, repetition_penalty=1.4),
    SamplingParams(max_new_tokens=18, temperature=2.0, top_k=1),
]
PARAMS = SamplingParams(
    temperature=0.7,
    top_k=20,
    top_p=0.95,
    presence_penalty=0.2,
    seed=2**63 + 5,
    max_new_tokens=NUM_TOKENS,
)


def table(num_rows: int = 13, vocab_size: int = VOCAB) -> Tensor:
    """A few rows, some of them peaked, so that texts repeat themselves now and then."""
    generator = torch.Generator().manual_seed(num_rows)
    return 2.5 * torch.randn(num_rows, vocab_size, generator=generator)


def make_engine(drafter: Drafter, target: str = "table", **options: object) -> Engine:
    engine = Engine(tiny_model(), drafter, **options)  # type: ignore[arg-type]
    if target == "table":
        answer_from_table(engine, table())
    return engine


def run(engine: Engine, *queue: tuple[Sequence[int], SamplingParams]) -> list[Generation]:
    """Decode several requests, each with its own params, in one go."""
    ids = [engine.add_request(prompt, params) for prompt, params in queue]
    done = {i: Generation(i, list(prompt)) for i, (prompt, _) in zip(ids, queue, strict=True)}
    while engine.has_unfinished:
        for output in engine.step():
            done[output.request_id].append(output)
    return list(done.values())


@pytest.mark.parametrize("target", ["table", "model"])
@pytest.mark.parametrize("drafts", DRAFTERS)
def test_a_seeded_request_is_the_same_alone_and_in_any_slot(drafts: str, target: str) -> None:
    (alone,) = run(make_engine(DRAFTERS[drafts](), target), (PROMPT, PARAMS))
    assert len(set(alone.token_ids)) > 8
    if target == "table":
        assert any(r.num_accepted for r in alone.rounds) == (drafts != "plain")
    company = [(random_prompt(3 + 2 * i, seed=i), params) for i, params in enumerate(COMPANY)]
    for place in (0, 3, 7):
        queue = [*company[:place], (PROMPT, PARAMS), *company[place:]]
        assert run(make_engine(DRAFTERS[drafts](), target), *queue)[place].token_ids == (
            alone.token_ids
        )
    # Three slots: requests join while others are running.
    queue = [*company, (PROMPT, PARAMS)]
    crowded = make_engine(DRAFTERS[drafts](), target, max_batch_size=3, page_size=5)
    assert run(crowded, *queue)[-1].token_ids == alone.token_ids


def test_plain_decoding_draws_what_the_definition_draws() -> None:
    params = [PARAMS, *(p for p in COMPANY if p.seed is not None)]
    for generation, p in zip(
        run(make_engine(PlainDecoding()), *((PROMPT, p) for p in params)), params, strict=True
    ):
        assert p.seed is not None
        rules = SamplingRules(
            temperature=torch.tensor([p.temperature]),
            seeds=torch.tensor([p.seed - 2**64 if p.seed >= 2**63 else p.seed]),
            top_k=torch.tensor([p.top_k], dtype=torch.int32),
            top_p=torch.tensor([p.top_p]),
            min_p=torch.tensor([p.min_p]),
        )
        text = list(PROMPT)
        for token in generation.token_ids:
            row = table()[table_row(torch.tensor(text[-1]), torch.tensor(len(text) - 1), 13)]
            for emitted in set(text[len(PROMPT) :]):
                row[emitted] -= p.presence_penalty
            prefix_len = torch.tensor([len(text) - 1], dtype=torch.int32)
            drawn = reference.sample_rows(row[None], rules, prefix_len, purpose="final")
            assert drawn.tokens.tolist() == [[token]]
            text.append(token)
        assert len(generation.token_ids) == p.max_new_tokens


@pytest.mark.parametrize("drafts", DRAFTERS)
def test_other_seeds_give_other_texts(drafts: str) -> None:
    queue = [(PROMPT, SamplingParams(temperature=1.0, seed=s, max_new_tokens=8)) for s in range(8)]
    # Two that differ in their high words alone.
    queue.append((PROMPT, SamplingParams(temperature=1.0, seed=2**32, max_new_tokens=8)))
    texts = {tuple(g.token_ids) for g in run(make_engine(DRAFTERS[drafts]()), *queue)}
    assert len(texts) == 9


def test_requests_without_a_seed_have_streams_of_their_own() -> None:
    params = SamplingParams(temperature=1.0, max_new_tokens=8)

    def texts(seed: int | None) -> list[list[int]]:
        engine = make_engine(PlainDecoding(), seed=seed)
        # One after the other, then two at once.
        generations = [*run(engine, (PROMPT, params)), *run(engine, (PROMPT, params))]
        generations += run(engine, (PROMPT, params), (PROMPT, params))
        return [generation.token_ids for generation in generations]

    first = texts(3)
    assert len({tuple(text) for text in first}) == 4
    assert texts(3) == first
    assert not set(map(tuple, texts(4))) & set(map(tuple, first))
    assert texts(None) != texts(None)


def test_the_seed_of_a_request_can_be_asked_for() -> None:
    engine = make_engine(PlainDecoding(), seed=11)
    params = SamplingParams(temperature=1.0, max_new_tokens=8)
    *_, third = run(engine, *[(PROMPT, params)] * 3)
    seed = engine.seed_of(third.request_id, params)
    seeded = SamplingParams(temperature=1.0, max_new_tokens=8, seed=seed)
    assert engine.seed_of(99, seeded) == seed
    (again,) = run(make_engine(PlainDecoding()), (PROMPT, seeded))
    assert again.token_ids == third.token_ids


@pytest.mark.parametrize("parents", [None, [0, 1]], ids=["chain", "tree"])
def test_greedy_and_sampled_requests_share_a_round(parents: list[int] | None) -> None:
    """Logits [1, 2, 3] and drafts [2, 2]: a greedy row takes 2, a sampled one with .6652."""
    engine = Engine(
        tiny_model(vocab_size=3), FixedDrafter([2, 2], parents), max_batch_size=402, num_pages=402
    )
    answer_from_table(engine, torch.tensor([[1.0, 2.0, 3.0]]))
    temperatures = [0.0, 1e-6, *[1.0] * 400]
    queue = [
        ([0], SamplingParams(temperature=t, seed=i, max_new_tokens=4))
        for i, t in enumerate(temperatures)
    ]
    generations = run(engine, *queue)
    for greedy in generations[:2]:
        assert greedy.token_ids == [2, 2, 2, 2]
        assert [r.num_accepted for r in greedy.rounds] == [0, 2]
    accepted = sum(g.rounds[1].num_accepted > 0 for g in generations[2:])
    # 6.1 standard deviations: 1e-9.
    assert abs(accepted - 400 * 0.66524) < 6.1 * (400 * 0.66524 * 0.33476) ** 0.5


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, rf"logit_bias ids in \[0, {VOCAB}\), got {VOCAB}"),
        ({"stop": ("end",)}, "an engine with a tokenizer"),
    ],
)
def test_params_that_the_engine_cannot_follow(changes: dict[str, object], what: str) -> None:
    engine = make_engine(PlainDecoding())
    with pytest.raises(ValueError, match=f"expected {what}"):
        engine.add_request(PROMPT, SamplingParams(**changes))  # type: ignore[arg-type]
    assert not engine.has_unfinished


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.5}, {"presence_penalty": 1.0}, {"logprobs": "raw"}]
)
def test_a_vocabulary_too_large_to_sample_from(changes: dict[str, object]) -> None:
    engine = make_engine(PlainDecoding())
    engine._intake._vocab_size = 2**20 + 1
    with pytest.raises(ValueError, match=r"at most 1048576 ids for sampling.*, got 1048577"):
        engine.add_request(PROMPT, SamplingParams(**changes))  # type: ignore[arg-type]
    engine.add_request(PROMPT, SamplingParams())
