"""Models over a few tokens whose probabilities are known fractions, and their rows as tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product

import torch
from specfast import Proposal, SamplingRules
from torch import Tensor

Row = tuple[Fraction, ...]
Context = tuple[int, ...]
# The distribution of the token after a context.
Model = Callable[[Context], Row]


def row(text: str) -> Row:
    """Probabilities from weights: ``row("3 4 3")`` is .3, .4, .3."""
    weights = [Fraction(word) for word in text.split()]
    return tuple(weight / sum(weights) for weight in weights)


def by_depth(*texts: str) -> Model:
    """A model whose row depends on how many tokens came before; the last row goes on."""
    rows = [row(text) for text in texts]
    return lambda context: rows[min(len(context), len(rows) - 1)]


def by_last(first: str, *after: str) -> Model:
    """A model whose row depends on the token before."""
    rows = [row(text) for text in after]
    return lambda context: rows[context[-1]] if context else row(first)


def logits_of(rows: Sequence[Row]) -> Tensor:
    """float32 [R, V] logits whose softmax at temperature 1 is the rows."""
    return torch.tensor([[math.log(p) if p > 0 else -math.inf for p in r] for r in rows])


def sequences(model: Model, length: int) -> dict[Context, Fraction]:
    """The law of the first ``length`` tokens."""
    law: dict[Context, Fraction] = {(): Fraction(1)}
    for _ in range(length):
        law = {
            (*context, token): probability * p
            for context, probability in law.items()
            for token, p in enumerate(model(context))
            if p > 0
        }
    return law


def completed(
    outputs: Mapping[Context, Fraction], model: Model, length: int
) -> dict[Context, Fraction]:
    """The law of ``length`` tokens if after each output the model itself goes on."""
    law: dict[Context, Fraction] = {}
    for output, probability in outputs.items():
        rest = sequences(lambda context, start=output: model(start + context), length - len(output))
        for continuation, p in rest.items():
            key = output + continuation
            law[key] = law.get(key, Fraction(0)) + probability * p
    return law


def ordered_draws(q: Row, count: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Draws without replacement, in draw order, with their probabilities."""
    for tokens in product(range(len(q)), repeat=count):
        probability, left = Fraction(1), Fraction(1)
        for i, token in enumerate(tokens):
            if token in tokens[:i] or left == 0:
                probability = Fraction(0)
                break
            probability *= q[token] / left
            left -= q[token]
        if probability > 0:
            yield tokens, probability


def plain_sampling(num_requests: int, device: str = "cpu", **options: object) -> SamplingRules:
    """Temperature 1 for every request, with the seeds 0, 1, ...; options as single numbers."""

    def filled(value: object) -> object:
        if isinstance(value, (int, float)):
            dtype = torch.int32 if isinstance(value, int) else torch.float32
            return torch.full((num_requests,), value, dtype=dtype, device=device)
        return value

    given = {name: filled(value) for name, value in options.items()}
    given.setdefault("temperature", torch.ones(num_requests, device=device))
    given.setdefault("seeds", torch.arange(num_requests, device=device))
    return SamplingRules(**given)  # type: ignore[arg-type]


Q_FORMS = ("records", "dense", "sparse", "draft vocabulary")


def proposal(form: str, rows: Sequence[Row], sample_rows: Callable[..., object]) -> Proposal:
    """A proposal of these rows in one of the forms that q may have."""
    probs = torch.tensor([[float(p) for p in r] for r in rows])
    vocab_size = probs.shape[1]
    if form == "dense":
        return Proposal(probs=probs, without_replacement=True)
    if form == "sparse":
        # Likeliest first; what has no probability is left out.
        width = int((probs > 0).sum(1).max())
        values, ids = probs.sort(dim=1, descending=True)
        ids, values = ids[:, :width].int(), values[:, :width].contiguous()
        return Proposal(sparse_ids=ids.contiguous(), sparse_values=values, without_replacement=True)
    logits, d2t = logits_of(rows), None
    if form == "draft vocabulary":
        # The draft model knows the even ids only.
        logits = logits[:, ::2].contiguous()
        assert bool((probs[:, 1::2] == 0).all())
        d2t = torch.arange(0, vocab_size, 2) - torch.arange(logits.shape[1])
    prefix_lens = torch.zeros(len(rows), dtype=torch.int32)
    records = sample_rows(logits, plain_sampling(len(rows)), prefix_lens, num_draws=0).records
    return Proposal(logits=logits, records=records, d2t=d2t, without_replacement=True)
