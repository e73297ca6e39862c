"""Log-probabilities are those of the rows that the tokens were taken from."""

from __future__ import annotations

import pytest
import torch
from engine.models import answer_from_table, random_prompt, table_row, tiny_model
from specfast import SamplingParams
from specfast.drafters import Drafter, NgramDrafter, PlainDecoding
from specfast.engine import Engine, Generation
from torch import Tensor

PROMPTS = [random_prompt(length, seed=length) for length in (4, 9, 15, 6, 11)]
PARAMS = [
    SamplingParams(temperature=0.8, top_k=3, seed=1, logprobs="raw"),
    SamplingParams(temperature=0.8, top_k=3, seed=2, logprobs="processed"),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(logprobs="raw"),
    SamplingParams(logprobs="processed", max_new_tokens=9),
]


def expected(table: Tensor, generation: Generation, params: SamplingParams) -> list[float]:
    text = generation.prompt_ids + generation.token_ids
    values = []
    for at in range(len(generation.prompt_ids), len(text)):
        before, position = torch.tensor(text[at - 1]), torch.tensor(at - 1)
        row = table[table_row(before, position, len(table))].double()
        if params.logprobs == "processed":
            if params.is_greedy:
                values.append(0.0)
                continue
            row = row / params.temperature
            row[row < row.topk(params.top_k).values[-1]] = -torch.inf
        values.append(float(row.log_softmax(0)[text[at]]))
    return values


@pytest.mark.parametrize("asking", [range(5), [0, 2], [1, 2], [3], [4]], ids=str)
@pytest.mark.parametrize(
    "drafter",
    [PlainDecoding(), NgramDrafter(max_ngram=1), NgramDrafter(max_ngram=1, tree=True)],
    ids=["plain", "chain", "tree"],
)
def test_one_number_per_token(drafter: Drafter, asking: list[int]) -> None:
    table = 2.5 * torch.randn(13, 61, generator=torch.Generator().manual_seed(3))
    engine = Engine(tiny_model(), drafter)
    answer_from_table(engine, table)
    ids = [engine.add_request(PROMPTS[i], PARAMS[i]) for i in asking]
    done = {r: Generation(r, PROMPTS[i]) for r, i in zip(ids, asking, strict=True)}
    while engine.has_unfinished:
        for output in engine.step():
            done[output.request_id].append(output)
    for request_id, i in zip(ids, asking, strict=True):
        generation, params = done[request_id], PARAMS[i]
        if params.logprobs is None:
            assert generation.logprobs == []
            assert all(output.logprobs is None for output in generation.rounds)
            continue
        assert generation.logprobs == pytest.approx(expected(table, generation, params), abs=1e-5)
        for output in generation.rounds:
            assert output.logprobs is not None
            assert len(output.logprobs) == len(output.token_ids)


def test_asking_changes_no_token() -> None:
    texts = []
    for logprobs in (None, "raw", "processed"):
        engine = Engine(tiny_model(), NgramDrafter(tree=True))
        params = SamplingParams(temperature=0.7, seed=4, logprobs=logprobs, max_new_tokens=30)
        texts.append([g.token_ids for g in engine.generate(PROMPTS, params)])
    assert texts[0] == texts[1] == texts[2]
