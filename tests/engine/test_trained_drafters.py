"""Loaded drafters in the engine: their state is that of a fresh start, the output the target's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drafters.block_files import BlockCase, dflash2_cases, dflash_cases, dspark_cases
from drafters.eagle_files import EagleCase, eagle3_cases, eagle_cases
from engine.models import plain_greedy, random_prompt, tiny_model
from specfast import SamplingParams, Status
from specfast.drafters import (
    DraftBatch,
    DrafterError,
    DraftRequest,
    DraftTarget,
    TapRecorder,
    TrainedDrafter,
    TreeDrafter,
    load_drafter,
)
from specfast.drafters.eagle import EagleModel
from specfast.engine import Engine
from specfast.engine.verifier import Verifier
from specfast.records import AcceptRecord
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

VOCAB, WIDTH, NUM_TOKENS = 40, 6, 30
Case = EagleCase | BlockCase
CASES: dict[str, Case] = {
    case.name: case
    for case in [
        *eagle3_cases(),
        *eagle_cases(),
        *dflash_cases(),
        *dspark_cases(),
        *dflash2_cases(),
    ]
}
PROMPTS = [[token % VOCAB for token in random_prompt(n, seed=n)] for n in (5, 1, 17)]


@lru_cache
def target() -> PreTrainedModel:
    """What all the small checkpoints are for: 12 layers of 12 channels."""
    return tiny_model(
        vocab_size=VOCAB,
        hidden_size=12,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=6,
    )


@lru_cache
def texts() -> list[list[int]]:
    return [prompt + plain_greedy(target(), prompt, NUM_TOKENS) for prompt in PROMPTS]


class CheckedDrafter(TrainedDrafter):
    """Compares its drafts with those of a fresh start, then hides true tokens before them.

    So that rounds accept any number of drafts: of a random drafter the target takes hardly any.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._random = random.Random(1)
        self.num_checked = 0

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        batch = super().propose(requests, verify_width)
        drafts = []
        for row, length, request in zip(batch.tokens, batch.verify_lens, requests, strict=True):
            own = row[1:length].tolist()
            if own:
                assert own == from_scratch(self, request.token_ids, len(own))
                self.num_checked += 1
            done = len(request.token_ids)
            (text,) = (text for text in texts() if text[:done] == request.token_ids)
            true = text[done : done + self._random.randint(0, len(own))]
            drafts.append([*true, *own][: len(own)])
        return DraftBatch.from_lists(requests, drafts)


def from_scratch(drafter: TrainedDrafter, token_ids: list[int], num_drafts: int) -> list[int]:
    """What it drafts for a request that it has not seen before."""
    with TapRecorder(target(), drafter.tap_layers) as recorder:
        target()(torch.tensor([token_ids[:-1]]), use_cache=False)
    chain = drafter.new_chain()
    chain.extend(torch.tensor(token_ids[1:]), recorder.taps()[0])
    tokens: list[int] = chain.draft(num_drafts).tokens.tolist()
    return tokens


class BushyDrafter(CheckedDrafter):
    """The same as trees, where each draft stands behind a wrong sibling: accepted rows move."""

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        chains = super().propose(requests, (verify_width + 1) // 2)
        tokens, parents = [], []
        for row, length in zip(chains.tokens.tolist(), chains.verify_lens, strict=True):
            path = row[1:length]
            tokens.append([node for draft in path for node in ((draft + 1) % VOCAB, draft)])
            parents.append([2 * depth for depth in range(len(path)) for _ in range(2)])
        return DraftBatch.from_lists(requests, tokens, parents)


def decode(case: Case, path: Path, kind: type[CheckedDrafter] = CheckedDrafter) -> list[int]:
    """Decode all prompts together; the numbers of drafts that were accepted."""
    drafter = kind(load_drafter(case.write(path), DraftTarget.of(target())))
    width = WIDTH if kind is CheckedDrafter else 2 * WIDTH - 1
    engine = Engine(target(), drafter, page_size=4, verify_width=width)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    for generation, prompt, text in zip(generations, PROMPTS, texts(), strict=True):
        assert generation.prompt_ids + generation.token_ids == text
        assert generation.prompt_ids == prompt
    assert drafter.num_checked > 20
    assert drafter._chains == {}
    return [output.num_accepted for g in generations for output in g.rounds[1:]]


@pytest.mark.parametrize("name", CASES)
def test_lossless_and_as_from_scratch(name: str, tmp_path: Path) -> None:
    accepted = decode(CASES[name], tmp_path)
    assert {0, 1, 2, 3} <= set(accepted)


@pytest.mark.parametrize("name", ["safeailab", "dflash"])
def test_taps_of_accepted_nodes_of_a_tree(name: str, tmp_path: Path) -> None:
    accepted = decode(CASES[name], tmp_path, BushyDrafter)
    assert {0, 1, 2, 3} <= set(accepted)


class TestMutantsFail:
    @pytest.fixture(params=["safeailab", "llama2", "dflash", "dspark"])
    def case(self, request: pytest.FixtureRequest) -> Case:
        return CASES[request.param]

    def fails(self, case: Case, path: Path) -> None:
        with pytest.raises(AssertionError):
            decode(case, path)

    def test_taps_of_the_row_before(
        self, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        observe = TrainedDrafter.observe
        monkeypatch.setattr(
            TrainedDrafter,
            "observe",
            lambda self, requests, taps: observe(self, requests, [t.roll(1, 0) for t in taps]),
        )
        self.fails(case, tmp_path)

    def test_rows_after_those_accepted(
        self, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def change(index: list[int], last_row: int) -> list[int]:
            return [min(row + 1, last_row) for row in index]

        with_other_rows(monkeypatch, change)
        self.fails(case, tmp_path)

    def test_a_rejected_row_becomes_context(
        self, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def change(index: list[int], last_row: int) -> list[int]:
            return [*index, min(index[-1] + 1, last_row)]

        with_other_rows(monkeypatch, change)
        self.fails(case, tmp_path)


def with_other_rows(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[list[int], int], list[int]]
) -> None:
    """Let the drafter see other rows than those that were accepted."""
    committed_taps = Verifier._committed_taps

    def other(self: Verifier, record: AcceptRecord) -> list[Tensor] | None:
        assert self._recorder is not None
        last_row = self._recorder.taps().shape[1] - 1
        rows = [
            change(index[:count], last_row)
            for index, count in zip(
                record.accept_index.tolist(), record.commit_lens.tolist(), strict=True
            )
        ]
        index = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        lens = torch.tensor([len(row) for row in rows])
        changed: Any = SimpleNamespace(accept_index=index, commit_lens=lens)
        return committed_taps(self, changed)

    monkeypatch.setattr(Verifier, "_committed_taps", other)


MIXED = [
    SamplingParams(max_new_tokens=NUM_TOKENS),
    SamplingParams(temperature=0.9, seed=5, max_new_tokens=NUM_TOKENS),
    SamplingParams(temperature=1.2, top_k=7, seed=6, max_new_tokens=NUM_TOKENS),
]


@pytest.mark.parametrize("name", ["safeailab", "dspark", "dflash2"])
def test_greedy_and_drawn_drafts_in_one_batch(name: str, tmp_path: Path) -> None:
    model = load_drafter(CASES[name].write(tmp_path), DraftTarget.of(target()))

    def decoded(which: Sequence[int]) -> dict[int, list[int]]:
        engine = Engine(target(), TrainedDrafter(model), page_size=4, verify_width=WIDTH)
        places = {engine.add_request(PROMPTS[i], MIXED[i]): i for i in which}
        out: dict[int, list[int]] = {i: [] for i in which}
        while engine.has_unfinished:
            for output in engine.step():
                assert output.status == Status.OK
                out[places[output.request_id]] += output.token_ids
        return out

    together = decoded([2, 0, 1])
    assert PROMPTS[0] + together[0] == texts()[0]
    # The random numbers of a request, of its drafts too, are its own.
    assert decoded([1]) == {1: together[1]}
    assert decoded([2]) == {2: together[2]}


@pytest.mark.parametrize("name", ["safeailab", "llama2"])
@pytest.mark.parametrize(("drawn", "budget"), [(False, 24), (True, 24), (False, 7)])
def test_trees_of_eagle(name: str, drawn: bool, budget: int, tmp_path: Path) -> None:
    """Greedy text is plain decoding's, alone and beside requests that sample."""
    model = load_drafter(CASES[name].write(tmp_path), DraftTarget.of(target()))
    assert isinstance(model, EagleModel)
    for params in ([MIXED[0]] * 3, MIXED):
        drafter = TreeDrafter(model, 9, 3, 4, drawn=drawn, budget=budget)
        engine = Engine(target(), drafter, page_size=4, verify_width=9)
        places = [engine.add_request(*one) for one in zip(PROMPTS, params, strict=True)]
        out: dict[int, list[int]] = {place: [] for place in places}
        while engine.has_unfinished:
            outputs = engine.step()
            assert sum(output.num_proposed for output in outputs) <= budget
            for output in outputs:
                assert output.status == Status.OK
                assert output.num_proposed <= 8
                out[output.request_id] += output.token_ids
        greedy = [i for i, one in enumerate(params) if one.is_greedy]
        assert [PROMPTS[i] + out[i] for i in greedy] == [texts()[i] for i in greedy]
        assert all(len(tokens) == NUM_TOKENS for tokens in out.values())


NAN_TOKENS = 8
NAN_CASES = ["safeailab", "llama2", "dflash", "dspark", "dflash2"]


def decoded_with_nan(drafter: TrainedDrafter, params: Sequence[SamplingParams]) -> None:
    """Nothing is drafted, every round says so, and greedy text is that of plain decoding."""
    engine = Engine(target(), drafter, verify_width=WIDTH)
    places = [engine.add_request(*one) for one in zip(PROMPTS, params, strict=True)]
    out: dict[int, list[int]] = {place: [] for place in places}
    while engine.has_unfinished:
        for output in engine.step():
            first = not out[output.request_id]
            # Where one token is left, there is nothing to draft.
            last = len(out[output.request_id]) + 1 == NAN_TOKENS
            flagged = Status.OK if first or last else Status.NAN_DRAFTS
            assert (output.status, output.num_accepted) == (flagged, 0)
            out[output.request_id] += output.token_ids
    greedy = [i for i, one in enumerate(params) if one.is_greedy]
    for i in greedy:
        text = PROMPTS[i] + out[i]
        assert text == texts()[i][: len(text)]
    assert all(len(tokens) == NAN_TOKENS for tokens in out.values())


@pytest.mark.parametrize("name", NAN_CASES)
def test_no_number_no_harm(name: str, tmp_path: Path) -> None:
    model = load_drafter(CASES[name].write(tmp_path), DraftTarget.of(target()))
    model.weights["fc.weight"].fill_(torch.nan)
    short = [replace(params, max_new_tokens=NAN_TOKENS) for params in MIXED]
    decoded_with_nan(TrainedDrafter(model), short)
    if isinstance(model, EagleModel):
        for params in ([short[0]] * 3, short):
            decoded_with_nan(TreeDrafter(model, WIDTH, 2, 3, drawn=True), params)


def test_a_target_that_cannot_be_tapped(tmp_path: Path) -> None:
    drafter = TrainedDrafter(
        load_drafter(CASES["dflash"].write(tmp_path), DraftTarget.of(target()))
    )
    with pytest.raises(DrafterError, match="cannot be tapped"):
        Engine(tiny_model("gpt2"), drafter)


def test_num_drafts(tmp_path: Path) -> None:
    model = load_drafter(CASES["dflash"].write(tmp_path), DraftTarget.of(target()))
    with pytest.raises(ValueError, match="num_drafts >= 1, got 0"):
        TrainedDrafter(model, 0)
    engine = Engine(target(), TrainedDrafter(model, 2), verify_width=WIDTH)
    (generation,) = engine.generate(PROMPTS[:1], SamplingParams(max_new_tokens=9))
    assert max(r.num_proposed for r in generation.rounds) == 2
