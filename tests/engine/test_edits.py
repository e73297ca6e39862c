"""Penalties count what was emitted and drafted, once each, and biases are added before them."""

from __future__ import annotations

import math

import pytest
import torch
from engine.drafters import FixedDrafter
from engine.models import answer_from_table, table_row, tiny_model
from specfast import SamplingParams
from specfast.drafters import Drafter, NgramDrafter, PlainDecoding
from specfast.engine import Engine
from specfast.engine.edits import EditList, batch_edits
from torch import Tensor

INF = math.inf


@pytest.mark.parametrize("parents", [None, [0, 1]], ids=["chain", "tree"])
@pytest.mark.parametrize(
    ("other", "emitted"),
    # Value of token 4, by how often it is in the output: 3.5, 2.5, 1.5, 0.5.
    [(2.0, [4, 5]), (1.0, [4, 4, 5])],
)
def test_a_penalty_counts_every_token_once(
    other: float, emitted: list[int], parents: list[int] | None
) -> None:
    """Output so far [4], drafts [4, 4], frequency penalty 1."""
    engine = Engine(tiny_model(vocab_size=6), FixedDrafter([4, 4], parents))
    answer_from_table(engine, torch.tensor([[0, 0, 0, 0, 3.5, other]]))
    # The 4 of the prompt does not count.
    engine.add_request([1, 4], SamplingParams(frequency_penalty=1.0))
    assert engine.step()[0].token_ids == [4]
    (output,) = engine.step()
    assert output.token_ids == emitted
    assert output.num_accepted == len(emitted) - 1


def greedy(table: Tensor, prompt: list[int], params: SamplingParams) -> list[int]:
    """Plain decoding by the definition, one token after the other."""
    text = list(prompt)
    while len(text) < len(prompt) + params.max_new_tokens:
        output = text[len(prompt) :]
        before, position = torch.tensor(text[-1]), torch.tensor(len(text) - 1)
        row = table[table_row(before, position, len(table))].clone()
        for token, bias in params.logit_bias.items():
            row[token] += bias
        for token in set(text):
            r = params.repetition_penalty
            row[token] = row[token] / r if row[token] > 0 else row[token] * r
            row[token] -= params.frequency_penalty * output.count(token)
            row[token] -= params.presence_penalty * (token in output)
        text.append(int(row.argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.3, max_new_tokens=40),
        SamplingParams(repetition_penalty=0.8, max_new_tokens=40),
        SamplingParams(presence_penalty=0.7, max_new_tokens=40),
        SamplingParams(frequency_penalty=0.3, logit_bias={2: 1.5, 9: -INF}, max_new_tokens=40),
        SamplingParams(frequency_penalty=-0.1, presence_penalty=0.5, max_new_tokens=40),
        SamplingParams(
            repetition_penalty=1.1, frequency_penalty=0.1, logit_bias={7: 1.0}, max_new_tokens=40
        ),
        SamplingParams(logit_bias={5: 3.0, 1: 2.0}, max_new_tokens=40),
    ],
)
@pytest.mark.parametrize(
    "drafter",
    [PlainDecoding(), NgramDrafter(max_ngram=1), NgramDrafter(max_ngram=1, tree=True)],
    ids=["plain", "chain", "tree"],
)
def test_greedy_text_with_penalties(params: SamplingParams, drafter: Drafter) -> None:
    generator = torch.Generator().manual_seed(1)
    table = 2.0 * torch.randn(11, 12, generator=generator)
    engine = Engine(tiny_model(vocab_size=12), drafter)
    answer_from_table(engine, table)
    prompts = [[3, 4, 3, 8], [5]]
    # Requests of one batch have lists of different lengths; the last one has none.
    requests = [(prompts[0], params), (prompts[1], params), (prompts[0], SamplingParams())]
    ids = [engine.add_request(prompt, p) for prompt, p in requests]
    texts: dict[int, list[int]] = {i: [] for i in ids}
    while engine.has_unfinished:
        for output in engine.step():
            texts[output.request_id] += output.token_ids
    for request_id, (prompt, p) in zip(ids, requests, strict=True):
        assert texts[request_id] == greedy(table, prompt, p)


def test_entries_ascend_and_count_from_the_prompt_on() -> None:
    edits = EditList(SamplingParams(presence_penalty=1.0, logit_bias={5: 0.5, 3: -1.0}), 3)
    assert edits.entries([9, 3, 9]) == [(3, 0, -1.0), (5, -1, 0.5), (9, 0, 0.0)]
    assert edits.entries([9, 3, 9, 9, 1]) == [
        (1, 1, 0.0),
        (3, 0, -1.0),
        (5, -1, 0.5),
        (9, 1, 0.0),
    ]
    assert edits.entries([9, 3, 9, 9, 1, 5, 9])[2:] == [(5, 1, 0.5), (9, 2, 0.0)]


def test_without_penalties_only_biases_are_listed() -> None:
    assert EditList(SamplingParams(logit_bias={4: 1.0}), 1).entries([4, 4, 7]) == [(4, -1, 1.0)]
    assert EditList(SamplingParams(temperature=1.0), 1).entries([4, 4, 7]) == []


def test_a_batch_of_edits() -> None:
    cpu = torch.device("cpu")
    assert batch_edits([[], []], cpu) is None
    edits = batch_edits([[(1, 2, 0.0)], [], [(0, -1, 0.5), (4, 0, 0.0)]], cpu)
    assert edits is not None
    assert edits.indptr.tolist() == [0, 1, 1, 3]
    assert edits.ids.tolist() == [1, 0, 4]
    assert edits.counts.tolist() == [2, -1, 0]
    assert edits.biases is not None
    assert edits.biases.tolist() == [0.0, 0.5, 0.0]
    unbiased = batch_edits([[(1, 2, 0.0)]], cpu)
    assert unbiased is not None
    assert unbiased.biases is None
