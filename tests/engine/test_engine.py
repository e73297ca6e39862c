"""Speculative output is plain greedy output, whatever is drafted and however it is stored."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import specfast
import torch
from engine.drafters import FixedDrafter, NoiseDrafter, OracleDrafter
from engine.models import CONTEXT, VOCAB, plain_greedy, random_prompt, tiny_model
from specfast import FinishReason, SamplingParams, Status
from specfast.drafters import DraftBatch, Drafter, NgramDrafter
from specfast.engine import Engine, Generation
from specfast.engine.draft_checks import check_draft
from torch import Tensor

PROMPTS = [random_prompt(length, seed=length) for length in (5, 17, 31)]
NUM_TOKENS = 40


@lru_cache
def continuation(prompt: tuple[int, ...], num_tokens: int, architecture: str) -> list[int]:
    return plain_greedy(tiny_model(architecture), list(prompt), num_tokens)


def expected(prompt: list[int], architecture: str = "llama") -> list[int]:
    return continuation(tuple(prompt), NUM_TOKENS, architecture)


def oracle(prompts: list[list[int]], tree: bool = False, architecture: str = "llama") -> Drafter:
    texts = [prompt + expected(prompt, architecture) for prompt in prompts]
    return OracleDrafter(texts, tree=tree)


def check_rounds(generation: Generation) -> None:
    """What every run must show, whoever drafted."""
    first = generation.rounds[0]
    assert (first.num_proposed, first.num_accepted, len(first.token_ids)) == (0, 0, 1)
    for output in generation.rounds:
        assert output.num_accepted <= output.num_proposed
        assert len(output.token_ids) - output.num_accepted in (0, 1)
    for output in generation.rounds[:-1]:
        assert output.finish_reason is FinishReason.NOT_FINISHED
        assert len(output.token_ids) == output.num_accepted + 1
    assert generation.rounds[-1].finish_reason == generation.finish_reason
    emitted = [token for output in generation.rounds for token in output.token_ids]
    assert emitted == generation.token_ids


def check_all_returned(engine: Engine) -> None:
    assert engine.pool.num_free_pages == engine.pool.num_pages
    assert not engine.has_unfinished


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "deepseek_v3"])
def test_output_equals_plain_decoding(
    architecture: str, tree: bool, page_size: int, device: str
) -> None:
    model = tiny_model(architecture).to(device)
    drafter = oracle(PROMPTS, tree, architecture)
    engine = Engine(model, drafter, page_size=page_size, verify_width=16)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert generation.prompt_ids == prompt
        assert generation.token_ids == expected(prompt, architecture)
        assert generation.finish_reason is FinishReason.LENGTH
        check_rounds(generation)
        # Several rounds go on after one that accepted, or moved, rows.
        assert sum(output.num_accepted > 1 for output in generation.rounds) >= 3
        assert len(generation.rounds) < NUM_TOKENS
        assert all(output.status == Status.OK for output in generation.rounds)
    check_all_returned(engine)


def test_without_a_drafter_every_round_emits_one_token(device: str) -> None:
    engine = Engine(tiny_model().to(device))
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert generation.token_ids == expected(prompt)
        assert [len(output.token_ids) for output in generation.rounds] == [1] * NUM_TOKENS
        check_rounds(generation)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_ngram_drafts_are_accepted_and_change_nothing(tree: bool, device: str) -> None:
    model = tiny_model("olmo2").to(device)
    prompt = random_prompt(10, seed=1)
    plain = continuation(tuple(prompt), 80, "olmo2")
    engine = Engine(model, NgramDrafter(tree=tree))
    (generation,) = engine.generate([prompt], SamplingParams(max_new_tokens=80))
    assert generation.token_ids == plain
    check_rounds(generation)
    # This model soon repeats itself, which is what the drafter lives on.
    assert len(generation.rounds) < 45


@pytest.mark.parametrize("verify_width", [1, 2, 3])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_narrow_windows(verify_width: int, tree: bool) -> None:
    engine = Engine(tiny_model(), oracle(PROMPTS, tree), verify_width=verify_width)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert generation.token_ids == expected(prompt)
        assert all(output.num_proposed < verify_width for output in generation.rounds)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_requests_join_and_leave_between_rounds(tree: bool) -> None:
    prompts = [random_prompt(length, seed=length) for length in (3, 9, 14, 20, 26, 33)]
    limits = [1, 25, 8, 40, 2, 13]
    drafter = OracleDrafter([prompt + expected(prompt) for prompt in prompts], tree)
    engine = Engine(tiny_model(), drafter, max_batch_size=2)
    emitted: dict[int, list[int]] = {}
    running: set[int] = set()
    pending = list(zip(prompts, limits, strict=True))
    order = []
    while pending or engine.has_unfinished:
        # A new request arrives at every step.
        if pending:
            prompt, limit = pending.pop(0)
            order.append(engine.add_request(prompt, SamplingParams(max_new_tokens=limit)))
        for output in engine.step():
            emitted.setdefault(output.request_id, []).extend(output.token_ids)
            running.add(output.request_id)
            if output.finish_reason:
                running.remove(output.request_id)
        assert len(running) <= 2
    for request_id, prompt, limit in zip(order, prompts, limits, strict=True):
        assert emitted[request_id] == expected(prompt)[:limit]
    assert sorted(drafter.released) == order
    check_all_returned(engine)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("end_at", [1, 4, 11])
def test_an_end_inside_an_accepted_block_cuts_it(end_at: int, tree: bool) -> None:
    prompt = PROMPTS[0]
    text = expected(prompt)
    end = text.index(text[end_at])
    for params, reason in (
        (SamplingParams(eos_token_ids=(VOCAB - 1, text[end])), FinishReason.EOS),
        (SamplingParams(stop_token_ids=(text[end],)), FinishReason.STOP),
        (SamplingParams(max_new_tokens=end + 1), FinishReason.LENGTH),
    ):
        engine = Engine(tiny_model(), FullOracle(prompt, tree))
        (generation,) = engine.generate([prompt], params)
        assert generation.token_ids == text[: end + 1]
        assert generation.finish_reason is reason
        check_rounds(generation)
        check_all_returned(engine)


class FullOracle(OracleDrafter):
    """Always drafts as much of the true text as fits."""

    def __init__(self, prompt: list[int], tree: bool) -> None:
        super().__init__([prompt + expected(prompt)], tree)
        self._random.randint = lambda low, high: high  # type: ignore[method-assign]


def test_ends_that_do_not_count_are_passed_over() -> None:
    prompt = PROMPTS[1]
    text = expected(prompt)
    first_end = text.index(text[5])
    params = [
        SamplingParams(max_new_tokens=20, eos_token_ids=(text[5],), ignore_eos=True),
        SamplingParams(max_new_tokens=20, eos_token_ids=(text[5],), min_new_tokens=20),
        SamplingParams(max_new_tokens=20, eos_token_ids=(text[5],)),
    ]
    # One batch, three opinions about where it ends.
    engine = Engine(tiny_model(), FullOracle(prompt, tree=False))
    ids = [engine.add_request(prompt, p) for p in params]
    emitted: dict[int, list[int]] = {i: [] for i in ids}
    reasons = {}
    while engine.has_unfinished:
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
            reasons[output.request_id] = output.finish_reason
    assert emitted == {ids[0]: text[:20], ids[1]: text[:20], ids[2]: text[: first_end + 1]}
    assert reasons[ids[0]] is FinishReason.LENGTH
    # The twentieth token ends the second request as EOS only if it is that id.
    assert reasons[ids[1]] is (FinishReason.EOS if text[19] == text[5] else FinishReason.LENGTH)
    assert reasons[ids[2]] is FinishReason.EOS


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("prompt_len", [CONTEXT - 9, CONTEXT - 2, CONTEXT - 1])
def test_the_context_ends_a_request(prompt_len: int, tree: bool) -> None:
    model = tiny_model()
    prompt = random_prompt(prompt_len, seed=1)
    room = CONTEXT - prompt_len
    parents = [0, 1, 2, 3, 4, 5, 6] if tree else None
    text = plain_greedy(model, prompt, room)
    # Right and wrong drafts alike would run past the end.
    for drafts in (text[1:], [0] * 7):
        tokens = (drafts + [0] * 7)[:7]
        engine = Engine(model, FixedDrafter(tokens, parents), page_size=16)
        (generation,) = engine.generate([prompt], SamplingParams(max_new_tokens=100))
        assert generation.token_ids == text
        assert generation.finish_reason is FinishReason.LENGTH
        check_all_returned(engine)


def test_a_small_pool_is_a_small_context_and_makes_requests_wait() -> None:
    # Four pages of 16: one request that may grow to 64 positions, or two of 32.
    engine = Engine(tiny_model(), oracle(PROMPTS), num_pages=4)
    assert engine.context_length == 64
    with pytest.raises(ValueError, match=r"at most 63 tokens \(the context holds 64\), got 64"):
        engine.add_request(random_prompt(64, seed=0))
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert generation.token_ids == expected(prompt)[: 64 - len(prompt)]
    check_all_returned(engine)


def test_pages_return_after_many_random_rounds() -> None:
    engine = Engine(tiny_model(), NgramDrafter(tree=True), page_size=3, max_batch_size=4)
    for seed in range(5):
        prompts = [random_prompt(1 + (7 * seed + 5 * i) % 23, seed=i) for i in range(6)]
        engine.generate(prompts, SamplingParams(max_new_tokens=1 + 4 * seed))
        check_all_returned(engine)


@pytest.mark.parametrize(
    ("tokens", "parents", "status"),
    [
        ([-1, -1, 5], None, Status.BAD_TOKEN),
        ([VOCAB, 2**31 - 1], None, Status.BAD_TOKEN),
        ([-1, VOCAB, 5, -2], [0, 0, 0, 1], Status.BAD_TOKEN),
        # A parent that comes later, one out of range, one that is its own.
        ([1, 2, 3, 4], [2, 0, 99, 4], Status.BAD_TREE),
    ],
)
def test_bad_drafts_are_flagged_and_change_nothing(
    tokens: list[int], parents: list[int] | None, status: Status, device: str
) -> None:
    engine = Engine(tiny_model().to(device), FixedDrafter(tokens, parents))
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=12))
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert generation.token_ids == expected(prompt)[:12]
        assert all(output.status == status for output in generation.rounds[1:])


@pytest.mark.parametrize("seed", range(6))
def test_noise_changes_nothing(seed: int, device: str) -> None:
    drafter = NoiseDrafter([prompt + expected(prompt) for prompt in PROMPTS], seed)
    engine = Engine(tiny_model().to(device), drafter, page_size=1 + 3 * seed, verify_width=24)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert generation.token_ids == expected(prompt)
        assert any(output.num_accepted for output in generation.rounds)
    check_all_returned(engine)


def test_duplicate_siblings_emit_their_token_once() -> None:
    prompt = PROMPTS[2]
    text = expected(prompt)
    #   anchor -> t1, t1 (again), wrong;  t2 under the first and under the second t1
    drafts = [text[1], text[1], (text[1] + 1) % VOCAB, text[2], text[2]]
    engine = Engine(tiny_model(), FixedDrafter(drafts, [0, 0, 0, 2, 1]))
    engine.add_request(prompt, SamplingParams(max_new_tokens=NUM_TOKENS))
    (prefill,) = engine.step()
    (first,) = engine.step()
    assert prefill.token_ids + first.token_ids == text[:4]
    assert first.num_accepted == 2
    emitted = prefill.token_ids + first.token_ids
    while engine.has_unfinished:
        emitted += engine.step()[0].token_ids
    assert emitted == text


def test_a_drafter_that_breaks_its_contract_is_named() -> None:
    engine = Engine(tiny_model(), FixedDrafter([1, 2, 3]), verify_width=3)
    engine.add_request(PROMPTS[0])
    engine.step()
    with pytest.raises(RuntimeError, match=r"drafter: expected tokens \[1, N\] with N in \[1, 3\]"):
        engine.step()


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], "at least one token"),
        ([0, VOCAB], rf"prompt ids in \[0, {VOCAB}\), got {VOCAB}"),
        ([-1], "got -1"),
        ([0] * CONTEXT, rf"at most {CONTEXT - 1} tokens .*, got {CONTEXT}"),
    ],
)
def test_bad_prompts_are_refused_in_one_sentence(prompt: list[int], reason: str) -> None:
    engine = Engine(tiny_model())
    with pytest.raises(ValueError, match=reason):
        engine.add_request(prompt)
    # One bad prompt refuses the whole call.
    with pytest.raises(ValueError, match=reason):
        engine.generate([[1, 2], prompt])
    assert not engine.has_unfinished


@pytest.mark.parametrize("prompt", [[1.7, 2], "12"])
def test_a_prompt_of_anything_but_integers_is_refused(prompt: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        Engine(tiny_model()).add_request(prompt)


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_failed_step_can_be_tried_again(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny_model(), NgramDrafter(tree=True), check_invariants=False)
    forward, calls = engine.target.forward, itertools.count(1)

    def forward_or_fail(*args: Any, **kwargs: Any) -> Tensor:
        logits = forward(*args, **kwargs)
        if next(calls) == failing:
            raise torch.OutOfMemoryError
        return logits

    monkeypatch.setattr(engine.target, "forward", forward_or_fail)
    for prompt in PROMPTS:
        engine.add_request(prompt, SamplingParams(max_new_tokens=NUM_TOKENS))
    emitted: list[list[int]] = [[] for _ in PROMPTS]
    failures = 0
    while engine.has_unfinished:
        try:
            for output in engine.step():
                emitted[output.request_id] += output.token_ids
        except torch.OutOfMemoryError:
            failures += 1
    assert failures == 1
    assert emitted == [expected(prompt) for prompt in PROMPTS]
    check_all_returned(engine)


def test_bad_sizes_are_refused() -> None:
    for name in ("max_batch_size", "page_size", "num_pages", "verify_width"):
        with pytest.raises(ValueError, match=f"expected {name} >= 1, got 0"):
            Engine(tiny_model(), **{name: 0})
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match=rf"expected seed in \[0, 2\^64\), got {seed}"):
            Engine(tiny_model(), seed=seed)


def test_on_round_sees_everything_in_order() -> None:
    seen: dict[int, list[int]] = {}
    engine = Engine(tiny_model(), oracle(PROMPTS))
    generations = engine.generate(
        PROMPTS,
        SamplingParams(max_new_tokens=9),
        on_round=lambda output: seen.setdefault(output.request_id, []).extend(output.token_ids),
    )
    assert seen == {g.request_id: g.token_ids for g in generations}


def test_public_names_are_imported_on_demand() -> None:
    assert specfast.Engine is Engine
    assert specfast.Generation is Generation
    assert specfast.drafters.NgramDrafter is NgramDrafter


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verify_lens": [2]}, "expected 2 verify_lens, got 1"),
        ({"confidence": torch.ones(2, 2)}, r"confidence \[2, 1\], one of each draft, got \[2, 2\]"),
        ({"confidence": torch.ones(1, 1)}, r"confidence \[2, 1\], one of each draft, got \[1, 1\]"),
        ({"status": [4]}, "expected 2 status, got 1"),
    ],
)
def test_what_comes_with_drafts_is_of_each_of_them(changes: dict, message: str) -> None:
    draft = DraftBatch(torch.zeros(2, 2, dtype=torch.int32), [2, 2])
    check_draft(draft, 2, 4)
    with pytest.raises(RuntimeError, match=f"drafter: .*{message}"):
        check_draft(replace(draft, **changes), 2, 4)
